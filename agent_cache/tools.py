"""The decorators `AgentCache` and `AgentCacheInvalidator`; `invalidate`, `writing` and `bypass` for code around tools.

A decorator checks its options at once, and the function when it is applied. Then it settles the signature, the tags and
the policy, and generates the body of the decorated function (`engine.body`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import Token
from copy import copy as copy_of
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, cast, overload

from agent_cache.config import BlockOnly, checked_backup, checked_tier
from agent_cache.core.options import (
    DEFAULT_REMOTE,
    DEFAULT_STREAM_BYTES,
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
    checked_share,
    checked_text,
    checked_validation,
    count,
    seconds,
    takes,
)
from agent_cache.core.parameters import Parameters, PassedOn, parameters_of
from agent_cache.core.tags import ComputedTags, TagSet, parse_tag, root_of
from agent_cache.engine.blocking import blocking, run_blocking
from agent_cache.engine.body import read_body, stream_body, write_body
from agent_cache.engine.operation import CacheKey
from agent_cache.engine.read import ReadOperation
from agent_cache.engine.scope import PLACE, Scope, closes_generator, leave_scope
from agent_cache.engine.state import mark_written
from agent_cache.engine.streaming import StreamingRead, StreamingWrite
from agent_cache.engine.write import DOUBT, Outside, Write, WriteOperation
from agent_cache.errors import ConfigurationError
from agent_cache.metrics import METRICS
from agent_cache.tool_types import AsyncResult, CachedTool, InvalidatingTool, Later, Resource
from agent_cache.values.copies import copy_rule_named

if TYPE_CHECKING:
    from agent_cache.remote.versioned import Tier
else:
    Tier = Any  # for whoever resolves the hints at run time: the module of the class takes 3 ms

__all__ = ["AgentCache", "AgentCacheInvalidator", "bypass", "checked_tool", "invalidate", "invalidate_sync", "writing"]

P = ParamSpec("P")
R = TypeVar("R")

# What can be decorated


def checked_tool(function: Any, decorator: str) -> Callable[..., Any]:
    """Check the object passed to a decorator. Returns a function: for a `functools.partial`, one that calls it.

    Raises:
        TypeError: with the fix, if it cannot be decorated.
    """
    called = function.func if isinstance(function, functools.partial) else function
    called = called.__func__ if called is not function and inspect.ismethod(called) else called
    name = getattr(called, "__qualname__", None) or repr(called)
    closest = f"put @{decorator} closest to the `def` or `async def`, below all other decorators"
    if hasattr(called, "__fastmcp__"):
        raise TypeError(f"{decorator} was given {name}, which FastMCP has already registered without it; {closest}")
    if hasattr(called, "__agent_cache__"):
        raise TypeError(f"{decorator} cannot take {name}, which AgentCache or AgentCacheInvalidator decorates already")
    if not inspect.isfunction(called):
        kind = type(called).__name__
        raise TypeError(f"{decorator} takes functions, and {name} is a {kind}; {closest}, or on a `def` that calls it")
    if inspect.iscoroutinefunction(inspect.unwrap(called)) and _kind_of(called) == (True, False):
        raise TypeError(f"{decorator} was given {name}, a `def` whose result is to be awaited; {closest}")
    if called is function:
        return cast("Callable[..., Any]", function)

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    made: Any = functools.update_wrapper(call, called, ("__module__", "__name__", "__qualname__", "__doc__"), ())
    made.__signature__, made.__wrapped__ = inspect.signature(function), function
    return call


def _kind_of(function: Any) -> tuple[bool, bool]:
    """Whether a tool is no `async def`, and whether it is a generator."""
    is_stream = inspect.isasyncgenfunction(function)
    return not (is_stream or inspect.iscoroutinefunction(function)), is_stream or inspect.isgeneratorfunction(function)


# The decorators


class Decorator:
    """What both decorators have.

    Attributes:
        policy: the options, checked: a `ReadPolicy` or a `WritePolicy`.
        tiers: the tiers that it names, nearest first: ``backup`` and ``remote_cache``.
    """

    _resource: Resource
    _ignore: tuple[str, ...]
    _skip_args = 0
    _parse: Callable[[Any], Any] | None = None
    _is_by_name = False
    policy: Any
    tiers: tuple[Tier, ...]

    def _check(
        self, decorator: str, resource: Any, name: str | None, backup: Any, remote_cache: Any, ignore: Any, remote: Any
    ) -> tuple[str, RemotePolicy]:
        """Check these options. Returns how messages call the decorator, and the policy of its shared tier."""
        if not isinstance(resource, str | ComputedTags | Sequence):
            # Perhaps the decorator without parentheses: nothing would be decorated.
            given = getattr(resource, "__qualname__", None) or repr(resource)
            raise ConfigurationError(
                f"{decorator} was given {given} as resource; give it tags in parentheses, as in "
                f'@{decorator}("order:{{order_id}}")'
            )
        where = f"{decorator}({resource!r})"
        if name is not None:
            checked_text(name, f"{where}: name")
        if not isinstance(ignore, list | tuple) or not all(isinstance(one, str) for one in ignore):
            raise ConfigurationError(f'{where}: ignore must be names of parameters, as in ("ctx",); got {ignore!r}')
        if remote is not None and not isinstance(remote, RemotePolicy):
            raise ConfigurationError(f"{where}: remote must be a RemotePolicy(...), got {remote!r}")
        self._resource, self._name, self._ignore = resource, name, tuple(ignore)
        farthest = checked_tier(remote_cache, f"{where}: remote_cache")
        self.tiers = (*checked_backup(backup, f"{where}: backup"), *(() if farthest is None else (farthest,)))
        return where, DEFAULT_REMOTE if remote is None else remote

    def named(self, name: str) -> Self:
        """The same decorator for a tool of this name."""
        other = copy_of(self)
        other._name = name
        return other

    def by_name(self, parse: Callable[[Any], Any] | None) -> Self:
        """The same decorator for a tool that is called by its name: a write touches the whole root if an argument that
        a template names is null. Templates see what `parse` makes of the result.
        """
        other = copy_of(self)
        other._is_by_name, other._parse = True, parse
        return other

    def tags(self, parameters: Sequence[str], tool: str) -> TagSet:
        """The tags of a tool with these parameters. Raises as `TagSet.compile`."""
        tags = TagSet.compile(self._resource, parameters, tool)
        tags = tags.taking_null_for_all() if self._is_by_name else tags
        return tags if self._parse is None else tags.parsing(self._parse)

    def _decorate(self, function: Any) -> Any:
        is_read = isinstance(self, AgentCache)
        tool = checked_tool(function, "AgentCache" if is_read else "AgentCacheInvalidator")
        name = self._name if self._name is not None else f"{tool.__module__}:{tool.__qualname__}"
        parameters = parameters_of(tool, function, self._skip_args, name, self._ignore, is_read=is_read)
        is_sync, is_stream = _kind_of(function)
        reads, writes = (StreamingRead, StreamingWrite) if is_stream else (ReadOperation, WriteOperation)
        kind: Any = reads if is_read else writes
        tags, policy = self.tags(parameters.names, name), self.policy
        if isinstance(self, AgentCache):
            if not isinstance(parameters, PassedOn):
                _check_call(self.policy.key, parameters, f"{name}: key is called with")
                _check_call(self.policy.validate, parameters, f"{name}: validate is called with the result and", None)
            self._check_parameters(parameters, tags, name, is_stream=is_stream)
            if is_stream and self.policy.validate is not None:
                raise ConfigurationError(f"{name}: validate is for results, and the tool is a generator; leave it out")
            if is_sync:
                checked_function(self.policy.validate, f"{name}: validate of a `def`")
            if policy.key is not None:
                policy = replace(policy, key=tags.with_key(policy.key, parameters.bind))
            parameters.fields = [field for rule in tags.early for field in rule.arguments]
        operation = kind(tool, name, parameters, tags, policy, self.tiers, is_sync=is_sync)
        make_body: Any = stream_body if is_stream else read_body if is_read else write_body
        body = make_body(operation)
        body.resource, body.scope, body.__agent_cache__ = self._resource, self.policy.scope, operation
        if is_read:
            waited: Any = blocking if is_sync else lambda method: method
            body.invalidate, body.set = waited(operation.invalidate), waited(operation.set)
            body.fresh = body.refresh = operation.fresh if is_stream else waited(operation.fresh)
            for attribute in ("cache_key", "clear", "contains", "cache_info", "etag"):
                setattr(body, attribute, getattr(operation, attribute))
        return body


class AgentCache(Decorator):
    """Cache the results of a read tool until something that they depend on is written.

    Concurrent identical calls run the tool once in an event loop; those of a `def`, once in all threads. After a write
    tool with one of its tags has ended, no call that starts later gets a result that was loaded before. Errors are
    never cached.

    Args:
        resource: what the result depends on: a tag (``"cart"``), a template over the tool's parameters and its result
            (``"order:{order_id}"``, ``"user:{result[user_id]}"``), the result of `tags_from`, or a sequence of these.
        scope: ``"global"`` shares the results in the process; ``"session"`` keeps them in the innermost
            `AgentCacheSession`, and the tool runs uncached outside of one.
        ttl: seconds, or a `timedelta`, until a result expires, counted from the start of its load. None: never. A
            function ``ttl(result)`` returns the same for each result; one with 0 or less is not stored.
        maxsize: how many results are stored in each scope; the least recently used is evicted first. None: no bound.
        skip_args: how many leading positional parameters are left out of the identity (1 leaves ``self`` out, so that
            all instances share their results).
        ignore: names of parameters that are left out of the identity, of the loop guard's comparisons and of
            recordings. Known contexts are left out without it, but for what they say of the asker: see `shared`.
        backup: a tier between the local store and the remote one, or several, nearest first.
        remote_cache: a tier shared with other processes.
        key: ``key(*args, **kwargs)`` identifies a call, with its tags, instead of its arguments; None: not cached.
        vary: ``vary(arguments)`` or ``vary()`` is added to the identity: tenant, working directory, version. The
            mapping has all parameters, also contexts that the framework injects: nothing else of these counts then.
        shared: whether all users share the results, although the tool gets a context that may say who asks. Without
            it, and without `vary`, the fields of such a context that say who asks are added to the identity, and where
            they cannot be compared the call runs uncached.
        cache_if: ``cache_if(result)`` decides whether a result is stored, for example not if it says "Error: ...". A
            session's loop guard takes a result that is rejected for a failed call, unless the result is empty.
        copy: how a cached result is protected from callers that change it. ``"auto"`` shares what is immutable and
            copies the rest, ``"never"`` shares everything, a function makes the copies.
        loop: how a session's loop guard compares its calls: see `LoopHints`.
        uncacheable: for a call whose arguments have no identity: ``"bypass"`` runs it uncached and counts it;
            ``"raise"`` raises `UncacheableArgumentsError`.
        name: the identity of the tool instead of ``module:qualname``; for functions made in a loop or a factory.
        jitter: a fraction below 1. The life of each result is shortened by a random part of that fraction of its ttl.
        grace: seconds, or a `timedelta`, beyond its ttl in which a result is still returned, at once, while one call
            in the background loads it again. Also on the tier: see `RemotePolicy`.
        stale_if_error: seconds, or a `timedelta`, beyond its ttl in which a result is returned instead of an exception
            that the tool raises. From the local store only. Like `grace`, it never returns what a write has dropped.
        remote: how the shared tier is used: see `RemotePolicy`.
        inherit: whether a result also depends on what the decorated reads depend on that the tool makes: it is dropped
            with them, expires no later, and if one could not be cached, is cached only if the tool has a `ttl`. False:
            it depends on `resource` alone.
        audit: the share of its local hits that is checked, from 0 to 1: see `configure`. None: as configured there.
        max_stream_bytes: of a generator, how many bytes of chunks are kept in memory for callers that join and to be
            stored. A longer stream reaches its callers, and is not stored. None: 1,000,000.
        validate: ``validate(previous, *args, **kwargs)``, a `def`, or an `async def` for an asynchronous tool: whether
            an expired result still holds. It is asked before the tool would run: if so, the result lives for another
            ttl; else, and if it raises, the tool runs. It is asked neither across a write nor by `fresh`.
        validate_after: seconds, or a `timedelta`, after which `validate` is asked, and again so long after each time.
            None: after its `ttl`. With both, the tool runs again when its `ttl` has ended.
        version: of the tool's code, as ``"2"``: what another version has stored in a tier is not found.

    Raises:
        ConfigurationError: at decoration, naming the tool and the fix, if an option cannot work.
        TypeError: at decoration, if the decorated object cannot be: a class, a bound method, a framework's tool object.
    """

    def __init__(
        self,
        resource: Resource,
        scope: Literal["global", "session"] = "global",
        ttl: float | timedelta | Callable[[Any], float | timedelta | None] | None = None,
        maxsize: int | None = 128,
        skip_args: int = 0,
        backup: Tier | Sequence[Tier] | None = None,
        remote_cache: Tier | None = None,
        *,
        key: Callable[..., Any] | None = None,
        vary: Callable[[Mapping[str, Any]], Hashable] | Callable[[], Hashable] | None = None,
        cache_if: Callable[[Any], bool] | None = None,
        copy: Literal["auto", "never"] | Callable[[Any], Any] = "auto",
        uncacheable: Literal["bypass", "raise"] = "bypass",
        ignore: Sequence[str] = (),
        loop: LoopHints = NO_HINTS,
        name: str | None = None,
        jitter: float = 0.0,
        grace: float | timedelta = 0.0,
        stale_if_error: float | timedelta = 0.0,
        remote: RemotePolicy | None = None,
        inherit: bool = True,
        max_stream_bytes: int | None = None,
        audit: float | None = None,
        shared: bool = False,
        version: str | None = None,
        validate: Callable[..., Awaitable[bool] | bool] | None = None,
        validate_after: float | timedelta | None = None,
    ) -> None:
        where, remote = self._check("AgentCache", resource, name, backup, remote_cache, ignore, remote)
        self._skip_args = skip_args
        copy_rule = copy_rule_named(checked_function(copy, f"{where}: copy", 1) if callable(copy) else copy)
        if copy_rule is None:
            raise ConfigurationError(f"{where}: copy must be 'auto', 'never' or a function of one value, got {copy!r}")
        checked_flag(inherit, f"{where}: inherit")
        checked_flag(shared, f"{where}: shared")
        says_who = vary is not None and not getattr(vary, "is_of_process", False)
        if shared and says_who:
            raise ConfigurationError(f"{where}: vary says what of a context counts; leave out it, or shared=True")
        for option, given, *numbers in (("key", key), ("vary", vary, 0, 1), ("cache_if", cache_if, 1)):
            checked_function(given, f"{where}: {option}", *numbers)
        self._is_for_streams = max_stream_bytes is not None
        stream_bytes = DEFAULT_STREAM_BYTES if max_stream_bytes is None else max_stream_bytes
        life, lasts = checked_validation(validate, validate_after, checked_life(ttl, f"{where}: ttl"), where)
        self.policy = ReadPolicy(
            scope=checked_choice(scope, ("global", "session"), f"{where}: scope"),
            ttl=life,
            maxsize=None if maxsize is None else count(1, maxsize, f"{where}: maxsize (None for no bound)"),
            copy_rule=copy_rule,
            key=key,
            vary=vary,
            vary_takes_arguments=vary is not None and not takes(vary, 0),  # `ContextVar.get` would take a default
            cache_if=cache_if,
            heeds_contexts=not shared and not says_who,
            inherit=inherit,
            uncacheable=checked_choice(uncacheable, ("bypass", "raise"), f"{where}: uncacheable"),
            loop=checked_hints(loop, where, is_write=False),
            remote=remote.checked(where, scope=scope, is_read=True),
            jitter=checked_fraction(jitter, f"{where}: jitter"),
            grace=seconds(grace, f"{where}: grace", zero=True),
            stale_if_error=seconds(stale_if_error, f"{where}: stale_if_error", zero=True),
            max_stream_bytes=count(1, stream_bytes, f"{where}: max_stream_bytes"),
            audit=None if audit is None else checked_share(audit, f"{where}: audit"),
            version=None if version is None else checked_text(version, f"{where}: version"),
            validate=validate,
            lasts=lasts,
        ).checked(where)
        if scope == "session" and self.tiers and not remote.share:
            raise ConfigurationError(f"{where}: results of a session need remote=RemotePolicy(share=True) for a tier")

    @overload
    def __call__(  # type: ignore[overload-overlap]  # what an asynchronous tool returns is some result
        self, function: Callable[P, AsyncResult]
    ) -> CachedTool[P, AsyncResult, Later]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> CachedTool[P, R, bool]: ...
    def __call__(self, function: Any) -> Any:
        return self._decorate(function)

    def _check_parameters(self, parameters: Parameters, tags: TagSet, tool: str, *, is_stream: bool) -> None:
        """Check the options that depend on the parameters of a tool."""
        if self._is_for_streams and not is_stream:
            raise ConfigurationError(f"{tool}: max_stream_bytes is for generators; leave it out")
        if self.policy.vary is not None or self.policy.key is not None:
            return
        # A template over a parameter that does not identify a call would give an entry the tag of another call.
        skipped = dict.fromkeys(parameters.positional[: self._skip_args], "skip_args")
        shared = dict.fromkeys(() if self.policy.heeds_contexts else parameters.injected, "shared")
        left_out = shared | skipped | dict.fromkeys(self._ignore, "ignore")
        names = [field.name for rule in (*tags.early, *tags.late) for field in rule.arguments]
        if name := next(filter(left_out.__contains__, names), ""):
            raise ConfigurationError(
                f"{tool}: resource {self._resource!r} depends on {name!r}, which {left_out[name]}= leaves out of the "
                "identity; leave it in, or add vary="
            )


def _check_call(function: Callable[..., Any] | None, parameters: Parameters, what: str, *first: None) -> None:
    """Check that an option, if it is given, can be called with these, and then as the tool is."""
    surplus: dict[Any, Any] = {inspect.Parameter.VAR_POSITIONAL: (), inspect.Parameter.VAR_KEYWORD: {}}
    args, kwargs = parameters.split({one.name: surplus.get(one.kind) for one in parameters.all})
    try:
        if function is not None:
            inspect.signature(function).bind(*first, *args, **kwargs)
    except TypeError as error:
        raise ConfigurationError(f"{what} all arguments, {parameters.names}: {error}") from None
    except ValueError:  # a builtin that shows no signature
        return


class AgentCacheInvalidator(Decorator):
    """Drop the entries that a write tool makes stale: before it runs, and again when it has ended, however it ended.

    After the tool has returned, raised or been cancelled, no read that starts later gets a result that was loaded
    before. If a write was cancelled, or failed in a way that leaves its effect unknown, nothing under its tags is
    stored for `doubt` seconds.

    Args:
        resource: what the write touches, as for `AgentCache`. ``"order"`` covers every ``"order:..."``. A tag that
            depends on the result drops the whole root when the write fails: prefer ``tags_from(root, lambda arguments:
            ...)``, or name the harmless failures in `no_effect`.
        scope: ``"global"`` drops in every scope and tenant; ``"session"`` only in the current session and those
            around it.
        skip_args: must be 0. To drop single entries, use `key_fn`.
        ignore: names of parameters that are left out of the loop guard's comparisons and of recordings.
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
        shared: whether a recorded call answers all users, although the tool gets a context that may say who asks.
        remote: what happens while the shared tier cannot be reached: see `RemotePolicy`.

    Raises:
        ConfigurationError: at decoration, naming the tool and the fix, if an option cannot work.
        TypeError: at decoration, if the decorated object cannot be, as for `AgentCache`, or `skip_args` is not 0.
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
        ignore: Sequence[str] = (),
        loop: LoopHints = NO_HINTS,
        remote_cache: Tier | None = None,
        backup: Tier | Sequence[Tier] | None = None,
        name: str | None = None,
        remote: RemotePolicy | None = None,
        shared: bool = False,
    ) -> None:
        where, remote = self._check("AgentCacheInvalidator", resource, name, backup, remote_cache, ignore, remote)
        if skip_args != 0:
            raise TypeError(f"{where}: skip_args has no effect on a write; to drop single entries, use key_fn")
        checked_flag(clear_all, f"{where}: clear_all")
        checked_flag(shared, f"{where}: shared")
        if clear_all is not (key_fn is None):
            raise ConfigurationError(
                f"{where}: to drop single entries, give both clear_all=False and key_fn=lambda args, kwargs: "
                "tool.cache_key(...); else neither"
            )
        for option, given, number in (("key_fn", key_fn, 2), ("ok", ok, 1)):
            checked_function(given, f"{where}: {option}", number)
        self.policy = WritePolicy(
            scope=checked_choice(scope, ("global", "session"), f"{where}: scope"),
            settle=seconds(settle, f"{where}: settle", zero=True),
            doubt=seconds(doubt, f"{where}: doubt", zero=True),
            in_doubt=_exceptions(in_doubt, f"{where}: in_doubt"),
            no_effect=_exceptions(no_effect, f"{where}: no_effect"),
            ok=ok,
            key_fn=key_fn,
            heeds_contexts=not shared,
            loop=checked_hints(loop, where, is_write=True),
            remote=remote.checked(where, scope=scope, is_read=False),
        )

    def __call__(self, function: Callable[P, R]) -> InvalidatingTool[P, R]:
        decorated: InvalidatingTool[P, R] = self._decorate(function)
        return decorated


