"""The options of tools: checks of single values, and the frozen policies that a decorator makes of them.

Each check returns the value as it is used, or raises `ConfigurationError` with the name of the option, `what`, so that
a mistake fails at decoration.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from math import inf
from typing import Any, Final, Literal

from agent_cache.errors import ConfigurationError
from agent_cache.values.copies import CopyRule

# Checks of one value


def _refused(what: str, wanted: str, value: Any) -> ConfigurationError:
    return ConfigurationError(f"{what} must be {wanted}, got {value!r}")


def _check(is_valid: Callable[[Any], bool], wanted: str) -> Callable[[Any, str], Any]:
    def checked(value: Any, what: str) -> Any:
        if not is_valid(value):
            raise _refused(what, wanted, value)
        return value

    return checked


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


checked_flag = _check(lambda value: isinstance(value, bool), "True or False")
checked_text = _check(lambda value: isinstance(value, str) and value != "", "a str that is not empty")
checked_fraction = _check(lambda value: _is_number(value) and 0 <= value < 1, "a number from 0 to below 1")
checked_share = _check(lambda value: _is_number(value) and 0 <= value <= 1, "a share of the hits, a number from 0 to 1")


def seconds(value: Any, what: str, *, zero: bool = False) -> float:
    """Check for seconds or a `timedelta`: finite, and more than 0, or with `zero` 0 or more. Returns seconds."""
    number: Any = value.total_seconds() if isinstance(value, timedelta) else value
    if not _is_number(number):
        raise _refused(what, "seconds or a timedelta", value)
    # A longer one than 30 million years is a mistake, and may be more than a float can hold.
    if not (number > 0 or (zero and number == 0)) or number > 1e15:
        raise _refused(what, "0 or more seconds" if zero else "more than 0 seconds, or left out (None)", value)
    return float(number)


def count(bound: int, value: Any, what: str) -> int:
    """Check for an int of `bound` or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < bound:
        raise _refused(what, f"an int of {bound} or more", value)
    return value


def checked_choice(value: Any, choices: tuple[str, ...], what: str, or_else: str = "") -> Any:
    """Check for one of a few words."""
    if value not in choices:
        raise _refused(what, f"one of {', '.join(map(repr, choices))}{or_else and f', or {or_else}'}", value)
    return value


def is_asynchronous(value: Any) -> bool:
    """Whether this is an `async def`, or an object whose call is one."""
    return inspect.iscoroutinefunction(value) or (callable(value) and inspect.iscoroutinefunction(type(value).__call__))


def takes(function: Callable[..., Any], number: int) -> bool:
    """Whether a function can be called with so many arguments. Of a builtin that shows nothing of it: with some."""
    try:
        inspect.signature(function).bind(*[None] * number)
    except (TypeError, ValueError) as error:
        return isinstance(error, ValueError) and number > 0
    return True


def checked_function(value: Any, what: str, *numbers: int) -> Any:
    """Check for a plain function of one of these numbers of arguments, or None: the coroutine of another is true."""
    if value is None:
        return None
    if not callable(value):
        raise _refused(what, "a function", value)
    if is_asynchronous(value):
        raise ConfigurationError(f"{what} must be a plain function, whose result is there at once; got an `async def`")
    if numbers and not any(takes(value, number) for number in numbers):
        raise ConfigurationError(f"{what} must be a function of {numbers[-1]} argument(s), got {value!r}")
    return value


def plain_result(value: Any, what: str) -> Any:
    """Check that a function has returned no coroutine."""
    if inspect.iscoroutine(value):
        value.close()
        raise ConfigurationError(f"{what} has returned a coroutine, but its result is needed at once")
    return value


def checked_life(value: Any, what: str) -> float | Callable[[Any], Any] | None:
    """Check a ``ttl=`` option: a duration, None, or a plain function of the result."""
    return checked_function(value, what, 1) if value is None or callable(value) else seconds(value, what)


