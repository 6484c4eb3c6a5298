"""Checkpoints of a run: their typed states, and their lines in a journal.

    {"checkpoint": {"id": "5f1c...", "sequence": 1, "after": 12, "label": "planned", "importance": 0.5,
                    "created_at": "2026-01-01T12:00:00Z", "framework": "langchain", "state": {"messages": [...]}}}

``state`` has the fields of the state by name, each as plain data that gives the value back as it was
(`agent_cache.recording.outcomes`). ``redacted`` names the fields from which secrets were removed, if there are any.
``framework`` chooses among the classes that this program knows: `LangChainState`, `OpenAIAgentsState`, and those given
to `register_state`. No name that is found in a file is imported. The state of any other framework, and one that its
class cannot take any more, is a `CustomState` that keeps all of it.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, NoReturn, TypeVar

import msgspec

from agent_cache.errors import CheckpointError, ConfigurationError
from agent_cache.recording.outcomes import PlainSchema, decode, encode, is_utf8, schema_of
from agent_cache.recording.redaction import Redaction
from agent_cache.values.canonical import declared_fields, declared_names, full_name, is_model
from agent_cache.values.typed import Schema, Undecodable, Unencodable, hints_of

__all__ = [
    "Checkpoint", "CheckpointEntry", "CustomState", "LangChainState", "OpenAIAgentsState", "State", "checkpoint_line",
    "checkpoint_of", "framework_of", "register_state", "state_data", "state_of", "typed_state",
]  # fmt: skip

T = TypeVar("T")

_ANY = schema_of(Any)


# States of known frameworks


class State(msgspec.Struct, frozen=True):
    """Base of the states that this package defines. The fields are checked when a state is made."""

    def __post_init__(self) -> None:
        """Check the type of each field.

        Raises:
            CheckpointError: if one is wrong.
        """
        for field in msgspec.structs.fields(type(self)):
            _check(getattr(self, field.name), field.type, field.name)


class LangChainState(State, frozen=True, kw_only=True):
    """The state of an agent of LangChain, or of a thread of LangGraph.

    Attributes:
        messages: the conversation, each message as ``langchain_core.messages.messages_to_dict`` writes it, or as a dict
            of your own form. Messages of LangChain's classes are converted.
        intermediate_steps: what an agent of the older kind has done: actions and observations.
        values: the other channels of a thread of LangGraph, by name.
        next: the nodes that the thread would run next; empty if it had ended.
        run_name, run_id: of the run, as LangChain names it.
        metadata: anything else. Fields of a file that this class does not have are in ``metadata["_extra"]``.

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
            msgspec.structs.force_setattr(self, "messages", [_message_data(one) for one in self.messages])
        super().__post_init__()


class OpenAIAgentsState(State, frozen=True, kw_only=True):
    """The state of a run of the OpenAI Agents SDK.

    Attributes:
        items: the conversation as input items, from ``result.to_input_list()`` or ``await session.get_items()``.
        last_agent: name of the agent that answered last.
        last_response_id: id of the last response, for runs that continue on OpenAI's side.
        metadata: anything else. Fields of a file that this class does not have are in ``metadata["_extra"]``.

    Raises:
        CheckpointError: if a field is of a wrong type.
    """

    items: list[dict[str, Any]] = []
    last_agent: str = ""
    last_response_id: str | None = None
    metadata: dict[str, Any] = {}
    framework: ClassVar[str] = "openai_agents"


class CustomState(State, frozen=True):
    """The state of an agent of any other kind, or one that was read from a file and whose class is not known.

    Attributes:
        data: the state by names. Its values are builtin ones, or of the standard library's plain types, such as dates;
            they come back as they were.
        framework: what made it; it chooses the hooks that restore it.
        unread: fields of a file whose values need a class that is not known here, as the file has them. They are
            written again as they are.

    Raises:
        CheckpointError: if a field is of a wrong type.
    """

    data: dict[str, Any] = {}
    framework: Annotated[str, msgspec.Meta(min_length=1)] = "custom"
    unread: dict[str, Any] = {}


_PATH = re.compile(r"^(?P<reason>.*?)(?: - at `(?:key in )?\$(?P<path>.*)`)?$", re.DOTALL)


