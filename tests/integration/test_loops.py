"""What a session does about a run that goes round: whom it stops, what it says, and what it never touches."""

from __future__ import annotations

import contextlib
import gc
import pickle
import tracemalloc
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from agent_cache import (
    AgentCache,
    AgentCacheInvalidator,
    AgentCacheSession,
    AgentLoopDetectedError,
    LoopHints,
    LoopPolicy,
    Read,
    Toolbox,
    Watch,
    get_metrics,
)
from tests.harness import library
from tests.harness.gates import Gate, cancelled, started, until

pytestmark = pytest.mark.usefixtures("clock")


class Shop:
    """Tools whose answers a test sets, and what was really carried out."""

    def __init__(self, read: LoopHints | None = None, write: LoopHints | None = None, **options: Any) -> None:
        self.runs: list[Any] = []
        self.answers: Any = "same"
        hints = {} if read is None else {"loop": read}

        @AgentCache("shop", name="get", **hints, **options)
        async def get(x: Any = 0, at: Any = None) -> Any:
            self.runs.append(("get", x))
            return self._answer(x)

        @AgentCache("list", name="list", **options)
        async def list_all(x: Any = 0) -> Any:
            self.runs.append(("list", x))
            return self._answer(x)

        @AgentCacheInvalidator("elsewhere", name="add", **({} if write is None else {"loop": write}))
        async def add(x: Any = 0) -> Any:
            self.runs.append(("add", x))
            return self._answer(x)

        self.get, self.list, self.add = get, list_all, add

    def _answer(self, x: Any) -> Any:
        answer = self.answers(x) if callable(self.answers) else self.answers
        if isinstance(answer, Exception):
            raise answer
        return answer


async def outcomes(call: Callable[[], Any], times: int) -> list[Any]:
    """What each of so many calls gave: its value, or the class of what it raised."""
    given = []
    for _ in range(times):
        try:
            given.append(await call())
        except Exception as error:
            given.append(type(error))
    return given


def sources(session: AgentCacheSession) -> list[tuple[str, str]]:
    return [(record.source, record.outcome) for record in session.get_execution_trace()]


STOPPED = AgentLoopDetectedError


# -- what a session does about a loop --------------------------------------------------------------------------


async def test_the_same_error_again_and_again_is_refused_with_the_error_behind_it():
    shop = Shop()
    shop.answers = LookupError("no such order")
    with pytest.raises(STOPPED):
        async with AgentCacheSession() as session:
            assert await outcomes(shop.get, 3) == [LookupError] * 3
            with pytest.raises(STOPPED) as caught:
                await shop.get()
    error = caught.value
    assert (error.kind, error.count, error.period, error.calls) == ("error", 4, 1, ("get",))
    assert error.first == error.last == "LookupError('no such order')"
    assert error.__context__ is shop.answers
    assert sources(session) == [("miss", "LookupError")] * 4, "it has run each time"


async def test_an_interruption_is_no_outcome():
    gate = Gate()

    @AgentCache("r", name="slow")
    async def slow() -> Any:
        return await gate()

    async with AgentCacheSession() as session:
        for _ in range(10):
            await cancelled(await started(slow()))
    assert session.loop_error is None


# -- what tools call by themselves ---------------------------------------------------------------------------


async def test_tools_that_share_a_helper_are_not_in_a_loop():
    @AgentCache("config", name="config")
    async def get_config() -> str:
        return "the same"

    @AgentCache("optional", name="optional")
    async def get_extra() -> str:
        raise LookupError("there is none")

    @AgentCache("report", name="report")
    async def report(x: int) -> str:
        for _ in range(8):
            with contextlib.suppress(LookupError):
                await get_extra()
        answers = [await get_config() for _ in range(8)]
        return f"{x}: {answers[-1]}"

    async with AgentCacheSession() as session:
        assert [await report(x) for x in range(4)] == [f"{x}: the same" for x in range(4)]
    assert session.get_metrics()["loops"] == session.get_metrics()["loop_notices"] == {}
    assert session.metrics.calls == 4 * 17


