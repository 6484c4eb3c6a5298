"""Outcomes of calls as plain data and back: a value, an exception, the chunks of a stream, the parts of a response.

An outcome is a dict with one of these: ``value`` (JSON itself), ``typed`` (read by the return annotation), ``any``
(with tags), ``object`` (of a registered class), ``error``, ``stream`` (``chunks`` and ``end``), ``response``,
``cancelled``, ``unencodable`` and ``unfinished``. What was written is read again at once, and must be the same value.
If no form gives it back, its fields are written for people, and the log says so.
"""

from __future__ import annotations

import contextlib
import inspect
import marshal
import types
import typing
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from agent_cache.errors import CassetteError, ConfigurationError
from agent_cache.recording.http.bodies import ResponseShape, map_response
from agent_cache.recording.redaction import Redaction, is_positional, redact_error, without_secret_fields
from agent_cache.values import typed
from agent_cache.values.canonical import declared_names, full_name, is_model
from agent_cache.values.compare import utf8_text
from agent_cache.values.typed import JSON, Returns, Undecodable, Unencodable

T = TypeVar("T")
Outcome: TypeAlias = dict[str, Any]


# JSON

encode = msgspec.json.Encoder().encode
encode_sorted = msgspec.json.Encoder(order="sorted").encode
decode = msgspec.json.Decoder().decode


def is_utf8(text: str) -> bool:
    """Whether a text has no half of a surrogate pair, as one that was cut in the middle of a character."""
    return text.isascii() or utf8_text(text) == text


def exact_json(value: Any) -> tuple[bytes, Any] | None:
    """JSON of a value, and what is read from it; None if that is not the same value, types included.

    marshal refuses subclasses, in C, and JSON tells numbers apart, so what is equal then is of equal types.
    """
    try:
        raw = encode(value)
        marshal.dumps(value, 4)
        read = decode(raw)
        return (raw, read) if value == read else None
    except Exception:  # noqa: BLE001 - whatever a value does when it is read, it is no plain JSON
        return None


# Registered classes

REGISTERED: Final[dict[str, type]] = {}  # the registered classes by name


def register(*classes: type[T]) -> type[T]:
    """Allow values and exceptions of these classes to come back from cassettes. Also works as a decorator.

    Values need it that have no return annotation, and exceptions whose module the replaying program does not import, or
    which are not found there under their name.

    Raises:
        ConfigurationError: if one is not a class.
    """
    if not classes or not all(isinstance(one, type) for one in classes):
        raise ConfigurationError(f"register takes classes, got {', '.join(map(repr, classes)) or 'none'}")
    REGISTERED.update((name_of(one), one) for one in classes)
    return classes[0]


def name_of(kind: type) -> str:
    """The name of a class in cassettes."""
    return f"{kind.__module__}:{kind.__qualname__}"


# Annotations

_TAGGED: Final = "$typed"  # marks data in the tagged form of `values.typed`
_encode_sorted_sets = msgspec.json.Encoder(enc_hook=typed.model_to_data, order="sorted").encode


class PlainSchema(typed.Schema):
    """Writes the values of an annotation as plain data that JSON carries exactly, and reads them."""

    def __init__(self, annotation: Any, beside: tuple[type, ...] = ()) -> None:
        self.beside = beside
        super().__init__(typing.Union[(annotation, *beside)] if beside else annotation)
        # Objects that are written as lists, without the names of their fields, would be read as others.
        self._omits_defaults |= any(map(is_positional, self._texts))

    def to_plain(self, value: Any) -> Any:
        """Write a value."""
        data, is_tagged = self.dump(value, JSON)
        plain = decode(data)
        if is_tagged:
            return {_TAGGED: plain}
        if _is_tagged(plain):
            raise Unencodable(f"a value of type {full_name(type(value))} looks like the data of another one")
        with contextlib.suppress(TypeError):  # members of a set that cannot be sorted
            plain = _with_sorted_sets(plain, decode(_encode_sorted_sets(value)))
        return plain

    def from_plain(self, plain: Any) -> Any:
        """Read what `to_plain` wrote for the same annotation. Data that a person edited will do if its types do."""
        is_tagged = _is_tagged(plain)
        try:
            return self.load(encode(plain[_TAGGED] if is_tagged else plain), JSON, is_tagged=is_tagged)
        except Exception as error:
            raise Undecodable(f"not the data of such a value ({_why(error)})") from error

    @staticmethod
    def made(kind: Any, fields: dict[str, Any], state: list[Any]) -> Any:
        """An object of a class from what it had: without a field that is gone, a new one with its default."""
        if is_model(kind):
            declared = kind.__pydantic_fields__.items()
            new = {name: one for name, one in declared if name not in fields and not one.is_required()}
            defaults = {name: one.get_default(call_default_factory=True) for name, one in new.items()}
            return typed.Schema.made(kind, {**defaults, **fields}, state)
        names = declared_names(kind) or ()
        found = {name: one for name, one in fields.items() if name in names}
        if len(found) < len(names):
            for one in msgspec.inspect.type_info(kind).fields:  # type: ignore[attr-defined]  # of a class that has them
                if one.name not in found and not one.required:
                    found[one.name] = one.default_factory() if one.default is msgspec.NODEFAULT else one.default
        return typed.Schema.made(kind, found, state)


