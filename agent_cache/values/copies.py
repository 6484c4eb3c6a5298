"""Copies of results: how a cached value is kept apart from callers that change what they were given (``copy=``).

`auto_copier` decides once, when a value is stored, how each hit gets its copy. What no caller can change is shared. A
flat container is copied by its own method. Everything else is copied from an *image*, a pickle that never leaves this
process, or by `copy.deepcopy` if it cannot be pickled.
"""

from __future__ import annotations

import copy
import functools
import gc
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from enum import Enum
from functools import partial
from io import BytesIO
from types import SimpleNamespace
from typing import Any, Final

from agent_cache.values.canonical import text_of_standard_value

__all__ = ["IMMUTABLE", "CopyRule", "UncopyableError", "auto_copier", "copy_rule_named", "faster", "packed", "shared"]


class UncopyableError(Exception):
    """A result cannot be copied, so it is returned to the caller that ran the tool, and neither stored nor shared."""


CopyRule = Callable[[Any], Callable[[], Any] | None]
"""Called with a value once, before the first caller gets it. Returns None if the value may be shared, or a function
that makes a new copy for each hit. Raises `UncopyableError`."""

IMMUTABLE: Final[frozenset[type]] = frozenset({
    str, int, float, bool, type(None), bytes, complex, datetime, date, time, timedelta, timezone, range, type(Ellipsis),
})  # fmt: skip
"""Types whose values are shared, whatever ``copy=`` is."""

_FLAT: Final = frozenset({dict, list, set})
_TREE: Final = frozenset({dict, list})
_PLAIN: Final[frozenset[type]] = frozenset({str, int, float, bool, type(None), bytes})
"""Types without parts that MessagePack gives back as they were, all but the largest integers and half characters."""

_MAX_LEVELS: Final = 32
"""Levels that are read from MessagePack, which takes as much of the interpreter's stack. A pickle takes none."""


def auto_copier(value: Any) -> Callable[[], Any] | None:
    """Return a function that copies a mutable value, or None for an immutable one: the rule of ``copy="auto"``.

    A copy has the types, the content and the shared references of the value. A class may define how its objects are
    copied or pickled. An iterator is not copied: whatever it draws from, a function or a file, would be drawn from by
    all its copies.

    Raises:
        UncopyableError: if the value cannot be copied.
    """
    kind = type(value)
    try:
        if kind in _FLAT:
            own = value.copy()  # before it is looked at: another thread may change it at any time
            if IMMUTABLE.issuperset(map(type, gc.get_referents(own))):
                return own.copy  # type: ignore[no-any-return]
        elif kind in IMMUTABLE or _is_immutable(value):
            return None
        is_iterator = kind not in _FLAT and (hasattr(kind, "__next__") or hasattr(kind, "__anext__"))
        if not is_iterator or hasattr(kind, "getvalue"):  # `io.BytesIO` has its content
            return _copier_from_image(value) or partial(copy.deepcopy, copy.deepcopy(value))
    except UncopyableError:  # of a class that says so itself
        raise
    except Exception as error:
        why = f": {error}" if type(error) is TypeError and str(error).startswith("cannot pickle ") else ""
        raise UncopyableError(f"a {kind.__name__} cannot be copied{why}; return plain data, or set copy=") from error
    raise UncopyableError(f"copies of an iterator, a {kind.__qualname__}, would draw from one source; return a list")


def _is_immutable(value: Any) -> bool:
    """Whether no caller can change anything in a value: an immutable one, or a tuple or frozenset of such."""
    seen: set[int] = set()
    for part in (pending := [value]):
        kind: Any = type(part)
        if kind in IMMUTABLE or issubclass(kind, (Enum, type)) or text_of_standard_value(kind) or id(part) in seen:
            continue
        seen.add(id(part))
        is_record = kind.__bases__ == (tuple,) and hasattr(kind, "_fields") and not kind.__dictoffset__
        if kind is not tuple and kind is not frozenset and not is_record:
            return False
        pending.extend(member for member in part if type(member) not in IMMUTABLE)
    return True


@functools.cache
def _formats() -> Any:
    """What makes and reads images. `pickle` is loaded for the first value that needs one."""
    import pickle

    class Pickler(pickle.Pickler):
        """Refuses what only `copy.deepcopy` copies."""

        def reducer_override(self, part: Any) -> Any:
            own_way = getattr(part, "__deepcopy__", None)
            if own_way is not None and getattr(own_way, "__module__", "") != "pydantic.main":
                raise pickle.PicklingError(type(part).__qualname__)
            return NotImplemented

    return SimpleNamespace(Pickler=Pickler, loads=pickle.loads)


@functools.cache
def _message_pack() -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    """What writes and reads it. msgspec is loaded for the first value that needs one."""
    from msgspec import msgpack

    return msgpack.Encoder().encode, msgpack.Decoder().decode


def _copier_from_image(value: Any) -> Callable[[], Any] | None:
    """A function that makes copies of a mutable value; None if there is something in it that cannot be pickled."""
    formats = _formats()
    try:
        formats.Pickler(image := BytesIO(), 5).dump(value)
    except Exception:  # noqa: BLE001 - whatever a value does when it is pickled, `copy.deepcopy` may copy it
        return None
    return partial(formats.loads, image.getvalue())


def faster(copier: Callable[[], Any]) -> Callable[[], Any]:
    """The fastest function that makes the same copies as one of `auto_copier`: of a tree in half the time.

    Finding it takes as long as four copies, so it is for values that have been read before. It reads MessagePack, which
    knows dicts and lists alone, and not that one of them is in two places. So the types of all parts are looked at,
    level by level, as the garbage collector sees them.
    """
    if type(copier) is not partial or copier.func is not _formats().loads:
        return copier
    tree = copier()  # nobody else has this one
    containers = level = [tree]
    for _ in range(_MAX_LEVELS):
        if not _TREE.issuperset(map(type, level)) or len({*map(id, containers)}) < len(containers):
            break
        level = [part for part in gc.get_referents(*level) if type(part) not in _PLAIN]
        if not level:
            try:
                return partial(_message_pack()[1], packed(tree))
            except (OverflowError, UnicodeEncodeError):
                break  # an integer of more than 64 bits, or text that was cut in the middle of a character
        containers = [*containers, *level]
    return copier


def packed(tree: Any) -> bytes:
    """MessagePack, which equal trees of builtins share that have the same order. It tells no tuple or set from a list.

    Raises:
        TypeError, ValueError, OverflowError, RecursionError: if there is anything in it that MessagePack does not know.
    """
    return _message_pack()[0](tree)


def shared(_value: Any) -> None:
    """The rule of ``copy="never"``."""


def copy_rule_named(choice: Any) -> CopyRule | None:
    """The rule for a ``copy=`` option: ``"auto"``, ``"never"`` or a callable; None for anything else."""
    if not callable(choice):
        return auto_copier if choice == "auto" else shared if choice == "never" else None

    def snapshot(value: Any) -> Callable[[], Any]:
        try:
            return partial(choice, choice(value))
        except Exception as error:
            raise UncopyableError(f"copy={choice!r} failed") from error

    return snapshot
