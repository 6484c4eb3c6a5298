"""`restore`: hooks change the whole target or nothing of it."""

import asyncio
import collections
import copy
import dataclasses
import functools
import itertools
import types
from typing import Any

import msgspec
import pytest

from agent_cache.errors import CheckpointError, RestoreError
from agent_cache.recording import Redaction
from agent_cache.resume import (
    Checkpoint,
    CustomState,
    LangChainState,
    OpenAIAgentsState,
    register_restore_hook,
    restore,
)
from agent_cache.resume.checkpoints import checkpoint_line, checkpoint_of

_numbers = itertools.count()


@pytest.fixture
def hooked():
    """Restore into a target with these hooks, which are registered for a framework of their own."""
    removers = []

    async def restored(target: Any, *hooks: Any, **data: Any) -> Any:
        framework = f"restored-{next(_numbers)}"
        removers.extend(register_restore_hook(framework, hook) for hook in hooks)
        return await restore(checkpoint(CustomState(data, framework)), target)

    yield restored
    for remove in removers:
        remove()


def checkpoint(state: Any) -> Checkpoint:
    return Checkpoint(session_id="s", sequence=1, state=state)


class Agent:
    def __init__(self) -> None:
        self.messages = ["old"]
        self.steps: dict[str, Any] = {"a": [1]}
        self.plan = "old"
        self.lock = asyncio.Lock()
        self.pushed = 1
        self._limit = 5

    def push(self, message: str) -> None:
        self.messages.append(message)
        self.pushed += 1

    @property
    def limit(self) -> int:
        return self._limit

    @limit.setter
    def limit(self, value: int) -> None:
        if value < 0:
            raise ValueError("limit")
        self._limit = value


class Slotted:
    __slots__ = ("__secret", "messages", "unset")

    def __init__(self) -> None:
        self.messages = ["old"]
        self.__secret = 1

    def tell(self, value: int) -> None:
        self.__secret = value

    def told(self) -> int:
        return self.__secret


def contents(target: Any) -> Any:
    """All that an agent has, with the identity of what is not copied."""
    return copy.deepcopy({name: value for name, value in vars(target).items() if name != "lock"}), target.lock


def assigns(state, target):
    target.messages = ["new"]


def changes_in_place(state, target):
    target.messages.append("new")
    target.steps["a"].append(2)


def calls_a_method(state, target):
    target.push("new")


def sets_a_property(state, target):
    target.limit = 7
    assert target.limit == 7


def updates_its_dict(state, target):
    vars(target).update(plan="new", more=1)
    del target.pushed


CHANGES = [assigns, changes_in_place, calls_a_method, sets_a_property, updates_its_dict]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_hook_that_fails_in_the_middle_leaves_the_target_as_it_was(hooked, change, is_async):
    def fails(state, target):
        change(state, target)
        raise RuntimeError("in the middle")

    async def fails_later(state, target):
        await asyncio.sleep(0)
        fails(state, target)

    target = Agent()
    before, identities = contents(target), {name: id(value) for name, value in vars(target).items()}
    with pytest.raises(RestoreError, match="in the middle") as caught:
        await hooked(target, fails_later if is_async else fails)
    assert contents(target) == before
    assert {name: id(value) for name, value in vars(target).items()} == identities
    assert [type(error) for error in caught.value.errors] == [RuntimeError]


async def test_a_cancelled_hook_leaves_the_target_as_it_was(hooked):
    target, begun = Agent(), asyncio.Event()

    async def hangs(state, target):
        target.messages.append("new")
        target.plan = "new"
        begun.set()
        await asyncio.Event().wait()

    before = contents(target)
    task = asyncio.create_task(hooked(target, hangs))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert contents(target) == before
    await hooked(target, assigns)
    assert target.messages == ["new"]


async def test_slots_are_restored(hooked):
    def change(state, target):
        target.messages.append("new")
        target.tell(2)
        target.unset = 1

    target = Slotted()
    await hooked(target, change)
    assert (target.messages, target.told(), target.unset) == (["old", "new"], 2, 1)

    def removes(state, target):
        del target.unset

    await hooked(target, removes)
    assert not hasattr(target, "unset")

    def fails(state, target):
        change(state, target)
        target.messages = []
        raise RuntimeError

    target = Slotted()
    with pytest.raises(RestoreError):
        await hooked(target, fails)
    assert (target.messages, target.told(), hasattr(target, "unset")) == (["old"], 1, False)


async def test_a_new_object_takes_the_place_of_the_target(hooked):
    target = Agent()
    before = contents(target)

    async def makes(state, target):
        target.plan = "changed"
        made = Agent()
        made.plan = state.data["plan"]
        return made

    made = await hooked(target, makes, plan="new")
    assert made is not target
    assert made.plan == "new"
    assert contents(target) == before
    assert (await hooked(None, makes_from_nothing := lambda state, _: dict(state.data), x=1)) == {"x": 1}
    assert makes_from_nothing


async def test_hooks_run_in_order_and_all_errors_are_reported(hooked):
    ran = []

    def hook(name, *, fails):
        def run(state, target):
            ran.append(name)
            target.messages.append(name)
            if fails:
                raise ValueError(name)

        return run

    target = Agent()
    await hooked(target, hook("a", fails=False), hook("b", fails=False))
    assert target.messages == ["old", "a", "b"]
    with pytest.raises(RestoreError) as caught:
        await hooked(target, hook("c", fails=True), hook("d", fails=False), hook("e", fails=True))
    assert ran == ["a", "b", "c", "d", "e"]
    assert [str(error) for error in caught.value.errors] == ["c", "e"]
    assert caught.value.__cause__ is caught.value.errors[0]
    assert target.messages == ["old", "a", "b"]


