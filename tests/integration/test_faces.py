"""What the decorators are asked for is what they do: each option, each attribute, and the process-wide switches."""

from __future__ import annotations

import contextlib
import contextvars
import io
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from agent_cache import (
    AgentCache,
    AgentCacheInvalidator,
    AgentCacheSession,
    ConfigurationError,
    Read,
    Toolbox,
    UncacheableArgumentsError,
    configure,
    get_metrics,
    invalidate,
)
from tests.harness import library
from tests.harness.gates import Gate, started

pytestmark = pytest.mark.usefixtures("clock")


class Runs:
    """A read tool that answers with the number of its run, or with what `answer` makes of its first argument."""

    def __init__(self, resource: Any = "r", answer: Callable[[Any], Any] | None = None, **options: Any) -> None:
        self.count = 0

        async def tool(x: Any = 0, y: Any = 0, *, z: Any = 0) -> Any:
            self.count += 1
            return self.count if answer is None else answer(x)

        self.tool = AgentCache(resource, **options)(tool)

    async def keeps(self, *calls: Any) -> list[bool]:
        """Whether each of these calls is answered without a run."""
        kept = []
        for call in calls:
            before = self.count
            await self.tool(*(call if isinstance(call, tuple) else (call,)))
            kept.append(self.count == before)
        return kept


# -- Identity ------------------------------------------------------------------------------------------------


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


IDENTITIES: dict[str, Any] = {
    "an argument without one": None,
    "raises": lambda: 1 / 0,
    "gives no identity": object,
    "raises unprintably": lambda: (_ for _ in ()).throw(Unprintable),
}


@pytest.mark.parametrize("option", ["key", "vary"])
@pytest.mark.parametrize("failure", IDENTITIES)
async def test_an_identity_that_cannot_be_made_runs_the_call_uncached_and_counts_it(option: str, failure: str):
    options = {} if "argument" in failure else {option: lambda *_, **__: IDENTITIES[failure]()}
    argument = object() if "argument" in failure else 1
    runs, strict = Runs(**options), Runs(uncacheable="raise", **options)
    assert await runs.keeps(argument, argument) == [False, False]
    assert get_metrics()["uncached"] == 2
    with pytest.raises(UncacheableArgumentsError) as caught:
        await strict.tool(argument)
    assert caught.value.tool == strict.tool.__agent_cache__.name
    assert strict.count == 0


async def test_key_replaces_the_arguments_as_identity():
    """A key that is None, as of a function without `return`, would be that of every call."""
    unset = Runs(key=lambda x, y, *, z: None)
    box = Toolbox({"get": Read("r", key=lambda x: None)}, namespace="unset")
    assert await unset.keeps(1, 1) == [False, False]
    assert [await box.call("get", {"x": 1}, lambda: unset.tool(1)) for _ in "12"] == [3, 4]
    runs = Runs(key=lambda x, y, *, z: x["id"])
    first = await runs.tool({"id": 1}, "a", z=1)
    assert await runs.tool(y="b", x={"id": 1, "more": object()}) == first
    assert runs.tool.cache_key({"id": 1}) == runs.tool.cache_key({"id": 1}, y=2)
    assert await runs.tool({"id": True}) != first


async def test_vary_adds_what_is_ambient():
    place = contextvars.ContextVar("place", default="here")
    runs = Runs(vary=place.get)
    other = Runs(vary=lambda: place.get())
    for each in (runs, other):
        assert await each.keeps(1, 1) == [False, True]
        token = place.set("there")
        assert not each.tool.contains(1)
        assert await each.keeps(1, 1) == [False, True]
        assert each.tool.contains(1)
        place.reset(token)
        assert await each.keeps(1) == [True]


# -- What is kept --------------------------------------------------------------------------------------------


