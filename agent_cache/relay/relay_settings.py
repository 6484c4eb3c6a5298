"""The settings of a relay: the rules of its tools, and what concerns loops and notifications, from one TOML file.

`Toolbox.from_file` reads the rules. The keys here are the relay's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from agent_cache import AgentCacheInvalidator, ConfigurationError, Toolbox

DEFAULT_NAMESPACE: Final = "mcp"
"""The namespace of a relay without a file."""


class _Ends(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a notification invalidates."""

    invalidate: Annotated[list[str], Meta(min_length=1)]


class RelaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a relay does beside the rules of its tools.

    Attributes:
        on_loop: what happens to a call that continues a loop, as in `agent_cache.AgentCacheSession`; ``"off"`` looks
            for none.
        max_tool_repeats: how often a call may have one outcome without progress.
        new_turn_after: seconds without a call, after which the next one begins a new turn: one relay serves all the
            chats of its host. None: never.
        on: what a notification of the server invalidates, by its method. Templates read ``params``.
    """

    on_loop: Literal["notice", "warn", "short_circuit", "raise", "off"] = "notice"
    max_tool_repeats: Annotated[int, Meta(ge=2)] = 5
    new_turn_after: Annotated[float, Meta(gt=0, le=1e9)] | None = 60.0
    on: dict[Annotated[str, Meta(pattern="^notifications/")], _Ends] = {}

    def tags_of(self, method: str) -> tuple[str, ...]:
        """The templates of the tags that a notification invalidates."""
        return tuple(self.on[method].invalidate) if method in self.on else ()


_FIXES: Final = {
    "on_loop": 'must be one of "notice", "warn", "short_circuit", "raise", "off"',
    "max_tool_repeats": 'must be a whole number from 2 on; to look for no loops, set on_loop = "off"',
    "new_turn_after": "must be a number of seconds above 0; for no turns, set it to a large number",
    "on": 'must have tables such as [on."notifications/resources/updated"]: each must be named after a notification of '
    "the server, and must have the one key invalidate = [tags]",
}


def load(path: str | os.PathLike[str]) -> tuple[Toolbox, RelaySettings]:
    """Read a file of rules and settings.

    Raises:
        ConfigurationError: naming the file, the key and the fix.
    """
    path = os.fspath(path)
    box = Toolbox.from_file(path, hints="kind")
    try:
        settings = msgspec.toml.decode(Path(path).read_text("utf-8-sig"), type=RelaySettings)
    except msgspec.ValidationError as error:
        key = str(error).partition("$.")[2].partition("[")[0].partition(".")[0].rstrip("`")
        raise ConfigurationError(f"{path}: {key} {_FIXES.get(key, '')} ({error})") from None
    for method, ends in settings.on.items():
        try:
            write_of_notification(method, tuple(ends.invalidate))
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}: [on.{method!r}]: {error}") from None
    return box, settings


def write_of_notification(method: str, tags: tuple[str, ...]) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """What a notification invalidates, as a write of its parameters.

    Raises:
        ConfigurationError: if a template is malformed.
    """

    async def notified(params: Any) -> None:
        pass

    return AgentCacheInvalidator(tags, name=method)(notified)
