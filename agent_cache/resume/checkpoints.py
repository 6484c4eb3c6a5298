"""Checkpoints of a run: their typed states, and their lines in a journal.

    {"checkpoint": {"id": "5f1c...", "sequence": 1, "after": 12, "label": "planned", "importance": 0.5,
                    "created_at": "2026-01-01T12:00:00Z", "framework": "langchain", "state": {"messages": [...]}}}

``state`` has the fields of the state by name, each as plain data that gives the value back as it was
(`agent_cache.recording.schema`). ``redacted`` names the fields from which secrets were removed, if there
are any. ``framework`` chooses among the classes that this program knows: `LangChainState`,
`OpenAIAgentsState`, and those given to `register_state`. No name that is found in a file is imported. The state of any
other framework, and one that its class cannot take any more, is a `CustomState` that keeps all of it.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn, TypeVar

import msgspec

from agent_cache.errors import CheckpointError, ConfigurationError
from agent_cache.recording.outcomes import PlainSchema, decode, encode, is_utf8, schema_of
from agent_cache.recording.redaction import Redaction
from agent_cache.values.canonical import declared_fields, declared_names, full_name, is_model
from agent_cache.values.typed import Schema, Undecodable, Unencodable, hints_of

__all__ = [
    "Checkpoint",
    "CustomState",
    "LangChainState",
    "OpenAIAgentsState",
    "State",
    "checkpoint_line",
    "checkpoint_of",
    "framework_of",
    "register_state",
    "state_data",
    "state_of",
    "typed_state",
]

T = TypeVar("T")

MAX_LABEL = 200
"""Characters of a label."""

_ANY = schema_of(Any)


# States of known frameworks


class State(msgspec.Struct, frozen=True):
    """Base of the states that this package defines.

    The fields are checked when a state is made, and copied when a `Checkpoint` is made from it.
    """

    def __post_init__(self) -> None:
        """Check the type of each field.

        Raises:
            CheckpointError: if one is wrong.
        """
        for field in msgspec.structs.fields(type(self)):
            _check(getattr(self, field.name), field.type, field.name)


class LangChainState(State, frozen=True, kw_only=True, tag_field="framework", tag="langchain"):
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

    def __post_init__(self) -> None:
        if isinstance(self.messages, list):
            msgspec.structs.force_setattr(self, "messages", [_message_data(one) for one in self.messages])
        super().__post_init__()

    @property
    def framework(self) -> str:
        """``"langchain"``."""
        return "langchain"


class OpenAIAgentsState(State, frozen=True, kw_only=True, tag_field="framework", tag="openai_agents"):
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

    @property
    def framework(self) -> str:
        """``"openai_agents"``."""
        return "openai_agents"


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
    framework: str = "custom"
    unread: dict[str, Any] = {}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.framework:
            raise CheckpointError("it is empty", "framework")
        for name in self.data.keys() & self.unread.keys():
            raise CheckpointError("it is among the fields that were read and those that were not", f"unread.{name}")


_PATH = re.compile(r"^(?P<reason>.*?)(?: - at `(?:key in )?\$(?P<path>.*)`)?$", re.DOTALL)


def _check(value: Any, annotation: Any, name: str) -> None:
    try:
        msgspec.convert(value, annotation, strict=True)
    except msgspec.ValidationError as error:
        found = _PATH.match(str(error))
        reason, path = (found["reason"], found["path"] or "") if found else (str(error), "")
        raise CheckpointError(_in_python(reason), name + path.replace("[...]", "[?]")) from None


def _in_python(reason: str) -> str:
    """A reason of msgspec's, which names types as JSON does, for objects of Python."""
    words = {"array": "list", "object": "dict"}
    return "expected " + re.sub(
        r"`(\w+)`", lambda found: words.get(found[1], found[1]), reason.removeprefix("Expected ")
    )


# Classes of users