async def test_cache_if_keeps_answers_that_say_error_out():
    answers = ["Error: no", "Error: no", "fine", "never asked for"]

    @AgentCache("r", cache_if=lambda result: not result.startswith("Error"))
    async def tool() -> str:
        return answers.pop(0)

    assert [await tool() for _ in range(4)] == ["Error: no", "Error: no", "fine", "fine"]
    assert get_metrics()["uncached"] == 0


async def test_copy_says_how_a_hit_is_protected():
    def of(**options: Any) -> Any:
        @AgentCache("r", **options)
        async def tool() -> list[int]:
            return [1]

        return tool

    auto, never, own = of(), of(copy="never"), of(copy=lambda value: [*value, "copy"])
    first = await auto()
    first.append(2)
    assert await auto() == [1]
    assert await never() is await never()
    assert await own() == [1], "who loads it has the tool's own answer"
    assert await own() == [1, "copy", "copy"]


@pytest.mark.parametrize("ttl", [60, 60.0, timedelta(minutes=1)])
@pytest.mark.parametrize("scope", ["global", "session"])
async def test_an_answer_ends_with_its_ttl_and_not_before(clock: library.Clock, scope: str, ttl: Any):
    runs = Runs(ttl=ttl, scope=scope)
    async with AgentCacheSession(loop_detection=False):
        assert await runs.keeps(1) == [False]
        clock.advance(59.9)
        assert await runs.keeps(1) == [True]
        clock.advance(0.1)
        assert await runs.keeps(1, 1) == [False, True]


async def test_the_ttl_counts_from_the_start_of_the_load(clock: library.Clock):
    gate = Gate()

    @AgentCache("r", ttl=10)
    async def tool() -> Any:
        return await gate()

    for number in range(2):
        task = await started(tool())
        clock.advance(6)
        gate.last.returns(number)
        assert await task == number
        clock.advance(3.9)
        assert await tool() == number
        clock.advance(0.1)
    assert len(gate.calls) == 2


@pytest.mark.parametrize("scope", ["global", "session"])
async def test_the_least_recently_used_answer_makes_room_in_both_scopes(scope: str):
    runs = Runs(maxsize=2, scope=scope)
    async with AgentCacheSession():
        await runs.keeps("a", "b", "a", "c")
        assert await runs.keeps("a", "c") == [True, True]
        assert await runs.keeps("b") == [False]
        assert await runs.keeps("c") == [True]
        assert await runs.keeps("a") == [False]
    assert get_metrics()["evictions"] == 3


# -- What a decorated tool has -------------------------------------------------------------------------------


async def test_a_cache_key_is_one_for_every_spelling_and_opaque():
    tool = Runs().tool
    assert tool.cache_key(1, 2, z=3) == tool.cache_key(z=3, y=2, x=1)
    assert tool.cache_key(1) == tool.cache_key(x=1, y=0, z=0)
    assert hash(tool.cache_key(1)) == hash(tool.cache_key(x=1))
    assert tool.cache_key(1) != tool.cache_key(True)
    assert tool.cache_key(1) != Runs().tool.cache_key(1)
    assert "secret" not in repr(tool.cache_key("secret"))
    with pytest.raises(TypeError):
        tool.cache_key(1, 2, 3)
    with pytest.raises(UncacheableArgumentsError, match="tool"):
        tool.cache_key(object())


async def test_one_call_can_be_forgotten():
    runs = Runs()
    await runs.keeps(1, 2)
    assert await runs.tool.invalidate(y=0, x=1) is True
    assert await runs.tool.invalidate(1) is False
    assert await runs.keeps(1, 2) == [False, True]
    assert await runs.tool.invalidate(object()) is False
    with pytest.raises(TypeError):
        await runs.tool.invalidate(1, 2, 3)


async def test_all_calls_can_be_forgotten_and_are_counted():
    runs, other = Runs(), Runs()
    scoped = Runs(scope="session")
    await other.tool(1)
    async with AgentCacheSession():
        await runs.keeps(1, 2, 3)
        await scoped.tool(1)
        async with AgentCacheSession():
            await scoped.keeps(1, 2)
            assert scoped.tool.clear() == 3
            assert await scoped.keeps(1) == [False]
    assert runs.tool.clear() == 3
    assert runs.tool.clear() == 0
    assert await runs.keeps(1) == [False]
    assert await other.keeps(1) == [True]