def _with_sorted_sets(plain: Any, ordered: Any) -> Any:
    """The data of a value whose sets, and dicts, are sorted in other data of it. Their order depends on chance."""
    if plain == ordered:
        return plain
    if type(plain) is list:
        return [*map(_with_sorted_sets, plain, ordered)]
    return (
        {name: _with_sorted_sets(one, ordered[name]) for name, one in plain.items()} if type(plain) is dict else ordered
    )


def _is_tagged(plain: Any) -> bool:
    return type(plain) is dict and len(plain) == 1 and _TAGGED in plain


def _why(error: BaseException) -> str:
    """What is wrong with data, by the names of fields and types, and never a value: pydantic's texts have some."""
    while error.__cause__ is not None:
        error = error.__cause__
    if not hasattr(error, "errors"):
        return str(error)
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{getattr(error, 'title', '')}: {'.'.join(map(str, first['loc']))}: {first['msg']}"


@lru_cache(maxsize=1024, typed=True)
def _schema(annotation: Any, beside: tuple[type, ...]) -> PlainSchema:
    try:
        return PlainSchema(_without_streams(annotation), beside)
    except Exception:  # noqa: BLE001 - it is no annotation, so it stands for none
        return PlainSchema(Any, beside)


def schema_of(returns: Any, beside: tuple[type, ...] = ()) -> PlainSchema:
    """The schema of an annotation, or of the `Returns` of a function. Each is made once. See `PlainSchema`."""
    annotation = returns.resolve() if isinstance(returns, Returns) else returns
    try:
        return _schema(annotation, beside)
    except TypeError:  # an annotation with metadata that has no hash
        return PlainSchema(annotation, beside)


_UNIONS: Final = (typing.Union, types.UnionType)


def _without_streams(annotation: Any) -> Any:
    """An annotation such as ``Answer | Stream[Chunk]`` without the streams: their chunks are written, not they."""
    if typing.get_origin(annotation) not in _UNIONS:
        return annotation
    members = typing.get_args(annotation)
    kept = [each for each in members if typing.get_origin(each) in typed.STREAMS or annotation_of_chunks(each) is Any]
    return typing.Union[tuple(kept or members)]  # noqa: UP007 - the members are known only here