class _StateClass:
    """Writes and reads the state of one registered class, field by field, so that an error names the field."""

    def __init__(self, kind: Any, framework: str, names: tuple[str, ...]) -> None:
        hints = hints_of(kind)
        self.kind = kind
        self.framework = framework
        self.schemas: dict[str, PlainSchema] = {name: schema_of(hints.get(name, Any)) for name in names}
        self.defaults = _defaults_of(kind)

    def to_plain(self, state: Any) -> dict[str, Any]:
        """The fields of a state as plain data."""
        try:
            declared = declared_fields(state, self.kind)
        except Exception as error:
            raise CheckpointError(f"reading a state of {full_name(self.kind)} raised {error!r}") from error
        if declared is None or {name for name, _ in declared if name not in _OF_MODELS} != self.schemas.keys():
            raise CheckpointError(
                f"a state of {full_name(self.kind)} has attributes beside the fields that its class declares, or lacks "
                "some of them"
            )
        return {name: _written(value, self.schemas[name], name) for name, value in declared if name in self.schemas}

    def from_plain(self, plain: Mapping[str, Any]) -> Any:
        """The state that `to_plain` has written, or one of an earlier version of the class that had fewer fields."""
        for name in plain.keys() - self.schemas.keys():
            raise CheckpointError(f"the class {full_name(self.kind)} has no such field (any more)", name)
        values = {}
        for name, schema in self.schemas.items():
            if name in plain:
                values[name] = _read(plain[name], schema, name)
            elif name in self.defaults:
                values[name] = self.defaults[name]()
            else:
                raise CheckpointError(
                    f"the checkpoint does not have it, and the class {full_name(self.kind)} has no default for it", name
                )
        # Constructors have seen the fields when the original was made.
        return Schema.made(self.kind, values, [None, None, set(values)] if is_model(self.kind) else [])


_OF_MODELS = frozenset({"__pydantic_extra__", "__pydantic_private__", "__pydantic_fields_set__"})


def _defaults_of(kind: Any) -> dict[str, Callable[[], Any]]:
    """What makes the default of each field that has one."""
    found: dict[str, Callable[[], Any]] = {}
    if is_model(kind):
        for name, field in kind.__pydantic_fields__.items():
            if not field.is_required():
                found[name] = partial(field.get_default, call_default_factory=True)
    elif dataclasses.is_dataclass(kind):
        for one in dataclasses.fields(kind):
            if one.default is not dataclasses.MISSING:
                found[one.name] = partial(_same, one.default)
            elif one.default_factory is not dataclasses.MISSING:
                found[one.name] = one.default_factory
    elif issubclass(kind, msgspec.Struct):
        for part in msgspec.structs.fields(kind):
            if part.default is not msgspec.NODEFAULT:
                found[part.name] = partial(_same, part.default)
            elif part.default_factory is not msgspec.NODEFAULT:
                found[part.name] = part.default_factory
    elif issubclass(kind, tuple):
        for name, default in getattr(kind, "_field_defaults", {}).items():
            found[name] = partial(_same, default)
    return found


def _same(value: T) -> T:
    return value


_BUILT_IN: dict[str, type[LangChainState] | type[OpenAIAgentsState]] = {
    "langchain": LangChainState,
    "openai_agents": OpenAIAgentsState,
}
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
    _registered[name] = _StateClass(kind, name, names)
    _framework_of_class[kind] = name
    return kind


def _names_of(kind: Any) -> tuple[str, ...]:
    if isinstance(kind, type) and is_model(kind):
        model: Any = kind
        if model.__private_attributes__ or model.model_config.get("extra") == "allow":
            raise ConfigurationError(
                f"register_state: {_name_of(kind)} has private attributes or allows extra ones, which no field "
                "declares; give it a model whose fields are all of its state"
            )
        return tuple(model.__pydantic_fields__)
    names = declared_names(kind) if isinstance(kind, type) else None
    if names is None:
        raise ConfigurationError(
            "register_state takes a dataclass, a named tuple, or a class of msgspec, attrs or pydantic, "
            f"got {kind!r}; other states are given as a dict"
        )
    return names


