"""Tags that only the result tells: of reads, and of writes that succeed, fail or say that nothing has happened."""

from __future__ import annotations

from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, tags_from
from tests.harness.gates import Gate, cancelled, started

pytestmark = pytest.mark.usefixtures("nothing_left")


class Rejected(Exception):
    """The store's definite refusal."""


class Users:
    """Users that are looked up by name, so that only the answer says whose they are."""

    def __init__(self, resource: Any = "user:{result[id]}", **options: Any) -> None:
        self.ids: dict[str, str | None] = {"ann": "1", "bob": "2", "nobody": None}
        self.version = 0
        self.loads: list[str] = []
        self.gate = Gate()

        @AgentCache("user:{result[id]}")
        async def find(name: str) -> dict[str, Any]:
            self.loads.append(name)
            return {"id": self.ids[name], "version": self.version}

        @AgentCache("user")
        async def everyone() -> int:
            self.loads.append("all")
            return self.version

        @AgentCacheInvalidator(resource, **options)
        async def change(hint: str = "") -> Any:
            return await self.gate(hint)

        self.find, self.everyone, self.change = find, everyone, change

    async def warm(self) -> None:
        """Have everything kept."""
        for name in self.ids:
            await self.find(name)
        await self.everyone()
        self.loads.clear()

    async def dropped(self) -> list[str]:
        """Read everything; tell what had to be loaded."""
        self.loads.clear()
        for name in self.ids:
            await self.find(name)
        await self.everyone()
        return self.loads

    async def end(self, outcome: Any, hint: str = "") -> None:
        """Let a write return, or raise what it is given."""
        writer = await started(self.change(hint))
        self.version += 1
        if isinstance(outcome, Exception):
            self.gate.last.raises(outcome)
            with pytest.raises(type(outcome)):
                await writer
        else:
            self.gate.last.returns(outcome)
            await writer


async def test_success_drops_the_one_entity_and_what_depends_on_all():
    """Bob stays; Ann, the list, and the answer that named nobody are asked for again."""
    users = Users()
    await users.warm()
    await users.end({"id": "1"})
    assert await users.dropped() == ["ann", "nobody", "all"]


async def test_failure_drops_the_whole_root():
    """Nobody knows whom it would have named."""
    users = Users()
    await users.warm()
    await users.end(Rejected())
    assert await users.dropped() == ["ann", "bob", "nobody", "all"]


async def test_a_failure_that_says_nothing_was_changed_drops_nothing():
    """`no_effect=` names such exceptions; subclasses count."""

    class Refused(Rejected):
        pass

    users = Users(no_effect=(Rejected,))
    await users.warm()
    await users.end(Refused())
    assert await users.dropped() == []


async def test_a_failure_without_effect_still_drops_what_the_arguments_name():
    """`no_effect` is about the tags that only the result tells."""
    users = Users(["user:{hint}", "user:{result[id]}"], no_effect=(Rejected,))
    await users.warm()
    await users.end(Rejected(), hint="2")
    assert await users.dropped() == ["bob", "nobody", "all"]


async def test_a_computed_tag_of_the_arguments_survives_a_failure():
    """The first form of `tags_from` is evaluated before the call: a write that then fails names its entity alone."""
    users = Users(tags_from("user", lambda arguments: [arguments["hint"]]))
    await users.warm()
    await users.end(Rejected(), hint="1")
    assert await users.dropped() == ["ann", "nobody", "all"]


async def test_several_ids_may_come_out_of_a_result():
    """Every id that the function gives is dropped, and nothing else."""
    users = Users(tags_from("user", lambda arguments, result: result["ids"]))
    users.ids["cid"] = "3"
    await users.warm()
    await users.end({"ids": ["1", 3]})
    assert await users.dropped() == ["ann", "nobody", "cid", "all"]


@pytest.mark.parametrize(
    ("resource", "result"),
    [("user:{result[id]}", {"id": None}), (tags_from("user", lambda arguments, result: result), ())],
    ids=["template", "function"],
)
async def test_a_result_without_an_id_has_touched_no_entity(resource, result):
    """Ann and Bob stay; what depends on all of them goes."""
    users = Users(resource)
    await users.warm()
    await users.end(result)
    assert await users.dropped() == ["nobody", "all"]


@pytest.mark.parametrize(
    "resource",
    ["user:{result[id]}", tags_from("user", lambda arguments, result: result["id"])],
    ids=["template", "function"],
)
async def test_a_result_that_tags_cannot_be_made_of_drops_the_root(resource):
    """The write itself succeeds; its caller sees no error of the cache."""
    users = Users(resource)
    await users.warm()
    await users.end("no mapping at all")
    assert await users.dropped() == ["ann", "bob", "nobody", "all"]


