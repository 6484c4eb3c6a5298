"""A generated body binds, keys and passes on exactly as the tool itself and its attributes do, for any signature."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import itertools
import traceback
from collections.abc import Callable, Coroutine, Iterator
from typing import Any
from unittest import mock

import pytest
from hypothesis import strategies as st

from agent_cache import AgentCache, AgentCacheInvalidator, UncacheableArgumentsError, get_metrics
from tests.harness.searches import searched
from tests.harness.slow import crossed
from tests.harness.structure import same

pytestmark = pytest.mark.usefixtures("clock")

NAMES = [
    "key", "entry", "scope", "type", "self", "cls", "store", "stats", "now", "here", "root", "value", "moment",
    "lookup", "lease", "term", "is_valid", "_cache_", "_cache_key", "__cache_key", "_cache_default_key", "_cache_here",
    "_cache_type", "_cache_MISSING", "_cache_Leased", "str", "int", "dict", "list", "part", "args", "kwargs",
    "operation", "answer", "result", "x1", "\u00fcber",
]  # fmt: skip
HINTS = ["", ": str", ": int", ": bool", ": dict", ": list", ": 'dict[str, int]'", ": float"]
VALUES = st.one_of(
    st.sampled_from(
        [None, True, False, 0, 1, 1.0, -0.0, "", "a", b"a", (), (1,), [], [1], {}, {"a": 1}, {"a": [True]}]
    ),
    st.sampled_from([{"b": {1, 2}}, {"deep": [[[[{"x": (1, "y")}]]]]}, ["\ud800"], {1: 1, "1": 2}]),
)


@dataclasses.dataclass
class Signature:
    """A tool's parameters as source text, and calls of it."""

    positional_only: list[str]
    plain: list[str]
    surplus: str | None
    keyword_only: list[str]
    rest: str | None
    optional: frozenset[str]
    hints: dict[str, str]

    @property
    def source(self) -> str:
        parts = [self._one(name) for name in self.positional_only]
        if self.positional_only:
            parts.append("/")
        parts += [self._one(name) for name in self.plain]
        if self.surplus:
            parts.append("*" + self.surplus)
        elif self.keyword_only:
            parts.append("*")
        parts += [self._one(name) for name in self.keyword_only]
        if self.rest:
            parts.append("**" + self.rest)
        everything = [*self.positional_only, *self.plain, *filter(None, [self.surplus]), *self.keyword_only]
        returned = ", ".join([*everything, *filter(None, [self.rest])])
        return f"async def tool({', '.join(parts)}):\n    return record(({returned}{',' if returned else ''}))\n"

    def _one(self, name: str) -> str:
        return name + self.hints[name] + (" = ['default']" if name in self.optional else "")


@st.composite
def signatures(draw: st.DrawFn) -> Signature:
    names = draw(st.lists(st.sampled_from(NAMES), max_size=6, unique=True))
    rest = names.pop() if names and draw(st.booleans()) else None
    surplus = names.pop() if names and draw(st.booleans()) else None
    first, second = sorted(draw(st.tuples(st.integers(0, len(names)), st.integers(0, len(names)))))
    keyword_only = names[second:]
    # Among positional ones a default must not stand before a parameter without one.
    required = draw(st.integers(0, second))
    optional = {*names[required:second], *(name for name in keyword_only if draw(st.booleans()))}
    hints = {name: draw(st.sampled_from(HINTS)) for name in names}
    return Signature(names[:first], names[first:second], surplus, keyword_only, rest, frozenset(optional), hints)