def checked_validation(
    validate: Any, after: Any, ttl: float | Callable[[Any], Any] | None, where: str
) -> tuple[float | Callable[[Any], Any] | None, float | None]:
    """Check ``validate=`` and ``validate_after=``.

    Returns:
        After how long a result is asked about, else its ttl; and after how long since its load the tool runs again.
    """
    if validate is not None and not callable(validate):
        raise _refused(f"{where}: validate", "a function", validate)
    if after is None:
        return ttl, None
    after = seconds(after, f"{where}: validate_after")
    if validate is None:
        raise ConfigurationError(f"{where}: validate_after has no effect without validate=; leave it out")
    if callable(ttl) or (ttl is not None and ttl <= after):
        raise ConfigurationError(f"{where}: validate_after must be less than ttl, of seconds or None; got {after!r}")
    return after, ttl


def no_life(_result: Any) -> float:
    """The ``ttl`` of a tool whose results are never stored."""
    return 0.0


# The policies

Scope = Literal["global", "session"]


@dataclass(frozen=True, slots=True)
class LoopHints:
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
    """

    loop_key: Callable[[Mapping[str, Any]], Hashable] | None = None
    outcome_key: Callable[[Any], Any] | None = None
    poll: bool = False
    max_unchanged: int | None = None
    off: bool = False

    def __post_init__(self) -> None:
        checked_function(self.loop_key, "LoopHints: loop_key", 1)
        checked_function(self.outcome_key, "LoopHints: outcome_key", 1)
        checked_flag(self.poll, "LoopHints: poll")
        checked_flag(self.off, "LoopHints: off")
        if self.max_unchanged is not None:
            count(2, self.max_unchanged, "LoopHints: max_unchanged")
            if not self.poll:
                raise ConfigurationError("LoopHints: max_unchanged limits a poll; add poll=True")
        if self.off and self.poll:
            raise ConfigurationError("LoopHints: off=True switches the checks off, poll=True with them; leave one out")


NO_HINTS: Final = LoopHints()


def checked_hints(given: Any, where: str, *, is_write: bool) -> LoopHints:
    """Check a ``loop=`` option. A write that could be repeated for ever is refused."""
    if not isinstance(given, LoopHints):
        raise _refused(f"{where}: loop", "LoopHints(...)", given)
    if is_write and given.poll and given.max_unchanged is None:
        raise ConfigurationError(f"{where}: loop: a poll that writes could go on for ever; add max_unchanged=...")
    if not is_write and given.off and (given.loop_key is not None or given.outcome_key is not None):
        raise ConfigurationError(f"{where}: loop: off=True checks no read; leave out loop_key and outcome_key")
    return given


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePolicy:
    """How a tool uses the tier that it shares with other processes: ``remote=RemotePolicy(...)``.

    Args:
        grace: for a read: seconds, or a `timedelta`, beyond its ttl that a result may be served while one process
            loads it again. Not across a write: a write drops what it touches at any age.
        consistency: for a read: ``"bounded"`` serves local copies for as long as the tier's `max_staleness` allows;
            ``"strong"`` asks the tier at every call, keeps no local copy, and joins no running load. It covers the
            writes that reached the tier: give their tools ``on_unreachable="refuse"``.
        on_unreachable: for a write while the tier cannot be reached: ``"run"`` it and send its invalidation as soon as
            possible, or ``"refuse"`` it with `RemoteTierError` before its side effect.
        share: for a read with ``scope="session"``: store its results in the tier too, under the session's id, so that a
            session that is resumed in another process finds them.
        flight: for a read: ``"process"`` lets each process that misses a result load it; ``"fleet"`` has one of them
            load it while the others wait until it is stored, or the loader has died. An error is not handed over. It
            costs a miss two more round trips, so it is for loads that take longer.
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
        checked_flag(self.share, "RemotePolicy: share")
        checked_choice(self.flight, ("process", "fleet"), "RemotePolicy: flight")

    @property
    def is_strong(self) -> bool:
        """Whether every hit asks the tier."""
        return self.consistency == "strong"

    def checked(self, where: str, *, scope: Scope, is_read: bool) -> RemotePolicy:
        """Refuse options that have no effect on a tool. The error names the option and the fix."""
        reads = self.grace or self.is_strong or self.flight == "fleet"
        problem = ""
        if is_read and self.on_unreachable != "run":
            problem = "on_unreachable is for writes; leave it out"
        elif not is_read and (reads or self.share):
            problem = "grace, consistency, share and flight are for reads; give them to the tools that read"
        elif self.share and scope != "session":
            problem = "share is for scope='session'; leave it out, global results are shared anyway"
        elif reads and scope == "session" and not self.share:
            problem = "results of a session do not leave the process; add share=True"
        if problem:
            raise ConfigurationError(f"{where}: remote: {problem}")
        return self


