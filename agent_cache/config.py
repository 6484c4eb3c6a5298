"""Process-wide settings: `configure`, and the configuration in force.

The configuration in force is a base, changed by plain calls of `configure`, and on top of it one layer for each `with`
block, in the order in which the blocks were entered. Each of these holds only the settings that it was given, so blocks
that overlap, of two requests for example, may be left in any order.
"""

from __future__ import annotations

import inspect
import os
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from agent_cache.core.policies import checked_function, checked_share, configures
from agent_cache.errors import ConfigurationError

if TYPE_CHECKING:
    from agent_cache.remote.protocol import Tier
else:
    Tier = Any  # for whoever resolves the hints at run time: the module of the class takes 3 ms

__all__ = [
    "CURRENT",
    "UNCHANGED",
    "Change",
    "Configuration",
    "Installed",
    "Middleware",
    "Plain",
    "Saved",
    "Unchanged",
    "checked_tier",
    "configure",
]


class Unchanged(Enum):
    """The type of `UNCHANGED`. An enum, so that type checkers tell it from every setting."""

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED
"""The default of every argument of `configure`: the setting stays as it is."""


Middleware = Callable[[Any, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""``async def observe(call, proceed)``: given an `agent_cache.ToolCall`, and what runs the rest of the call."""


class Installed:
    """A middleware as one call of `configure` has installed it.

    Attributes:
        function: the middleware.
        name: how messages call it.
    """

    __slots__ = ("_kinds", "function", "name")

    def __init__(self, function: Middleware) -> None:
        self.function = function
        self.name = f"{function.__module__}:{getattr(function, '__qualname__', type(function).__qualname__)}"
        self._kinds = {False, True}

    def observes(self, *, is_sync: bool) -> bool:
        """Whether it observes tools that are a `def`, or those that are an `async def`."""
        return is_sync in self._kinds

    def remove(self, *, is_sync: bool) -> bool:
        """Let it observe tools of this kind no more. Returns whether it did."""
        was_there = is_sync in self._kinds
        self._kinds.discard(is_sync)
        return was_there


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Configuration:
    """Process-wide settings. See `configure`."""

    remote: Tier | None = None
    backup: Tier | None = None
    enabled: bool = True
    max_bytes: int | None = None
    middleware: tuple[Installed, ...] = ()
    audit: float = 0.0
    on_stale: Callable[[Any], object] | None = None

    def has_tiers_of(self, other: Configuration) -> bool:
        """Whether the tiers are the same."""
        return self.remote is other.remote and self.backup is other.backup

    def is_same(self, other: Configuration) -> bool:
        """Whether every setting is the same. Tiers are not compared with ``==``, which may be their class's own."""
        return (
            self.remote is other.remote
            and self.backup is other.backup
            and self.enabled == other.enabled
            and self.max_bytes == other.max_bytes
            and self.middleware == other.middleware
            and self.audit == other.audit
            and self.on_stale is other.on_stale
        )

    def middleware_of(self, *, is_sync: bool) -> tuple[Installed, ...]:
        """The middleware that observe tools of this kind, outermost first."""
        return tuple(one for one in self.middleware if one.observes(is_sync=is_sync))


Settings = Mapping[str, Any]
"""Names and values of the settings that a call of `configure` was given."""


class Plain(NamedTuple):
    """A plain call: its `Change` as long as somebody has it, and its settings."""

    change: weakref.ref[Change] | None
    settings: Settings

    def is_final(self) -> bool:
        """Whether nobody can enter or leave it any more."""
        return self.change is None or self.change() is None


class Saved(NamedTuple):
    """Everything that `configure` has set. See `Current.save`."""

    base: tuple[Plain, ...]
    layers: tuple[Change, ...]
    once_configured: tuple[weakref.ref[Tier], ...]
    installed: tuple[Installed, ...]


class Current:
    """The configuration in force, and what it is made of.

    Attributes:
        value: the configuration in force. Another object at each change of a setting.
        listeners: functions called with the old and the new one after a change, without the lock.
        lock: taken around changes. `engine.state` puts the ledger's lock here: one for both, as a garbage collection
            may leave a block while either is held.
        once_configured: every tier that was ever configured, weakly. Replaced by a new tuple when it grows.
    """

    __slots__ = (
        "_base",
        "_installed",
        "_is_updating",
        "_layers",
        "_pending",
        "listeners",
        "lock",
        "once_configured",
        "value",
    )

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.listeners: list[Callable[[Configuration, Configuration], None]] = []
        self._base: tuple[Plain, ...] = ()
        self._layers: tuple[Change, ...] = ()
        self._installed: tuple[Installed, ...] = ()
        self._pending: deque[Callable[[], None]] = deque()
        self._is_updating = False
        self.once_configured: tuple[weakref.ref[Tier], ...] = ()
        self.value = self._combined()

    # Changes

    def set(self, change: Change) -> None:
        """Change the base."""
        self._update(lambda: self._add_to_base(change))

    def enter(self, change: Change) -> None:
        """Take a change out of the base, if it is there, and make it the topmost layer.

        Raises:
            ConfigurationError: if it is a layer already.
        """
        with self.lock:
            if change.is_entered:
                raise ConfigurationError(
                    "configure: this block is already entered; call configure(...) again for another `with`"
                )
            change.is_entered = True
        self._update(lambda: self._add_layer(change))

    def leave(self, change: Change) -> None:
        """Take a change away, wherever it is."""
        change.is_entered = False
        self._update(lambda: self._remove(change))

    def save(self) -> Saved:
        """Return everything that is set, for `restore`."""
        with self.lock:
            return Saved(self._base, self._layers, self.once_configured, self._installed)

    def restore(self, saved: Saved) -> None:
        """Set everything as it was saved. Blocks that were left meanwhile stay left. Every plan is compiled anew."""
        self._update(lambda: self._restore(saved), is_same_new=True)

    def reset(self) -> None:
        """Set the default configuration. A block that is left later changes nothing."""
        self.restore(Saved((), (), (), ()))

    def compile_anew(self) -> None:
        """Let every plan be compiled again, because of something that it depends on beside the settings."""
        self._update(lambda: None, is_same_new=True)

    # Middleware

    def install(self, function: Middleware) -> None:
        """Install a middleware outside of those that `configure` sets, and of those that were installed before.

        Nothing happens if it is there. For instrumentation, which must not replace what the program has configured.

        Raises:
            ConfigurationError: if it is no middleware.
        """
        one = checked_middleware((function,), "middleware")[0]
        self._update(lambda: self._install(one))

    def uninstall(self, function: Middleware) -> None:
        """Undo `install`. Nothing happens if it is not there."""
        self._update(lambda: self._uninstall(function))

    def remove(self, middleware: Installed, *, is_sync: bool) -> bool:
        """Let a middleware observe tools of this kind no more. Returns whether it did."""
        with self.lock:
            if not middleware.remove(is_sync=is_sync):
                return False
        self.compile_anew()
        return True

    def _install(self, one: Installed) -> None:
        if all(one.function != other.function for other in self._installed):
            self._installed = (one, *self._installed)

    def _uninstall(self, function: Middleware) -> None:
        self._installed = tuple(one for one in self._installed if one.function != function)

    # Tiers

    def tiers_once_configured(self) -> list[Tier]:
        """Every tier that was ever configured and still exists."""
        return [tier for reference in self.once_configured if (tier := reference()) is not None]

    def configured_tiers(self) -> list[Tier]:
        """The tiers that the base or any layer names, also those that another one hides."""
        base, layers = self._base, self._layers
        settings = [*(plain.settings for plain in base), *(layer.settings for layer in layers)]
        return [tier for each in settings for tier in _tiers_of(each)]

    # One change at a time

    def _update(self, change: Callable[[], None], *, is_same_new: bool = False) -> None:
        """Make a change and put the configuration that follows from it in force.

        Args:
            is_same_new: also a configuration with the same settings is a new one.
        """
        with self.lock:
            self._pending.append(change)
            if self._is_updating:
                return  # a garbage collection within an update of this thread, which makes this change as well
            self._is_updating = True
            garbage = self._base, self._layers  # freed after the lock: the last reference to a tier may be in it
            while self._pending:
                self._pending.popleft()()
            old, new = self.value, self._combined()
            if new.is_same(old) and not is_same_new:
                new = old
            self.value = new
            self._is_updating = False
        if new is not old:
            for listener in self.listeners:
                listener(old, new)
        del garbage

    def _add_to_base(self, change: Change) -> None:
        self._note_tiers(change.settings)
        reference = weakref.ref(change, lambda _: self._update(self._merge))
        self._base = (*self._base, Plain(reference, change.settings))

    def _add_layer(self, change: Change) -> None:
        self._remove(change)
        self._note_tiers(change.settings)
        self._layers = (*self._layers, change)

    def _remove(self, change: Change) -> None:
        self._base = tuple(plain for plain in self._base if plain.change is None or plain.change() is not change)
        self._layers = tuple(layer for layer in self._layers if layer is not change)
        self._merge()

    def _restore(self, saved: Saved) -> None:
        self._base = saved.base
        self._layers = tuple(layer for layer in saved.layers if layer.is_entered)
        self.once_configured = saved.once_configured
        self._installed = saved.installed
        self._merge()

    def _merge(self) -> None:
        """Merge neighbouring plain calls that are final, so that the base does not grow with every call."""
        merged: list[Plain] = []
        for plain in self._base:
            if not plain.is_final():
                merged.append(plain)
            elif merged and merged[-1].change is None:
                merged[-1] = Plain(None, {**merged[-1].settings, **plain.settings})
            else:
                merged.append(Plain(None, plain.settings))
        self._base = tuple(merged)

    def _note_tiers(self, settings: Settings) -> None:
        known = self.tiers_once_configured()
        new = [tier for tier in _tiers_of(settings) if not any(tier is one for one in known)]
        if new:
            self.once_configured = tuple(weakref.ref(tier) for tier in (*known, *new))

    def _combined(self) -> Configuration:
        settings: dict[str, Any] = {}
        for plain in self._base:
            settings.update(plain.settings)
        for layer in self._layers:
            settings.update(layer.settings)
        settings["enabled"] = settings.get("enabled", True) and _enabled_by_environment()
        settings["middleware"] = self._installed + settings.get("middleware", ())
        return Configuration(**settings)


class Change:
    """One call of `configure`. As a context manager it is a layer on top of the others until it is left.

    It may be left and entered again, but not entered twice at a time. Left without having been entered, it is taken
    back; leaving it again does nothing.

    Attributes:
        settings: the settings that it changes.
        is_entered: whether it is a layer now.
    """

    __slots__ = ("__weakref__", "is_entered", "settings")

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.is_entered = False

    def __enter__(self) -> Self:
        CURRENT.enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        CURRENT.leave(self)


@configures
def configure(
    *,
    remote: Tier | Unchanged | None = UNCHANGED,
    backup: Tier | Unchanged | None = UNCHANGED,
    enabled: bool | Unchanged = UNCHANGED,
    max_bytes: int | Unchanged | None = UNCHANGED,
    middleware: Sequence[Middleware] | Unchanged = UNCHANGED,
    audit: float | Unchanged = UNCHANGED,
    on_stale: Callable[[Any], object] | Unchanged | None = UNCHANGED,
) -> Change:
    """Change what tools use by default, also those that are decorated already. What is left out stays as it is.

    A plain call changes the process from now on. A ``with`` block changes it until the block is left: each block is a
    layer over the plain calls and the blocks entered before it, and takes only its own settings away, in whatever order
    overlapping blocks are left. Either concerns all tasks and threads; for the calls of one task there is `bypass`.

    A write invalidates in every tier that was ever configured and still exists, whatever is configured when it runs.
    A change of `remote` or `backup` drops all local entries.

    Args:
        remote: the tier behind the local store of every global tool without a `remote_cache=` of its own; None for
            none, the default.
        backup: the tier between the two, for every global tool without a `backup=` of its own; None for none, the
            default.
        enabled: False switches all caching off: tools run, sessions trace and count, writes still invalidate. The
            environment variable ``AGENT_CACHE_ENABLED=0`` does the same and wins.
        max_bytes: bound on the estimated size of everything stored locally from now on: values, keys and tags; None for
            no bound, the default. The largest store evicts first. An answer that is larger than the bound alone is not
            stored.
        middleware: what observes the calls of tools that no local hit has answered, outermost first: each an
            ``async def observe(call, proceed)``, given an `agent_cache.ToolCall`. ``await proceed()`` runs the rest of
            the call, and gives its result or raises its error. What the tool does is untouched: it runs once, and its
            caller gets its outcome, whatever a middleware returns. One that raises an `Exception` of its own is removed
            and logged; any other exception, such as a cancellation or `SystemExit`, ends the call. Of a tool that is a
            `def` there is no event loop: await nothing but ``proceed()`` where ``call.is_sync``. An empty tuple for
            none, the default.
        audit: the share of the local hits that is checked, from 0, the default, to 1: the tool runs again beside the
            hit, without delaying it, and the two results are compared. For tools without an ``audit=`` of their own,
            but for those of a `Toolbox`.
        on_stale: a function called with an `agent_cache.StaleHit` for each hit that was found to be stale; None for
            none, the default. It is called in the event loop or in the thread of the audit.

    Returns:
        A context manager: ``with configure(enabled=False): ...``

    Raises:
        ConfigurationError: if a tier is not a `Tier`, `max_bytes` is not a positive int, or a middleware is not an
            `async def` of two arguments, `audit` is no share, or `on_stale` is no plain function; on entering a
            block that is already entered.
    """
    settings: dict[str, Any] = {}
    if middleware is not UNCHANGED:
        settings["middleware"] = checked_middleware(middleware, "configure: middleware")
    if audit is not UNCHANGED:
        settings["audit"] = checked_share(audit, "configure: audit")
    if on_stale is not UNCHANGED:
        checked_function(on_stale, "configure: on_stale")
        settings["on_stale"] = on_stale
    if max_bytes is not UNCHANGED:
        if max_bytes is not None and (isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 1):
            raise ConfigurationError(f"configure: max_bytes must be a positive int or None, got {max_bytes!r}")
        settings["max_bytes"] = max_bytes
    if enabled is not UNCHANGED:
        if not isinstance(enabled, bool):
            raise ConfigurationError(f"configure: enabled must be True or False, got {enabled!r}")
        settings["enabled"] = enabled
    if remote is not UNCHANGED:
        settings["remote"] = checked_tier(remote, "configure: remote")
    if backup is not UNCHANGED:
        settings["backup"] = checked_tier(backup, "configure: backup")
    change = Change(settings)
    CURRENT.set(change)
    return change


def checked_tier(tier: Any, where: str) -> Tier | None:
    """Check a tier. The error names the methods that it lacks."""
    if tier is None:
        return None
    from agent_cache.remote.protocol import Tier  # needed with tiers alone, as in `engine.tiers`: 3 ms

    if isinstance(tier, Tier):
        kind = type(tier)
        if not kind.__weakrefoffset__:
            raise ConfigurationError(f"{where} cannot be used: {kind.__qualname__} has no __weakref__ slot; add one")
        if kind.__hash__ is None:
            raise ConfigurationError(
                f"{where} cannot be used: {kind.__qualname__} has no hash; add one (a dataclass: eq=False)"
            )
        return tier
    wanted = ("lease", "lookup", "store", "discard", "begin", "renew", "commit", "trusted_until", "subscribe", "aclose")
    lacking = [name for name in wanted if not hasattr(tier, name)]
    raise ConfigurationError(f"{where} must be a Tier; {type(tier).__qualname__} has no {', '.join(lacking)}")


def checked_middleware(given: Any, where: str) -> tuple[Installed, ...]:
    """Check middleware. Each is to be an `async def` that can be called with two arguments."""
    if callable(given) or isinstance(given, str | bytes) or not isinstance(given, Sequence):
        hint = "; write middleware=(observe,)" if callable(given) else "; () for none"
        raise ConfigurationError(f"{where} must be a sequence of functions, got {given!r}{hint}")
    seen: list[Any] = []
    for one in given:
        _check_middleware(one, where)
        if any(one is other for other in seen):
            raise ConfigurationError(f"{where} has {one!r} twice, which would observe each call twice; once is enough")
        seen.append(one)
    return tuple(Installed(one) for one in seen)


def _check_middleware(function: Any, where: str) -> None:
    shape = "an `async def observe(call, proceed)`"
    if not callable(function) or isinstance(function, type):
        raise ConfigurationError(f"{where} must be {shape}, got {function!r}")
    if not (inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)):
        raise ConfigurationError(
            f"{where} must be {shape}, got {function!r}, which is none; an `async def` observes tools that are "
            "a `def`, too, if it awaits nothing but proceed() there"
        )
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        raise ConfigurationError(f"{where} must be {shape}; {function!r} cannot be called so: {error}") from error
    except ValueError:
        pass  # without a signature it may well take them


def _tiers_of(settings: Settings) -> list[Tier]:
    """The tiers that these settings name, nearest first."""
    return [tier for name in ("backup", "remote") if (tier := settings.get(name)) is not None]


def _enabled_by_environment() -> bool:
    return os.environ.get("AGENT_CACHE_ENABLED", "1").strip().lower() not in {"0", "false", "no", "off"}


CURRENT = Current()
