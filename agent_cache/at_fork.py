"""What is done around a fork of the process, in one place: not every platform has one."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["at_fork"]


def at_fork(**handlers: Any) -> None:
    """As `os.register_at_fork`. Nothing is done where processes cannot fork, as on Windows."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**handlers)
