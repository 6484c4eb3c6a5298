"""The options of tools: checks of single values, and the frozen policies that a decorator makes of them.

Each check raises `ConfigurationError` with the name of the option, so that a mistake fails at decoration.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import wraps
from typing import Any, Final, Literal, TypeVar

from agent_cache.errors import ConfigurationError
from agent_cache.values.copies import CopyRule

__all__ = [
    "DEFAULT_STREAM_BYTES",
    "ReadPolicy",
    "RemotePolicy",
    "Scope",
    "Value",
    "WritePolicy",
    "checked_choice",
    "checked_flag",
    "checked_fraction",
    "checked_function",
    "checked_life",
    "checked_share",
    "checked_text",
    "configures",
    "count",
    "no_life",
    "plain_result",
    "refresh_window",
    "seconds",
    "LoopHints",
    "NO_HINTS",
    "checked_hints",
]


C = TypeVar("C", bound=Callable[..., Any])


def configures(called: C) -> C:
    """Let a class or a function raise `ConfigurationError` for arguments that it does not have, or lacks: a decorator.

    Its signature stays its own, for type checkers and for `inspect.signature`.
    """
    name = called.__name__
    function: Any = called.__init__ if isinstance(called, type) else called  # type: ignore[misc]  # that of this class

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # it comes from inside
            known = [one for one in inspect.signature(function).parameters if one != "self"]
            problem = str(error).partition("() ")[2]
            raise ConfigurationError(f"{name} {problem}; its arguments are: {', '.join(known)}") from error

    if not isinstance(called, type):
        return checked  # type: ignore[return-value]  # it is called alike
    called.__init__ = checked  # type: ignore[misc]  # likewise
    return called


_SHORTEST_LOAD = 0.01
"""Seconds. A shorter load costs less than the messages that it would take to share it at the last moment."""

_LONGEST = 1e15
"""30 million years. A longer duration is a mistake, and may be more than a float can hold."""


def refresh_window(cost: float, life: float) -> float:
    """Seconds before the end of a result's life in which one process of a fleet loads it again.

    Each process lets its local copy expire at a random moment of it, and the first one to ask the tier then reloads the
    value while the others still have theirs: see "XFetch" (Vattani, Chierichetti, Lowenstein: Optimal Probabilistic
    Cache Stampede Prevention, VLDB 2015), here with moments that are equally likely, and a claim on the tier. The time
    of four loads leaves the first of two processes that of one in 15 of 16 cases, and that of eight nearly always.

    Args:
        cost: seconds that its load took.
        life: seconds that it lives altogether. At most a fifth of them is given away.
    """
    window, longest = 4.0 * cost if cost > _SHORTEST_LOAD else 4.0 * _SHORTEST_LOAD, life / 5
    if window > longest:  # `min` and `max` would take 0.27 us in place of 0.09, of each hit of a tier
        return longest
    return window


def seconds(value: Any, what: str, *, zero: bool = False) -> float:
    """Check a duration, and return it in seconds.

    Args:
        zero: whether 0 is allowed.

    Raises:
        ConfigurationError: if it is not seconds or a `timedelta`, not finite, negative, or 0 where that is not allowed.
    """
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ConfigurationError(f"{what} must be seconds or a timedelta, got {value!r}")
    if not (number > 0 or (zero and number == 0)) or number > _LONGEST:
        bound = "0 or more" if zero else "more than 0"
        hint = "" if zero else "; leave it out (None) for what never expires"
        raise ConfigurationError(f"{what} must be {bound} seconds, got {value!r}{hint}")
    return float(number)


def checked_life(value: Any, what: str) -> float | Callable[[Any], Any] | None:
    """Check a ``ttl=`` option: a duration, None, or a plain function of the result."""
    if value is None or not callable(value):
        return None if value is None else seconds(value, what)
    checked_function(value, what)
    life: Callable[[Any], Any] = value
    return life


def no_life(_result: Any) -> float:
    """The ``ttl`` of a tool whose results are never stored."""
    return 0.0


def checked_fraction(value: Any, what: str) -> float:
    """Check for a number of at least 0 and below 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ConfigurationError(f"{what} must be a number from 0 to below 1, got {value!r}")
    return float(value)


