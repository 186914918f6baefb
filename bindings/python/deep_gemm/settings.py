"""Settings of DeepGEMM that older callers change, and that have no operator of their own here."""

from __future__ import annotations

__all__ = ["get_compile_mode", "set_compile_mode"]

_compile_mode = 0


def get_compile_mode() -> int:
    """What `set_compile_mode` was called with last; 0 before."""
    return _compile_mode


def set_compile_mode(mode: int) -> None:
    """Accepted for compatibility. 1 asks DeepGEMM to compile kernels without running them, 0 to run them, too; here nothing is compiled at
    run time, and a call runs in either mode."""
    global _compile_mode
    if mode not in (0, 1):
        raise ValueError(f"set_compile_mode: mode is {mode!r}, expected 0 or 1")
    _compile_mode = int(mode)
