"""Putting a checkpoint's state into an agent: hooks for frameworks, and `restore`, which changes all or nothing."""

from __future__ import annotations

import dataclasses
import inspect
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

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
from agent_cache.resume.draft import Draft, assign_all
from agent_cache.resume.frameworks import is_graph, is_session, messages_of, restore_session, restore_thread
from agent_cache.values.canonical import declared_names, is_model

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
        hook: ``hook(state, target)``, a function or a coroutine function. It is given a draft of the target, which it
            may change in any way; see `restore`. It returns None or what it was given, or a new object that takes the
            target's place.

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

    The hooks that are registered for the checkpoint's framework change a *draft* of the target: an object of the same
    class with the same attributes, whose containers are copies. When all of them have returned, the target is changed
    accordingly, in one step without an ``await`` in it: attributes by ``setattr``, containers in place. What a hook
    does to anything else is done at once, and stays done if a hook fails: to objects that the target refers to, to
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
        RestoreError: if a hook raised, with the errors of all hooks; if the target refused a value, or was changed by
            something else in the meantime; if another restore of this target is running.
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
    try:
        draft = Draft(target)
    except (RestoreError, MemoryError):
        raise
    except Exception as error:
        raise RestoreError(
            f"there can be no draft of a {type(target).__qualname__} ({type(error).__name__}: {error}); give restore "
            "the object that your hook changes, or None if it makes a new one",
            (error,),
        ) from error
    try:
        given = draft.value
        errors: list[Exception] = []
        for hook in hooks:
            try:
                returned = await _called(hook, state, given)
            except Exception as error:
                if hook is _assign_fields and isinstance(error, CheckpointError):
                    raise
                errors.append(error)
            else:
                given = given if returned is None or returned is target else returned
        if errors:
            texts = "; ".join(f"{type(error).__name__}: {error}" for error in errors)
            raise RestoreError(
                f"{len(errors)} of {len(hooks)} hooks failed, and the target is as it was: {texts}", errors
            ) from errors[0]
        if given is not draft.value:
            return given
        draft.commit()
        return target
    finally:
        draft.discard()


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
    assign_all(fields, lambda name: setattr(target, name, fields[name]))
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
