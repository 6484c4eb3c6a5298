"""How type checkers see decorated tools. At run time each is a plain function.

A tool that is an `async def` and one that is a `def` differ in what their call and some of their attributes return. So
there are two types of each, and `T` stands for what a call returns where one serves for both.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, overload

from agent_cache.core.tags import ComputedTags
from agent_cache.engine.operation import CacheKey
from agent_cache.engine.read import CacheInfo, ReadOperation
from agent_cache.engine.write import WriteOperation

if TYPE_CHECKING:
    from types import CoroutineType
else:
    CoroutineType = Coroutine  # the class itself takes no parameters before 3.13

__all__ = [
    "AnyFunction",
    "CachedClassMethod",
    "CachedMethod",
    "CachedTool",
    "ClassMethodFunction",
    "InvalidatingClassMethod",
    "InvalidatingMethod",
    "InvalidatingTool",
    "MethodFunction",
    "Resource",
    "StreamingMethod",
    "StreamingTool",
    "SyncCachedClassMethod",
    "SyncCachedMethod",
    "SyncCachedTool",
    "SyncInvalidatingMethod",
    "SyncInvalidatingTool",
]

I_co = TypeVar("I_co", bound=AsyncIterable[Any], covariant=True)
P = ParamSpec("P")
Q = ParamSpec("Q")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
S_contra = TypeVar("S_contra", contravariant=True)
T_co = TypeVar("T_co", covariant=True)

Resource = str | ComputedTags | Sequence[str | ComputedTags]
"""A tag, a template over the tool's parameters and its result, the result of `tags_from`, or several of these."""


# Functions that are decorated


class MethodFunction(Protocol[S_contra, P, T_co]):
    """A function whose first parameter is called ``self``."""

    def __call__(_, self: S_contra, *args: P.args, **kwargs: P.kwargs) -> T_co: ...  # noqa: N805 - of the function


class ClassMethodFunction(Protocol[S_contra, P, T_co]):
    """A function whose first parameter is called ``cls``."""

    def __call__(_, cls: S_contra, *args: P.args, **kwargs: P.kwargs) -> T_co: ...  # noqa: N805 - of the function


class AnyFunction(Protocol[T_co]):
    """A function of unknown parameters: `Callable[..., T]`. No written signature is like this one."""

    def __call__(
        self, a: MarkerArgument, b: MarkerArgument, c: MarkerArgument, /, *, marker: MarkerArgument
    ) -> T_co: ...


class MarkerArgument(Protocol):
    """An argument that no tool takes, unless it takes any."""

    def is_marker(self) -> None: ...


class Method(Protocol[P, T_co]):
    """A decorated method as pyright compares it with another one: of a subclass, or of a protocol.

    The first overload is what a subclass's plain method must agree with, the second lets it pass for the bound method
    of a protocol, whose parameters are not compared.
    """

    @overload
    def __call__(self, receiver: Any, /, *args: P.args, **kwargs: P.kwargs) -> T_co: ...
    @overload
    def __call__(self, *args: Any, **kwargs: Any) -> T_co: ...


# Reads


