"""What tells the calls and the outcomes of a tool apart when a run is looked through for loops: the user's own words
where there are some.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final

from agent_cache.core.keys import Uncacheable, key_part
from agent_cache.engine.read import ReadOperation
from agent_cache.engine.runtime import Call, Operation
from agent_cache.session.guard import LoopGuard
from agent_cache.values.compare import fingerprint

__all__ = ["Identity"]

_LONG: Final = 1_000
"""Characters of a key above which its fingerprint stands for it."""


class Identity:
    """Of one tool, by its `LoopHints`. A function of the user's that raises is counted, and the default is used.

    Attributes:
        is_the_key: whether a call is told apart by its key, so that nobody need be asked.
        outcome: what stands for a result; None if it cannot be told from others.
    """

    __slots__ = ("_guard", "_hints", "_is_read", "_operation", "is_the_key", "outcome")

    outcome: Callable[[Any], Hashable | None]

    def __init__(self, operation: Operation[Any], guard: LoopGuard) -> None:
        self._operation = operation
        self._guard = guard
        self._hints = operation.policy.loop
        self._is_read = isinstance(operation, ReadOperation)
        self.is_the_key = self._is_read and self._hints.loop_key is None
        self.outcome = fingerprint if self._hints.outcome_key is None else self._outcome

    def of_call(self, call: Call) -> Hashable | None:
        """What tells a miss or a write apart; None if nothing does."""
        said = None if self._hints.loop_key is None else self._by_loop_key(call.arguments)
        if said is not None:
            return said
        if self._is_read:
            return call.key
        try:
            return _short(self._operation.parameters.key(call.arguments))
        except Uncacheable:
            return None

    def of_hit(self, key: Hashable, arguments: Mapping[str, Any] | None) -> Hashable:
        """What tells a hit apart, where there is a ``loop_key``."""
        said = self._by_loop_key(arguments or {})
        return key if said is None else said

    def _by_loop_key(self, arguments: Mapping[str, Any]) -> Hashable | None:
        """What ``loop_key`` makes of the arguments; None if it fails."""
        loop_key = self._hints.loop_key
        assert loop_key is not None
        try:
            return _short(key_part(loop_key(dict(arguments))))
        except Exception as error:  # noqa: BLE001 - the user's function; the arguments are the default
            self._guard.count_failure("loop_key failed", self._operation.name, error)
            return None

    def _outcome(self, value: Any) -> Hashable | None:
        outcome_key = self._hints.outcome_key
        assert outcome_key is not None
        try:
            outcome = outcome_key(value)
        except Exception as error:  # noqa: BLE001 - the user's function; the whole result is the default
            self._guard.count_failure("outcome_key raised", self._operation.name, error)
        else:
            if (told := fingerprint(outcome)) is not None:
                return told
            nothing = TypeError(f"a {type(outcome).__name__} cannot be told from others")
            self._guard.count_failure("outcome_key gave no identity", self._operation.name, nothing)
        return fingerprint(value)


def _short(key: Hashable) -> Hashable:
    """What is remembered of a call for long: not the file that it has written."""
    parts = key if isinstance(key, tuple) else (key,)
    if sum(len(part) for part in parts if isinstance(part, str | bytes)) <= _LONG:
        return key
    return fingerprint(key) or key