async def test_a_fresh_call_joins_nobody_and_later_readers_join_it():
    gate = Gate()

    @AgentCache("r")
    async def tool() -> Any:
        return await gate()

    assert tool.refresh is tool.fresh
    old = await started(tool())
    fresh = await started(tool.fresh())
    reader = await started(tool())
    assert len(gate.calls) == 2
    gate.calls[1].returns("new")
    assert await fresh == await reader == "new"
    gate.calls[0].returns("old")
    assert await old == "old"
    assert await tool() == "new"


# -- Writes --------------------------------------------------------------------------------------------------


def forgetting(key_fn: Callable[..., Any]) -> Any:
    @AgentCacheInvalidator("r", clear_all=False, key_fn=key_fn)
    async def write(x: int, y: int = 5, *, z: int = 6) -> None: ...

    return write


@pytest.mark.parametrize("several", [list, tuple, set, iter])
async def test_a_write_drops_the_calls_that_its_key_fn_names_of_any_tool(several: Callable[..., Any]):
    runs, other = Runs(), Runs("other")
    await runs.keeps(1, 2)
    await other.keeps(1, 2)
    named = [runs.tool.cache_key(1), other.tool.cache_key(2)]
    await forgetting(lambda args, kwargs: several(named))(1)
    assert await runs.keeps(1, 2) == [False, True]
    assert await other.keeps(1, 2) == [True, False]


# -- Switches of the process ---------------------------------------------------------------------------------


async def test_caching_can_be_switched_off_and_comes_back_with_what_was_kept_and_not_written():
    runs, scoped = Runs("r:{x}"), Runs("s", scope="session")

    @AgentCacheInvalidator("r:{x}")
    async def write(x: int) -> None: ...

    async with AgentCacheSession(max_tool_repeats=100) as session:
        await runs.keeps(1, 2, 3)
        await scoped.tool(1)
        with configure(enabled=False):
            assert await runs.keeps(1, 1) == [False, False]
            assert await scoped.keeps(1, 1) == [False, False]
            assert await Runs().keeps(1, 1) == [False, False]
            await write(2)
            await invalidate("r:3")
        assert await runs.keeps(1, 2, 3) == [True, False, False]
        assert await scoped.keeps(1) == [True]
        assert session.get_metrics()["uncached"] == 6
        assert [record.source for record in session.get_execution_trace()].count("uncached") == 6
    assert get_metrics()["uncached"] == 6


def test_the_environment_is_read_again_by_reset(monkeypatch: pytest.MonkeyPatch):
    from agent_cache import testing

    for word, enabled in {"0": False, "FALSE": False, " no ": False, "1": True, "": True, "yes": True}.items():
        monkeypatch.setenv("AGENT_CACHE_ENABLED", word)
        testing.reset()
        assert library.setting("enabled") is enabled, word
    monkeypatch.setenv("AGENT_CACHE_ENABLED", "disabled")
    with pytest.raises(ConfigurationError, match="AGENT_CACHE_ENABLED must be 0 or 1, got 'disabled'"):
        testing.reset()
    monkeypatch.delenv("AGENT_CACHE_ENABLED")
    testing.reset()
    assert library.setting("enabled")


# -- The bound in bytes --------------------------------------------------------------------------------------


def texts() -> Runs:
    """A read tool that answers with a text of the length it is asked for."""
    return Runs("text", lambda length: "x" * length, maxsize=None)


async def test_the_fullest_store_gives_its_least_recently_used_answers_away():
    large, small = texts(), texts()
    with configure(max_bytes=10_000):
        await small.keeps((1_000, 0))
        await large.keeps((3_000, 0), (3_000, 1), (3_000, 0))
        assert await large.keeps((3_000, 2)) == [False]
        assert await small.keeps((1_000, 0)) == [True]
        assert await large.keeps((3_000, 0), (3_000, 2)) == [True, True]
        assert await large.keeps((3_000, 1)) == [False]
    assert get_metrics()["evictions"] == 2


