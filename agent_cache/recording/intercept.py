"""`intercept`: functions that are no cached tools take part in recordings, too."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

from agent_cache.core.policies import checked_choice
from agent_cache.engine.interception import INTERCEPTORS, report_escape
from agent_cache.engine.runtime import SCOPE
from agent_cache.errors import ConfigurationError
from agent_cache.recording.functions import KINDS, Subject, module_and_name
from agent_cache.recording.performance import perform, perform_now
from agent_cache.recording.streams import played_stream, recorded_stream, relay

__all__ = ["intercept", "taped"]

F = TypeVar("F", bound=Callable[..., Any])


@overload
def intercept(fn: F, *, name: str | None = None, kind: str = "call") -> F: ...
@overload
def intercept(fn: None = None, *, name: str | None = None, kind: str = "call") -> Callable[[F], F]: ...
def intercept(fn: F | None = None, *, name: str | None = None, kind: str = "call") -> F | Callable[[F], F]:
    """Let the calls of a function be recorded and replayed. Outside of a recording it is the function that it was.

    Takes functions, coroutine functions, generators of both kinds, bound methods, partials and objects that are called;
    as a decorator with and without arguments, or around what is there already: ``ask = intercept(client.ask)``.

    Args:
        fn: the function.
        name: its name in recordings, instead of ``module:qualname``.
        kind: ``"call"``, ``"tool"``, or ``"llm"``, whose answers are searched for tokens and model.

    Raises:
        ConfigurationError: if it cannot be recorded, or is already.
    """
    checked_choice(kind, KINDS, "intercept: kind")
    if name is not None and (not isinstance(name, str) or not name):
        raise ConfigurationError(f"intercept: name must be a text, got {name!r}")

    def decorate(function: F) -> F:
        checked = checked_for_recording(function, "intercept")
        wrapped: F = taped(checked, Subject(checked, module_and_name(checked, name), kind))
        return wrapped

    return decorate if fn is None else decorate(fn)


def checked_for_recording(function: Any, who: str) -> Any:
    """Something to be called whose calls are not recorded yet.

    Raises:
        ConfigurationError: if it is none.
    """
    if isinstance(function, staticmethod | classmethod):
        kind = type(function).__name__
        raise ConfigurationError(f"{who} was given a {kind}; put @{who} closest to the function, below @{kind}")
    if not callable(function):
        raise ConfigurationError(f"{who} takes something to be called, got {function!r}")
    if hasattr(function, "__agent_cache__"):
        raise ConfigurationError(
            f"{who}: a tool decorated with AgentCache or AgentCacheInvalidator is recorded already"
        )
    if hasattr(function, "__agent_cache_subject__"):
        raise ConfigurationError(f"{who}: {function.__agent_cache_subject__.name} is recorded already")
    return function


def taped(function: Any, subject: Subject, outside: Callable[[], None] | None = None) -> Any:
    """The function with a tape around each call, if there is one.

    Args:
        function: what is called.
        subject: what is known of it.
        outside: is called where there is no tape.
    """
    plain = function
    while isinstance(plain, functools.partial):
        plain = plain.func
    called = plain if inspect.isroutine(plain) else getattr(type(plain), "__call__", plain)  # noqa: B004 - its code is meant
    if inspect.isasyncgenfunction(called):
        body = _async_stream_body(function, subject, outside)
    elif inspect.iscoroutinefunction(called):
        body = _async_body(function, subject, outside)
    elif inspect.isgeneratorfunction(called):
        body = _stream_body(function, subject, outside)
    else:
        body = _plain_body(function, subject, outside)
    dressed: Any = functools.wraps(function)(body)
    dressed.__agent_cache_subject__ = subject
    return dressed


def _frame(tape: Any, subject: Subject, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The frame of a call; None for one that the function itself is to refuse."""
    try:
        arguments = subject.bind(args, kwargs)
    except TypeError:
        return None
    frame = tape.begin(subject, arguments, subject.identity(args, kwargs))
    frame.passed = (args, kwargs)
    return frame


def _async_body(function: Any, subject: Subject, outside: Callable[[], None] | None) -> Any:
    async def body(*args: Any, **kwargs: Any) -> Any:
        scope = SCOPE.get()
        if scope.interceptor is None:
            if INTERCEPTORS:
                report_escape(subject)
            if outside is not None:
                outside()
        return await perform_on(scope, function, subject, args, kwargs)

    return body


def perform_on(scope: Any, function: Any, subject: Subject, args: Any, kwargs: Any) -> Awaitable[Any]:
    """Run an awaited call on every tape around it, innermost first."""
    frame = None if scope.interceptor is None else _frame(scope.interceptor, subject, args, kwargs)
    if frame is None:
        awaited: Awaitable[Any] = function(*args, **kwargs)
        return awaited
    return perform(frame, functools.partial(perform_on, scope.outside, function, subject, args, kwargs))


def _plain_body(function: Any, subject: Subject, outside: Callable[[], None] | None) -> Any:
    def body(*args: Any, **kwargs: Any) -> Any:
        scope = SCOPE.get()
        if scope.interceptor is None:
            if INTERCEPTORS:
                report_escape(subject)
            if outside is not None:
                outside()
        return perform_now_on(scope, function, subject, args, kwargs)

    return body


def perform_now_on(scope: Any, function: Any, subject: Subject, args: Any, kwargs: Any) -> Any:
    """Run a plain call on every tape around it, innermost first."""
    frame = None if scope.interceptor is None else _frame(scope.interceptor, subject, args, kwargs)
    if frame is None:
        return function(*args, **kwargs)
    return perform_now(frame, functools.partial(perform_now_on, scope.outside, function, subject, args, kwargs))


def _stream_body(function: Any, subject: Subject, outside: Callable[[], None] | None) -> Any:
    def body(*args: Any, **kwargs: Any) -> Any:
        scope = SCOPE.get()
        if scope.interceptor is None:
            if INTERCEPTORS:
                report_escape(subject)
            if outside is not None:
                outside()
            return (yield from function(*args, **kwargs))
        return (yield from relay(_stream_on(scope, function, subject, args, kwargs)))

    return body


def _async_stream_body(function: Any, subject: Subject, outside: Callable[[], None] | None) -> Any:
    async def body(*args: Any, **kwargs: Any) -> Any:
        scope = SCOPE.get()
        if scope.interceptor is None:
            if INTERCEPTORS:
                report_escape(subject)
            if outside is not None:
                outside()
            stream = function(*args, **kwargs)
        else:
            stream = _stream_on(scope, function, subject, args, kwargs)
        # As `relay_async` has it, once more: this is to be an asynchronous generator function itself.
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
            except BaseException as error:  # noqa: BLE001 - thrown in by the consumer, and handed on
                step = stream.athrow(error)
            else:
                step = stream.asend(sent)

    return body


def _stream_on(scope: Any, function: Any, subject: Subject, args: Any, kwargs: Any) -> Any:
    """A stream on every tape around it, innermost first. It starts when its first chunk is asked for, which is now."""
    if scope.interceptor is None:
        return function(*args, **kwargs)
    frame = _frame(scope.interceptor, subject, args, kwargs)
    if frame is None:
        return function(*args, **kwargs)
    if frame.recorded is not None:
        return played_stream(frame)
    return recorded_stream(frame, _stream_on(scope.outside, function, subject, args, kwargs))
