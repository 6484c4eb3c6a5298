"""Functions whose calls are recorded: `intercept`, `cached_llm_call`, and the description of a function and of a call.

A wrapped function looks for a hook in its scope at each call. Without one it just runs; otherwise the call passes
through all of them (`engine.hooks`).
"""

from __future__ import annotations

import functools
import inspect
import logging
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypedDict, TypeVar, Unpack, is_typeddict, overload
from weakref import WeakSet

from agent_cache.at_fork import lock_of
from agent_cache.core.options import checked_choice, checked_function
from agent_cache.core.parameters import JsonArguments, Parameters
from agent_cache.engine.hooks import CURRENT_CALL, HookedCall, answered, answered_plainly
from agent_cache.engine.operation import Operation
from agent_cache.engine.scope import HOOKS, PLACE, Scope, report_escape
from agent_cache.engine.state import TOOLS
from agent_cache.errors import ConfigurationError, UncacheableArgumentsError
from agent_cache.recording.arguments import plain_arguments
from agent_cache.recording.file import RecordedCall, is_unsafe
from agent_cache.recording.outcomes import PlainSchema, annotation_of_chunks, redact_chunks, schema_of
from agent_cache.recording.prices import Usage
from agent_cache.recording.redaction import Redaction
from agent_cache.values.compare import utf8_text
from agent_cache.values.typed import Returns

F = TypeVar("F", bound=Callable[..., Any])

_LOG = logging.getLogger("agent_cache")


class RecordedFunction:
    """A function whose calls are recorded."""

    def __init__(
        self, function: Callable[..., Any], name: str, kind: str, *, parameters: Parameters | None = None,
        cache_key: Callable[..., str] | None = None, key: Callable[..., Any] | None = None,
        vary: Callable[..., Any] | None = None, extract_model: Callable[..., Any] | None = None,
        extract_tokens: Callable[..., Any] | None = None, skip_args: int = 0,
    ) -> None:  # fmt: skip
        self.function = function
        self.name = utf8_text(name)
        self.kind, self.is_read = kind, False
        self.is_write = kind == "write" or (kind == "http" and is_unsafe(name))
        self.extract_model, self.extract_tokens = extract_model, extract_tokens
        self.parameters = _parameters_of(function, name, skip_args) if parameters is None else parameters
        self.form = _form_of(function)
        self.names = names_of(name, function)
        self.has_extractors = extract_model is not None or extract_tokens is not None
        self.cache_key, self._key, self._vary = cache_key, key, vary
        # Whether anything may tell apart who calls it, beside a tenant.
        self.has_askers = vary is not None or (self.parameters is not None and self.parameters.may_say_who_asks)
        every = () if self.parameters is None or isinstance(self.parameters, JsonArguments) else self.parameters.all
        is_named = all(one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for one in every)
        self._named = tuple(one.name for one in every) if every and is_named else None
        self._left_out = {one.name for one in every if not one.in_key or one.is_receiver}
        self._defaults = {one.name: one.default for one in every if one.is_sentinel or one.default is None}
        self.records_all = not self._left_out and not self._defaults

    @cached_property
    def schema(self) -> PlainSchema:
        """How return values are written, by the return annotation."""
        return schema_of(Returns(self.function))

    @cached_property
    def chunk_schema(self) -> PlainSchema:
        """How chunks are written, if the function returns a stream."""
        return schema_of(annotation_of_chunks(Returns(self.function).resolve()))

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of a call by name, with defaults. Raises TypeError if the function does not accept them."""
        if self.parameters is None:
            return {"args": list(args), "kwargs": dict(kwargs)}
        if self._named is not None:  # the two spellings of most calls, which need no `inspect`
            if not kwargs and len(args) == len(self._named):
                return dict(zip(self._named, args, strict=True))
            if not args and tuple(kwargs) == self._named:
                return dict(kwargs)
        return self.parameters.bind(args, kwargs)

    def recorded_arguments(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments that identify a call: without ``self``, those that a framework injects, and skipped ones.

        One that is its default is left out if that is None or a sentinel: clients get more of these in later versions.
        """
        if self.records_all:
            return arguments
        return {
            name: value
            for name, value in arguments.items()
            if name not in self._left_out and not (name in self._defaults and value is self._defaults[name])
        }

    def key_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """The key that ``cache_key=`` makes of a call; None if there is none, or it gives none, which is logged."""
        if self.cache_key is None:
            return None
        try:
            key = self.cache_key(*args, **kwargs)
            if key is not None:  # which would be the key of all calls
                return utf8_text(key) if isinstance(key, str) else _text_of(key)
            what = "returned None"
        except Exception as error:  # noqa: BLE001 - the user's function; the arguments identify the call then
            what = f"raised {error!r}"
        _LOG.warning("cache_key of %s %s; the arguments were used", self.name, what)
        return None

    def tool_key(self, arguments: Mapping[str, Any]) -> str | None:
        """What `key` makes of the arguments of a tool; None without it, and if it is no identity, which is logged."""
        if self._key is None or self.parameters is None:
            return None
        args, kwargs = self.parameters.split(arguments)
        try:
            return _text_of(self._key(*args, **kwargs))
        except Exception:  # noqa: BLE001 - the user's function
            return None

    def asker_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Who asks, by the user's ``vary=``, else by the contexts among the arguments; None without any."""
        if self._vary is None:
            parameters = self.parameters
            return parameters.asker(self.bind(args, kwargs)) if parameters and parameters.may_say_who_asks else None
        try:
            return self._vary(*args, **kwargs)
        except Exception as error:
            raise UncacheableArgumentsError(f"vary= raised {type(error).__name__}", self.name) from error

    @cached_property
    def parts(self) -> list[Any]:
        """The code of the function, and what it binds. It is looked at once, since a variable may count its calls."""
        return _parts_of(self.function)

    def is_same(self, other: RecordedFunction) -> bool:
        """Whether this is the same function as another of its name: of the same code, and bound to equal values."""
        try:
            return bool(self.parts == other.parts)
        except Exception:  # noqa: BLE001 - the comparison of any class
            return False

    def binds_others(self, other: RecordedFunction) -> bool:
        """Whether one factory has made both, with other texts or numbers. Objects such as clients do not count."""
        one, two = self.parts, other.parts
        return one[0] is two[0] and any(
            type(a) in _UNCHANGING and type(b) in _UNCHANGING and a != b for a, b in zip(one, two, strict=False)
        )


