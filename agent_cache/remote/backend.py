"""What a tier asks of a store of versions: a `Backend`, a few atomic operations."""

from __future__ import annotations

import re
from collections.abc import Collection, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from agent_cache.errors import ConfigurationError
from agent_cache.remote.cells import Cell
from agent_cache.remote.codecs import Codec, MessagePackCodec
from agent_cache.remote.feed import News

__all__ = [
    "ARMED", "HELD", "IDLE", "Backend", "Head", "Reading", "Refused", "State", "checked_codec", "checked_namespace",
    "drive", "encode_head", "open_head",
]  # fmt: skip

IDLE, ARMED, HELD = 0, 1, 2

State = tuple[Any, int]
"""The version of a cell, and whether it is idle, armed or held."""


class Refused(ConnectionError):
    """The store does not know what was asked, or may not be used. A subclass of what an outage raises."""


class Head(msgspec.Struct, array_like=True, frozen=True):
    """What is stored beside a value.

    Attributes:
        versions: of each cell that it depends on, as it was before the load.
        loaded: when its load began, by the clock of the backend.
        ttl, grace: seconds; a ttl of None is for ever.
        cost: seconds that its load took.
        tool: its name.
        late: the tags that only the result has named, as the codec writes them.
    """

    versions: dict[Cell, int | str]
    loaded: float
    ttl: float | None
    grace: float
    cost: float
    tool: str
    late: bytes = b""


encode_head: Final = msgspec.json.Encoder().encode
_decode_head: Final = msgspec.json.Decoder(Head).decode


def open_head(data: bytes) -> Head | None:
    """Read a head. None if it is damaged, or of another version."""
    try:
        return _decode_head(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


@dataclass(slots=True)
class Reading:
    """What a backend has read, all of one moment.

    Attributes:
        states: of the cells that were asked for, and of those in `head`.
        now: by the clock of the backend.
        head, raw_head, payload: of the value; None if there is none.
    """

    states: Mapping[Cell, State]
    now: float
    head: Head | None = None
    raw_head: bytes = b""
    payload: bytes = b""


class Backend(Protocol):
    """A store of versions. Each method is one atomic operation, and raises `ConnectionError` while the store cannot be
    used: after one short timeout, and then at once until it can be.

    Each of `begin`, `commit` and `set_ttl` is a *step*: it has the next number, and appends its message to the feed.
    All of them may be repeated: a step that comes late or twice ends values, and restores none.
    `agent_cache.testing.tier_contract` tests a backend.
    """

    async def read(self, cells: Collection[Cell], address: Cell | None) -> Reading:
        """Read these cells, the value at an address, and the cells that it depends on.

        The state of ``#`` is the identity of the store. A writer whose lease has passed is ended first: the cells that
        it held or armed get a new version. A cell that is unknown has a version that it never had before.
        """
        ...

    async def put(self, address: Cell, head: bytes, payload: bytes, *, store: Any, keep: float | None) -> None:
        """Store a value for `keep` seconds, None for as long as there is room, unless this is another store by now."""
        ...

    async def begin(
        self, writer: str, held: Collection[Cell], armed: Collection[Cell], lease: float, message: bytes
    ) -> int:
        """Give `held` a new version, and hold them and arm the others until the lease passes. Returns its number."""
        ...

    async def renew(
        self, writer: str, held: Collection[Cell], armed: Collection[Cell], lease: float, message: bytes
    ) -> None:
        """Let the lease begin anew; begin again if the writer is not known."""
        ...

    async def commit(self, writer: str, moved: Collection[Cell], hold: float, message: bytes) -> int:
        """Give `moved` a new version, hold them for `hold` seconds, and let the writer end. Returns its number."""
        ...

    async def claim(self, name: str, who: str, lease: float, *, renew: bool = False) -> str:
        """Claim a name for a time, unless another one has. Returns whose it is.

        With `renew`, only who has it gets it for longer; ``""`` says that it is another one's.
        """
        ...

    async def release(self, name: str, who: str) -> None:
        """End a claim, if it is still one's own."""
        ...

    async def feed(self, since: int | None) -> News:
        """The messages of all steps after a number; None asks for the newest number alone."""
        ...

    async def set_ttl(self, tool: str, ttl: float | None, message: bytes) -> int:
        """Set the ttl of a tool; None takes it back. Returns its number."""
        ...

    async def ttls(self) -> dict[str, float]:
        """Those that are set."""
        ...

    async def clear(self) -> int:
        """Drop all values, and give everything a new version. Returns how many there were."""
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


# Options


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


def checked_codec(codec: Any, max_value_size: Any, kind: str) -> tuple[Codec, int]:
    """The codec, and the limit that both it and the tier keep.

    Raises:
        ConfigurationError: naming the option and the fix.
    """
    for name in ("encode", "decode"):
        if codec is not None and not callable(getattr(codec, name, None)):
            raise ConfigurationError(f"{kind}: codec {codec!r} cannot {name}")
    is_whole = isinstance(max_value_size, int) and not isinstance(max_value_size, bool)
    if max_value_size is not None and not (is_whole and 1024 <= max_value_size <= 1 << 62):
        raise ConfigurationError(f"{kind}: max_value_size must be bytes, 1024 to 2**62, got {max_value_size!r}")
    if codec is None:
        codec = MessagePackCodec() if max_value_size is None else MessagePackCodec(max_size=max_value_size)
        return codec, codec.max_size
    allowed = getattr(codec, "max_size", None)
    if max_value_size is None:
        return codec, allowed or MessagePackCodec().max_size
    if allowed is not None and allowed < max_value_size:
        raise ConfigurationError(
            f"{kind}: max_value_size={max_value_size}, but {codec!r} takes no more than {allowed} bytes; give it a "
            "larger max_size, or leave out max_value_size"
        )
    return codec, max_value_size
