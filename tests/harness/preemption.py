"""Stops a call in one thread at each of its lines in the library in turn, while another thread runs a whole one.

A stress hits the few instructions between two steps once in many runs; here a trace function finds them all.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import agent_cache

PACKAGE = str(Path(agent_cache.__file__).parent)
PATIENCE = 30.0  # Seconds until something that waits for another thread counts as hung.
A_MOMENT = 0.005  # Seconds until who has not come through waits for a lock that the stopped call holds.

Main = Callable[[], Coroutine[Any, Any, Any] | object]
"""A coroutine function, which gets an event loop of its own, or a plain one."""


class Thread(threading.Thread):
    """Runs a call, and stops it once, at the given line of those it runs in the library.

    Attributes:
        files: how the names of the files begin whose lines count.
    """

    def __init__(self, main: Main, stop: int = 0, files: tuple[str, ...] = (PACKAGE, "<agent_cache")) -> None:
        super().__init__(daemon=True)
        self.main, self.stop, self.files = main, stop, files
        self.lines = 0
        self.where = "its end"
        self.error: BaseException | None = None
        self.stands_still, self.may_go_on = threading.Event(), threading.Event()

    def run(self) -> None:
        if self.stop:
            sys.settrace(self._trace)
        try:
            work = self.main()
            if inspect.iscoroutine(work):
                asyncio.run(work)
        except BaseException as error:
            self.error = error
        finally:
            self.stands_still.set()

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(self.files):
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self.stop:
                self.where = f"{frame.f_code.co_qualname}, line {frame.f_lineno} of {frame.f_code.co_filename}"
                self.stands_still.set()
                assert self.may_go_on.wait(PATIENCE)
        return self._trace

    def end(self) -> None:
        """Let it go on to its end."""
        self.may_go_on.set()
        self.join(PATIENCE)
        assert not self.is_alive(), f"a call that was stopped in {self.where} hangs"
        if self.error is not None:
            raise self.error


def stopped_everywhere(
    stopped: Main,
    whole: Main,
    before: Callable[[], object],
    files: tuple[str, ...] = (PACKAGE, "<agent_cache"),
    every: int = 1,
) -> Iterator[str]:
    """Stop the first call at each of its lines in turn, run the second meanwhile, and tell where when both are over.

    With `every` at every so many lines.
    """
    for stop in count(1, every):
        before()
        first, second = Thread(stopped, stop, files), Thread(whole)
        first.start()
        assert first.stands_still.wait(PATIENCE)
        if first.lines < stop:
            first.end()
            assert stop > 30, "the call came through the library without being seen"
            return
        second.start()
        second.join(A_MOMENT)
        first.end()
        second.end()
        yield first.where
