"""The tools under test: every kind of tag, both scopes, every kind of write, all of them standing at gates."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from agent_cache import AgentCache, AgentCacheInvalidator, tags_from
from tests.harness import library
from tests.properties.ledger import Key, Loaded, Path, Reader
from tests.properties.stage import Writer, changing, reading, stage

IDS = ("1", "2")
NAMES = ("a", "b", "nobody")
OWNERS = {"a": "1", "b": "2", "nobody": None}
ROOT: Path = ("order",)
CART: Path = ("cart",)
SETTLE = 3.0
TTL = 4.0

Tags = Callable[[Key, Loaded | None], tuple[Path, ...]]


def order(*ids: str | None) -> tuple[Path, ...]:
    """The tags of these orders; without any, of all."""
    return tuple((*ROOT, id_) for id_ in ids if id_) or (ROOT,)


async def load(owner: str | None = None, other: str | None = None) -> Loaded:
    """What every read tool does; the stage decides when."""
    return await stage.get().load(reading.get(), owner, other)


async def change(*paths: Path) -> None:
    """What every write tool does; the stage decides when."""
    await stage.get().change(changing.get(), paths)


@cache
def readers(body: str) -> dict[str, Reader]:
    """Decorate the read tools. They are made once: that costs more than to run an example."""

    async def listing() -> Loaded:
        return await load()

    async def entity(id: str) -> Loaded:
        return await load()

    async def lookup(name: str) -> Loaded:
        return await load(OWNERS[name])

    async def several(name: str) -> Loaded:
        return await load("1", "2" if name == "pair" else None)

    by_id: Tags = lambda key, _: order(key)
    by_owner: Tags = lambda _, result: order(result.owner if result else None)
    by_both: Tags = lambda _, result: order(result.owner, result.other) if result else (ROOT,)
    both_ids = tags_from("order", lambda arguments, result: [id_ for id_ in (result.owner, result.other) if id_])
    with library.call_body(body):
        made = (
            Reader("listing", AgentCache("order")(listing), ("",), lambda *_: (ROOT,)),
            Reader("entity", AgentCache("order:{id}", name=f"entity {body}")(entity), IDS, by_id),
            Reader("below", AgentCache("order:{id}:lines")(entity), IDS, lambda key, _: ((*ROOT, key, "lines"),)),
            Reader("lookup", AgentCache("order:{result.owner}", name=f"lookup {body}")(lookup), NAMES, by_owner),
            Reader("both", AgentCache(["order:{id}", "cart"])(entity), IDS, lambda key, _: (*order(key), CART)),
            Reader("several", AgentCache(both_ids)(several), ("single", "pair"), by_both),
            Reader("brief", AgentCache("order:{id}", ttl=TTL)(entity), IDS, by_id, ttl=TTL),
            Reader("tight", AgentCache("order:{id}", maxsize=1, name=f"tight {body}")(entity), IDS, by_id, roomy=False),
            Reader("own_listing", AgentCache("order", "session")(listing), ("",), lambda *_: (ROOT,), scope="session"),
            Reader("own_entity", AgentCache("order:{id}", "session")(entity), IDS, by_id, scope="session"),
            Reader(
                "own_lookup", AgentCache("order:{result.owner}", "session")(lookup), NAMES, by_owner, scope="session"
            ),
        )
    return {reader.name: reader for reader in made}


@cache
def writers(body: str) -> dict[str, Writer]:
    """Decorate the write tools, once."""

    async def one(id: str) -> None:
        await change(*order(id))

    async def everything(id: str) -> None:
        await change(*(path for each in IDS for path in order(each)))

    async def with_cart(id: str) -> None:
        await change(*order(id), CART)

    async def unnamed(id: str) -> str:
        await change(*order(id))
        return id

    by_id: Callable[[str], tuple[Path, ...]] = order
    by_arguments = tags_from("order", lambda arguments: [arguments["id"]])
    with library.call_body(body):
        made = (
            Writer("entity", AgentCacheInvalidator("order:{id}")(one), by_id),
            Writer("root", AgentCacheInvalidator("order")(everything), lambda _: (ROOT,)),
            Writer("both", AgentCacheInvalidator(["order:{id}", "cart"])(with_cart), lambda id_: (*order(id_), CART)),
            Writer("computed", AgentCacheInvalidator(by_arguments)(one), by_id),
            Writer("told", AgentCacheInvalidator("order:{result}")(unnamed), lambda _: (), late=(ROOT,), told=by_id),
            Writer("settling", AgentCacheInvalidator("order:{id}", settle=SETTLE)(one), by_id, settle=SETTLE),
            Writer("inner", AgentCacheInvalidator("order:{id}", "session")(one), by_id, inner_only=True),
        )
    return {writer.name: writer for writer in made}