@pytest.mark.parametrize("on_loop", ["notice", "short_circuit", lambda loop: "notice"])
async def test_a_text_for_the_model_does_not_become_part_of_an_answer(on_loop: Any):
    shop = Shop()

    @AgentCache("r", name="outer")
    async def outer(x: int) -> str:
        return f"{x}: {await shop.get(x)}"

    async with AgentCacheSession(on_loop=on_loop, max_execution_depth=5):
        given = [*await outcomes(lambda: outer(0), 1), *await outcomes(lambda: outer(1), 1)]
        given += await outcomes(lambda: outer(2), 1)
    assert given == ["0: same", "1: same", STOPPED]
    assert await outer(2) == "2: same"


async def test_a_write_inside_of_a_tool_is_not_left_out_in_silence():
    shop = Shop()

    @AgentCacheInvalidator("stock", name="add many")
    async def add_many(count: int) -> str:
        for _ in range(count):
            await shop.add(7)
        return f"added {count}"

    async with AgentCacheSession(on_loop="notice", max_execution_depth=20):
        assert await add_many(12) == "added 12"
        assert shop.runs == [("add", 7)] * 12
        with pytest.raises(AgentLoopDetectedError, match="max_execution_depth"):
            await add_many(12)
        assert "max_execution_depth" in await add_many(12)
    assert shop.runs == [("add", 7)] * 18


async def test_a_tool_that_is_under_way_ends_although_its_run_is_stopped():
    shop, gate = Shop(), Gate()

    @AgentCacheInvalidator("money", name="transfer")
    async def transfer() -> str:
        await shop.add("debit")
        await gate()
        await shop.add("credit")
        return "transferred"

    with pytest.raises(AgentLoopDetectedError):
        async with AgentCacheSession():
            moving = await started(transfer())
            assert (await outcomes(shop.get, 5))[-1] is STOPPED
            gate.last.returns(None)
            assert await moving == "transferred"
            assert await outcomes(transfer, 1) == [STOPPED]
    assert shop.runs[-1] == ("add", "credit")


async def test_a_run_that_is_stopped_does_not_stop_those_that_wait_for_the_same():
    shop, gate = Shop(), Gate()

    @AgentCache("slow", name="slow")
    async def slow(x: int) -> Any:
        await gate()
        return await shop.get()

    async def leader() -> None:
        async with AgentCacheSession(loop_policy=LoopPolicy(max_tool_calls={"get": 1})):
            await shop.get()
            shop.get.clear()
            await slow(1)

    async def follower() -> Any:
        async with AgentCacheSession():
            return await slow(1)

    leading = await started(leader())
    following = await started(follower())
    gate.last.returns(None)
    with pytest.raises(AgentLoopDetectedError):
        await leading
    await until(lambda: len(gate.calls) == 2)
    gate.last.returns(None)
    assert await following == "same"


async def test_a_hit_that_goes_round_is_answered_from_the_cache():
    shop = Shop()
    async with AgentCacheSession(on_loop="short_circuit") as session:
        assert await outcomes(shop.get, 20) == ["same"] * 20
    assert shop.runs == [("get", 0)]
    assert sources(session)[4:] == [("blocked", "short_circuit")] * 16
    assert session.get_metrics()["loop_detections"] == 16
    assert session.get_metrics()["hits"] == get_metrics()["hits"] == 19


async def test_the_model_reads_what_happened():
    shop = Shop()
    async with AgentCacheSession(on_loop="notice") as session:
        given = await outcomes(shop.get, 6)
        assert given[:4] == ["same"] * 4
        for fact in ("get", "5 times", "'same'", "another step"):
            assert fact in given[4]
        assert "6 times" in given[5]
        assert await shop.get(1) == "same", "other calls are as they were"
    assert sources(session)[4:6] == [("blocked", "notice")] * 2


