"""Checkpoints: what a state may be, how it is written, and what comes back."""

import asyncio
import dataclasses
import datetime
import itertools
import math
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from agent_cache.errors import CheckpointError, ConfigurationError
from agent_cache.recording import Redaction
from agent_cache.resume import Checkpoint, CustomState, LangChainState, OpenAIAgentsState, register_state, restore
from tests.harness.cassettes import checkpoint_line, checkpoint_of, typed_state
from tests.harness.searches import searched

_numbers = itertools.count()


def checkpoint(state: Any, **fields: Any) -> Checkpoint:
    return Checkpoint(**{"session_id": "s", "sequence": 1, "state": state, **fields})


def written(made: Checkpoint, redaction: Redaction | None = None) -> dict[str, Any]:
    line = checkpoint_line(made, redaction)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    return msgspec.json.decode(line)["checkpoint"]


def again(made: Checkpoint) -> Checkpoint:
    return checkpoint_of(written(made), made.session_id)


@dataclasses.dataclass
class Step:
    name: str
    at: datetime.date


@dataclasses.dataclass
class Plan:
    steps: list[Step]
    done: set[str] = dataclasses.field(default_factory=set)
    limit: int = 3


class Kept(msgspec.Struct):
    number: int


class PlanStruct(msgspec.Struct):
    steps: list[Step]
    limit: int = 3


def fresh_name() -> str:
    return f"test-{next(_numbers)}"


STEPS = [Step("look", datetime.date(2026, 1, 2))]


@pytest.mark.parametrize(
    "state",
    [
        LangChainState(messages=[{"role": "user", "content": "hi"}], intermediate_steps=[("act", 1)], run_name="r"),
        OpenAIAgentsState(items=[{"role": "user", "content": "hi"}], last_agent="a", last_response_id=None),
        CustomState({"x": 1}, "crewai"),
    ],
)
def test_states_of_frameworks_come_back(state):
    back = again(checkpoint(state))
    assert (back.state, back.framework) == (state, state.framework)


def plan_model() -> Any:
    pydantic = pytest.importorskip("pydantic")
    return pydantic.create_model("PlanModel", steps=(list[Step], ...), names=(set[str], {"a"}))


@pytest.mark.parametrize("make", [lambda: Plan, lambda: PlanStruct, plan_model], ids=["dataclass", "struct", "model"])
def test_objects_of_a_registered_class_come_back(make):
    kind, name = make(), fresh_name()
    assert register_state(kind, framework=name) is kind
    state = kind(steps=list(STEPS))
    back = again(checkpoint(state))
    assert type(back.state) is kind
    assert (back.state, back.framework) == (state, name)
    for taken in ("langchain", "openai_agents", "custom", ""):
        with pytest.raises(ConfigurationError):
            register_state(kind, framework=taken)
    register_state(Kept)
    assert checkpoint(Kept(1)).framework == f"{__name__}:Kept"
    with pytest.raises(CheckpointError, match="as the whole state an object of a class"):
        checkpoint({"plan": state})


def test_a_model_with_aliases_and_computed_fields_comes_back():
    pydantic = pytest.importorskip("pydantic")

    class Order(pydantic.BaseModel, extra="allow"):
        order_id: str = pydantic.Field(alias="orderId")
        client: Any = pydantic.Field(default=None, exclude=True)

        @pydantic.computed_field
        def shown(self) -> str:
            return f"order {self.order_id}"

    register_state(Order)
    made = again(checkpoint(Order(orderId="W1", client=object(), later=3)))
    assert made.state == Order(orderId="W1", later=3)
    assert asyncio.run(restore(made, {})) == {"order_id": "W1", "later": 3}


def lossy_states() -> dict[str, Any]:
    """Objects of registered classes that JSON does not give back, by the field."""
    attrs, pydantic = pytest.importorskip("attrs"), pytest.importorskip("pydantic")
    derived = dataclasses.make_dataclass("Derived", [("more", int, 1)], bases=(Step,))
    opened: Any = dataclasses.make_dataclass("Opened", [("data", Any), ("step", Step)])
    step = STEPS[0]

    @dataclasses.dataclass
    class Counted:
        count: int

        def __post_init__(self) -> None:
            self.count += 1

    @attrs.define
    class Private:
        _key: int = 0

    return {
        "data": [opened(value, step) for value in [(1,), {1}, b"1", {"at": step.at}, {1: 1}, math.nan, [math.inf]]],
        "step": [opened(1, derived("a", step.at))],
        "count": [Counted(1)],
        "_key": [Private(1)],
        "token": [pydantic.create_model("Login", token=(pydantic.SecretStr, ...))(token="a")],
        "": [
            opened("\ud800", step), opened(object(), step), pydantic.RootModel[list[int]]([1]),
            msgspec.defstruct("Listed", ["a"], array_like=True)(1),
            dataclasses.make_dataclass("Passed", [("a", dataclasses.InitVar[int], 1)])(),
        ],
    }  # fmt: skip


@pytest.mark.parametrize("field", ["data", "step", "count", "_key", "token", ""])
def test_an_object_that_would_come_back_as_another_is_an_error_that_names_the_field(field):
    for state in lossy_states()[field]:
        register_state(type(state), framework=fresh_name())
        with pytest.raises(CheckpointError) as caught:
            checkpoint(state)
        assert caught.value.field == field, state


