"""The thresholds of the loop checks and the budgets of a run: `LoopPolicy`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

from agent_cache.core.options import checked_text, count, seconds
from agent_cache.errors import ConfigurationError

__all__ = ["ANY_NUMBER", "CHECKS", "LoopPolicy", "policy_of", "seconds_of"]

ANY_NUMBER: Final = 1_000_000_000
"""More calls than a run makes. Below 2 ** 30, so that it is one digit of CPython's integers and compares fast."""


class Threshold(NamedTuple):
    """How often a check must be met for a notice, and for the action."""

    notice: int
    action: int


CHECKS: Final = {
    "repeat": Threshold(3, 5),
    "error": Threshold(2, 4),
    "cycle": Threshold(3, 5),
    "any_error": Threshold(4, 6),
    "write_repeat": Threshold(5, 10),
}
"""The checks and their defaults."""

_Level = int | tuple[int, int] | None
_Seconds = float | timedelta | None


@dataclass(frozen=True, slots=True)
class LoopPolicy:
    """The thresholds at which a session notices a loop and acts on it, and the budgets of a run.

    The *signature* of a call is its tool, its arguments and its outcome. An *epoch* is the time in which the same
    question should have the same answer: a successful write with a new signature ends it, and so does `new_turn`.
    Calls that overlap and have one signature are one round, and count once. *Progress* is a new signature of a call
    that did not fail: while there is some between most repetitions, `repeat`, `error` and `cycle` are not met.

    Each check is a pair: how often it must be met for a notice (logged, counted, given to ``on_notice``) and for the
    action (``on_loop``); the call that meets it is the first one that is acted upon. A single number is the action,
    with the notice at its default or one below. None switches the check off.

    Args:
        repeat: one signature, in an epoch; ``(3, 5)``.
        error: one call with the same error, in a row in an epoch; ``(2, 4)``.
        cycle: calls in a row without a new signature, of two signatures or more, the last of them seen three times;
            ``(3, 5)``. It finds every period; a set of things that is read twice is not a cycle.
        any_error: one tool with the same error, in a row, whatever the arguments; ``(4, 6)``.
        write_repeat: one signature, in an epoch, of a write that succeeds; ``(5, 10)``, since one more of the same item
            is not a loop.
        max_execution_depth: calls that a run may make. None: any number.
        max_nesting: how deep tools may call tools: the calls around one that are still running, itself included. None:
            any depth.
        max_duration: seconds, or a `timedelta`, that a run may take from entering the session to the start of its last
            call. None: any time.
        max_tool_calls: calls that each tool may make in a run, or a mapping from ``module:qualname`` (or `name=`) to
            that. None: any number.
        new_turn_after: seconds, or a `timedelta`, without a call of the agent, after which the next one begins a new
            turn, as `AgentCacheSession.new_turn` does. For a session without known turns, such as that of a server.
            None: never.

    Raises:
        ConfigurationError: for a threshold below 2, a notice above its action, or a budget below 1.
    """

    repeat: _Level = CHECKS["repeat"]
    error: _Level = CHECKS["error"]
    cycle: _Level = CHECKS["cycle"]
    any_error: _Level = CHECKS["any_error"]
    write_repeat: _Level = CHECKS["write_repeat"]
    max_execution_depth: int | None = 200
    max_nesting: int | None = 25
    max_duration: _Seconds = None
    max_tool_calls: int | Mapping[str, int] | None = None
    new_turn_after: _Seconds = None
    levels: Mapping[str, Threshold] = field(init=False, repr=False, compare=False)  # the thresholds, by check

    def __post_init__(self) -> None:
        for check in CHECKS:
            object.__setattr__(self, check, _threshold(check, getattr(self, check)))
        off = Threshold(ANY_NUMBER, ANY_NUMBER)
        object.__setattr__(self, "levels", {check: getattr(self, check) or off for check in CHECKS})
        for name in ("max_execution_depth", "max_nesting"):
            if getattr(self, name) is not None:
                count(1, getattr(self, name), f"LoopPolicy: {name}")
        for name in ("max_duration", "new_turn_after"):
            seconds_of(getattr(self, name), name)
        if isinstance(self.max_tool_calls, Mapping):
            for tool, limit in self.max_tool_calls.items():
                checked_text(tool, "LoopPolicy: max_tool_calls: a tool's name")
                count(1, limit, f"LoopPolicy: max_tool_calls[{tool!r}]")
            object.__setattr__(self, "max_tool_calls", dict(self.max_tool_calls))
        elif self.max_tool_calls is not None:
            count(1, self.max_tool_calls, "LoopPolicy: max_tool_calls")

    def calls_of(self, tool: str) -> int | None:
        """How many calls a tool may make, None for any number."""
        limit = self.max_tool_calls
        return limit.get(tool) if isinstance(limit, Mapping) else limit


def _threshold(check: str, level: Any) -> Threshold | None:
    what = f"LoopPolicy: {check}"
    if level is None:
        return None
    if isinstance(level, int):
        # 2 leaves no room for a notice before the action: a notice at 1 would be one for every call.
        return Threshold(max(2, min(CHECKS[check].notice, level - 1)), count(2, level, what))
    if not isinstance(level, tuple | list) or len(level) != 2:  # settings files have lists
        raise ConfigurationError(f"{what} must be (notice, action), or a number, or None for off, got {level!r}")
    notice, action = count(2, level[0], f"{what}'s notice"), count(2, level[1], f"{what}'s action")
    if notice > action:
        raise ConfigurationError(f"{what}: the notice at {notice} must not come after the action at {action}")
    return Threshold(notice, action)


def seconds_of(given: _Seconds, name: str) -> float | None:
    """A duration of a policy in seconds."""
    return None if given is None else seconds(given, f"LoopPolicy: {name}")


def policy_of(given: object, max_tool_repeats: int | None, max_execution_depth: int | None) -> LoopPolicy:
    """The policy of a session: the ``loop_policy=`` option, changed by its two short forms.

    Raises:
        ConfigurationError: if a value cannot work.
    """
    if max_tool_repeats is not None:
        count(2, max_tool_repeats, "AgentCacheSession: max_tool_repeats")
    if max_execution_depth is not None:
        count(1, max_execution_depth, "AgentCacheSession: max_execution_depth")
    try:
        policy = LoopPolicy(**given) if isinstance(given, Mapping) else given
    except TypeError as error:  # a name in a file of settings
        raise ConfigurationError(f"AgentCacheSession: loop_policy: {error}") from error
    if policy is None:
        return _default_with(max_tool_repeats, max_execution_depth)
    if not isinstance(policy, LoopPolicy):
        raise ConfigurationError(f"AgentCacheSession: loop_policy must be a LoopPolicy, got {given!r}")
    return _changed(policy, max_tool_repeats, max_execution_depth)


def _changed(policy: LoopPolicy, max_tool_repeats: int | None, max_execution_depth: int | None) -> LoopPolicy:
    if max_tool_repeats is not None:
        policy = replace(policy, repeat=max_tool_repeats)
    return policy if max_execution_depth is None else replace(policy, max_execution_depth=max_execution_depth)


_default_with = lru_cache(maxsize=256)(partial(_changed, LoopPolicy()))
"""Sessions with the same short forms share a policy: to make and check one takes 8 us."""
