"""Writes: what they drop by their arguments and by their result, what a failure leaves in doubt, and what they read.

In which order reads and writes come, and what is kept meanwhile: `tests/properties`.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, tags_from, writing
from tests.harness.gates import Gate, cancelled, expire, idle, started

pytestmark = pytest.mark.usefixtures("nothing_left")

DOUBT = 5.0


class Rejected(Exception):
    """The store's definite refusal."""


class Refused(Rejected):
    """A kind of it."""


class Lost(Exception):
    """Some client's own word for a request without an answer."""


class Users:
    """Users that are looked up by name, so that only the answer says whose they are, and one write of them."""

    def __init__(self, resource: Any = "user:{id}", **options: Any) -> None:
        self.ids: dict[str, str | None] = {"ann": "1", "bob": "2", "cid": "3", "nobody": None}
        self.loads: list[str] = []
        self.gate = Gate()

        @AgentCache("user:{result[id]}")
        async def find(name: str) -> dict[str, Any]:
            self.loads.append(name)
            return {"id": self.ids[name]}

        @AgentCache("user")
        async def everyone() -> list[str]:
            self.loads.append("all")
            return [*self.ids]

        @AgentCacheInvalidator(resource, **options)
        async def change(id: str = "") -> Any:
            return await self.gate(id)

        self.find, self.everyone, self.change = find, everyone, change

    async def read_all(self) -> list[str]:
        """Read everything; tell what had to be loaded."""
        self.loads.clear()
        for name in self.ids:
            await self.find(name)
        await self.everyone()
        return self.loads

    async def end(self, outcome: Any, id: str = "1") -> None:
        """Let a write return, or raise what it is given."""
        writer = await started(self.change(id))
        if isinstance(outcome, BaseException):
            self.gate.last.raises(outcome)
            with pytest.raises(type(outcome)):
                await writer
        else:
            self.gate.last.returns(outcome)
            await writer

    async def is_kept(self, name: str = "ann") -> bool:
        """Whether what is read now is there for the next reader."""
        await self.find(name)
        self.loads.clear()
        await self.find(name)
        return not self.loads


# Tags

BY_RESULT = "user:{result[id]}"
BY_FUNCTION = tags_from("user", lambda arguments, result: result["ids"])


@pytest.mark.parametrize(
    ("resource", "outcome", "dropped"),
    [
        (BY_FUNCTION, {"ids": ["1", 3]}, "ann cid nobody all"),
        (BY_RESULT, {"id": None}, "nobody all"),
        (BY_FUNCTION, {"ids": ()}, "nobody all"),
        (BY_RESULT, "no mapping at all", "ann bob cid nobody all"),
        (BY_FUNCTION, "no mapping at all", "ann bob cid nobody all"),
    ],
)
async def test_a_write_drops_what_its_result_names(resource, outcome, dropped):
    """Every id; without one nobody's in particular; and the root, if tags cannot be made of it."""
    users = Users(resource)
    await users.read_all()
    await users.end(outcome)
    assert await users.read_all() == dropped.split()


@pytest.mark.parametrize(
    ("resource", "outcome", "dropped"),
    [
        (BY_RESULT, Rejected(), "ann bob cid nobody all"),
        (BY_RESULT, Refused(), ""),  # `no_effect=` names it
        (["user:{id}", BY_RESULT], Refused(), "bob nobody all"),
        (tags_from("user", lambda arguments: [arguments["id"]]), Rejected(), "bob nobody all"),
    ],
)
async def test_a_write_that_failed_drops_what_it_may_have_touched(resource, outcome, dropped):
    """What its arguments name, and the root of what only its result tells, unless nothing has happened."""
    users = Users(resource, no_effect=(Refused,))
    await users.read_all()
    await users.end(outcome, "2")
    assert await users.read_all() == dropped.split()


async def test_a_load_under_way_is_kept_if_its_result_is_not_what_was_written():
    """The paths written during a load are compared with its tags when these are known."""
    gate, runs = Gate(), 0

    @AgentCache("user:{result}")
    async def find(name: str) -> str:
        nonlocal runs
        runs += 1
        return await gate()

    for changed in ("1", "2"):
        reader = await started(find(changed))
        await Users().end(None, changed)
        gate.last.returns("1")
        await reader
        assert find.contains(changed) is (changed == "2")


async def test_a_read_whose_tags_cannot_be_made_is_answered_and_not_kept():
    """No guess: what depends on nobody knows what is not stored."""

    @AgentCache(BY_RESULT)
    async def find(name: str) -> str:
        return "no mapping at all"

    assert await find("ann") == "no mapping at all"
    assert not find.contains("ann")


async def test_a_parameter_that_is_called_result_wins():
    """`{result}` is then the argument: known before the call, and compared while the load runs."""

    @AgentCache("user:{result}")
    async def find(result: str) -> str:
        return "2"

    await find("1")
    await Users().end(None, "2")
    assert find.contains("1")
    await Users().end(None, "1")
    assert not find.contains("1")


async def test_the_tags_of_a_write_are_those_of_its_arguments_before_it_changes_them():
    """A write tool that mutates what it was given still names what it was called for."""
    users = Users()

    @AgentCacheInvalidator("user:{user[id]}")
    async def change(user: dict[str, str]) -> None:
        user["id"] = "another"

    await users.read_all()
    await change({"id": "1"})
    assert await users.read_all() == ["ann", "nobody", "all"]


# Doubt


def from_cause(error: Exception) -> Exception:
    raised = RuntimeError("wrapped")
    raised.__cause__ = error
    return raised


def from_context(error: Exception) -> Exception:
    raised = RuntimeError("while handling")
    raised.__context__ = error
    return raised


def from_a_hidden_context(error: Exception) -> Exception:
    raised = from_context(error)
    raised.__suppress_context__ = True
    return raised