def test_values_that_are_equal_may_be_written_as_the_annotation_has_them():
    same = dataclasses.make_dataclass("Same", [("price", float)], eq=False)
    kept = dataclasses.make_dataclass("Kept", [("limit", float), ("inner", same)])
    register_state(kept, framework=fresh_name())
    assert again(checkpoint(kept(1, same(1.5)))).state.inner.price == 1.5


def test_a_state_is_kept_as_it_was_when_the_checkpoint_was_made():
    data = {"messages": [{"content": "a"}]}
    made = checkpoint(data)
    state = LangChainState(messages=data["messages"])
    typed = checkpoint(state)
    data["messages"][0]["content"] = "b"
    data["messages"].append({})
    assert made.state.data["messages"] == typed.state.messages == [{"content": "a"}]


def test_an_unknown_framework_is_kept_whole():
    line = written(checkpoint(CustomState({"a": {1: (2,)}}, "elsewhere")))
    line["state"]["b"] = {"$typed": {"$object": ["Unknown", {"x": 1}]}}
    back = checkpoint_of(line, "s")
    assert back.state == CustomState({"a": {1: (2,)}, "b": line["state"]["b"]}, "elsewhere")


def test_the_state_of_a_class_that_is_gone_is_readable_and_comes_back_with_the_class(monkeypatch):
    register_state(Plan, framework=(name := fresh_name()))
    line = written(checkpoint(Plan(list(STEPS), {"x"})))
    monkeypatch.setattr("agent_cache.resume.checkpoints._registered", {})
    back = checkpoint_of(line, "s")
    assert (type(back.state), back.framework) == (CustomState, name)
    assert written(back) == line
    assert typed_state(back.state) == back.state
    register_state(Plan, framework=name)
    assert typed_state(back.state) == Plan(list(STEPS), {"x"})
    line["state"]["owner"] = "ann"  # a field that the class had
    with pytest.raises(CheckpointError, match="no such field") as caught:
        typed_state(checkpoint_of(line, "s").state)
    assert caught.value.field == "owner"


def line_without(field: str) -> Checkpoint:
    return checkpoint_of({name: one for name, one in written(checkpoint({})).items() if name != field}, "s")


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: LangChainState(messages="not a list"), "messages"),
        (lambda: LangChainState(messages=[{}, "no dict"]), "messages[1]"),
        (lambda: LangChainState(next=[1]), "next[0]"),
        (lambda: OpenAIAgentsState(items={}), "items"),
        (lambda: CustomState({}, ""), "framework"),
        (lambda: checkpoint({"framework": 3}), "framework"),
        (lambda: checkpoint({1: 2}), "data"),
        (lambda: checkpoint({"a": {"b": [object()]}}), "a.b"),
        (lambda: checkpoint(LangChainState(messages=[{"content": object()}])), "messages"),
        (lambda: checkpoint({}, label="x" * 201), "label"),
        (lambda: checkpoint({}, importance=math.nan), "importance"),
        (lambda: checkpoint({}, sequence=0), "sequence"),
        *((lambda name=name: line_without(name), name) for name in ("id", "sequence", "framework", "state")),
    ],
)
def test_a_wrong_type_is_an_error_that_names_the_field(make, field):
    with pytest.raises(CheckpointError) as caught:
        make()
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


@pytest.mark.parametrize("state", [[1], None, Step("a", datetime.date.min), Plan])
def test_what_is_no_state_is_an_error_that_says_what_is(state):
    with pytest.raises(CheckpointError, match="a state is a dict"):
        checkpoint(state)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False) | st.dates() | st.binary(),
    lambda each: st.lists(each) | st.tuples(each) | st.dictionaries(st.text() | st.integers(), each),
    max_leaves=12,
)


@searched(6, 50, st.dictionaries(st.text(), plain), st.sampled_from(["custom", "elsewhere"]))
def test_whatever_plain_state_comes_back_with_its_types(data, framework):
    made = checkpoint(CustomState(data, framework), after=7, label="x", importance=1)
    back = again(made)
    assert back == made
    assert (back.state, back.framework) == (CustomState(data, framework), framework)
    assert repr(back.state) == repr(made.state)


def test_a_line_is_redacted_as_a_cassette_is():
    made = checkpoint({"password": "hunter2", "notes": ("bearer " + "a1B2" * 9,)}, label="api_key=" + "a1B2c3" * 6)
    line = written(made, Redaction())
    assert not any(secret in str(line) for secret in ("hunter2", "a1B2"))
    assert checkpoint_of(line, "s").state.data["password"] == "[redacted]"
    assert (made.state.data["password"], made.redacted) == ("hunter2", ())
    assert line["redacted"] == ["notes", "password"]
    assert checkpoint_of(line, "s").redacted == ("notes", "password")
    assert written(checkpoint_of(line, "s")) == line
    clean = checkpoint({"notes": ["a"]})
    assert "redacted" not in written(clean, Redaction())
    assert written(clean, Redaction()) == written(clean)
