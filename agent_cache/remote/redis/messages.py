"""What processes tell each other about a root: ``process kind path path...``.

A path is ``*`` for all of the root, or the short name of the cell of an entity or of an entry.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from agent_cache.remote.protocol import Touched
from agent_cache.remote.redis.keyspace import CellKey, RootNames

if TYPE_CHECKING:
    from agent_cache.remote.redis.core import Core

__all__ = ["message", "understood"]

_FORM = re.compile(rb"[^ ]+ [BC](?: (?:\*|[TK][0-9a-f]+))+")


def message(core: Core, kind: bytes, root: RootNames, cells: Iterable[CellKey]) -> bytes:
    """Say that a write of these cells begins (``B``) or has ended (``C``). Empty: there is nothing to say."""
    cells = list(cells)
    paths = [b"*"] if root.s in cells else [root.name(cell) for cell in cells if cell != root.d]
    return b" ".join([core.process, kind, *paths]) if paths else b""


def understood(core: Core, root: RootNames, said: Any) -> tuple[list[CellKey], Touched] | None:
    """The cells that a message moves, and what listeners are to be told; None if it is one's own.

    What cannot be understood may mean anything under its root.
    """
    if type(said) is not bytes or _FORM.fullmatch(said) is None:
        core.log.once("a message cannot be understood, so all of its root was dropped", root.root)
        return [root.s, root.d], Touched((root.root,))
    process, _, *paths = said.split(b" ")
    if process == core.process:
        return None  # a writer has dropped its own copies itself
    cells: dict[CellKey, None] = {}
    tags: dict[str, None] = {}
    keys = []
    for path in paths:
        if path == b"*":
            cells |= {root.s: None, root.d: None}
            tags[root.root] = None
        elif path.startswith(b"T"):
            cells |= {root.cell(path): None, root.d: None}
            segment = core.names.segment(path)
            if segment is not None:
                tags[f"{root.root}:{segment}"] = None
            elif core.names.has_forgotten:
                tags[root.root] = None
            else:  # what depends on all of the root changes, and nothing else here can depend on it
                tags[f"{root.root}:{path.decode()}"] = None
        else:
            cells[root.cell(path)] = None
            call = core.memo.call(path[1:])
            if call is not None:
                keys.append(call)
            elif core.memo.has_forgotten:
                tags[root.root] = None
    return list(cells), Touched(tuple(tags), tuple(keys))
