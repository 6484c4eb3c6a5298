"""What an option was given, checked at the earliest moment: durations, functions, words, counts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal

from agent_cache.core.store import CopyRule
from agent_cache.errors import ConfigurationError

__all__ = [
    "ReadPolicy",
    "RemotePolicy",
    "Scope",
    "WritePolicy",
    "checked_choice",
    "checked_flag",
    "checked_function",
    "checked_text",
    "count",
    "seconds",
    "LoopHints",
    "NO_HINTS",
    "checked_hints",
]


_LONGEST = 1e15
"""30 million years. What is longer was not meant, and may be more than a float holds."""


def seconds(value: Any, what: str, *, zero: bool = False) -> float:
    """Read a duration: seconds or `timedelta`.

    Args:
        zero: whether 0 is a duration here.

    Raises:
        ConfigurationError: if it is neither, not finite, negative, or 0 where that means nothing.
    """
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ConfigurationError(f"{what} must be seconds or a timedelta, got {value!r}")
    if not (number > 0 or (zero and number == 0)) or number > _LONGEST:
        bound = "0 or more" if zero else "more than 0"
        hint = "" if zero else "; leave it out (None) for what never expires"
        raise ConfigurationError(f"{what} must be {bound} seconds, got {value!r}{hint}")
    return float(number)


def checked_function(value: Any, what: str) -> None:
    """A plain function, or None. A coroutine function is refused: its answer is needed at once, and a coroutine is
    true, and hashable by address.
    """
    if value is None:
        return
    if not callable(value):
        raise ConfigurationError(f"{what} must be a function, got {value!r}")
    if inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(type(value).__call__):
        raise ConfigurationError(f"{what} must be a plain function: its answer is needed at once, got an `async def`")


def checked_choice(value: Any, choices: tuple[str, ...], what: str, or_else: str = "") -> Any:
    """One of a few words; a misspelt one fails at once."""
    if value not in choices:
        allowed = f"one of {', '.join(map(repr, choices))}{f', or {or_else}' if or_else else ''}"
        raise ConfigurationError(f"{what} must be {allowed}, got {value!r}")
    return value


def checked_flag(value: Any, what: str) -> None:
    """True or False, and nothing that only counts as one: ``"off"`` is true."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"{what} must be True or False, got {value!r}")


def checked_text(value: Any, what: str) -> None:
    """A text with something in it."""
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{what} must be a text that is not empty, got {value!r}")


def count(bound: int, value: Any, what: str) -> int:
    """A number of things.

    Raises:
        ConfigurationError: if it is none, or below `bound`.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < bound:
        raise ConfigurationError(f"{what} must be a number, {bound} or more, got {value!r}")
    return value


# What a decorator was asked for, checked and frozen: the options of a read and of a write.


Scope = Literal["global", "session"]


@dataclass(frozen=True, slots=True)
class LoopHints:
    """What a tool says of its own repetitions: ``loop=LoopHints(...)`` on either decorator.

    Args:
        loop_key: ``loop_key(arguments)`` is what tells its calls apart, instead of all arguments: leave out request ids
            and timestamps. `arguments` maps parameter names to values.
        outcome_key: ``outcome_key(result)`` is what is compared, instead of the whole result: leave out timestamps and
            ids.
        poll: it is asked again and again on purpose. It is judged by `max_unchanged` alone, and is no part of a cycle.
        max_unchanged: how often in a row a poll may give one outcome; the call that does so this often is acted upon.
            None: any number.
        off: its calls are not looked at. A new successful write still ends the epoch; of a write, the two functions
            say what is new.

    Raises:
        ConfigurationError: for `max_unchanged` without `poll`, or below 2, and for `off` with `poll`; at decoration,
            for a write with `poll` and without `max_unchanged`, and for a read that is `off` and says what to compare.
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
                raise ConfigurationError("LoopHints: max_unchanged says how long a poll may go on; it needs poll=True")
        if self.off and self.poll:
            raise ConfigurationError(
                "LoopHints: what is off is not looked at, so poll=True says nothing; leave one out"
            )


NO_HINTS: Final = LoopHints()