def checked_share(value: Any, what: str) -> float:
    """Check for a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ConfigurationError(f"{what} must be a share of the hits, a number from 0 to 1, got {value!r}")
    return float(value)


def plain_result(value: Any, what: str) -> Any:
    """What a function has returned.

    Raises:
        ConfigurationError: if that is a coroutine.
    """
    if inspect.iscoroutine(value):
        value.close()
        raise ConfigurationError(f"{what} has returned a coroutine, but its result is needed at once")
    return value


def checked_function(value: Any, what: str) -> None:
    """Check for a plain function or None.

    A coroutine function is refused: the coroutine that it returns is true, and hashable by address, so that the mistake
    would not show.
    """
    if value is None:
        return
    if not callable(value):
        raise ConfigurationError(f"{what} must be a function, got {value!r}")
    if inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(type(value).__call__):
        raise ConfigurationError(
            f"{what} must be a plain function, because its result is needed at once; got an `async def`"
        )


def checked_choice(value: Any, choices: tuple[str, ...], what: str, or_else: str = "") -> Any:
    """Check for one of a few words."""
    if value not in choices:
        allowed = f"one of {', '.join(map(repr, choices))}{f', or {or_else}' if or_else else ''}"
        raise ConfigurationError(f"{what} must be {allowed}, got {value!r}")
    return value


def checked_flag(value: Any, what: str) -> None:
    """Check for True or False. A value such as ``"off"``, which is true, is refused."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"{what} must be True or False, got {value!r}")


def checked_text(value: Any, what: str) -> None:
    """Check for a str that is not empty."""
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{what} must be a str that is not empty, got {value!r}")


