"""Process-wide settings: `configure`, and the configuration in force.

The configuration in force is a base, changed by plain calls of `configure`, and on top of it one layer for each `with`
block, in the order in which the blocks were entered.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from types import EllipsisType as Unchanged
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar, cast

from agent_cache.core.options import checked_flag, checked_function, checked_share, count, is_asynchronous
from agent_cache.errors import ConfigurationError

if TYPE_CHECKING:
    from agent_cache.remote.versioned import Tier
else:
    Tier = Any  # for whoever resolves the hints at run time: the module of the class takes 3 ms

__all__ = ["BlockOnly", "configure"]

T_co = TypeVar("T_co", covariant=True)

Middleware = Callable[[Any, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""``async def observe(call, proceed)``: given an `agent_cache.ToolCall`, and what runs the rest of the call."""


class Installed:
    """A middleware as one call of `configure` has installed it, and its name in messages."""

    def __init__(self, function: Middleware) -> None:
        self.function = function
        self.name = f"{function.__module__}:{getattr(function, '__qualname__', type(function).__qualname__)}"
        self.observed = {False, True}

    def observes(self, *, is_sync: bool) -> bool:
        """Whether it observes tools that are a `def`, or those that are an `async def`."""
        return is_sync in self.observed


@dataclass(frozen=True, slots=True, eq=False)
class Configuration:
    """Process-wide settings. See `configure`."""

    remote: Tier | None = None
    backup: tuple[Tier, ...] = ()
    enabled: bool = True
    max_bytes: int | None = None
    middleware: tuple[Installed, ...] = ()
    audit: float = 0.0
    on_stale: Callable[[Any], object] | None = None

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The tiers behind the local store, nearest first."""
        return self.backup if self.remote is None else (*self.backup, self.remote)

    def has_tiers_of(self, other: Configuration) -> bool:
        """Whether the tiers are the same. They are not compared by ``==``, which may be their class's own."""
        return len(self.tiers) == len(other.tiers) and all(map(is_, self.tiers, other.tiers))

    def middleware_of(self, *, is_sync: bool) -> tuple[Installed, ...]:
        """The middleware that observe tools of this kind, outermost first."""
        return tuple(one for one in self.middleware if one.observes(is_sync=is_sync))