def _name_of(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


# Plain data


def _written(value: Any, schema: PlainSchema, name: str) -> Any:
    try:
        return schema.to_plain(value)
    except Unencodable as error:
        if schema is _ANY and isinstance(value, (dict, list)) and len(value) < _MAX_NAMED_MEMBERS:
            _find_unencodable(value, name)
        raise CheckpointError(f"{error}; pass plain values, or a class given to register_state", name) from None


_MAX_NAMED_MEMBERS = 10_000


def _find_unencodable(value: dict[Any, Any] | list[Any], name: str) -> None:
    """Raise the error of the member that cannot be written, under its path."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, member in pairs:
        path = f"{name}.{key}" if isinstance(key, str) else f"{name}[{key!r}]"
        if path.count(".") + path.count("[") < _MAX_DEPTH_NAMED:
            try:
                _ANY.to_plain(member)
            except Unencodable:
                _written(member, _ANY, path)


_MAX_DEPTH_NAMED = 6


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
    name = _framework_of_class.get(type(state))
    if name is None:
        _refuse(state)
    return name


def _typed(framework: str, plain: Mapping[str, Any]) -> Any:
    """The state of a framework that this program has a class for.

    Raises:
        CheckpointError: if the data does not fit the class.
    """
    built_in = _BUILT_IN.get(framework)
    if built_in is None:
        return _registered[framework].from_plain(plain)
    names = built_in.__struct_fields__
    fields = {name: _read(each, _ANY, name) for name, each in plain.items() if name in names}
    more = {name: each for name, each in plain.items() if name not in names}
    if more:
        metadata = fields.get("metadata", {})
        if not isinstance(metadata, dict):
            raise CheckpointError(f"expected dict, got {type(metadata).__name__}", "metadata")
        fields["metadata"] = {**metadata, "_extra": more}
    return built_in(**fields)


def _untyped(framework: str, plain: Mapping[str, Any]) -> CustomState:
    data, unread = {}, {}
    for name, each in plain.items():
        try:
            data[name] = _ANY.from_plain(each)
        except Undecodable:
            unread[name] = each
    return CustomState(data, framework or "custom", unread)


def _is_known(framework: str) -> bool:
    return framework in _BUILT_IN or framework in _registered


def _from_file(framework: str, plain: Mapping[str, Any]) -> Any:
    """A state of any framework. What does not fit its class is a `CustomState`: reading loses nothing."""
    if _is_known(framework):
        try:
            return _typed(framework, plain)
        except CheckpointError:
            pass
    return _untyped(framework, plain)


def typed_state(state: Any) -> Any:
    """A copy of the state of a checkpoint, as the class of its framework if this program knows that class by now.

    Raises:
        CheckpointError: if the state does not fit the class. The error names the field.
    """
    framework = framework_of(state)
    plain = decode(encode(state_data(state)))
    return _typed(framework, plain) if _is_known(framework) else _untyped(framework, plain)


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
    snapshot = _loaded_class("langgraph.types", "StateSnapshot")
    if snapshot is not None and isinstance(value, snapshot):
        return _state_of_snapshot(value)
    if _are_messages(value):
        return LangChainState(messages=value)
    result = _loaded_class("agents.result", "RunResultBase")
    if result is not None and isinstance(value, result):
        return _state_of_result(value)
    return _refuse(value)


def _loaded_class(module: str, name: str) -> Any:
    """A class of a package, if this program has imported that package."""
    found = getattr(sys.modules.get(module), name, None)
    return found if isinstance(found, type) else None


def _state_of_dict(value: dict[str, Any]) -> Any:
    if not all(isinstance(name, str) for name in value):
        raise CheckpointError("the names of a state's fields must be texts")
    rest = dict(value)
    if "framework" not in value and _are_messages(value.get("messages")):  # as a graph of LangGraph returns them
        return LangChainState(messages=rest.pop("messages"), values=rest)
    framework = rest.pop("framework", "custom")
    if not isinstance(framework, str) or not framework:
        raise CheckpointError(f"expected the name of a framework, got {framework!r}", "framework")
    if framework in _BUILT_IN:
        kind = _BUILT_IN[framework]
        more = {name: rest.pop(name) for name in rest.keys() - set(kind.__struct_fields__)}
        metadata = rest.get("metadata", {})
        if more and isinstance(metadata, dict):
            rest["metadata"] = {**metadata, "_extra": more}
        return kind(**rest)
    if framework in _registered:
        return _registered[framework].from_plain({name: _written(each, _ANY, name) for name, each in rest.items()})
    if "framework" in value and set(rest) == {"data"} and isinstance(rest["data"], dict):
        return CustomState(rest["data"], framework)
    return CustomState(rest, framework)


def _state_of_snapshot(snapshot: Any) -> LangChainState:
    if not isinstance(snapshot.values, dict):
        raise CheckpointError(
            f"expected a thread whose state is a dict, got {type(snapshot.values).__name__}; pass "
            "CustomState({...}) with what you need of it",
            "values",
        )
    values = dict(snapshot.values)
    messages = values.pop("messages", [])
    config = {name: each for name, each in snapshot.config.get("configurable", {}).items() if isinstance(each, str)}
    return LangChainState(messages=messages, values=values, next=list(snapshot.next), metadata=config)


def _state_of_result(result: Any) -> OpenAIAgentsState:
    if getattr(result, "is_complete", True) is False:
        raise CheckpointError("the run is still streaming; take the checkpoint when its stream has ended", "items")
    agent = getattr(result.last_agent, "name", "")
    return OpenAIAgentsState(
        items=result.to_input_list(), last_agent=agent, last_response_id=getattr(result, "last_response_id", None)
    )


def _is_message(value: Any) -> bool:
    kind = _loaded_class("langchain_core.messages", "BaseMessage")
    return kind is not None and isinstance(value, kind)


def _are_messages(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_message, value))


def _message_data(message: Any) -> Any:
    """A message of LangChain's classes as its own writer writes it; anything else as it is."""
    if not _is_message(message):
        return message
    return sys.modules["langchain_core.messages"].messages_to_dict([message])[0]


def _refuse(value: Any) -> NoReturn:
    raise CheckpointError(
        "a state is a dict, a LangChainState, OpenAIAgentsState or CustomState, an object of a class that was given "
        "to register_state, a StateSnapshot of LangGraph, a list of LangChain's messages, or a result of a run of "
        f"OpenAI Agents (for its input items: OpenAIAgentsState(items=...)); got {full_name(type(value))}"
    )


# Checkpoints


class _Detached:
    """A state that nothing else refers to."""

    def __init__(self, state: Any) -> None:
        self.state = state


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

    _ENVELOPE: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {"id": str, "session_id": str, "sequence": int, "after": int, "label": str, "importance": float,
         "created_at": str}
    )  # fmt: skip

    def __post_init__(self) -> None:
        for name, kind in self._ENVELOPE.items():
            _check(getattr(self, name), kind, name)
            if kind is str and not is_utf8(getattr(self, name)):
                raise CheckpointError("it is no text: it has half of a character", name)
        for name in ("id", "session_id", "created_at"):
            if not getattr(self, name):
                raise CheckpointError("it is empty", name)
        if self.sequence < 1:
            raise CheckpointError(f"it counts from 1, got {self.sequence}", "sequence")
        if self.after < 0:
            raise CheckpointError(f"it is the id of a call, or 0, got {self.after}", "after")
        if len(self.label) > MAX_LABEL:
            raise CheckpointError(f"it has {len(self.label)} characters, and may have {MAX_LABEL}", "label")
        if not 0 <= self.importance <= 1:
            raise CheckpointError(f"it is from 0 to 1, got {self.importance!r}", "importance")
        msgspec.structs.force_setattr(self, "importance", float(self.importance))
        if isinstance(self.state, _Detached):
            state = self.state.state
        else:
            given = state_of(self.state)
            plain = decode(encode(state_data(given)))
            # A dict that says it is of a framework may be anything until it is restored.
            is_custom = isinstance(given, CustomState)
            state = (_untyped if is_custom else _typed)(framework_of(given), plain)
        msgspec.structs.force_setattr(self, "state", state)

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
    if not isinstance(data, dict):
        raise CheckpointError(f"expected dict, got {type(data).__name__}", "checkpoint")
    for name in ("id", "sequence", "after", "label", "importance", "created_at", "framework", "state"):
        if name not in data:
            raise CheckpointError("it is missing", name)
    framework, plain = data["framework"], data["state"]
    _check(framework, str, "framework")
    _check(plain, dict[str, Any], "state")
    redacted = data.get("redacted", [])
    _check(redacted, list[str], "redacted")
    return Checkpoint(
        id=data["id"],
        session_id=session_id,
        sequence=data["sequence"],
        after=data["after"],
        label=data["label"],
        importance=data["importance"],
        created_at=data["created_at"],
        state=_Detached(_from_file(framework, plain)),
        redacted=tuple(redacted),
    )