@st.composite
def spellings(draw: st.DrawFn) -> tuple[Signature, list[tuple[tuple[Any, ...], dict[str, Any]]]]:
    """A signature, and one call of it in two spellings."""
    signature = draw(signatures())
    positional = [*signature.positional_only, *signature.plain]
    given_names = [name for name in positional if name not in signature.optional or draw(st.booleans())]
    given_names += [name for name in signature.keyword_only if name not in signature.optional or draw(st.booleans())]
    for index, name in enumerate(signature.positional_only):
        if name not in given_names:  # what stands behind it cannot be spelled either
            given_names = [given for given in given_names if given not in signature.positional_only[index:]]
            break
    values = {name: draw(VALUES) for name in given_names}
    surplus, more = [], {}
    if signature.surplus and all(name in values for name in positional):
        surplus = draw(st.lists(VALUES, max_size=2))
    if signature.rest:
        taken = {*signature.plain, *signature.keyword_only}
        names = st.sampled_from([name for name in [*NAMES, "more"] if name not in taken])
        more = draw(st.dictionaries(names, VALUES, max_size=2))
    calls = []
    for _ in range(2):
        by_position = 0
        while by_position < len(positional) and positional[by_position] in values:
            by_position += 1
        least = by_position if surplus else sum(name in values for name in signature.positional_only)
        count = draw(st.integers(least, by_position))
        args = (*(values[name] for name in positional[:count]), *surplus)
        items = [(name, value) for name, value in values.items() if name not in positional[:count]] + [*more.items()]
        calls.append((args, dict(draw(st.permutations(items)))))
    return signature, calls


def outcome(loop: asyncio.AbstractEventLoop, tool: Callable[..., Coroutine[Any, Any, Any]], call: Any) -> Any:
    args, kwargs = call
    return loop.run_until_complete(tool(*args, **kwargs))


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@searched(10, 60, spellings())
def test_any_signature_in_any_spelling(loop: asyncio.AbstractEventLoop, drawn: Any):
    """The tool gets what Python would have bound, and two spellings of one call are one call."""
    signature, calls = drawn
    got: list[Any] = []

    def record(arguments: Any) -> Any:
        got.append(arguments)
        return arguments

    namespace: dict[str, Any] = {"record": record}
    exec(signature.source, namespace)
    expected = [outcome(loop, namespace["tool"], call) for call in calls]
    read = AgentCache("r", name="read")(namespace["tool"])
    write = AgentCacheInvalidator("w", name="write")(namespace["tool"])
    got.clear()
    assert all(same(outcome(loop, read, call), truth) for call, truth in zip(calls, expected, strict=True))
    assert len(got) == 1, "two spellings of one call are one call"
    assert len({read.cache_key(*args, **kwargs) for args, kwargs in calls}) == 1
    assert all(read.contains(*args, **kwargs) for args, kwargs in calls)
    for call, truth in zip(calls, expected, strict=True):
        got.clear()
        outcome(loop, write, call)
        assert same(got, [truth])
        assert all(one is other for one, other in zip(got[0], truth, strict=True) if _is_passed(one))
        got.clear()
        outcome(loop, read.fresh, call)
        assert same(got, [truth])


def _is_passed(value: Any) -> bool:
    """Not the tuple or dict that Python makes of surplus arguments, call by call."""
    return type(value) not in {tuple, dict}


async def test_a_positional_only_default_and_a_keyword_of_its_name_are_two_things():
    """`inspect.Signature.bind` of Python 3.11 refuses what the interpreter binds."""

    @AgentCache("r")
    async def tool(key: int = 1, /, **rest: int) -> Any:
        return key, rest

    for _ in range(2):
        assert await tool(key=2) == (1, {"key": 2})
    assert await tool.fresh(key=2) == (1, {"key": 2})
    assert tool.cache_key(key=2) == tool.cache_key(1, key=2) != tool.cache_key(2)
    assert await tool.invalidate(key=2) is True


class Unset:
    """The usual class of a sentinel."""


def named(name: str) -> Unset:
    sentinel = Unset()
    sentinel.name = name  # type: ignore[attr-defined]
    return sentinel


SENTINELS: dict[str, Callable[[], Any]] = {
    "object": object,
    "instance": Unset,
    "named instance": lambda: named("UNSET"),
    "module's own": lambda: dataclasses.MISSING,
    "of mock": lambda: mock.sentinel.unset,
}


