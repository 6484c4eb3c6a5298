"""The recording of a test, in whatever context the coroutines of the test and its fixtures run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from agent_cache.engine.runtime import SCOPE, Scope

__all__ = ["fixture_in_same_context", "same_context"]


@contextmanager
def same_context(item: pytest.Item) -> Iterator[None]:
    """Let the test run in the recording that is open here.

    A coroutine does so by itself if its loop is started here. `unittest.IsolatedAsyncioTestCase` has taken a context
    when it was made, and a runner that outlives the test, as anyio has one for fixtures of wider scopes, when that was
    started: there the recording is unknown, and the tools would run live.
    """
    scope = SCOPE.get()
    context = getattr(getattr(item, "instance", None), "_asyncioTestContext", None)
    if context is not None:
        context.run(SCOPE.set, scope)
    function = getattr(item, "obj", None)
    if not inspect.iscoroutinefunction(function):
        yield
        return
    assert isinstance(item, pytest.Function)
    item.obj = _within(scope, function)
    try:
        yield
    finally:
        item.obj = function


@contextmanager
def fixture_in_same_context(fixture: pytest.FixtureDef[Any]) -> Iterator[None]:
    """The same for what an asynchronous fixture of the test does."""
    function, scope = fixture.func, SCOPE.get()
    if inspect.iscoroutinefunction(function):
        within: Callable[..., Any] = _within(scope, function)
    elif inspect.isasyncgenfunction(function):
        within = _steps_within(scope, function)
    else:
        yield
        return
    described: Any = fixture  # pytest's description calls it read-only, as its own plugins' writes do not
    described.func = within
    try:
        yield
    finally:
        described.func = function


def _within(scope: Scope, function: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
    @functools.wraps(function)
    async def body(*args: Any, **kwargs: Any) -> Any:
        token = SCOPE.set(scope)
        try:
            return await function(*args, **kwargs)
        finally:
            SCOPE.reset(token)

    return body


def _steps_within(scope: Scope, function: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
    """Each step by itself: the last one may come in another context than the first."""

    @functools.wraps(function)
    async def body(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        steps = function(*args, **kwargs)

        async def step() -> Any:
            return await steps.__anext__()

        step_within = _within(scope, step)
        while True:
            try:
                value = await step_within()
            except StopAsyncIteration:
                return
            yield value

    return body
