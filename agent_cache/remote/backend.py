"""What a tier asks of a store of versions: a `Backend`, a few atomic operations."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Collection, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from agent_cache.errors import ConfigurationError
from agent_cache.remote.cells import STORE, Cell, SomeCells
from agent_cache.remote.feed import News

__all__ = [
    "ARMED", "HELD", "IDLE", "Backend", "Head", "Reading", "Refused", "State", "checked_namespace", "drive",
    "entries_of", "open_head",
]  # fmt: skip

IDLE, ARMED, HELD = 0, 1, 2

State = tuple[Any, int]
"""The version of a cell, and whether it is idle, armed or held."""


class Refused(ConnectionError):
    """The store does not know what was asked, or may not be used. A subclass of what an outage raises."""


class Head(msgspec.Struct, array_like=True, frozen=True):
    """What is stored beside a value: the versions of the cells that it depends on from before its load, when that
    began by the clock of the backend, and the tags that only the result has named, as the codec writes them.
    """

    versions: dict[Cell, int | str]
    loaded: float
    ttl: float | None
    grace: float
    cost: float
    tool: str
    late: bytes = b""

    def encode(self) -> bytes:
        """What `open_head` reads."""
        return msgspec.json.encode(self)


_decode_head: Final = msgspec.json.Decoder(Head).decode


def open_head(data: bytes) -> Head | None:
    """Read a head. None if it is damaged, or of another version."""
    try:
        return _decode_head(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


@dataclass(slots=True)
class Reading:
    """What a backend has read, all of one moment: the states of the cells that were asked for and of those in the head,
    the time by its clock, and the value, if there is one.
    """

    states: Mapping[Cell, State]
    now: float
    head: Head | None = None
    raw_head: bytes = b""
    payload: bytes = b""


class Backend(Protocol):
    """A store of versions. Each method is one atomic operation, and raises `ConnectionError` while the store cannot be
    used. A backend that waits for a server has an attribute `failure`: why an operation had no answer in time, or None.
    While it is set, all but `feed` raise at once. `feed` asks, and sets it to None: only the tier's thread calls it
    meanwhile.

    Each of `begin`, `commit`, `set_ttl` and `clear` is a *step*: it has the next number, and appends its message to the
    feed. It and `read` first end each writer whose lease has passed: all that it held or armed changes. All may be
    repeated: a step that comes late or twice ends values, and restores none. Called in several loops and threads.
    """

    async def read(self, cells: SomeCells, address: Cell | None) -> Reading:
        """Read these cells, the value at an address, and the cells that it depends on.

        The state of ``#`` is `News.store`. A cell that is unknown has a version that it never had before.
        """
        ...

    async def put(self, address: Cell, head: bytes, payload: bytes, *, keep: float | None) -> None:
        """Store a value for `keep` seconds, None for as long as there is room."""
        ...

    async def begin(
        self, writer: str, held: SomeCells, armed: SomeCells, lease: float, message: bytes, *, renew: bool = False
    ) -> int:
        """Give `held` a new version, and hold them and arm the others until the lease passes. Returns its number.

        With `renew`, the lease of a known writer begins anew, and nothing else happens: that returns 0. Others begin.
        """
        ...

    async def commit(self, writer: str, moved: SomeCells, hold: float, message: bytes) -> int:
        """Give `moved` a new version, hold them for `hold` seconds, and let the writer end. Returns its number."""
        ...

    async def claim(self, name: str, who: str, lease: float) -> str:
        """Claim a name for a time, unless another one has; a lease of 0 gives it up. Returns whose it is."""
        ...

    async def feed(self, since: int | None) -> News:
        """Messages after a number: None if some are gone, or it was never reached. None asks for the newest alone."""
        ...

    async def set_ttl(self, tool: str, ttl: float | None, message: bytes) -> int:
        """Set the ttl of a tool; None takes it back. Returns its number."""
        ...

    async def ttls(self) -> dict[str, float]:
        """Those that are set."""
        ...

    async def clear(self) -> int:
        """Drop all values, and give ``*`` a new version by a step with the message `LOST`. Returns how many."""
        ...

    async def aclose(self) -> None:
        """Release what it has open."""
        ...


def drive(steps: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never waits, to its end.

    Raises:
        RuntimeError: if it waits.
    """
    try:
        steps.send(None)
    except StopIteration as end:
        return end.value
    steps.close()
    raise RuntimeError("it waits")


def checked_namespace(namespace: Any, kind: str) -> str:
    """Check a namespace.

    Raises:
        ConfigurationError: if it cannot be one.
    """
    if not isinstance(namespace, str) or not re.fullmatch(r"[^\s{}:]{1,64}", namespace):
        raise ConfigurationError(
            f"{kind}: namespace must be a short text without spaces, braces and colons, got {namespace!r}"
        )
    return namespace


async def entries_of(
    tier: Any, named: Mapping[Cell, str]
) -> AsyncGenerator[tuple[dict[str, Any], Collection[Cell]], None]:
    """All values of a `FileTier` or a `RedisTier`, without what they hold: facts of each, and the cells that it depends
    on. An entity is ``order:#`` and its digest, unless it is among the named.

    Raises:
        ConnectionError: if it cannot be used.
    """
    async for some in tier.backend.values():
        heads = [open_head(raw) for _, raw, _, _ in some]
        cells = {cell for head in heads if head is not None for cell in head.versions}
        reading = await tier.backend.read(cells | {STORE}, None)
        for (address, _, size, left), head in zip(some, heads, strict=True):
            is_current = head is not None and all(
                reading.states[cell][0] == version and reading.states[cell][1] < HELD
                for cell, version in head.versions.items()
            )
            facts: dict[str, Any] = {
                "digest": address[1:],
                "tool": "" if head is None else head.tool,
                "tags": sorted(_tags(head, named)),
                "bytes": size,
                "age": None if head is None else round(max(0.0, reading.now - head.loaded), 3),
                "ttl": None if head is None else head.ttl,
                "grace": None if head is None else head.grace,
                "cost": None if head is None else round(head.cost, 6),
                "expires_in": None if left is None else round(max(0.0, left), 3),
                "is_current": is_current and (left is None or left > 0),
            }
            yield facts, () if head is None else head.versions


def _tags(head: Head | None, named: Mapping[Cell, str]) -> set[str]:
    found = set()
    for cell in head.versions if head is not None else ():
        root, _, rest = cell.partition(":")
        if rest == "D":
            found.add(root)
        elif rest[:1] == ":":
            found.add(named.get(cell, f"{root}:#{rest[1:13]}"))
    return found