def annotation_of_chunks(annotation: Any) -> Any:
    """The annotation of the chunks of what is annotated as a stream; `Any` if it tells nothing of them.

    A stream is an iterator, or a class whose objects are iterated over, such as ``AsyncStream[Chunk]`` of OpenAI's
    client. Its methods are annotated as ``Answer | AsyncStream[Chunk]``: what is no stream does not count.
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return annotation_of_chunks(arguments[0])
    if origin in _UNIONS:
        found = [each for member in arguments if (each := annotation_of_chunks(member)) is not Any]
        return typing.Union[tuple(found)] if found else Any  # noqa: UP007 - as above
    step = getattr(origin or annotation, "__anext__", None) or getattr(origin or annotation, "__next__", None)
    if arguments and (origin in typed.STREAMS or step is not None):
        return arguments[0]
    hint = Returns(step).resolve() if inspect.isfunction(step) else Any
    return Any if isinstance(hint, TypeVar) else hint


_ANY: Final = schema_of(Any)


# Values


def value_outcome(value: Any, schema: PlainSchema, redaction: Redaction, *, is_chunk: bool = False) -> Outcome:
    """The redacted outcome of a call that returned this value, or of a chunk of a stream.

    A chunk is redacted later, together with the chunks before and after it.
    """
    if (exact := exact_json(value)) is not None:
        raw, read = exact
        return {"value": msgspec.Raw(raw) if is_chunk or not redaction.may_change(raw) else redaction.apply(read)}
    outcome = _written(without_secret_fields(value, redaction), schema)
    if is_chunk or "unencodable" in outcome or not redaction.may_change(encode(outcome)):
        return outcome
    clean = _clean(outcome, redaction)
    if clean != outcome and "class" not in clean:
        try:  # whether it still makes a value
            read_value(clean, schema, "", 0)
        except CassetteError:
            clean["redacted"] = True
    return clean


def read_value(outcome: Outcome, schema: PlainSchema, path: str, line: int) -> Any:
    """The value that `value_outcome` wrote for the same annotation, unless it is JSON itself."""
    reason = f"has an outcome of an unknown kind: {', '.join(outcome) or 'none'}"
    try:
        if "made" in outcome:
            return _class_of_litellm(outcome["made"])(**outcome["value"])
        if "typed" in outcome:
            return schema.from_plain(outcome["typed"])
        if "any" in outcome:
            return _ANY.from_plain(outcome["any"])
        if "object" in outcome:
            name, plain = outcome["object"]
            if name in REGISTERED:
                return schema_of(REGISTERED[name]).from_plain(plain)
            reason = f"names the class {name}, which is not registered here; see agent_cache.recording.register"
    except Exception as error:  # whatever a class raises for a file that was edited
        text = (
            f"its value does not fit the return annotation ({error}); the function has changed, or redaction removed "
            "a part that its type needs. Record it again, or give it another annotation"
        )
        raise CassetteError(text, path, line) from error
    if "unencodable" in outcome:
        reason = f"its value was a {outcome['unencodable']}, which could not be written; {_ADVICE}"
    raise CassetteError(reason, path, line)


def _written(value: Any, schema: PlainSchema) -> Outcome:
    """The outcome of a value that is not JSON."""
    kind, reason = type(value), ""
    name = name_of(kind)
    writers = [("any", _ANY)] if schema.annotation is Any and not schema.beside else [("typed", schema), ("any", _ANY)]
    if REGISTERED.get(name) is kind:
        writers.append(("object", schema_of(kind)))
    for form, writer in writers:
        try:
            plain = writer.to_plain(value)
        except Unencodable as error:
            reason = reason or str(error)
        else:
            return {form: [name, plain] if form == "object" else plain}
    try:
        if name in _OF_LITELLM:
            return {"value": value.model_dump(mode="json"), "made": name}
        plain = msgspec.to_builtins(value, str_keys=True, enc_hook=lambda inner: inner.model_dump(mode="json"))
        encode(plain)
    except Exception:  # noqa: BLE001 - reading a user's object may raise anything; then it cannot be written
        return {"unencodable": name, "reason": reason}
    return {"value": plain, "class": name, "reason": reason}


_OF_LITELLM = frozenset(
    f"litellm.types.utils:{name}"
    for name in ("EmbeddingResponse", "ModelResponse", "ModelResponseStream", "TextCompletionResponse")
)
"""Responses with more fields than their classes declare, which their constructors read, and no annotation does."""


def _class_of_litellm(name: str) -> Any:
    if name not in _OF_LITELLM:
        raise LookupError(f"{name} is not among {', '.join(sorted(_OF_LITELLM))}")
    from litellm.types import utils

    return getattr(utils, name.partition(":")[2])


# What does not come back


def problems_of(outcome: Outcome, verb: str = "returned") -> Iterator[str]:
    """What a replay of this outcome will not do as the recorded call did, and what helps. The texts name types only."""
    reason = f" ({outcome['reason']})" if outcome.get("reason") else ""
    error = outcome.get("error", {})
    if "unencodable" in outcome:
        yield f"{verb} a {outcome['unencodable']}, which cannot be replayed{reason}; {_ADVICE}"
    if "class" in outcome:
        yield (
            f"{verb} a {outcome['class']}, which a replay gives back as plain data{reason}; annotate what the function "
            "returns, or register the class"
        )
    if "redacted" in outcome:
        yield f"{verb} a value that does not fit its annotation without its secrets; give it one that does"
    if error.get("unknown"):
        yield (
            f"raised {error.get('type')}, which a replay raises as RecordedError or without parts of it; "
            "register the class with agent_cache.recording.register, or raise one that is made of plain values"
        )
    stream: dict[str, Any] = outcome.get("stream") or outcome.get("response") or {}
    parts = [{"error": member} for member in error.get("group", ())] + ([stream["end"]] if "end" in stream else [])
    for part in parts:
        yield from problems_of(part)
    for chunk in outcome.get("stream", {}).get("chunks", ()):
        yield from problems_of(chunk, "yielded")


_ADVICE: Final = (
    "give the function a return annotation of plain fields, or if it returns something to open, record a function that "
    "opens it, and returns or yields what is in it"
)


# Redaction of what was written


def redact_call_outcome(outcome: Outcome, rules: Redaction) -> Outcome:
    """An outcome of a file without secrets, also without those that go over several chunks of its stream."""
    form = "response" if "response" in outcome else "stream"
    if form not in outcome:
        return _clean(outcome, rules)
    data = outcome[form]
    if form == "stream":
        data = {**data, "chunks": redact_chunks(data["chunks"], rules)}
    else:
        try:
            msgspec.convert(data, ResponseShape)
            data = redact_response(data, rules)
        except (msgspec.ValidationError, ValueError):  # the file was edited, and this is no response
            return {**outcome, form: rules.apply(data)}
    return {**outcome, form: {**data, "end": _clean(data["end"], rules)} if "end" in data else data}


def _clean(outcome: Outcome, rules: Redaction) -> Outcome:
    """The same value or exception, redacted, and the rest left alone."""
    for form in ("value", "typed", "any"):
        if form in outcome:
            return {**outcome, form: rules.apply(outcome[form])}
    if "object" in outcome:
        name, plain = outcome["object"]
        return {**outcome, "object": [name, rules.apply(plain)]}
    return {**outcome, "error": redact_error(outcome["error"], rules)} if "error" in outcome else outcome


def redact_chunks(chunks: list[Outcome], redaction: Redaction) -> list[Outcome]:
    """The outcomes of the chunks of a stream without secrets, also without those that go over several chunks.

    Texts in the same place of each chunk, such as the words of an answer, are read as one.
    """
    joined = _redact_joined(chunks, redaction)
    return [_clean(decode(raw), redaction) if redaction.may_change(raw := encode(one)) else one for one in joined]


_STREAMS = ("events", "frames", "lines")


def redact_response(response: Outcome, redaction: Redaction) -> Outcome:
    """A response of HTTP without secrets, also without those that go over several events."""
    field = next((one for one in _STREAMS if one in response), None)
    if field is not None:
        events = _redact_joined([{"value": one} for one in response[field]], redaction)
        response = {**response, field: [one["value"] for one in events]}
    if "bytes" not in response and field != "frames" and not redaction.may_change(encode(response)):
        return response
    try:
        return map_response(response, redaction.apply)
    except TypeError as error:
        text = f"the redaction hook must return a response as a dict, as it was given it: {error}"
        raise ConfigurationError(text) from error


_Place: TypeAlias = tuple[Any, str | int]  # the container of a text, and its key or index there


def _redact_joined(chunks: list[Outcome], redaction: Redaction) -> list[Outcome]:
    """Redact the texts that stand in the same place of each chunk as one text.

    If that finds a secret which no chunk has alone, the first of them has the whole text, and the others have none.
    """
    if len(chunks) < 2:
        return chunks
    read: list[Outcome] = [decode(encode(chunk)) for chunk in chunks]
    texts: dict[tuple[str | int, ...], list[_Place]] = {}
    for chunk in read:
        for path, place in _texts(chunk, ()):
            texts.setdefault(path, []).append(place)
    is_changed = False
    for places in texts.values():
        parts = [holder[at] for holder, at in places]
        clean = redaction.text("".join(parts)) if len(set(parts)) > 1 else ""
        if clean and clean != "".join(map(redaction.text, parts)):
            is_changed = True
            for holder, at in places:
                holder[at], clean = clean, ""
    return read if is_changed else chunks


def _texts(data: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], _Place]]:
    pairs = data.items() if type(data) is dict else enumerate(data) if type(data) is list else ()
    for name, value in pairs:
        if type(value) is str:
            yield (*path, name), (data, name)
        else:
            yield from _texts(value, (*path, name))


def common_length(ones: Sequence[Any], others: Sequence[Any]) -> int:
    """How many elements two sequences begin with in common."""
    return bisect_left(range(min(len(ones), len(others))), 1, key=lambda at: ones[: at + 1] != others[: at + 1])


# Shape of an outcome in a file, which may have been edited


class Failure(msgspec.Struct):
    """An exception under ``error``."""

    type: str = ""
    base: str = "Exception"
    unknown: bool = False
    message: str = ""
    args: list[Any] | dict[str, Any] = []
    state: dict[str, Any] = {}
    notes: list[str] = []
    cause: Failure | UnsetType = UNSET
    group: list[Failure] = []


class Stream(msgspec.Struct):
    """The chunks of a generator, or of a function that returned one, under ``stream``."""

    chunks: list[_Parts]
    end: _Parts
    plain: bool = False


class _Parts(msgspec.Struct):
    error: Failure | UnsetType = UNSET
    stream: Stream | UnsetType = UNSET
    response: ResponseShape | UnsetType = UNSET
    instead: tuple[str, str] | None = None
    loops: list[tuple[str, str, Annotated[int, msgspec.Meta(ge=0)]]] = []
    awaited: bool = False
    made: str = ""


def check_outcome(outcome: Outcome) -> None:
    """Check that an outcome can be taken apart. Values are checked when they are read."""
    parts = msgspec.convert(outcome, _Parts)
    if parts.response is not UNSET and parts.response.end is not UNSET:
        check_outcome(parts.response.end)