DEFAULT_REMOTE: Final = RemotePolicy()

DEFAULT_STREAM_BYTES: Final = 1_000_000
"""The default of ``max_stream_bytes=``, and the bound for streaming write tools."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ReadPolicy:
    """How the results of a read tool are cached. See `AgentCache` for each field."""

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
    version: str | None = None
    validate: Callable[..., Any] | None = None
    lasts: float | None = None  # seconds since its load in which a result may be validated; None for ever
    bound: float | None = None  # of a `ttl` that is a function: seconds that no result outlives, whatever it returns
    kept_for: float = field(init=False)  # seconds beyond its expiry for which a result may still be served
    life_varies: bool = field(init=False)  # by a `ttl` that is a function, or by `jitter`
    longest_ttl: float | None = field(init=False)  # known before a load; None if there is no bound

    def __post_init__(self) -> None:
        object.__setattr__(self, "kept_for", inf if self.validate else max(self.grace, self.stale_if_error))
        object.__setattr__(self, "life_varies", callable(self.ttl) or self.jitter > 0)
        object.__setattr__(self, "longest_ttl", self.bound if callable(self.ttl) else self.ttl)

    def with_ttl(self, ttl: float | None) -> ReadPolicy:
        """The policy with a ttl that was set at run time, or None; a function stays, with this as its bound."""
        if ttl is None:
            return self
        return replace(self, bound=ttl) if callable(self.ttl) else replace(self, ttl=ttl)

    def life_of(self, result: Any, random: Callable[[], float]) -> float | None:
        """Seconds that a result may live; None for ever; 0 if it must not be stored."""
        life: Any = self.ttl(result) if callable(self.ttl) else self.ttl
        life = self.bound if life is None else life
        if life is None:
            return None
        number = life.total_seconds() if isinstance(life, timedelta) else life
        if _is_number(number) and number <= 0:
            return 0.0
        number = min(seconds(number, "a ttl"), number if self.bound is None else self.bound)
        return number * (1.0 - random() * self.jitter if self.jitter else 1.0)

    def checked(self, where: str) -> ReadPolicy:
        """Refuse options that have no effect together. The error names the option and the fix."""
        for option in ("jitter", "grace", "stale_if_error", "validate"):
            if getattr(self, option) and self.ttl is None:
                raise ConfigurationError(f"{where}: {option} has no effect on what never expires; add ttl=...")
        for option in ("stale_if_error", "audit", "validate"):
            if getattr(self, option) and self.remote.is_strong:
                raise ConfigurationError(f"{where}: {option} has no effect with consistency='strong'; leave one out")
        if self.grace and self.remote.grace:
            raise ConfigurationError(f"{where}: grace is given twice; leave out that of RemotePolicy")
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
        pending: list[BaseException | None] = [error]
        seen: set[int] = set()
        while pending:
            link = pending.pop()
            if link is None or id(link) in seen:
                continue
            seen.add(id(link))
            if not isinstance(link, Exception) or isinstance(link, (TimeoutError, OSError, *self.in_doubt)):
                return True
            members = link.exceptions if isinstance(link, BaseExceptionGroup) else ()
            pending += [link.__cause__, link.__context__, *members]
        return False
