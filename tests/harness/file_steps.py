"""The single steps of a file tier: statements of its connections and words that it writes into its page.

A test or a benchmark gets to see each of them just before it is done: it can wait there, fail, or end its process.
"""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Callable
from typing import Any

from agent_cache.remote.file.shared_page import SharedPage

__all__ = ["CONNECTIONS", "show_steps"]

CONNECTIONS: weakref.WeakSet[sqlite3.Connection] = weakref.WeakSet()
"""Those of the tiers whose steps are shown."""


def show_steps(show: Callable[[str], None]) -> Callable[[], None]:
    """Have each step of the tiers that are made from now on shown before it is done: the text of a statement, or
    ``page INDEX VALUE``. An exception of the function is that of the step.

    Returns:
        What ends it for tiers that are made later.
    """
    connect, initialize = sqlite3.connect, SharedPage.__init__

    class Connection(sqlite3.Connection):
        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            show(sql)
            return super().execute(sql, *parameters)

        def executemany(self, sql: str, rows: Any) -> sqlite3.Cursor:
            show(sql)
            return super().executemany(sql, rows)

        def executescript(self, script: str) -> sqlite3.Cursor:
            show(script)
            return super().executescript(script)

    def connected(path: Any, **options: Any) -> sqlite3.Connection:
        CONNECTIONS.add(connection := connect(path, factory=Connection, **options))
        return connection

    def initialized(self: SharedPage, words: Any, incarnation: int) -> None:
        initialize(self, Words(words, show), incarnation)  # type: ignore[arg-type]  # of a memory view, what is used

    sqlite3.connect = connected  # type: ignore[assignment]
    SharedPage.__init__ = initialized  # type: ignore[method-assign]

    def end() -> None:
        sqlite3.connect = connect
        SharedPage.__init__ = initialize  # type: ignore[method-assign]

    return end


class Words:
    """The words of a page, of which each that is written is shown."""

    def __init__(self, words: Any, show: Callable[[str], None]) -> None:
        self._words = words
        self._show = show

    def __getitem__(self, index: Any) -> Any:
        return self._words[index]

    def __setitem__(self, index: int, value: int) -> None:
        self._show(f"page {index} {value}")
        self._words[index] = value