class ToolAttributes(Protocol[P]):
    """What a tool decorated with `AgentCache` has beside its call, whether it is an `async def` or not."""

    __agent_cache__: ReadOperation
    __name__: str
    __qualname__: str

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

    def clear(self) -> int:
        """Drop all local results of this tool, in every scope. Returns how many there were."""
        ...

    def contains(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Whether this call, made here and now, would be answered from the local store. It counts as no use."""
        ...

    def cache_info(self) -> CacheInfo:
        """Hits, misses, ``maxsize`` and the number of entries, as `functools.lru_cache` gives them."""
        ...


class CachedAttributes(ToolAttributes[P], Protocol[P, R_co]):
    """What an `async def` has beside its call."""

    @property
    def __wrapped__(self) -> Callable[P, Coroutine[Any, Any, R_co]]: ...

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


class CachedTool(CachedAttributes[P, R_co], Protocol[P, R_co]):
    """A tool decorated with `AgentCache`: a coroutine function with the tool's own signature, and a few attributes.

    For a method the attributes are reached through the class, with the instance as first argument:
    ``await Shop.get_order.invalidate(shop, "7")``. They raise `TypeError` without it, so also after
    ``shop.get_order.``, which does not pass ``shop``.
    """

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]: ...
    @overload
    def __get__(
        self: ClassMethodFunction[S, Q, Coroutine[Any, Any, R_co]], instance: None, owner: type[Any] | None = None
    ) -> BoundTool[Concatenate[S, Q], Q, R_co]: ...
    @overload
    def __get__(
        self: ClassMethodFunction[S, Q, Coroutine[Any, Any, R_co]], instance: object, owner: type[Any] | None = None
    ) -> Callable[Q, Coroutine[Any, Any, R_co]]: ...
    @overload
    def __get__(
        self: MethodFunction[S, Q, Coroutine[Any, Any, R_co]], instance: None, owner: type[Any] | None = None
    ) -> CachedTool[P, R_co]: ...
    @overload
    def __get__(
        self: MethodFunction[S, Q, Coroutine[Any, Any, R_co]], instance: object, owner: type[Any] | None = None
    ) -> Callable[Q, Coroutine[Any, Any, R_co]]: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> CachedTool[P, R_co]: ...


class BoundTool(CachedAttributes[P, R_co], Protocol[P, Q, R_co]):
    """A class method decorated with `AgentCache`: only its call knows the class."""

    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> Coroutine[Any, Any, R_co]: ...


class CachedMethod(Method[P, CoroutineType[Any, Any, R_co]], Protocol[S_co, P, R_co]):
    """A method decorated with `AgentCache`, in the body of its class."""

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> CachedTool[Concatenate[S_co, P], R_co]: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> Callable[P, Coroutine[Any, Any, R_co]]: ...


class CachedClassMethod(Method[P, CoroutineType[Any, Any, R_co]], Protocol[S_co, P, R_co]):
    """A class method decorated with `AgentCache`, in the body of its class."""

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> BoundTool[Concatenate[S_co, P], P, R_co]: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> Callable[P, Coroutine[Any, Any, R_co]]: ...


class SyncCachedAttributes(ToolAttributes[P], Protocol[P, R_co]):
    """The same of a `def`: these run in the calling thread."""

    @property
    def __wrapped__(self) -> Callable[P, R_co]: ...

    def invalidate(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Drop the cached result of one call, in every scope. Returns whether there was one."""
        ...

    def fresh(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the tool, even if its result is cached; store the new result and return it."""
        ...

    def refresh(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """The same as `fresh`."""
        ...

    def set(self, value: Any, /, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Store a result that the caller has: see `CachedAttributes.set`."""
        ...


class SyncCachedTool(SyncCachedAttributes[P, R_co], Protocol[P, R_co]):
    """A tool decorated with `AgentCache`: a `def`, with the tool's own signature and a few attributes.

    For a method the attributes are reached through the class, with the instance as first argument:
    ``Shop.get_order.invalidate(shop, "7")``. They raise `TypeError` without it, so also after
    ``shop.get_order.``, which does not pass ``shop``.
    """

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    @overload
    def __get__(
        self: ClassMethodFunction[S, Q, R_co], instance: None, owner: type[Any] | None = None
    ) -> SyncBoundTool[Concatenate[S, Q], Q, R_co]: ...
    @overload
    def __get__(
        self: ClassMethodFunction[S, Q, R_co], instance: object, owner: type[Any] | None = None
    ) -> Callable[Q, R_co]: ...
    @overload
    def __get__(
        self: MethodFunction[S, Q, R_co], instance: None, owner: type[Any] | None = None
    ) -> SyncCachedTool[P, R_co]: ...
    @overload
    def __get__(
        self: MethodFunction[S, Q, R_co], instance: object, owner: type[Any] | None = None
    ) -> Callable[Q, R_co]: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> SyncCachedTool[P, R_co]: ...


class SyncBoundTool(SyncCachedAttributes[P, R_co], Protocol[P, Q, R_co]):
    """A class method decorated with `AgentCache`: only its call knows the class."""

    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> R_co: ...


class SyncCachedMethod(Method[P, R_co], Protocol[S_co, P, R_co]):
    """A method decorated with `AgentCache`, in the body of its class."""

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> SyncCachedTool[Concatenate[S_co, P], R_co]: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> Callable[P, R_co]: ...


class SyncCachedClassMethod(Method[P, R_co], Protocol[S_co, P, R_co]):
    """A class method decorated with `AgentCache`, in the body of its class."""

    @overload
    def __get__(
        self, instance: None, owner: type[Any] | None = None
    ) -> SyncBoundTool[Concatenate[S_co, P], P, R_co]: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> Callable[P, R_co]: ...


class StreamAttributes(ToolAttributes[P], Protocol[P, I_co]):
    """What an async generator function has beside its call. That of a plain one are those of a `def`."""

    @property
    def __wrapped__(self) -> Callable[P, I_co]: ...

    async def invalidate(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Drop the stored stream of one call, in every scope. Returns whether there was one."""
        ...

    def fresh(self, *args: P.args, **kwargs: P.kwargs) -> I_co:
        """Run the tool, even if its stream is stored; store the new one."""
        ...

    def refresh(self, *args: P.args, **kwargs: P.kwargs) -> I_co:
        """The same as `fresh`."""
        ...

    async def set(self, value: Iterable[Any], /, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Store the chunks of a stream that the caller has: see `CachedAttributes.set`."""
        ...


class StreamingTool(StreamAttributes[P, I_co], Protocol[P, I_co]):
    """An async generator function decorated with `AgentCache`, with the tool's own signature and a few attributes."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> I_co: ...
    @overload
    def __get__(
        self: MethodFunction[S, Q, I_co], instance: None, owner: type[Any] | None = None
    ) -> StreamingTool[P, I_co]: ...
    @overload
    def __get__(
        self: MethodFunction[S, Q, I_co], instance: object, owner: type[Any] | None = None
    ) -> Callable[Q, I_co]: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> StreamingTool[P, I_co]: ...


class StreamingMethod(Method[P, I_co], Protocol[S_co, P, I_co]):
    """An async generator method decorated with `AgentCache`, in the body of its class."""

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> StreamingTool[Concatenate[S_co, P], I_co]: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> Callable[P, I_co]: ...


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
        self: ClassMethodFunction[S, Q, Coroutine[Any, Any, R_co]], instance: object, owner: type[Any] | None = None
    ) -> Callable[Q, Coroutine[Any, Any, R_co]]: ...
    @overload
    def __get__(
        self: MethodFunction[S, Q, Coroutine[Any, Any, R_co]], instance: None, owner: type[Any] | None = None
    ) -> InvalidatingTool[P, R_co]: ...
    @overload
    def __get__(
        self: MethodFunction[S, Q, Coroutine[Any, Any, R_co]], instance: object, owner: type[Any] | None = None
    ) -> Callable[Q, Coroutine[Any, Any, R_co]]: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> InvalidatingTool[P, R_co]: ...


class InvalidatingMethod(Method[P, CoroutineType[Any, Any, R_co]], Protocol[S_co, P, R_co]):
    """A method decorated with `AgentCacheInvalidator`, in the body of its class."""

    @overload
    def __get__(
        self, instance: None, owner: type[Any] | None = None
    ) -> InvalidatingTool[Concatenate[S_co, P], R_co]: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> Callable[P, Coroutine[Any, Any, R_co]]: ...


class InvalidatingClassMethod(Method[P, T_co], Protocol[P, T_co]):
    """A class method decorated with `AgentCacheInvalidator`, in the body of its class."""

    def __get__(self, instance: object, owner: type[Any] | None = None) -> Callable[P, T_co]: ...


class SyncInvalidatingTool(Protocol[P, R_co]):
    """A tool decorated with `AgentCacheInvalidator`: a `def` with the tool's own signature."""

    __agent_cache__: WriteOperation
    __name__: str
    __qualname__: str

    @property
    def __wrapped__(self) -> Callable[P, R_co]: ...
    @property
    def resource(self) -> Resource: ...
    @property
    def scope(self) -> Literal["global", "session"]: ...
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    @overload
    def __get__(
        self: ClassMethodFunction[S, Q, R_co], instance: object, owner: type[Any] | None = None
    ) -> Callable[Q, R_co]: ...
    @overload
    def __get__(
        self: MethodFunction[S, Q, R_co], instance: None, owner: type[Any] | None = None
    ) -> SyncInvalidatingTool[P, R_co]: ...
    @overload
    def __get__(
        self: MethodFunction[S, Q, R_co], instance: object, owner: type[Any] | None = None
    ) -> Callable[Q, R_co]: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> SyncInvalidatingTool[P, R_co]: ...


class SyncInvalidatingMethod(Method[P, R_co], Protocol[S_co, P, R_co]):
    """A method decorated with `AgentCacheInvalidator`, in the body of its class."""

    @overload
    def __get__(
        self, instance: None, owner: type[Any] | None = None
    ) -> SyncInvalidatingTool[Concatenate[S_co, P], R_co]: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> Callable[P, R_co]: ...
