"""Checkpoints of a run: their typed states, and their lines in a journal (docs/reference/journal-format.md).

``framework`` in a line chooses among the classes that this program knows: no name that is found in a file is imported.
The state of any other framework, and one that its class cannot take any more, is a `CustomState` that keeps all of it.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec

from agent_cache.errors import CheckpointError, ConfigurationError
from agent_cache.recording.outcomes import decode, encode, name_of, schema_of
from agent_cache.recording.redaction import Redaction
from agent_cache.values.canonical import declared_names, full_name, is_model
from agent_cache.values.compare import fingerprint
from agent_cache.values.typed import Undecodable, Unencodable

__all__ = ["Checkpoint", "CustomState", "LangChainState", "OpenAIAgentsState", "register_state"]

T = TypeVar("T")

_ANY = schema_of(Any)
_Text = Annotated[str, msgspec.Meta(min_length=1)]


def _converted(value: Any, annotation: Any, name: str = "") -> Any:
    """A value as msgspec reads it for an annotation. An error names the place, below this name."""
    try:
        return msgspec.convert(value, annotation, str_keys=True)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `")
        if reason.startswith("Object missing required field"):
            reason, path = "it is missing", f".{reason.split('`')[1]}"
        path = path.removeprefix("key` in `").strip("`").removeprefix("$")
        raise CheckpointError(reason, (name + path).removeprefix(".").replace("[...]", "[?]")) from None


# States of known frameworks


class _State(msgspec.Struct, frozen=True):
    """Base of the states that this package defines. The fields are checked when a state is made."""

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(type(self)):
            _converted(getattr(self, field.name), field.type, field.name)


class LangChainState(_State, frozen=True, kw_only=True):
    """The state of an agent of LangChain, or of a thread of LangGraph.

    Attributes:
        messages: the conversation, each message as ``langchain_core.messages.messages_to_dict`` writes it, or as a dict
            of your own form. Messages of LangChain's classes are converted.
        intermediate_steps: what an agent of the older kind has done: actions and observations.
        values: the other channels of a thread of LangGraph, by name.
        next: the nodes that the thread would run next; empty if it had ended.
        run_name, run_id: of the run, as LangChain names it.
        metadata: anything else.

    Raises:
        CheckpointError: if a field is of a wrong type.
    """

    messages: list[dict[str, Any]] = []
    intermediate_steps: list[Any] = []
    values: dict[str, Any] = {}
    next: list[str] = []
    run_name: str = ""
    run_id: str = ""
    metadata: dict[str, Any] = {}
    framework: ClassVar[str] = "langchain"

    def __post_init__(self) -> None:
        if isinstance(self.messages, list):
            plain = [
                sys.modules["langchain_core.messages"].messages_to_dict([one])[0] if _is_message(one) else one
                for one in self.messages
            ]
            msgspec.structs.force_setattr(self, "messages", plain)
        super().__post_init__()


class OpenAIAgentsState(_State, frozen=True, kw_only=True):
    """The state of a run of the OpenAI Agents SDK.

    Attributes:
        items: the conversation as input items, from ``result.to_input_list()`` or ``await session.get_items()``.
        last_agent: name of the agent that answered last.
        last_response_id: id of the last response, for runs that continue on OpenAI's side.
        metadata: anything else.

    Raises:
        CheckpointError: if a field is of a wrong type.
    """

    items: list[dict[str, Any]] = []
    last_agent: str = ""
    last_response_id: str | None = None
    metadata: dict[str, Any] = {}
    framework: ClassVar[str] = "openai_agents"


class CustomState(_State, frozen=True):
    """The state of an agent of any other kind, or one that was read from a file and whose class is not known.

    Attributes:
        data: the state by names. Its values are builtin ones, or of the standard library's plain types, such as dates;
            they come back as they were.
        framework: what made it; it chooses the hooks that restore it.

    Raises:
        CheckpointError: if a field is of a wrong type.
    """

    data: dict[str, Any] = {}
    framework: _Text = "custom"


# Classes of users

_registered: dict[str, Any] = {"langchain": LangChainState, "openai_agents": OpenAIAgentsState}


def register_state(kind: type[T], *, framework: str | None = None) -> type[T]:
    """Allow objects of a class as states of checkpoints. Also works as a decorator.

    Without it the state of a program of your own is a dict. What is written is the fields as JSON, by msgspec, or by
    pydantic for its models but for those that it excludes; they are read and checked by their annotations. A field that
    would come back as another value, such as a tuple under ``Any``, is an error when the checkpoint is made. A later
    version of the class may have more fields, if these have defaults.

    Args:
        kind: a dataclass, or a class of msgspec, attrs or pydantic.
        framework: what the journal calls it, and what restore hooks are registered for; by default ``module:Class``.

    Raises:
        ConfigurationError: if it is of another kind, or another class has the name.
    """
    is_class = isinstance(kind, type) and not issubclass(kind, tuple)
    if not is_class or not (is_model(kind) or declared_names(kind) is not None):
        raise ConfigurationError(f"register_state takes a dataclass, a class of msgspec, attrs or pydantic: {kind!r}")
    name = name_of(kind) if framework is None else framework
    if not isinstance(name, str) or name in ("", "custom", "langchain", "openai_agents"):
        raise ConfigurationError(f"register_state: framework must be a name of your own, got {name!r}")
    earlier = _registered.setdefault(name, kind)
    if name_of(earlier) != name_of(kind):
        raise ConfigurationError(f"register_state: {name!r} is the name of the class {name_of(earlier)} already")
    _registered[name] = kind
    return kind


def fields_of(state: Any) -> dict[str, Any]:
    """The fields of a state by name; of an object of a registered class, those that are written."""
    if isinstance(state, CustomState):
        return dict(state.data)
    kind = type(state)
    names = declared_names(kind) or [name for name, one in kind.__pydantic_fields__.items() if not one.exclude]
    return {name: getattr(state, name) for name in (*names, *(getattr(state, "__pydantic_extra__", None) or ()))}


def _as_json(state: Any) -> dict[str, Any]:
    """The fields of an object of a registered class, as they are written."""
    try:
        if is_model(type(state)):
            found = state.model_dump(mode="json", by_alias=True, round_trip=True)
        else:
            found = msgspec.to_builtins(state, str_keys=True)
        return dict(decode(encode(found)))
    except Exception as error:  # noqa: BLE001 - of the user's class
        raise CheckpointError(f"a state of {full_name(type(state))} cannot be written: {error}") from None


def _of_json(kind: Any, plain: Mapping[str, Any]) -> Any:
    try:
        made = kind.model_validate(plain) if is_model(kind) else _converted(plain, kind)
    except CheckpointError:
        raise
    except Exception as error:  # noqa: BLE001 - of the user's class
        problems: Any = getattr(error, "errors", list)() or [{"msg": str(error), "loc": ()}]  # pydantic names the place
        raise CheckpointError(problems[0]["msg"], ".".join(map(str, problems[0]["loc"]))) from None
    for name in plain.keys() - _as_json(made).keys():
        raise CheckpointError(f"the class {full_name(kind)} has no such field (any more)", name)
    return made


# Plain data


def _read(plain: Any) -> Any:
    try:
        return _ANY.from_plain(plain)
    except Undecodable:  # edited, or redacted: it is kept as the file has it
        return plain


def state_data(state: Any) -> dict[str, Any]:
    """The fields of a state by name, as plain data: what ``state`` is in a journal.

    Raises:
        CheckpointError: if one cannot be written.
    """
    return _written(fields_of(state)) if isinstance(state, _State) else _as_json(state)


def _written(values: Mapping[Any, Any], within: str = "") -> dict[str, Any]:
    plain = {}
    for name, value in values.items():
        try:
            plain[name] = _ANY.to_plain(value)
        except Unencodable as error:
            if not within and type(value) is dict:
                _written(value, f"{name}.")  # which names the value in it
            text = "pass plain values, or as the whole state an object of a class given to register_state"
            raise CheckpointError(f"{error}; {text}", f"{within}{name}") from None
    return plain


def _framework_of(state: Any) -> str:
    """The framework of a state.

    Raises:
        CheckpointError: if it is no state, or its class is not registered.
    """
    if isinstance(state, CustomState):
        return state.framework
    for name, kind in reversed(_registered.items()):
        if type(state) is kind:
            return name
    raise CheckpointError(
        "a state is a dict, a LangChainState, OpenAIAgentsState or CustomState, what LangGraph or OpenAI Agents give, "
        f"or an object of a class given to register_state; got {full_name(type(state))}"
    )


def _typed(framework: str, plain: Mapping[str, Any]) -> Any:
    """The state of a framework that this program has a class for, else a `CustomState`.

    Raises:
        CheckpointError: if the data does not fit the class.
    """
    kind, fields = _registered.get(framework), {name: _read(each) for name, each in plain.items()}
    if kind is None:
        return CustomState(fields, framework)
    if not issubclass(kind, _State):
        return _of_json(kind, plain)
    for name in fields.keys() - {*kind.__struct_fields__}:
        raise CheckpointError(f"{kind.__name__} has no such field", name)
    return kind(**fields)


def typed_state(state: Any) -> Any:
    """A copy of the state of a checkpoint, as the class of its framework if this program knows that class by now.

    Raises:
        CheckpointError: if it does not fit the class, or would not come back as it is. The error names the field.
    """
    made = _typed(_framework_of(state), decode(encode(state_data(state))))
    for name, was in {} if isinstance(state, _State) else fields_of(state).items():
        now = getattr(made, name)
        if was != now and (fingerprint(was) is None or fingerprint(was) != fingerprint(now)):
            text = "would come back as another value: let the annotation name its class, or keep it out of the state"
            raise CheckpointError(f"what {full_name(type(state))} has in it ({full_name(type(was))}) {text}", name)
    return made


# What users pass


def _state_of(value: Any) -> Any:
    """The state that a program has passed, as one of the classes above or an object of a registered class."""
    if type(value) is dict:
        data, messages = dict(value), value.get("messages")
        if "framework" not in value and isinstance(messages, list) and any(map(_is_message, messages)):
            return LangChainState(messages=data.pop("messages"), values=data)  # as a graph of LangGraph returns them
        framework = data.pop("framework", "custom")
        state = CustomState(data, framework)
        return _typed(framework, state_data(state)) if framework in _registered else state
    if _is_of(value, "langgraph.types", "StateSnapshot"):
        values = _converted(value.values, dict[str, Any], "values")
        config = {name: one for name, one in value.config.get("configurable", {}).items() if isinstance(one, str)}
        messages = values.pop("messages", [])
        return LangChainState(messages=messages, values=values, next=list(value.next), metadata=config)
    if _is_of(value, "agents.result", "RunResultBase"):
        if getattr(value, "is_complete", True) is False:
            raise CheckpointError("the run is still streaming; take the checkpoint when its stream has ended", "items")
        name, response_id = getattr(value.last_agent, "name", ""), getattr(value, "last_response_id", None)
        return OpenAIAgentsState(items=value.to_input_list(), last_agent=name, last_response_id=response_id)
    _framework_of(value)
    return value


def _is_of(value: Any, module: str, name: str) -> bool:
    """Whether a value is of a class of a package, which this program has imported then."""
    found = getattr(sys.modules.get(module), name, None)
    return isinstance(found, type) and isinstance(value, found)


def _is_message(value: Any) -> bool:
    return _is_of(value, "langchain_core.messages", "BaseMessage")


# Checkpoints


class CheckpointEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint without its state."""

    id: _Text
    session_id: _Text
    sequence: Annotated[int, msgspec.Meta(ge=1, le=2**62)]
    after: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    label: Annotated[str, msgspec.Meta(max_length=200)]
    importance: Annotated[float, msgspec.Meta(ge=0, le=1)]
    created_at: _Text
    framework: str


