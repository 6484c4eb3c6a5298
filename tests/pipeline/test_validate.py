"""`validate=`: an expired result lives on without a run of the tool while its source says that it still holds."""

from __future__ import annotations

import asyncio
import random
import threading
from datetime import timedelta
from typing import Any

import pytest

from agent_cache import (
    AgentCache,
    AgentCacheInvalidator,
    AgentCacheSession,
    AgentLoopDetectedError,
    ConfigurationError,
    RemotePolicy,
    Toolbox,
    bypass,
    configure,
    get_metrics,
    invalidate,
    set_ttl,
    writing,
)
from agent_cache.recording import record, replay
from agent_cache.testing import MemoryServer, MemoryTier
from agent_cache.toolbox import Read, Write
from tests.harness.gates import Gate, idle, started

pytestmark = pytest.mark.usefixtures("nothing_left")


class Source:
    """A tool that counts its runs, and a validator that counts its questions and answers what the test says."""

    def __init__(self, *, is_sync: bool = False, **options: Any) -> None:
        self.runs = 0
        self.asked: list[tuple[Any, int]] = []
        self.holds: Any = True
        self.now: Any = None

        def validate(previous: Any, order_id: int) -> bool:
            self.asked.append((previous, order_id))
            if isinstance(self.holds, Exception):
                raise self.holds
            return self.holds

        def run(order_id: int) -> Any:
            self.runs += 1
            if isinstance(self.now, Exception):
                raise self.now
            return self.now or {"id": order_id, "run": self.runs}

        async def run_later(order_id: int) -> Any:
            return run(order_id)

        async def validate_later(previous: Any, order_id: int) -> bool:
            await asyncio.sleep(0)
            return validate(previous, order_id)

        decorator = AgentCache(
            "order:{order_id}",
            **{"ttl": 10, "name": "get_order", "validate": validate if is_sync else validate_later, **options},
        )
        self.tool: Any = decorator(run if is_sync else run_later)
        self.is_sync = is_sync

    async def get(self, order_id: int = 1) -> Any:
        return self.tool(order_id) if self.is_sync else await self.tool(order_id)


def counts() -> tuple[int, int, int]:
    metrics = get_metrics()
    return metrics["hits"], metrics["misses"], metrics["validated"]


# The question


@pytest.mark.parametrize("is_sync", [False, True])
async def test_a_result_that_still_holds_lives_for_another_ttl_without_a_run(clock, is_sync):
    source = Source(is_sync=is_sync)
    first = await source.get()
    for rounds in (1, 2, 3):
        clock.advance(10)
        assert await source.get() == first
        clock.advance(9.9)
        assert await source.get() == first
        clock.advance(0.1)
        assert (source.runs, len(source.asked)) == (1, rounds)
        clock.advance(-10)
    assert source.asked[0] == (first, 1)
    assert counts() == (3, 1, 3)
    assert source.tool.cache_info()[:2] == (6, 1)
    assert get_metrics()["hit_rate"] == 3 / 7
    assert get_metrics()["calls"] == 7


@pytest.mark.parametrize("is_sync", [False, True])
@pytest.mark.parametrize("holds", [False, None, KeyError("no such order")])
async def test_else_and_if_it_raises_the_tool_runs(clock, caplog, is_sync, holds):
    source = Source(is_sync=is_sync)
    await source.get()
    clock.advance(10)
    source.holds = holds
    assert (await source.get())["run"] == 2
    assert (await source.get())["run"] == 2
    assert counts() == (1, 2, 0)
    logged = [record.agent_cache_event for record in caplog.records]
    assert logged == (["validate= raised, so the tool ran"] if holds else [])


async def test_an_expired_result_waits_for_the_question_as_long_as_there_is_room(clock):
    source = Source(maxsize=None)
    for order_id in range(10):
        await source.get(order_id)
    clock.advance(1_000)
    for order_id in range(10, 30):
        await source.get(order_id)
    assert (await source.get(1))["run"] == 2
    assert len(source.asked) == 1


async def test_what_it_changes_reaches_no_caller(clock):
    async def validate(previous: dict[str, Any], order_id: int) -> bool:
        previous["items"].append("changed")
        return True

    @AgentCache("order:{order_id}", ttl=10, validate=validate)
    async def get_order(order_id: int) -> dict[str, Any]:
        return {"items": []}

    for _ in range(3):
        (await get_order(1))["items"].append("mine")
        clock.advance(10)
    assert await get_order(1) == {"items": []}


