"""Free a million dropped entries without holding the event loop: in slices, between other callbacks."""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict, deque
from typing import Any

__all__ = ["free"]

_SLICE = 2_000
"""Entries freed in one go: 0.5 to 1 ms."""

_TABLE = 1 << 20
"""Bytes of an emptied mapping whose release is worth a turn of its own."""

_pending: dict[asyncio.AbstractEventLoop, deque[dict[Any, Any]]] = {}


def free(garbage: list[Any]) -> None:
    """Let go of what a move has dropped. Large mappings are emptied piece by piece if an event loop is running.

    Args:
        garbage: lists of entries, and tuples of mappings as `Store.drop_all` returns them. It is emptied.
    """
    large = [mapping for dropped in garbage if type(dropped) is tuple for mapping in dropped if len(mapping) > _SLICE]
    if large:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            pass  # no event loop to hold up: they are freed with the list
        else:
            if (queue := _pending.get(loop)) is not None:
                queue.extend(large)
            else:
                _pending[loop] = deque(large)
                loop.call_soon(_free_slice, loop)
    garbage.clear()


def _free_slice(loop: asyncio.AbstractEventLoop) -> None:
    queue = _pending[loop]
    mapping = queue[0]
    if mapping:
        for _ in range(min(_SLICE, len(mapping))):
            mapping.popitem()
    elif type(mapping) is OrderedDict and sys.getsizeof(mapping) > _TABLE:
        # The emptied tables of a million entries take milliseconds to give back, each: one of them a turn.
        dict.clear(mapping)
    else:
        queue.popleft()
    del mapping
    if queue:
        loop.call_soon(_free_slice, loop)
    else:
        del _pending[loop]
