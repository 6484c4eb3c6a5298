"""Putting a checkpoint's state into an agent: hooks for frameworks, and `restore`, which changes all or nothing."""

from __future__ import annotations

import dataclasses
import inspect
import threading
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from typing import Any, Final, TypeVar, cast

import msgspec

from agent_cache.errors import CheckpointError, ConfigurationError, RestoreError
from agent_cache.resume.checkpoints import (
    Checkpoint,
    CustomState,
    LangChainState,
    OpenAIAgentsState,
    State,
    framework_of,
    typed_state,
)
from agent_cache.resume.frameworks import is_graph, is_session, messages_of, restore_session, restore_thread
from agent_cache.values.canonical import declared_names, full_name, has_native_state, is_model

__all__ = ["register_restore_hook", "restore"]

T = TypeVar("T")
_Hook = Callable[[Any, Any], Any]
"""``hook(state, target)``: puts a state into a target, and returns nothing, the target, or another object in its place.
It may be a coroutine function."""

_hooks: dict[str, list[_Hook]] = {}
_busy: set[int] = set()
_lock = threading.Lock()


def register_restore_hook(framework: str, hook: _Hook) -> Callable[[], None]:
    """Have a hook restore the states of a framework.

    Several hooks of a framework run in the order in which they were registered. They take the place of what
    `restore` does by itself.

    Args:
        framework: as in `Checkpoint.framework`: ``"langchain"``, ``"openai_agents"``, ``"custom"``, or the name of a
            registered class.
        hook: ``hook(state, target)``, a function or a coroutine function, which changes the target in any way; see
            `restore`. It returns None or what it was given, or a new object that takes the target's place.

    Returns:
        A function that removes the hook.

    Raises:
        ConfigurationError: if the framework is no text, or the hook cannot be called.
    """
    if not isinstance(framework, str) or not framework:
        raise ConfigurationError(f"register_restore_hook: framework must be a name, got {framework!r}")
    if not callable(hook):
        raise ConfigurationError(f"register_restore_hook: hook must be a function of state and target, got {hook!r}")
    with _lock:
        _hooks[framework] = [*_hooks.get(framework, ()), hook]

    def remove() -> None:
        with _lock:
            _hooks[framework] = [one for one in _hooks[framework] if one is not hook]

    return remove


async def restore(checkpoint: Checkpoint, target: T, *, accept_redacted: bool = False) -> T:
    """Put the state of a checkpoint into an agent. If that fails, the agent is as it was.

    The hooks that are registered for the checkpoint's framework change the target. If one fails, is cancelled, or
    returns a new object, the target gets back the attributes that it had, and each builtin container among them, and in
    these, its content. What a hook has done to anything else stays done: to objects that the target refers to, to
    files, servers and databases.

    Without a hook, a state is restored by what it is and by what the target is:

    - `LangChainState` into a graph of LangGraph, with the thread in its configuration
      (``graph.with_config({"configurable": {"thread_id": ...}})``): the thread gets the values and the next nodes.
    - `OpenAIAgentsState` into a ``Session`` of OpenAI Agents: the session gets the items.
    - any other: the attributes of the target, or the items of a dict, are set to the fields of the state. For these two
      states a list as target gets the messages, or the items.

    Args:
        checkpoint: the checkpoint.
        target: the agent, or None if a hook makes one.
        accept_redacted: True restores also a state from which redaction has removed something when it was written. In
            place of a secret there is then a text such as ``[redacted]``.

    Returns:
        The target, or the object that a hook returned in its place; the target is then as it was.

    Raises:
        CheckpointError: if the state does not fit the class of its framework, has fields that could not be read, or
            lacks what redaction has removed.
        RestoreError: if a hook raised, with the errors of all hooks; if the target keeps state that could not be put
            back; if another restore of this target is running.
    """
    if not isinstance(checkpoint, Checkpoint):
        raise CheckpointError(f"restore takes a Checkpoint, got {type(checkpoint).__name__}")
    if checkpoint.redacted and not accept_redacted:
        raise CheckpointError(
            "redaction removed something from it when the checkpoint was written; keep secrets out of states, or "
            "restore with accept_redacted=True and set them again",
            checkpoint.redacted[0],
        )
    state = typed_state(checkpoint.state)
    hooks = tuple(_hooks.get(framework_of(state), ()))
    place = id(target)
    with _lock:
        if target is not None and place in _busy:
            raise RestoreError(f"another restore of this {type(target).__qualname__} is running")
        _busy.add(place)
    try:
        if not hooks and isinstance(state, LangChainState) and is_graph(target):
            await restore_thread(state, target)
            return target
        if not hooks and isinstance(state, OpenAIAgentsState) and is_session(target):
            await restore_session(state, target)
            return target
        return cast("T", await _restored(state, target, hooks or (_assign_fields,)))
    finally:
        with _lock:
            _busy.discard(place)


