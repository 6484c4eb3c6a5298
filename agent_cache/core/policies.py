"""What a decorator was asked for, checked and frozen: the options of a read and of a write."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from agent_cache.core.checks import checked_choice, seconds
from agent_cache.core.entries import Protection
from agent_cache.core.loop_policy import NO_HINTS, LoopHints
from agent_cache.errors import ConfigurationError

__all__ = ["ReadPolicy", "RemotePolicy", "Scope", "WritePolicy"]

Scope = Literal["global", "session"]


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
    protection: Protection
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
