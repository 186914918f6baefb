"""Which tests run where."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

__all__ = ["get_arch_major", "ignore_env", "test_filter"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


def get_arch_major() -> int:
    """The major number of the current GPU's architecture, 9 for Hopper; 0 without a GPU."""
    return torch.cuda.get_device_capability()[0] if torch.cuda.is_available() else 0


def test_filter(condition: Callable[[], bool]) -> Callable[[Callable[_P, _R]], Callable[_P, _R | None]]:
    """Decorates a test that runs only where condition() holds, and says so elsewhere."""

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R | None]:
        @functools.wraps(function)
        def run(*args: _P.args, **kwargs: _P.kwargs) -> _R | None:
            if condition():
                return function(*args, **kwargs)
            print(f"{getattr(function, '__name__', function)}: left out, its condition does not hold here")
            return None

        return run

    return decorate


setattr(test_filter, "__test__", False)  # pytest: not a test


def ignore_env(name: str, condition: Callable[[], bool]) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorates a function that runs without the environment variable where condition() holds."""

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            saved = os.environ.pop(name, None) if condition() else None
            try:
                return function(*args, **kwargs)
            finally:
                if saved is not None:
                    os.environ[name] = saved

        return run

    return decorate
