"""The single steps of a file tier: the statements of its connections.

A test or a benchmark gets to see each of them just before it is done: it can wait there, fail, or end its process.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

__all__ = ["show_steps"]


def show_steps(show: Callable[[str], None]) -> Callable[[], None]:
    """Have each step of the tiers that are made from now on shown before it is done: the text of a statement, in
    capitals. An
    exception of the function is that of the step.

    Returns:
        What ends it for tiers that are made later.
    """
    connect = sqlite3.connect

    class Connection(sqlite3.Connection):
        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            show(sql.upper())
            return super().execute(sql, *parameters)

        def executemany(self, sql: str, rows: Any) -> sqlite3.Cursor:
            show(sql.upper())
            return super().executemany(sql, rows)

        def executescript(self, script: str) -> sqlite3.Cursor:
            show(script.upper())
            return super().executescript(script)

    def connected(path: Any, **options: Any) -> sqlite3.Connection:
        return connect(path, factory=Connection, **options)

    sqlite3.connect = connected  # type: ignore[assignment]

    def end() -> None:
        sqlite3.connect = connect

    return end