class _Line(CheckpointEntry, frozen=True, kw_only=True):
    state: dict[str, Any]
    redacted: tuple[str, ...] = ()


class Checkpoint(CheckpointEntry, frozen=True, kw_only=True):
    """The state of an agent at one place of its run.

    Attributes:
        id: names it among all checkpoints.
        session_id: id of its session.
        sequence: its number in its journal, from 1.
        after: id of the last call that had ended when it was made, 0 if none had.
        label: a text of at most 200 characters.
        importance: from 0 to 1.
        created_at: time in UTC.
        framework: of the state: it chooses the hooks that restore it.
        state: the state, as it was when the checkpoint was made: a `LangChainState`, `OpenAIAgentsState` or
            `CustomState`, or an object of a class given to `register_state`. Given may also be a dict, a
            ``StateSnapshot`` of LangGraph, what a graph returned, or a result of a run of OpenAI Agents.
        redacted: the fields of the state from which redaction has removed something; none until it is in a file.

    Raises:
        CheckpointError: if a field is of a wrong type or out of range. The error names it.
    """

    state: Any
    id: str = msgspec.field(default_factory=lambda: uuid.uuid4().hex)
    after: int = 0
    label: str = ""
    importance: float = 0.5
    created_at: str = msgspec.field(default_factory=lambda: datetime.now(UTC).isoformat().replace("+00:00", "Z"))
    framework: str = ""
    redacted: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(CheckpointEntry):
            checked = _converted(getattr(self, field.name), field.type, field.name)
            msgspec.structs.force_setattr(self, field.name, checked)
        state = typed_state(_state_of(self.state))
        msgspec.structs.force_setattr(self, "state", state)
        msgspec.structs.force_setattr(self, "framework", _framework_of(state))


