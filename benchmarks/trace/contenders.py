"""The caches that make the trace, each decorating the same tools as its documentation describes.

agent_cache is given tags. The others are told after every write, by the exact call of each, which records it changed:
the order, its user, and for a new address all lookups by address. None of them has sessions or knows of a write that
runs; cashews has tags, from the arguments of a call and without coherence, and deletes by them what deleting a key
deletes. They are imported by name because some have no hints, and one calls its package `cache`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from inspect import signature
from typing import Any, Final, Protocol

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession, tags_from
from benchmarks.commands import installed_version
from benchmarks.trace.workload import LOOKUP_BY_ADDRESS, READS, WRITES, Tool, Tools

TTL: Final = 3600.0
MAXSIZE: Final = 1024
"""Of each tool, where the cache of a tool has a bound: more than the trace reads, so that nothing is evicted."""
CACHE_WIDE: Final = 100_000
"""Where one cache holds the entries of all tools."""


def no_session() -> AbstractAsyncContextManager[object]:
    return nullcontext()


@dataclass(frozen=True, slots=True)
class Contender:
    """One cache, or none: how it decorates the tools, and the session of a run.

    Attributes:
        limit: the budget in milliseconds per 1,000 calls.
        is_coherent: whether it promises that no read after a write returns what was true before it.
    """

    name: str
    distribution: str
    decorate: Callable[[Tools], Tools]
    session: Callable[[], AbstractAsyncContextManager[object]] = no_session
    limit: float | None = None
    is_coherent: bool = False
    note: str = ""

    @property
    def version(self) -> str | None:
        """The installed version; None where it is not installed."""
        return installed_version(self.distribution)


BARE: Final = Contender("bare", "", lambda tools: tools)


def owner(arguments: Mapping[str, Any], result: Any) -> list[str]:
    """The user of the order that a write returns; nobody if the write was refused."""
    return [result["user_id"]] if isinstance(result, dict) else []


def _found(arguments: Mapping[str, Any], result: str) -> list[str]:
    """The user that a lookup found; no id if there is none, so that it depends on every user."""
    return [] if result.startswith("Error: ") else [result]


def _agent_cache(tools: Tools) -> Tools:
    found, order = tags_from("user", _found), ["order:{order_id}", tags_from("user", owner)]
    reads: dict[str, Any] = {
        "find_user_id_by_name_zip": found,
        "find_user_id_by_email": found,
        "get_user_details": "user:{user_id}",
        "get_order_details": "order:{order_id}",
        "get_product_details": "product:{product_id}",
        "list_all_product_types": "product",
    }
    writes: dict[str, Any] = dict.fromkeys(WRITES, order) | {"modify_user_address": "user:{user_id}"}
    decorated: Tools = {}
    for name, tool in tools.items():
        function: Any = tool
        if name in reads:
            decorated[name] = AgentCache(reads[name], ttl=TTL, maxsize=MAXSIZE, name=f"trace:{name}")(function)
        else:
            decorated[name] = AgentCacheInvalidator(writes[name], name=f"trace:{name}")(function)
    return decorated


def guarded_session() -> AbstractAsyncContextManager[object]:
    """A session with trace and loop guard. Recorded agents do repeat themselves: the guard looks and stops nobody."""
    return AgentCacheSession(on_loop="warn")


class ByKey(Protocol):
    """A cache without tags: decorates a tool that reads, and forgets one call or all calls of it."""

    def decorate(self, name: str, tool: Any) -> Tool: ...

    async def forget(self, name: str, argument: str, value: str) -> None: ...

    async def forget_all(self, name: str) -> None: ...


def _by_key(cache: Callable[[], ByKey]) -> Callable[[Tools], Tools]:
    """Decorates all tools by a new cache."""

    def decorate(tools: Tools) -> Tools:
        one = cache()
        decorated = {name: one.decorate(name, tools[name]) for name in READS}
        return decorated | {name: _forgetting(one, name, tools[name]) for name in WRITES}

    return decorate


def _forgetting(cache: ByKey, name: str, write: Tool) -> Tool:
    """The write, followed by what a program has to tell a cache that knows keys only."""

    @functools.wraps(write)
    async def call(**arguments: Any) -> Any:
        result = await write(**arguments)
        if name == "modify_user_address":
            await cache.forget("get_user_details", "user_id", arguments["user_id"])
            await cache.forget_all(LOOKUP_BY_ADDRESS)
        else:
            await cache.forget("get_order_details", "order_id", arguments["order_id"])
            for user_id in owner(arguments, result):
                await cache.forget("get_user_details", "user_id", user_id)
        return result

    return call


class _AsyncLru:
    def __init__(self) -> None:
        self._tools: dict[str, Any] = {}

    def decorate(self, name: str, tool: Any) -> Tool:
        decorated: Tool = import_module("async_lru").alru_cache(maxsize=MAXSIZE, ttl=TTL)(tool)
        self._tools[name] = decorated
        return decorated

    async def forget(self, name: str, argument: str, value: str) -> None:
        self._tools[name].cache_invalidate(**{argument: value})

    async def forget_all(self, name: str) -> None:
        self._tools[name].cache_clear()


class _Cachebox:
    def __init__(self, *, deep: bool = False) -> None:
        self._module = import_module("cachebox")
        self._options = {"postprocess": self._module.postprocess_deepcopy_mutables} if deep else {}
        self._caches: dict[str, Any] = {}

    def decorate(self, name: str, tool: Any) -> Tool:
        cache = self._caches[name] = self._module.TTLCache(MAXSIZE, TTL)
        decorated: Tool = self._module.cached(cache, **self._options)(tool)
        return decorated

    async def forget(self, name: str, argument: str, value: str) -> None:
        self._caches[name].pop(self._module.make_key(**{argument: value}), None)

    async def forget_all(self, name: str) -> None:
        self._caches[name].clear()


class _AsyncCache:
    def __init__(self) -> None:
        self._tools: dict[str, Any] = {}

    def decorate(self, name: str, tool: Any) -> Tool:
        decorated: Tool = import_module("cache").AsyncTTL(time_to_live=TTL, maxsize=MAXSIZE)(tool)
        self._tools[name] = decorated
        return decorated

    async def forget(self, name: str, argument: str, value: str) -> None:
        self._tools[name].invalidate_cache(**{argument: value})

    async def forget_all(self, name: str) -> None:
        self._tools[name].clear_cache()


class _Cashews:
    def __init__(self) -> None:
        self._cache = import_module("cashews").Cache()
        self._cache.setup("mem://", size=CACHE_WIDE)

    def decorate(self, name: str, tool: Any) -> Tool:
        key = ":".join([name, *(f"{{{parameter}}}" for parameter in signature(tool).parameters)])
        decorated: Tool = self._cache(ttl=timedelta(seconds=TTL), key=key)(tool)
        return decorated

    async def forget(self, name: str, argument: str, value: str) -> None:
        await self._cache.delete(f"{name}:{value}")

    async def forget_all(self, name: str) -> None:
        await self._cache.delete_match(f"{name}:*")


class _Aiocache:
    def __init__(self) -> None:
        self._tools: dict[str, Any] = {}

    def decorate(self, name: str, tool: Any) -> Tool:
        def key(function: object, *values: str, **arguments: str) -> str:
            return ":".join([name, *values, *arguments.values()])

        decorated: Tool = import_module("aiocache").cached(ttl=TTL, key_builder=key)(tool)
        self._tools[name] = decorated
        return decorated

    async def forget(self, name: str, argument: str, value: str) -> None:
        await self._tools[name].cache.delete(f"{name}:{value}")

    async def forget_all(self, name: str) -> None:
        await self._tools[name].cache.clear()


IN_SESSIONS: Final = Contender(
    "agent_cache, in sessions",
    "agent-cache",
    _agent_cache,
    session=guarded_session,
    limit=45.0,
    is_coherent=True,
    note="a session for each run: trace, counters, loop guard",
)
PLAIN: Final = Contender(
    "agent_cache", "agent-cache", _agent_cache, limit=16.0, is_coherent=True, note="tags; no sessions"
)
OURS: Final = (IN_SESSIONS, PLAIN)
PEERS: Final = (
    Contender("cachebox", "cachebox", _by_key(_Cachebox), note="TTLCache, Rust; shallow copies, its default"),
    Contender(
        "cachebox, deep copies",
        "cachebox",
        _by_key(functools.partial(_Cachebox, deep=True)),
        note="postprocess_deepcopy_mutables",
    ),
    Contender("async-lru", "async-lru", _by_key(_AsyncLru), note="callers share one object"),
    Contender("async-cache", "async-cache", _by_key(_AsyncCache), note="AsyncTTL; callers share one object"),
    Contender("cashews", "cashews", _by_key(_Cashews), note="mem://; callers share one object"),
    Contender("aiocache", "aiocache", _by_key(_Aiocache), note="memory; callers share one object"),
)
