"""Strategies for Hypothesis: calls that are right by their contract, and calls with a single fault.

    @given(valid_calls(operator))
    def test(call: Call) -> None: ...
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import reject
from hypothesis import strategies as st

from .. import model as m
from .call import Call
from .draw import Adjust, CannotDraw, draw, unchanged
from .faults import Fault, changes

_T = TypeVar("_T")
TRIES = 10  # after which Hypothesis had better begin anew


class _Choices:
    """Choices that Hypothesis makes, and simplifies when a test fails."""

    def __init__(self, draw: st.DrawFn):
        self.draw = draw

    def integer(self, least: int, most: int) -> int:
        return self.draw(st.integers(least, most))

    def choice(self, of: Sequence[_T]) -> _T:
        return of[self.draw(st.integers(0, len(of) - 1))]


@st.composite
def valid_calls(draw_: st.DrawFn, op: m.Operator, adjust: Adjust = unchanged) -> Call:
    try:
        return draw(op, _Choices(draw_), adjust, tries=TRIES)
    except CannotDraw:
        reject()


@st.composite
def faulty_calls(draw_: st.DrawFn, op: m.Operator, adjust: Adjust = unchanged) -> Fault:
    """A valid call with one thing changed. Operators that take every call there is have none."""
    source = _Choices(draw_)
    possible = changes(draw_(valid_calls(op, adjust)), source, is_c=False)
    fault = source.choice(possible)() if possible else None
    return fault if fault is not None else reject()
