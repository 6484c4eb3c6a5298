"""Edits of recorded calls: another answer, or an exception, in the place of the recorded one.

An edit becomes an outcome as a recording would have written it, so that a run cannot tell it from a recorded one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
    redact_chunks,
    redact_response,
    schema_of,
    value_outcome,
)
from agent_cache.recording.redaction import Redaction
from agent_cache.values.typed import Undecodable


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


def edited_call(
    recorded: RecordedCall,
    edit: Any,
    redaction: Redaction,
    schema: PlainSchema | None = None,
    chunks: PlainSchema | None = None,
) -> RecordedCall:
    """A recorded call with this edit as its outcome."""
    was = recorded.outcome
    if isinstance(edit, Raised):
        outcome = error_outcome(edit.error, redaction)
        if type(read_error(outcome["error"])) is not type(edit.error):
            kind = type(edit.error)
            raise _refused(
                recorded,
                f"raises {kind.__module__}:{kind.__qualname__}, which cannot be written down; register the class with "
                "agent_cache.recording.register, or raise another one",
            )
        if "stream" in was:
            outcome = {"stream": {**was["stream"], "chunks": [], "end": outcome}}
    elif "response" in was or recorded.kind == "http" or "://" in recorded.name.partition(" ")[2]:
        outcome = {"response": redact_response(_response(recorded, edit), redaction)}
    elif "stream" in was:
        pieces = was["stream"]["chunks"]
        if isinstance(edit, str) and pieces and all(type(one.get("value")) is str for one in pieces):
            edit = [edit]
        if not isinstance(edit, list | tuple):
            raise _refused(
                recorded, f"is a {type(edit).__name__}, but the call returned a stream: give the list of its chunks"
            )
        like = next((one for one in pieces if "typed" in one), pieces[0] if pieces else {"value": ""})
        written = [_written(recorded, like, one, chunks, redaction, is_chunk=True) for one in edit]
        chunks_now = redact_chunks(written, redaction)
        outcome = {"stream": {**was["stream"], "chunks": chunks_now, "end": {"value": None}}}
    else:
        if recorded.kind == "llm" and isinstance(edit, str) and any(type(was.get(one)) is dict for one in _DATA):
            raise _refused(recorded, "is a text, and the model's answer is data: give all of it")
        outcome = _written(recorded, was, edit, schema, redaction)
    if was.get("awaited"):
        outcome["awaited"] = True
    source = "" if recorded.source == "blocked" else recorded.source  # what was blocked did not answer
    return msgspec.structs.replace(recorded, outcome=decode(encode(outcome)), source=source)


_DATA = ("value", "typed", "any")


def _refused(recorded: RecordedCall, reason: str) -> ConfigurationError:
    return ConfigurationError(f"the edit of call {recorded.id}, {recorded.name}, {reason}")


def _written(
    recorded: RecordedCall,
    was: dict[str, Any],
    edit: Any,
    schema: PlainSchema | None,
    redaction: Redaction,
    *,
    is_chunk: bool = False,
) -> dict[str, Any]:
    """A value as a recording writes it. Plain data is read as the object that it stands for."""
    value = edit if schema is None or exact_json(edit) is None else _read(recorded, was, edit, schema)
    written = value_outcome(value, schema or schema_of(type(edit)), redaction, is_chunk=is_chunk)
    if "unencodable" in written or (schema is not None and ("class" in written or "redacted" in written)):
        raise _refused(
            recorded,
            f"is a {type(edit).__name__}, which cannot be written down ({written.get('reason', 'it has a secret')}); "
            "give what the function is annotated to return, or register the class",
        )
    if "made" in was and written.keys() == {"value"} and (isinstance(edit, dict) or type(written["value"]) is dict):
        written["made"] = was["made"]  # read as a response of LiteLLM, too
    return written


def _read(recorded: RecordedCall, was: dict[str, Any], edit: Any, schema: PlainSchema) -> Any:
    if "object" in was:
        kind = REGISTERED.get(was["object"][0])
        if kind is None:
            raise _refused(recorded, f"is of the class {was['object'][0]}, which is not registered here")
        schema = schema_of(kind)
    elif was.get("value") is not None:  # the function returns plain data, whatever its annotation is
        return edit
    try:
        if "object" not in was and schema.beside and isinstance(edit, dict | list):
            kind = type(schema.from_plain(was.get("typed")))
            if kind not in schema.beside:
                raise _refused(recorded, "is plain data with an object of a class that is passed; give the object")
            schema = schema_of(kind)
        return schema.from_plain(edit)
    except Undecodable as error:
        raise _refused(recorded, f"does not fit what the function returns: {error}") from error


def _response(recorded: RecordedCall, edit: Any) -> dict[str, Any]:
    """The recorded response with another body."""
    response = recorded.outcome.get("response")
    if response is None:
        raise _refused(
            recorded,
            "has no response to change, because the recorded request had none; only Raised(...) can take its place",
        )
    changed = {name: value for name, value in response.items() if name != "end"}
    body = next((one for one in ("events", "lines", "frames", "chunks", "json") if one in response), "text")
    is_text = isinstance(edit, str)
    if (
        exact_json(edit) is None
        or (body == "text" and ("bytes" in response or not is_text))
        or (body == "json" and is_text and not isinstance(response["json"], str))
    ):
        raise _refused(
            recorded,
            f"is a {type(edit).__name__}; give the {'text' if body == 'text' else 'JSON'} of the body of the response",
        )
    changed[body] = edit
    try:
        check_outcome({"response": changed})
    except msgspec.ValidationError as error:
        raise _refused(recorded, f"must be the {body} of the answer, as the recording has them: {error}") from error
    return changed
