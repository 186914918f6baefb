"""ripple on NumPy arrays, without torch."""

import sys

import numpy as np
from ripple import dlpack

assert dlpack.row_sums(np.ones((2, 3), np.float32)).tolist() == [3.0, 3.0]
assert dlpack.largest(np.arange(4, dtype=np.float32)) == 3.0
y = np.empty(2, np.float32)
dlpack.scaled(np.ones(2, np.float32), y, scale=2.0)
assert y.tolist() == [2.0, 2.0]
try:
    dlpack.scaled(np.ones(2, np.float32), np.ones(3, np.float32))
except ValueError as error:
    assert str(error).startswith("scaled: y has "), error
else:
    raise AssertionError("a wrong shape was let through")
assert "torch" not in sys.modules
