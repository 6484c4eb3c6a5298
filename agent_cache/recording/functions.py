"""Functions whose calls are recorded: `intercept`, `cached_llm_call`, and the description of a function and of a call.

A wrapped function looks for an interceptor in its scope at each call. Without one it just runs. With several, because
one recording stands inside of another, the call passes through all of them, the innermost first.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import sysconfig
import types
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, is_typeddict, overload

from agent_cache.core.options import checked_choice, checked_function
from agent_cache.core.parameters import JsonArguments, Parameter, Parameters
from agent_cache.engine.interception import INTERCEPTORS, InterceptedCall, report_escape
from agent_cache.engine.scope import PLACE
from agent_cache.errors import ConfigurationError, UncacheableArgumentsError
from agent_cache.recording.arguments import is_omitted, plain_arguments
from agent_cache.recording.file import RecordedCall, with_asker
from agent_cache.recording.outcomes import PlainSchema, annotation_of_chunks, redact_chunks, schema_of
from agent_cache.recording.prices import Usage
from agent_cache.recording.redaction import Redaction
from agent_cache.values.canonical import Default
from agent_cache.values.compare import utf8_text
from agent_cache.values.typed import Returns

__all__ = [
    "CURRENT_CALL",
    "KINDS",
    "ActiveCall",
    "FunctionInterceptor",
    "RecordedFunction",
    "cached_llm_call",
    "intercept",
    "wrapped",
]

F = TypeVar("F", bound=Callable[..., Any])

_LOG = logging.getLogger("agent_cache")

KINDS = ("tool", "llm", "call", "write", "env")
"""Kinds of calls of functions; ``env`` is a clock, an identifier or a random number. A request is ``http``
or ``llm``."""


class RecordedFunction:
    """A function whose calls are recorded.

    Args:
        function: the function.
        name: its name in cassettes.
        kind: one of `KINDS`.
        parameters: its parameters, where they are known already.
        cache_key: ``cache_key(*args, **kwargs)`` identifies a call instead of its arguments.
        key: likewise, but only where the arguments have no identity; it also tells callers apart.
        vary: ``vary(*args, **kwargs)`` returns who asks.
        extract_model, extract_tokens: the user's own functions that find model and tokens of an LLM call.
        skip_args: number of leading positional parameters that do not identify a call.
        caller: the module that has the function recorded. Of a function of other code, such as a method of a client,
            what the caller passed identifies a call: its defaults change with its versions.

    Attributes:
        fills_defaults: whether the arguments of a call have the defaults of those that were not passed.
        module: the module that defines the function.
        form: ``plain``, ``async``, ``stream`` (a generator function) or ``async stream``.
        names: the names that a policy, or a cassette of agentcassette, may use for it.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        kind: str,
        *,
        parameters: Parameters | None = None,
        cache_key: Callable[..., str] | None = None,
        key: Callable[..., Any] | None = None,
        vary: Callable[..., Any] | None = None,
        extract_model: Callable[..., Any] | None = None,
        extract_tokens: Callable[..., Any] | None = None,
        skip_args: int = 0,
        caller: str = "",
    ) -> None:
        self.function = function
        self.name = utf8_text(name)
        self.kind = kind
        self.extract_model = extract_model
        self.extract_tokens = extract_tokens
        self.module: str = getattr(function, "__module__", None) or ""
        self.parameters = _parameters_of(function, name, skip_args) if parameters is None else parameters
        self.fills_defaults = not caller or not _is_foreign(function, caller)
        path = getattr(function, "__qualname__", "")
        self.form = _form_of(function)
        self.names = frozenset({name, name.rpartition(":")[2], path, path.rpartition(".")[2]}) - {""}
        self._cache_key = cache_key
        self._key = key
        self._vary = vary
        self.is_read = False
        every = () if self.parameters is None else self.parameters.all
        self._recorded_names = tuple(one.name for one in every if one.in_key and not one.is_receiver)
        self._sentinels = {one.name: one.default for one in every if one.is_sentinel}
        self._plain_names = None
        if self.parameters is not None and self.parameters.is_positional and not self.parameters.positional_only:
            self._plain_names = self.parameters.names

    @property
    def has_extractors(self) -> bool:
        """Whether the user gave functions that find model or tokens."""
        return self.extract_model is not None or self.extract_tokens is not None

    @property
    def has_cache_key(self) -> bool:
        """Whether the user's ``cache_key=`` identifies its calls."""
        return self._cache_key is not None

    @cached_property
    def schema(self) -> PlainSchema:
        """How return values are written, by the return annotation."""
        return schema_of(Returns(self.function))

    @cached_property
    def chunk_schema(self) -> PlainSchema:
        """How chunks are written, if the function returns a stream."""
        return schema_of(annotation_of_chunks(Returns(self.function).resolve()))

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of a call by name, with defaults if it `fills_defaults`.

        Raises:
            TypeError: if the function does not accept them.
        """
        if self.parameters is None:
            return {"args": list(args), "kwargs": dict(kwargs)}
        names = self._plain_names
        if names is not None and len(args) + len(kwargs) == len(names):  # Signature.bind takes 3 us
            try:
                values = (*args, *[kwargs[name] for name in names[len(args) :]]) if kwargs else args
                return dict(zip(names, values, strict=True))
            except KeyError:
                pass
        return self.parameters.bind(args, kwargs, with_defaults=self.fills_defaults)

    def key_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """The key that ``cache_key=`` makes of a call; None if there is none, or it raises, which is logged."""
        if self._cache_key is None:
            return None
        try:
            key = self._cache_key(*args, **kwargs)
            if isinstance(key, str) or _is_plain(key):
                return utf8_text(str(key))
            return plain_arguments({"key": key})[1].decode()
        except Exception as error:  # noqa: BLE001 - the user's function; the arguments identify the call then
            _LOG.warning("cache_key of %s raised %r; the arguments were used", self.name, error)
            return None

    def asker_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Who asks, by the user's ``vary=``, else by the contexts among the arguments; None without any.

        Raises:
            UncacheableArgumentsError: if that raises.
            UnknownAsker: if a context may say it, in a form that cannot be compared.
        """
        if self._vary is None:
            parameters = self.parameters
            return parameters.asker(self.bind(args, kwargs)) if parameters and parameters.may_say_who_asks else None
        try:
            return self._vary(*args, **kwargs)
        except Exception as error:
            raise UncacheableArgumentsError(f"vary= raised {type(error).__name__}", self.name) from error

    def asker_by_key(self, arguments: Mapping[str, Any]) -> str | None:
        """What `key` makes of the arguments of a tool. None without it, and where it identifies nothing."""
        if self._key is None or self.parameters is None:
            return None
        args, kwargs = self.parameters.split(arguments)
        try:
            return plain_arguments({"key": self._key(*args, **kwargs)})[1].decode()
        except Exception:  # noqa: BLE001 - the user's function; the cache has logged it, and ran the call uncached
            return None

    @cached_property
    def parts(self) -> list[Any]:
        """The code of the function, and what it binds: the variables of a factory, defaults, a partial's arguments.

        With the same of the functions that it binds. It is looked at once, since a variable may count its calls.
        """
        return _parts_of(self.function)

    def is_same(self, other: RecordedFunction) -> bool:
        """Whether this is the same function as another of its name: of the same code, and bound to equal values."""
        one, two = self.parts, other.parts
        return len(one) == len(two) and all(map(_are_equal, one, two))

    def binds_others(self, other: RecordedFunction) -> bool:
        """Whether one factory has made both, with other texts or numbers. Objects such as clients do not count."""
        pairs = list(zip(self.parts, other.parts, strict=False))
        return (
            bool(pairs)
            and pairs[0][0] is pairs[0][1]
            and any(type(one) in _UNCHANGING and type(two) in _UNCHANGING and one != two for one, two in pairs)
        )

    def key_instead(self, arguments: Mapping[str, Any]) -> str | None:
        """What `key` makes of arguments without identity; None if there is none, or it has no identity either."""
        if self._key is None or self.parameters is None:
            return None
        args, kwargs = self.parameters.split(arguments)
        try:
            return plain_arguments({"key": self._key(*args, **kwargs)})[1].decode()
        except Exception as error:  # noqa: BLE001 - the user's function
            _LOG.warning("key= of %s did not identify a call: %r", self.name, error)
            return None

    def recorded_arguments(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments that identify a call: without ``self``, those that a framework injects, and skipped ones."""
        if self.parameters is None or (len(self._recorded_names) == len(arguments) and not self._sentinels):
            return arguments
        if isinstance(self.parameters, JsonArguments):
            return dict(arguments)
        return self._identifying(arguments, fills_defaults=self.fills_defaults)

    def other_arguments(self, arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """What identifies the same call in a recording for which it `fills_defaults`, if it does not, and conversely.

        None if that is the same. Which it is depends on where the function is installed.
        """
        if self.parameters is None or isinstance(self.parameters, JsonArguments):
            return None
        if not self.fills_defaults:
            return self._identifying(self.parameters.filled(arguments), fills_defaults=True)
        passed = {one.name: arguments[one.name] for one in self.parameters.all if not _is_left_out(one, arguments)}
        return self._identifying(passed, fills_defaults=False) if len(passed) < len(arguments) else None

    def _identifying(self, arguments: Mapping[str, Any], *, fills_defaults: bool) -> dict[str, Any]:
        found = {name: arguments[name] for name in self._recorded_names if name in arguments}
        for name, default in self._sentinels.items():
            if name in found and found[name] is default:
                if fills_defaults and not is_omitted(default):
                    found[name] = Default(default)
                else:
                    del found[name]
        return found


def _are_equal(one: Any, other: Any) -> bool:
    try:
        return one is other or bool(one == other)
    except Exception:  # noqa: BLE001 - the comparison of any class
        return False


def _undecorated(function: types.FunctionType) -> types.FunctionType:
    """A tool or a wrapped function without what this package has put around it."""
    known: Any = getattr(function, "__agent_cache_recorded__", None) or getattr(function, "__agent_cache__", None)
    found = getattr(known, "function", None)
    return found if inspect.isfunction(found) else function


def _bound_by(function: types.FunctionType) -> list[Any]:
    """What a function has beside its code: the variables around it, and its defaults."""
    found: list[Any] = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # it is not set yet
            found.append(None)
    return [*found, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


def _parts_of(function: Any) -> list[Any]:
    """See `RecordedFunction.parts`."""
    found: list[Any] = []
    pending, seen = [function], dict[int, Any]()
    while pending:
        value = pending.pop()
        if isinstance(value, functools.partial):
            values = [value.func, *value.args, *value.keywords.values()]
            found += value.keywords
        elif inspect.ismethod(value):
            values = [value.__func__, value.__self__]
        elif inspect.isfunction(value):
            value = _undecorated(value)
            values = [] if id(value) in seen else _bound_by(value)
            seen[id(value)] = value
            found.append(value.__code__)
        else:
            values = []
            found.append(value)
        pending += reversed(values)
    return found


_UNCHANGING: Final = frozenset({str, int, float, bool, bytes})


def _is_plain(key: Any) -> bool:
    """Whether the text of a key tells it from others: that of an array is shortened, that of an object anything."""
    if type(key) in (tuple, list):
        return all(map(_is_plain, key))
    return type(key) in (str, int, float, bool, bytes, type(None))


def _has_objects(kind: type) -> bool:
    """Whether objects of this class are written with its name."""
    return kind.__module__ != "builtins" and not is_typeddict(kind)


def _is_left_out(parameter: Parameter, arguments: Mapping[str, Any]) -> bool:
    """Whether a parameter has the value that it has if nothing is passed."""
    value = arguments[parameter.name]
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL or parameter.kind is inspect.Parameter.VAR_KEYWORD:
        return not value
    return value is parameter.default


def _is_foreign(function: Any, caller: str) -> bool:
    """Whether other code than that of the caller defines a function.

    That is another package which is installed, and the class of another package whose method it is.
    """
    plain = function
    while isinstance(plain, functools.partial):
        plain = plain.func
    module = str(getattr(plain, "__module__", None) or type(plain).__module__)
    if module.partition(".")[0] == caller.partition(".")[0]:
        return False
    if inspect.ismethod(plain) or not inspect.isroutine(plain):
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is None or not _installed().isdisjoint(Path(file).parents)


@functools.cache
def _installed() -> frozenset[Path]:
    """The directories of packages that are installed, and of the standard library."""
    paths = sysconfig.get_paths()
    return frozenset(Path(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def _calling_module() -> str:
    """The module of the code that has called the function which calls this."""
    frame = inspect.currentframe()
    for _ in range(2):
        frame = None if frame is None else frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__", ""))


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


def _name_of(function: Any, name: str | None) -> str:
    """The name that the user gave, else ``module:qualname`` of whatever is called."""
    if name is not None:
        return name
    plain = inspect.unwrap(function)
    while hasattr(plain, "func"):  # functools.partial
        plain = plain.func
    path = getattr(plain, "__qualname__", None) or type(plain).__qualname__
    return f"{getattr(plain, '__module__', None) or type(plain).__module__}:{path}"


# One call

_NOTHING_PASSED: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})


class ActiveCall:
    """One call while it is recorded or replayed.

    Attributes:
        owner: the recording or replay that it belongs to.
        function: the function that was called.
        arguments: plain data, redacted.
        given: the same before redaction, if that has changed them or the key; else None.
        key: what ``cache_key=`` made of them.
        asker: digest of who asks, as in `RecordedCall`.
        given_key: the same before redaction, where there is `given`.
        digest: digest of name and arguments, or of name and key.
        matched: the digest that a recorded call has, with the asker; another one if arguments were written in another
            way then.
        outer: the innermost call around it, of whatever recording; `parent` the innermost of the same recording.
        occurrence: how many calls of this digest its parent had made before.
        place: digest of the chain of parents, `matched` and its occurrence. Calls match by it.
        counts: how many calls of each digest were made inside of it.
        recorded: the recorded call that answers it; None if it runs.
        index: position of that call in the cassette, also if it runs all the same.
        id, after, lane, forked, started: as in `RecordedCall`; 0 where nothing is recorded.
        tool_call: the engine's side of it, if it is a call of a cached tool.
        passed: positional and keyword arguments as they were passed; for the user's extractors.
        usage: tokens and model, if it is an LLM call.
        chunks: what a stream has yielded so far; None if it returned no stream.
        exchange: of a request that was made, the `http.exchange.Exchange`; else None.
        is_plain_stream: whether the chunks are not awaited.
        is_awaited: whether a plain function returned an awaitable, whose result stands for the call.
    """

    __slots__ = (
        "after", "arguments", "asker", "chunks", "counts", "digest", "exchange", "forked", "function", "given",
        "given_key", "id", "index", "is_awaited", "is_plain_stream", "key", "lane", "matched", "occurrence", "outer",
        "owner", "parent", "passed", "place", "recorded", "started", "tool_call", "usage",
    )  # fmt: skip

    def __init__(
        self,
        owner: object,
        function: RecordedFunction,
        arguments: dict[str, Any],
        key: str | None,
        digest: bytes,
        asker: str = "",
    ) -> None:
        self.owner = owner
        self.function = function
        self.arguments = arguments
        self.given: dict[str, Any] | None = None
        self.key = key
        self.given_key: str | None = None
        self.asker = asker
        self.digest = digest
        self.matched = with_asker(digest, asker)
        self.outer = outer = CURRENT_CALL.get()
        while outer is not None and outer.owner is not owner:
            outer = outer.outer
        self.parent = outer
        self.occurrence = 0
        self.place = b""
        self.counts: dict[bytes, int] = {}
        self.recorded: RecordedCall | None = None
        self.index: int | None = None
        self.id = 0
        self.after = 0
        self.lane = 0
        self.forked = 0
        self.started = 0.0
        self.tool_call: InterceptedCall | None = None
        self.passed: tuple[tuple[Any, ...], dict[str, Any]] = _NOTHING_PASSED
        self.usage = Usage() if function.kind == "llm" else None
        self.chunks: list[Any] | None = None
        self.exchange: Any = None
        self.is_plain_stream = False
        self.is_awaited = False

    @property
    def schema(self) -> PlainSchema:
        """How what it returns is written."""
        args, kwargs = self.passed
        if self.tool_call is not None:
            kwargs = self.tool_call.arguments
        if kwargs or args:
            classes = tuple(
                each for each in (*args, *kwargs.values()) if issubclass(type(each), type) and _has_objects(each)
            )
            if classes:
                # So `client.chat.completions.parse(..., response_format=City)` returns a `City`, which nothing names.
                return schema_of(self.function.schema.annotation, classes)
        return self.function.schema

    @property
    def is_sync_tool(self) -> bool:
        """Whether it is a call of a cached tool that is no `async def`, so that nothing may be awaited."""
        return self.tool_call is not None and self.tool_call.operation.is_sync

    def stream_outcome(self, end: dict[str, Any], redaction: Redaction) -> dict[str, Any]:
        """The outcome of a stream: its chunks, redacted as one text, and how it ended."""
        stream: dict[str, Any] = {"chunks": redact_chunks(self.chunks or [], redaction), "end": end}
        if self.is_plain_stream:
            stream["plain"] = True
        return {"stream": stream}


CURRENT_CALL: ContextVar[ActiveCall | None] = ContextVar("agent_cache_recorded_call", default=None)
"""The innermost recorded call that is running in this context. Child tasks and threads inherit it."""


# Decorators


@overload
def intercept(
    fn: F,
    *,
    name: str | None = None,
    kind: str = "call",
    skip_args: int = 0,
    cache_key: Callable[..., str] | None = None,
    vary: Callable[..., Any] | None = None,
) -> F: ...
@overload
def intercept(
    fn: None = None,
    *,
    name: str | None = None,
    kind: str = "call",
    skip_args: int = 0,
    cache_key: Callable[..., str] | None = None,
    vary: Callable[..., Any] | None = None,
) -> Callable[[F], F]: ...
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
        cache_key: ``cache_key(*args, **kwargs)`` identifies a call instead of its arguments. If it raises, the log has
            a warning and the arguments are used.
        vary: ``vary(*args, **kwargs)`` returns who asks, where the answers of several callers must be kept apart: a
            user or an account. Calls of two of them are two calls. Only a digest is recorded.

    Raises:
        ConfigurationError: if it cannot be recorded, or is recorded already.
    """
    checked_choice(kind, KINDS, "intercept: kind")
    checked_function(cache_key, "intercept: cache_key")
    checked_function(vary, "intercept: vary")
    decorate = _decorator(
        "intercept", name, kind, cache_key=cache_key, vary=vary, skip_args=skip_args, caller=_calling_module()
    )
    return decorate if fn is None else decorate(fn)


def cached_llm_call(
    *,
    extract_model: Callable[[Mapping[str, Any], Any], str] | None = None,
    extract_tokens: Callable[[Mapping[str, Any], Any], tuple[int, int]] | None = None,
    cache_key: Callable[..., str] | None = None,
    name: str | None = None,
    skip_args: int = 0,
    vary: Callable[..., Any] | None = None,
) -> Callable[[F], F]:
    """Serve a function that calls a model from the recording, and record it where the mode allows it.

    Takes functions, coroutine functions and generator functions of both kinds. Tokens and model are found in what
    OpenAI, Anthropic, Gemini, Bedrock, Cohere, Ollama, LiteLLM and LangChain return. Outside of a recording the
    function runs unchanged; nothing is cached there.

    Args:
        extract_model: ``extract_model(call, answer)`` returns the model's name; `call` is
            ``{"args": [...], "kwargs": {...}}``, and `answer` of a stream is the list of its chunks. If it raises, the
            log has a warning and the default is used.
        extract_tokens: likewise, input and output tokens. They stand for all: none of them counts as from a prompt
            cache.
        cache_key: ``cache_key(*args, **kwargs)`` identifies a call instead of its arguments. If it raises, the log has
            a warning and the arguments are used.
        name: its name in recordings, instead of ``module:qualname``.
        skip_args: number of leading positional parameters that do not identify a call, such as a client.
        vary: as of `intercept`.

    Raises:
        ConfigurationError: if it cannot be recorded, or is recorded already.
    """
    for option, given in (
        ("extract_model", extract_model),
        ("extract_tokens", extract_tokens),
        ("cache_key", cache_key),
        ("vary", vary),
    ):
        checked_function(given, f"cached_llm_call: {option}")
    return _decorator(
        "cached_llm_call",
        name,
        "llm",
        logs_unrecorded=True,
        cache_key=cache_key,
        vary=vary,
        extract_model=extract_model,
        extract_tokens=extract_tokens,
        skip_args=skip_args,
        caller=_calling_module(),
    )


def _decorator(
    decorator: str, name: Any, kind: str, *, logs_unrecorded: bool = False, **options: Any
) -> Callable[[Any], Any]:
    """What makes a `RecordedFunction` of a function, with these options of it, and wraps it."""
    if name is not None and (not isinstance(name, str) or not name):
        raise ConfigurationError(f"{decorator}: name must be a text, got {name!r}")

    def decorate(function: Any) -> Any:
        checked = _checked_function(function, decorator)
        recorded = RecordedFunction(checked, _name_of(checked, name), kind, **options)
        return wrapped(recorded, logs_unrecorded=logs_unrecorded)

    return decorate


def _checked_function(function: Any, decorator: str) -> Any:
    """A callable whose calls are not recorded yet.

    Raises:
        ConfigurationError: if it is none.
    """
    if isinstance(function, staticmethod | classmethod):
        kind = type(function).__name__
        raise ConfigurationError(
            f"{decorator} was given a {kind}; put @{decorator} closest to the function, below @{kind}"
        )
    if not callable(function):
        raise ConfigurationError(f"{decorator} takes a callable, got {function!r}")
    if hasattr(function, "__agent_cache__"):
        raise ConfigurationError(
            f"{decorator}: a tool decorated with AgentCache or AgentCacheInvalidator is recorded already"
        )
    if hasattr(function, "__agent_cache_recorded__"):
        raise ConfigurationError(f"{decorator}: {function.__agent_cache_recorded__.name} is recorded already")
    return function


# Wrappers


class FunctionInterceptor(Protocol):
    """A tape, as wrapped functions use it."""

    def run(
        self, function: RecordedFunction, args: tuple[Any, ...], kwargs: dict[str, Any], proceed: Callable[[], Any]
    ) -> Any:
        """Answer a call, or make it: ``proceed()`` goes on as if this interceptor were not there.

        Returns what the function returns: an awaitable or a generator if its `form` is one of these.
        """
        ...


def wrapped(recorded: RecordedFunction, *, logs_unrecorded: bool = False) -> Any:
    """The function with every call passed through the interceptors of its scope. `inspect` sees the same form.

    Args:
        recorded: the function.
        logs_unrecorded: the first call outside of a recording is logged.
    """
    function = recorded.function
    is_logged = not logs_unrecorded

    def run(args: Any, kwargs: Any) -> Any:
        nonlocal is_logged
        scope = PLACE.get().scope
        if scope.interceptor is None:
            if INTERCEPTORS:
                report_escape(recorded)
            if not is_logged:
                is_logged = True
                _LOG.debug("%s was called outside of a recording, so it just ran", recorded.name)
            return function(*args, **kwargs)
        return _run_in(scope, recorded, args, kwargs)

    body: Any
    if recorded.form == "async stream":

        async def body(*args: Any, **kwargs: Any) -> Any:
            stream = run(args, kwargs)
            step = stream.asend(None)
            while True:
                try:
                    chunk = await step
                except StopAsyncIteration:
                    return
                try:
                    sent = yield chunk
                except GeneratorExit:
                    await stream.aclose()
                    raise
                except BaseException as error:  # noqa: BLE001 - thrown in by the consumer, and passed on
                    step = stream.athrow(error)
                else:
                    step = stream.asend(sent)

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
    return body


def _run_in(scope: Any, function: RecordedFunction, args: Any, kwargs: Any) -> Any:
    """Pass a call through the interceptors of a scope, the innermost first."""
    interceptor: FunctionInterceptor | None = scope.interceptor
    if interceptor is None:
        return function.function(*args, **kwargs)
    return interceptor.run(function, args, kwargs, functools.partial(_run_in, scope.outside, function, args, kwargs))