@pytest.mark.parametrize("kind", ["read", "write"])
@pytest.mark.parametrize("wrong", ["shout", 1 / 3, "an error"])
async def test_a_function_that_cannot_decide_stops_the_loop_and_breaks_nothing(
    wrong: Any, kind: str, caplog: pytest.LogCaptureFixture
):
    shop = Shop()

    def judge(report: AgentLoopDetectedError) -> Any:
        if wrong == "an error":
            raise RuntimeError("broken")
        return wrong

    with pytest.raises(STOPPED):
        async with AgentCacheSession(on_loop=judge) as session:
            call, answered = (shop.get, 4) if kind == "read" else (shop.add, 10)
            assert await outcomes(call, answered + 2) == ["same"] * answered + [STOPPED] * 2
    assert session.get_metrics()["callback_errors"] == get_metrics()["callback_errors"] == 1
    assert len([record for record in caplog.records if "on_loop" in record.getMessage()]) == 1


# -- What a tool says of itself ------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["global", "session"])
@pytest.mark.parametrize("how", ["hits", "runs"])
async def test_arguments_that_do_not_matter_are_left_out(how: str, scope: Any):
    """Each call is made twice, so that every second one is a hit with a key of its own."""
    shop = Shop(LoopHints(loop_key=lambda arguments: arguments["x"]), scope=scope)
    given = []
    with pytest.raises(STOPPED) as caught:
        async with AgentCacheSession(tenant="t" if scope == "global" else None):
            for number in range(6):
                given += await outcomes(lambda number=number: shop.get(7, at=number), 2 if how == "hits" else 1)
    assert given.index(STOPPED) == 4
    assert caught.value.kind == "repeat"


async def test_results_are_compared_by_what_matters_in_them():
    shop = Shop(LoopHints(outcome_key=lambda result: result["items"]))
    numbers = iter(range(100))
    shop.answers = lambda x: {"items": [1, 2], "at": next(numbers)}
    with pytest.raises(STOPPED):
        async with AgentCacheSession():
            assert [type(given) for given in await outcomes(shop.get.fresh, 5)] == [dict] * 4 + [type]


@pytest.mark.parametrize("kind", ["read", "write"])
@pytest.mark.parametrize("which", ["loop_key raises", "loop_key has no identity", "outcome_key raises"])
async def test_a_function_that_raises_costs_nothing_but_a_line_in_the_log(
    which: str, kind: str, caplog: pytest.LogCaptureFixture
):
    """The default is used: the arguments, and the whole result."""

    def broken(given: Any) -> Any:
        if "raises" in which:
            raise RuntimeError("broken")
        return object()

    hints = LoopHints(outcome_key=broken) if "outcome" in which else LoopHints(loop_key=broken)
    shop = Shop(hints, hints)
    call = shop.get.fresh if kind == "read" else shop.add
    answered = 4 if kind == "read" else 10
    with pytest.raises(STOPPED):
        async with AgentCacheSession() as session:
            assert await outcomes(lambda: call("other"), 3) == ["same"] * 3, "it is told apart from these"
            assert await outcomes(call, answered + 2) == ["same"] * answered + [STOPPED] * 2
    name = which.split()[0]
    assert session.get_metrics()["callback_errors"] >= answered
    assert len([record for record in caplog.records if name in record.getMessage()]) == 1


async def test_an_answer_that_cache_if_turns_away_is_a_failed_call_and_an_empty_one_is_not():
    failing = Shop(cache_if=lambda answer: not answer.startswith("Error"))
    failing.answers = "Error: no such order"
    empty = Shop(cache_if=bool)
    empty.answers = []
    numbers = iter(range(100))
    with pytest.raises(STOPPED) as caught:
        async with AgentCacheSession():
            assert await outcomes(lambda: empty.get(next(numbers)), 20) == [[]] * 20
            assert (await outcomes(lambda: failing.get(next(numbers)), 6))[-1] == STOPPED
    assert caught.value.kind == "any_error"


