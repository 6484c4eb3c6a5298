"""Putting a checkpoint's state into an agent: hooks for frameworks, and `restore`, which changes all or nothing.

Threads of LangGraph and sessions of OpenAI Agents are kept in databases, and written by the frameworks' own functions.
What fails or is cancelled there is written back; what reads the database in between sees the writes.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar, cast

from agent_cache.core.options import takes
from agent_cache.errors import CheckpointError, ConfigurationError, RestoreError
from agent_cache.recording.outcomes import common_length
from agent_cache.resume.checkpoints import Checkpoint, LangChainState, OpenAIAgentsState, fields_of, typed_state
from agent_cache.values.canonical import declared_names, full_name, has_native_state

__all__ = ["register_restore_hook", "restore"]

T = TypeVar("T")
_Hook = Callable[[Any, Any], Any]

_hooks: dict[str, list[_Hook]] = {}


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
    is_generator = inspect.isgeneratorfunction(hook) or inspect.isasyncgenfunction(hook)  # of which nothing would run
    if not isinstance(framework, str) or not framework or not callable(hook) or is_generator or not takes(hook, 2):
        text = "takes a name and a function of state and target, no generator"
        raise ConfigurationError(f"register_restore_hook {text}, got {framework!r} and {hook!r}")
    _hooks[framework] = [*_hooks.get(framework, ()), hook]

    def remove() -> None:
        _hooks[framework] = [one for one in _hooks[framework] if one is not hook]

    return remove


async def restore(checkpoint: Checkpoint, target: T, *, accept_redacted: bool = False) -> T:
    """Put the state of a checkpoint into an agent. If that fails, the agent is as it was.

    One restore of a target runs at a time; nothing else changes it meanwhile.

    The hooks that are registered for the checkpoint's framework change the target. If one fails, is cancelled, or
    returns a new object, the target gets back the attributes that it had, and each builtin container among them, and in
    these, its content. What a hook has done to anything else stays done: to objects that the target refers to, to
    its class, to files, servers and databases.

    Without a hook, a state is restored by what it is and by what the target is:

    - `LangChainState` into a graph of LangGraph, with the thread in its configuration
      (``graph.with_config({"configurable": {"thread_id": ...}})``): the thread gets the values and the next nodes.
    - `OpenAIAgentsState` into a ``Session`` of OpenAI Agents: the session gets the items.
    - any other: the attributes of the target, or the items of a mapping, are set to the fields of the state. For these
      two states a list as target gets the messages, or the items.

    Args:
        checkpoint: the checkpoint.
        target: the agent, or None if a hook makes one.
        accept_redacted: True restores also a state from which redaction has removed something when it was written. In
            place of a secret there is then a text such as ``[redacted]``.

    Returns:
        The target, or the object that a hook returned in its place; the target is then as it was.

    Raises:
        CheckpointError: if the state does not fit the class of its framework, or lacks what redaction has removed.
        RestoreError: if a hook raised, with the errors of all hooks; if the target keeps state that could not be put
            back.
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
    hooks = tuple(_hooks.get(checkpoint.framework, ()))
    if not hooks and isinstance(state, LangChainState) and hasattr(type(target), "aupdate_state"):
        await _restore_thread(state, target)
    elif not hooks and isinstance(state, OpenAIAgentsState) and hasattr(type(target), "clear_session"):
        await _restore_session(state, target)
    else:
        return cast("T", await _restored(state, target, hooks or (_assign_fields,)))
    return target


