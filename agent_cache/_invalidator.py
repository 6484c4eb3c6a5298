"""`AgentCacheInvalidator`: a write tool drops what it makes stale. And the same for writes that are no tools."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, overload

from agent_cache._cache import Resource, checked_remote
from agent_cache.core.checks import checked_choice, checked_function, seconds
from agent_cache.core.ledger import Region
from agent_cache.core.loop_policy import NO_HINTS, LoopHints, checked_hints
from agent_cache.core.parameters import Parameters
from agent_cache.core.policies import RemotePolicy, WritePolicy
from agent_cache.core.tags import TagSet, parse_tag, root_of
from agent_cache.metrics import METRICS
from agent_cache.engine.cache_key import CacheKey
from agent_cache.engine.codegen import write_body
from agent_cache.engine.scope import SCOPE
from agent_cache.engine.state import drop
from agent_cache.engine.write_operation import WriteOperation
from agent_cache.engine.writes import Write, tiers_under
from agent_cache._toolcheck import checked_tool, identity_of
from agent_cache.config import checked_tier
from agent_cache.errors import ConfigurationError
from agent_cache.remote.protocol import Tier

__all__ = ["AgentCacheInvalidator", "InvalidatingTool", "invalidate", "writing"]

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")

DOUBT = 5.0
"""Seconds that a write with an unknown outcome may still take effect, unless told otherwise."""


class InvalidatingTool(Protocol[P, R_co]):
    """A tool decorated with `AgentCacheInvalidator`: a coroutine function with the tool's own signature."""

    __agent_cache__: WriteOperation
    __name__: str
    __qualname__: str

    @property
    def __wrapped__(self) -> Callable[P, Coroutine[Any, Any, R_co]]: ...
    @property
    def resource(self) -> Resource: ...
    @property
    def scope(self) -> Literal["global", "session"]: ...
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]: ...
    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> InvalidatingTool[P, R_co]: ...
    @overload
    def __get__(
        self: InvalidatingTool[Concatenate[S, Q], R_co], instance: S, owner: type[Any] | None = None
    ) -> Callable[Q, Coroutine[Any, Any, R_co]]: ...


class AgentCacheInvalidator:
    """Drop what a write tool makes stale: before it runs, and again when it has ended, however it ended.

    After the tool has returned, raised or been cancelled, no read that starts later is answered with what was loaded
    before. A write that was cancelled, or failed in a way that leaves its effect unknown, bars its tags for `doubt`
    seconds.

    Args:
        resource: what the write touches: a tag, a template over the tool's parameters and its result
            (``"user:{result[user_id]}"``), what `tags_from` returns, or a sequence of these. ``"order"`` covers every
            ``"order:..."``. A tag that only the result tells costs the whole root when the write fails: prefer
            ``tags_from(root, lambda arguments: ...)``, or name the harmless failures in `no_effect`.
        scope: ``"global"`` drops in every scope and tenant; ``"session"`` only in the current session and those
            around it.
        skip_args: must be 0; which entries are dropped is `key_fn`'s business.
        clear_all: True drops everything under `resource`; False only what `key_fn` names.
        key_fn: ``key_fn(args, kwargs)`` returns ``tool.cache_key(...)`` or several of them. It is called before the
            side effect.
        settle: seconds after a successful write during which nothing under its tags is stored, for sources that are
            eventually consistent (replicas, search indexes).
        doubt: seconds that a write may take effect after it was cancelled or timed out.
        in_doubt: exceptions that leave the effect unknown, beside `TimeoutError` and `OSError`; httpx's timeouts, say.
        no_effect: exceptions that say that nothing was changed.
        ok: ``ok(result)`` says whether a write that returned was successful; the default says yes.
        loop: what its repetitions mean to a session's loop guard: see `LoopHints`.
        remote_cache, backup: tiers it acts on, beside the configured ones and those of every tool that shares a root.
        name: identity of the tool instead of ``module:qualname``.
        remote: what to do when the shared tier cannot be told of the write: see `RemotePolicy`.

    Raises:
        ConfigurationError: at decoration, naming the tool and the fix, if any of this cannot work.
        TypeError: at decoration, if what is decorated is no `async def`, or `skip_args` is not 0.
    """

    def __init__(
        self,
        resource: Resource,
        scope: Literal["global", "session"] = "global",
        skip_args: int = 0,
        clear_all: bool = True,  # noqa: FBT001, FBT002 - positional for those who come from async-cache's agent layer
        key_fn: Callable[[tuple[Any, ...], Mapping[str, Any]], CacheKey | Sequence[CacheKey]] | None = None,
        *,
        settle: float | timedelta = 0.0,
        doubt: float | timedelta = DOUBT,
        in_doubt: Sequence[type[BaseException]] = (),
        no_effect: Sequence[type[BaseException]] = (),
        ok: Callable[[Any], bool] | None = None,
        loop: LoopHints = NO_HINTS,
        remote_cache: Tier | None = None,
        backup: Tier | None = None,
        name: str | None = None,
        remote: RemotePolicy | None = None,
    ) -> None:
        where = f"AgentCacheInvalidator({resource!r})"
        if skip_args != 0:
            raise TypeError(
                f"{where}: skip_args has no meaning for a write; name what to drop with clear_all=False, key_fn=..."
            )
        if not isinstance(clear_all, bool):
            raise ConfigurationError(f"{where}: clear_all must be True or False, got {clear_all!r}")
        if not clear_all and key_fn is None:
            raise ConfigurationError(
                f"{where}: clear_all=False drops nothing by itself; add key_fn=lambda args, kwargs: tool.cache_key(...)"
            )
        if clear_all and key_fn is not None:
            raise ConfigurationError(
                f"{where}: key_fn names single entries; add clear_all=False, or leave it out to drop all"
            )
        for option, given in (("key_fn", key_fn), ("ok", ok)):
            checked_function(given, f"{where}: {option}")
        self._resource = resource
        self._name = name
        self._backup = checked_tier(backup, f"{where}: backup")
        self._remote = checked_tier(remote_cache, f"{where}: remote_cache")
        self._policy = WritePolicy(
            scope=checked_choice(scope, ("global", "session"), f"{where}: scope"),
            settle=seconds(settle, f"{where}: settle", zero=True),
            doubt=seconds(doubt, f"{where}: doubt", zero=True),
            in_doubt=_exceptions(in_doubt, f"{where}: in_doubt"),
            no_effect=_exceptions(no_effect, f"{where}: no_effect"),
            ok=ok,
            key_fn=key_fn,
            loop=checked_hints(loop, where, is_write=True),
            remote=checked_remote(remote, where).checked(where, scope=scope, is_read=False),
        )

    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> InvalidatingTool[P, R]:
        tool = checked_tool(function, "AgentCacheInvalidator")
        name = identity_of(tool, self._name)
        parameters = Parameters.of(tool, 0, name)
        operation = WriteOperation(
            tool,
            name,
            parameters,
            TagSet.compile(self._resource, parameters.names, name),
            self._policy,
            self._backup,
            self._remote,
        )
        body: Any = write_body(operation)
        body.resource = self._resource
        body.scope = self._policy.scope
        body.__agent_cache__ = operation
        invalidating: InvalidatingTool[P, R] = body
        return invalidating