class Current:
    """The configuration in force, and what it is made of.

    Each change is one assignment: a garbage collection may leave a block between any two steps, of this thread as well.

    Attributes:
        value: the configuration in force. Another object at each change: what depends on it is made again.
        listeners: functions called with the old and the new one after a change, without the lock.
        lock: taken around changes. The engine puts that of the versions here: a block may be left while it is held.
        once_configured: every tier that was ever configured, weakly. Replaced by a new tuple when it grows.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.listeners: list[Callable[[Configuration, Configuration], None]] = []
        self.once_configured: tuple[weakref.ref[Tier], ...] = ()
        self.base: tuple[tuple[weakref.ref[Change], Mapping[str, Any]], ...] = ()  # what plain calls have set, in order
        self.layers: tuple[Change, ...] = ()
        self._instrumentation: tuple[Installed, ...] = ()
        self._updates = 0
        self.value = self._combined()

    def save(self) -> tuple[Any, ...]:
        """Return everything that is set, for `restore`."""
        with self.lock:
            return self.base, self.layers, self._instrumentation, self.once_configured

    def restore(self, saved: tuple[Any, ...] = ((), (), (), ())) -> None:
        """Set everything as it was saved, or the defaults. Blocks that were left meanwhile stay left."""
        with self.lock:
            self.base, self.layers, self._instrumentation, self.once_configured = saved
        self.update()

    def instrument(self, function: Middleware | None) -> None:
        """Set the middleware of instrumentation, which stands outside of those that the program configures."""
        self._instrumentation = () if function is None else (Installed(function),)
        self.update()

    def remove(self, middleware: Installed, *, is_sync: bool) -> bool:
        """Let a middleware observe tools of this kind no more. Returns whether it did."""
        with self.lock:
            did = middleware.observes(is_sync=is_sync)
            middleware.observed.discard(is_sync)
        if did:
            self.update()
        return did

    def tiers_once_configured(self) -> list[Tier]:
        """Every tier that was ever configured and still exists."""
        return [tier for known in self.once_configured if (tier := known()) is not None]

    def configured_tiers(self) -> list[Tier]:
        """The tiers that the base or any layer names, also those that another layer hides."""
        named = [*(settings for _, settings in self.base), *(one.settings for one in self.layers)]
        nearer = [tier for settings in named for tier in settings.get("backup", ())]
        return nearer + [tier for settings in named if (tier := settings.get("remote")) is not None]

    def update(self) -> None:
        """Put in force what is set."""
        with self.lock:
            self._updates += 1
            seen, old, new = 0, self.value, self.value
            while seen != self._updates:  # another update within this one, by a garbage collection
                seen = self._updates
                self.base = tuple([one for one in self.base if (change := one[0]()) is None or change.is_plain])
                self.layers = tuple(one for one in self.layers if one.is_entered)
                self.value = new = self._combined()
            known = self.tiers_once_configured()
            for tier in self.configured_tiers():
                if all(tier is not one for one in known):
                    known.append(tier)
                    self.once_configured = tuple(map(weakref.ref, known))
        for listener in self.listeners:
            listener(old, new)

    def settle(self, _gone: object) -> None:
        """Make one of settings that follow each other and that nobody can take back any more."""
        with self.lock:
            base = list(self.base[:1])
            for change, settings in self.base[1:]:
                if change() is base[-1][0]() is None:
                    base[-1] = change, {**base[-1][1], **settings}
                else:
                    base.append((change, settings))
            self.base = tuple(base)

    def _combined(self) -> Configuration:
        settings = dict[str, Any]()
        for one in (*(settings for _, settings in self.base), *(layer.settings for layer in self.layers)):
            settings.update(one)
        settings["middleware"] = self._instrumentation + settings.get("middleware", ())
        word = os.environ.get("AGENT_CACHE_ENABLED", "").strip().lower()
        if word in {"0", "false", "no", "off"}:
            settings["enabled"] = False
        elif word not in {"", "1", "true", "yes", "on"}:  # who meant to switch the cache off would not notice
            raise ConfigurationError(f"the environment variable AGENT_CACHE_ENABLED must be 0 or 1, got {word!r}")
        return Configuration(**settings)


class _Enters(Protocol[T_co]):
    def __enter__(self) -> T_co: ...
    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> None: ...


class BlockOnly:
    """What is for ``with`` and ``async with``. As a decorator of an `async def` it would be left before that runs."""

    __slots__ = ()

    async def __aenter__(self: _Enters[T_co]) -> T_co:
        return self.__enter__()

    async def __aexit__(self: _Enters[Any], kind: Any, error: Any, trace: Any, /) -> None:
        self.__exit__(kind, error, trace)

    if not TYPE_CHECKING:

        def __call__(self, *_args, **_kwargs):  # noqa: D102 - for nobody
            raise ConfigurationError("this is no decorator: use it by `with` or `async with` inside of the function")


class Change(BlockOnly):
    """One call of `configure`. As a context manager it is a layer on top of the others until it is left, and may be
    entered again then. Left without having been entered, it is taken back; leaving it again does nothing.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self.is_plain, self.is_entered = True, False
        with CURRENT.lock:
            CURRENT.base = (*CURRENT.base, (weakref.ref(self, CURRENT.settle), settings))
        CURRENT.update()

    def __enter__(self) -> Self:
        with CURRENT.lock:
            if self.is_entered:
                raise ConfigurationError("configure: this block is already entered; call configure(...) for another")
            self.is_entered = True
            CURRENT.layers = (*CURRENT.layers, self)
        CURRENT.update()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_plain = self.is_entered = False
        CURRENT.update()


