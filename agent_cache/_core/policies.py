"""What a decorator was asked for, checked and frozen: the options of a read and of a write."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Literal

from agent_cache._core.entries import Protection
from agent_cache._core.loop_policy import NO_HINTS, LoopHints

__all__ = ["ReadPolicy", "Scope", "WritePolicy"]

Scope = Literal["global", "session"]


@dataclass(frozen=True, slots=True)
class ReadPolicy:
    """How the answers of a read tool are cached. See `AgentCache` for each field."""

    scope: Scope
    ttl: float | None
    maxsize: int | None
    protection: Protection
    key: Callable[..., Any] | None
    vary: Callable[..., Hashable] | None
    vary_takes_arguments: bool
    cache_if: Callable[[Any], bool] | None
    uncacheable: Literal["bypass", "raise"]
    loop: LoopHints = NO_HINTS


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
