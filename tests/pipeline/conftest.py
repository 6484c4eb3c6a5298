"""What the tests of the pipeline share: a check of what is left over, and a fleet's server."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_cache.remote import FileTier
from agent_cache.testing import MemoryServer, MemoryTier
from tests.harness import library
from tests.harness.file_peers import Peer
from tests.harness.file_steps import show_steps
from tests.pipeline.fleet import Truth, WatchedTier


@pytest.fixture(autouse=True)
def patient_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file tier waits for a locked file as long as a busy machine needs, where its test names no `timeout`."""
    defaults: Any = FileTier.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "timeout", 20.0)


@pytest.fixture
def nothing_left(clock: library.Clock) -> Iterator[None]:
    """Whatever the test was about, it leaves no load in flight."""
    before = library.loads_in_flight()
    yield
    gc.collect()  # A call that was abandoned ends when it is collected.
    assert library.loads_in_flight() <= before


@pytest.fixture
def server() -> MemoryServer:
    """The server that the processes of a fleet share."""
    gc.collect()  # A write reaches the tiers of every tool that is alive: those of earlier tests must be gone.
    return MemoryServer()


@pytest.fixture
def here(server: MemoryServer) -> WatchedTier:
    """The tier of this process."""
    return WatchedTier(server)


@pytest.fixture
def elsewhere(server: MemoryServer) -> MemoryTier:
    """The tier of another process."""
    return MemoryTier(server)


@pytest.fixture
def truth() -> Truth:
    """The store behind the tools of a fleet."""
    return Truth()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Peer]]:
    """Starts processes that share the file tier ``tmp_path / "cache"``."""
    peers: list[Peer] = []

    def start(**options: Any) -> Peer:
        peers.append(peer := Peer(tmp_path))
        peer.do("open", **{"lease": 0.3, "timeout": 20.0, **options})
        return peer

    yield start
    for peer in peers:
        peer.close()


@pytest.fixture
def steps() -> Iterator[list[Callable[[str], None]]]:
    """Functions that see each step of the file tiers of this process: see `show_steps`."""
    seen: list[Callable[[str], None]] = []

    def show(text: str) -> None:
        for one in seen:
            one(text)

    end = show_steps(show)
    yield seen
    end()