async def _restored(state: Any, target: Any, hooks: tuple[_Hook, ...]) -> Any:
    before, given, is_done = _Snapshot(target), target, False
    errors: list[Exception] = []
    try:
        for hook in hooks:
            try:
                returned = hook(state, given)
                if returned is not given and inspect.isawaitable(returned):
                    returned = await returned
            except CheckpointError:
                raise
            except Exception as error:  # noqa: BLE001 - a hook is the user's, and the errors of all are raised below
                errors.append(error)
            else:
                if isinstance(returned, bool):  # whether it worked: the target would be put back then
                    errors.append(TypeError(f"it returned {returned}, and no target; let it return nothing"))
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
        kind, self._target = type(target), target
        self._attributes: dict[str, Any] | None = None
        self._slots: list[tuple[types.MemberDescriptorType, Any]] = []
        pending = [target]
        if kind not in _CONTAINERS | _SCALARS and not isinstance(target, tuple):
            if kind is not types.SimpleNamespace and has_native_state(kind):
                raise RestoreError(f"the target is a {full_name(kind)}, which keeps state that cannot be put back")
            each = [one for base in kind.__mro__ for one in vars(base).values()]
            for slot in (one for one in each if isinstance(one, types.MemberDescriptorType)):
                try:
                    self._slots.append((slot, slot.__get__(target)))
                except AttributeError:
                    self._slots.append((slot, _MISSING))
            if kind.__dictoffset__:
                self._attributes = dict(object.__getattribute__(target, "__dict__"))
            pending = [*(self._attributes or {}).values(), *(value for _, value in self._slots)]
        self._contents: dict[int, tuple[Any, Any]] = {}  # containers and their copies
        while pending:
            value = pending.pop()
            if id(value) not in self._contents and (type(value) in _CONTAINERS or isinstance(value, tuple)):
                self._contents[id(value)] = value, value if isinstance(value, tuple) else copy.copy(value)
                pending += [*value.keys(), *value.values()] if isinstance(value, dict) else value

    def put_back(self) -> None:
        """Give the object all of it again, without code of its class."""
        if self._attributes is not None:
            now = object.__getattribute__(self._target, "__dict__")
            now.clear()
            now.update(self._attributes)
        for slot, value in self._slots:
            with suppress(AttributeError, TypeError):  # it has no value, or takes none
                slot.__delete__(self._target) if value is _MISSING else slot.__set__(self._target, value)
        for container, content in self._contents.values():
            if isinstance(container, list | bytearray):
                container[:] = content
            elif not isinstance(container, tuple):
                container.clear()
                (container.extend if isinstance(container, deque) else container.update)(content)


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
    if isinstance(target, MutableMapping):
        target.update(fields)
        return target
    kind: Any = type(target)
    declared = declared_names(kind)
    if unknown := sorted(name for name in fields if declared and name not in declared and not hasattr(kind, name)):
        raise AttributeError(f"{kind.__qualname__} has no field {', '.join(unknown)}; a hook can say where they belong")
    for name, value in fields.items():
        setattr(target, name, value)
    return target


def _fields_of(state: Any, target: Any) -> dict[str, Any]:
    """The fields of a state; of those of a framework, beside its messages or items, those that the target has."""
    fields = fields_of(state)
    has = target.__contains__ if isinstance(target, MutableMapping) else functools.partial(hasattr, target)
    if isinstance(state, LangChainState):
        steps = {name: fields[name] for name in ("intermediate_steps",) if fields[name] or has(name)}
        return {"messages": _messages_of(state), **state.values, **steps}
    if isinstance(state, OpenAIAgentsState):
        return {name: value for name, value in fields.items() if name == "items" or has(name)}
    return fields


# LangChain and LangGraph


async def _all_or_nothing(write: Awaitable[Any], undo: Callable[[], Awaitable[Any]], what: str) -> None:
    """Write, and undo what fails, also while the task is being cancelled."""
    try:
        await write
    except BaseException as error:
        task = asyncio.ensure_future(undo())
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        failed = None if task.cancelled() else task.exception()
        if failed is not None:
            text = f"{what} was not restored ({error}), and is not as it was: {failed!r}"
            raise RestoreError(text, (error, failed)) from error
        if isinstance(error, RestoreError) or not isinstance(error, Exception):
            raise
        raise RestoreError(f"{what} was not restored, and is as it was: {error!r}", (error,)) from error


def _messages_of(state: LangChainState, *, only_objects: bool = False) -> list[Any]:
    """The messages of a state: those that LangChain wrote as objects of its classes, others as they are if they may."""
    found: list[Any] = []
    for index, message in enumerate(state.messages):
        is_of_langchain = message.keys() == {"type", "data"} and isinstance(message["data"], dict)
        if not is_of_langchain and not only_objects:
            found.append(message)
            continue
        try:
            from langchain_core.messages import convert_to_messages, messages_from_dict

            found += messages_from_dict([message]) if is_of_langchain else convert_to_messages([message])
        except Exception as error:
            raise CheckpointError(f"LangChain cannot read it: {error}", f"messages[{index}]") from error
    return found


