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

from agent_cache.errors import CheckpointError, ConfigurationError, RestoreError
from agent_cache.recording import Redaction
from agent_cache.resume import (
    Checkpoint,
    CustomState,
    LangChainState,
    OpenAIAgentsState,
    register_restore_hook,
    restore,
)
from tests.harness.cassettes import checkpoint_line, checkpoint_of

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


# Targets: how one is made, what a hook does to it, and what it is, with the identity of what is not copied


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
        self._limit = value


def changes_agent(state, target):
    target.steps["a"].append(2)
    target.push("new")
    target.messages = [*target.messages, "newer"]
    target.limit = 7
    assert target.limit == 7
    vars(target).update(plan="new", more=1)
    del target.pushed


def seen_of_agent(target: Agent) -> Any:
    plain = {name: value for name, value in vars(target).items() if name != "lock"}
    return copy.deepcopy(plain), {name: id(value) for name, value in vars(target).items()}


class Slotted:
    __slots__ = ("__secret", "messages", "removed", "unset")

    def __init__(self) -> None:
        self.messages, self.__secret, self.removed = ["old"], 1, 1

    def tell(self, value: int) -> None:
        self.__secret = value

    def told(self) -> int:
        return self.__secret


def changes_slots(state, target):
    target.messages.append("new")
    target.messages = []
    target.tell(2)
    target.unset = 1
    del target.removed


def seen_of_slots(target: Slotted) -> Any:
    return list(target.messages), target.told(), hasattr(target, "unset"), hasattr(target, "removed")


def containers() -> Any:
    values = [1], {1: 1}, {1}, bytearray(b"a"), collections.deque([1], 3), collections.Counter("aab")
    more = [collections.OrderedDict(b=1, a=2), collections.defaultdict(list, a=[1]), ([1],)]
    return types.SimpleNamespace(values=[*values, *more])


def changes_containers(state, target):
    listed, mapped, unordered, text, queue, counted, ordered, defaults, (inner,) = target.values
    for value in (listed, text, queue, inner, defaults["new"]):
        value.append(2)
    unordered.add(2)
    mapped[2] = 2
    counted.update("ac")
    ordered.move_to_end("b")


def seen_of_containers(target: Any) -> Any:
    return copy.deepcopy(target.values), list(target.values[6]), [id(one) for one in target.values]


def frozen() -> Any:
    return dataclasses.make_dataclass("Frozen", ["messages"], frozen=True)(["old"])


def model() -> Any:
    pydantic = pytest.importorskip("pydantic")

    class Model(pydantic.BaseModel, validate_assignment=True):
        messages: list[str] = ["old"]
        limit: pydantic.PositiveInt = 5
        _count: int = pydantic.PrivateAttr(0)

    return Model()


def changes_model(state, target):
    target.messages.append("new")
    target.limit = 7
    target._count += 1


def seen_of_model(target: Any) -> Any:
    return list(target.messages), target.limit, target._count, set(target.model_fields_set)


TARGETS = [
    (Agent, changes_agent, seen_of_agent),
    (Slotted, changes_slots, seen_of_slots),
    (containers, changes_containers, seen_of_containers),
    (frozen, lambda state, target: target.messages.append("new"), lambda target: list(target.messages)),
    (model, changes_model, seen_of_model),
]


@pytest.mark.parametrize("how", ["returns", "raises", "raises later", "is cancelled"])
@pytest.mark.parametrize(("make", "change", "seen"), TARGETS, ids=lambda one: one.__name__)
async def test_a_hook_changes_all_or_nothing(hooked, make, change, seen, how):
    begun = asyncio.Event()

    def hook(state, target):
        change(state, target)
        if how == "raises":
            raise RuntimeError("in the middle")

    async def later(state, target):
        await asyncio.sleep(0)
        change(state, target)
        begun.set()
        if how == "is cancelled":
            await asyncio.Event().wait()
        raise RuntimeError("in the middle")

    target = make()
    before = seen(target)
    task = asyncio.create_task(hooked(target, later if how in ("raises later", "is cancelled") else hook))
    if how == "returns":
        assert await task is target
        assert seen(target) != before
        return
    if how == "is cancelled":
        await begun.wait()
        task.cancel()
    with pytest.raises(asyncio.CancelledError if how == "is cancelled" else RestoreError) as caught:
        await task
    assert seen(target) == before
    if how == "raises":
        assert "in the middle" in str(caught.value)
        assert [type(error) for error in caught.value.errors] == [RuntimeError]


