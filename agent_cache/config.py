"""What tools use that name nothing of their own: `configure`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from agent_cache.errors import ConfigurationError
from agent_cache.remote.protocol import Tier

__all__ = ["CURRENT", "Configuration", "Restore", "checked_tier", "configure", "default_configuration"]


@dataclass(frozen=True, slots=True)
class Configuration:
    """Process-wide settings. See `configure`."""

    remote: Tier | None = None
    backup: Tier | None = None
    enabled: bool = True
    max_bytes: int | None = None


class Current:
    """The configuration in force and who wants to know when it changes."""

    __slots__ = ("listeners", "value")

    def __init__(self) -> None:
        self.value = default_configuration()
        self.listeners: list[Callable[[Configuration, Configuration], None]] = []

    def replace(self, new: Configuration) -> None:
        old, self.value = self.value, new
        for listener in self.listeners:
            listener(old, new)


class Restore:
    """What `configure` returns: leaving it as a context manager puts the former configuration back."""

    __slots__ = ("_former",)

    def __init__(self, former: Configuration) -> None:
        self._former = former

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        CURRENT.replace(self._former)


def configure(
    *, remote: Tier | None = None, backup: Tier | None = None, enabled: bool = True, max_bytes: int | None = None
) -> Restore:
    """Set what tools use that name nothing of their own, whenever they were decorated. May be called again.

    Args:
        remote: tier behind the local store of every global tool without a `remote_cache=` of its own.
        backup: tier between the two, likewise.
        enabled: False switches all caching off: tools run, sessions trace and count, writes still invalidate. The
            environment variable ``AGENT_CACHE_ENABLED=0`` does the same and wins.
        max_bytes: bound on the estimated size of everything stored locally from now on; the fullest store gives way.

    Returns:
        A context manager that restores the former configuration: ``with configure(enabled=False): ...``

    Raises:
        ConfigurationError: if a tier is none, or `max_bytes` is not a positive number.
    """
    if max_bytes is not None and (isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 1):
        raise ConfigurationError(f"configure: max_bytes must be a positive number of bytes or None, got {max_bytes!r}")
    if not isinstance(enabled, bool):
        raise ConfigurationError(f"configure: enabled must be True or False, got {enabled!r}")
    former = CURRENT.value
    CURRENT.replace(
        Configuration(
            remote=checked_tier(remote, "configure: remote"),
            backup=checked_tier(backup, "configure: backup"),
            enabled=enabled and _enabled_by_environment(),
            max_bytes=max_bytes,
        )
    )
    return Restore(former)


def checked_tier(tier: Any, where: str) -> Tier | None:
    """A tier, or a clear error that names what it lacks."""
    if tier is None:
        return None
    if isinstance(tier, Tier):
        kind = type(tier)
        if not kind.__weakrefoffset__:
            raise ConfigurationError(f"{where} cannot be used: {kind.__qualname__} needs a __weakref__ slot")
        if kind.__hash__ is None:
            raise ConfigurationError(
                f"{where} cannot be used: {kind.__qualname__} has no hash; a dataclass has one with eq=False"
            )
        return tier
    wanted = ("lease", "lookup", "store", "discard", "begin", "renew", "commit", "trusted_until", "subscribe", "aclose")
    lacking = [name for name in wanted if not hasattr(tier, name)]
    raise ConfigurationError(f"{where} is no cache tier: {type(tier).__qualname__} lacks {', '.join(lacking)}")


def _enabled_by_environment() -> bool:
    return os.environ.get("AGENT_CACHE_ENABLED", "1").strip().lower() not in {"0", "false", "no", "off"}


def default_configuration() -> Configuration:
    """What holds until `configure` is called."""
    return Configuration(enabled=_enabled_by_environment())


CURRENT = Current()
