"""Putting a checkpoint's state into an agent: hooks for frameworks, and `restore`, which changes all or nothing."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import threading
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
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
from agent_cache.values.canonical import declared_names, full_name, has_native_state

__all__ = ["register_restore_hook", "restore"]

T = TypeVar("T")
_Hook = Callable[[Any, Any], Any]

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
    with _lock:
        if target is not None and id(target) in _busy:
            raise RestoreError(f"another restore of this {type(target).__qualname__} is running")
        _busy.add(id(target))
    try:
        if not hooks and isinstance(state, LangChainState) and is_graph(target):
            await restore_thread(state, target)
        elif not hooks and isinstance(state, OpenAIAgentsState) and is_session(target):
            await restore_session(state, target)
        else:
            return cast("T", await _restored(state, target, hooks or (_assign_fields,)))
        return target
    finally:
        with _lock:
            _busy.discard(id(target))


async def _restored(state: Any, target: Any, hooks: tuple[_Hook, ...]) -> Any:
    before, given, is_done = _Snapshot(target), target, False
    errors: list[Exception] = []
    try:
        for hook in hooks:
            try:
                returned = await _called(hook, state, given)
            except CheckpointError:
                raise
            except Exception as error:  # noqa: BLE001 - a hook is the user's, and the errors of all are raised below
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
        self._contents: dict[int, tuple[Any, Any]] = {}  # containers and their copies
        pending: list[Any] = [target, *self._attributes.values()]
        while pending:
            value = pending.pop()
            if id(value) not in self._contents and (type(value) in _CONTAINERS or isinstance(value, tuple)):
                self._contents[id(value)] = value, value if isinstance(value, tuple) else copy.copy(value)
                pending += [*value.keys(), *value.values()] if isinstance(value, dict) else value

    def put_back(self) -> None:
        """Give the object all of it again, without code of its class."""
        now = _attributes(self._target) if self._has_attributes else {}
        for name in now | self._attributes:
            value = self._attributes.get(name, _MISSING)
            if value is not now.get(name, _MISSING):
                _write(self._target, name, value)
        for container, content in self._contents.values():
            if isinstance(container, list | bytearray):
                container[:] = content
            elif not isinstance(container, tuple):
                container.clear()
                (container.extend if isinstance(container, deque) else container.update)(content)


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
    if target is None:
        raise TypeError("there is no target, and no hook that makes one: see register_restore_hook")
    if isinstance(target, list):
        name = "messages" if isinstance(state, LangChainState) else "items"
        if not isinstance(state, (LangChainState, OpenAIAgentsState)) or fields.keys() != {name}:
            raise TypeError(f"a list has no place for the fields of the state: {', '.join(sorted(fields))}")
        target[:] = fields[name]
        return target
    if isinstance(target, dict):
        target.update(fields)
        return target
    kind: Any = type(target)
    declared = declared_names(kind)
    if unknown := sorted(name for name in fields if declared and name not in declared and not hasattr(kind, name)):
        raise AttributeError(
            f"{kind.__qualname__} has no field {', '.join(unknown)}; register a hook that says where they belong"
        )
    if isinstance(target, tuple):
        return cast("Any", target)._replace(**fields)
    if dataclasses.is_dataclass(target) and kind.__dataclass_params__.frozen:
        return dataclasses.replace(cast("Any", target), **fields)
    if isinstance(target, msgspec.Struct) and target.__struct_config__.frozen:
        return msgspec.structs.replace(target, **fields)
    for name, value in fields.items():
        setattr(target, name, value)
    return target


def _fields_of(state: Any, target: Any) -> dict[str, Any]:
    if isinstance(state, CustomState):
        for name in state.unread:
            raise CheckpointError(
                "its class is not known here; import the module that gives it to register_state", name
            )
        return dict(state.data)
    if isinstance(state, LangChainState):
        fields = {"messages": messages_of(state), **state.values}
        if state.intermediate_steps or _has(target, "intermediate_steps"):
            fields["intermediate_steps"] = list(state.intermediate_steps)
        return fields
    names = declared_names(type(state)) or tuple(cast("Any", type(state)).__pydantic_fields__)
    if isinstance(state, State):
        names = tuple(name for name in names if name == "items" or _has(target, name))
    return {name: getattr(state, name) for name in names}


def _has(target: Any, name: str) -> bool:
    return name in target if isinstance(target, dict) else hasattr(target, name)
