"""Copies of results: how a cached value is kept apart from callers that change what they were given (``copy=``).

`auto_copier` decides once, when a value is stored, how each hit gets its copy. What no caller can change is shared. A
flat container is copied by its own method. A tree of builtins and an object of most classes are copied from an image
(`agent_cache.values.images`), and whatever else there is by `copy.deepcopy`.
"""

from __future__ import annotations

import copy
import functools
import gc
import weakref
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta, timezone
from enum import Enum
from functools import partial
from types import MemberDescriptorType
from typing import Any, Final, NamedTuple

from agent_cache.values.canonical import text_of_standard_value

__all__ = ["IMMUTABLE", "CopyRule", "UncopyableError", "auto_copier", "copy_rule_named", "faster", "is_immutable"]


class UncopyableError(Exception):
    """A result cannot be copied, so it is returned to the caller that ran the tool, and neither stored nor shared."""


class CopyRule(NamedTuple):
    """How a cached value is kept apart from callers that change what they were given.

    Attributes:
        snapshot: called with a value once, before the first caller gets it. Returns None if the value may be shared, or
            a function that makes a new copy for each hit. Raises `UncopyableError`.
    """

    name: str
    snapshot: Callable[[Any], Callable[[], Any] | None]


IMMUTABLE: Final[frozenset[type]] = frozenset({
    str, int, float, bool, type(None), bytes, complex, datetime, date, time, timedelta, timezone, range, type(Ellipsis),
})  # fmt: skip
"""Types whose values are shared, whatever ``copy=`` is."""

_FLAT: Final = frozenset({dict, list, set})


def auto_copier(value: Any) -> Callable[[], Any] | None:
    """Return a function that copies a mutable value, or None for an immutable one: the rule of ``copy="auto"``.

    A copy has the types, the content and the shared references of the value. It is made as `copy.deepcopy` would, in a
    fifth of the time: no `__init__` runs, and a class may define how its objects are copied (``__deepcopy__``,
    ``__reduce__``, ``__setstate__``, ...).

    An iterator is not copied, though `copy.deepcopy` copies some: whatever it draws from, a function or a file, would
    be drawn from by all its copies.

    Raises:
        UncopyableError: if the value cannot be copied.
    """
    kind = type(value)
    try:
        if kind in _FLAT:
            own = value.copy()  # before it is looked at: another thread may change it at any time
            if IMMUTABLE.issuperset(map(type, gc.get_referents(own))):
                return own.copy  # type: ignore[no-any-return]
        elif kind in IMMUTABLE or is_immutable(value):
            return None
        # `io.BytesIO` is one that has its content.
        is_iterator = kind not in _FLAT and (hasattr(kind, "__next__") or hasattr(kind, "__anext__"))
        if not is_iterator or hasattr(kind, "__deepcopy__") or hasattr(kind, "getvalue"):
            return _images().copier_from_image(value, is_immutable) or partial(copy.deepcopy, copy.deepcopy(value))
    except Exception as error:
        raise UncopyableError(f"a result of type {kind.__qualname__} cannot be copied") from error
    raise UncopyableError(f"copies of an iterator, a {kind.__qualname__}, would draw from one source")


@functools.cache
def _images() -> Any:
    """The module that makes images, imported for the first value that needs one."""
    from agent_cache.values import images

    return images


def faster(copier: Callable[[], Any]) -> Callable[[], Any]:
    """The fastest function that makes the same copies as one of `auto_copier`: of a tree in half the time.

    Finding it takes as long as four copies, so it is for values that have been read before.
    """
    found: Callable[[], Any] = _images().faster_than_pickle(copier) if type(copier) is partial else copier
    return found


AUTO: Final = CopyRule("auto", auto_copier)
SHARED: Final = CopyRule("never", lambda _value: None)


def copy_rule_named(choice: object) -> CopyRule | None:
    """The rule for a ``copy=`` option: ``"auto"``, ``"never"`` or a callable; None for anything else."""
    if choice == "auto":
        return AUTO
    if choice == "never":
        return SHARED
    if not callable(choice):
        return None
    copier: Callable[[Any], Any] = choice

    def snapshot(value: Any) -> Callable[[], Any]:
        try:
            return partial(copier, copier(value))
        except Exception as error:
            raise UncopyableError(f"copy={copier!r} failed") from error

    return CopyRule("custom", snapshot)


# What nobody can change


def is_immutable(value: Any) -> bool:
    """Whether no caller can change anything in a value, however deep."""
    pending, seen = [value], set[int]()
    for part in pending:
        members = _members_of_immutable(part, type(part))
        if members is None:
            return False
        if id(part) not in seen:
            seen.add(id(part))
            pending.extend(member for member in members if type(member) not in IMMUTABLE)
    return True


def _members_of_immutable(part: Any, kind: Any) -> Iterable[Any] | None:
    """What is in an object that itself cannot be changed; None if it can be."""
    if kind is tuple or kind is frozenset:
        return part  # type: ignore[no-any-return]
    if kind in IMMUTABLE or issubclass(kind, (Enum, type)) or text_of_standard_value(kind) is not None:
        return ()
    if kind.__dictoffset__:  # `vars(record)["x"] = 1` changes a record with a `__dict__`, however frozen its class is
        return None
    if issubclass(kind, tuple):
        return tuple(part) if kind.__bases__ == (tuple,) and hasattr(kind, "_fields") else None
    if not _is_frozen_record(kind):
        return None
    return [getattr(part, name, None) for base in kind.__mro__ for name in vars(base).get("__slots__", ())]


_records: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


def _is_frozen_record(kind: Any) -> bool:
    """Whether it is a frozen dataclass with slots, or a frozen Struct, and has no method of its own.

    One that has may set attributes of a frozen object, as `functools.cached_property` does.
    """
    known = _records.get(kind)
    if known is None:
        settings = vars(kind).get("__dataclass_params__") or getattr(kind, "__struct_config__", None)
        own = [each for base in kind.__mro__ for name, each in vars(base).items() if name[:2] != "__"]
        without_object = (MemberDescriptorType, classmethod, staticmethod)
        has_methods = any(hasattr(each, "__get__") and not isinstance(each, without_object) for each in own)
        known = _records[kind] = settings is not None and settings.frozen and not has_methods
    return known