async def test_while_it_runs_what_is_kept_is_served_and_what_is_loaded_is_kept_until_it_ends():
    """It may name anything under its root, but nothing is known to be old yet. What it names is older than its end."""
    users = Users()
    await users.find("ann")
    writer = await started(users.change())
    await users.find("ann")
    assert users.loads == ["ann"]
    await users.find("bob")
    await users.find("bob")
    assert users.loads == ["ann", "bob"]
    users.gate.last.returns({"id": "2"})
    await writer
    assert await users.dropped() == ["bob", "nobody", "all"]
    assert await users.dropped() == []


async def test_a_load_that_it_overlaps_is_not_kept_if_it_turns_out_to_name_it():
    """Begun before it, or while it runs; ended before it, or after it."""
    gate, change = Gate(), Gate()

    @AgentCache("user:{result}")
    async def find(name: str, id: str) -> str:
        await gate()
        return id

    @AgentCacheInvalidator("user:{result}")
    async def write() -> str:
        return await change()

    loads = [await started(find("before it", id)) for id in "12"]
    writer = await started(write())
    for name in ("in it", "beyond it"):
        loads += [await started(find(name, id)) for id in "12"]
    for load, call in list(zip(loads, gate.calls, strict=True))[:4]:
        call.returns(None)
        await load
    change.last.returns("1")
    await writer
    for load, call in list(zip(loads, gate.calls, strict=True))[4:]:
        call.returns(None)
        await load
    names = ("before it", "in it", "beyond it")
    assert [find.contains(name, "1") for name in names] == [False] * 3
    assert [find.contains(name, "2") for name in names] == [True] * 3


@pytest.mark.parametrize("changed", ["1", "2"])
async def test_a_load_under_way_is_kept_if_its_result_is_not_what_was_written(changed):
    """The paths written during a load are compared with its tags when these are known."""
    gate = Gate()
    loads = 0

    @AgentCache("user:{result}")
    async def find(name: str) -> str:
        nonlocal loads
        loads += 1
        await gate()
        return "1"

    @AgentCacheInvalidator("user:{id}")
    async def change(id: str) -> None:
        pass

    reader = await started(find("ann"))
    await change(changed)
    gate.last.returns(None)
    await reader
    if changed == "1":
        again = await started(find("ann"))
        gate.last.returns(None)
        await again
    else:
        await find("ann")
    assert loads == (2 if changed == "1" else 1)


async def test_a_load_during_which_too_much_was_written_to_remember_is_not_kept(monkeypatch: pytest.MonkeyPatch):
    """What is known of writes is bounded; what is older than that counts as outdated, not as clean."""
    monkeypatch.setattr("agent_cache.core.versions.GENERATION", 100)
    gate = Gate()

    @AgentCache("user:{result}")
    async def find(name: str) -> str:
        await gate()
        return "1"

    @AgentCacheInvalidator("user:{id}")
    async def change(id: str) -> None:
        pass

    reader = await started(find("ann"))
    for number in range(2, 300):
        await change(str(number))
    gate.last.returns(None)
    await reader
    again = await started(find("ann"))
    assert len(gate.calls) == 2
    gate.last.returns(None)
    await again


async def test_a_read_whose_tags_cannot_be_made_is_answered_and_not_kept():
    """No guess: what depends on nobody knows what is not stored."""
    loads = 0

    @AgentCache("user:{result[id]}")
    async def find(name: str) -> str:
        nonlocal loads
        loads += 1
        return "no mapping at all"

    assert [await find("ann") for _ in range(2)] == ["no mapping at all"] * 2
    assert loads == 2


async def test_a_parameter_that_is_called_result_wins():
    """`{result}` is then the argument: known before the call, and compared while the load runs."""
    loads = 0

    @AgentCache("user:{result}")
    async def find(result: str) -> str:
        nonlocal loads
        loads += 1
        return "something else"

    @AgentCacheInvalidator("user:{id}")
    async def change(id: str) -> None:
        pass

    await find("1")
    await change("something else")
    await find("1")
    assert loads == 1
    await change("1")
    await find("1")
    assert loads == 2


async def test_a_write_that_is_lost_in_a_late_tag_spoils_loads_under_way():
    """Its cancellation drops the root: a load that overlaps it is not kept, whatever it returns."""
    users = Users()
    gate = Gate()

    @AgentCache("user:{result}")
    async def slow(name: str) -> str:
        await gate()
        return "2"

    writer = await started(users.change())
    reader = await started(slow("bob"))
    await cancelled(writer)
    late = await started(slow("bob"))
    assert len(gate.calls) == 2
    for held in gate.calls:
        held.returns(None)
    assert (await reader, await late) == ("2", "2")
    again = await started(slow("bob"))
    assert len(gate.calls) == 3
    gate.last.returns(None)
    await again