def count(bound: int, value: Any, what: str) -> int:
    """Check for an int of `bound` or more.

    Raises:
        ConfigurationError: if it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < bound:
        raise ConfigurationError(f"{what} must be an int of {bound} or more, got {value!r}")
    return value


# The policies


class Value:
    """Equality and hash of a frozen dataclass by its fields, with ``eq=False`` and ``slots=True``.

    `dataclass` would compile both anew for each class, which is half of what it adds to the time of an import.
    """

    __slots__: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Value) or other.__class__ is not self.__class__:
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def _values(self) -> tuple[Any, ...]:
        return tuple([getattr(self, name) for name in self.__slots__])


Scope = Literal["global", "session"]


@configures
@dataclass(frozen=True, slots=True, eq=False)
class LoopHints(Value):
    """How the loop detector of a session compares the calls of a tool: ``loop=LoopHints(...)`` on either decorator.

    Args:
        loop_key: ``loop_key(arguments)`` identifies a call, instead of all its arguments: leave out request ids and
            timestamps. `arguments` maps parameter names to values.
        outcome_key: ``outcome_key(result)`` is compared, instead of the whole result: leave out timestamps and ids.
        poll: the tool is called again and again on purpose. Only `max_unchanged` applies, and no cycle includes it.
        max_unchanged: how often in a row a poll may have one outcome; the call that reaches this number is acted upon.
            None: any number.
        off: its calls are not checked. A new successful write still ends the epoch; on a write, the two functions
            decide what is new.

    Raises:
        ConfigurationError: for `max_unchanged` without `poll`, or below 2, and for `off` with `poll`; at decoration,
            for a write with `poll` and without `max_unchanged`, and for a read with `off` and one of the functions.
    """

    loop_key: Callable[[Mapping[str, Any]], Hashable] | None = None
    outcome_key: Callable[[Any], Any] | None = None
    poll: bool = False
    max_unchanged: int | None = None
    off: bool = False

    def __post_init__(self) -> None:
        checked_function(self.loop_key, "LoopHints: loop_key")
        checked_function(self.outcome_key, "LoopHints: outcome_key")
        for name in ("poll", "off"):
            checked_flag(getattr(self, name), f"LoopHints: {name}")
        if self.max_unchanged is not None:
            count(2, self.max_unchanged, "LoopHints: max_unchanged")
            if not self.poll:
                raise ConfigurationError("LoopHints: max_unchanged limits a poll; add poll=True")
        if self.off and self.poll:
            raise ConfigurationError(
                "LoopHints: off=True switches the loop checks off, so poll=True has no effect; leave one out"
            )


NO_HINTS: Final = LoopHints()


def checked_hints(given: Any, where: str, *, is_write: bool) -> LoopHints:
    """Check a ``loop=`` option. A write that could be repeated for ever is refused."""
    if not isinstance(given, LoopHints):
        raise ConfigurationError(f"{where}: loop must be LoopHints(...), got {given!r}")
    if is_write and given.poll and given.max_unchanged is None:
        raise ConfigurationError(
            f"{where}: loop=LoopHints(poll=True) on a write needs max_unchanged=..., or it could be repeated for ever"
        )
    if not is_write and given.off and (given.loop_key is not None or given.outcome_key is not None):
        raise ConfigurationError(
            f"{where}: a read with loop=LoopHints(off=True) is not checked, so loop_key and outcome_key "
            "have no effect; leave them out"
        )
    return given


@configures
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RemotePolicy(Value):
    """How a tool uses the tier that it shares with other processes: ``remote=RemotePolicy(...)``.

    Args:
        grace: for a read: seconds, or a `timedelta`, beyond its ttl that a result may be served while one process
            loads it again. Not across a write: a write drops what it touches at any age.
        consistency: for a read: ``"bounded"`` serves local copies for as long as the tier's `max_staleness` allows;
            ``"strong"`` asks for the versions at every hit, in one round trip, and keeps no local copy. It covers the
            writes that reached the tier: give their tools ``on_unreachable="refuse"``.
        on_unreachable: for a write while the tier cannot be reached: ``"run"`` it and send its invalidation as soon as
            possible, or ``"refuse"`` it with `RemoteTierError` before its side effect.
        share: for a read with ``scope="session"``: store its results in the tier too, under the session's id, so that a
            session that is resumed in another process finds them.
        flight: for a read: ``"process"`` lets each process that misses a result load it; ``"fleet"`` has one of them
            load it, whatever the miss is due to, while the others wait until it is stored. A process that dies is
            replaced within the tier's `lease`, and whoever waits can be cancelled at any time. An error is not handed
            over: another process tries. It costs a miss two more round trips, so it is for loads that take longer.

    Raises:
        ConfigurationError: if an argument has another value.
    """

    grace: float | timedelta = 0.0
    consistency: Literal["bounded", "strong"] = "bounded"
    on_unreachable: Literal["run", "refuse"] = "run"
    share: bool = False
    flight: Literal["process", "fleet"] = "process"

    def __post_init__(self) -> None:
        object.__setattr__(self, "grace", seconds(self.grace, "RemotePolicy: grace", zero=True))
        checked_choice(self.consistency, ("bounded", "strong"), "RemotePolicy: consistency")
        checked_choice(self.on_unreachable, ("run", "refuse"), "RemotePolicy: on_unreachable")
        checked_choice(self.flight, ("process", "fleet"), "RemotePolicy: flight")
        if not isinstance(self.share, bool):
            raise ConfigurationError(f"RemotePolicy: share must be True or False, got {self.share!r}")

    @property
    def is_strong(self) -> bool:
        """Whether every hit asks the tier."""
        return self.consistency == "strong"

    @property
    def shares_loads(self) -> bool:
        """Whether one process of a fleet loads what several miss."""
        return self.flight == "fleet"

    def checked(self, where: str, *, scope: Scope, is_read: bool) -> RemotePolicy:
        """Refuse options that have no effect on a tool.

        Raises:
            ConfigurationError: naming the option and the fix.
        """
        if is_read and self.on_unreachable != "run":
            raise ConfigurationError(
                f"{where}: remote: on_unreachable is for writes; leave it out, since a read whose tier cannot be "
                "reached runs its tool"
            )
        if not is_read and (self.grace or self.share or self.is_strong or self.shares_loads):
            raise ConfigurationError(
                f"{where}: remote: grace, consistency, share and flight are for reads; give them to the tools that read"
            )
        if self.share and scope != "session":
            raise ConfigurationError(
                f"{where}: remote: share is for scope='session'; leave it out, global results are shared anyway"
            )
        if is_read and scope == "session" and not self.share and (self.grace or self.is_strong or self.shares_loads):
            raise ConfigurationError(
                f"{where}: remote: results of a session do not leave the process; add share=True, or leave out grace, "
                "consistency and flight"
            )
        return self


DEFAULT_REMOTE: Final = RemotePolicy()


DEFAULT_STREAM_BYTES: Final = 1_000_000
"""The default of ``max_stream_bytes=``, and the bound for streaming write tools."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ReadPolicy:
    """How the results of a read tool are cached. See `AgentCache` for each field.

    Attributes:
        heeds_contexts: whether what injected contexts say of the asker is part of the key.
        bound: of a `ttl` that is a function: seconds that no result outlives, whatever it returns; None for no bound.
        kept_for: seconds beyond its expiry for which a result may still be served, by `grace` or `stale_if_error`.
        life_varies: whether results of one tool live for different times, by a `ttl` that is a function or by `jitter`.
        longest_ttl: the bound of a result's life that is known before it is loaded; None if there is none.
    """

    scope: Scope
    ttl: float | Callable[[Any], Any] | None
    maxsize: int | None
    copy_rule: CopyRule
    key: Callable[..., Any] | None
    vary: Callable[..., Hashable] | None
    vary_takes_arguments: bool
    cache_if: Callable[[Any], bool] | None
    uncacheable: Literal["bypass", "raise"]
    heeds_contexts: bool = True
    inherit: bool = True
    loop: LoopHints = NO_HINTS
    remote: RemotePolicy = DEFAULT_REMOTE
    jitter: float = 0.0
    grace: float = 0.0
    stale_if_error: float = 0.0
    max_stream_bytes: int = DEFAULT_STREAM_BYTES
    audit: float | None = None
    bound: float | None = None
    kept_for: float = field(init=False)
    life_varies: bool = field(init=False)
    longest_ttl: float | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kept_for", max(self.grace, self.stale_if_error))
        object.__setattr__(self, "life_varies", callable(self.ttl) or self.jitter > 0)
        object.__setattr__(self, "longest_ttl", self.bound if callable(self.ttl) else self.ttl)

    def with_ttl(self, ttl: float | None) -> ReadPolicy:
        """The policy with a ttl that was set at run time; the same for None.

        A `ttl` that is a function stays, with this as its bound: it may forbid to store a result.
        """
        if ttl is None:
            return self
        return replace(self, bound=ttl) if callable(self.ttl) else replace(self, ttl=ttl)

    def life_of(self, result: Any, random: Callable[[], float]) -> float | None:
        """Seconds that a result may live; None for ever; 0 or less if it must not be stored.

        Args:
            random: gives a number from 0 to below 1, for `jitter`.

        Raises:
            ConfigurationError: if the function given as `ttl` returned anything but a duration or None.
            Exception: what that function raises.
        """
        life: Any = self.ttl(result) if callable(self.ttl) else self.ttl
        if life is None:
            life = self.bound
        if life is None:
            return None
        number = life.total_seconds() if isinstance(life, timedelta) else life
        if isinstance(number, int | float) and not isinstance(number, bool) and number <= 0:
            return 0.0
        number = seconds(number, "a ttl")
        if self.bound is not None and number > self.bound:
            number = self.bound
        return number * (1.0 - random() * self.jitter if self.jitter else 1.0)

    def checked(self, where: str) -> ReadPolicy:
        """Refuse options that have no effect together.

        Raises:
            ConfigurationError: naming the option and the fix.
        """
        for option in ("jitter", "grace", "stale_if_error"):
            if getattr(self, option) and self.ttl is None:
                raise ConfigurationError(f"{where}: {option} has no effect on what never expires; add ttl=...")
        if self.grace and self.remote.grace:
            raise ConfigurationError(
                f"{where}: grace is given twice; leave it out of RemotePolicy, where it is for the tier alone"
            )
        if self.audit and self.remote.is_strong:
            raise ConfigurationError(
                f"{where}: audit has no effect with consistency='strong', which keeps no local copy; leave one "
                "of them out"
            )
        if self.stale_if_error and self.remote.is_strong:
            raise ConfigurationError(
                f"{where}: stale_if_error has no effect with consistency='strong', which keeps no local copy; leave "
                "one of them out"
            )
        return self


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class WritePolicy:
    """How a write tool invalidates, and what its failures mean. See `AgentCacheInvalidator` for each field."""

    scope: Scope
    settle: float
    doubt: float
    in_doubt: tuple[type[BaseException], ...]
    no_effect: tuple[type[BaseException], ...]
    ok: Callable[[Any], bool] | None
    key_fn: Callable[..., Any] | None
    heeds_contexts: bool = True
    loop: LoopHints = NO_HINTS
    remote: RemotePolicy = DEFAULT_REMOTE

    def leaves_in_doubt(self, error: BaseException) -> bool:
        """Whether a write that ended with this error may still take effect in the system that it called.

        A cancelled write may. So may a write whose exception is, or has in its cause or context chain, a
        `TimeoutError`, an `OSError` or a class named by ``in_doubt=``. Any other `Exception` means that it failed.
        """
        if not isinstance(error, Exception):
            return True
        pending: list[BaseException | None] = [error]
        seen: set[int] = set()
        while pending:
            link = pending.pop()
            if link is None or id(link) in seen:
                continue
            seen.add(id(link))
            if not isinstance(link, Exception) or isinstance(link, (TimeoutError, OSError, *self.in_doubt)):
                return True
            pending += [link.__cause__, link.__context__]
            if isinstance(link, BaseExceptionGroup):
                pending += link.exceptions
        return False