def _exceptions(given: Any, where: str) -> tuple[type[BaseException], ...]:
    classes = (given,) if isinstance(given, type) else tuple(given) if isinstance(given, Iterable) else (given,)
    if not all(isinstance(one, type) and issubclass(one, BaseException) for one in classes):
        raise ConfigurationError(f"{where} must be exception classes, got {given!r}")
    return classes


# Writes that are no tools


async def invalidate(*tags: str | Sequence[object]) -> None:
    """Drop everything that depends on these tags, in every scope and process. For changes made outside of the tools.

    Args:
        tags: ``"order:7"``, ``"order"`` for everything under it, or ``("order", "a:b")`` where an id may contain a
            colon. More than 2,000 at a time count as their roots. The local half is done in one step, 4 ms for 20,000:
            a caller that is cancelled must not have invalidated a part.

    Raises:
        ConfigurationError: if no tag is given, or one is malformed.
    """
    await _new_write(_parsed(tags, "invalidate"), "invalidate()", is_sync=False).complete()


def invalidate_sync(*tags: str | Sequence[object]) -> None:
    """The same as `invalidate` for code that is not asynchronous. It waits for the tiers in this thread."""
    run_blocking(_new_write(_parsed(tags, "invalidate_sync"), "invalidate_sync()", is_sync=True).complete())


