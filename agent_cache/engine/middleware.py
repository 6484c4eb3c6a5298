"""Middleware: what `configure(middleware=...)` puts around the calls that no local hit has answered.

A middleware is an ``async def (call, proceed)``. It is awaited in the task and the context of the call, and awaits
`proceed` there at most once. What the tool does is untouched: it runs exactly once, and its answer or its error reaches
the caller, whatever the middleware returns, and whichever `Exception` it raises. What is no `Exception` ends the call,
as anywhere in Python, and a tool that has not begun does not run.

One form serves every tool: the calls of a `def` are coroutines, too, which `engine.blocking` runs in the calling
thread. A middleware around them may await `proceed()` and nothing else, as there is no event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, final

from agent_cache.config import CURRENT, Configuration, Installed
from agent_cache.core.tags import Tag, TagRule
from agent_cache.engine.blocking import running_loop
from agent_cache.engine.operation import TOO_LONG, Operation, Proceed
from agent_cache.engine.scope import Call
from agent_cache.engine.state import LOG
from agent_cache.values.canonical import MISSING
from agent_cache.values.compare import etag_of

__all__ = ["ToolCall", "observed", "shown_arguments"]


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
            period; ``"validated"``: its validator said that an expired result still holds; ``"uncached"`` and
            ``"write"``: the tool ran.
        etag: None until `proceed` has returned; then, of a tool with ``validate=``, what `tool.etag` gives.
    """

    tool: str
    session: str | None
    is_read_only: bool
    is_sync: bool
    is_stream: bool
    _operation: Any
    _arguments: Mapping[str, Any]
    source: str | None = None
    etag: str | None = None
    _late: tuple[Tag, ...] = ()

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
        rules = self._operation.tags
        return tuple(dict.fromkeys((*rules.static, *_rendered(rules.early, self._arguments, None), *self._late)))

    def _end(self, call: Call, result: Any = MISSING) -> None:
        """Note how the call was answered, and nothing that a middleware would keep alive with this."""
        late: tuple[Tag, ...] = ()
        if not self.is_read_only and self._operation.policy.key_fn is not None:
            late = call.tags
        elif result is not MISSING and result is not TOO_LONG:
            late = _rendered(self._operation.tags.late, self._arguments, result)
        object.__setattr__(self, "source", call.source)
        object.__setattr__(self, "_late", late)
        if result is not MISSING and self.is_read_only and self._operation.policy.validate is not None:
            object.__setattr__(self, "etag", etag_of(result))


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
        run = partial(_observe, middleware, run)
    return run if operation.around is None else partial(operation.around, run)


async def _observe(middleware: tuple[Installed, ...], proceed: Proceed, call: Call) -> Any:
    """Run a call inside of these middleware, the first one outermost."""
    operation, participants = call.operation, call.scope.participants
    session = participants[0].session_id if participants else None
    kind = operation.is_read, operation.is_sync, operation.is_stream
    shown = ToolCall(operation.name, session, *kind, operation, call.arguments)

    async def run() -> Any:
        try:
            value = await proceed(call)
        except BaseException:
            shown._end(call)
            raise
        shown._end(call, value)
        return value

    begin: Callable[[], Awaitable[Any]] = run
    for one in reversed(middleware):
        if one.observes(is_sync=shown.is_sync):
            begin = partial(_run_inside, one, shown, begin)
    return await begin()


async def _run_inside(middleware: Installed, shown: ToolCall, begin: Callable[[], Awaitable[Any]]) -> Any:
    """Run the rest of a call inside of one middleware."""
    rest = _Rest(begin)
    try:
        await middleware.function(shown, rest)
    except Exception as error:
        if error is rest.error:
            raise
        _remove(middleware, error, is_sync=shown.is_sync)
        if isinstance(rest.error, asyncio.CancelledError):  # by a timeout of its own: the caller is not cancelled
            raise
    if not rest.is_begun:
        return await rest.run()
    if rest.error is not None:
        raise rest.error
    return rest.value


class _Rest:
    """The `proceed` of one middleware: the rest of its call, which is awaited once; and its outcome."""

    def __init__(self, begin: Callable[[], Awaitable[Any]]) -> None:
        self._begin = begin
        self._task = _task_here()
        self.is_begun = False
        self.value: Any = None
        self.error: BaseException | None = None

    async def __call__(self) -> Any:
        if self.is_begun or _task_here() is not self._task:
            raise RuntimeError("proceed() is awaited once, in the task of the call, before the middleware has ended")
        value = await self.run()
        return None if value is TOO_LONG else value

    async def run(self) -> Any:
        """Run the rest, and note its outcome."""
        self.is_begun = True
        try:
            self.value = await self._begin()
        except BaseException as error:
            self.error = error
            raise
        return self.value


def _task_here() -> asyncio.Task[Any] | None:
    return None if running_loop() is None else asyncio.current_task()


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