def checkpoint_line(checkpoint: Checkpoint, redaction: Redaction | None = None) -> bytes:
    """The line of a checkpoint in a journal. Secrets are removed from the label and the state by the rules.

    Raises:
        CheckpointError: if the class of its state is not registered any more.
    """
    line = msgspec.structs.asdict(checkpoint)
    del line["session_id"]
    line["state"], redacted = state_data(checkpoint.state), {*line.pop("redacted")}
    if redaction is not None:
        line["label"] = redaction.text(checkpoint.label)
        state = decode(encode(line["state"]))
        line["state"] = clean = redaction.apply(decode(encode(state)))
        if not isinstance(clean, dict):
            raise ConfigurationError("the redaction hook must return the fields of a state as a dict")
        redacted |= {name for name in clean if state.get(name) != clean[name]}  # with names that had a secret, as now
    line |= {"redacted": sorted(redacted)} if redacted else {}
    return encode({"checkpoint": line}) + b"\n"


def checkpoint_of(data: Any, session_id: str) -> Checkpoint:
    """The checkpoint that a line has under ``checkpoint``, of the session whose journal it is.

    A state that does not fit the class of its framework is read as a `CustomState` with all that the line has, so that
    a class that has changed does not make a journal unreadable; `restore` raises the error, with the field.

    Raises:
        CheckpointError: if a field beside the state is of a wrong type or missing.
    """
    line: _Line = _converted({**_converted(data, dict[str, Any], "checkpoint"), "session_id": session_id}, _Line)
    try:
        state = _typed(line.framework, line.state)
    except CheckpointError:
        state = CustomState({name: _read(each) for name, each in line.state.items()}, line.framework)
    made = Checkpoint(**{**msgspec.structs.asdict(line), "state": CustomState()})
    msgspec.structs.force_setattr(made, "state", state)
    msgspec.structs.force_setattr(made, "framework", line.framework)
    return made