def writing(*tags: str | Sequence[object]) -> _Writing:
    """Invalidate before and after a write that is not a tool, as `AgentCacheInvalidator` does for one.

    Args:
        tags: as for `invalidate`.

    Example: ``async with writing("order:7"): await database.execute(...)``, or, where nothing is asynchronous,
    ``with writing("order:7"): database.execute(...)``.

    Raises:
        ConfigurationError: if there is no tag, or one is malformed.
    """
    return _Writing(_parsed(tags, "writing"))


class _Writing(BlockOnly, AbstractAsyncContextManager[None], AbstractContextManager[None]):
    """What `writing` returns.

    A class, since `contextlib.asynccontextmanager` sets the traceback of the error that leaves the block, which an
    exception that is a frozen dataclass refuses.
    """

    __slots__ = ("_begun", "_tags")

    def __init__(self, tags: tuple[str, ...]) -> None:
        self._tags = tags

    async def __aenter__(self) -> None:
        self._begun = _new_write(self._tags, "a block of writing()", is_sync=False)
        await self._begun.begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await (self._begun.end(fills=self._begun.fills) if error is None else self._begun.fail(error))

    def __enter__(self) -> None:
        self._begun = write = _new_write(self._tags, "a block of writing()", is_sync=True)
        try:
            run_blocking(write.begin())
        except KeyboardInterrupt as interrupt:
            run_blocking(write.fail(interrupt))
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            run_blocking(self.__aexit__(kind, error, traceback))
        except KeyboardInterrupt as interrupt:
            run_blocking(self._begun.fail(error or interrupt))
            raise