def names_of(name: str, function: Any = None) -> frozenset[str]:
    """What a policy may call a function, or a recorded call of this name; of a request, also its server."""
    path = getattr(function, "__qualname__", name.rpartition(":")[2])
    server = name.partition("://")[2].partition("/")[0]
    found = {name, name.rpartition(":")[2], path, path.rpartition(".")[2], server, server.partition(":")[0]}
    return frozenset(found - {""})


def check_names(policy: Collection[str], recorded: Iterable[RecordedCall], path: Path) -> None:
    """Refuse a name in a policy that no function or recorded call has, if it looks misspelt; warn of another one."""
    if not policy:
        return
    with _lock:
        known = set[str]().union(*(one.names for one in _functions))
    known.update(*(names_of(tool.name, tool.function) for tool in TOOLS.all()))
    known.update(*map(names_of, {call.name for call in recorded}))
    for name in sorted({*policy} - known):
        if near := get_close_matches(name, known, 1, 0.85):
            text = f"the policy names {name!r}, and no function; is {near[0]!r} meant?"
            raise ConfigurationError(f"{path}: {text} If it is another one, decorate it before the block")
        if "." not in name:  # else it may be a server
            _LOG.warning("%s: the policy names %r, and no function of that name is decorated yet", path, name)


_lock = lock_of(__name__)
_functions: WeakSet[RecordedFunction] = WeakSet()  # those that are wrapped
_UNCHANGING: Final = frozenset({str, int, float, bool, bytes})


