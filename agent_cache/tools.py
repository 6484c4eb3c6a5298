"""The decorators `AgentCache` and `AgentCacheInvalidator`; `invalidate`, `writing` and `bypass` for code around tools.

A decorator checks its options at once, and the function when it is applied. Then it settles the signature, the tags and
the policy, and generates the body of the decorated function (`engine.codegen`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import Token
from datetime import timedelta
from types import CoroutineType, TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Protocol, Self, TypeVar, overload

from agent_cache.config import checked_tier
from agent_cache.core.parameters import Parameters
from agent_cache.core.policies import (
    DEFAULT_REMOTE,
    NO_HINTS,
    LoopHints,
    ReadPolicy,
    RemotePolicy,
    WritePolicy,
    checked_choice,
    checked_flag,
    checked_fraction,
    checked_function,
    checked_hints,
    checked_life,
    seconds,
)
from agent_cache.core.tags import ComputedTags, Region, TagSet, parse_tags, root_of
from agent_cache.engine.codegen import read_body, write_body
from agent_cache.engine.plan import read_plan, write_plan
from agent_cache.engine.read import CacheInfo, ReadOperation
from agent_cache.engine.runtime import PLACE, ROOT, CacheKey, Scope, closes_generator, leave_scope
from agent_cache.engine.state import drop, mark_written
from agent_cache.engine.write import DOUBT, OUTSIDE, Write, WriteOperation
from agent_cache.errors import ConfigurationError
from agent_cache.metrics import METRICS
from agent_cache.values.copies import copy_rule_named

if TYPE_CHECKING:
    from agent_cache.remote.protocol import Tier
else:
    Tier = Any  # for whoever resolves the hints at run time: the module of the class takes 3 ms

__all__ = [
    "AgentCache",
    "AgentCacheInvalidator",
    "Bypass",
    "CachedTool",
    "InvalidatingTool",
    "Resource",
    "bypass",
    "check_resource",
    "checked_remote",
    "checked_tool",
    "identity_of",
    "invalidate",
    "writing",
]


_FRAMEWORKS = {
    "langchain_core": "LangChain's @tool",
    "langchain": "LangChain's @tool",
    "agents": "the OpenAI Agents SDK's @function_tool",
    "pydantic_ai": "Pydantic AI's Tool",
    "fastmcp": "FastMCP's @tool",
    "mcp": "MCP's @tool",
    "claude_agent_sdk": "the Claude Agent SDK's @tool",
}


def checked_tool(function: Any, decorator: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Check the object passed to a decorator. Raises `TypeError` with the fix if it is not an `async def` function."""
    package = type(function).__module__.partition(".")[0]
    if package in _FRAMEWORKS:
        raise TypeError(
            f"{decorator} was given a tool object made by {_FRAMEWORKS[package]}; put @{decorator} closest to the "
            "function, below the framework's decorator"
        )
    if hasattr(function, "__fastmcp__"):
        raise TypeError(
            f"{decorator} was given {_name(function)}, which FastMCP has already registered without it; put "
            f"@{decorator} closest to the function, below @mcp.tool"
        )
    if isinstance(function, staticmethod | classmethod):
        kind = type(function).__name__
        raise TypeError(f"{decorator} was given a {kind}; put @{decorator} closest to the function, below @{kind}")
    if hasattr(function, "__agent_cache__"):
        raise TypeError(
            f"{_name(function)} is already decorated with AgentCache or AgentCacheInvalidator; one of them is enough"
        )
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(
            f"{decorator} cannot take the generator {_name(function)}, because a stream is not one result. Collect it "
            "in an `async def` that returns a list, or leave it undecorated"
        )
    if isinstance(function, functools.partial):
        raise TypeError(
            f"{decorator} cannot take a functools.partial; decorate the function, and pass all arguments to it"
        )
    if not inspect.iscoroutinefunction(function) or not inspect.isroutine(function):
        what = f"the synchronous function {_name(function)}" if inspect.isroutine(function) else f"{function!r}"
        raise TypeError(
            f"{decorator} cannot take {what}; it takes `async def` functions. Make it one, for example with "
            f"`return await asyncio.to_thread(...)`"
        )
    if inspect.ismethod(function):
        raise TypeError(f"{decorator} was given the bound method {_name(function)}; decorate it in the class body")
    checked: Callable[..., Coroutine[Any, Any, Any]] = function
    return checked


