"""Whether a server is asked at all."""

from __future__ import annotations

__all__ = ["Breaker"]


class Breaker:
    """Closed: requests go through. Open: they fail at once, until a probe has succeeded.

    One failure opens it. Nobody's read pays for a probe: the heartbeat is the probe, and it closes the breaker once
    what this process owes the server has landed.
    """

    __slots__ = ("is_open", "reason")

    def __init__(self) -> None:
        self.is_open = False
        self.reason = ""

    def trip(self, reason: str) -> bool:
        """A request has failed. Whether the breaker was closed until now: what has opened it stays the reason."""
        if self.is_open:
            return False
        self.is_open, self.reason = True, reason
        return True

    def reset(self) -> None:
        """The server answers again, and nothing is owed to it."""
        self.is_open = False
        self.reason = ""
