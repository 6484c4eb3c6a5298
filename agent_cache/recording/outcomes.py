"""What a call came to, as plain data and back: a value, an exception, a stream, a cancellation."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from agent_cache.errors import CassetteError
from agent_cache.recording.classes import name_of, registered
from agent_cache.recording.failures import failure_of, map_failure
from agent_cache.recording.positional import without_secret_fields
from agent_cache.recording.redaction import Redaction
from agent_cache.values.schema import Schema, schema_of
from agent_cache.values.tagged import Undecodable, Unencodable, encode, exact_json

__all__ = ["error_outcome", "map_payload", "read_value", "value_outcome"]

Outcome = dict[str, Any]

_LOG = logging.getLogger("agent_cache")
_ANY = schema_of(Any)
_VALUES = ("value", "typed", "any")


def value_outcome(value: Any, schema: Schema, redaction: Redaction, *, is_chunk: bool = False) -> Outcome:
    """What a call returned, redacted. The form is chosen so that the value comes back as it was.

    JSON stands for itself; else what the return annotation makes of it; else builtin values that say what they are;
    else a registered class. An object that none of these knows becomes the plain data of its fields, and what has no
    fields either is noted as not to be had. A chunk is redacted later, with those that come before and after it.
    """
    exact = exact_json(value)
    if exact is not None:
        raw, read = exact
        is_clean = is_chunk or not redaction.may_touch(raw)
        return {"value": msgspec.Raw(raw) if is_clean else redaction.apply(read)}
    form, plain = _written(without_secret_fields(value, redaction), schema)
    if is_chunk:
        return {form: plain}
    if form == "unencodable":
        return {form: plain}
    if form == "object":
        return {form: [plain[0], redaction.apply(plain[1])]}
    if form == "typed" and b"byte" in schema.fingerprint:  # in base64 there, where no secret shows
        return {form: redaction.apply(plain)}
    return {form: _redacted(plain, redaction)}


def error_outcome(error: BaseException, redaction: Redaction) -> Outcome:
    """What a call raised, redacted."""
    data = failure_of(error)
    if redaction.may_touch(encode(data)):
        data = map_failure(data, redaction.apply)
    return {"error": data}


def read_value(outcome: Outcome, schema: Schema, path: str, line: int) -> Any:
    """The value that `value_outcome` wrote for the same annotation, where JSON does not carry it.

    Raises:
        CassetteError: if it cannot be had.
    """
    try:
        if "typed" in outcome:
            return schema.from_plain(outcome["typed"])
        if "any" in outcome:
            return _ANY.from_plain(outcome["any"])
        if "object" in outcome:
            name, plain = outcome["object"]
            kind = registered(name)
            if kind is None:
                raise CassetteError(
                    f"names the class {name}, which is not registered here; see agent_cache.recording.register",
                    path,
                    line,
                )
            return schema_of(kind).from_plain(plain)
    except (Undecodable, ValueError, TypeError) as error:
        raise CassetteError(
            f"its value is not what the return annotation says ({error}); the function has changed, or redaction took "
            "a part of it that its type needs. Record it again, or give it another annotation",
            path,
            line,
        ) from error
    if "unencodable" in outcome:
        raise CassetteError(
            f"its value was a {outcome['unencodable']}, which could not be written down; give the function a return "
            'annotation of plain fields, or run it with policy={...: "live"}',
            path,
            line,
        )
    raise CassetteError(f"has an outcome of an unknown kind: {', '.join(outcome) or 'none'}", path, line)


def map_payload(outcome: Outcome, change: Callable[[Any], Any]) -> Outcome:
    """The same outcome with what the run saw changed, and what describes it left alone."""
    for form in _VALUES:
        if form in outcome:
            return {**outcome, form: change(outcome[form])}
    if "object" in outcome:
        name, plain = outcome["object"]
        return {**outcome, "object": [name, change(plain)]}
    if "error" in outcome:
        return {**outcome, "error": map_failure(outcome["error"], change)}
    if "stream" in outcome:
        stream = outcome["stream"]
        chunks = [map_payload(chunk, change) for chunk in stream["chunks"]]
        return {**outcome, "stream": {**stream, "chunks": chunks, "end": map_payload(stream["end"], change)}}
    return outcome


def _written(value: Any, schema: Schema) -> tuple[str, Any]:
    for form, writer in (("typed", schema), ("any", _ANY)):
        if form == "typed" and schema.annotation is Any:
            continue
        try:
            return form, writer.to_plain(value)
        except Unencodable:
            continue
    kind = type(value)
    if registered(name_of(kind)) is kind:
        try:
            return "object", [name_of(kind), schema_of(kind).to_plain(value)]
        except Unencodable:
            pass
    try:
        plain = msgspec.to_builtins(value, str_keys=True, enc_hook=_fields)
        encode(plain)
    except Exception:  # noqa: BLE001 - whatever a value does when it is looked at, it cannot be written down
        _warn(kind, "cannot be written down; a replay of this call will say so")
        return "unencodable", name_of(kind)
    _warn(kind, "is recorded as plain data; annotate what the function returns, or register the class, to have it back")
    return "value", plain


def _redacted(plain: Any, redaction: Redaction) -> Any:
    return redaction.apply(plain) if redaction.may_touch(encode(plain)) else plain


def _fields(value: Any) -> Any:
    if hasattr(type(value), "model_dump"):
        return value.model_dump(mode="json")
    raise NotImplementedError


_warned: set[type] = set()


def _warn(kind: type, what: str) -> None:
    if kind not in _warned and len(_warned) < 1000:
        _warned.add(kind)
        _LOG.warning("recording: a value of type %s.%s %s", kind.__module__, kind.__qualname__, what)