async def test_a_method_passes_its_object(clock):
    class Shop:
        asked = 0

        async def holds(self, previous: Any, order_id: int = 0) -> bool:
            self.asked += 1
            return True

        @AgentCache("order:{order_id}", ttl=10, validate=lambda previous, shop, order_id: shop.holds(previous))
        async def get_order(self, order_id: int) -> object:
            return order_id

    shop = Shop()
    await shop.get_order(1)
    clock.advance(10)
    await shop.get_order(order_id=1)
    assert shop.asked == 1


async def test_equal_calls_share_one_question(clock):
    gate, source = Gate(), Source(validate=lambda previous, order_id: gate())
    await source.get()
    clock.advance(10)
    calls = [await started(source.get()) for _ in range(3)]
    assert len(gate.calls) == 1
    gate.last.returns(True)
    assert [(await call)["run"] for call in calls] == [1, 1, 1]
    assert get_metrics()["shared"] == 2
    assert counts() == (0, 1, 1)


async def test_a_cancelled_question_is_asked_by_the_next_caller(clock):
    gate, source = Gate(), Source(validate=lambda previous, order_id: gate())
    await source.get()
    clock.advance(10)
    first, second = [await started(source.get()) for _ in range(2)]
    first.cancel()
    await idle()
    assert len(gate.running) == 1
    gate.last.returns(True)
    assert (await second)["run"] == 1
    assert source.runs == 1


def test_threads_share_one_question(clock):
    begun, over, asked = threading.Event(), threading.Event(), []

    def validate(previous: Any, order_id: int) -> bool:
        asked.append(previous)
        begun.set()
        return over.wait(60)

    @AgentCache("order:{order_id}", ttl=10, validate=validate)
    def get_order(order_id: int) -> int:
        return order_id

    get_order(1)
    clock.advance(10)
    answers: list[int] = []
    threads = [threading.Thread(target=lambda: answers.append(get_order(1))) for _ in range(3)]
    for thread in threads:
        thread.start()
    begun.wait(60)
    over.set()
    for thread in threads:
        thread.join(60)
    assert answers == [1, 1, 1]
    assert len(asked) == 1


# Never stale


@pytest.mark.parametrize("how", ["write", "writing", "tag", "call", "clear"])
@pytest.mark.parametrize("when", ["before", "during", "around"])
async def test_a_write_wins(clock, how, when):
    """Whenever it ends, before the question or during it; and after it, if the write began before."""
    gate, over = Gate(), asyncio.Event()
    source = Source(validate=lambda previous, order_id: gate())
    await source.get()
    clock.advance(10)

    @AgentCacheInvalidator("order:{order_id}")
    async def change(order_id: int) -> None:
        await over.wait()

    async def drop() -> None:
        match how:
            case "write":
                await change(1)
            case "writing":
                async with writing("order:1"):
                    await over.wait()
            case "tag":
                await invalidate("order")
            case "call":
                await source.tool.invalidate(1)
            case "clear":
                source.tool.clear()

    if when == "before":
        over.set()
        await drop()
        assert (await source.get())["run"] == 2
        assert gate.calls == []
        return
    read = await started(source.get())
    write = await started(drop())
    if when == "during":
        over.set()
        await write
    gate.last.returns(True)
    assert (await read)["run"] == 2, "the tool runs, rather than to return what was written over"
    over.set()
    await write
    is_held = when == "around" and how in ("write", "writing")
    assert (await source.get())["run"] == (3 if is_held else 2)
    assert len(gate.calls) == 1


async def test_what_was_validated_is_dropped_with_everything_the_result_was_made_of(clock):
    """Also with what the tool has read through other tools when it ran."""
    runs = 0

    @AgentCache("order:{order_id}")
    async def get_order(order_id: int) -> int:
        return order_id

    @AgentCache("page", ttl=10, validate=lambda previous: True)
    async def page() -> int:
        nonlocal runs
        runs += 1
        await get_order(1)
        return runs

    assert await page() == 1
    for _ in range(2):
        clock.advance(10)
        assert await page() == 1
    await invalidate("order:1")
    assert await page() == 2
    clock.advance(10)
    await invalidate("order:1")
    assert await page() == 3


