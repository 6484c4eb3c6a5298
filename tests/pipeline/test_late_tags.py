"""Tags that only the result tells: of reads, and of writes that succeed, fail or say that nothing has happened."""

from __future__ import annotations

from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, tags_from
from tests.harness.gates import Gate, started

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
