"""Middleware: what `configure(middleware=...)` puts around the calls that no local hit has answered.

A middleware is an ``async def (call, proceed)``. It is awaited in the task and the context of the call, `proceed` runs
the rest of it, and what the tool does is untouched: the tool runs exactly once, and its answer or its error reaches the
caller, whatever the middleware returns, and whichever `Exception` it raises. What is no `Exception` ends the call, as
anywhere in Python, and a tool that has not begun does not run.

One form serves every tool: the calls of a `def` are coroutines, too, which `engine.blocking` runs in the calling
thread. A middleware around them may await `proceed()` and nothing else, as there is no event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Self, final

from agent_cache.config import CURRENT, Configuration, Installed
from agent_cache.core.tags import Tag, TagRule
from agent_cache.engine.operation import TOO_LONG, Operation, Proceed
from agent_cache.engine.scope import Call
from agent_cache.engine.state import LOG, warn_once
from agent_cache.values.canonical import MISSING

__all__ = ["ToolCall", "observe_call", "observed", "shown_arguments"]


@final
@dataclass(frozen=True, eq=False, repr=False)
class ToolCall:
    """What a middleware sees of a call: ``async def observe(call, proceed)``.

    All of it is read-only. It may be kept after the call.

    Attributes:
        tool: ``module:qualname`` of the tool, or its `name=`, as in the metrics.
        session: the id of the innermost session, None outside of sessions.
        is_read_only: whether it is a read tool.
        is_sync: whether the tool is a `def`: then there is no event loop, and nothing but ``proceed()`` can be awaited.
        is_stream: whether the tool is a generator: ``proceed()`` gives the tuple of its chunks, or None if they are not
            kept.
        source: None until `proceed` has ended; then how the call was answered. ``"miss"``: the tool ran, and its result
            may be stored; ``"shared"``: another caller's run; ``"hit"``: of a tier, or a result within its grace
            period; ``"uncached"`` and ``"write"``: the tool ran.
    """

    tool: str
    session: str | None
    is_read_only: bool
    is_sync: bool
    is_stream: bool
    _operation: Any
    _arguments: Mapping[str, Any]
    _call: Call | None
    source: str | None = None
    _tags: tuple[Tag, ...] | None = None

    def __repr__(self) -> str:
        return f"<ToolCall of {self.tool}>"

    @property
    def arguments(self) -> Mapping[str, Any]:
        """Its arguments by parameter name, defaults included: the objects that the tool gets, which are not to be
        changed. The object of a method, contexts that a framework injects, and parameters that ``skip_args`` and
        ``ignore`` name are left out.
        """
        return MappingProxyType(shown_arguments(self._operation, self._arguments))

    @property
    def tags(self) -> tuple[Tag, ...]:
        """What a read depends on or a write touches, as far as it is known now: until `proceed` has returned without
        what the result names. Where a tag could not be computed, its root. Tags that a read inherits from the reads
        that its tool makes are not among them.
        """
        return self._known_tags() if self._tags is None else self._tags

    def _known_tags(self) -> tuple[Tag, ...]:
        rules = self._operation.tags
        return tuple(dict.fromkeys((*rules.static, *_rendered(rules.early, self._arguments, None))))

    def _end(self, result: Any = MISSING) -> None:
        """Note how the call was answered, and let go of it: a middleware may keep what it was shown for long."""
        call, late, change = self._call, self._operation.tags.late, partial(object.__setattr__, self)
        if call is None:
            return
        change("_call", None)
        change("source", call.source)
        if not self.is_read_only and self._operation.policy.key_fn is not None:
            change("_tags", call.tags)
        elif late and result is not MISSING and result is not TOO_LONG:
            tags = (*self._known_tags(), *_rendered(late, self._arguments, result))
            change("_tags", tuple(dict.fromkeys(tags)))


def shown_arguments(operation: Operation[Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call that identify it, without the object of a method: what an observer may see of them."""
    hidden = {one.name for one in operation.parameters.all if one.is_receiver or not one.in_key}
    return {name: value for name, value in arguments.items() if name not in hidden}


def _rendered(rules: tuple[TagRule, ...], arguments: Mapping[str, Any], result: Any) -> tuple[Tag, ...]:
    tags: tuple[Tag, ...] = ()
    for rule in rules:
        try:
            tags += rule.make(arguments, result)
        except Exception:  # noqa: BLE001 - the user's function; the call itself logs that it raises
            tags += (rule.root,)
    return tags


# Around a call


def observed(operation: Operation[Any], run: Proceed, configuration: Configuration) -> Proceed:
    """What runs a call, inside of the middleware that are configured, and with what a stream needs to know of it."""
    middleware = configuration.middleware_of(is_sync=operation.is_sync)
    if middleware:
        run = partial(observe_call, middleware, run)
    return run if operation.around is None else partial(operation.around, run)