WRAPPINGS = {
    "plain": lambda error: error,
    "from a cause": from_cause,
    "from a context": from_context,
    "from a hidden context": from_a_hidden_context,
    "from deep down": lambda error: from_cause(from_context(from_cause(error))),
}


@pytest.mark.parametrize("wrapped", WRAPPINGS)
async def test_an_error_says_whether_a_write_may_still_take_effect(clock, wrapped):
    """A timeout and a lost connection do, as they are or anywhere among its causes, and what `in_doubt=` names."""
    for error in (TimeoutError(), OSError(), ConnectionResetError(), Lost()):
        users, others = Users(in_doubt=(Lost,)), Users()
        await users.end(WRAPPINGS[wrapped](error))
        assert not await users.is_kept()
        clock.advance(DOUBT + 0.1)
        assert await users.is_kept()
        await others.end(WRAPPINGS[wrapped](error))
        assert await others.is_kept() is isinstance(error, Lost)
        clock.advance(DOUBT + 0.1)


async def test_a_ring_of_causes_is_walked_once():
    one, other = Rejected(), Rejected()
    one.__cause__, other.__cause__ = other, one
    users = Users(settle=30)
    await users.end(one)
    assert await users.is_kept(), "a definite failure: nothing is in doubt, and nothing settles"


@pytest.mark.parametrize("how", ["a timeout around it", "cancelled twice", "its coroutine is closed"])
async def test_a_write_that_was_stopped_is_in_doubt_for_as_long_as_the_tool_says(how, clock):
    users, timeout = Users(doubt=60), asyncio.timeout(None)

    async def impatient() -> None:
        async with timeout:
            await users.change("1")

    if how == "its coroutine is closed":
        write = users.change("1")
        write.send(None)
        write.close()
    else:
        task = await started(impatient())
        if how == "cancelled twice":
            task.cancel()
            await asyncio.sleep(0)
            await cancelled(task)
        else:
            await expire(timeout)
        assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], BaseException)
    clock.advance(59)
    assert not await users.is_kept()
    clock.advance(2)
    assert await users.is_kept()


async def test_a_write_that_is_cancelled_before_its_tool_runs_changes_nothing():
    """A task that never started has written nothing and holds nothing."""
    users = Users()
    await users.read_all()
    await cancelled(asyncio.ensure_future(users.change("1")))
    assert await users.read_all() == []


async def test_a_block_of_writing_is_a_write(clock):
    """It drops before, holds meanwhile, and drops again; cancelled it is in doubt."""
    users = Users()
    await users.read_all()

    async def change() -> None:
        async with writing("user:1"):
            await users.gate()

    for is_cancelled in (False, True):
        block = await started(change())
        assert not users.find.contains("ann")
        assert not await users.is_kept()
        if is_cancelled:
            await cancelled(block)
        else:
            users.gate.last.returns(None)
            await block
        assert await users.is_kept() is not is_cancelled
    clock.advance(DOUBT + 0.1)
    assert await users.is_kept()


# Inside of writes


async def test_a_write_may_read_what_it_writes_and_nothing_of_it_is_kept():
    version = 0

    @AgentCache("order:{id}")
    async def get(id: str) -> int:
        return version

    @AgentCacheInvalidator("order:{id}")
    async def increase(id: str) -> int:
        nonlocal version
        version = await get(id) + 1
        assert await get(id) == version
        return version

    assert [await increase("7") for _ in range(3)] == [1, 2, 3]
    assert await get("7") == 3


async def test_the_end_of_a_write_inside_of_a_write_does_not_end_the_outer_one():
    users, gate = Users(), Gate()

    @AgentCacheInvalidator("user:{id}")
    async def change_twice(id: str) -> None:
        await users.end(None, id)
        await gate()

    writer = await started(change_twice("1"))
    await idle()
    assert gate.running, "the inner one has ended"
    assert not await users.is_kept()
    gate.last.returns(None)
    await writer
    assert await users.is_kept()


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    """Refuses to have its traceback and its context set."""

    reason: str


async def test_an_error_that_refuses_changes_leaves_a_write_unchanged():
    """The write is ended as after any other error, and the caller gets what was raised."""
    users, error = Users(), Frozen("no")

    @AgentCacheInvalidator("user:{id}")
    async def refuse(id: str) -> None:
        raise error

    async def within_writing() -> None:
        async with writing("user:1"):
            raise error

    for attempt in (lambda: refuse("1"), within_writing):
        await users.read_all()
        with pytest.raises(Frozen) as caught:
            await attempt()
        assert caught.value is error
        assert await users.read_all() == ["ann", "nobody", "all"]


@pytest.mark.parametrize("followers", [0, 2])
@pytest.mark.parametrize("write", ["has ended", "still runs"])
@pytest.mark.parametrize("resource", ["order:{id}", "order:{result[id][0]}"])
async def test_a_result_that_a_write_keeps_from_being_stored_is_each_caller_s_own(followers, write, resource):
    """Whoever waits for it has a copy, as ever, and the next call loads anew."""
    answering, changing = Gate(), Gate()

    @AgentCache(resource)
    async def get(id: str) -> dict[str, list[int]]:
        await answering()
        return {"id": [7], "lines": []}

    @AgentCacheInvalidator("order:{id}")
    async def change(id: str) -> None:
        await changing()

    readers = [await started(get("7")) for _ in range(1 + followers)]
    writer = await started(change("7"))
    if write == "has ended":
        changing.last.returns(None)
        await writer
    answering.last.returns(None)
    answers = [await reader for reader in readers]
    assert len({id(answer["lines"]) for answer in answers}) == 1 + followers
    assert not get.contains("7")
    if write != "has ended":
        changing.last.returns(None)
        await writer
    await idle()
