"""The trust in local copies of a tier's values."""

from __future__ import annotations

from typing import Any


class Lease:
    """Until when local copies may be served."""

    __slots__ = ("__weakref__", "page", "stamp", "term")

    def __init__(self, page: Any, stamp: int) -> None:
        self.page = page
        self.stamp = stamp
        self.term: Any = None

    def renew(self) -> bool:
        return False