async def test_a_validated_result_depends_on_what_the_validator_read_and_the_next_one_does_not(clock):
    runs, holds = 0, True

    @AgentCache("version:{name}")
    async def version(name: str) -> str:
        return name

    async def validate(previous: Any) -> bool:
        await version("page")
        return holds

    @AgentCache("page", ttl=10, validate=validate)
    async def page() -> int:
        nonlocal runs
        runs += 1
        return runs

    await page()
    clock.advance(10)
    assert await page() == 1
    await invalidate("version:page")
    assert await page() == 2
    clock.advance(10)
    holds = False
    assert await page() == 3
    await invalidate("version:page")
    assert await page() == 3


async def test_a_page_made_of_a_validated_read_is_dropped_with_it(clock):
    source = Source()

    @AgentCache("page", ttl=60)
    async def page() -> Any:
        return (await source.get())["run"]

    await source.get()
    clock.advance(10)
    assert await page() == 1
    assert counts()[2] == 1
    source.now = {"run": "new"}
    await invalidate("order:1")
    assert await page() == "new"


def test_no_read_that_starts_after_a_write_gets_what_was_true_before_it(clock):
    """In random schedules of reads, questions, loads and writes."""
    validated = 0
    for seed in range(150):
        asyncio.run(schedule(random.Random(seed), clock))
        validated += get_metrics()["validated"]
    assert validated > 150, "little happens"


async def schedule(draw: random.Random, clock: Any) -> None:
    truth = written = 0
    gates: list[asyncio.Future[None]] = []
    reads: set[asyncio.Task[None]] = set()
    writes: set[asyncio.Task[None]] = set()

    async def stand() -> None:
        gates.append(asyncio.get_running_loop().create_future())
        await gates[-1]

    async def look() -> int:
        await stand()
        seen = truth
        await stand()
        return seen

    async def validate(previous: int) -> bool:
        return await look() == previous

    get = AgentCache("order", ttl=10, name=f"get {draw.random()}", validate=validate)(look)

    @AgentCacheInvalidator("order")
    async def change() -> int:
        nonlocal truth
        await stand()
        now = truth = truth + 1
        await stand()
        return now

    async def read() -> None:
        begun = written
        assert await get() >= begun

    async def write() -> None:
        nonlocal written
        written = max(written, await change())

    for _ in range(80):
        move = draw.random()
        if move < 0.25 and len(reads) < 4:
            reads.add(asyncio.create_task(read()))
        elif move < 0.3 and not writes:
            writes.add(asyncio.create_task(write()))
        elif move < 0.4:
            clock.advance(draw.choice((1, 10)))
        elif gates:
            gates.pop(draw.randrange(len(gates))).set_result(None)
        await idle()
        for tasks in (reads, writes):
            done = {task for task in tasks if task.done()}
            tasks -= done
            await asyncio.gather(*done)
    while reads | writes:
        while gates:
            gates.pop().set_result(None)
        await idle()
        for tasks in (reads, writes):
            tasks -= {task for task in tasks if task.done() and task.result() is None}


# Beside other options


async def test_fresh_and_bypass_do_not_ask(clock):
    source = Source()
    await source.get()
    clock.advance(10)
    assert (await source.tool.fresh(1))["run"] == 2
    clock.advance(10)
    with bypass():
        assert (await source.get())["run"] == 3
    assert source.asked == []
    assert (await source.get())["run"] == 2


async def test_within_its_grace_a_result_is_returned_at_once_and_asked_about_behind(clock):
    source = Source(grace=5)
    first = await source.get()
    clock.advance(10)
    assert await source.get() == first
    await asyncio.sleep(0)
    await idle()
    clock.advance(9)
    assert await source.get() == first
    assert (source.runs, len(source.asked)) == (1, 1)
    metrics = get_metrics()
    assert (metrics["hits"], metrics["stale"], metrics["validated"], metrics["misses"]) == (2, 1, 1, 1)


async def test_a_source_that_is_down_is_asked_and_then_replaced(clock):
    source = Source(stale_if_error=20)
    first = await source.get()
    clock.advance(10)
    source.holds = source.now = ConnectionError("down")
    assert await source.get() == first
    clock.advance(20)
    with pytest.raises(ConnectionError):
        await source.get()
    source.holds = True
    assert await source.get() == first, "when it is back, it is asked again"


async def test_results_of_a_session_are_validated_in_it(clock):
    source = Source(scope="session")
    async with AgentCacheSession() as session:
        await source.get()
        clock.advance(10)
        await source.get()
        assert (source.runs, session.metrics.validated) == (1, 1)
    async with AgentCacheSession():
        assert (await source.get())["run"] == 2