@pytest.mark.parametrize(("form", "hint"), crossed(SENTINELS, [Any, str, int, dict]))
async def test_a_default_that_is_a_sentinel_is_a_constant_of_the_key(form: str, hint: Any):
    unset, other = SENTINELS[form](), object()
    runs = itertools.count()

    @AgentCache("r", uncacheable="raise")
    async def tool(query: hint, part: hint = unset, *, part_of_default: hint = unset, limit: hint = None) -> int:
        return next(runs)

    assert [await tool("a"), await tool("a", unset), await tool("a", part_of_default=unset, part=unset)] == [0] * 3
    values = [None, "", "unset", b"!0:", 0, False, {}, [], (), Unset, "x"]
    answers = [await call for value in values for call in (tool("a", value), tool("a", part_of_default=value))]
    assert answers == list(range(1, 1 + 2 * len(values))), "no other value is the default"
    assert tool.contains("a", unset)
    assert tool.cache_key("a") == tool.cache_key("a", part_of_default=unset) != tool.cache_key("a", None)
    assert get_metrics()["uncached"] == 0
    for call in (tool(unset), tool("a", other), tool("a", limit=unset), tool("a", [unset])):
        with pytest.raises(UncacheableArgumentsError):  # not the default of that parameter
            await call
    assert await tool.invalidate("a")
    assert await tool("a") == next(runs) - 1


@dataclasses.dataclass
class Options:
    client: Any


DEFAULTS: dict[str, Callable[[], Any]] = {
    "list": lambda: [object()],
    "str subclass": lambda: type("Text", (str,), {})("a"),
    "dataclass": lambda: Options(object()),
    "generator": lambda: (number for number in [1, 2]),
}


@pytest.mark.parametrize("form", DEFAULTS)
async def test_a_default_whose_content_counts_is_no_constant(form: str):
    default = DEFAULTS[form]()
    runs = itertools.count()

    @AgentCache("r")
    async def tool(value: Any = default) -> int:
        return next(runs)

    assert [await tool(), await tool()] == [0, 1]
    assert get_metrics()["uncached"] == 2


# Tools with the same parameters share code


def test_tools_with_the_same_parameters_are_compiled_once():
    def make(number: int) -> tuple[Any, Any]:
        async def read(compiled_once: str, *, limit: int = number) -> int:
            return limit

        async def write(compiled_once: str) -> None: ...

        named = f"compiled once {number}"
        return AgentCache(f"{named}:{{compiled_once}}", name=named)(read), AgentCacheInvalidator(named)(write)

    with mock.patch("builtins.compile", wraps=compile) as compiled:
        tools = [make(number) for number in range(20)]
    bodies = [call for call in compiled.call_args_list if "agent_cache body" in call.args[1]]
    assert len(bodies) == 2  # one for all reads, one for all writes
    assert len(tools) == 20


async def test_tools_that_share_code_have_all_else_for_themselves():
    """Defaults, counters, entries, names, and the file that a traceback names."""
    unset, other = object(), object()

    def make(name: str, limit: int, sentinel: object) -> Any:
        @AgentCache("r", name=name)
        async def tool(query: str = name, *, limit: int = limit, filter: object = sentinel) -> list[Any]:
            if query == "fail":
                raise LookupError(name)
            return [name, query, limit, filter is sentinel]

        return tool

    first, second = make("first of two", 1, unset), make("second of two", 2, other)
    assert await first() == ["first of two", "first of two", 1, True]
    assert await second() == ["second of two", "second of two", 2, True]
    assert await first() == ["first of two", "first of two", 1, True]
    assert (first.cache_info().hits, second.cache_info().hits) == (1, 0)
    assert inspect.signature(second) == inspect.signature(second.__wrapped__)
    assert (second.__defaults__, second.__kwdefaults__) == (("second of two",), {"limit": 2, "filter": other})
    for tool, name in ((first, "first of two"), (second, "second of two")):
        with pytest.raises(LookupError) as caught:
            await tool("fail")
        frames = traceback.extract_tb(caught.value.__traceback__)
        body = next(frame for frame in frames if "agent_cache body" in frame.filename)
        assert body.filename == f"<agent_cache body of {name}>"
        assert "await" in (body.line or "")
