"""Edits of recorded calls: another answer, or an exception, in the place of the recorded one.

An edit becomes an outcome as a recording would have written it, so that a run cannot tell it from a recorded one. What
can be checked without the function is checked when the edit is given; the rest, its return annotation, when the call is
made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from agent_cache.errors import ConfigurationError
from agent_cache.recording.exceptions import error_outcome, read_error
from agent_cache.recording.file import RecordedCall
from agent_cache.recording.outcomes import (
    REGISTERED,
    PlainSchema,
    check_outcome,
    decode,
    encode,
    exact_json,
    is_readable,
    redact_chunks,
    redact_response,
    schema_of,
    value_outcome,
)
from agent_cache.recording.redaction import Redaction
from agent_cache.values.typed import Undecodable

__all__ = [
    "Raised",
    "check_edit",
    "edited_call",
]

Outcome: TypeAlias = dict[str, Any]

_NO_RETURN = frozenset({"error", "cancelled", "unfinished"})


@dataclass(frozen=True, slots=True)
class Raised:
    """In the edits of a `fork`: the call raises this, whatever it did when it was recorded.

    Args:
        error: the exception. Its class is one that a recording can write: of the builtin ones, of your own program, or
            given to `register`.

    Raises:
        ConfigurationError: if it is no exception.
    """

    error: BaseException

    def __post_init__(self) -> None:
        if not isinstance(self.error, BaseException):
            raise ConfigurationError(f"Raised takes an exception, got {self.error!r}")


def check_edit(recorded: RecordedCall, edit: Any, redaction: Redaction) -> None:
    """Check what can be said of an edit before its function is known.

    Args:
        recorded: the call.
        edit: what it is to answer.
        redaction: of the recording.

    Raises:
        ConfigurationError: if the call cannot have such an outcome.
    """
    if isinstance(edit, Raised):
        _raised_outcome(recorded, edit, redaction)
    elif _is_edited_response(recorded):
        _response_outcome(recorded, edit, redaction)
    elif "stream" in recorded.outcome:
        _chunks_of(recorded, edit)
    else:
        is_data = any(type(recorded.outcome.get(form)) is dict for form in ("value", "typed", "any"))
        if recorded.kind == "llm" and isinstance(edit, str) and is_data:
            raise ConfigurationError(f"{_named(recorded)}, is a text, and the model's answer is data: give all of it")
        written = value_outcome(edit, schema_of(type(edit)), redaction)
        if "unencodable" in written:
            raise ConfigurationError(
                f"{_named(recorded)}, is a {written['unencodable']}, which cannot be written down: {written['reason']}"
            )


def edited_call(
    recorded: RecordedCall, edit: Any, schema: PlainSchema, chunks: PlainSchema, redaction: Redaction
) -> RecordedCall:
    """A recorded call with this edit as its outcome.

    Args:
        recorded: the call.
        edit: what it answers.
        schema: how its function returns values.
        chunks: how its function yields chunks.
        redaction: of the recording.

    Raises:
        ConfigurationError: if the function cannot return that.
    """
    outcome: Outcome
    if isinstance(edit, Raised):
        outcome = _raised_outcome(recorded, edit, redaction)
    elif _is_edited_response(recorded):
        outcome = _response_outcome(recorded, edit, redaction)
    elif "stream" in recorded.outcome:
        written = [_chunk_outcome(recorded, one, chunks, redaction) for one in _chunks_of(recorded, edit)]
        outcome = {"stream": {"chunks": redact_chunks(written, redaction), "end": {"value": None}}}
        if recorded.outcome["stream"].get("plain"):
            outcome["stream"]["plain"] = True
    else:
        outcome = _of_same_class(_value_outcome(recorded, edit, schema, redaction), edit, recorded.outcome)
    if recorded.outcome.get("awaited"):
        outcome["awaited"] = True
    source = "" if recorded.source == "blocked" else recorded.source  # what was blocked did not answer
    return msgspec.structs.replace(recorded, outcome=decode(encode(outcome)), source=source)


def _named(recorded: RecordedCall) -> str:
    return f"the edit of call {recorded.id}, {recorded.name}"


def _raised_outcome(recorded: RecordedCall, edit: Raised, redaction: Redaction) -> Outcome:
    outcome = error_outcome(edit.error, redaction)
    back = read_error(outcome["error"])
    if type(back) is not type(edit.error):
        kind = type(edit.error)
        raise ConfigurationError(
            f"{_named(recorded)}, raises {kind.__module__}:{kind.__qualname__}, which cannot be written down; register "
            "the class with agent_cache.recording.register, or raise another one"
        )
    if "stream" not in recorded.outcome:
        return outcome
    stream: Outcome = {"chunks": [], "end": outcome}
    if recorded.outcome["stream"].get("plain"):
        stream["plain"] = True
    return {"stream": stream}


# Values


def _value_outcome(recorded: RecordedCall, edit: Any, schema: PlainSchema, redaction: Redaction) -> Outcome:
    if exact_json(edit) is None:
        written = value_outcome(edit, schema, redaction)
        _check_written(recorded, written)
        return written
    if "object" in recorded.outcome:
        name = recorded.outcome["object"][0]
        kind = REGISTERED.get(name)
        if kind is None:
            raise ConfigurationError(f"{_named(recorded)}, is of the class {name}, which is not registered here")
        return {"object": [name, _readable(recorded, redaction.apply(edit), schema_of(kind))]}
    form = "typed" if "typed" in recorded.outcome or _needs_type(schema, edit, recorded) else "value"
    plain = redaction.apply(edit)
    if form == "typed" and schema.beside and isinstance(plain, dict | list):
        return _outcome_beside(recorded, plain, schema, redaction)
    if form == "typed":
        return {form: _readable(recorded, plain, schema)}
    if "value" not in recorded.outcome or is_readable(recorded.outcome["value"], schema):
        _readable(recorded, plain, schema)
    return {form: plain}


def _outcome_beside(recorded: RecordedCall, plain: Any, schema: PlainSchema, redaction: Redaction) -> Outcome:
    """Plain data in the place of an object of a class that the caller passed, which no annotation names."""
    try:
        kind = type(schema.from_plain(recorded.outcome.get("typed")))
    except Undecodable:
        kind = None
    if kind not in schema.beside:
        raise ConfigurationError(
            f"{_named(recorded)}, is plain data of an answer with an object of a class in it that the program passes; "
            "give the object"
        )
    _readable(recorded, plain, schema_of(kind))
    return value_outcome(schema_of(kind).from_plain(plain), schema, redaction)


def _needs_type(schema: PlainSchema, edit: Any, recorded: RecordedCall) -> bool:
    """Whether plain data stands for an object, of a call that did not return one when it was recorded."""
    returned = recorded.outcome.keys().isdisjoint(_NO_RETURN)
    if returned and ("value" not in recorded.outcome or recorded.outcome["value"] is not None):
        return False
    try:
        return bool(schema.from_plain(edit) != edit)
    except Undecodable:
        return False


def _readable(recorded: RecordedCall, plain: Any, schema: PlainSchema) -> Any:
    """The same data, if it is read by this annotation.

    Raises:
        ConfigurationError: if it is not.
    """
    try:
        schema.from_plain(plain)
    except Undecodable as error:
        raise ConfigurationError(f"{_named(recorded)}, does not fit what the function returns: {error}") from error
    return plain


def _check_written(recorded: RecordedCall, written: Outcome) -> None:
    if "unencodable" in written or "class" in written:
        kind = written.get("unencodable") or written["class"]
        raise ConfigurationError(
            f"{_named(recorded)}, is a {kind}, and the function is not annotated to return one ({written['reason']}); "
            "give what it returns, annotate it, or register the class"
        )
    if "redacted" in written:
        raise ConfigurationError(
            f"{_named(recorded)}, has a secret in it, without which it does not fit what the function returns"
        )


def _chunk_outcome(recorded: RecordedCall, chunk: Any, schema: PlainSchema, redaction: Redaction) -> Outcome:
    is_typed = any("typed" in one for one in recorded.outcome["stream"]["chunks"])
    if is_typed and exact_json(chunk) is not None:
        return {"typed": _readable(recorded, chunk, schema)}
    written = value_outcome(chunk, schema, redaction, is_chunk=True)
    _check_written(recorded, written)
    return _of_same_class(written, chunk, next(iter(recorded.outcome["stream"]["chunks"]), {}))


def _of_same_class(written: Outcome, edit: Any, recorded: Outcome) -> Outcome:
    """Plain data in the place of a response of LiteLLM is read as one, too."""
    if "made" not in recorded or written.keys() != {"value"}:
        return written
    is_response = isinstance(edit, dict) or type(written["value"]) is dict
    return {**written, "made": recorded["made"]} if is_response else written


def _chunks_of(recorded: RecordedCall, edit: Any) -> list[Any]:
    """The chunks that an edit of a stream stands for."""
    chunks = recorded.outcome["stream"]["chunks"]
    if isinstance(edit, str) and chunks and all(type(one.get("value")) is str for one in chunks):
        return [edit]
    if isinstance(edit, list | tuple):
        return list(edit)
    raise ConfigurationError(
        f"{_named(recorded)}, is a {type(edit).__name__}, but the call returned a stream: give the list of its chunks"
    )


# Responses of HTTP


def _is_edited_response(recorded: RecordedCall) -> bool:
    """Whether an edit of a call is one of a response of HTTP."""
    return "response" in recorded.outcome or recorded.kind == "http" or "://" in recorded.name.partition(" ")[2]


def _response_outcome(recorded: RecordedCall, edit: Any, redaction: Redaction) -> Outcome:
    response = recorded.outcome.get("response")
    if response is None:
        raise ConfigurationError(
            f"{_named(recorded)}, has no response to change, because the recorded request had none; only Raised(...) "
            "can take its place"
        )
    if exact_json(edit) is None:
        raise ConfigurationError(
            f"{_named(recorded)}, is a {type(edit).__name__}; give the JSON of the body, or a text"
        )
    changed = {name: value for name, value in response.items() if name != "end"}
    pieces = next((field for field in ("events", "lines", "frames", "chunks") if field in response), None)
    if pieces is not None:
        changed[pieces] = edit
        try:
            check_outcome({"response": changed})
        except msgspec.ValidationError as error:
            raise ConfigurationError(
                f"{_named(recorded)}, must be the list of {pieces} of the answer, as the recording has them: {error}"
            ) from error
    elif "json" in response:
        if isinstance(edit, str) and not isinstance(response["json"], str):
            raise ConfigurationError(f"{_named(recorded)}, is a text, and the body of the response is JSON; give that")
        changed["json"] = edit
    elif isinstance(edit, str) and "bytes" not in response:
        changed["text"] = edit
    else:
        raise ConfigurationError(f"{_named(recorded)}, must be a text, as the body of the response is")
    return {"response": redact_response(changed, redaction)}