async def test_a_refused_call_of_the_validator_is_the_sessions_and_not_a_failure(clock, caplog):
    @AgentCacheInvalidator("log")
    async def log() -> None:
        pass

    async def validate(previous: Any) -> bool:
        await log()
        return True

    @AgentCache("page", ttl=10, validate=validate)
    async def page() -> int:
        return 1

    await page()
    clock.advance(10)
    with pytest.raises(AgentLoopDetectedError):
        async with AgentCacheSession(max_execution_depth=1):
            await page()
    assert "validate= raised, so the tool ran" not in [record.agent_cache_event for record in caplog.records]


async def test_validate_after_asks_before_the_ttl_and_the_ttl_runs_the_tool(clock):
    source = Source(ttl=35, validate_after=10)
    await source.get()
    for rounds in (1, 2, 3):
        clock.advance(10)
        assert (await source.get())["run"] == 1
        assert len(source.asked) == rounds
    clock.advance(4.9)
    assert (await source.get())["run"] == 1
    clock.advance(0.1)
    assert (await source.get())["run"] == 2, "35 seconds after its load"
    assert len(source.asked) == 3


@pytest.mark.parametrize("options", [{"ttl": None, "validate_after": 3}, {"ttl": timedelta(seconds=3)}, {"ttl": 60}])
async def test_when_it_is_asked(clock, options):
    """Without a ttl, too, and after one that is set at run time."""
    source = Source(**options)
    if options["ttl"] == 60:
        set_ttl("get_order", 3)
    await source.get()
    clock.advance(2.9)
    await source.get()
    assert source.asked == []
    clock.advance(0.1)
    assert (await source.get())["run"] == 1
    assert len(source.asked) == 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"validate": bool}, "validate has no effect on what never expires; add ttl"),
        ({"validate": "yes", "ttl": 1}, "validate must be a function"),
        ({"validate_after": 1}, "validate_after has no effect without validate"),
        ({"validate": bool, "validate_after": 0}, "validate_after must be more than 0"),
        ({"validate": bool, "validate_after": 10, "ttl": 10}, "validate_after must be less than ttl"),
        ({"validate": bool, "validate_after": 10, "ttl": len}, "validate_after must be less than ttl"),
        ({"validate": bool, "ttl": 1, "remote": RemotePolicy(consistency="strong")}, "validate has no effect with"),
    ],
)
def test_what_cannot_work_is_refused(options, text):
    with pytest.raises(ConfigurationError, match=text):
        AgentCache("order", **options)


def test_it_is_for_results_and_of_the_kind_of_its_tool():
    async def validate(previous: Any) -> bool:
        return True

    def numbers() -> Any:
        yield 1

    with pytest.raises(ConfigurationError, match="generator"):
        AgentCache("order", ttl=1, validate=validate)(numbers)
    with pytest.raises(ConfigurationError, match="plain function"):
        AgentCache("order", ttl=1, validate=validate)(lambda: 1)


async def test_a_rule_of_a_toolbox_has_it_with_the_arguments_by_name(clock):
    asked: list[Any] = []

    async def validate(previous: Any, **arguments: Any) -> bool:
        asked.append((previous, arguments))
        return True

    read, write = Read("order:{order_id}", ttl=10, validate=validate), Write("order:{order_id}")
    box = Toolbox({"get_order": read, "pay": write}, namespace="shop")
    runs = 0

    async def run() -> Any:
        nonlocal runs
        runs += 1
        return {"run": runs}

    for _ in range(2):
        assert await box.call("get_order", {"order_id": 1}, run) == {"run": 1}
        clock.advance(10)
    assert asked == [({"run": 1}, {"order_id": 1})]
    await box.call("pay", {"order_id": 1}, run)
    assert await box.call("get_order", {"order_id": 1}, run) == {"run": 3}


# Etags, trace and middleware


async def test_equal_results_have_one_etag_and_others_another(clock):
    source = Source()
    assert source.tool.etag(1) is None
    source.now = {"state": "paid"}
    await source.get(1), await source.get(2)
    etag = source.tool.etag(1)
    assert isinstance(etag, str)
    assert source.tool.etag(2) == etag
    clock.advance(10)
    assert source.tool.etag(1) == etag, "an expired one has it, too"
    source.now = {"state": "sent"}
    await source.tool.fresh(1)
    assert source.tool.etag(1) != etag
    await invalidate("order:2")
    assert source.tool.etag(2) is None

    @AgentCache("thing")
    async def thing() -> object:
        return lambda: None

    await thing()
    assert thing.etag() is None, "it has no identity"


