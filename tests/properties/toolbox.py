"""The tools under test: every kind of tag, both scopes, every kind of write, all of them standing at gates."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from agent_cache import AgentCache, AgentCacheInvalidator, Read, Toolbox, Write, tags_from, writing
from tests.properties.ledger import Key, Loaded, Path, Reader
from tests.properties.stage import Inner, Writer, changing, reading, stage

IDS = ("1", "2")
NAMES = ("a", "b", "nobody")
OWNERS = {"a": "1", "b": "2", "nobody": None}
ROOT: Path = ("sale",)  # of no tool of another test: a write goes to the tiers of all that have its root
CART: Path = ("cart",)
PAGE: Path = ("page",)
NOBODYS: Path = (*ROOT, "nobody's")  # of a write that gives no id: only what depends on all sales changes
MANY = tuple(f"x{number}" for number in range(1_500))
MOST = tuple(f"y{number}" for number in range(2_001))  # So many count as the whole root.
SETTLE = 3.0
TTL = 4.0
OUTER = (
    "page", "card", "book", "front", "forgiving", "hasty", "renewing", "bounded", "own_page", "own_book", "leaking",
)  # fmt: skip
"""The tools that make reads, but for `digest`, which makes many."""
READ = tuple(f"z{number}" for number in range(600))  # What an answer may be made from, beside the sales.
AFTER = 6.0  # For how long an expired result may be served.
LIVES = (0.0, 2.0, TTL)

Tags = Callable[[Key, Loaded | None], tuple[Path, ...]]
TOOLBOX = "toolbox"


class Counts(NamedTuple):
    """What a tool that is known by name does not count."""

    hits: int = 0
    misses: int = 0


class NamedTool:
    """A function, called as a tool of a toolbox. It has no `fresh`, `set` and `invalidate`, as no such tool has."""

    def __init__(self, tools: NamedTools, name: str, function: Callable[..., Any]) -> None:
        self.tools = tools
        self.name = name
        self.function = function
        self.names = tuple(inspect.signature(function).parameters)
        self.returns = typing.get_type_hints(function)["return"]

    async def __call__(self, *arguments: str) -> Any:
        async def run() -> Any:
            return await self.function(*arguments)

        named = dict(zip(self.names, arguments, strict=True))
        return await self.tools.box.call(self.name, named, run, returns=self.returns)

    def contains(self, *arguments: str) -> bool:
        return False

    def cache_info(self) -> Counts:
        return Counts()


class NamedTools:
    """Makes tools of functions as the decorators do; their rules are those of one toolbox."""

    def __init__(self) -> None:
        self.rules: dict[str, Read | Write] = {}
        self._box: Toolbox | None = None

    @property
    def box(self) -> Toolbox:
        """The toolbox, made at the first call, when all tools are there."""
        if self._box is None:
            self._box = Toolbox(self.rules, namespace="properties")
        return self._box

    def read(self, resource: Any, scope: Any = "global", **options: Any) -> Callable[[Callable[..., Any]], NamedTool]:
        return self._maker(Read, resource, scope, options)

    def write(self, resource: Any, scope: Any = "global", **options: Any) -> Callable[[Callable[..., Any]], NamedTool]:
        return self._maker(Write, resource, scope, options)

    def _maker(
        self, kind: type[Any], resource: Any, scope: Any, options: dict[str, Any]
    ) -> Callable[[Callable[..., Any]], NamedTool]:
        options.pop("name", None)

        def make(function: Callable[..., Any]) -> NamedTool:
            assert self._box is None, "a tool was made after the first call"
            name = f"{kind.__name__} {len(self.rules)} {function.__name__}"
            self.rules[name] = kind(resource, scope=scope, **options)
            return NamedTool(self, name, function)

        return make


NAMED = NamedTools()
"""The same tools, called by name through one `Toolbox`: the body `TOOLBOX`."""


def decorators(body: str) -> tuple[Any, Any]:
    """What makes a read tool and a write tool of a function."""
    return (NAMED.read, NAMED.write) if body == TOOLBOX else (AgentCache, AgentCacheInvalidator)


def sale(*ids: str | None) -> tuple[Path, ...]:
    """The tags of these sales; without any, of all."""
    return tuple((*ROOT, id_) for id_ in ids if id_) or (ROOT,)


def _summary(result: Loaded | None) -> tuple[Path, ...]:
    """The tags of an answer from many sales, as far as anything else names them."""
    return sale(*READ[:1], result.owner) if result else (ROOT,)


async def load(owner: str | None = None, other: str | None = None) -> Loaded:
    """What every read tool does; the stage decides when."""
    return await stage.get().load(reading.get(), owner, other)


async def change(*paths: Path, gives: tuple[tuple[Reader, Key], ...] = ()) -> None:
    """What every write tool does; the stage decides when."""
    await stage.get().change(changing.get(), paths, gives)


@cache
def readers(body: str) -> dict[str, Reader]:
    """Decorate the read tools. They are made once: that costs more than to run an example."""
    caches, _ = decorators(body)

    async def listing() -> Loaded:
        return await load()

    async def entity(id: str) -> Loaded:
        return await load()

    async def lookup(name: str) -> Loaded:
        return await load(OWNERS[name])

    async def several(name: str) -> Loaded:
        return await load("1", "2" if name == "pair" else None)

    async def summary(name: str) -> Loaded:
        return await load(OWNERS[name])

    by_id: Tags = lambda key, _: sale(key)
    and_many = tags_from("sale", lambda arguments, result: [*READ, *([result.owner] if result.owner else [])])
    by_owner: Tags = lambda _, result: sale(result.owner if result else None)
    by_both: Tags = lambda _, result: sale(result.owner, result.other) if result else (ROOT,)
    both_ids = tags_from("sale", lambda arguments, result: [id_ for id_ in (result.owner, result.other) if id_])
    life: Callable[[Loaded], float] = lambda result: LIVES[result.load % len(LIVES)]
    some = caches("sale:{result.owner}", ttl=life, grace=AFTER / 2, stale_if_error=AFTER, name=f"varied {body}")
    made = (
        Reader("listing", caches("sale")(listing), ("",), lambda *_: (ROOT,)),
        Reader("entity", caches("sale:{id}", name=f"entity {body}")(entity), IDS, by_id),
        Reader("below", caches("sale:{id}:lines")(entity), IDS, lambda key, _: ((*ROOT, key, "lines"),)),
        Reader("lookup", caches("sale:{result.owner}", name=f"lookup {body}")(lookup), NAMES, by_owner),
        Reader("summary", caches(and_many)(summary), NAMES, lambda _, result: _summary(result)),
        Reader("both", caches(["sale:{id}", "cart"])(entity), IDS, lambda key, _: (*sale(key), CART)),
        Reader("several", caches(both_ids)(several), ("single", "pair"), by_both),
        Reader("brief", caches("sale:{id}", ttl=TTL)(entity), IDS, by_id, ttl=TTL),
        Reader(
            "graceful",
            caches("sale:{id}", ttl=TTL, grace=AFTER, name=f"graceful {body}")(entity),
            ("1",),
            by_id,
            ttl=TTL,
            grace=AFTER,
        ),
        Reader(
            "resilient",
            caches("sale:{id}", ttl=TTL, stale_if_error=AFTER, name=f"resilient {body}")(entity),
            ("1",),
            by_id,
            ttl=TTL,
            stale=AFTER,
        ),
        Reader("varied", some(lookup), NAMES, by_owner, life=life, grace=AFTER / 2, stale=AFTER),
        Reader("tight", caches("sale:{id}", maxsize=1, name=f"tight {body}")(entity), IDS, by_id, roomy=False),
        Reader("own_listing", caches("sale", "session")(listing), ("",), lambda *_: (ROOT,), scope="session"),
        Reader("own_entity", caches("sale:{id}", "session")(entity), IDS, by_id, scope="session"),
        Reader("own_lookup", caches("sale:{result.owner}", "session")(lookup), NAMES, by_owner, scope="session"),
    )
    return {reader.name: reader for reader in (*made, *_nested(body, {reader.name: reader for reader in made}))}


async def compose(*inner: Inner, how: str = "in turn", owner: str | None = None, forgives: bool = False) -> Loaded:
    """What every read tool does that makes reads."""
    return await stage.get().compose(reading.get(), inner, how, owner, forgives=forgives)


def _nested(body: str, made: dict[str, Reader]) -> tuple[Reader, ...]:
    """Decorate the read tools that make reads of the others, and of each other."""
    caches, _ = decorators(body)
    entity, lookup, brief, several = made["entity"], made["lookup"], made["brief"], made["several"]
    own_entity, own_lookup = made["own_entity"], made["own_lookup"]

    async def page() -> Loaded:
        return await compose(Inner(entity, "1"))

    async def card(name: str) -> Loaded:
        return await compose(Inner(lookup, name), owner=OWNERS[name])

    async def bounded(id: str) -> Loaded:
        return await compose(Inner(brief, id), Inner(entity, id))

    async def forgiving() -> Loaded:
        return await compose(Inner(lookup, "a"), Inner(entity, "2"), how="together", forgives=True)

    async def hasty() -> Loaded:
        return await compose(Inner(entity, "1"), Inner(several, "pair"), how="first", forgives=True)

    async def renewing() -> Loaded:
        return await compose(Inner(entity, "1", fresh=True), Inner(lookup, "b"))

    async def digest() -> Loaded:
        return await compose(Inner(made["summary"], "a"), Inner(entity, "2"))

    async def own_page() -> Loaded:
        return await compose(Inner(own_entity, "1"), Inner(own_lookup, "b"), Inner(entity, "2"))

    async def leaking() -> Loaded:
        return await compose(Inner(own_entity, "1"), forgives=True)

    nothing: Tags = lambda *_: (PAGE,)
    by_owner: Tags = lambda _, result: ((*PAGE, result.owner) if result and result.owner else PAGE,)
    whole = Reader("page", caches("page")(page), ("",), nothing)
    cards = Reader("card", caches("page:{result.owner}")(card), NAMES, by_owner)

    async def book() -> Loaded:
        return await compose(Inner(whole), Inner(cards, "a"), how="together")

    async def front() -> Loaded:
        return await compose(Inner(cards, "b"), Inner(whole), Inner(lookup, "b"), forgives=True)

    async def own_book() -> Loaded:
        return await compose(Inner(own), Inner(whole), how="together", forgives=True)

    own = Reader("own_page", caches("page", "session")(own_page), ("",), nothing, scope="session")
    return (
        whole,
        cards,
        own,
        Reader("book", caches("page")(book), ("",), nothing),
        Reader("front", caches("page", ttl=TTL)(front), ("",), nothing, ttl=TTL),
        Reader("bounded", caches("page:{id}")(bounded), IDS, lambda key, _: ((*PAGE, key),)),
        Reader("forgiving", caches("page")(forgiving), ("",), nothing),
        Reader("hasty", caches("page", ttl=TTL)(hasty), ("",), nothing, ttl=TTL),
        Reader("renewing", caches(["page", "sale:2"])(renewing), ("",), lambda *_: (PAGE, (*ROOT, "2"))),
        Reader("digest", caches("page")(digest), ("",), nothing, roomy=False),
        Reader("own_book", caches("page", "session")(own_book), ("",), nothing, scope="session"),
        Reader("leaking", caches("page", ttl=TTL)(leaking), ("",), nothing, ttl=TTL),
    )


@cache
def writers(body: str) -> dict[str, Writer]:
    """Decorate the write tools, once."""
    _, invalidates = decorators(body)

    async def one(id: str) -> None:
        await change(*sale(id))

    async def nobodys(id: str) -> None:
        await change(NOBODYS)

    async def line(id: str) -> None:
        await change((*ROOT, id, "lines", "1"))

    async def giving(id: str) -> None:
        made = readers(body)
        await change(*sale(id), gives=((made["entity"], id), (made["listing"], "")))

    async def everything(id: str) -> None:
        await change(*(path for each in IDS for path in sale(each)))

    async def with_cart(id: str) -> None:
        await change(*sale(id), CART)

    async def unnamed(id: str) -> str:
        await change(*sale(id))
        return id

    async def in_a_block(id: str) -> None:
        async with writing(*[f"sale:{other}" for other in MOST], f"sale:{id}"):
            await change(*(path for each in IDS for path in sale(each)))

    key_of: Any = lambda args, kwargs: readers(body)["entity"].call.cache_key(*args)  # type: ignore[attr-defined]
    by_key = {} if body == TOOLBOX else {"key_fn": key_of, "clear_all": False}
    by_id: Callable[[str], tuple[Path, ...]] = sale
    many = tags_from("sale", lambda arguments: [*MANY, arguments["id"]])
    many_told = tags_from("sale", lambda arguments, result: [*MANY, result])
    most = tags_from("sale", lambda arguments: [*MOST, arguments["id"]])
    by_arguments = tags_from("sale", lambda arguments: [arguments["id"]])
    made = (
        Writer("entity", invalidates("sale:{id}")(one), by_id),
        Writer("giving", invalidates("sale:{id}")(giving), by_id),
        Writer("root", invalidates("sale")(everything), lambda _: (ROOT,)),
        Writer("both", invalidates(["sale:{id}", "cart"])(with_cart), lambda id_: (*sale(id_), CART)),
        Writer("computed", invalidates(by_arguments)(one), by_id),
        Writer("told", invalidates("sale:{result}")(unnamed), lambda _: (), late=(ROOT,), told=by_id),
        Writer("settling", invalidates("sale:{id}", settle=SETTLE)(one), by_id, settle=SETTLE),
        Writer(
            "settling_told",
            invalidates("sale:{result}", settle=SETTLE)(unnamed),
            lambda _: (),
            late=(ROOT,),
            told=by_id,
            settle=SETTLE,
        ),
        # The other ids that they name are nobody's.
        Writer("many", invalidates(many)(one), by_id, big=True),
        Writer("many_told", invalidates(many_told)(unnamed), lambda _: (), late=(ROOT,), told=by_id, big=True),
        Writer("most", invalidates(most)(everything), lambda _: (ROOT,), big=True),
        Writer("in_a_block", in_a_block, lambda _: (ROOT,), big=True),
        Writer("keyed", invalidates("sale:{id}", **by_key)(one), lambda _: (), entry=lambda id_: ("entity", id_)),
        Writer("nobodys", invalidates(tags_from("sale", lambda arguments: None))(nobodys), lambda _: (NOBODYS,)),
        Writer(
            "told_nobodys", invalidates("sale:{result}")(nobodys), lambda _: (), late=(ROOT,), told=lambda _: (NOBODYS,)
        ),
        Writer("line", invalidates("sale:{id}:lines:1")(line), lambda id_: ((*ROOT, id_, "lines", "1"),)),
        Writer("inner", invalidates("sale:{id}", "session")(one), by_id, inner_only=True),
    )
    return {writer.name: writer for writer in made}