def _exceptions(given: Any, where: str) -> tuple[type[BaseException], ...]:
    classes = (given,) if isinstance(given, type) else tuple(given) if isinstance(given, Iterable) else (given,)
    if not all(isinstance(one, type) and issubclass(one, BaseException) for one in classes):
        raise ConfigurationError(f"{where} must be exception classes, got {given!r}")
    return classes


async def invalidate(*tags: str | Sequence[object]) -> int:
    """Something outside of the tools has changed: a webhook, a job, a migration. Drop what depends on it, everywhere.

    Args:
        tags: ``"order:7"``, ``"order"`` for everything under it, or ``("order", "a:b")`` where an id may contain a
            colon.

    Returns:
        How many local entries were dropped.

    Raises:
        ConfigurationError: if there is no tag, or one is malformed.
    """
    paths = _parsed(tags, "invalidate")
    dropped = drop(Region(paths))
    _count(paths)
    write = _write(paths)
    await write.begin()
    await write.succeed(None)
    return dropped


@asynccontextmanager
async def writing(*tags: str | Sequence[object]) -> AsyncIterator[None]:
    """Surround a write that is no tool, exactly as `AgentCacheInvalidator` surrounds one.

    Args:
        tags: as for `invalidate`.

    Example: ``async with writing("order:7"): await database.execute(...)``

    Raises:
        ConfigurationError: if there is no tag, or one is malformed.
    """
    paths = _parsed(tags, "writing")
    _count(paths)
    write = _write(paths)
    await write.begin()
    try:
        yield
    except BaseException as error:
        await write.fail(error)
        raise
    await write.succeed(None)


def _count(paths: tuple[str, ...]) -> None:
    roots = tuple(dict.fromkeys(map(root_of, paths)))
    for metrics in (METRICS, *(participant.metrics for participant in SCOPE.get().participants)):
        metrics.invalidated(roots)


def _parsed(tags: tuple[str | Sequence[object], ...], who: str) -> tuple[str, ...]:
    if not tags:
        raise ConfigurationError(f"{who}() needs at least one tag, for example {who}('order:7')")
    return tuple(dict.fromkeys(map(parse_tag, tags)))


_OUTSIDE = WritePolicy(scope="global", settle=0.0, doubt=DOUBT, in_doubt=(), no_effect=(), ok=None, key_fn=None)


def _write(paths: tuple[str, ...]) -> Write:
    roots = tuple(dict.fromkeys(map(root_of, paths)))
    return Write("writing " + ", ".join(roots), _OUTSIDE, paths, tiers=tiers_under(roots, ()))