def observe_call(middleware: tuple[Installed, ...], proceed: Proceed, call: Call) -> Awaitable[Any]:
    """Run a call inside of these middleware, the first one outermost."""
    operation, participants = call.operation, call.scope.participants
    session = participants[0].session_id if participants else None
    kind = operation.is_read, operation.is_sync, operation.is_stream
    shown = ToolCall(operation.name, session, *kind, operation, call.arguments, call)
    begin: Callable[[], Awaitable[Any]] = partial(_run_shown, shown, proceed, call)
    for one in reversed(middleware):
        if one.observes(is_sync=shown.is_sync):
            begin = partial(_run_inside, one, shown, begin)
    return begin()


async def _run_shown(shown: ToolCall, proceed: Proceed, call: Call) -> Any:
    try:
        value = await proceed(call)
    except BaseException:
        shown._end()
        raise
    shown._end(value)
    return value


async def _run_inside(middleware: Installed, shown: ToolCall, begin: Callable[[], Awaitable[Any]]) -> Any:
    """Run the rest of a call inside of one middleware."""
    rest = _Rest(begin)
    failure: Exception | None = None
    try:
        try:
            returned = await middleware.function(shown, rest)
        except Exception as error:
            if error is rest.error:
                raise
            _remove(middleware, error, is_sync=shown.is_sync)
            failure, returned = error, None
        if rest.was_cancelled and not _is_cancelled():
            # A timeout of the middleware has cancelled the tool, so there is no other outcome. The caller is not
            # cancelled, and would end as if it were.
            if failure is None:
                failure = RuntimeError(f"the middleware {middleware.name} has cancelled the call and gone on")
                _remove(middleware, failure, is_sync=shown.is_sync)
            raise failure
        value = await rest.outcome()
        if returned is not None and returned is not value:
            warn_once(
                "a middleware returned something else than what the tool did, which its caller did not get: "
                "middleware observe calls and do not change them",
                middleware.name,
            )
        return value
    finally:
        failure = None  # it refers to this frame
        rest.close()


def _remove(middleware: Installed, error: Exception, *, is_sync: bool) -> None:
    """Remove a middleware that has raised, for tools of the kind of this one."""
    if CURRENT.remove(middleware, is_sync=is_sync):
        LOG.warning(
            "%s: a middleware raised, so it does not observe tools that are `%s` any more; what they did is untouched "
            "(%s); configure(middleware=...) installs it again",
            middleware.name,
            "def" if is_sync else "async def",
            type(error).__name__,
            exc_info=error,
            extra={"agent_cache_event": "a middleware raised", "agent_cache_tool": middleware.name},
        )


def _is_cancelled() -> bool:
    """Whether something has cancelled the task that this runs in. Without a task: True."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return True
    return task is None or task.cancelling() > 0


class _Rest:
    """The `proceed` of one middleware: the rest of its call, which runs once.

    To call it returns itself, to be awaited: a coroutine that nobody awaits would be a warning, and be awaited once.

    Attributes:
        error: what the rest has raised, once it has.
        was_cancelled: whether something has cancelled the task that it ran in, not the tool itself.
    """

    def __init__(self, begin: Callable[[], Awaitable[Any]]) -> None:
        self._begin: Callable[[], Awaitable[Any]] | None = begin
        self._ended: asyncio.Future[_Outcome] | None = None
        self._is_closed = False
        self._outcome: _Outcome | None = None
        self.error: BaseException | None = None
        self.was_cancelled = False

    def __call__(self) -> Self:
        return self

    def __await__(self) -> Generator[Any, None, Any]:
        value = yield from self.outcome().__await__()
        return None if value is TOO_LONG else value

    async def outcome(self) -> Any:
        """Run the rest, or give the outcome that it had. While it runs in another task, wait for it."""
        begin, self._begin = self._begin, None
        if begin is not None:
            try:
                value = await begin()
            except BaseException as error:
                self.was_cancelled = isinstance(error, asyncio.CancelledError) and _is_cancelled()
                self._end((None, error))
                raise
            self._end((value, None))
            return value
        if self._is_closed:
            raise RuntimeError("proceed() was called after the middleware had ended")
        outcome = self._outcome
        if outcome is None:  # it is handed over, since the middleware may end before this task goes on
            self._ended = self._ended or asyncio.get_running_loop().create_future()
            outcome = await asyncio.shield(self._ended)
        value, failure = outcome
        try:
            if failure is not None:
                raise failure
            return value
        finally:
            del failure, outcome  # a traceback refers to this frame

    def _end(self, outcome: _Outcome) -> None:
        """Note the outcome, and give it to those that wait for it."""
        if not self._is_closed:
            self._outcome, self.error = outcome, outcome[1]
        if self._ended is not None:
            self._ended.set_result(outcome)

    def close(self) -> None:
        """Let go of the outcome, whose traceback refers to this. A run in another task goes on, and who waits for it is
        given its outcome.
        """
        self._begin = self._outcome = self.error = None
        self._is_closed = True


_Outcome = tuple[Any, BaseException | None]
"""A value, or an error."""
