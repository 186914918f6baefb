"""ripple from Python: typed functions, torch.ops, an error."""

import torch
from ripple import _C

assert _C.row_sums(torch.ones(2, 3)).tolist() == [3.0, 3.0]
assert torch.ops.ripple.largest(torch.arange(4.0)) == 3.0
try:
    _C.scaled(torch.ones(2), torch.ones(3))
except ValueError as error:
    assert str(error).startswith("scaled: y has "), error
else:
    raise AssertionError("a wrong shape was let through")
