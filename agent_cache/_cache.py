"""`AgentCache`: cache what a read tool answers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, overload

from agent_cache.core.checks import checked_choice, checked_function, seconds
from agent_cache.core.entries import protection_named
from agent_cache.core.loop_policy import NO_HINTS, LoopHints, checked_hints
from agent_cache.core.parameters import Parameters
from agent_cache.core.policies import ReadPolicy, RemotePolicy
from agent_cache.core.tags import ComputedTags, TagSet
from agent_cache.engine.cache_key import CacheKey
from agent_cache.engine.codegen import read_body
from agent_cache.engine.read_operation import ReadOperation
from agent_cache._toolcheck import checked_tool, identity_of
from agent_cache.values.annotations import Returns
from agent_cache.config import checked_tier
from agent_cache.errors import ConfigurationError
from agent_cache.remote.protocol import Tier

__all__ = ["AgentCache", "CachedTool", "Resource", "checked_remote"]

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")

Resource = str | ComputedTags | Sequence[str | ComputedTags]
"""A tag, a template over the tool's parameters and its result, what `tags_from` returns, or several of these."""


class CachedTool(Protocol[P, R_co]):
    """A tool decorated with `AgentCache`: a coroutine function with the tool's own signature, and a few attributes.

    For a method the attributes are reached through the class, with the instance as first argument:
    ``await Shop.get_order.invalidate(shop, "7")``.
    """

    __agent_cache__: ReadOperation
    __name__: str
    __qualname__: str

    @property
    def __wrapped__(self) -> Callable[P, Coroutine[Any, Any, R_co]]: ...
    @property
    def resource(self) -> Resource:
        """What stood after ``resource=``."""
        ...

    @property
    def scope(self) -> Literal["global", "session"]:
        """What stood after ``scope=``."""
        ...

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]: ...
    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> CachedTool[P, R_co]: ...
    @overload
    def __get__(
        self: CachedTool[Concatenate[S, Q], R_co], instance: S, owner: type[Any] | None = None
    ) -> Callable[Q, Coroutine[Any, Any, R_co]]: ...
    def cache_key(self, *args: P.args, **kwargs: P.kwargs) -> CacheKey:
        """Identity of the call that these arguments would make: opaque and hashable, equal for every spelling."""
        ...

    async def invalidate(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Forget the answer to one call, in every scope. Whether there was one."""
        ...

    async def fresh(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the tool now, whatever is cached, store its answer and return it."""
        ...

    async def refresh(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """The same as `fresh`."""
        ...

    def clear(self) -> int:
        """Forget every local answer of this tool, in every scope. How many there were."""
        ...


class AgentCache:
    """Cache what a read tool answers, until something it depends on is written.

    Concurrent identical calls run the tool once. After a write tool that names one of its tags has ended, no call that
    starts later is answered with what was loaded before. Errors are never cached.

    Args:
        resource: what the answer depends on: a tag (``"cart"``), a template over the tool's parameters and its result
            (``"order:{order_id}"``, ``"user:{result[user_id]}"``), what `tags_from` returns, or a sequence of these.
        scope: ``"global"``: shared by everything in the process; ``"session"``: belongs to the innermost
            `AgentCacheSession`, and the tool runs uncached outside of one.
        ttl: seconds, or a `timedelta`, that an answer lives, counted from the start of its load. None: for ever.
        maxsize: how many answers are kept, least recently used out first, in each scope. None: no bound.
        skip_args: how many leading positional parameters do not count as identity (1 leaves ``self`` out, so that all
            instances share).
        backup: a tier between the local store and the remote one.
        remote_cache: a tier shared with other processes.
        key: ``key(*args, **kwargs)`` is the identity instead of the arguments.
        vary: ``vary(arguments)`` or ``vary()`` is added to the identity: tenant, working directory, version. The
            mapping has every parameter in it, also contexts that the framework injects.
        cache_if: ``cache_if(result)`` says whether an answer is worth keeping; the way to keep "Error: ..." texts out.
            To a session's loop guard, what it turns away is a failed call, unless there is nothing in it.
        copy: how a hit is protected from callers that mutate what they were given. ``"auto"`` shares what is immutable
            and copies the rest, ``"never"`` shares everything, a function copies as it likes.
        loop: what its repetitions mean to a session's loop guard: see `LoopHints`.
        uncacheable: ``"bypass"`` runs a call uncached whose arguments have no identity, and counts it; ``"raise"``
            raises `UncacheableArgumentsError`.
        name: identity of the tool instead of ``module:qualname``; for functions made in a loop or a factory.
        remote: how the shared tier is used, beyond what holds for every tool: see `RemotePolicy`.

    Raises:
        ConfigurationError: at decoration, naming the tool and the fix, if any of this cannot work.
        TypeError: at decoration, if what is decorated is no `async def`.
    """

    def __init__(
        self,
        resource: Resource,
        scope: Literal["global", "session"] = "global",
        ttl: float | timedelta | None = None,
        maxsize: int | None = 128,
        skip_args: int = 0,
        backup: Tier | None = None,
        remote_cache: Tier | None = None,
        *,
        key: Callable[..., Any] | None = None,
        vary: Callable[[Mapping[str, Any]], Hashable] | Callable[[], Hashable] | None = None,
        cache_if: Callable[[Any], bool] | None = None,
        copy: Literal["auto", "never"] | Callable[[Any], Any] = "auto",
        uncacheable: Literal["bypass", "raise"] = "bypass",
        loop: LoopHints = NO_HINTS,
        name: str | None = None,
        remote: RemotePolicy | None = None,
    ) -> None:
        where = f"AgentCache({resource!r})"
        self._resource = resource
        self._skip_args = skip_args
        self._name = name
        self._backup = checked_tier(backup, f"{where}: backup")
        self._remote = checked_tier(remote_cache, f"{where}: remote_cache")
        if callable(copy):
            checked_function(copy, f"{where}: copy")
        protection = protection_named(copy)
        if protection is None:
            raise ConfigurationError(f"{where}: copy must be 'auto', 'never' or a function of one value, got {copy!r}")
        if maxsize is not None and (isinstance(maxsize, bool) or not isinstance(maxsize, int) or maxsize < 1):
            raise ConfigurationError(
                f"{where}: maxsize must be 1 or more entries, or None for no bound, got {maxsize!r}"
            )
        for option, given in (("key", key), ("vary", vary), ("cache_if", cache_if)):
            checked_function(given, f"{where}: {option}")
        self._policy = ReadPolicy(
            scope=checked_choice(scope, ("global", "session"), f"{where}: scope"),
            ttl=None if ttl is None else seconds(ttl, f"{where}: ttl"),
            maxsize=maxsize,
            protection=protection,
            key=key,
            vary=vary,
            vary_takes_arguments=vary is not None and _takes_arguments(vary),
            cache_if=cache_if,
            uncacheable=checked_choice(uncacheable, ("bypass", "raise"), f"{where}: uncacheable"),
            loop=checked_hints(loop, where, is_write=False),
            remote=checked_remote(remote, where).checked(where, scope=scope, is_read=True),
        )
        if scope == "session" and (backup is not None or remote_cache is not None) and not self._policy.remote.share:
            raise ConfigurationError(
                f"{where}: answers of a session do not leave the process; leave out backup and remote_cache, or add "
                "remote=RemotePolicy(share=True)"
            )

    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> CachedTool[P, R]:
        tool = checked_tool(function, "AgentCache")
        name = identity_of(tool, self._name)
        parameters = Parameters.of(tool, self._skip_args, name)
        operation = ReadOperation(
            tool,
            name,
            parameters,
            TagSet.compile(self._resource, parameters.names, name),
            self._policy,
            self._backup,
            self._remote,
            returns=Returns(tool),
        )
        body: Any = read_body(operation)
        body.resource = self._resource
        body.scope = self._policy.scope
        body.__agent_cache__ = operation
        body.cache_key = operation.cache_key
        body.invalidate = operation.invalidate
        body.fresh = body.refresh = operation.fresh
        body.clear = operation.clear
        cached: CachedTool[P, R] = body
        return cached


def checked_remote(remote: Any, where: str) -> RemotePolicy:
    """What stands after ``remote=``; None asks for nothing."""
    if remote is None:
        return RemotePolicy()
    if not isinstance(remote, RemotePolicy):
        raise ConfigurationError(
            f"{where}: remote must be a RemotePolicy(...), got {remote!r}; a tier goes into remote_cache"
        )
    return remote


def _takes_arguments(vary: Callable[..., Any]) -> bool:
    """Whether ``vary`` needs the arguments. What can be called without is: ``ContextVar.get`` would take them for a
    default.
    """
    try:
        inspect.signature(vary).bind()
    except TypeError:
        return True
    except ValueError:  # a builtin without a signature
        return True
    return False
