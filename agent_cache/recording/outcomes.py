"""Outcomes of calls as plain data and back: a value, an exception, the chunks of a stream, the parts of a response.

A value that JSON represents exactly is written as it is. Any other one is written by the return annotation of its
function (`agent_cache.values.typed`), of a registered class by its fields. What was written is read again at once, and
must be the same value. If no form gives it back, its fields are written for people, and the log says so.
"""

from __future__ import annotations

import collections.abc
import contextlib
import inspect
import marshal
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec

from agent_cache.errors import CassetteError, ConfigurationError
from agent_cache.recording.http.bodies import ResponseShape, map_response
from agent_cache.recording.redaction import Redaction, is_positional, redact_error, without_secret_fields
from agent_cache.values import typed
from agent_cache.values.canonical import declared_names, full_name, is_model
from agent_cache.values.typed import JSON, Returns, Undecodable, Unencodable

T = TypeVar("T")
Outcome: TypeAlias = dict[str, Any]


# JSON

encode = msgspec.json.Encoder().encode
encode_sorted = msgspec.json.Encoder(order="sorted").encode
decode = msgspec.json.Decoder().decode


def is_utf8(text: str) -> bool:
    """Whether a text is no text that was cut in the middle of a character: half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def exact_json(value: Any) -> tuple[bytes, Any] | None:
    """JSON of a value, and what is read from it; None if that is not the same value, types included.

    marshal refuses subclasses, in C, and JSON tells numbers apart, so what is equal then is of equal types. A walk in
    Python takes five times as long.
    """
    try:
        raw = encode(value)
        marshal.dumps(value, 4)
        read = decode(raw)
        return (raw, read) if value == read else None
    except Exception:  # noqa: BLE001 - whatever a value does when it is read, it is no plain JSON
        return None


# Registered classes

REGISTERED: Final[dict[str, type]] = {}
"""The registered classes by name."""


def register(*classes: type[T]) -> type[T]:
    """Allow values and exceptions of these classes to come back from cassettes. Also works as a decorator.

    Values need it that have no return annotation, and exceptions whose module the replaying program does not import, or
    which are not found there under their name.

    Raises:
        ConfigurationError: if one is not a class.
    """
    for one in classes:
        if not isinstance(one, type):
            raise ConfigurationError(f"register takes classes, got {one!r}")
        REGISTERED[name_of(one)] = one
    if not classes:
        raise ConfigurationError("register needs at least one class")
    return classes[0]


def name_of(kind: type) -> str:
    """The name of a class in cassettes."""
    return f"{kind.__module__}:{kind.__qualname__}"


# Annotations

_TAGGED: Final = "$typed"
"""Marks data in the tagged form of `values.typed`."""


class PlainSchema(typed.Schema):
    """Writes the values of an annotation as plain data that JSON carries exactly, and reads them.

    A class may have changed since: an object of it is read by the names of its fields, or is refused.

    Args:
        annotation: what it is made from, names resolved.
        beside: classes of objects that the annotation cannot name, because the caller passes them.
    """

    def __init__(self, annotation: Any, beside: tuple[type, ...] = ()) -> None:
        self.beside = beside
        super().__init__(typing.Union[(annotation, *beside)] if beside else annotation)
        # Objects that are written as lists, without the names of their fields, would be read as others.
        self._omits_defaults |= any(map(is_positional, self._texts))

    def to_plain(self, value: Any) -> Any:
        """Write a value.

        Raises:
            Unencodable: if it would not come back as it is.
        """
        data, is_tagged = self.dump(value, JSON)
        plain = decode(data)
        if is_tagged and type(plain) in _SCALARS:
            try:
                _check_type(plain, self.annotation)
            except msgspec.ValidationError as error:
                raise Unencodable(f"it does not fit its annotation: {error}") from None
        if not is_tagged and _is_tagged(plain):
            raise Unencodable(f"a value of type {full_name(type(value))} looks like the data of another one")
        return {_TAGGED: plain} if is_tagged else plain

    def from_plain(self, plain: Any) -> Any:
        """Read what `to_plain` wrote for the same annotation. Data that a person edited will do if its types do.

        Raises:
            Undecodable: for any other data, and for a field that its class does not have any more.
        """
        is_tagged = _is_tagged(plain)
        try:
            value = self.load(encode(plain[_TAGGED] if is_tagged else plain), JSON, is_tagged=is_tagged)
            if not is_tagged:
                _check_nothing_is_lost(plain, value)
        except Undecodable as error:
            if error.__cause__ is None or isinstance(error.__cause__, Undecodable):
                raise
            raise Undecodable(f"not the data of such a value ({_why(error.__cause__)})") from error
        except Exception as error:
            raise Undecodable(f"not the data of such a value ({_why(error)})") from error
        return value

    @staticmethod
    def made(kind: Any, fields: dict[str, Any], state: list[Any]) -> Any:
        """An object of a class from what it had.

        A new field of a model has its default, as if the server had not sent it; one that is gone is kept beside the
        fields if the class allows that.
        """
        if is_model(kind):
            return typed.Schema.made(kind, *_as_declared(kind, fields, state))
        if others := fields.keys() ^ {*(declared_names(kind) or ())}:
            raise Undecodable(f"an object has other fields than its class {full_name(kind)} declares: {min(others)}")
        for name, hint in typed.hints_of(kind).items():
            if name in fields and type(fields[name]) in _SCALARS:
                _check_type(fields[name], hint)
        return typed.Schema.made(kind, fields, state)


_SCALARS: Final = frozenset({type(None), bool, int, float, str})


def _check_type(value: Any, annotation: Any) -> None:
    """Raise ValidationError if an annotation that msgspec knows does not allow a value."""
    with contextlib.suppress(TypeError):
        msgspec.convert(value, annotation)


def _as_declared(kind: Any, fields: dict[str, Any], state: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Fields and state of a model as its class declares them now."""
    extra, private, given = state
    declared = kind.__pydantic_fields__
    # A client that makes its models by itself, without validation, lets the server leave out what it wants.
    is_validated = kind.model_construct.__func__ is sys.modules["pydantic"].BaseModel.model_construct.__func__
    fields = dict(fields)
    if is_validated:
        for name in [each for each in fields.keys() - declared.keys() if not each.startswith("_")]:
            if kind.model_config.get("extra") != "allow":
                raise Undecodable(f"the class {full_name(kind)} does not have the field {name!r} any more")
            extra = {**(extra or {}), name: fields.pop(name)}
    for name in declared.keys() - fields.keys():
        if not declared[name].is_required():
            fields[name] = declared[name].get_default(call_default_factory=True)
        elif is_validated:
            raise Undecodable(f"the class {full_name(kind)} requires a field {name!r}, which it did not have")
    return fields, [extra, private, set(given)]


