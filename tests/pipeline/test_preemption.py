"""P1 between threads, line by line: a call stands still while another thread runs a whole one.

A stress hits the few instructions between "still clean?" and "store" once in many runs. Here a trace function stops
the call at its first line in the library, lets the other thread go through, and does it again at the second line, and
so on.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import agent_cache
from agent_cache import AgentCache, AgentCacheInvalidator

pytestmark = pytest.mark.usefixtures("nothing_left")

PACKAGE = str(Path(agent_cache.__file__).parent)
PATIENCE = 30.0  # Seconds until something that waits for another thread counts as hung.
A_MOMENT = 0.005  # Seconds until who has not come through waits for a lock that the stopped call holds.

Main = Callable[[], Coroutine[Any, Any, Any]]


class Thread(threading.Thread):
    """Runs a call in an event loop of its own, and stops it once, at the given line of those it runs in the library."""

    def __init__(self, main: Main, stop: int = 0) -> None:
        super().__init__(daemon=True)
        self.main, self.stop = main, stop
        self.lines = 0
        self.where = "its end"
        self.stands_still, self.may_go_on = threading.Event(), threading.Event()

    def run(self) -> None:
        if self.stop:
            sys.settrace(self._trace)
        try:
            asyncio.run(self.main())
        finally:
            self.stands_still.set()

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith((PACKAGE, "<agent_cache")):
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


def stopped_everywhere(stopped: Main, whole: Main, before: Callable[[], object]) -> Iterator[str]:
    """Stop the first call at each of its lines in turn, run the second meanwhile, and tell where when both are over."""
    for stop in count(1):
        before()
        first, second = Thread(stopped, stop), Thread(whole)
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


class Shop:
    """One order, and how it is read and written."""

    def __init__(self, resource: str) -> None:
        self.version = 0

        @AgentCache(resource)
        async def get(id: str) -> tuple[str, int]:
            return id, self.version

        @AgentCacheInvalidator("preempted:{id}")
        async def change(id: str) -> None:
            self.version += 1

        self.get, self.change = get, change

    async def read(self) -> int:
        return (await self.get("7"))[1]

    async def write(self) -> None:
        await self.change("7")


@pytest.mark.parametrize("resource", ["preempted", "preempted:{id}", "preempted:{result[0]}"])
def test_a_read_may_be_stopped_anywhere_by_a_whole_write(resource):
    """Whatever it had looked at by then: once the write has ended, nobody is given the old version."""
    shop = Shop(resource)
    for where in stopped_everywhere(shop.read, shop.write, before=shop.get.clear):
        assert asyncio.run(shop.read()) == shop.version, where


def test_a_write_may_be_stopped_anywhere_by_a_whole_read():
    """Whatever the read met: once the write has ended, nobody is given the old version."""
    shop = Shop("preempted:{id}")
    for where in stopped_everywhere(shop.write, shop.read, before=lambda: asyncio.run(shop.read())):
        assert asyncio.run(shop.read()) == shop.version, where