async def _restored(state: Any, target: Any, hooks: tuple[_Hook, ...]) -> Any:
    before, given, is_done = _Snapshot(target), target, False
    errors: list[Exception] = []
    try:
        for hook in hooks:
            try:
                returned = await _called(hook, state, given)
            except Exception as error:
                if hook is _assign_fields and isinstance(error, CheckpointError):
                    raise
                errors.append(error)
            else:
                given = given if returned is None else returned
        if errors:
            texts = "; ".join(f"{type(error).__name__}: {error}" for error in errors)
            raise RestoreError(
                f"{len(errors)} of {len(hooks)} hooks failed, and the target is as it was: {texts}", errors
            ) from errors[0]
        is_done = given is target
        return given
    finally:
        if not is_done:
            before.put_back()


async def _called(hook: _Hook, state: Any, given: Any) -> Any:
    returned = hook(state, given)
    if returned is not given and inspect.isawaitable(returned):
        returned = await returned
    is_builtin = type(returned).__module__ == "builtins" and type(returned) is not type(given)
    if isinstance(returned, bool) or (is_builtin and returned is not None and given is not None):
        raise TypeError(
            f"the hook {getattr(hook, '__qualname__', hook)!s} returned {returned!r}; a hook returns None, what it was "
            "given, or the object that takes its place"
        )
    return returned


# What a target has, to be put back

_CONTAINERS: Final = frozenset({list, dict, OrderedDict, Counter, defaultdict, set, deque, bytearray})
_SCALARS: Final = frozenset({type(None), bool, int, float, complex, str, bytes, frozenset})
_MISSING: Final = object()


class _Snapshot:
    """The attributes of an object, and the contents of the builtin containers in it, at any depth.

    Raises:
        RestoreError: if it keeps state that only code in C can put back.
    """

    def __init__(self, target: Any) -> None:
        kind = type(target)
        self._target = target
        self._has_attributes = not (kind in _CONTAINERS or kind in _SCALARS or isinstance(target, tuple))
        if self._has_attributes and kind is not types.SimpleNamespace and has_native_state(kind):
            raise RestoreError(
                f"the target is a {full_name(kind)}, which keeps state that cannot be put back; give restore the "
                "object that your hook changes, or None if it makes a new one"
            )
        self._attributes = _attributes(target) if self._has_attributes else {}
        self._contents: list[tuple[Any, tuple[Any, ...]]] = []
        seen: set[int] = set()
        pending: list[Any] = [target, *self._attributes.values()]
        while pending:
            value = pending.pop()
            if id(value) not in seen and (type(value) in _CONTAINERS or isinstance(value, tuple)):
                seen.add(id(value))
                parts = tuple(chain.from_iterable(value.items()) if isinstance(value, dict) else value)
                if not isinstance(value, tuple):
                    self._contents.append((value, parts))
                pending += parts

    def put_back(self) -> None:
        """Give the object all of it again, without code of its class."""
        now = _attributes(self._target) if self._has_attributes else {}
        for name in now | self._attributes:
            value = self._attributes.get(name, _MISSING)
            if value is not now.get(name, _MISSING):
                _write(self._target, name, value)
        for container, parts in self._contents:
            _fill(container, parts)


def _fill(container: Any, parts: tuple[Any, ...]) -> None:
    if isinstance(container, list | bytearray):
        container[:] = parts
        return
    container.clear()
    if isinstance(container, dict):
        for key, value in zip(parts[::2], parts[1::2], strict=True):
            container[key] = value
    else:
        (container.update if isinstance(container, set) else container.extend)(parts)