async def test_an_answer_larger_than_all_the_room_is_not_kept_and_evicts_nothing():
    runs = texts()
    with configure(max_bytes=5_000):
        await runs.keeps((1_000, 0), (1_000, 1))
        assert await runs.keeps((10_000, 0), (10_000, 0)) == [False, False]
        assert await runs.keeps((1_000, 0), (1_000, 1)) == [True, True]
    assert get_metrics()["evictions"] == 0


# -- What users' functions may do to a call ------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["fails", "names no id", "gives what no tag can be made of"])
async def test_a_write_that_names_no_id_in_one_place_and_anything_in_another_drops_the_root(ending: str):
    """What is unknown of one tag is not made known by another that touches nothing."""
    runs = Runs("r:{x}")
    await runs.tool(1)

    @AgentCacheInvalidator(["r:{none}", "r:{result[id]}"], doubt=0)
    async def write(none: Any = None) -> Any:
        if ending == "fails":
            raise LookupError
        return {} if ending == "gives what no tag can be made of" else {"id": None}

    with pytest.raises(LookupError) if ending == "fails" else contextlib.nullcontext():
        await write()
    assert await runs.keeps(1) == [ending == "names no id"]


@pytest.mark.parametrize("is_by_name", [False, True])
async def test_calls_that_have_one_key_and_other_tags_share_no_answer(is_by_name: bool):
    """A write of the one would leave the answer, which has the tags of the other."""
    runs = Runs("r:{x}", key=lambda x, *_, **__: x.lower())
    box = Toolbox({"get": Read("r:{x}", key=lambda x: x.lower())}, namespace="keyed")

    async def read(x: str) -> Any:
        return await (box.call("get", {"x": x}, lambda: runs.tool.fresh(x)) if is_by_name else runs.tool(x))

    assert [await read(x) for x in ("A", "a", "A")] == [1, 2, 1]
    await invalidate("r:a")
    assert [await read(x) for x in ("A", "a")] == [1, 3]


async def test_a_tag_is_no_address():
    """A template that names an object in place of its id would give each call a tag that no write has."""
    runs = Runs("r:{x}", key=lambda x, *_, **__: x["id"])
    read, one, other = runs.tool, *({"id": 1, "client": object()} for _ in range(2))
    assert [await read(one), await read(one)] == [1, 2], "it ran uncached"
    kept = Runs("r:{x}")
    await kept.tool(1)

    @AgentCacheInvalidator("r:{x}")
    async def write(x: Any) -> None: ...

    await write(other)
    assert await kept.keeps(1) == [False], "the whole root was dropped"


@pytest.mark.parametrize("used_up", [iter, io.StringIO], ids=["an iterator", "a file"])
async def test_a_template_uses_up_no_argument_and_no_result(used_up: Any):
    """The tool, or its caller, would find nothing in it."""
    runs = Runs("r:{x}")
    await runs.tool(1)

    @AgentCache("r:{result[]}")
    async def read(x: Any) -> Any:
        return used_up(x)

    @AgentCacheInvalidator(["r:{x[]}", "r:{result[]}"])
    async def write(x: Any) -> Any:
        return used_up("".join(x))

    assert "".join(await write(used_up("23"))) == "23"
    assert await runs.keeps(1) == [False], "the whole root was dropped"
    assert "".join(await read("23")) == "23"


async def test_a_fresh_answer_that_is_not_to_be_kept_does_not_leave_an_older_one_behind():
    answers = ["old", "Error: gone", "new"]

    @AgentCache("r", cache_if=lambda answer: not answer.startswith("Error"))
    async def tool() -> str:
        return answers.pop(0)

    assert await tool() == "old"
    assert await tool.fresh() == "Error: gone"
    assert await tool() == "new"