async def test_the_trace_and_middleware_see_how_it_was_answered_and_the_etag(clock):
    source, seen = Source(), []

    async def observe(call: Any, proceed: Any) -> None:
        await proceed()
        seen.append((call.source, call.etag))

    @AgentCache("plain")
    async def plain() -> int:
        return 1

    with configure(middleware=[observe]):
        async with AgentCacheSession() as session, AgentCacheSession() as inner:
            for _ in range(3):
                await source.get()
            clock.advance(10)
            await source.get()
            await plain()
    etag = source.tool.etag(1)
    expected = [("miss", etag), ("hit", etag), ("hit", etag), ("validated", etag), ("miss", None)]
    for one, is_inner in ((session, True), (inner, False)):
        assert [(record.source, record.etag) for record in one.get_execution_trace()] == expected
        assert {record.is_inner for record in one.get_execution_trace()} == {is_inner}
        assert one.metrics.validated == 1
    assert seen == [("miss", etag), ("validated", etag), ("miss", None)]


def test_a_replay_counts_and_traces_it_as_it_was_recorded(clock, tmp_path):
    async def run() -> list[tuple[str, Any]]:
        source = Source(name=f"get_order {tmp_path}")
        async with AgentCacheSession() as session:
            await source.get()
            clock.advance(10)
            await source.get()
        assert source.runs == runs
        return [(record.source, record.etag) for record in session.get_execution_trace()]

    runs = 1
    with record(tmp_path / "run.jsonl"):
        recorded = asyncio.run(run())
    runs = 0
    with replay(tmp_path / "run.jsonl"):
        assert asyncio.run(run()) == recorded
    assert [source for source, _ in recorded] == ["miss", "validated"]
    assert get_metrics()["validated"] == 2


# With a tier


class Fleet:
    """Two processes with one tool each, on one server."""

    def __init__(self, **options: Any) -> None:
        server = MemoryServer()
        self.sources = [Source(remote_cache=MemoryTier(server), **options) for _ in range(2)]


@pytest.mark.parametrize("after", [{}, {"validate_after": 10, "ttl": 100}])
async def test_what_one_process_has_validated_others_take_without_a_question(clock, after):
    here, there = Fleet(**after).sources
    first = await here.get()
    assert await there.get() == first
    clock.advance(10)
    assert await here.get() == first
    assert await there.get() == first
    clock.advance(9)
    assert await there.get() == first
    assert (here.runs, there.runs, len(here.asked), len(there.asked)) == (1, 0, 1, 0)


async def test_of_a_fleet_that_shares_loads_one_process_asks(clock):
    gate = Gate()
    options = {"validate": lambda previous, order_id: gate(), "remote": RemotePolicy(flight="fleet")}
    here, there = Fleet(**options).sources
    await here.get()
    await there.get()
    clock.advance(10)
    calls = [await started(source.get()) for source in (here, there)]
    assert len(gate.calls) == 1
    gate.last.returns(True)
    assert [(await call)["run"] for call in calls] == [1, 1]
    assert len(gate.calls) == 1
    assert (here.runs, there.runs) == (1, 0)


@pytest.mark.parametrize("grace", [{"remote": RemotePolicy(grace=5)}, {"grace": 5}], ids=["tier", "local too"])
async def test_within_the_grace_the_question_is_asked_behind_the_answer_once_for_all(clock, grace):
    here, there = Fleet(**grace).sources
    for source in (here, there, here):
        assert (await source.get())["run"] == 1
        clock.advance(5)
    await idle()
    assert (await there.get())["run"] == 1
    assert (here.runs, there.runs, len(here.asked), len(there.asked)) == (1, 0, 1, 0)


async def test_a_write_of_another_process_wins(clock):
    here, there = Fleet().sources
    await here.get()
    await there.get()
    clock.advance(10)

    @AgentCacheInvalidator("order:{order_id}", remote_cache=there.tool.__agent_cache__.own_tiers[0])
    async def change(order_id: int) -> None:
        pass

    await change(1)
    assert (await here.get())["run"] == 2
    assert here.asked == []