def _new_write(tags: tuple[str, ...], what: str, *, is_sync: bool) -> Write:
    """A write of these tags that is no tool's. It is counted."""
    scope = PLACE.get().scope
    scope.check_write(what)
    roots = tuple(dict.fromkeys(map(root_of, tags)))
    for metrics in (METRICS, *(participant.metrics for participant in scope.participants)):
        metrics.invalidated(roots)
    mark_written(roots)
    return Write(Outside("writing " + ", ".join(roots), is_sync, roots), tags)


def _parsed(tags: tuple[str | Sequence[object], ...], function: str) -> tuple[str, ...]:
    if not tags:
        raise ConfigurationError(f"{function}() needs at least one tag, for example {function}('order:7')")
    return tuple(dict.fromkeys(map(parse_tag, tags)))


# Reads that are not cached


class _Bypass(BlockOnly):
    """A block of `bypass`."""

    _entered: tuple[Scope, Scope, Token[Scope]] | None = None

    def __enter__(self) -> Self:
        if self._entered is not None:
            raise ConfigurationError("bypass: this block is already entered; call bypass() again for another `with`")
        outer = PLACE.get().scope
        scope = outer if outer.bypasses else outer.variant(bypasses=True)
        self._entered = scope, outer, scope.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entered, self._entered = self._entered, None
        if entered is not None:
            leave_scope(*entered, is_closing=closes_generator(error))


def bypass() -> _Bypass:
    """Run the reads of this task uncached inside a block.

    Example: ``with bypass(): await get_order("7")``, or ``async with``.

    Every read inside runs its tool: nothing is looked up, stored, or shared with other callers, and it is counted as
    uncached. Writes invalidate as ever, sessions trace, count and check for loops, recordings record and replay. Child
    tasks and `asyncio.to_thread` that are started inside belong to the block. For the whole process there is
    ``configure(enabled=False)``. `AsyncCache` is not concerned. Blocks may be nested; to enter one that is entered
    already raises `ConfigurationError`.
    """
    return _Bypass()
