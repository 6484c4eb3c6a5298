"""What tools and tiers say to each other: a read, what was found, a write, and what other processes have written."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Found", "Listener", "Request", "Touched", "Versions", "WriteIntent"]


@dataclass(frozen=True, slots=True)
class Touched:
    """What another process has begun or ended writing: tags, and entries as (identity of the tool, key)."""

    tags: tuple[str, ...] = ()
    keys: tuple[tuple[str, Hashable], ...] = ()


Listener = Callable[[Touched | None], None]
"""Called with each invalidation of another process, in any thread. None: any number of them may have been lost."""

Versions = Mapping[Any, Any]
"""The version of each thing that a value depends on. Opaque to everything but the tier that it comes from."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Request:
    """One read, as a tier sees it.

    Attributes:
        tool: identity of the tool, ``module:qualname`` or its `name=`.
        key: the canonical key of the call, tenant and `vary` included. It means something in this process.
        arguments: names and values that the key was made of, for a digest. With a value that has none, nothing is found
            or stored.
        tags: dependencies of the answer, as far as they are known before the load.
        late_roots: roots of the dependencies that come from the result.
        ttl: seconds the answer may live, counted from the start of its load; None for ever, or if that is known only
            from the result.
        session: id of the session that owns the entry, None for the global scope.
        tenant: owner of the entry, None without tenants.
        returns: return annotation of the tool, for codecs.
        roots: every root that an answer may depend on.
        grace: seconds beyond its ttl that an answer may be served while it is reloaded.
        strong: an answer counts only if its versions were checked for this call; no local copy of it is stored.
    """

    tool: str
    key: Hashable
    arguments: tuple[tuple[str, Any], ...]
    tags: tuple[str, ...]
    late_roots: tuple[str, ...]
    ttl: float | None
    session: str | None
    tenant: Hashable | None
    returns: Any
    roots: tuple[str, ...] = ()
    grace: float = 0.0
    strong: bool = False


@dataclass(slots=True)  # a frozen one takes 0.5 us more to make, of each hit
class Found:
    """A value that a tier holds and that is valid now.

    Attributes:
        value: the decoded answer; the caller owns it.
        tags: all its dependencies, tags from its result included.
        age: seconds since its load started.
        cost: seconds its load took.
        ttl: seconds it may still live; None for ever. Zero or less only within its grace period.
        is_to_refresh: it is within its grace period, and this process is the one that reloads it.
    """

    value: Any
    tags: tuple[str, ...]
    age: float = 0.0
    cost: float = 0.0
    ttl: float | None = None
    is_to_refresh: bool = False


@dataclass(frozen=True, slots=True)
class WriteIntent:
    """One write, as a tier sees it.

    Attributes:
        id: unique; makes `begin` and `commit` idempotent.
        tags: tags that the write touches, as far as they are known before it runs: held from `begin` to `commit`.
        late_roots: roots of the tags that come from its result: armed from `begin` to `commit`.
        entries: single entries that it touches instead.
        on_unreachable: if the write cannot be announced, `begin` returns (``"run"``) and the tier commits it as soon
            as it can, or `begin` raises `RemoteTierError` (``"refuse"``).
    """

    id: str
    tags: tuple[str, ...]
    late_roots: tuple[str, ...] = ()
    entries: tuple[Request, ...] = ()
    on_unreachable: Literal["run", "refuse"] = "run"
