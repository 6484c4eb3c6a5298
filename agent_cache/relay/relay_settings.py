"""The settings of a relay: the rules of its tools, and what concerns loops and notifications, from one TOML file.

`Toolbox.from_file` reads the rules. The keys here are the relay's own.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args

from agent_cache import AgentCacheInvalidator, ConfigurationError, Toolbox

__all__ = ["DEFAULT_NAMESPACE", "OnLoop", "RelaySettings", "load", "write_of_notification"]

DEFAULT_NAMESPACE: Final = "mcp"
"""The namespace of a relay without a file."""

OnLoop = Literal["notice", "warn", "short_circuit", "raise", "off"]


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """What a relay does beside the rules of its tools.

    Attributes:
        on_loop: what happens to a call that continues a loop, as in `agent_cache.AgentCacheSession`; ``"off"`` looks
            for none.
        max_tool_repeats: how often a call may have one outcome without progress.
        new_turn_after: seconds without a call, after which the next one begins a new turn: one relay serves all the
            chats of its host. None: never.
        on: tags that a notification of the server invalidates, by its method. Templates read ``params``.
    """

    on_loop: OnLoop = "notice"
    max_tool_repeats: int = 5
    new_turn_after: float | None = 60.0
    on: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def load(path: str | os.PathLike[str]) -> tuple[Toolbox, RelaySettings]:
    """Read a file of rules and settings.

    Raises:
        ConfigurationError: naming the file, the key and the fix.
    """
    path = os.fspath(path)
    box = Toolbox.from_file(path, hints="kind")
    data = tomllib.loads(Path(path).read_text("utf-8-sig"))
    given: dict[str, Any] = {}
    if "on_loop" in data:
        given["on_loop"] = data["on_loop"]
        if data["on_loop"] not in get_args(OnLoop):
            choices = ", ".join(f'"{one}"' for one in get_args(OnLoop))
            raise ConfigurationError(f"{path}: on_loop must be one of {choices}, got {data['on_loop']!r}")
    if "max_tool_repeats" in data:
        given["max_tool_repeats"] = repeats = data["max_tool_repeats"]
        if type(repeats) is not int or repeats < 2:
            raise ConfigurationError(
                f"{path}: max_tool_repeats must be a whole number from 2 on, got {repeats!r}; "
                'to look for no loops, set on_loop = "off"'
            )
    if "new_turn_after" in data:
        seconds = data["new_turn_after"]
        if type(seconds) not in (int, float) or not 0 < seconds < float("inf"):
            raise ConfigurationError(
                f"{path}: new_turn_after must be a number of seconds above 0, got {seconds!r}; for no turns, set it to "
                "a large number"
            )
        given["new_turn_after"] = float(seconds)
    if "on" in data:
        given["on"] = _notifications(data["on"], path)
    return box, RelaySettings(**given)


def _notifications(data: Any, path: str) -> dict[str, tuple[str, ...]]:
    if not isinstance(data, Mapping):
        raise ConfigurationError(f'{path}: on must be tables such as [on."notifications/resources/updated"]')
    found = {}
    for method, entry in data.items():
        where = f"{path}: [on.{method!r}]"
        if not method.startswith("notifications/"):
            raise ConfigurationError(
                f'{where} must be named after a notification of the server, such as "notifications/resources/updated"'
            )
        if not isinstance(entry, Mapping) or set(entry) != {"invalidate"}:
            names = ", ".join(entry) if isinstance(entry, Mapping) else repr(entry)
            raise ConfigurationError(f"{where} must have the one key invalidate = [tags], got {names or 'nothing'}")
        tags = entry["invalidate"]
        if not isinstance(tags, list) or not tags or not all(isinstance(tag, str) for tag in tags):
            raise ConfigurationError(f"{where}: invalidate must be a list of tags, got {tags!r}")
        try:
            write_of_notification(method, tuple(tags))
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}: {error}") from None
        found[method] = tuple(tags)
    return found


def write_of_notification(method: str, tags: tuple[str, ...]) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """What a notification invalidates, as a write of its parameters.

    Raises:
        ConfigurationError: if a template is malformed.
    """

    async def notified(params: Any) -> None:
        pass

    return AgentCacheInvalidator(tags, name=method)(notified)