def _is_tagged(plain: Any) -> bool:
    return type(plain) is dict and len(plain) == 1 and _TAGGED in plain


def _why(error: BaseException) -> str:
    """What is wrong with data, by the names of fields and types: a class that has changed is found by them."""
    cause: Any = error.__cause__
    if cause is not None and type(cause).__module__.startswith("pydantic_core"):
        first = cause.errors(include_url=False, include_context=False, include_input=False)[0]
        return f"{cause.title}: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    is_shown = isinstance(error, Undecodable | msgspec.ValidationError) and cause is None
    return str(error) if is_shown else type(error).__name__


def _check_nothing_is_lost(plain: Any, value: Any) -> None:
    """Check that a value has every field of the data that it was read from: msgspec and pydantic skip unknown ones.

    Raises:
        Undecodable: if it has not.
    """
    written = msgspec.to_builtins(value, str_keys=True, enc_hook=_all_of_model)
    if written != plain and (lost := _fields_in(plain) - _fields_in(written)):
        raise Undecodable(f"its class does not have the field {'.'.join(min(lost))!r} any more")


def _all_of_model(value: Any) -> Any:
    return {**vars(value), **(value.__pydantic_extra__ or {})} if is_model(type(value)) else None


def _fields_in(plain: Any, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """The keys in plain data, each with those above it. The order of lists does not count: they may be sets."""
    if type(plain) is dict:
        return {place for key, each in plain.items() for place in ((*path, key), *_fields_in(each, (*path, key)))}
    return {place for each in plain for place in _fields_in(each, path)} if type(plain) in (list, tuple) else set()


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


def _without_streams(annotation: Any) -> Any:
    """An annotation such as ``Answer | Stream[Chunk]`` without the streams: their chunks are written, not they.

    A class of an answer and one of a chunk may have the same name.
    """
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return annotation
    members = typing.get_args(annotation)
    kept = [each for each in members if typing.get_origin(each) in _ITERATORS or annotation_of_chunks(each) is Any]
    return typing.Union[tuple(kept or members)]  # noqa: UP007 - the members are known only here


_ITERATORS: Final = frozenset(
    getattr(collections.abc, f"{prefix}{name}")
    for prefix in ("", "Async")
    for name in ("Generator", "Iterable", "Iterator")
)


def annotation_of_chunks(annotation: Any) -> Any:
    """The annotation of the chunks of what is annotated as a stream; `Any` if it tells nothing of them.

    A stream is an iterator or a class of which objects are iterated over, such as ``AsyncStream[Chunk]`` of OpenAI's
    client. Its methods are annotated as ``Answer | AsyncStream[Chunk]``: what is no stream does not count.
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return annotation_of_chunks(arguments[0])
    if origin is typing.Union or origin is types.UnionType:
        found = [each for member in arguments if (each := annotation_of_chunks(member)) is not Any]
        return typing.Union[tuple(found)] if found else Any  # noqa: UP007 - as above
    kind = origin or annotation
    if kind in _ITERATORS:
        return arguments[0] if arguments else Any
    for name in ("__anext__", "__next__", "__aiter__"):
        method = getattr(kind, name, None)
        if inspect.isfunction(method):
            hint = Returns(method).resolve()
            chunks = annotation_of_chunks(hint) if name == "__aiter__" else hint
            return _with_types(chunks, dict(zip(getattr(kind, "__parameters__", ()), arguments, strict=False)))
    return Any


def _with_types(annotation: Any, bound: Mapping[Any, Any]) -> Any:
    """An annotation with types in place of its type variables."""
    if isinstance(annotation, TypeVar):
        return bound.get(annotation, Any)
    parameters = getattr(annotation, "__parameters__", ())
    return annotation[tuple(bound.get(each, Any) for each in parameters)] if parameters else annotation


_ANY: Final = schema_of(Any)


# Values


def value_outcome(value: Any, schema: PlainSchema, redaction: Redaction, *, is_chunk: bool = False) -> Outcome:
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


def is_readable(plain: Any, schema: PlainSchema) -> bool:
    """Whether plain data can be read by an annotation."""
    try:
        schema.from_plain(plain)
    except (Undecodable, ValueError, TypeError):
        return False
    return True


def read_value(outcome: Outcome, schema: PlainSchema, path: str, line: int) -> Any:
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


def _written(value: Any, schema: PlainSchema) -> tuple[str, Any, dict[str, Any]]:
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


def common_length(ones: Sequence[Any], others: Sequence[Any]) -> int:
    """How many elements two sequences begin with in common, found by halves: slices are compared at once."""
    begin, end = 0, min(len(ones), len(others))
    while begin < end:
        middle = (begin + end + 1) // 2
        if ones[begin:middle] == others[begin:middle]:
            begin = middle
        else:
            end = middle - 1
    return begin


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


class Failure(msgspec.Struct):
    """An exception under ``error``.

    Attributes:
        type: ``module:qualname`` of its class.
        base: the nearest builtin class that it derives from; ``Exception`` if it is left out.
        unknown: whether it does not come back as its class with its text and attributes, as far as the recording could
            tell.
        message: its text.
        args: arguments of its constructor; ``{"$any": ...}`` if they are not JSON.
        state: its attributes.
        notes: of `BaseException.add_note`.
        cause: the exception it was raised from.
        group: members of an exception group.
    """

    type: str = ""
    base: str = "Exception"
    unknown: bool = False
    message: str = ""
    args: list[Any] | dict[str, Any] = []
    state: dict[str, Any] = {}
    notes: list[str] = []
    cause: Failure | None = None
    group: list[Failure] = []


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