async def test_what_is_frozen_takes_no_attributes_and_its_content_is_put_back(hooked):
    kind = dataclasses.make_dataclass("Frozen", ["messages", ("plan", str, "old")], frozen=True)
    target = kind(["old"])
    with pytest.raises(RestoreError):
        await restore(checkpoint({"plan": "new"}), target)

    def fails(state, target):
        target.messages.append("new")
        raise RuntimeError

    with pytest.raises(RestoreError):
        await hooked(target, fails)
    assert target == kind(["old"])


async def test_models_of_pydantic_are_changed_and_left_alone(hooked):
    pydantic = pytest.importorskip("pydantic")

    class Model(pydantic.BaseModel, validate_assignment=True):
        messages: list[str] = ["old"]
        limit: pydantic.PositiveInt = 5
        _count: int = pydantic.PrivateAttr(0)

    target = Model()

    def change(state, target):
        target.messages.append("new")
        target.limit = 7
        target._count += 1

    def refused(state, target):
        change(state, target)
        target.limit = -1

    with pytest.raises(RestoreError, match="limit"):
        await hooked(target, refused)
    assert (target.messages, target.limit, target._count, target.model_fields_set) == (["old"], 5, 0, set())
    assert await hooked(target, change) is target
    assert (target.messages, target.limit, target._count) == (["old", "new"], 7, 1)
    assert target.model_fields_set == {"limit"}
    await restore(checkpoint({"limit": 9}), target)
    assert target.limit == 9
    with pytest.raises(RestoreError, match="limits"):
        await restore(checkpoint({"limits": 9}), target)


async def test_builtin_containers_of_every_kind_are_put_back(hooked):
    def values():
        containers = [1], {1: 1}, {1}, bytearray(b"a"), collections.deque([1], 3), collections.Counter("aab")
        return [*containers, collections.OrderedDict(b=1, a=2), collections.defaultdict(list, a=[1]), ([1],)]

    def fails(state, target):
        listed, mapped, unordered, text, queue, counted, ordered, defaults, (inner,) = target.values
        for value in (listed, text, queue, inner, defaults["new"]):
            value.append(2)
        unordered.add(2)
        mapped[2] = 2
        counted.update("ac")
        ordered.move_to_end("b")
        raise RuntimeError

    target = types.SimpleNamespace(values=values())
    kept = list(target.values)
    with pytest.raises(RestoreError):
        await hooked(target, fails)
    assert target.values == values()
    assert list(target.values[6]) == ["b", "a"]
    assert all(one is other for one, other in zip(kept, target.values, strict=True))


class Native(dict):
    """A dict with attributes."""


@pytest.mark.parametrize("target", [Native, Native(), ValueError("x"), functools.partial(int), len, iter([])])
async def test_a_target_that_could_not_be_put_back_is_refused_before_a_hook_runs(hooked, target):
    ran = []
    with pytest.raises(RestoreError, match="keeps state that cannot be put back"):
        await hooked(target, lambda state, target: ran.append(1))
    assert ran == []


# Without a hook


async def test_a_class_that_declares_its_fields_gets_no_others():
    target = dataclasses.make_dataclass("Declared", ["plan"])("old")
    with pytest.raises(RestoreError, match="Declared has no field plans"):
        await restore(checkpoint({"plan": "new", "plans": 1}), target)
    assert vars(target) == {"plan": "old"}
    with pytest.raises(RestoreError):
        await restore(checkpoint({"plans": 1}), Slotted())


async def test_a_state_that_does_not_fit_its_class_is_an_error_that_names_the_field():
    with pytest.raises(CheckpointError) as caught:
        await restore(checkpoint(CustomState({"messages": "x"}, "langchain")), Agent())
    assert caught.value.field == "messages"


async def test_messages_and_items_are_restored_into_plain_targets():
    state = LangChainState(messages=[{"role": "user"}], intermediate_steps=[1], values={"plan": "new"})
    target = Agent()
    await restore(checkpoint(state), target)
    assert (target.messages, target.intermediate_steps, target.plan) == ([{"role": "user"}], [1], "new")
    listed: list[Any] = [1]
    items = OpenAIAgentsState(items=[{"role": "user"}], last_agent="a")
    await restore(checkpoint(items), listed)
    assert listed == [{"role": "user"}]
    namespace = types.SimpleNamespace(last_agent="")
    await restore(checkpoint(items), namespace)
    assert vars(namespace) == {"items": [{"role": "user"}], "last_agent": "a"}
    with pytest.raises(RestoreError, match="a list has no place"):
        await restore(checkpoint(state), listed)
    with pytest.raises(RestoreError, match="no hook that makes one"):
        await restore(checkpoint(state), None)


async def test_a_state_without_its_secrets_is_restored_only_if_that_is_accepted():
    made = checkpoint({"plan": "new", "password": "hunter2"})
    line = msgspec.json.decode(checkpoint_line(made, Redaction()))["checkpoint"]
    target = Agent()
    with pytest.raises(CheckpointError, match="accept_redacted") as caught:
        await restore(checkpoint_of(line, "s"), target)
    assert caught.value.field == "password"
    assert target.plan == "old"
    await restore(checkpoint_of(line, "s"), target, accept_redacted=True)
    assert (target.plan, target.password) == ("new", "[redacted]")
    await restore(made, target)
    assert target.password == "hunter2"
