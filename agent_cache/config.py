"""Process-wide settings: `configure`, and the configuration in force."""

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
    """The configuration in force, and functions called with the old and the new one when it changes."""

    __slots__ = ("listeners", "value")

    def __init__(self) -> None:
        self.value = default_configuration()
        self.listeners: list[Callable[[Configuration, Configuration], None]] = []

    def replace(self, new: Configuration) -> None:
        old, self.value = self.value, new
        for listener in self.listeners:
            listener(old, new)


class Restore:
    """A context manager that restores the former configuration when it is left. Returned by `configure`."""

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
    """Set what tools use by default, also those that are decorated already. May be called again.

    Args:
        remote: the tier behind the local store of every global tool without a `remote_cache=` of its own.
        backup: the tier between the two, for every global tool without a `backup=` of its own.
        enabled: False switches all caching off: tools run, sessions trace and count, writes still invalidate. The
            environment variable ``AGENT_CACHE_ENABLED=0`` does the same and wins.
        max_bytes: bound on the estimated size of everything stored locally from now on: values, keys and tags. The
            largest store evicts first. An answer that is larger than the bound alone is not stored.

    Returns:
        A context manager that restores the former configuration: ``with configure(enabled=False): ...``

    Raises:
        ConfigurationError: if a tier is not a `Tier`, or `max_bytes` is not a positive int.
    """
    if max_bytes is not None and (isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 1):
        raise ConfigurationError(f"configure: max_bytes must be a positive int or None, got {max_bytes!r}")
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
    """Check a tier. The error names the methods that it lacks."""
    if tier is None:
        return None
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


def _enabled_by_environment() -> bool:
    return os.environ.get("AGENT_CACHE_ENABLED", "1").strip().lower() not in {"0", "false", "no", "off"}


def default_configuration() -> Configuration:
    """The configuration until `configure` is called."""
    return Configuration(enabled=_enabled_by_environment())


CURRENT = Current()