def _parts_of(function: Any) -> list[Any]:
    """The code of a function, and what it binds: of a factory, defaults, a partial's; and of functions among them."""
    found: list[Any] = []
    pending, seen = [function], set[int]()
    for value in pending:
        known = getattr(value, "__agent_cache_recorded__", None) or getattr(value, "__agent_cache__", None)
        one = getattr(known, "function", value)
        if isinstance(one, functools.partial):
            pending += [one.func, *one.args, *one.keywords.values()]
        elif not inspect.isfunction(one):
            found.append(one)
        elif id(one) not in seen:
            seen.add(id(one))
            cells = [cell.cell_contents for cell in one.__closure__ or () if cell != types.CellType()]
            found.append(one.__code__)
            pending += [*(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values(), *cells]
    return found


def _text_of(key: Any) -> str:
    """A key as text. Raises UncacheableArgumentsError if it has no identity."""
    return plain_arguments({"key": key})[1].decode()


def _parameters_of(function: Callable[..., Any], name: str, skip_args: int) -> Parameters | None:
    try:
        return Parameters.of(function, skip_args, name)
    except ConfigurationError:
        raise
    except (TypeError, ValueError):  # a builtin without a signature
        return None


def _form_of(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = getattr(type(function), "__call__", function)  # noqa: B004 - its code is wanted
    if inspect.isasyncgenfunction(function):
        return "async stream"
    if inspect.iscoroutinefunction(function):
        return "async"
    return "stream" if inspect.isgeneratorfunction(function) else "plain"


def _name_of(function: Any) -> str:
    """``module:qualname`` of whatever is called."""
    plain = inspect.unwrap(function)
    while hasattr(plain, "func"):  # functools.partial
        plain = plain.func
    path = getattr(plain, "__qualname__", None) or type(plain).__qualname__
    return f"{getattr(plain, '__module__', None) or type(plain).__module__}:{path}"


# One call


class FunctionCall:
    """One call of a wrapped function in a scope with hooks, or a request, whose arguments have names already.

    `TypeError` if the function does not take the arguments.
    """

    operation = None

    def __init__(
        self, function: RecordedFunction, scope: Scope, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] = {},
        named: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.function, self.scope, self.args, self.kwargs = function, scope, args, kwargs
        self.arguments = function.bind(args, kwargs) if named is None else named


class ActiveCall:
    """One call while it is recorded or replayed: on one tape.

    Attributes:
        outer, parent: the innermost call around it of any tape, and of this one.
        given, given_key: arguments and key before redaction, if that has changed anything.
        matched: what calls are compared by: digest and asker. recorded, index: the recorded call in its place.
        is_answered: whether it does not run.
        tool_call, passed: of a tool, the call that hooks have received; of a function, its arguments.
        is_write: whether it changes something outside.
        clean_tags: tags of a write from which redaction removes nothing, as far as that is known.
        is_sync_tool: whether it is a call of a cached tool that is no `async def`, so that nothing may be awaited.
    """

    given: dict[str, Any] | None = None
    given_key: str | None = None
    occurrence = 0
    place = b""
    recorded: RecordedCall | None = None
    index: int | None = None
    id = after = lane = forked = started = 0
    tool_call: HookedCall | None = None
    chunks: list[Any] | None = None
    exchange: Any = None
    clean_tags: set[str] | frozenset[str] = frozenset()
    is_answered = is_plain_stream = is_awaited = is_sync_tool = False

    def __init__(
        self, owner: Any, function: RecordedFunction, arguments: dict[str, Any], key: str | None, digest: bytes,
        asker: str, call: HookedCall | FunctionCall,
    ) -> None:  # fmt: skip
        self.owner, self.function, self.arguments, self.key = owner, function, arguments, key
        self.asker, self.digest = asker, digest
        self.matched = digest + asker.encode() if asker else digest
        outer: ActiveCall | None = CURRENT_CALL.get()
        self.outer = outer
        while outer is not None and outer.owner is not owner:
            outer = outer.outer
        self.parent = outer
        self.counts: dict[bytes, int] = {}
        self.usage = Usage() if function.kind == "llm" else None
        self.passed: tuple[tuple[Any, ...], Mapping[str, Any]] = call.args, call.kwargs
        if call.operation is None:
            self.is_write = function.is_write
        else:
            self.tool_call, self.passed, self.is_sync_tool = call, ((), call.arguments), call.operation.is_sync
            self.is_write = not call.operation.is_read

    @property
    def schema(self) -> PlainSchema:
        """How what it returns is written.

        Classes that the caller passes count: ``client.chat.completions.parse(..., response_format=City)`` returns a
        `City`, which nothing names.
        """
        args, kwargs = self.passed
        classes: tuple[type, ...] = ()
        for each in (*args, *kwargs.values()):
            is_class = issubclass(type(each), type)  # and no lazy proxy of one
            if is_class and each.__module__ != "builtins" and not is_typeddict(each):
                classes += (each,)  # objects of it are written with its name
        return schema_of(self.function.schema.annotation, classes) if classes else self.function.schema

    def written(self, make: Callable[..., dict[str, Any]], *args: Any) -> dict[str, Any]:
        """An outcome without secrets. A hook of the user that fails at it fails no call, which would be made again."""
        try:
            return make(*args)
        except Exception as error:  # noqa: BLE001 - of the user's hook
            return {"unencodable": "value", "reason": self.owner.hook_failed(self.function, error).reason}

    def stream_outcome(self, end: dict[str, Any], redaction: Redaction) -> dict[str, Any]:
        """The outcome of a stream: its chunks, redacted as one text, and how it ended."""
        stream: dict[str, Any] = {"chunks": redact_chunks(self.chunks or [], redaction), "end": end}
        if self.is_plain_stream:
            stream["plain"] = True
        return {"stream": stream}


# Decorators


class _OfBoth(TypedDict, total=False):
    name: str | None
    skip_args: int
    cache_key: Callable[..., str] | None
    vary: Callable[..., Any] | None


class _Options(_OfBoth, total=False):
    """The options of `intercept`."""

    kind: str


class _OptionsOfModels(_OfBoth, total=False):
    """The options of `cached_llm_call`."""

    extract_model: Callable[[Mapping[str, Any], Any], str] | None
    extract_tokens: Callable[[Mapping[str, Any], Any], tuple[int, int]] | None


@overload
def intercept(fn: F, **options: Unpack[_Options]) -> F: ...
@overload
def intercept(fn: None = None, **options: Unpack[_Options]) -> Callable[[F], F]: ...
def intercept(
    fn: F | None = None,
    *,
    name: str | None = None,
    kind: str = "call",
    skip_args: int = 0,
    cache_key: Callable[..., str] | None = None,
    vary: Callable[..., Any] | None = None,
) -> F | Callable[[F], F]:
    """Let the calls of a function be recorded and replayed. Outside of a recording it runs unchanged.

    Takes functions, coroutine functions, generator functions of both kinds, bound methods, partials and callable
    objects. Use it as a decorator with or without arguments, or around an existing function:
    ``ask = intercept(client.ask)``.

    Args:
        fn: the function.
        name: its name in recordings, instead of ``module:qualname``.
        kind: ``"call"``, ``"tool"``, ``"write"`` for one that changes something outside, or ``"llm"``, whose answers
            are searched for tokens and model.
        skip_args: number of leading positional parameters that do not identify a call, such as a client.
        cache_key: ``cache_key(*args, **kwargs)`` identifies a call instead of its arguments. If it raises or returns
            None, the log has a warning and the arguments are used.
        vary: ``vary(*args, **kwargs)`` returns who asks, where the answers of several callers must be kept apart: a
            user or an account. Calls of two of them are two calls. Only a digest is recorded.

    Raises:
        ConfigurationError: if it cannot be recorded, or is recorded already.
    """
    checked_choice(kind, ("tool", "llm", "call", "write", "env"), "intercept: kind")
    decorate = _decorator("intercept", name, kind, skip_args, cache_key=cache_key, vary=vary)
    return decorate if fn is None else decorate(fn)


@overload
def cached_llm_call(fn: F) -> F: ...
@overload
def cached_llm_call(fn: None = None, **options: Unpack[_OptionsOfModels]) -> Callable[[F], F]: ...
def cached_llm_call(
    fn: F | None = None,
    *,
    extract_model: Callable[[Mapping[str, Any], Any], str] | None = None,
    extract_tokens: Callable[[Mapping[str, Any], Any], tuple[int, int]] | None = None,
    cache_key: Callable[..., str] | None = None,
    name: str | None = None,
    skip_args: int = 0,
    vary: Callable[..., Any] | None = None,
) -> F | Callable[[F], F]:
    """Serve a function that calls a model from the recording, and record it where the mode allows it.

    Takes functions, coroutine functions and generator functions of both kinds. Tokens and model are found in what
    OpenAI, Anthropic, Gemini, Bedrock, Cohere, Ollama, LiteLLM and LangChain return. Outside of a recording the
    function runs unchanged; nothing is cached there. Use it as a decorator with or without arguments.

    Args:
        fn: the function.
        extract_model: ``extract_model(call, answer)`` returns the model's name; `call` is
            ``{"args": [...], "kwargs": {...}}``, and `answer` of a stream is the list of its chunks. If it raises, the
            log has a warning and the default is used.
        extract_tokens: likewise, input and output tokens. They stand for all: none of them counts as from a prompt
            cache.
        cache_key, name, skip_args, vary: as of `intercept`.

    Raises:
        ConfigurationError: if it cannot be recorded, or is recorded already.
    """
    options = {"extract_model": extract_model, "extract_tokens": extract_tokens, "cache_key": cache_key, "vary": vary}
    decorate = _decorator("cached_llm_call", name, "llm", skip_args, **options)
    return decorate if fn is None else decorate(fn)


def _decorator(decorator: str, name: Any, kind: str, skip_args: int, **options: Any) -> Callable[[Any], Any]:
    """What makes a `RecordedFunction` of a function, with these options, functions of the user, and wraps it."""
    for option, given in options.items():
        checked_function(given, f"{decorator}: {option}")
    if name is not None and (not isinstance(name, str) or not name):
        raise ConfigurationError(f"{decorator}: name must be a text, got {name!r}")

    def decorate(function: Any) -> Any:
        if isinstance(function, staticmethod | classmethod | type) or not callable(function):
            what = f"{decorator} takes a function, a method or an object that is called, got {function!r}"
            raise ConfigurationError(f"{what}; put it below other decorators, such as @staticmethod and @property")
        if hasattr(function, "__agent_cache__") or hasattr(function, "__agent_cache_recorded__"):
            raise ConfigurationError(f"{decorator}: calls of {function!r} are recorded already")
        return wrapped(RecordedFunction(function, name or _name_of(function), kind, skip_args=skip_args, **options))

    return decorate


# Wrappers


def wrapped(recorded: RecordedFunction) -> Any:
    """The function with every call passed through the hooks of its scope. `inspect` sees the same form."""
    function = recorded.function

    def run(args: Any, kwargs: Any) -> Any:
        scope: Scope = PLACE.get().scope
        if scope.hook is not None:
            try:
                call = FunctionCall(recorded, scope, args, kwargs)
            except TypeError:  # the function refuses these arguments itself
                return function(*args, **kwargs)
            passed = answered if recorded.form == "async" else answered_plainly
            return passed(scope, call, functools.partial(function, *args, **kwargs))
        if HOOKS:
            report_escape(recorded)
        return function(*args, **kwargs)

    body: Any
    if recorded.form == "async stream":

        async def body(*args: Any, **kwargs: Any) -> Any:
            stream = run(args, kwargs)
            try:
                async for chunk in stream:
                    yield chunk
            finally:
                await stream.aclose()

    elif recorded.form == "async":

        async def body(*args: Any, **kwargs: Any) -> Any:
            return await run(args, kwargs)

    elif recorded.form == "stream":

        def body(*args: Any, **kwargs: Any) -> Any:
            return (yield from run(args, kwargs))

    else:

        def body(*args: Any, **kwargs: Any) -> Any:
            return run(args, kwargs)

    body = functools.wraps(function)(body)
    body.__agent_cache_recorded__ = recorded
    with _lock:
        _functions.add(recorded)
    return body


def function_of(operation: Operation[Any]) -> RecordedFunction:
    """The function of a cached tool, described at its first recorded call."""
    found: RecordedFunction | None = operation.recorded
    if found is None:
        policy = operation.policy
        key, vary = getattr(policy, "key", None), getattr(policy, "vary", None)  # a write has none
        found = RecordedFunction(operation.function, operation.name, "tool", parameters=operation.parameters, key=key)
        found.is_read = operation.is_read
        found.has_askers = vary is not None or key is not None or isinstance(operation.parameters, JsonArguments)
        found.has_askers |= operation.heeds_contexts and operation.parameters.may_say_who_asks
        operation.recorded = found
    return found


def recorded_function(value: Any) -> RecordedFunction | None:
    """What recordings know of a wrapped function or a cached tool; None if a value is neither."""
    found = getattr(value, "__agent_cache_recorded__", None)
    if isinstance(found, RecordedFunction):
        return found
    operation = getattr(value, "__agent_cache__", None)
    return function_of(operation) if isinstance(operation, Operation) else None