def configure(
    *,
    remote: Tier | Unchanged | None = ...,
    backup: Tier | Sequence[Tier] | Unchanged | None = ...,
    enabled: bool | Unchanged = ...,
    max_bytes: int | Unchanged | None = ...,
    middleware: Sequence[Middleware] | Unchanged = ...,
    audit: float | Unchanged = ...,
    on_stale: Callable[[Any], object] | Unchanged | None = ...,
) -> Change:
    """Change what tools use by default, also those that are decorated already. What is left out stays as it is.

    A plain call changes the process from now on. A ``with`` block changes it until the block is left: each block is a
    layer over the plain calls and the blocks entered before it, and takes only its own settings away, in whatever order
    overlapping blocks are left. Either concerns all tasks and threads; for the calls of one task there is `bypass`.

    A write invalidates in every tier that was ever configured and still exists, whatever is configured when it runs.
    A change of `remote` or `backup` drops all local entries.

    Args:
        remote: the tier behind the local store of every global tool without a `remote_cache=` of its own; None: none.
        backup: the tier between the two, or several, nearest first, for every global tool without a `backup=` or
            `remote_cache=` of its own; None: none.
        enabled: False switches all caching off: tools run, sessions trace and count, writes still invalidate. The
            environment variable ``AGENT_CACHE_ENABLED=0`` does the same and wins. It is 0, 1 or left out.
        max_bytes: bound on the estimated size of everything stored locally from now on: values, keys and tags; None: no
            bound. The largest store evicts first. An answer that is larger than the bound alone is not stored.
        middleware: what observes the calls of tools that no local hit has answered, outermost first: each an
            ``async def observe(call, proceed)``, given an `agent_cache.ToolCall`. Its ``await proceed()`` runs the rest
            of the call, whose outcome the caller gets; where ``call.is_sync``, it awaits nothing else. One that raises
            an `Exception` of its own is removed and logged.
        audit: the share of the local hits, from 0 to 1, of tools without an ``audit=`` of their own, but for those of a
            `Toolbox`, that is checked: the tool runs again beside the hit, and the two results are compared.
        on_stale: called with an `agent_cache.StaleHit` for each stale hit, in the event loop or thread of its audit.
    """
    given = zip(_CHECKS.items(), (remote, backup, enabled, max_bytes, middleware, audit, on_stale), strict=True)
    return Change({name: check(value, f"configure: {name}") for (name, check), value in given if value is not ...})


def checked_tier(tier: Any, where: str) -> Tier | None:
    """Check a tier."""
    if tier is not None and not hasattr(tier, "trust"):
        raise ConfigurationError(
            f"{where} must be a tier: a FileTier, a RedisTier, a MemoryTier, or a VersionedTier over a Backend; "
            f"got {type(tier).__qualname__}"
        )
    library = type(threading.Lock()).__module__.partition(".")[0]
    if tier is not None and library in ("gevent", "eventlet"):
        raise ConfigurationError(
            f"{where}: a tier works in a thread of its own, and {library} has replaced the threads of this process; "
            "use workers that are threads or processes, or keep the cache in memory"
        )
    return cast("Tier | None", tier)


def checked_backup(tiers: Any, where: str) -> tuple[Tier, ...]:
    """Check the tiers in front of another one: a tier, several of them nearest first, or None."""
    several = tiers if isinstance(tiers, list | tuple) else (tiers,)
    return tuple([tier for each in several if (tier := checked_tier(each, where)) is not None])


def _checked_middleware(given: Any, what: str) -> tuple[Installed, ...]:
    """Check middleware: a sequence of `async def` functions."""
    if not isinstance(given, Sequence) or not all(map(is_asynchronous, given)):
        raise ConfigurationError(f"{what} must be a sequence of `async def observe(call, proceed)`, got {given!r}")
    return tuple(map(Installed, given))


_CHECKS: Final[Mapping[str, Callable[[Any, str], Any]]] = {
    "remote": checked_tier,
    "backup": checked_backup,
    "enabled": checked_flag,
    "max_bytes": lambda value, what: None if value is None else count(1, value, what),
    "middleware": _checked_middleware,
    "audit": checked_share,
    "on_stale": checked_function,
}
CURRENT = Current()
