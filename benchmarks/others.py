"""`python -m benchmarks.others`: what caches and recorders do that somebody may use in place of agent_cache, tried.

Each cache wraps one tool, as its documentation shows it, with a time to live. It is told of a write where it can be
told: by its key, its tags, or by being emptied. What is not installed is left out.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import importlib.metadata
import warnings
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from agent_cache import AgentCache, AgentCacheInvalidator
from benchmarks.table import markdown

Call = Callable[[Any], Awaitable[Any]]


class Tool:
    """A tool that answers with what is true when it begins, and may be held until it is let go."""

    def __init__(self) -> None:
        self.truth, self.runs, self.is_held = "old", 0, False
        self._gates: list[asyncio.Event] = []

    async def __call__(self, _argument: object) -> str:
        self.runs += 1
        found = self.truth
        if self.is_held:
            self._gates.append(gate := asyncio.Event())
            await gate.wait()
        return found

    def let_go(self) -> None:
        """Let all runs end, and hold none any more."""
        self.is_held = False
        for gate in self._gates:
            gate.set()


class Cached(NamedTuple):
    """A tool behind a cache, and what is done after a write of the entity that it was given."""

    call: Call
    written: Call


def agent_cache(tool: Tool) -> Cached:
    """Ours: the write is a tool, which says what it changes."""

    @AgentCache("order:{order}", ttl=60, name=f"read {id(tool)}")
    async def read(order: Any) -> str:
        return await tool(order)

    @AgentCacheInvalidator("order:{order}")
    async def write(order: Any) -> None: ...

    return Cached(read, write)


def functools_cache(tool: Tool) -> Cached:
    """The standard library's, of a plain function that is called in threads."""
    loop = asyncio.get_running_loop()

    @functools.cache
    def read(order: Any) -> str:
        return asyncio.run_coroutine_threadsafe(tool(order), loop).result()

    async def written(_order: Any) -> None:
        read.cache_clear()

    return Cached(functools.partial(asyncio.to_thread, read), written)


def async_lru(tool: Tool) -> Cached:
    """async-lru."""

    @importlib.import_module("async_lru").alru_cache(ttl=60)  # type: ignore[untyped-decorator]  # known at run time alone
    async def read(order: Any) -> str:
        return await tool(order)

    async def write(order: Any) -> None:
        read.cache_invalidate(order)

    return Cached(read, write)


def aiocache(tool: Tool) -> Cached:
    """aiocache."""

    @importlib.import_module("aiocache").cached(ttl=60, namespace=str(id(tool)))  # type: ignore[untyped-decorator]  # known at run time alone
    async def read(order: Any) -> str:
        return await tool(order)

    async def write(_order: Any) -> None:
        await read.cache.clear()

    return Cached(read, write)


def cashews(tool: Tool) -> Cached:
    """cashews, with tags."""
    cache = importlib.import_module("cashews").Cache()
    cache.setup("mem://")

    @cache(ttl="1m", key="order:{order}", tags=["order:{order}"])  # type: ignore[untyped-decorator]  # known at run time alone
    async def read(order: Any) -> Any:
        return await tool(order)

    async def write(order: Any) -> None:
        await cache.delete_tags(f"order:{order}")

    return Cached(read, write)


def fastmcp(tool: Tool) -> Cached:
    """The middleware of a FastMCP server that caches responses: nothing can be dropped."""
    library = importlib.import_module("fastmcp")
    server = library.FastMCP("shop")
    server.add_middleware(importlib.import_module("fastmcp.server.middleware.caching").ResponseCachingMiddleware())

    @server.tool  # type: ignore[untyped-decorator]  # known at run time alone
    async def read(order: Any) -> str:
        return await tool(order)

    async def call(order: Any) -> Any:
        async with library.Client(server) as client:
            return (await client.call_tool("read", {"order": order})).data

    async def write(_order: Any) -> None: ...

    return Cached(call, write)


