"""Interrupts a call at each place in turn where Python may raise `KeyboardInterrupt` in it, or run other threads."""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Callable
from types import FrameType

from tests.harness.preemption import PACKAGE

__all__ = ["LIBRARY", "interrupted"]

LIBRARY = (PACKAGE, "<agent_cache")
"""Where the names of the files of the library, and of the functions that it generates, begin."""


def _interrupt() -> None:
    raise KeyboardInterrupt


def interrupted(
    call: Callable[[], object],
    stop: int,
    files: tuple[str, ...] = LIBRARY,
    by: Callable[[], object] = _interrupt,
) -> str | None:
    """Make a call, and interrupt it at one place in these files: a function's entry, or the return of a built-in one.

    Args:
        by: what happens there; Ctrl-C if left out.

    Returns:
        Which place, or None if the call has come through.
    """
    places = 0
    where = None

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal places, where
        if event not in {"call", "c_return"} or not frame.f_code.co_filename.startswith(files):
            return
        places += 1
        if places == stop:
            sys.setprofile(None)
            where = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
            by()

    sys.setprofile(profile)
    try:
        contextvars.copy_context().run(call)
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
    return where