def _check(value: Any, annotation: Any, name: str) -> None:
    try:
        msgspec.convert(value, annotation, strict=True)
    except msgspec.ValidationError as error:
        found = _PATH.match(str(error))
        reason, path = (found["reason"], found["path"] or "") if found else (str(error), "")
        reason = reason.replace("`array`", "list").replace("`object`", "dict")
        raise CheckpointError(reason, name + path.replace("[...]", "[?]")) from None


# Classes of users


class _StateClass:
    """Writes and reads the state of one registered class, field by field, so that an error names the field."""

    def __init__(self, kind: Any, names: tuple[str, ...]) -> None:
        hints = hints_of(kind)
        self.kind = kind
        self.schemas: dict[str, PlainSchema] = {name: schema_of(hints.get(name, Any)) for name in names}

    def to_plain(self, state: Any) -> dict[str, Any]:
        declared = {name: value for name, value in declared_fields(state, self.kind) or () if name not in _OF_MODELS}
        if declared.keys() != self.schemas.keys():
            raise CheckpointError(
                f"a state of {full_name(self.kind)} has attributes beside the fields that its class declares, or lacks "
                "some of them"
            )
        return {name: _written(value, self.schemas[name], name) for name, value in declared.items()}

    def from_plain(self, plain: Mapping[str, Any]) -> Any:
        """The state that `to_plain` has written, or one of an earlier version of the class that had fewer fields."""
        for name in plain.keys() - self.schemas.keys():
            raise CheckpointError(f"the class {full_name(self.kind)} has no such field (any more)", name)
        values = {}
        for name, schema in self.schemas.items():
            value = _read(plain[name], schema, name) if name in plain else _default_of(self.kind, name)
            if value is _NO_DEFAULT:
                text = f"the checkpoint does not have it, and the class {full_name(self.kind)} has no default for it"
                raise CheckpointError(text, name)
            values[name] = value
        # Constructors have seen the fields when the original was made.
        return Schema.made(self.kind, values, [None, None, set(values)] if is_model(self.kind) else [])


_OF_MODELS = frozenset({"__pydantic_extra__", "__pydantic_private__", "__pydantic_fields_set__"})
_NO_DEFAULT = object()
_ABSENT = (dataclasses.MISSING, msgspec.NODEFAULT)


def _default_of(kind: Any, name: str) -> Any:
    """The default of a field, or `_NO_DEFAULT`. Classes of attrs have none here."""
    if is_model(kind):
        model_field = kind.__pydantic_fields__[name]
        return _NO_DEFAULT if model_field.is_required() else model_field.get_default(call_default_factory=True)
    if issubclass(kind, tuple):
        return kind._field_defaults.get(name, _NO_DEFAULT)
    declared: Any = ()
    if dataclasses.is_dataclass(kind):
        declared = dataclasses.fields(kind)
    elif issubclass(kind, msgspec.Struct):
        declared = msgspec.structs.fields(kind)
    for one in declared:
        if one.name == name and one.default not in _ABSENT:
            return one.default
        if one.name == name and one.default_factory not in _ABSENT:
            return one.default_factory()
    return _NO_DEFAULT


_BUILT_IN: dict[str, Any] = {"langchain": LangChainState, "openai_agents": OpenAIAgentsState}
_registered: dict[str, _StateClass] = {}
_framework_of_class: dict[type, str] = {}


def register_state(kind: type[T], *, framework: str | None = None) -> type[T]:
    """Allow objects of a class as states of checkpoints. Also works as a decorator.

    Without it the state of a program of your own is a dict. What is written is the fields; they are read by their
    annotations, and without the class's constructor. A later version of the class may have more fields, if these have
    defaults.

    Args:
        kind: a dataclass, a named tuple, or a class of msgspec, attrs or pydantic.
        framework: what the journal calls it, and what restore hooks are registered for: a text ``framework`` that the
            class has as an attribute of its own, or else ``module:Class``.

    Raises:
        ConfigurationError: if it is of another kind, has state beside its fields, or another class has the name.
    """
    names = _names_of(kind)
    own = vars(kind).get("framework")
    name = framework if framework is not None else own if isinstance(own, str) and own else _name_of(kind)
    if not isinstance(name, str) or not name or name in _BUILT_IN or name == "custom":
        raise ConfigurationError(f"register_state: framework must be a name of your own, got {name!r}")
    earlier = _registered.get(name)
    if earlier is not None and _name_of(earlier.kind) != _name_of(kind):
        raise ConfigurationError(f"register_state: {name!r} is the name of the class {_name_of(earlier.kind)} already")
    if earlier is not None:  # its module was loaded again
        _framework_of_class.pop(earlier.kind, None)
    _registered[name] = _StateClass(kind, names)
    _framework_of_class[kind] = name
    return kind


