"""Calls of tools in spans: OTLP as JSON, the console exporter of the SDK, OpenInference as Phoenix exports it.

A span is the call of a tool if it says so by the conventions of OpenTelemetry (``gen_ai.operation.name``:
``execute_tool``), of OpenInference (``openinference.span.kind``: ``TOOL``) or of OpenLLMetry (``traceloop.span.kind``:
``tool``). Arguments and answers are there only if the instrumentation was told to record content.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from agent_cache.advise.fields import (
    ABSENT,
    OF_CACHE,
    Answer,
    Found,
    Source,
    Times,
    answer_of,
    arguments_of,
    call_of,
    failure,
    first_of,
    moment,
    number_of,
    number_text,
)
from agent_cache.advise.records import Problem

__all__ = ["calls_of_spans", "spans_of"]

_CONTAINERS = (
    "resourceSpans",
    "resource_spans",
    "batches",
    "scopeSpans",
    "scope_spans",
    "instrumentationLibrarySpans",
    "spans",
    "trace",
)
_ARGUMENTS = (
    "gen_ai.tool.call.arguments",
    "tool_arguments",
    "tool_call.function.arguments",
    "input.value",
    "traceloop.entity.input",
)
_RESULTS = ("gen_ai.tool.call.result", "tool_response", "output.value", "traceloop.entity.output")
_NAMES = ("agent_cache.tool", "gen_ai.tool.name", "tool.name", "tool_call.function.name", "traceloop.entity.name")
_ORIGINS = ("agent_cache.source",)
_RUNS = ("gen_ai.conversation.id", "session.id", "traceloop.association.properties.session_id", "thread.id")
_STARTS = ("startTimeUnixNano", "start_time_unix_nano", "start_time", "startTime")
_ENDS = ("endTimeUnixNano", "end_time_unix_nano", "end_time", "endTime")
_SKEW = 1e-3
_DEEPEST = 6


def spans_of(record: Any, depth: int = 0) -> list[dict[str, Any]] | None:
    """The spans of a record; None if it is nothing of this kind."""
    if not isinstance(record, dict) or depth > _DEEPEST:
        return None
    if _is_span(record):
        return [record]
    names = [name for name in _CONTAINERS if isinstance(record.get(name), list | dict)]
    found: list[dict[str, Any]] = []
    for name in names:
        inner = record[name]
        for one in inner if isinstance(inner, list) else [inner]:
            found += spans_of(one, depth + 1) or []
    return found if found or any(name.lower().endswith("spans") for name in names) else None


def _is_span(record: Mapping[str, Any]) -> bool:
    """Whether a record is a span."""
    context = record.get("context")
    has_id = (isinstance(context, dict) and "span_id" in context) or any(
        name in record for name in ("spanId", "span_id", "context.span_id")
    )
    return has_id and first_of(record, _STARTS) is not ABSENT


def calls_of_spans(spans: list[dict[str, Any]], source: Source, place: str) -> Iterator[Found]:
    """The calls among some spans.

    Args:
        spans: those of one record.
        source: the file. Other spans are counted there.
        place: where the record stands.
    """
    others = 0
    starts: dict[str, float] = {}
    if len(spans) > 1:
        for span in spans:
            start = number_of(first_of(span, _STARTS))
            if start is not None:
                starts[_ids_of(span)[1]] = start
    for span in spans:
        attributes = _attributes_of(span)
        tool = _tool_of(span, attributes)
        if tool is None:
            others += 1
        elif not tool:
            source.note(Problem.NO_TOOL, place)
        else:
            start = number_of(first_of(span, _STARTS))
            parent = starts.get(number_text(first_of(span, ("parentSpanId", "parent_span_id", "parent_id"))))
            if start is not None and parent is not None and start < parent - _SKEW * 1e9:
                source.note(Problem.BEFORE_PARENT, place)
            if _attribute(attributes, _ORIGINS) == "blocked":
                source.note(Problem.REFUSED, place)
            else:
                yield _call(tool, span, attributes, source, place)
    if others:
        source.note(Problem.NOT_OF_TOOLS, place, others)


def _call(tool: str, span: dict[str, Any], attributes: dict[str, Any], source: Source, place: str) -> Found:
    trace, own = _ids_of(span)
    times = Times(moment(first_of(span, _STARTS), source, place), moment(first_of(span, _ENDS), source, place)).checked(
        source, place
    )
    arguments = arguments_of(_attribute(attributes, _ARGUMENTS), source, place)
    if "input_str" in arguments.values and isinstance(inputs := arguments.values.get("inputs"), dict):
        arguments = arguments._replace(values=inputs)  # OpenLLMetry has more around it
    answer = _answer(span, attributes, source, place)
    kind: Literal["read", "write"] | None = None
    origin = _attribute(attributes, _ORIGINS)
    if isinstance(origin, str):
        kind = "write" if origin == "write" else "read"
        if origin == "hit" and answer.error is None:
            source.note(Problem.FROM_CACHE, place)
            answer = OF_CACHE
    run = number_text(_attribute(attributes, _RUNS)) or trace
    call = call_of(tool, arguments, answer, times, source, run=run, kind=kind)
    return Found(call, f"{trace}\0{own}" if own else "", place)


def _answer(span: dict[str, Any], attributes: dict[str, Any], source: Source, place: str) -> Answer:
    status = span.get("status")
    code = first_of(status, ("code", "status_code")) if isinstance(status, dict) else span.get("status_code", status)
    named = _attribute(attributes, ("error.type",))
    if str(code).upper() in ("2", "ERROR", "STATUS_CODE_ERROR", "STATUSCODE.ERROR") or isinstance(named, str):
        name, message = number_text(named), _message(span, status)
        for event in span.get("events") or ():
            if isinstance(event, dict) and event.get("name") == "exception":
                inner = _attributes_of(event)
                name = number_text(_attribute(inner, ("exception.type",))) or name
                message = _attribute(inner, ("exception.message",))
        return failure("" if message is ABSENT else message, source, place, name)
    return answer_of(_attribute(attributes, _RESULTS), source, place, may_be_cut=True)


def _message(span: dict[str, Any], status: Any) -> Any:
    if isinstance(status, dict):
        return first_of(status, ("message", "description"))
    return first_of(span, ("status_message",))


def _ids_of(span: dict[str, Any]) -> tuple[str, str]:
    context = span["context"] if isinstance(span.get("context"), dict) else {}
    trace = first_of(span, ("traceId", "trace_id", "context.trace_id"))
    own = first_of(span, ("spanId", "span_id", "context.span_id"))
    return number_text(context.get("trace_id", trace)), number_text(context.get("span_id", own))


def _tool_of(span: dict[str, Any], attributes: dict[str, Any]) -> str | None:
    """The name of the tool that a span is a call of; None if it is of something else."""
    name = number_text(span.get("name"))
    kind = _attribute(attributes, ("openinference.span.kind",))
    kind = span.get("span_kind") if kind is ABSENT else kind
    if (
        _attribute(attributes, ("gen_ai.operation.name",)) == "execute_tool"
        or name.startswith("execute_tool ")
        or str(kind).upper() == "TOOL"
        or _attribute(attributes, ("traceloop.span.kind",)) == "tool"
    ):
        return number_text(_attribute(attributes, _NAMES)) or name.removeprefix("execute_tool ")
    return None


def _attributes_of(holder: dict[str, Any]) -> dict[str, Any]:
    """The attributes of a span or an event by name, those of OTLP as plain values."""
    attributes = holder.get("attributes")
    if isinstance(attributes, list):
        return {
            one["key"]: _plain_value(one.get("value"))
            for one in attributes
            if isinstance(one, dict) and isinstance(one.get("key"), str)
        }
    if isinstance(attributes, dict):
        return attributes
    return {name[11:]: value for name, value in holder.items() if name.startswith("attributes.")}


def _plain_value(value: Any) -> Any:
    if not isinstance(value, dict) or len(value) != 1:
        return value
    [(kind, inner)] = value.items()
    kind = kind.replace("_", "").lower()
    if kind == "intvalue":
        return int(inner) if str(inner).lstrip("-").isdecimal() else inner
    if kind == "arrayvalue":
        return [_plain_value(one) for one in (inner or {}).get("values", ())]
    if kind == "kvlistvalue":
        return {one.get("key", ""): _plain_value(one.get("value")) for one in (inner or {}).get("values", ())}
    return inner


def _attribute(attributes: dict[str, Any], names: tuple[str, ...]) -> Any:
    """The value of the first of these names, also where the parts of a name are the names of nested dicts."""
    for name in names:
        if (found := attributes.get(name)) is not None:
            return found
        inner: Any = attributes
        for part in name.split("."):
            inner = inner.get(part) if isinstance(inner, dict) else None
        if inner is not None:
            return inner
    return ABSENT
