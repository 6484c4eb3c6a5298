"""A recorded run is made again up to a call, and goes on live from there."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession, ConfigurationError
from agent_cache.recording import (
    Cassette,
    CassetteError,
    DivergenceError,
    Raised,
    WorldMovedError,
    diff_cassettes,
    fork,
    intercept,
    record,
    replay,
)
from agent_cache.resume import Journal


@dataclass
class Order:
    id: str
    status: str


class Shop:
    """A world, and an agent in it: it reads orders, asks a model, and does what that says."""

    def __init__(self) -> None:
        self.reset()
        shop = self

        @AgentCache("order:{order_id}", name="get_order")
        async def get_order(order_id: str) -> Order:
            shop.made.append(f"get {order_id}")
            await asyncio.sleep(0)
            return Order(order_id, shop.orders[order_id])

        @AgentCacheInvalidator("order:{order_id}", name="cancel")
        async def cancel(order_id: str) -> str:
            shop.made.append(f"cancel {order_id}")
            if shop.orders[order_id] == "delivered":
                raise ValueError("is delivered")
            shop.orders[order_id] = "cancelled"
            return f"cancelled {order_id}"

        @intercept(name="think", kind="llm")
        async def think(prompt: str) -> str:
            shop.made.append(f"think {prompt}")
            return shop.says.get(prompt, "nothing")

        self.get_order, self.cancel, self.think = get_order, cancel, think

    def reset(self) -> None:
        from agent_cache.testing import reset

        reset()
        self.orders = {"W1": "pending", "W2": "pending", "W3": "delivered"}
        self.says = {"W1 is pending": "cancel", "W2 is pending": "cancel", "W2 is lost": "nothing"}
        self.made: list[str] = []

    async def handle(self, order_id: str) -> str:
        """Read, think, and perhaps write: three calls of one task."""
        order = await self.get_order(order_id)
        if await self.think(f"{order_id} is {order.status}") == "cancel":
            try:
                return await self.cancel(order_id)
            except ValueError as error:
                return str(error)
        return "left alone"

    async def run(self) -> list[str]:
        return [await self.handle("W1"), await self.handle("W2")]


GET_1, THINK_1, CANCEL_1, GET_2, THINK_2, CANCEL_2 = range(1, 7)


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
async def original(shop: Shop, path: Path) -> Path:
    with record(path):
        assert await shop.run() == ["cancelled W1", "cancelled W2"]
    assert [call.name for call in Cassette.load(path)] == ["get_order", "think", "cancel"] * 2
    shop.reset()
    return path


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "branch.jsonl"


# Worlds


async def test_a_write_that_has_another_outcome_in_the_sandbox_ends_the_run(shop, original, to):
    shop.orders["W1"] = "delivered"
    with pytest.raises(DivergenceError, match=r"call 3, cancel.*another outcome than in the original"):
        async with fork(original, at=THINK_2, to=to, world="sandbox"):
            await shop.run()
    assert "think W2 is pending" not in shop.made
    assert [call.outcome.keys() for call in Cassette.load(to)][2] == {"error"}, "what happened is recorded"


# What comes before the fork


async def test_calls_that_enclose_the_fork_run_and_those_before_it_inside_of_them_do_not(shop, path, to, tmp_path):
    @intercept(name="step")
    async def step(order_id: str) -> str:
        return await shop.handle(order_id)

    async def run() -> list[str]:
        return [await step("W1"), await step("W2")]

    with record(path):
        await run()
    shop.made.clear()
    with fork(path, at=7, to=to, world="as_is") as branch:
        assert await run() == ["cancelled W1", "cancelled W2"]
    assert shop.made == ["think W2 is pending", "cancel W2"]
    assert branch.saved.calls == 2, "the first step, and the read in the second one"
    assert diff_cassettes(path, to).identical
    to.unlink()
    shop.reset()
    with fork(path, at=5, to=to, world="as_is", edits={1: "refused"}):
        assert await run() == ["refused", "cancelled W2"]
    counts = fork(path, at=5, to=tmp_path / "2.jsonl", world="sandbox", edits={1: "refused"}).counts
    assert counts == {"answered": 1, "edited": 1, "repeated": 0}
    names = [call.name for call in Cassette.load(to)]
    assert names == ["step", "step", "get_order", "think", "cancel"], "what an edited call has enclosed was not made"


async def test_a_cached_read_that_encloses_the_fork_runs_and_what_it_makes_of_an_edit_is_not_cached(shop, path, to):
    @AgentCache("advice:{order_id}", name="advice")
    async def advice(order_id: str) -> str:
        order = await shop.get_order(order_id)
        return f"{order.status}: {await shop.think(order_id)}"

    with record(path):
        assert await advice("W1") == "pending: nothing"
    with fork(path, at=3, to=to, edits={2: Order("W1", "lost")}):
        assert await advice("W1") == "lost: nothing"
    assert await advice("W1") == "pending: nothing"


async def test_a_run_that_does_something_else_before_the_fork_or_ends_there_has_diverged(shop, original, to):
    with (
        pytest.raises(DivergenceError, match="would run before call 6 is reached") as caught,
        fork(original, at=CANCEL_2, to=to, world="as_is"),
    ):
        await shop.get_order("W1")
        await shop.cancel("W3")
    assert "The first is call 2, think(prompt='W1 is pending')" in str(caught.value)
    to.unlink()
    with (
        pytest.raises(
            DivergenceError, match=r"ended before the fork: 2 calls.*the first is call 4, get_order"
        ) as caught,
        fork(original, at=CANCEL_2, to=to, world="as_is"),
    ):
        await shop.handle("W1")
    assert (caught.value.call_id, len(Cassette.load(to))) == (GET_2, 3)
    to.unlink()
    ended = pytest.raises(DivergenceError, match=r"before the end of the recording were not made, the first is call 2")
    with ended as caught, fork(original, at=None, to=to):
        await shop.get_order("W1")
    assert caught.value.call_id == 2
    assert shop.made == []


# Edits


class Vanished(Exception):
    """Is not found under its name."""

    __qualname__ = "Nowhere"


@pytest.mark.parametrize(
    ("number", "edit", "text"),
    [
        (THINK_1, object(), "is a object, which cannot be written down"),
        (THINK_1, Raised(Vanished()), "call 2, think, raises an exception that cannot be written down"),
        (THINK_2, "cancel", "the edit of call 5, think, can have no effect"),
        (CANCEL_2, "cancelled", "can have no effect"),
        (7, "x", "there is no call 7"),
        ("2", "x", "edits must map ids of calls"),
        (GET_1, {"id": "W1"}, "edit of call 1, get_order, does not fit what the function returns"),  # when it is made
    ],
)
async def test_an_edit_that_cannot_work_is_refused_before_anything_runs(shop, original, to, number, edit, text):
    with (
        pytest.raises((ConfigurationError, CassetteError), match=text),
        fork(original, at=THINK_2, to=to, world="as_is", edits={number: edit}),
    ):
        await shop.run()
    assert shop.made == []


# Arguments


async def test_a_branch_replaces_no_file_and_a_run_that_is_being_recorded_is_not_forked(shop, original, to, tmp_path):
    block = fork(original, at=2, to=to, world="as_is")
    to.write_text("mine")
    with pytest.raises(CassetteError, match="exists: a branch replaces no file"), block:
        pass
    assert to.read_text() == "mine"
    foreign = tmp_path / "foreign.json"
    foreign.write_text('{"version": 1, "steps": [{"name": "ask", "arguments": {"args": [], "kwargs": {}}}]}')
    for call, reason in (
        (lambda: fork(foreign, at=None, to=tmp_path / "2.jsonl"), "recorded by agentcassette.* cannot be forked"),
        (lambda: fork("", at=None, to=tmp_path / "2.jsonl"), "^fork: cassette must be a path"),
        (lambda: fork(original, at="5", to=tmp_path / "2.jsonl"), "at must be the id of a call"),
        (lambda: fork(original, at=True, to=tmp_path / "2.jsonl"), "at must be the id of a call"),
        (lambda: fork(original, at=THINK_2, to=tmp_path / "2.jsonl"), r"already:\n    call 6: cancel\(order_id='W2'\)"),
    ):
        with pytest.raises((CassetteError, ConfigurationError), match=reason):
            call()
    with record(tmp_path / "other.jsonl"):
        await shop.handle("W1")
        with pytest.raises(CassetteError, match="is being recorded; fork it when that has ended"):
            fork(tmp_path / "other.jsonl", at=2, to=tmp_path / "2.jsonl", world="as_is")


async def test_secrets_are_removed_from_a_branch_as_from_its_original(path, to):
    @intercept(name="login")
    async def login(user: str, password: str) -> dict[str, str]:
        return {"user": user, "pin": "4711"}

    with record(path, redact=["pin"]):
        await login("ann", password="hunter2hunter2")
        await login("bob", password="hunter2hunter2")
    with fork(path, at=2, to=to, edits={1: {"user": "eve", "pin": "0815"}}):
        assert await login("ann", password="another-one-2") == {"user": "eve", "pin": "[redacted]"}
        assert await login("bob", password="another-one-2") == {"user": "bob", "pin": "4711"}
    text = to.read_text()
    assert "0815" not in text
    assert "4711" not in text
    assert "another-one-2" not in text


# Tasks and threads


async def test_a_call_that_was_cancelled_by_what_came_after_the_fork_runs(path, to):
    fails = [True]
    made: list[str] = []
    other = asyncio.Event()

    @intercept(name="wait")
    async def wait() -> str:
        made.append("wait")
        await other.wait()
        return "waited"

    @intercept(name="fail")
    async def fail() -> str:
        made.append("fail")
        if fails[0]:
            raise ValueError("no")
        other.set()
        return "fine"

    async def run() -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(wait()), group.create_task(fail())]
        return [task.result() for task in tasks]

    with pytest.raises(ExceptionGroup), record(path):
        await run()
    waited, failed = sorted(Cassette.load(path), key=lambda call: call.started_ms)
    assert waited.outcome == {"cancelled": True}
    fails[0] = False
    made.clear()
    with fork(path, at=failed.id, to=to):
        assert await run() == ["waited", "fine"]
    assert made == ["wait", "fail"]


async def test_an_edited_model_calls_other_tools_each_in_a_task_of_its_own(shop, path, to):
    """The usual fork of an agent in a framework: what the model asked for last is something else."""
    says = {"turn 1": "W1 W2", "turn 2": "W1", "turn 3": ""}
    shop.says = says

    async def agent() -> None:
        for turn in itertools.count(1):
            wanted = (await shop.think(f"turn {turn}")).split()
            if not wanted:
                return
            await asyncio.gather(*(asyncio.create_task(shop.get_order(order_id)) for order_id in wanted))

    with record(path):
        await agent()
    names = [(call.id, call.name, call.arguments) for call in Cassette.load(path)]
    turn_2 = next(number for number, _, arguments in names if arguments == {"prompt": "turn 2"})
    shop.reset()
    shop.says = says
    with fork(path, at=turn_2 + 1, edits={turn_2: "W3 W2"}, to=to):
        await agent()
    assert shop.made == ["get W3", "get W2", "think turn 3"]
    with replay(to, strict=True):
        await agent()
    assert len(shop.made) == 3


async def test_before_the_fork_a_thread_without_a_context_makes_no_call(path, to):
    made: list[int] = []

    @intercept(name="work")
    def work(number: int) -> int:
        made.append(number)
        return number

    with record(path):
        work(1)
        work(2)
    made.clear()
    with (
        ThreadPoolExecutor(1) as pool,
        pytest.raises(CassetteError, match="was called in a thread before the fork"),
        fork(path, at=2, to=to),
    ):
        with pytest.raises(CassetteError):
            pool.submit(work, 3).result()
        work(1)
        work(2)
    assert made == []


# Journals


async def journaled(shop: Shop, folder: Path, *, is_killed: bool) -> Path:
    """The journal of a run, which may be killed before its end."""
    with contextlib.suppress(KeyboardInterrupt):
        async with AgentCacheSession("s1", journal=Journal(folder)):
            await shop.handle("W1")
            await shop.get_order("W2")
            if is_killed:
                raise KeyboardInterrupt
    shop.reset()
    return folder / "s1.jsonl"


@pytest.mark.parametrize("is_killed", [True, False])
async def test_a_journal_is_forked_as_a_recording_is(shop, tmp_path, to, is_killed):
    path = await journaled(shop, tmp_path / "journals", is_killed=is_killed)
    with fork(path, at=4, to=to, world="sandbox") as branch:
        assert await shop.handle("W1") == "cancelled W1"
        await shop.get_order("W2")
    assert shop.made == ["cancel W1", "get W2"]
    assert diff_cassettes(path, to).identical
    assert branch.cassette.header.forked_from["path"] == path.name


async def test_a_write_that_a_killed_process_had_begun_may_have_been_made(shop, tmp_path, to):
    path = await journaled(shop, tmp_path / "journals", is_killed=True)
    *lines, cancelled, _ = path.read_bytes().splitlines(keepends=True)
    assert b"cancel" in cancelled
    path.write_bytes(b"".join(lines))  # as if the process had been killed in the middle of the write
    with pytest.raises(WorldMovedError, match=r"may have already:\n    call 3: cancel\(order_id='W1'\)"):
        fork(path, at=None, to=to)
    with fork(path, at=None, to=to, world="as_is"):
        await shop.handle("W1")
    assert shop.made == ["cancel W1"]


async def test_what_is_inside_of_a_call_in_which_the_process_was_killed_is_made_again_with_it(shop, tmp_path, to):
    is_killed, part = [True], intercept(shop.handle, name="part")

    @intercept(name="step")
    async def step(order_id: str) -> str:
        done = await part(order_id)
        if order_id == "W2" and is_killed.pop():
            raise KeyboardInterrupt
        return done

    async def run() -> list[str]:
        return [await step("W1"), await step("W2")]

    with contextlib.suppress(KeyboardInterrupt):
        async with AgentCacheSession("s1", journal=Journal(tmp_path)):
            await run()
    shop.reset()
    is_killed.append(False)
    with pytest.raises(WorldMovedError, match=r"made a write.*may have already:\n    call 10: cancel\(order_id='W2'\)"):
        fork(tmp_path / "s1.jsonl", at=None, to=to)
    with fork(tmp_path / "s1.jsonl", at=None, to=to, world="sandbox"):
        assert await run() == ["cancelled W1", "cancelled W2"]
    assert shop.made == ["cancel W1", "get W2", "think W2 is pending", "cancel W2"]