def langgraph(tool: Tool) -> Cached:
    """The cache of a node of a graph."""
    graphs = importlib.import_module("langgraph.graph")
    policy = importlib.import_module("langgraph.types").CachePolicy(ttl=60)
    graph = graphs.StateGraph(dict)

    async def read(state: dict[str, Any]) -> dict[str, Any]:
        return {"answer": await tool(state["order"])}

    graph.add_node("read", read, cache_policy=policy)
    graph.add_edge(graphs.START, "read")
    app = graph.compile(cache=importlib.import_module("langgraph.cache.memory").InMemoryCache())

    async def call(order: Any) -> Any:
        return (await app.ainvoke({"order": order}))["answer"]

    async def write(_order: Any) -> None:
        await app.aclear_cache()

    return Cached(call, write)


CACHES: dict[str, Callable[[Tool], Cached]] = {
    "agent-cache": agent_cache,
    "functools": functools_cache,
    "async-lru": async_lru,
    "aiocache": aiocache,
    "cashews": cashews,
    "fastmcp": fastmcp,
    "langgraph": langgraph,
}


async def idle() -> None:
    """Let everything run that can."""
    for _ in range(50):
        await asyncio.sleep(0)
    await asyncio.sleep(0.02)


async def after_a_write(cache: Callable[[Tool], Cached]) -> str:
    """Whether a read gets the old value after a write: of a cached answer, and of one that was being read."""
    tool = Tool()
    read, written = cache(tool)
    await read("W1")
    tool.truth = "new"
    await written("W1")
    if await read("W1") == "old":
        return "stale until its ttl ends"
    tool = Tool()
    read, written = cache(tool)
    tool.is_held = True
    first = asyncio.ensure_future(read("W1"))
    await idle()
    tool.truth = "new"
    await written("W1")
    tool.let_go()
    await asyncio.wait([first])
    return "stale if it was being read" if await read("W1") == "old" else "new"


async def the_first_is_cancelled(cache: Callable[[Tool], Cached]) -> str:
    """What happens to the second of two callers at the same time if the first is cancelled."""
    tool = Tool()
    read, _ = cache(tool)
    tool.is_held = True
    first = asyncio.ensure_future(read("W1"))
    await idle()
    second = asyncio.ensure_future(read("W1"))
    await idle()
    if tool.runs == 2:
        return "runs it, too"
    first.cancel()
    await idle()
    tool.let_go()
    done, _ = await asyncio.wait([second], timeout=5)
    if not done:
        return "hangs"
    return "is cancelled" if second.cancelled() or second.exception() else "gets the answer"


async def arguments_apart(cache: Callable[[Tool], Cached]) -> str:
    """How many of four arguments that look alike are told apart, alone and in a list."""
    told = []
    for make in (lambda one: one, lambda one: [one]):
        tool = Tool()
        read, _ = cache(tool)
        try:
            for one in (1, True, 1.0, "1"):
                await read(make(one))
        except TypeError:
            told.append("refused")
        else:
            told.append(f"{tool.runs} of 4")
    return ", in a list ".join(told)


EXPERIMENTS = (after_a_write, the_first_is_cancelled, arguments_apart)


async def tried(name: str) -> list[str] | None:
    """What a cache does; None if it is not installed."""
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # for what some leave behind
    try:
        return [await experiment(CACHES[name]) for experiment in EXPERIMENTS]
    except ImportError:
        return None


def main() -> None:
    warnings.simplefilter("ignore")
    rows = []
    for name in CACHES:
        found = asyncio.run(tried(name))
        if found is not None:
            version = "" if name == "functools" else importlib.metadata.version(name)
            rows.append((f"{name} {version}".strip(), *found))
    print(markdown(("cache", "after a write", "of two callers the first is cancelled", "1, True, 1.0, '1'"), rows))


if __name__ == "__main__":
    main()