@pytest.mark.parametrize("is_new", [True, False])
async def test_an_answer_without_identity_is_never_the_same_and_is_progress_if_its_call_is_new(is_new: bool):
    shop = Shop(copy="never")
    shop.answers = lambda x: object() if x else "same"
    async with AgentCacheSession(on_loop="warn") as session:
        for number in range(1, 9):
            await shop.get(0)
            await shop.list.fresh(number if is_new else 1)
    assert session.get_metrics()["loops"] == ({} if is_new else {"repeat": 4})


# -- Budgets -------------------------------------------------------------------------------------------------


async def test_tools_that_call_tools_end_somewhere():
    depths: list[int] = []

    @AgentCache("r", name="down")
    async def down(x: int) -> Any:
        depths.append(x)
        return await down(x + 1)

    with pytest.raises(STOPPED, match="max_nesting") as caught:
        async with AgentCacheSession(loop_policy=LoopPolicy(max_nesting=7)):
            await down(1)
    assert (caught.value.kind, caught.value.count, depths[-1]) == ("nesting", 8, 7)


@pytest.mark.parametrize("how", ["hit", "miss", "write"])
async def test_a_run_has_so_much_time(how: str, clock: library.Clock):
    shop = Shop()
    call = {"hit": shop.get, "miss": lambda: shop.get("new"), "write": shop.add}[how]
    with pytest.raises(STOPPED) as caught:
        async with AgentCacheSession(loop_policy={"max_duration": 10}) as session:
            await shop.get()
            clock.advance(9.9)
            await shop.get()
            clock.advance(0.2)
            assert await outcomes(call, 2) == [STOPPED] * 2
    assert (caught.value.kind, caught.value.count) == ("time", 2)
    assert "max_duration" in str(caught.value)
    assert session.get_metrics()["loops"] == {"time": 2}
    assert sources(session)[2:] == [("blocked", "AgentLoopDetectedError")] * 2


@pytest.mark.parametrize("limit", [3, {"get": 3}])
async def test_a_tool_has_so_many_calls(limit: Any):
    shop = Shop()
    with pytest.raises(STOPPED) as caught:
        async with AgentCacheSession(loop_policy=LoopPolicy(max_tool_calls=limit)):
            await shop.list()
            await shop.get()
            await shop.get()
            await shop.get(1)
            assert await outcomes(shop.get, 1) == [STOPPED]
    assert (caught.value.kind, caught.value.tool, caught.value.count) == ("tool_calls", "get", 3)
    assert "max_tool_calls" in str(caught.value)


async def test_what_a_budget_refuses_may_be_answered_from_the_cache():
    shop = Shop()
    async with AgentCacheSession(on_loop="short_circuit", max_execution_depth=2) as session:
        assert await outcomes(shop.get, 4) == ["same"] * 4
        assert await outcomes(lambda: shop.get(1), 1) == [STOPPED]
        assert await outcomes(shop.add, 1) == [STOPPED]
    assert shop.runs == [("get", 0)]
    assert sources(session)[2:4] == [("blocked", "short_circuit")] * 2
    assert session.get_metrics()["hits"] == get_metrics()["hits"] == 3


@pytest.mark.parametrize("writes", ["new", "the same", "failing", "rejected"])
async def test_a_write_of_an_inner_run_changes_the_world_of_the_outer_one(writes: str):
    """Who reads, lets another one write, and reads again, is at work; if nothing new is written, it is not."""
    shop = Shop()
    numbers = iter(range(100))

    @AgentCacheInvalidator("elsewhere", name="put", ok=lambda answer: answer != "rejected")
    async def put(x: int) -> str:
        if writes == "failing":
            raise LookupError(f"no {x}")
        return writes

    async with AgentCacheSession(on_loop="warn") as outer:
        for _ in range(12):
            async with AgentCacheSession(), AgentCacheSession():
                await outcomes(lambda: put(0 if writes == "the same" else next(numbers)), 1)
            assert await shop.get() == "same"
    assert outer.get_metrics()["loops"] == ({} if writes == "new" else {"repeat": 8})