async def test_a_new_object_takes_the_place_of_the_target(hooked):
    target = Agent()
    before = seen_of_agent(target)

    async def makes(state, target):
        target.plan = "changed"
        made = Agent()
        made.plan = state.data["plan"]
        return made

    made = await hooked(target, makes, plan="new")
    assert (made is target, made.plan) == (False, "new")
    assert seen_of_agent(target) == before
    assert await hooked(None, lambda state, _: dict(state.data), x=1) == {"x": 1}


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


@pytest.mark.parametrize("target", [type("Native", (dict,), {})(), ValueError("x"), functools.partial(int), iter([])])
async def test_a_target_that_could_not_be_put_back_is_refused_before_a_hook_runs(hooked, target):
    ran = []
    with pytest.raises(RestoreError, match="keeps state that cannot be put back"):
        await hooked(target, lambda state, target: ran.append(1))
    assert ran == []


async def test_what_could_not_restore_is_no_hook(hooked):
    async def later(state, target):
        yield

    for hook in (later, lambda state, target: (yield), lambda state: None, 3):
        with pytest.raises(ConfigurationError, match="a function of state and target, no generator"):
            register_restore_hook("custom", hook)
    target = Agent()  # whoever says that it worked does not mean a new object
    with pytest.raises(RestoreError, match="returned True"):
        await hooked(target, lambda state, target: True)


# Without a hook


async def test_fields_are_assigned_and_a_class_that_declares_its_fields_gets_no_others():
    target = dataclasses.make_dataclass("Declared", ["plan"])("old")
    with pytest.raises(RestoreError, match="Declared has no field plans"):
        await restore(checkpoint({"plan": "new", "plans": 1}), target)
    assert vars(target) == {"plan": "old"}
    await restore(checkpoint({"plan": "new"}), target)
    assert target.plan == "new"
    for refused in (Slotted(), frozen(), model()):
        with pytest.raises(RestoreError):
            await restore(checkpoint({"plans": 1}), refused)


async def test_messages_and_items_are_restored_into_plain_targets():
    state = LangChainState(messages=[{"role": "user"}], intermediate_steps=[1], values={"plan": "new"})
    target = Agent()
    await restore(checkpoint(state), target)
    assert (target.messages, target.intermediate_steps, target.plan) == ([{"role": "user"}], [1], "new")
    listed: list[Any] = [1]
    items = OpenAIAgentsState(items=[{"role": "user"}], last_agent="a")
    await restore(checkpoint(items), listed)
    assert listed == [{"role": "user"}]
    mapping = collections.UserDict(last_agent="")
    await restore(checkpoint(items), mapping)
    assert dict(mapping) == {"items": [{"role": "user"}], "last_agent": "a"}
    namespace = types.SimpleNamespace(last_agent="")
    await restore(checkpoint(items), namespace)
    assert vars(namespace) == {"items": [{"role": "user"}], "last_agent": "a"}
    with pytest.raises(RestoreError, match="a list has no place"):
        await restore(checkpoint(state), listed)
    with pytest.raises(RestoreError, match="no hook that makes one"):
        await restore(checkpoint(state), None)
    with pytest.raises(CheckpointError, match=r"^messages: "):
        await restore(checkpoint(CustomState({"messages": "x"}, "langchain")), Agent())


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