def _slots(kind: type) -> dict[str, types.MemberDescriptorType]:
    found = {name: each for base in reversed(kind.__mro__) for name, each in vars(base).items()}
    return {name: each for name, each in found.items() if isinstance(each, types.MemberDescriptorType)}


def _attributes(owner: Any) -> dict[str, Any]:
    """The attributes of an object, as they are kept."""
    found: dict[str, Any] = {}
    for name, slot in _slots(type(owner)).items():
        with suppress(AttributeError):
            found[name] = slot.__get__(owner)
    return found | (object.__getattribute__(owner, "__dict__") if type(owner).__dictoffset__ else {})


def _write(owner: Any, name: str, value: Any) -> None:
    """Set or remove an attribute without code of the class."""
    slot = _slots(type(owner)).get(name)
    if slot is not None:
        with suppress(AttributeError):
            slot.__delete__(owner) if value is _MISSING else slot.__set__(owner, value)
    elif value is _MISSING:
        object.__getattribute__(owner, "__dict__").pop(name, None)
    else:
        object.__getattribute__(owner, "__dict__")[name] = value


# Without a hook


def _assign_fields(state: Any, target: Any) -> Any:
    """Set attributes or items of a target to the fields of a state."""
    fields = _fields_of(state, target)
    if isinstance(target, list):
        name = "messages" if isinstance(state, LangChainState) else "items"
        others = fields.keys() - {name}
        if not isinstance(state, (LangChainState, OpenAIAgentsState)) or others:
            raise TypeError(f"a list has no place for the fields of the state: {', '.join(sorted(others))}")
        target[:] = fields[name]
        return target
    if isinstance(target, dict):
        target.update(fields)
        return target
    if target is None:
        raise TypeError("there is no target, and no hook that makes one: see register_restore_hook")
    unknown = fields.keys() - _declared(type(target), fields.keys())
    if unknown:
        raise AttributeError(
            f"{type(target).__qualname__} has no field {', '.join(sorted(unknown))}; register a hook that says where "
            "they belong"
        )
    if isinstance(target, tuple):
        return cast("Any", target)._replace(**fields)
    if dataclasses.is_dataclass(target) and cast("Any", type(target)).__dataclass_params__.frozen:
        return dataclasses.replace(cast("Any", target), **fields)
    if isinstance(target, msgspec.Struct) and target.__struct_config__.frozen:
        return msgspec.structs.replace(target, **fields)
    left = list(fields)
    while left:  # what the class refuses is tried again after the others
        refused: dict[str, Exception] = {}
        for name in left:
            try:
                setattr(target, name, fields[name])
            except Exception as error:  # noqa: BLE001 - a setter may raise anything
                refused[name] = error
        if len(refused) == len(left):
            raise refused[left[-1]]
        left = list(refused)
    return target


def _declared(kind: Any, names: Any) -> set[str]:
    """Those of these names that objects of a class may have. A class that declares no fields may have any."""
    if is_model(kind):
        return (
            set(names)
            if kind.model_config.get("extra") == "allow"
            else {name for name in names if name in kind.__pydantic_fields__ or hasattr(kind, name)}
        )
    declared = declared_names(kind)
    if declared is None:
        return set(names)
    return {name for name in names if name in declared or hasattr(kind, name)}


def _fields_of(state: Any, target: Any) -> dict[str, Any]:
    if isinstance(state, CustomState):
        if state.unread:
            raise CheckpointError(
                "its class is not known here; import the module that gives it to register_state",
                next(iter(state.unread)),
            )
        return dict(state.data)
    if isinstance(state, LangChainState):
        fields = {"messages": messages_of(state), **state.values}
        if state.intermediate_steps or _has(target, "intermediate_steps"):
            fields["intermediate_steps"] = list(state.intermediate_steps)
        return fields
    if isinstance(state, State):
        fields = {name: getattr(state, name) for name in state.__struct_fields__}
        return {name: value for name, value in fields.items() if name == "items" or _has(target, name)}
    names = declared_names(type(state)) or tuple(cast("Any", type(state)).__pydantic_fields__)
    return {name: getattr(state, name) for name in names}


def _has(target: Any, name: str) -> bool:
    return name in target if isinstance(target, dict) else hasattr(target, name)