async def test_the_budget_of_a_tool_is_one_for_all_inner_runs():
    shop = Shop()
    with pytest.raises(STOPPED) as caught:
        async with AgentCacheSession(loop_policy=LoopPolicy(max_tool_calls=4)):
            await shop.get()
            for number in range(9):
                async with AgentCacheSession():
                    await shop.get(number % 2)
    assert (caught.value.kind, caught.value.count) == ("tool_calls", 4)


@pytest.mark.parametrize(
    "kind", ["repeat", "error", "cycle", "any_error", "depth", "nesting", "time", "tool_calls", "of another version"]
)
def test_the_report_says_what_happened_and_what_to_do_and_pickles(kind: str):
    error = STOPPED("shop:get", kind, 5, 2, ("shop:get", "shop:list"), "'{a}'", "'{b}'", "notice")
    again = pickle.loads(pickle.dumps(error))
    fields = ("tool", "kind", "count", "period", "calls", "first", "last", "level")
    assert [getattr(again, field) for field in fields] == [getattr(error, field) for field in fields]
    text = str(again)
    assert text == str(error)
    assert "get" in text
    assert "shop" not in text, "the model does not know the toolbox"
    assert "5" in text
    assert any(word in text for word in ("help", "Finish", "let it end"))


@pytest.mark.parametrize("kind", ["read", "write"])
@pytest.mark.parametrize(
    ("answers", "are_same"),
    [
        ([{"a": [1], "b": [2]}] * 3, True),
        ([{"a": [1], "b": [2]}, {"b": [2], "a": [1]}, {"a": [1], "b": [2]}], False),
        ([{"a": [1]}, {"a": [True]}, {"a": [1.0]}], False),
        ([{"a": [b"x"]}, {"a": ["x"]}, {"a": [(b"x",)]}], False),
        ([1, True, 1.0], False),
        (["x", b"x", "x"], False),
    ],
    ids=["equal", "another order", "other numbers", "other types", "plain numbers", "plain types"],
)
async def test_answers_are_the_same_if_they_are_equal_in_the_same_order_with_the_same_types(kind, answers, are_same):
    shop, given = Shop(), iter(answers)
    shop.answers = lambda _: next(given)
    policy = LoopPolicy(repeat=3, write_repeat=3, cycle=None)
    async with AgentCacheSession(on_loop="warn", loop_policy=policy) as session:
        await outcomes(shop.add if kind == "write" else shop.get.fresh, 3)
    assert bool(session.get_metrics()["loops"]) is are_same


@pytest.mark.parametrize("which", ["run", "hit", "uncached"])
async def test_what_a_session_remembers_is_bounded(which: str):
    """Of calls, of outcomes of one call, and of answers that the cache has dropped: more calls take no more memory."""

    async def calls(first: int, last: int) -> int:
        for number in range(first, last):
            shop.answers = f"{number}" * 500
            await (shop.get.fresh if which == "run" else shop.get)(number)
            await shop.list.fresh(-1)
            shop.answers = LookupError("full")
            await outcomes(lambda: shop.add(-1), 1)
            shop.runs.clear()
        shop.get.clear()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    shop = Shop(**({"ttl": lambda _answer: 0.0} if which == "uncached" else {}), maxsize=None)
    policy = LoopPolicy(max_execution_depth=None)
    async with AgentCacheSession(on_loop="warn", loop_policy=policy, trace_size=10):
        await calls(0, 50)
        tracemalloc.start()
        try:
            first = await calls(50, 1_200)
            more = await calls(1_200, 1_700)
        finally:
            tracemalloc.stop()
    assert more < first * 1.1 + 50_000


# -- arguments without a key -----------------------------------------------------------------------------------