def check_resource(resource: Any, decorator: str) -> None:
    """Refuse a resource that is the tool itself: ``@AgentCache`` without parentheses calls the decorator with it alone.

    Nothing would be decorated then, and the first call of the tool would fail with an error that does not say so. Any
    other malformed resource is refused by `TagSet.compile`, which knows the tool.

    Raises:
        ConfigurationError: if it is a function, a method, a class, a coroutine or a framework's tool object.
    """
    is_descriptor = hasattr(type(resource), "__get__")  # as a classmethod, which cannot be called
    is_framework_tool = type(resource).__module__.partition(".")[0] in _FRAMEWORKS
    if not (callable(resource) or is_descriptor or is_framework_tool or inspect.isawaitable(resource)):
        return
    role = "what its result depends on" if decorator == "AgentCache" else "what it changes"
    raise ConfigurationError(
        f"{decorator} was given {_name(resource)} as resource; name {role} in parentheses above the function: "
        f'@{decorator}("order:{{order_id}}")'
    )


def identity_of(function: Callable[..., Any], name: str | None) -> str:
    """The identity of a tool: ``module:qualname``, or its ``name=``."""
    return name if name is not None else f"{function.__module__}:{function.__qualname__}"


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


# Reads


P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
S_contra = TypeVar("S_contra", contravariant=True)

Resource = str | ComputedTags | Sequence[str | ComputedTags]
"""A tag, a template over the tool's parameters and its result, the result of `tags_from`, or several of these."""


# How type checkers see a decorated tool. At run time it is a plain function.

MYPY = False
"""Mypy takes it for True. It binds descriptors when it compares classes, so `CachedTool` and `InvalidatingTool` do for
methods as well. Pyright compares descriptors by their own attributes, so a method gets a type that has none.
"""


class AsyncMethod(Protocol[S_contra, P, R_co]):
    """A coroutine function whose first parameter is called ``self``."""

    def __call__(_, self: S_contra, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]: ...  # noqa: N805 - of the function


class AsyncClassMethod(Protocol[S_contra, P, R_co]):
    """A coroutine function whose first parameter is called ``cls``."""

    def __call__(_, cls: S_contra, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]: ...  # noqa: N805 - of the function


class AnyAsyncFunction(Protocol[R_co]):
    """A coroutine function of unknown parameters: `Callable[..., Coroutine]`. No written signature is like this one."""

    def __call__(
        self, a: MarkerArgument, b: MarkerArgument, c: MarkerArgument, /, *, marker: MarkerArgument
    ) -> Coroutine[Any, Any, R_co]: ...


class MarkerArgument(Protocol):
    """An argument that no tool takes, unless it takes any."""

    def is_marker(self) -> None: ...


class Method(Protocol[P, R_co]):
    """A decorated method as pyright compares it with another one: of a subclass, or of a protocol.

    The first overload is what a subclass's plain method must agree with, the second lets it pass for the bound method
    of a protocol, whose parameters are not compared.
    """

    @overload
    def __call__(self, receiver: Any, /, *args: P.args, **kwargs: P.kwargs) -> CoroutineType[Any, Any, R_co]: ...
    @overload
    def __call__(self, *args: Any, **kwargs: Any) -> CoroutineType[Any, Any, R_co]: ...


