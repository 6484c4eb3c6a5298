"""Results of calls as plain data and back: values, exceptions, chunks of streams.

A value is written in the first form that gives it back as it was: JSON itself (``value``), what the return annotation
makes of it (``typed``), builtin values with tags (``any``), a registered class (``object``). An object that none of
these covers becomes the plain data of its fields, and one without fields is noted as ``unencodable``. Responses of
LiteLLM are plain data with a mark (``made``) of the class that makes them again.

No name that is found in a cassette is ever imported. A value is read by the return annotation, as a registered class,
or as one of the classes of LiteLLM that are named here. What will not come back as it was is marked, and `problems_of`
finds the marks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, TypeAlias

import msgspec

from agent_cache.errors import CassetteError, ConfigurationError
from agent_cache.recording.differences import common_length
from agent_cache.recording.exceptions import REGISTERED, Failure, error_data, name_of
from agent_cache.recording.http.bodies import ResponseShape, map_response
from agent_cache.recording.redaction import Redaction, redact_error, without_secret_fields
from agent_cache.recording.schema import Schema, schema_of
from agent_cache.recording.tagged import decode, encode, exact_json
from agent_cache.values.typed import Undecodable, Unencodable

__all__ = [
    "Stream",
    "check_outcome",
    "error_outcome",
    "error_text",
    "is_readable",
    "redact_payload",
    "problems_of",
    "read_value",
    "redact_chunks",
    "redact_response",
    "value_outcome",
]

Outcome: TypeAlias = dict[str, Any]

_ANY = schema_of(Any)


# Values


def value_outcome(value: Any, schema: Schema, redaction: Redaction, *, is_chunk: bool = False) -> Outcome:
    """The redacted outcome of a call that returned this value, or of a chunk of a stream.

    A chunk is redacted later, together with the chunks before and after it.
    """
    exact = exact_json(value)
    if exact is not None:
        raw, read = exact
        is_clean = is_chunk or not redaction.may_change(raw)
        return {"value": msgspec.Raw(raw) if is_clean else redaction.apply(read)}
    form, plain, marks = _written(without_secret_fields(value, redaction), schema)
    if form == "object":
        written = {form: [plain[0], redaction.apply(plain[1])]} if not is_chunk else {form: plain}
    elif is_chunk or form == "unencodable" or not redaction.may_change(encode(plain)):
        written = {form: plain}
    else:
        written = {form: redaction.apply(plain)}
        if "made" in marks:
            fits = _is_made(marks["made"], written[form])
        else:
            fits = written == {form: plain} or is_readable(written[form], _ANY if form == "any" else schema)
        if not fits:
            marks["redacted"] = True
    return {**written, **marks}


def is_readable(plain: Any, schema: Schema) -> bool:
    """Whether plain data can be read by an annotation."""
    try:
        schema.from_plain(plain)
    except (Undecodable, ValueError, TypeError):
        return False
    return True


def error_outcome(error: BaseException, redaction: Redaction) -> Outcome:
    """The redacted outcome of a call that raised this exception."""
    data = error_data(error)
    return {"error": redact_error(data, redaction) if redaction.may_change(encode(data)) else data}


def error_text(error: BaseException, redaction: Redaction) -> str:
    """The text of an exception without secrets, also those that only its arguments give away."""
    return str(error_outcome(error, redaction)["error"]["message"])


def read_value(outcome: Outcome, schema: Schema, path: str, line: int) -> Any:
    """The value that `value_outcome` wrote for the same annotation, unless it is JSON itself.

    Raises:
        CassetteError: if it cannot be rebuilt.
    """
    if "made" in outcome:
        try:
            return _class_of_litellm(outcome["made"])(**outcome["value"])
        except Exception as error:  # whatever the library raises for a file that was edited
            raise CassetteError(f"its value does not make a {outcome['made']}: {error}", path, line) from error
    try:
        if "typed" in outcome:
            return schema.from_plain(outcome["typed"])
        if "any" in outcome:
            return _ANY.from_plain(outcome["any"])
        if "object" in outcome:
            name, plain = outcome["object"]
            kind = REGISTERED.get(name)
            if kind is None:
                raise CassetteError(
                    f"names the class {name}, which is not registered here; see agent_cache.recording.register",
                    path,
                    line,
                )
            return schema_of(kind).from_plain(plain)
    except (Undecodable, ValueError, TypeError) as error:
        raise CassetteError(
            f"its value does not fit the return annotation ({error}); the function has changed, or redaction removed "
            "a part that its type needs. Record it again, or give it another annotation",
            path,
            line,
        ) from error
    if "unencodable" in outcome:
        raise CassetteError(
            f"its value was a {outcome['unencodable']}, which could not be written{_advice(outcome)}, or run it with "
            'policy={...: "live"}',
            path,
            line,
        )
    raise CassetteError(f"has an outcome of an unknown kind: {', '.join(outcome) or 'none'}", path, line)


def redact_payload(outcome: Outcome, rules: Redaction) -> Outcome:
    """The same outcome with its values, messages and chunks redacted, and the rest left alone."""
    for form in ("value", "typed", "any"):
        if form in outcome:
            return {**outcome, form: rules.apply(outcome[form])}
    if "object" in outcome:
        name, plain = outcome["object"]
        return {**outcome, "object": [name, rules.apply(plain)]}
    if "error" in outcome:
        return {**outcome, "error": redact_error(outcome["error"], rules)}
    if "response" in outcome:
        response = map_response(outcome["response"], rules.apply)
        if "end" in response:
            response["end"] = redact_payload(response["end"], rules)
        return {**outcome, "response": response}
    if "stream" in outcome:
        stream = outcome["stream"]
        chunks = [redact_payload(chunk, rules) for chunk in stream["chunks"]]
        return {**outcome, "stream": {**stream, "chunks": chunks, "end": redact_payload(stream["end"], rules)}}
    return outcome


def _written(value: Any, schema: Schema) -> tuple[str, Any, dict[str, Any]]:
    """The form of a value that is not JSON, its plain data, and marks for `problems_of`."""
    reason = ""
    for form, writer in (("typed", schema), ("any", _ANY)):
        if form == "typed" and schema.annotation is Any and not schema.beside:
            continue
        try:
            return form, writer.to_plain(value), {}
        except Unencodable as error:
            reason = reason or str(error)
    kind = type(value)
    name = name_of(kind)
    if REGISTERED.get(name) is kind:
        try:
            return "object", [name, schema_of(kind).to_plain(value)], {}
        except Unencodable:
            pass
    try:
        if name in _OF_LITELLM and _is_made(name, plain := value.model_dump(mode="json")):
            return "value", plain, {"made": name}
        plain = msgspec.to_builtins(value, str_keys=True, enc_hook=_fields)
        encode(plain)
    except Exception:  # noqa: BLE001 - reading a user's object may raise anything; then it cannot be written
        opens = hasattr(kind, "__enter__") or hasattr(kind, "__aenter__")
        return "unencodable", name, {"reason": reason, "context": True} if opens else {"reason": reason}
    return "value", plain, {"class": name, "reason": reason}


_OF_LITELLM = frozenset(
    f"litellm.types.utils:{name}"
    for name in ("EmbeddingResponse", "ModelResponse", "ModelResponseStream", "TextCompletionResponse")
)
"""Responses with more fields than their classes declare: no annotation tells how to read them, and their constructors
do.
"""


def _class_of_litellm(name: str) -> Any:
    if name not in _OF_LITELLM:
        raise LookupError(f"{name} is not among {', '.join(sorted(_OF_LITELLM))}")
    from litellm.types import utils

    return getattr(utils, name.partition(":")[2])


def _is_made(name: str, plain: Any) -> bool:
    """Whether the class makes the same of its own plain data."""
    try:
        made = _class_of_litellm(name)(**plain).model_dump(mode="json")
        encode(plain)
    except Exception:  # noqa: BLE001 - whatever the library raises
        return False
    return bool(made == plain)


def _fields(value: Any) -> Any:
    if hasattr(type(value), "model_dump"):
        return value.model_dump(mode="json")
    raise NotImplementedError


# What does not come back


def problems_of(outcome: Outcome) -> Iterator[str]:
    """What a replay of this outcome will not do as the recorded call did, and what helps. The texts name types only."""
    yield from _value_problems(outcome, "returned")
    if "error" in outcome:
        yield from _error_problems(outcome["error"])
    stream = outcome.get("stream")
    if stream is not None:
        for chunk in stream.get("chunks", ()):
            yield from _value_problems(chunk, "yielded")
        yield from problems_of(stream.get("end", {}))
    response = outcome.get("response")
    if response is not None:
        yield from problems_of(response.get("end", {}))


def _value_problems(outcome: Outcome, verb: str) -> Iterator[str]:
    if "unencodable" in outcome:
        yield f"{verb} a {outcome['unencodable']}, which cannot be replayed{_advice(outcome)}"
    elif "class" in outcome:
        yield (
            f"{verb} a {outcome['class']}, which a replay gives back as plain data{_reason(outcome)}; annotate what "
            "the function returns, or register the class"
        )
    elif "redacted" in outcome:
        yield f"{verb} a value that does not fit its annotation without its secrets; give it one that does"


def _error_problems(data: dict[str, Any]) -> Iterator[str]:
    if data.get("unknown"):
        yield (
            f"raised {data.get('type')}, which a replay raises as RecordedError or without parts of it; register the "
            "class with agent_cache.recording.register, or raise one that is made of plain values"
        )
    for member in data.get("group", ()):
        yield from _error_problems(member)


def _reason(outcome: Outcome) -> str:
    reason = outcome.get("reason")
    return f" ({reason})" if reason else ""


def _advice(outcome: Outcome) -> str:
    if outcome.get("context"):
        return (
            ", because it is opened after the call, and what happens then is not recorded; record a function that "
            "opens it, and returns or yields what it gives"
        )
    return f"{_reason(outcome)}; give the function a return annotation of plain fields"


# Chunks of streams

_Place: TypeAlias = tuple[Any, str | int]
"""The container of a text, and its key or index there."""


def redact_chunks(chunks: list[Outcome], redaction: Redaction) -> list[Outcome]:
    """The outcomes of the chunks of a stream without secrets, also without those that go over several chunks.

    Texts in the same place of each chunk, such as the words of an answer, are read as one. The replacement of a secret
    stands in the first chunk that has a part of it; the other parts are removed.
    """
    if len(chunks) > 1:
        chunks = _redact_joined(chunks, redaction)
    return [_redact_chunk(chunk, redaction) for chunk in chunks]


_STREAMS = ("events", "frames", "lines", "chunks")


def redact_response(response: Outcome, redaction: Redaction) -> Outcome:
    """A response of HTTP without secrets, also without those that go over several events.

    Raises:
        ConfigurationError: if the redaction hook did not return the parts of the response as a dict.
    """
    field = next((one for one in _STREAMS if one in response), None)
    if field is not None and len(response[field]) > 1:
        events = _redact_joined([{"value": one} for one in response[field]], redaction)
        response = {**response, field: [one["value"] for one in events]}
    if "bytes" not in response and field not in ("frames", "chunks") and not redaction.may_change(encode(response)):
        return response
    try:
        return map_response(response, redaction.apply)
    except TypeError as error:
        raise ConfigurationError(
            f"the redaction hook must return a response as a dict, as it was given it: {error}"
        ) from error


def _redact_chunk(chunk: Outcome, redaction: Redaction) -> Outcome:
    raw = encode(chunk)
    return redact_payload(decode(raw), redaction) if redaction.may_change(raw) else chunk


def _redact_joined(chunks: list[Outcome], redaction: Redaction) -> list[Outcome]:
    read: list[Outcome] = [decode(encode(chunk)) for chunk in chunks]
    texts: dict[tuple[str | int, ...], list[_Place]] = {}
    for chunk in read:
        for path, place in _texts(chunk, ()):
            texts.setdefault(path, []).append(place)
    is_changed = False
    for places in texts.values():
        parts = [holder[at] for holder, at in places]
        if len(set(parts)) > 1 and _redact_parts(places, parts, redaction):
            is_changed = True
    return read if is_changed else chunks


def _redact_parts(places: list[_Place], parts: list[str], redaction: Redaction) -> bool:
    """Redact a text that is split into these parts. False if every secret in it stands in one part alone."""
    text = "".join(parts)
    clean = redaction.text(text)
    if clean == text or clean == "".join(map(redaction.text, parts)):
        return False
    first = common_length(text, clean)
    last = len(text) - common_length(text[first:][::-1], clean[first:][::-1])
    instead, begin = clean[first : len(clean) - (len(text) - last)], 0
    for (holder, at), part in zip(places, parts, strict=True):
        end = begin + len(part)
        if begin < last and end > first:
            holder[at] = part[: max(0, first - begin)] + instead + part[max(0, last - begin) :]
            instead = ""
        begin = end
    return True


def _texts(data: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], _Place]]:
    pairs = data.items() if type(data) is dict else enumerate(data) if type(data) is list else ()
    for name, value in pairs:
        if type(value) is str:
            yield (*path, name), (data, name)
        else:
            yield from _texts(value, (*path, name))


# Shape of an outcome in a file, which may have been edited


class Stream(msgspec.Struct):
    """The chunks of a generator, or of a function that returned one, under ``stream``.

    Attributes:
        chunks: an outcome each.
        end: the outcome of its end.
        plain: whether it was not awaited.
    """

    chunks: list[dict[str, Any]]
    end: dict[str, Any]
    plain: bool = False


class _Parts(msgspec.Struct):
    error: Failure | None = None
    stream: Stream | None = None
    response: ResponseShape | None = None
    instead: tuple[str, str] | None = None
    loops: list[tuple[str, str, Annotated[int, msgspec.Meta(ge=0)]]] = []
    awaited: bool = False
    made: str = ""


def check_outcome(outcome: Outcome) -> None:
    """Check that an outcome can be taken apart. Values are checked when they are read.

    Raises:
        msgspec.ValidationError: if it cannot, with the place in the line.
    """
    parts = msgspec.convert(outcome, _Parts)
    if parts.stream is not None:
        check_outcome(parts.stream.end)
    if parts.response is not None and parts.response.end is not None:
        check_outcome(parts.response.end)