class Client:
    """An object without identity."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


_CLIENT = Client()
UNKEYED: dict[str, Callable[[], Any]] = {
    "one object": lambda: _CLIENT,
    "another object each time": Client,
    "no weak reference": object,
    "in a list": lambda: ["x", _CLIENT],
}


@pytest.mark.parametrize("make", UNKEYED.values(), ids=UNKEYED.keys())
@pytest.mark.parametrize(("which", "answered"), [("read", 4), ("write", 10), ("error", 5)])
async def test_an_argument_without_a_key_does_not_switch_the_guard_off(
    make: Callable[[], Any], which: str, answered: int
):
    """The frames of an error may keep the object of its call alive: then it is one of `any_error`."""
    shop = Shop()
    shop.runs = deque(maxlen=0)  # which keeps no argument alive
    call = shop.add if which == "write" else shop.get
    if which == "error":
        shop.answers = lambda x: LookupError("down")
    with pytest.raises(STOPPED) as caught:
        async with AgentCacheSession():
            given = await outcomes(lambda: call(make()), 300)
    assert given.count(STOPPED) >= 300 - answered
    assert caught.value.kind in ({"error", "any_error"} if which == "error" else {"repeat"})


@pytest.mark.parametrize("which", ["read", "write"])
async def test_objects_without_identity_that_are_others_are_not_taken_for_one(which: str):
    """Sixty documents of a list, of a stream with another text each, and of one mailbox with another result each."""
    shop = Shop()
    shop.runs = deque(maxlen=0)  # which keeps no argument alive
    call = shop.add if which == "write" else shop.get
    documents = [Client() for _ in range(60)]
    async with AgentCacheSession() as session:
        for document in documents:
            await call(document)
        for number in range(60):
            await call(Client(text=f"text {number}"))
        for number in range(60):
            shop.answers = number
            await call(_CLIENT)
    assert session.get_metrics()["loops"] == session.get_metrics()["loop_notices"] == {}


async def test_nothing_keeps_an_argument_without_a_key_alive():
    shop = Shop()
    shop.runs = deque(maxlen=0)  # which keeps no argument alive
    async with AgentCacheSession():
        document = Client()
        await shop.get(document)
        reference = weakref.ref(document)
        del document
        gc.collect()
        assert reference() is None


# -- a session that lives for days -----------------------------------------------------------------------------


async def test_a_slow_tool_is_no_pause(clock: Any):
    """The time from the end of one call to the start of the next one is measured."""
    shop = Shop()
    shop.answers = lambda x: clock.advance(3_600)
    with pytest.raises(STOPPED):
        async with AgentCacheSession(loop_policy=LoopPolicy(new_turn_after=60)):
            assert await outcomes(shop.get.fresh, 5) == [None] * 4 + [STOPPED]


# -- What a model is told: the names that it knows -----------------------------------------------------------------


async def pending() -> str:
    return "pending"


BOX = Toolbox({"get_*": Read("order:{order_id}"), "git.log": Watch()}, namespace="shop")
NAMED: dict[str, Callable[[], Any]] = {
    "get_order": lambda: BOX.call("get_order", {"order_id": "W1"}, pending),
    "git.log": lambda: BOX.call("git.log", {}, pending),
    "pending": AgentCache("order")(pending),
    "prices v1.2": AgentCache("order", name="prices v1.2")(pending),
}


@pytest.mark.parametrize("name", NAMED)
async def test_a_notice_names_a_tool_without_its_namespace_or_module(name: str):
    async with AgentCacheSession(on_loop="notice"):
        text = (await outcomes(NAMED[name], 5))[-1]
    assert text.startswith(f"{name} was called 5 times")
    assert "shop" not in text


class Block:
    """As frameworks give text to a model."""

    def __init__(self, text: str) -> None:
        self.text = text


@pytest.mark.parametrize(
    "result",
    [
        [Block("pending")],
        [{"type": "text", "text": "pending"}],
        {"content": [{"type": "text", "text": "pending"}], "isError": False},
    ],
    ids=["objects", "dicts", "a result of MCP"],
)
async def test_a_result_in_blocks_is_shown_by_its_text(result: Any):
    @AgentCache("order", copy="never")
    async def get_order() -> Any:
        return result

    async with AgentCacheSession(on_loop="notice"):
        texts = [await get_order() for _ in range(5)]
    assert "('pending')" in texts[-1]