async def _restore_thread(state: LangChainState, graph: Any) -> None:
    """Give a thread of LangGraph the messages, the other values and the next nodes of a state.

    The thread's history is kept: what is restored is one more state at its end. If the history still has the state
    itself, it is continued from there, as LangGraph's own time travel does it.
    """
    thread = dict((getattr(graph, "config", None) or {}).get("configurable", {}))
    if "thread_id" not in thread:
        raise RestoreError('the graph has no thread; give graph.with_config({"configurable": {"thread_id": ...}})')
    thread.pop("checkpoint_id", None)
    values = dict(state.values)
    if state.messages or "messages" in graph.channels:
        values["messages"] = _messages_of(state, only_objects=True)
    unknown = [f"channel {name!r}" for name in values if name not in graph.channels]
    unknown += [f"node {name!r}" for name in state.next if name not in graph.nodes]
    if unknown:
        raise RestoreError(f"the graph has no {', no '.join(unknown)}, which the checkpoint has")
    try:
        before = await graph.aget_state({"configurable": thread})
    except Exception as error:  # it has no checkpointer, or one without asynchronous methods
        raise RestoreError(f"the thread cannot be read: {error!r}", (error,)) from error

    async def write() -> None:
        from langgraph.channels import BinaryOperatorAggregate
        from langgraph.types import Overwrite

        wanted = values, state.next
        if state.metadata.get("thread_id") == thread["thread_id"] and "checkpoint_id" in state.metadata:
            itself = {"checkpoint_ns": "", **thread, "checkpoint_id": state.metadata["checkpoint_id"]}
            found = await graph.aget_state({"configurable": itself})
            if not (_differences(found, *wanted) or await _write_behind(graph, found.config, None, *wanted)):
                return
        update = {
            name: Overwrite(value) if isinstance(graph.channels[name], BinaryOperatorAggregate) else value
            for name, value in values.items()
        }
        if left := await _write_behind(graph, before.config, update, *wanted):
            text = f"the graph cannot be given the state: {', '.join(left)} would differ"
            if left != ["next"]:
                text += ". A channel that was written after the checkpoint cannot be emptied; restore into a new thread"
            raise RestoreError(text)

    async def undo() -> None:
        if "checkpoint_id" not in before.config["configurable"]:
            await graph.checkpointer.adelete_thread(thread["thread_id"])
        elif left := await _write_behind(graph, before.config, None, before.values, before.next):
            raise RestoreError(f"{', '.join(left)} would differ")

    await _all_or_nothing(write(), undo, f"the thread {thread['thread_id']!r}")


def _differences(found: Any, values: dict[str, Any], following: Sequence[str]) -> list[str]:
    # A channel that was never written may be left out, or empty.
    names = [name for name in {**values, **found.values} if values.get(name, []) != found.values.get(name, [])]
    return names if tuple(following) == tuple(found.next) else [*names, "next"]


async def _write_behind(
    graph: Any, config: Any, update: Any, values: dict[str, Any], following: Sequence[str]
) -> list[str]:
    """Write behind a checkpoint of a thread, so that it has these values and next nodes. Returns what differs."""
    from langgraph.graph import END, START
    from langgraph.types import Command

    # What is next is decided by the node that has written, so each is tried, or said by a command of a node.
    nodes = [name for name in graph.nodes if name != START]
    first = [None] if update is None else [START, *nodes] if following else nodes
    ways: list[tuple[str | None, Any]] = [(name, update) for name in first]
    ways += [(name, Command(update=update, goto=following)) for name in nodes if following]
    left: list[str] = []
    for name, given in ways:
        try:
            written = await graph.aupdate_state(config, given, as_node=name)
            found = await graph.aget_state(written)
            if found.next and not following:
                found = await graph.aget_state(await graph.aupdate_state(written, None, as_node=END))
        except Exception as error:  # noqa: BLE001 - an edge of the graph is a function of the user's
            left = [f"{type(error).__name__} in {name}: {error}"]
            continue
        left = _differences(found, values, following)
        if left != ["next"]:
            break
    return left


# OpenAI Agents


async def _restore_session(state: OpenAIAgentsState, session: Any) -> None:
    """Give a session of OpenAI Agents the items of a state.

    Only what differs is removed and added: going back in a conversation takes its last items away one by one, and at no
    time is the session empty.
    """

    async def items_now() -> list[Any]:
        limit = getattr(getattr(session, "session_settings", None), "limit", None)
        return list(await session.get_items(None if limit is None else 2**31 - 1))

    async def write(items: list[Any]) -> None:
        before = await items_now()
        common = common_length(before, items)
        for _ in before[common:]:
            await session.pop_item()
        if items[common:]:
            await session.add_items(items[common:])
        if await items_now() != items:
            raise RestoreError("the session does not keep items as they are")

    before = await items_now()
    name = f"the session {getattr(session, 'session_id', '')!r}"
    await _all_or_nothing(write(state.items), lambda: write(before), name)
