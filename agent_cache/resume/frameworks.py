"""States of LangGraph and OpenAI Agents, put into threads and sessions by the frameworks' own functions.

Threads and sessions are kept in databases. Each function here writes, looks at what is
there then, and writes back what was there before if that is not what was wanted, or if it was cancelled. What reads the
database in between sees the writes. If the process is killed in between, they stay.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from agent_cache.errors import CheckpointError, RestoreError
from agent_cache.resume.checkpoints import LangChainState, OpenAIAgentsState

__all__ = ["is_graph", "is_session", "messages_of", "restore_session", "restore_thread"]


async def _undone(undo: Callable[[], Awaitable[Any]], what: str, error: BaseException) -> None:
    """Undo, also while the task is being cancelled; and raise what could not be undone."""
    task = asyncio.ensure_future(undo())
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([task])
    failed = None if task.cancelled() else task.exception()
    if failed is not None:
        raise RestoreError(f"{what} was not restored ({error}), and is not as it was: {failed!r}", (error, failed))
    if isinstance(error, RestoreError) or not isinstance(error, Exception):
        raise error
    raise RestoreError(f"{what} was not restored, and is as it was: {error!r}", (error,)) from error


# LangChain and LangGraph


def messages_of(state: LangChainState, *, only_objects: bool = False) -> list[Any]:
    """The messages of a state: those that LangChain wrote as objects of its classes, the others as they are, unless
    `only_objects` makes objects of them, too.
    """
    if not only_objects and not any(map(_is_of_langchain, state.messages)):
        return list(state.messages)
    try:
        from langchain_core.messages import convert_to_messages, messages_from_dict
    except ImportError:
        return list(state.messages)
    found: list[Any] = []
    for index, message in enumerate(state.messages):
        try:
            if _is_of_langchain(message):
                found += messages_from_dict([message])
            else:
                found += convert_to_messages([message]) if only_objects else [message]
        except Exception as error:
            raise CheckpointError(f"LangChain cannot read it: {error}", f"messages[{index}]") from error
    return found


def _is_of_langchain(message: dict[str, Any]) -> bool:
    return message.keys() == {"type", "data"} and isinstance(message["data"], dict)


def is_graph(target: Any) -> bool:
    """Whether this is a compiled graph of LangGraph, or anything that has threads as one has."""
    kind = type(target)
    return all(callable(getattr(kind, name, None)) for name in ("aget_state", "aupdate_state", "with_config"))


async def restore_thread(state: LangChainState, graph: Any) -> None:
    """Give a thread of LangGraph the messages, the other values and the next nodes of a state.

    The thread's history is kept: what is restored is one more state at its end. If the history still has the state
    itself, it is continued from there, as LangGraph's own time travel does it. After a `RestoreError` the last state of
    the thread is the one that it had.
    """
    thread = dict((getattr(graph, "config", None) or {}).get("configurable", {}))
    if "thread_id" not in thread:
        raise RestoreError(
            'the graph has no thread to restore; give graph.with_config({"configurable": {"thread_id": ...}})'
        )
    thread.pop("checkpoint_id", None)
    values = _values_of(state, graph)
    try:
        before = await graph.aget_state({"configurable": thread})
    except Exception as error:  # it has no checkpointer, or one without asynchronous methods
        raise RestoreError(f"the thread cannot be read: {error!r}", (error,)) from error

    async def undo() -> None:
        if "checkpoint_id" in before.config["configurable"]:
            await graph.aupdate_state(before.config, None)
        else:
            await graph.checkpointer.adelete_thread(thread["thread_id"])

    try:
        await _write_thread(state, graph, thread, before.config, values)
    except BaseException as error:  # noqa: BLE001 - cancellation, too, is to leave the thread as it was
        await _undone(undo, f"the thread {thread['thread_id']!r}", error)


def _values_of(state: LangChainState, graph: Any) -> dict[str, Any]:
    """The values of a thread by channel, if the graph has these channels and nodes."""
    values = dict(state.values)
    if state.messages or "messages" in graph.channels:
        values["messages"] = messages_of(state, only_objects=True)
    for name in values:
        if name not in graph.channels:
            raise RestoreError(f"the graph has no channel {name!r}, which the checkpoint has a value for")
    for name in state.next:
        if name not in graph.nodes:
            raise RestoreError(f"the graph has no node {name!r}, which the checkpoint would run next")
    return values


async def _write_thread(
    state: LangChainState, graph: Any, thread: dict[str, Any], before: Any, values: dict[str, Any]
) -> None:
    from langgraph.graph import END, START

    def differences(found: Any) -> list[str]:
        # A channel that was never written may be left out, or empty.
        names = [name for name in {**values, **found.values} if values.get(name, []) != found.values.get(name, [])]
        return names if tuple(state.next) == tuple(found.next) else [*names, "next"]

    if state.metadata.get("thread_id") == thread["thread_id"] and "checkpoint_id" in state.metadata:
        itself = {"configurable": {"checkpoint_ns": "", **thread, "checkpoint_id": state.metadata["checkpoint_id"]}}
        found = await graph.aget_state(itself)
        if not differences(found):
            await graph.aupdate_state(found.config, None)
            return
    # The graph decides what is next by the node that has written a state, so each is tried.
    nodes = [name for name in graph.nodes if name != START]
    left: list[str] = []
    for name in [START, *nodes] if state.next else nodes:
        try:
            written = await graph.aupdate_state(before, _written(graph, values), as_node=name)
            found = await graph.aget_state(written)
            if found.next and not state.next:
                found = await graph.aget_state(await graph.aupdate_state(written, None, as_node=END))
        except Exception as error:  # noqa: BLE001 - an edge of the graph is a function of the user's
            left = [f"{type(error).__name__} in {name}: {error}"]
            continue
        left = differences(found)
        if not left:
            return
        if left != ["next"]:
            break
    raise RestoreError(
        f"the graph cannot be given the state: {', '.join(left)} would differ. A channel that was written after the "
        "checkpoint cannot be emptied; restore into a new thread"
    )


def _written(graph: Any, values: dict[str, Any]) -> dict[str, Any]:
    """An update that sets channels to these values, whatever their reducers are."""
    from langgraph import channels
    from langgraph.types import Overwrite

    reducing = (channels.BinaryOperatorAggregate, getattr(channels, "DeltaChannel", channels.BinaryOperatorAggregate))
    return {
        name: Overwrite(value) if isinstance(graph.channels[name], reducing) else value
        for name, value in values.items()
    }  # fmt: skip


# OpenAI Agents


def is_session(target: Any) -> bool:
    """Whether this is a session of OpenAI Agents: anything that has the methods of its protocol ``Session``."""
    kind = type(target)
    names = ("get_items", "add_items", "pop_item", "clear_session")
    return all(inspect.iscoroutinefunction(getattr(kind, name, None)) for name in names)


async def _items_of(session: Any) -> list[Any]:
    """All items. A session whose settings have a limit gives only as many, unless it is asked for more."""
    limit = getattr(getattr(session, "session_settings", None), "limit", None)
    items: list[Any] = await session.get_items(None if limit is None else 2**31 - 1)
    return items


async def restore_session(state: OpenAIAgentsState, session: Any) -> None:
    """Give a session of OpenAI Agents the items of a state.

    Only what differs is removed and added: going back in a conversation takes its last items away one by one, and at no
    time is the session empty. After a `RestoreError` it has the items that it had.
    """
    before = await _items_of(session)

    async def undo() -> None:
        await _write_items(session, await _items_of(session), before)

    try:
        await _write_items(session, before, state.items)
    except BaseException as error:  # noqa: BLE001 - cancellation, too, is to leave the session as it was
        await _undone(undo, f"the session {getattr(session, 'session_id', '')!r}", error)


async def _write_items(session: Any, before: list[Any], items: list[Any]) -> None:
    common = 0
    while common < min(len(before), len(items)) and before[common] == items[common]:
        common += 1
    for _ in before[common:]:
        await session.pop_item()
    if items[common:]:
        await session.add_items(items[common:])
    if await _items_of(session) != items:
        raise RestoreError("the session does not keep items as they are")
