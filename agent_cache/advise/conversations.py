"""Calls of tools in the messages of a conversation: Chat Completions, Responses, Messages of Anthropic, and others.

A call and its answer stand in different messages, often in different records: a log of requests has the whole
conversation again with each turn. A call is known again by its id. Times are those of the messages; a conversation
without times counts in its order.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

import msgspec

from agent_cache.advise.fields import (
    ABSENT,
    NO_ANSWER,
    Answer,
    Found,
    Source,
    Times,
    answer_of,
    arguments_of,
    call_of,
    first_of,
    moment,
    number_text,
    truth,
)
from agent_cache.advise.records import Problem

__all__ = ["RUN_KEYS", "TIME_KEYS", "Conversations", "is_message", "messages_of"]

RUN_KEYS = (
    "run",
    "run_id",
    "runId",
    "session",
    "session_id",
    "sessionId",
    "conversation_id",
    "conversationId",
    "thread_id",
    "threadId",
    "trace_id",
    "traceId",
)
TIME_KEYS = (
    "time",
    "timestamp",
    "ts",
    "@timestamp",
    "created_at",
    "createdAt",
    "created",
    "datetime",
    "date",
    "at",
)
_IDS_OF_RECORDS = ("id", "custom_id", "instance_id", "request_id")

_CALLS = frozenset({
    "tool_use", "server_tool_use", "mcp_tool_use", "function_call", "custom_tool_call", "tool_call", "tool-call",
    "builtin-tool-call",
})  # fmt: skip
_RESULTS = frozenset({
    "function_call_output", "custom_tool_call_output", "tool_call_response", "tool-return", "builtin-tool-return",
    "retry-prompt", "tool-result", "tool_result",
})  # fmt: skip
_IDS = ("call_id", "tool_call_id", "tool_use_id", "toolCallId", "id")
_NAMES = ("name", "tool_name", "toolName")
_ARGUMENTS = ("arguments", "args", "input", "parameters")
_OUTPUTS = ("output", "content", "result", "response")
_ROLES = frozenset({
    "system", "developer", "user", "assistant", "tool", "function", "model", "human", "ai", "chat",
    "HumanMessage", "AIMessage", "ToolMessage", "SystemMessage",
})  # fmt: skip
_LISTS = (
    "messages", "input", "conversation", "history", "traj", "trajectory", "transcript", "items", "all_messages",
    "new_messages", "steps",
)  # fmt: skip
_REQUESTS = ("request", "kwargs", "params", "body", "data")
_RESPONSES = ("response", "completion", "result", "body")
_WRAPPERS = ("message", "payload", "item", "event")
_MAX_REMEMBERED = 100_000
"""Calls that have no answer yet, and calls that are known again in a later record: about 30 MB."""


@dataclass(slots=True)
class _Event:
    """A call, an answer, or both, in a message."""

    what: Literal["call", "answer", "both"]
    id: str
    tool: str
    arguments: Any = ABSENT
    output: Any = ABSENT
    is_error: bool = False
    time: Any = ABSENT


@dataclass(slots=True)
class _OpenCall:
    """A call whose answer has not been read yet."""

    tool: str
    id: str
    arguments: Any
    started: float | None
    run: str
    place: str


# Messages


def is_message(value: Any) -> bool:
    """Whether a value is a message, or an item of the Responses API, with or without a call in it."""
    if not isinstance(value, dict):
        return False
    kind = value.get("type")
    role = value.get("role")
    if isinstance(role, str) and role in _ROLES:
        return any(name in value for name in ("content", "tool_calls", "parts", "function_call", "text"))
    if isinstance(kind, str):
        if kind in _CALLS or kind in _RESULTS or kind == "mcp_call":
            return any(name in value for name in _IDS)
        if kind in _ROLES:
            return "content" in value or isinstance(value.get("data"), dict)
        if kind == "message":
            return "content" in value
        if kind == "constructor":
            return "lc" in value and "kwargs" in value
        if kind == "reasoning" or (kind.endswith("_call") and "id" in value):
            return True
    return value.get("kind") in ("request", "response") and isinstance(value.get("parts"), list)  # Pydantic AI


def _are_messages(value: Any) -> bool:
    return isinstance(value, list) and any(map(is_message, value[:20]))


def messages_of(record: Any, depth: int = 0) -> list[dict[str, Any]] | None:
    """The messages of a record, those of a request before those of its response; None if it has none."""
    if _are_messages(record):
        return [one for one in record if isinstance(one, dict)]
    if not isinstance(record, dict) or depth > 3:
        return None
    if is_message(record) and not _are_messages(record.get("messages")):
        return [record]
    found: list[dict[str, Any]] = []
    for name in _REQUESTS:
        if isinstance(record.get(name), dict):
            found += messages_of(record[name], depth + 1) or []
            if found:
                break
    for name in _LISTS:
        if _are_messages(record.get(name)):
            found += [one for one in record[name] if isinstance(one, dict)]
            break
    before = len(found)
    for name in _RESPONSES:
        if isinstance(record.get(name), dict) and (name != "body" or not before):
            found += messages_of(record[name], depth + 1) or []
            if len(found) > before:
                break
    if isinstance(choices := record.get("choices"), list):
        found += [one["message"] for one in choices[:1] if isinstance(one, dict) and is_message(one.get("message"))]
    if _are_messages(record.get("output")):
        found += [one for one in record["output"] if isinstance(one, dict)]
    if not found and depth == 0:
        for name in _WRAPPERS:
            if is_message(record.get(name)):
                return [record[name]]
    return found or None


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """A message of LangChain without what is around it."""
    if message.get("type") == "constructor" and isinstance(message.get("kwargs"), dict):
        return dict(message["kwargs"])
    if isinstance(message.get("data"), dict) and isinstance(message.get("type"), str):
        return {**message["data"], "type": message["type"]}
    return message


def _role_of(message: dict[str, Any]) -> str:
    return str(message.get("role") or message.get("type"))


def _events(message: dict[str, Any]) -> Iterator[_Event]:
    message = _plain(message)
    kind = message.get("type")
    time = first_of(message, TIME_KEYS)
    if isinstance(kind, str) and (found := _event_of_block(message, kind, time)) is not None:
        yield found
        return
    calls = message.get("tool_calls")
    has_calls = isinstance(calls, list) and bool(calls)
    if isinstance(calls, list):
        for call in calls:
            if isinstance(call, dict):
                inner = call["function"] if isinstance(call.get("function"), dict) else call
                inner = call["custom"] if isinstance(call.get("custom"), dict) else inner
                name, arguments = first_of(inner, _NAMES), first_of(inner, _ARGUMENTS)
                yield _Event("call", number_text(first_of(call, _IDS)), number_text(name), arguments, time=time)
    if isinstance(call := message.get("function_call"), dict) and not has_calls:
        yield _Event("call", "", number_text(call.get("name")), first_of(call, _ARGUMENTS), time=time)
    role = message.get("role", kind)
    content = message.get("parts", message.get("content"))
    blocks = [one for one in content if isinstance(one, dict)] if isinstance(content, list) else []
    has_blocks = False
    for block in blocks:
        what = block.get("type") or block.get("part_kind") or ""
        found = _event_of_block(block, str(what), first_of(block, ("timestamp",)))
        if found is not None:
            has_blocks = True
            if found.time is ABSENT:
                found.time = time
            if found.what != "call" or not has_calls:
                yield found
    if role in ("tool", "function", "ToolMessage") and not has_blocks:
        is_error = message.get("status") == "error" or truth(message.get("is_error")) is True
        name = number_text(first_of(message, _NAMES))
        id_ = number_text(first_of(message, ("tool_call_id", "call_id", "toolCallId")))
        yield _Event("answer", id_, name, output=first_of(message, _OUTPUTS), is_error=is_error, time=time)


def _event_of_block(block: dict[str, Any], kind: str, time: Any) -> _Event | None:
    name = number_text(first_of(block, _NAMES))
    id_ = number_text(first_of(block, _IDS))
    if kind in _CALLS:
        return _Event("call", id_, name, first_of(block, _ARGUMENTS), time=time)
    if kind in _RESULTS or kind.endswith("_tool_result"):
        output = first_of(block, _OUTPUTS)
        if isinstance(output, dict) and str(output.get("type", "")).endswith("_tool_result_error"):
            return _Event("answer", id_, name, output=output.get("error_code"), is_error=True, time=time)
        is_error = truth(first_of(block, ("is_error", "isError"))) is True or kind == "retry-prompt"
        if kind == "retry-prompt" and not name:
            return None  # a request for another answer of the model, not of a tool
        return _Event("answer", id_, name, output=output, is_error=is_error, time=time)
    if kind == "mcp_call":
        error = block.get("error")
        output = error or first_of(block, _OUTPUTS)
        return _Event("both", id_, name, first_of(block, _ARGUMENTS), output, is_error=bool(error), time=time)
    if isinstance(call := first_of(block, ("functionCall", "function_call")), dict):  # Gemini
        return _Event("call", number_text(call.get("id")), number_text(call.get("name")), call.get("args"), time=time)
    if isinstance(answer := first_of(block, ("functionResponse", "function_response")), dict):
        id_, name = number_text(answer.get("id")), number_text(answer.get("name"))
        return _Event("answer", id_, name, output=answer.get("response", ABSENT), time=time)
    return None


# Conversations

_GROUPS_OF_DIGITS = re.compile(r"\d+")


def _is_unique(call_id: str) -> bool:
    """Whether an id looks random, so that no other call has it: one that a model counts up is ``call_1``."""
    return len(call_id) >= 16 and len(_GROUPS_OF_DIGITS.findall(call_id)) > 1


class Conversations:
    """Reads the conversations of a file.

    Args:
        source: the file.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._open: OrderedDict[tuple[str, str], list[_OpenCall]] = OrderedDict()
        self._count = 0
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._latest: dict[str, float] = {}
        self._wholes: OrderedDict[bytes, str] = OrderedDict()
        self._inside = 0

    def read(self, record: Any, messages: list[dict[str, Any]], place: str, run: str) -> Iterator[Found]:
        """The calls of a record that have an answer.

        Args:
            record: the record.
            messages: its messages.
            place: where it stands.
            run: the run of records that name none.
        """
        source = self._source
        fields = record if isinstance(record, dict) else {}
        given = number_text(first_of(fields, RUN_KEYS))
        if not given and not is_message(record):
            parts = [number_text(first_of(fields, _IDS_OF_RECORDS)), number_text(fields.get("task_id"))]
            parts.append(f"trial {fields['trial']}" if "trial" in fields else "")
            given = " ".join(part for part in parts if part)
        run = given or run
        source.learn(fields.get("tools"))
        general = first_of(fields, TIME_KEYS)
        if general is ABSENT:
            general = next(
                (
                    found
                    for name in _RESPONSES
                    if isinstance(fields.get(name), dict) and (found := first_of(fields[name], TIME_KEYS)) is not ABSENT
                ),
                ABSENT,
            )
        skipped, run = self._repeated(messages, run)
        self._inside = 0
        for message in messages[skipped:]:
            for event in _events(message):
                is_own = event.time is not ABSENT
                time = moment(event.time if is_own else general, source, place)
                if time is not None:
                    time = self._in_order(run, time, place)
                if event.what == "answer":
                    yield from self._answered(event, time, run, place, is_own=is_own)
                else:
                    yield from self._called(event, time, run, place)
        if self._inside > 1 and general is not ABSENT:
            source.note(Problem.ONE_TIME, place, self._inside)

    def rest(self) -> Iterator[Found]:
        """The calls that have no answer."""
        for calls in self._open.values():
            for call in calls:
                yield self._unanswered(call)
        self._open.clear()

    def _in_order(self, run: str, time: float, place: str) -> float:
        """The time of a message, which is not before the one above it."""
        latest = self._latest.get(run)
        if latest is not None and time < latest:
            if time < latest - 1e-3:
                self._source.note(Problem.AGAINST_ORDER, place)
            return latest
        if len(self._latest) > _MAX_REMEMBERED:
            self._latest.clear()
        self._latest[run] = time
        return time

    def _repeated(self, messages: list[dict[str, Any]], run: str) -> tuple[int, str]:
        """How many first messages are those of an earlier record, to which this one has added some, and its run.

        It is needed for calls whose ids are not unique. A record that repeats another as a whole is a run of its own.
        """
        digest = b""
        found, has_call = 0, False
        for number, message in enumerate(messages):
            if has_call and number and digest in self._wholes:
                found, run = number, self._wholes[digest]
            events = list(_events(message))
            has_call = has_call or bool(events)
            shown = [[one.what, one.id, one.tool, one.arguments, one.output] for one in events]
            content = [_role_of(message), [[str(part) for part in one] for one in shown]]
            if not events:
                content.append(str(_plain(message).get("content")))
            digest = blake2b(digest + msgspec.json.encode(content), digest_size=16).digest()
        if has_call:
            self._wholes[digest] = run
            if len(self._wholes) > _MAX_REMEMBERED:
                self._wholes.popitem(last=False)
        if found:
            self._source.note(Problem.REPEATED_TURN, "", found)
        return found, run

    def _called(self, event: _Event, time: float | None, run: str, place: str) -> Iterator[Found]:
        source = self._source
        if not event.tool:
            source.note(Problem.NO_TOOL, place)
            return
        call = _OpenCall(event.tool, event.id, event.arguments, time, run, place)
        if self._is_known(call):
            return
        if event.what == "both":
            answer = answer_of(event.output, source, place, is_error=event.is_error)
            yield self._found(call, answer, Times(None, time), place)
            return
        key = self._key(event.id, run)
        self._open.setdefault(key, []).append(call)
        self._count += 1
        if self._count > _MAX_REMEMBERED:
            yield from map(self._unanswered, self._open.popitem(last=False)[1])

    def _answered(self, event: _Event, time: float | None, run: str, place: str, *, is_own: bool) -> Iterator[Found]:
        source = self._source
        key = self._key(event.id, run)
        calls = self._open.get(key)
        if not event.id and calls:
            # Without ids, the oldest call of the same name.
            index = next((at for at, one in enumerate(calls) if not event.tool or one.tool == event.tool), None)
        else:
            index = 0 if calls else None
        if calls is None or index is None:
            if event.id and self._digest(event.id, run) in self._known:
                source.note(Problem.REPEATED_TURN, place)
            else:
                source.note(Problem.NO_CALL, place)
            return
        call = calls.pop(index)
        self._count -= 1
        if not calls:
            del self._open[key]
        answer = answer_of(event.output, source, place, is_error=event.is_error)
        started = call.started
        if call.place == place and not is_own:  # the time is that of the whole record
            started = None
            self._inside += 1
        yield self._found(call, answer, Times(started, time), place)

    def _found(self, call: _OpenCall, answer: Answer, times: Times, place: str) -> Found:
        source = self._source
        arguments = arguments_of({} if call.arguments is None else call.arguments, source, call.place)
        logged = call_of(call.tool, arguments, answer, times.checked(source, place), source, run=call.run)
        return Found(logged, f"{call.id}\0{call.tool}" if _is_unique(call.id) else "", place)

    def _unanswered(self, call: _OpenCall) -> Found:
        self._source.note(Problem.NO_RESULT, call.place)
        return self._found(call, NO_ANSWER, Times(call.started, None), call.place)

    def _key(self, call_id: str, run: str) -> tuple[str, str]:
        return ("", call_id) if _is_unique(call_id) else (run, call_id)

    def _digest(self, call_id: str, run: str) -> bytes:
        return blake2b("\0".join(self._key(call_id, run)).encode(), digest_size=16).digest()

    def _is_known(self, call: _OpenCall) -> bool:
        """Whether a call was read before, in a record that had the beginning of the same conversation."""
        if not _is_unique(call.id):
            return False
        digest = self._digest(call.id, call.run)
        if digest in self._known:
            self._known.move_to_end(digest)
            return True
        self._known[digest] = None
        if len(self._known) > _MAX_REMEMBERED:
            self._known.popitem(last=False)
        return False
