"""The caches that make the trace: agent_cache, and cachebox, the fastest of the others, with and without deep copies.

agent_cache is given tags. cachebox is told after every write, by the exact call of each, which records it changed: the
order, its user, and for a new address all lookups by address. It has no sessions, and knows of no write that runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession, tags_from
from benchmarks.commands import installed_version
from benchmarks.trace.workload import LOOKUP_BY_ADDRESS, READS, WRITES, Tool, Tools

TTL: Final = 3600.0
MAXSIZE: Final = 1024
"""Of each tool: more than the trace reads, so that nothing is evicted."""


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


def _cachebox(tools: Tools, *, deep: bool = False) -> Tools:
    """All tools, and after each write what a program has to tell a cache that knows keys only."""
    module = import_module("cachebox")
    options = {"postprocess": module.postprocess_deepcopy_mutables} if deep else {}
    caches = {name: module.TTLCache(MAXSIZE, TTL) for name in READS}

    def forget(name: str, argument: str, value: str) -> None:
        caches[name].pop(module.make_key(**{argument: value}), None)

    def forgetting(name: str, write: Tool) -> Tool:
        @functools.wraps(write)
        async def call(**arguments: Any) -> Any:
            result = await write(**arguments)
            if name == "modify_user_address":
                forget("get_user_details", "user_id", arguments["user_id"])
                caches[LOOKUP_BY_ADDRESS].clear()
            else:
                forget("get_order_details", "order_id", arguments["order_id"])
                for user_id in owner(arguments, result):
                    forget("get_user_details", "user_id", user_id)
            return result

        return call

    decorated: Tools = {name: module.cached(caches[name], **options)(tools[name]) for name in READS}
    return decorated | {name: forgetting(name, tools[name]) for name in WRITES}


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
    Contender("cachebox", "cachebox", _cachebox, note="TTLCache, Rust; shallow copies, its default"),
    Contender(
        "cachebox, deep copies", "cachebox", functools.partial(_cachebox, deep=True),
        note="postprocess_deepcopy_mutables",
    ),
)  # fmt: skip