def _names_of(kind: Any) -> tuple[str, ...]:
    names = None
    if isinstance(kind, type) and is_model(kind):
        model: Any = kind
        if not model.__private_attributes__ and model.model_config.get("extra") != "allow":
            names = tuple(model.__pydantic_fields__)
    elif isinstance(kind, type):
        names = declared_names(kind)
    if names is None:
        raise ConfigurationError(
            "register_state takes a dataclass, a named tuple, or a class of msgspec, attrs or pydantic, whose fields "
            f"are all its state, got {kind!r}; other states are given as a dict"
        )
    return names


def _name_of(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


# Plain data


def _written(value: Any, schema: PlainSchema, name: str) -> Any:
    try:
        if value is None or type(value) in (str, int, float, bool):
            msgspec.convert(value, schema.annotation, strict=True)
        return schema.to_plain(value)
    except Unencodable as error:
        raise CheckpointError(f"{error}; pass plain values, or a class given to register_state", name) from None
    except msgspec.ValidationError as error:
        raise CheckpointError(f"it does not fit its annotation: {error}", name) from None


def _read(plain: Any, schema: PlainSchema, name: str) -> Any:
    try:
        return schema.from_plain(plain)
    except Undecodable as error:
        raise CheckpointError(f"it does not fit its type: {error}", name) from None


def state_data(state: Any) -> dict[str, Any]:
    """The fields of a state by name, as plain data: what ``state`` is in a journal.

    Raises:
        CheckpointError: if one cannot be written.
    """
    if isinstance(state, CustomState):
        return {**{name: _written(each, _ANY, name) for name, each in state.data.items()}, **state.unread}
    if isinstance(state, State):
        return {name: _written(getattr(state, name), _ANY, name) for name in state.__struct_fields__}
    return _registered[framework_of(state)].to_plain(state)


def framework_of(state: Any) -> str:
    """The framework of a state.

    Raises:
        CheckpointError: if it is no state, or its class is not registered.
    """
    if isinstance(state, (CustomState, LangChainState, OpenAIAgentsState)):
        return state.framework
    return _framework_of_class.get(type(state)) or _refuse(state)


def _typed(framework: str, plain: Mapping[str, Any]) -> Any:
    """The state of a framework that this program has a class for, else a `CustomState`.

    Raises:
        CheckpointError: if the data does not fit the class.
    """
    if framework in _BUILT_IN:
        return _built_in(framework, {name: _read(each, _ANY, name) for name, each in plain.items()})
    if framework in _registered:
        return _registered[framework].from_plain(plain)
    return _untyped(framework, plain)


def _built_in(framework: str, fields: Mapping[str, Any]) -> Any:
    kind = _BUILT_IN[framework]
    known = {name: each for name, each in fields.items() if name in kind.__struct_fields__}
    more = {name: each for name, each in fields.items() if name not in known}
    metadata = known.get("metadata", {})
    if more and isinstance(metadata, dict):
        known["metadata"] = {**metadata, "_extra": more}
    return kind(**known)


def _untyped(framework: str, plain: Mapping[str, Any]) -> CustomState:
    data, unread = {}, {}
    for name, each in plain.items():
        try:
            data[name] = _ANY.from_plain(each)
        except Undecodable:
            unread[name] = each
    return CustomState(data, framework or "custom", unread)


def typed_state(state: Any) -> Any:
    """A copy of the state of a checkpoint, as the class of its framework if this program knows that class by now.

    Raises:
        CheckpointError: if the state does not fit the class. The error names the field.
    """
    return _typed(framework_of(state), decode(encode(state_data(state))))


# What users pass


def state_of(value: Any) -> Any:
    """The state that a program has passed, as one of the classes above or an object of a registered class.

    Args:
        value: a state; a dict, whose key ``framework``, if it has one, says which state it is; a ``StateSnapshot`` of
            LangGraph, or what a graph returned; messages of LangChain in a list; a result of a run of OpenAI Agents.

    Raises:
        CheckpointError: for anything else, and if a field is of a wrong type.
    """
    if isinstance(value, (CustomState, LangChainState, OpenAIAgentsState)) or type(value) in _framework_of_class:
        return value
    if type(value) is dict:
        return _state_of_dict(value)
    if _is_of(value, "langgraph.types", "StateSnapshot"):
        return _state_of_snapshot(value)
    if _are_messages(value):
        return LangChainState(messages=value)
    if _is_of(value, "agents.result", "RunResultBase"):
        if getattr(value, "is_complete", True) is False:
            raise CheckpointError("the run is still streaming; take the checkpoint when its stream has ended", "items")
        return OpenAIAgentsState(
            items=value.to_input_list(),
            last_agent=getattr(value.last_agent, "name", ""),
            last_response_id=getattr(value, "last_response_id", None),
        )
    return _refuse(value)


def _is_of(value: Any, module: str, name: str) -> bool:
    """Whether a value is of a class of a package, which this program has imported then."""
    found = getattr(sys.modules.get(module), name, None)
    return isinstance(found, type) and isinstance(value, found)


def _state_of_dict(value: dict[str, Any]) -> Any:
    if not all(isinstance(name, str) for name in value):
        raise CheckpointError("the names of a state's fields must be texts")
    rest = dict(value)
    if "framework" not in value and _are_messages(value.get("messages")):  # as a graph of LangGraph returns them
        return LangChainState(messages=rest.pop("messages"), values=rest)
    framework = rest.pop("framework", "custom")
    _check(framework, Annotated[str, msgspec.Meta(min_length=1)], "framework")
    if framework in _BUILT_IN:
        return _built_in(framework, rest)
    if framework in _registered:
        return _registered[framework].from_plain({name: _written(each, _ANY, name) for name, each in rest.items()})
    if "framework" in value and set(rest) == {"data"} and isinstance(rest["data"], dict):
        return CustomState(rest["data"], framework)
    return CustomState(rest, framework)


def _state_of_snapshot(snapshot: Any) -> LangChainState:
    if not isinstance(snapshot.values, dict):
        raise CheckpointError(
            f"expected a thread whose state is a dict, got {type(snapshot.values).__name__}; pass CustomState({{...}})",
            "values",
        )
    values = dict(snapshot.values)
    messages = values.pop("messages", [])
    config = {name: each for name, each in snapshot.config.get("configurable", {}).items() if isinstance(each, str)}
    return LangChainState(messages=messages, values=values, next=list(snapshot.next), metadata=config)


def _is_message(value: Any) -> bool:
    return _is_of(value, "langchain_core.messages", "BaseMessage")


def _are_messages(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_message, value))


