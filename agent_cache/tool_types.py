"""How type checkers see decorated tools. At run time each is a plain function.

`T` is what a call returns, which is a coroutine, a stream, or the result itself; `B` is what the attributes return that
have a bool for an answer, which is a coroutine for a tool that is asynchronous.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Coroutine, Sequence
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, overload

from agent_cache.core.tags import ComputedTags
from agent_cache.engine.operation import CacheKey
from agent_cache.engine.read import CacheInfo, ReadOperation
from agent_cache.engine.write import WriteOperation

__all__ = ["AsyncResult", "CachedTool", "InvalidatingTool", "Later", "Resource"]

P = ParamSpec("P")
Q = ParamSpec("Q")
S = TypeVar("S")
S_contra = TypeVar("S_contra", contravariant=True)
T_co = TypeVar("T_co", covariant=True)
B_co = TypeVar("B_co", covariant=True)
AsyncResult = TypeVar("AsyncResult", bound=Coroutine[Any, Any, Any] | AsyncIterable[Any])
"""What a call of an asynchronous tool returns."""

Later = Coroutine[Any, Any, bool]

Resource = str | ComputedTags | Sequence[str | ComputedTags]
"""A tag, a template over the tool's parameters and its result, the result of `tags_from`, or several of these."""


# Functions that are decorated


class MethodFunction(Protocol[S_contra, P, T_co]):
    """A function whose first parameter is called ``self``."""

    def __call__(_, self: S_contra, *args: P.args, **kwargs: P.kwargs) -> T_co: ...  # noqa: N805 - of the function


class ClassMethodFunction(Protocol[S_contra, P, T_co]):
    """A function whose first parameter is called ``cls``."""

    def __call__(_, cls: S_contra, *args: P.args, **kwargs: P.kwargs) -> T_co: ...  # noqa: N805 - of the function


# Decorated tools


class Decorated(Protocol[P, T_co]):
    """What any decorated tool has beside its call."""

    __name__: str
    __qualname__: str

    @property
    def __wrapped__(self) -> Callable[P, T_co]: ...

    @property
    def resource(self) -> Resource:
        """The ``resource=`` option."""

    @property
    def scope(self) -> Literal["global", "session"]:
        """The ``scope=`` option."""


# Reads


class ReadAttributes(Decorated[P, T_co], Protocol[P, T_co, B_co]):
    """What a tool decorated with `AgentCache` has beside its call. Those of an `async def` are awaited; those of a
    `def` run in the calling thread.

    For a method they are reached through the class, with the instance as first argument:
    ``await Shop.get_order.invalidate(shop, "7")``. They raise `TypeError` without it, so also after
    ``shop.get_order.``, which does not pass ``shop``.
    """

    __agent_cache__: ReadOperation

    def cache_key(self, *args: P.args, **kwargs: P.kwargs) -> CacheKey:
        """The identity of a call with these arguments: opaque and hashable, equal for every spelling."""

    def clear(self) -> int:
        """Drop all local results of this tool, in every scope. Returns how many there were."""

    def contains(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Whether this call, made here and now, would be answered from the local store. It counts as no use."""

    def etag(self, *args: P.args, **kwargs: P.kwargs) -> str | None:
        """A digest of the result of this call in the local store, expired or not; None if there is none, or it has no
        identity. Equal results have equal ones, in every process.
        """

    def cache_info(self) -> CacheInfo:
        """Hits, misses, ``maxsize`` and the number of entries, as `functools.lru_cache` gives them."""

    def invalidate(self, *args: P.args, **kwargs: P.kwargs) -> B_co:
        """Drop the cached result of one call, in every scope. Returns whether there was one."""

    def fresh(self, *args: P.args, **kwargs: P.kwargs) -> T_co:
        """Run the tool, even if its result is cached; store the new result and return it."""

    def refresh(self, *args: P.args, **kwargs: P.kwargs) -> T_co:
        """The same as `fresh`."""

    def set(self, value: Any, /, *args: P.args, **kwargs: P.kwargs) -> B_co:
        """Store a result that the caller has, or the chunks of a stream, as if a load of the call with these arguments
        had returned it.

        Inside a write tool or `writing` it is stored when that write commits, unless it fails, settles, or another
        write overlaps it. Elsewhere it is itself a write of that entry, which drops it everywhere first. It is stored
        in this process alone; other processes load it. `ttl`, `cache_if`, `copy` and tags of the result apply.

        Returns whether it was stored, or inside a write, whether it will be if none of that happens. False: the
        arguments have no identity, the result may not be stored, or the write names nothing that the result depends on.
        """


class CachedTool(ReadAttributes[P, T_co, B_co], Protocol[P, T_co, B_co]):
    """A tool decorated with `AgentCache`: a function with the tool's own signature, and a few attributes."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T_co: ...
    @overload
    def __get__(
        self: ClassMethodFunction[S, Q, T_co], instance: None, owner: type[Any] | None = None
    ) -> _BoundTool[Concatenate[S, Q], Q, T_co, B_co]: ...
    @overload
    def __get__(
        self: ClassMethodFunction[S, Q, T_co], instance: object, owner: type[Any] | None = None
    ) -> Callable[Q, T_co]: ...
    @overload
    def __get__(
        self: MethodFunction[S, Q, T_co], instance: None, owner: type[Any] | None = None
    ) -> CachedTool[P, T_co, B_co]: ...
    @overload
    def __get__(
        self: MethodFunction[S, Q, T_co], instance: object, owner: type[Any] | None = None
    ) -> Callable[Q, T_co]: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> CachedTool[P, T_co, B_co]: ...


class _BoundTool(ReadAttributes[P, T_co, B_co], Protocol[P, Q, T_co, B_co]):
    """A class method decorated with `AgentCache`: only its call knows the class."""

    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> T_co: ...


# Writes


class InvalidatingTool(Decorated[P, T_co], Protocol[P, T_co]):
    """A tool decorated with `AgentCacheInvalidator`: a function with the tool's own signature."""

    __agent_cache__: WriteOperation

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T_co: ...

    @overload
    def __get__(
        self: ClassMethodFunction[S, Q, T_co], instance: object, owner: type[Any] | None = None
    ) -> Callable[Q, T_co]: ...
    @overload
    def __get__(
        self: MethodFunction[S, Q, T_co], instance: None, owner: type[Any] | None = None
    ) -> InvalidatingTool[P, T_co]: ...
    @overload
    def __get__(
        self: MethodFunction[S, Q, T_co], instance: object, owner: type[Any] | None = None
    ) -> Callable[Q, T_co]: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> InvalidatingTool[P, T_co]: ...