class CachedAttributes(Protocol[P, R_co]):
    """What a tool decorated with `AgentCache` has beside its call."""

    __agent_cache__: ReadOperation
    __name__: str
    __qualname__: str

    @property
    def __wrapped__(self) -> Callable[P, Coroutine[Any, Any, R_co]]: ...
    @property
    def resource(self) -> Resource:
        """The ``resource=`` option."""
        ...

    @property
    def scope(self) -> Literal["global", "session"]:
        """The ``scope=`` option."""
        ...

    def cache_key(self, *args: P.args, **kwargs: P.kwargs) -> CacheKey:
        """The identity of a call with these arguments: opaque and hashable, equal for every spelling."""
        ...

    async def invalidate(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Drop the cached result of one call, in every scope. Returns whether there was one."""
        ...

    async def fresh(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the tool, even if its result is cached; store the new result and return it."""
        ...

    async def refresh(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """The same as `fresh`."""
        ...

    async def set(self, value: Any, /, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Store a result that the caller has, as if a load of the call with these arguments had returned it.

        Inside a write tool or `writing` it is stored when that write commits, unless it fails, settles, or another
        write overlaps it. Elsewhere it is itself a write of that entry, which drops it everywhere first. It is stored
        in this process alone; other processes load it. `ttl`, `cache_if`, `copy` and tags of the result apply.

        Returns:
            Whether it was stored, or inside a write, whether it will be if none of that happens. False means that
            nothing is stored for these arguments: they have no identity, the result may not be stored, or the write
            does not touch what the result depends on, or does not name all the roots of that.
        """
        ...

    def clear(self) -> int:
        """Drop all local results of this tool, in every scope. Returns how many there were."""
        ...

    def contains(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Whether this call, made here and now, would be answered from the local store. It counts as no use."""
        ...

    def cache_info(self) -> CacheInfo:
        """Hits, misses, ``maxsize`` and the number of entries, as `functools.lru_cache` gives them."""
        ...


class CachedTool(CachedAttributes[P, R_co], Protocol[P, R_co]):
    """A tool decorated with `AgentCache`: a coroutine function with the tool's own signature, and a few attributes.

    For a method the attributes are reached through the class, with the instance as first argument:
    ``await Shop.get_order.invalidate(shop, "7")``. They raise `TypeError` without it, so also after
    ``shop.get_order.``, which does not pass ``shop``.
    """

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]: ...
    @overload
    def __get__(
        self: AsyncClassMethod[S, Q, R_co], instance: None, owner: type[Any] | None = None
    ) -> BoundTool[Concatenate[S, Q], Q, R_co]: ...
    @overload
    def __get__(
        self: AsyncClassMethod[S, Q, R_co], instance: object, owner: type[Any] | None = None
    ) -> Callable[Q, Coroutine[Any, Any, R_co]]: ...
    @overload
    def __get__(
        self: AsyncMethod[S, Q, R_co], instance: None, owner: type[Any] | None = None
    ) -> CachedTool[P, R_co]: ...
    @overload
    def __get__(
        self: AsyncMethod[S, Q, R_co], instance: object, owner: type[Any] | None = None
    ) -> Callable[Q, Coroutine[Any, Any, R_co]]: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> CachedTool[P, R_co]: ...


class BoundTool(CachedAttributes[P, R_co], Protocol[P, Q, R_co]):
    """A class method decorated with `AgentCache`: only its call knows the class."""

    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> Coroutine[Any, Any, R_co]: ...


class CachedMethod(Method[P, R_co], Protocol[S_co, P, R_co]):
    """A method decorated with `AgentCache`, in the body of its class."""

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> CachedTool[Concatenate[S_co, P], R_co]: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> Callable[P, Coroutine[Any, Any, R_co]]: ...


class CachedClassMethod(Method[P, R_co], Protocol[S_co, P, R_co]):
    """A class method decorated with `AgentCache`, in the body of its class."""

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> BoundTool[Concatenate[S_co, P], P, R_co]: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> Callable[P, Coroutine[Any, Any, R_co]]: ...


class Decorator:
    """The options that both decorators have."""

    def _check(
        self, decorator: str, resource: Any, name: str | None, backup: Tier | None, remote_cache: Tier | None
    ) -> str:
        """Check these options, and return how messages call the decorator."""
        check_resource(resource, decorator)
        where = f"{decorator}({resource!r})"
        self._resource = resource
        self._name = name
        self._backup = checked_tier(backup, f"{where}: backup")
        self._remote = checked_tier(remote_cache, f"{where}: remote_cache")
        return where


class AgentCache(Decorator):
    """Cache the results of a read tool until something that they depend on is written.

    Concurrent identical calls run the tool once. After a write tool with one of its tags has ended, no call that starts
    later gets a result that was loaded before. Errors are never cached.

    Args:
        resource: what the result depends on: a tag (``"cart"``), a template over the tool's parameters and its result
            (``"order:{order_id}"``, ``"user:{result[user_id]}"``), the result of `tags_from`, or a sequence of these.
        scope: ``"global"`` shares the results in the process; ``"session"`` keeps them in the innermost
            `AgentCacheSession`, and the tool runs uncached outside of one.
        ttl: seconds, or a `timedelta`, until a result expires, counted from the start of its load. None: never. A
            function ``ttl(result)`` returns the same for each result; one with 0 or less is not stored. On a tier such
            a result lives no longer than the tier's own bound (`RedisTier`: `remote_ttl`).
        maxsize: how many results are stored in each scope; the least recently used is evicted first. None: no bound.
        skip_args: how many leading positional parameters are left out of the identity (1 leaves ``self`` out, so that
            all instances share their results).
        backup: a tier between the local store and the remote one.
        remote_cache: a tier shared with other processes.
        key: ``key(*args, **kwargs)`` is the identity of a call, instead of its arguments.
        vary: ``vary(arguments)`` or ``vary()`` is added to the identity: tenant, working directory, version. The
            mapping has all parameters, also contexts that the framework injects.
        cache_if: ``cache_if(result)`` decides whether a result is stored, for example not if it says "Error: ...". A
            session's loop guard takes a result that is rejected for a failed call, unless the result is empty.
        copy: how a cached result is protected from callers that change it. ``"auto"`` shares what is immutable and
            copies the rest, ``"never"`` shares everything, a function makes the copies.
        loop: how a session's loop guard compares its calls: see `LoopHints`.
        uncacheable: for a call whose arguments have no identity: ``"bypass"`` runs it uncached and counts it;
            ``"raise"`` raises `UncacheableArgumentsError`.
        name: the identity of the tool instead of ``module:qualname``; for functions made in a loop or a factory.
        jitter: a fraction below 1. The life of each result is shortened by a random part of that fraction of its ttl,
            so that results that were loaded together do not expire together.
        grace: seconds, or a `timedelta`, beyond its ttl in which a result is still returned, at once, while one call
            in the background loads it again. Also on the tier: see `RemotePolicy`.
        stale_if_error: seconds, or a `timedelta`, beyond its ttl in which a result is returned instead of an exception
            that the tool raises. From the local store only. Like `grace`, it never returns what a write has dropped.
        remote: how the shared tier is used: see `RemotePolicy`.
        inherit: whether a result also depends on what the decorated reads depend on that the tool makes, however they
            are answered: it is dropped with them, expires no later, and is not stored if a write has overlapped one of
            them. If one could not be cached, the result is cached only if the tool has a `ttl` of its own. False: it
            depends on `resource` alone.

    Raises:
        ConfigurationError: at decoration, naming the tool and the fix, if an option cannot work.
        TypeError: at decoration, if the decorated object is not an `async def` function.
    """

    def __init__(
        self,
        resource: Resource,
        scope: Literal["global", "session"] = "global",
        ttl: float | timedelta | Callable[[Any], float | timedelta | None] | None = None,
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
        jitter: float = 0.0,
        grace: float | timedelta = 0.0,
        stale_if_error: float | timedelta = 0.0,
        remote: RemotePolicy | None = None,
        inherit: bool = True,
    ) -> None:
        where = self._check("AgentCache", resource, name, backup, remote_cache)
        self._skip_args = skip_args
        if callable(copy):
            checked_function(copy, f"{where}: copy")
        copy_rule = copy_rule_named(copy)
        if copy_rule is None:
            raise ConfigurationError(f"{where}: copy must be 'auto', 'never' or a function of one value, got {copy!r}")
        if maxsize is not None and (isinstance(maxsize, bool) or not isinstance(maxsize, int) or maxsize < 1):
            raise ConfigurationError(
                f"{where}: maxsize must be 1 or more entries, or None for no bound, got {maxsize!r}"
            )
        checked_flag(inherit, f"{where}: inherit")
        for option, given in (("key", key), ("vary", vary), ("cache_if", cache_if)):
            checked_function(given, f"{where}: {option}")
        self._policy = ReadPolicy(
            scope=checked_choice(scope, ("global", "session"), f"{where}: scope"),
            ttl=checked_life(ttl, f"{where}: ttl"),
            maxsize=maxsize,
            copy_rule=copy_rule,
            key=key,
            vary=vary,
            vary_takes_arguments=vary is not None and _takes_arguments(vary),
            cache_if=cache_if,
            inherit=inherit,
            uncacheable=checked_choice(uncacheable, ("bypass", "raise"), f"{where}: uncacheable"),
            loop=checked_hints(loop, where, is_write=False),
            remote=checked_remote(remote, where).checked(where, scope=scope, is_read=True),
            jitter=checked_fraction(jitter, f"{where}: jitter"),
            grace=seconds(grace, f"{where}: grace", zero=True),
            stale_if_error=seconds(stale_if_error, f"{where}: stale_if_error", zero=True),
        ).checked(where)
        if scope == "session" and (backup is not None or remote_cache is not None) and not self._policy.remote.share:
            raise ConfigurationError(
                f"{where}: results of a session do not leave the process; leave out backup and remote_cache, or add "
                "remote=RemotePolicy(share=True)"
            )

    if MYPY:

        def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> CachedTool[P, R]:
            tool: CachedTool[P, R] = self._decorate(function)
            return tool

    else:

        @overload
        def __call__(self, function: AnyAsyncFunction[R]) -> CachedTool[..., R]: ...
        @overload
        def __call__(self, function: AsyncMethod[S, P, R]) -> CachedMethod[S, P, R]: ...
        @overload
        def __call__(self, function: AsyncClassMethod[S, P, R]) -> CachedClassMethod[S, P, R]: ...
        @overload
        def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> CachedTool[P, R]: ...
        def __call__(self, function: Any) -> Any:
            return self._decorate(function)

    def _decorate(self, function: Any) -> Any:
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
            compile=read_plan,
        )
        body: Any = read_body(operation)
        body.resource = self._resource
        body.scope = self._policy.scope
        body.__agent_cache__ = operation
        body.cache_key = operation.cache_key
        body.invalidate = operation.invalidate
        body.fresh = body.refresh = operation.fresh
        body.set = operation.set
        body.clear = operation.clear
        body.contains = operation.contains
        body.cache_info = operation.cache_info
        return body


def checked_remote(remote: Any, where: str) -> RemotePolicy:
    """Check a ``remote=`` option; None is the default policy."""
    if remote is None:
        return DEFAULT_REMOTE
    if not isinstance(remote, RemotePolicy):
        raise ConfigurationError(
            f"{where}: remote must be a RemotePolicy(...), got {remote!r}; pass a tier as remote_cache"
        )
    return remote


def _takes_arguments(vary: Callable[..., Any]) -> bool:
    """Whether ``vary`` needs the arguments. If it can be called without them, it is: ``ContextVar.get`` would take them
    for its default.
    """
    try:
        inspect.signature(vary).bind()
    except TypeError:
        return True
    except ValueError:  # a builtin without a signature
        return True
    return False


# Writes


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
    def __get__(
        self: AsyncClassMethod[S, Q, R_co], instance: object, owner: type[Any] | None = None
    ) -> Callable[Q, Coroutine[Any, Any, R_co]]: ...
    @overload
    def __get__(
        self: AsyncMethod[S, Q, R_co], instance: None, owner: type[Any] | None = None
    ) -> InvalidatingTool[P, R_co]: ...
    @overload
    def __get__(
        self: AsyncMethod[S, Q, R_co], instance: object, owner: type[Any] | None = None
    ) -> Callable[Q, Coroutine[Any, Any, R_co]]: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> InvalidatingTool[P, R_co]: ...


class InvalidatingMethod(Method[P, R_co], Protocol[S_co, P, R_co]):
    """A method decorated with `AgentCacheInvalidator`, in the body of its class."""

    @overload
    def __get__(
        self, instance: None, owner: type[Any] | None = None
    ) -> InvalidatingTool[Concatenate[S_co, P], R_co]: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> Callable[P, Coroutine[Any, Any, R_co]]: ...


class InvalidatingClassMethod(Method[P, R_co], Protocol[P, R_co]):
    """A class method decorated with `AgentCacheInvalidator`, in the body of its class."""

    def __get__(self, instance: object, owner: type[Any] | None = None) -> Callable[P, Coroutine[Any, Any, R_co]]: ...


class AgentCacheInvalidator(Decorator):
    """Drop the entries that a write tool makes stale: before it runs, and again when it has ended, however it ended.

    After the tool has returned, raised or been cancelled, no read that starts later gets a result that was loaded
    before. If a write was cancelled, or failed in a way that leaves its effect unknown, nothing under its tags is
    stored for `doubt` seconds.

    Args:
        resource: what the write touches: a tag, a template over the tool's parameters and its result
            (``"user:{result[user_id]}"``), the result of `tags_from`, or a sequence of these. ``"order"`` covers every
            ``"order:..."``. A tag that depends on the result drops the whole root when the write fails: prefer
            ``tags_from(root, lambda arguments: ...)``, or name the harmless failures in `no_effect`.
        scope: ``"global"`` drops in every scope and tenant; ``"session"`` only in the current session and those
            around it.
        skip_args: must be 0. To drop single entries, use `key_fn`.
        clear_all: True drops everything under `resource`; False only what `key_fn` names.
        key_fn: ``key_fn(args, kwargs)`` returns ``tool.cache_key(...)`` or several of them. It is called before the
            side effect.
        settle: seconds after a successful write during which nothing under its tags is stored, for sources that are
            eventually consistent (replicas, search indexes).
        doubt: seconds in which a write may take effect after it was cancelled or timed out.
        in_doubt: exceptions that leave the effect unknown, beside `TimeoutError` and `OSError`; for example httpx's
            timeouts.
        no_effect: exceptions which mean that nothing was changed.
        ok: ``ok(result)`` decides whether a write that returned was successful. The default: always.
        loop: how a session's loop guard compares its calls: see `LoopHints`.
        remote_cache, backup: tiers to invalidate, beside those of tools that share a root and all that were ever
            configured.
        name: the identity of the tool instead of ``module:qualname``.
        remote: what happens while the shared tier cannot be reached: see `RemotePolicy`.

    Raises:
        ConfigurationError: at decoration, naming the tool and the fix, if an option cannot work.
        TypeError: at decoration, if the decorated object is not an `async def` function, or `skip_args` is not 0.
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
        where = self._check("AgentCacheInvalidator", resource, name, backup, remote_cache)
        if skip_args != 0:
            raise TypeError(
                f"{where}: skip_args has no effect on a write; to drop single entries, use clear_all=False, key_fn=..."
            )
        if not isinstance(clear_all, bool):
            raise ConfigurationError(f"{where}: clear_all must be True or False, got {clear_all!r}")
        if not clear_all and key_fn is None:
            raise ConfigurationError(
                f"{where}: clear_all=False drops nothing by itself; add key_fn=lambda args, kwargs: tool.cache_key(...)"
            )
        if clear_all and key_fn is not None:
            raise ConfigurationError(
                f"{where}: key_fn drops single entries; add clear_all=False, or leave key_fn out to drop all"
            )
        for option, given in (("key_fn", key_fn), ("ok", ok)):
            checked_function(given, f"{where}: {option}")
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

    if MYPY:

        def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> InvalidatingTool[P, R]:
            tool: InvalidatingTool[P, R] = self._decorate(function)
            return tool

    else:

        @overload
        def __call__(self, function: AnyAsyncFunction[R]) -> InvalidatingTool[..., R]: ...
        @overload
        def __call__(self, function: AsyncMethod[S, P, R]) -> InvalidatingMethod[S, P, R]: ...
        @overload
        def __call__(self, function: AsyncClassMethod[S, P, R]) -> InvalidatingClassMethod[P, R]: ...
        @overload
        def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> InvalidatingTool[P, R]: ...
        def __call__(self, function: Any) -> Any:
            return self._decorate(function)

    def _decorate(self, function: Any) -> Any:
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
            compile=write_plan,
        )
        body: Any = write_body(operation)
        body.resource = self._resource
        body.scope = self._policy.scope
        body.__agent_cache__ = operation
        return body


def _exceptions(given: Any, where: str) -> tuple[type[BaseException], ...]:
    classes = (given,) if isinstance(given, type) else tuple(given) if isinstance(given, Iterable) else (given,)
    if not all(isinstance(one, type) and issubclass(one, BaseException) for one in classes):
        raise ConfigurationError(f"{where} must be exception classes, got {given!r}")
    return classes


async def invalidate(*tags: str | Sequence[object]) -> int:
    """Drop everything that depends on these tags, in every scope and process. For changes made outside of the tools.

    Args:
        tags: ``"order:7"``, ``"order"`` for everything under it, or ``("order", "a:b")`` where an id may contain a
            colon. More than 2,000 at a time count as their roots. The local half is done in one step, 4 ms for 20,000:
            a caller that is cancelled must not have invalidated a part.

    Returns:
        The number of local entries that were dropped.

    Raises:
        ConfigurationError: if no tag is given, or one is malformed.
    """
    region = Region(_parsed(tags, "invalidate"))
    dropped = drop(region)
    _count(region.paths)
    write = _write(region.paths)
    await write.begin()
    await write.succeed(None)
    return dropped


def writing(*tags: str | Sequence[object]) -> _Writing:
    """Invalidate before and after a write that is not a tool, as `AgentCacheInvalidator` does for one.

    Args:
        tags: as for `invalidate`.

    Example: ``async with writing("order:7"): await database.execute(...)``

    Raises:
        ConfigurationError: if there is no tag, or one is malformed.
    """
    return _Writing(_parsed(tags, "writing"))


class _Writing(AbstractAsyncContextManager[None]):
    """What `writing` returns: enters one write, or surrounds each call of a function that it decorates.

    A class, since `contextlib.asynccontextmanager` sets the traceback of the error that leaves the block. An exception
    that is a frozen dataclass refuses that, and would be replaced by the error about it.
    """

    __slots__ = ("_begun", "_paths")

    def __init__(self, paths: tuple[str, ...]) -> None:
        self._paths = paths

    def __call__(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        @functools.wraps(function)
        async def within(*args: P.args, **kwargs: P.kwargs) -> R:
            async with _Writing(self._paths):
                return await function(*args, **kwargs)

        return within

    async def __aenter__(self) -> None:
        _count(self._paths)
        self._begun = write = _write(self._paths)
        await write.begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self._begun.succeed(None)
        else:
            await self._begun.fail(error)


def _count(paths: tuple[str, ...]) -> None:
    roots = tuple(dict.fromkeys(map(root_of, paths)))
    for metrics in (METRICS, *(participant.metrics for participant in PLACE.get().scope.participants)):
        metrics.invalidated(roots)


def _parsed(tags: tuple[str | Sequence[object], ...], function: str) -> tuple[str, ...]:
    if not tags:
        raise ConfigurationError(f"{function}() needs at least one tag, for example {function}('order:7')")
    return parse_tags(tags)


class Bypass:
    """A block of `bypass`."""

    __slots__ = ("_outer", "_scope", "_token")

    def __init__(self) -> None:
        self._token: Token[Scope] | None = None
        self._outer = self._scope = ROOT

    def __enter__(self) -> Self:
        if self._token is not None:
            raise ConfigurationError("bypass: this block is already entered; call bypass() again for another `with`")
        self._outer = outer = PLACE.get().scope
        self._scope = outer if outer.bypasses else outer.variant(bypasses=True)
        self._token = self._scope.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        token, self._token = self._token, None
        if token is None:
            return
        scope, outer, self._scope, self._outer = self._scope, self._outer, ROOT, ROOT
        leave_scope(scope, outer, token, is_closing=closes_generator(error))


def bypass() -> Bypass:
    """Run the reads of this task uncached inside a block.

    Example: ``with bypass(): await get_order("7")``

    Every read inside runs its tool: nothing is looked up, stored, or shared with other callers, and it is counted as
    uncached. Writes invalidate as ever, sessions trace, count and check for loops, recordings record and replay. Child
    tasks and `asyncio.to_thread` that are started inside belong to the block; other tasks are not concerned, and their
    local hits cost nothing more. For the whole process there is ``configure(enabled=False)``.

    ``await tool.fresh(...)`` inside runs the tool and does not store the answer. `AsyncCache` is not concerned. Blocks
    may be nested.

    Returns:
        A context manager. To enter one that is entered already raises `ConfigurationError`.
    """
    return Bypass()


def _write(paths: tuple[str, ...]) -> Write:
    roots = tuple(dict.fromkeys(map(root_of, paths)))
    mark_written(roots)
    return Write("writing " + ", ".join(roots), OUTSIDE, paths, roots=roots)