def _message_data(message: Any) -> Any:
    """A message of LangChain's classes as its own writer writes it; anything else as it is."""
    return sys.modules["langchain_core.messages"].messages_to_dict([message])[0] if _is_message(message) else message


def _refuse(value: Any) -> NoReturn:
    raise CheckpointError(
        "a state is a dict, a LangChainState, OpenAIAgentsState or CustomState, an object of a class that was given "
        "to register_state, a StateSnapshot of LangGraph, a list of LangChain's messages, or a result of a run of "
        f"OpenAI Agents (for its input items: OpenAIAgentsState(items=...)); got {full_name(type(value))}"
    )


# Checkpoints

_Text = Annotated[str, msgspec.Meta(min_length=1)]


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


_ENTRY = {field.name: field.type for field in msgspec.structs.fields(CheckpointEntry)}


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an agent at one place of its run.

    Attributes:
        id: names it among all checkpoints.
        session_id: id of its session.
        sequence: its number in its journal, from 1.
        after: id of the last call that had ended when it was made, 0 if none had.
        label: a text of at most 200 characters.
        importance: from 0 to 1.
        created_at: time in UTC.
        state: the state, as it was when the checkpoint was made: a `LangChainState`, `OpenAIAgentsState` or
            `CustomState`, or an object of a class given to `register_state`. What else `state_of` takes is converted.
        redacted: the fields of the state from which redaction has removed something; none until it is in a file.

    Raises:
        CheckpointError: if a field is of a wrong type or out of range. The error names it.
    """

    session_id: str
    sequence: int
    state: Any
    id: str = msgspec.field(default_factory=lambda: uuid.uuid4().hex)
    after: int = 0
    label: str = ""
    importance: float = 0.5
    created_at: str = msgspec.field(default_factory=lambda: datetime.now(UTC).isoformat().replace("+00:00", "Z"))
    redacted: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in _ENTRY.keys() - {"framework"}:
            value = getattr(self, name)
            _check(value, _ENTRY[name], name)
            if isinstance(value, str) and not is_utf8(value):
                raise CheckpointError("it is no text: it has half of a character", name)
        msgspec.structs.force_setattr(self, "importance", float(self.importance))
        given = state_of(self.state)
        # A dict that says it is of a framework may be anything until it is restored.
        read = _untyped if isinstance(given, CustomState) else _typed
        msgspec.structs.force_setattr(self, "state", read(framework_of(given), decode(encode(state_data(given)))))

    @property
    def framework(self) -> str:
        """The framework of the state: it chooses the hooks that restore it."""
        return framework_of(self.state)


def checkpoint_line(checkpoint: Checkpoint, redaction: Redaction | None = None) -> bytes:
    """The line of a checkpoint in a journal.

    Args:
        checkpoint: the checkpoint.
        redaction: the rules by which secrets are removed from the label and the state.

    Raises:
        CheckpointError: if the class of its state is not registered any more.
    """
    state, label, redacted = state_data(checkpoint.state), checkpoint.label, set(checkpoint.redacted)
    if redaction is not None:
        label = redaction.text(label)
        if redaction.may_change(encode(state)):
            clean = redaction.apply(decode(encode(state)))
            if not isinstance(clean, dict):
                raise ConfigurationError("the redaction hook must return the fields of a state as a dict")
            # The name of a field that is not there any more may itself have been the secret.
            changed = {name for name in {**state, **clean} if state.get(name) != clean.get(name)}
            redacted |= {name if name in clean else redaction.text(name) for name in changed}
            state = clean
    line: dict[str, Any] = {
        "id": checkpoint.id,
        "sequence": checkpoint.sequence,
        "after": checkpoint.after,
        "label": label,
        "importance": checkpoint.importance,
        "created_at": checkpoint.created_at,
        "framework": checkpoint.framework,
        "state": state,
    }
    if redacted:
        line["redacted"] = sorted(redacted)
    return encode({"checkpoint": line}) + b"\n"


def checkpoint_of(data: Any, session_id: str) -> Checkpoint:
    """The checkpoint of a line.

    A state that does not fit the class of its framework is read as a `CustomState` with all that the line has, so that
    a class that has changed does not make a journal unreadable; `restore` raises the error, with the field.

    Args:
        data: what the line has under ``checkpoint``.
        session_id: id of the session whose journal it is.

    Raises:
        CheckpointError: if a field beside the state is of a wrong type or missing.
    """
    _check(data, dict[str, Any], "checkpoint")
    for name in (*(_ENTRY.keys() - {"session_id"}), "state"):
        if name not in data:
            raise CheckpointError("it is missing", name)
    framework, plain, redacted = data["framework"], data["state"], data.get("redacted", [])
    _check(framework, str, "framework")
    _check(plain, dict[str, Any], "state")
    _check(redacted, list[str], "redacted")
    found = Checkpoint(
        session_id=session_id,
        state=CustomState(),
        redacted=tuple(redacted),
        **{name: data[name] for name in _ENTRY.keys() - {"session_id", "framework"}},
    )
    try:
        state = _typed(framework, plain)
    except CheckpointError:
        state = _untyped(framework, plain)
    msgspec.structs.force_setattr(found, "state", state)
    return found