def checked_hints(given: Any, where: str, *, is_write: bool) -> LoopHints:
    """What stands after ``loop=``. A write that may be repeated for ever is refused."""
    if not isinstance(given, LoopHints):
        raise ConfigurationError(f"{where}: loop must be LoopHints(...), got {given!r}")
    if is_write and given.poll and given.max_unchanged is None:
        raise ConfigurationError(
            f"{where}: loop=LoopHints(poll=True) on a write needs max_unchanged=..., or it could be repeated for ever"
        )
    if not is_write and given.off and (given.loop_key is not None or given.outcome_key is not None):
        raise ConfigurationError(
            f"{where}: a read with loop=LoopHints(off=True) is not looked at, so loop_key and outcome_key say nothing"
        )
    return given


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePolicy:
    """How a tool uses the tier that it shares with other processes: what stands after ``remote=``.

    Args:
        grace: for a read: seconds, or a `timedelta`, beyond its ttl that an answer may be served while one process
            loads it anew. Never across a write: what a write has touched is gone whatever its age.
        consistency: for a read: ``"bounded"`` serves local copies for as long as the tier's `max_staleness` allows;
            ``"strong"`` asks for the versions at every hit, in one round trip, and keeps no local copy. That covers the
            writes that could be announced: give their tools ``on_unreachable="refuse"``.
        on_unreachable: for a write that cannot be announced: ``"run"`` it and make up for it as soon as possible, or
            ``"refuse"`` it with `RemoteTierError` before its side effect.
        share: for a read with ``scope="session"``: let the tier have its answers, under the session's id, so that a
            session that is resumed in another process finds them.

    Raises:
        ConfigurationError: if one of them is none of these.
    """

    grace: float | timedelta = 0.0
    consistency: Literal["bounded", "strong"] = "bounded"
    on_unreachable: Literal["run", "refuse"] = "run"
    share: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "grace", seconds(self.grace, "RemotePolicy: grace", zero=True))
        checked_choice(self.consistency, ("bounded", "strong"), "RemotePolicy: consistency")
        checked_choice(self.on_unreachable, ("run", "refuse"), "RemotePolicy: on_unreachable")
        if not isinstance(self.share, bool):
            raise ConfigurationError(f"RemotePolicy: share must be True or False, got {self.share!r}")

    @property
    def is_strong(self) -> bool:
        """Whether every hit asks."""
        return self.consistency == "strong"

    def checked(self, where: str, *, scope: Scope, is_read: bool) -> RemotePolicy:
        """Refuse what has no meaning for a tool.

        Raises:
            ConfigurationError: naming the option and the fix.
        """
        if is_read and self.on_unreachable != "run":
            raise ConfigurationError(
                f"{where}: remote: on_unreachable is for writes; a read whose tier cannot be reached runs its tool"
            )
        if not is_read and (self.grace or self.share or self.is_strong):
            raise ConfigurationError(
                f"{where}: remote: grace, consistency and share are for reads; give them to the tools that read"
            )
        if self.share and scope != "session":
            raise ConfigurationError(
                f"{where}: remote: share is for scope='session'; what is global is shared by every process anyway"
            )
        if is_read and scope == "session" and not self.share and (self.grace or self.is_strong):
            raise ConfigurationError(
                f"{where}: remote: answers of a session do not leave the process; add share=True, or leave out grace "
                "and consistency"
            )
        return self


@dataclass(frozen=True, slots=True)
class ReadPolicy:
    """How the answers of a read tool are cached. See `AgentCache` for each field."""

    scope: Scope
    ttl: float | None
    maxsize: int | None
    copy_rule: CopyRule
    key: Callable[..., Any] | None
    vary: Callable[..., Hashable] | None
    vary_takes_arguments: bool
    cache_if: Callable[[Any], bool] | None
    uncacheable: Literal["bypass", "raise"]
    loop: LoopHints = NO_HINTS
    remote: RemotePolicy = field(default_factory=RemotePolicy)


@dataclass(frozen=True, slots=True)
class WritePolicy:
    """What a write tool invalidates, and what its failures mean. See `AgentCacheInvalidator` for each field."""

    scope: Scope
    settle: float
    doubt: float
    in_doubt: tuple[type[BaseException], ...]
    no_effect: tuple[type[BaseException], ...]
    ok: Callable[[Any], bool] | None
    key_fn: Callable[..., Any] | None
    loop: LoopHints = NO_HINTS
    remote: RemotePolicy = field(default_factory=RemotePolicy)

    def leaves_in_doubt(self, error: BaseException) -> bool:
        """Whether a write that ended with this may still take effect on the far side.

        A cancelled write may; so may one whose exception is, or has in its cause or context chain, a `TimeoutError`, an
        `OSError` or a class named by ``in_doubt=``. Any other `Exception` is the tool's definite word that it failed.
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
