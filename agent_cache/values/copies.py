"""Copies of results: how a cached value is kept apart from callers that change what they were given (``copy=``).

`auto_copier` decides once, when a value is stored, how each hit gets its copy. What no caller can change is shared. A
flat container is copied by its own method. A tree of builtins and an object of most classes are copied from an *image*:
bytes that never leave this process. It is a pickle that names no class, since what is immutable, such as a class or a
date, is kept beside it, and shared. Whatever else there is is copied by `copy.deepcopy`.
"""

from __future__ import annotations

import copy
import copyreg
import functools
import gc
import weakref
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from enum import Enum
from functools import partial
from io import BytesIO
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodDescriptorType, SimpleNamespace
from typing import Any, Final, NamedTuple

from agent_cache.values.canonical import is_model, text_of_standard_value

__all__ = ["IMMUTABLE", "CopyRule", "UncopyableError", "auto_copier", "copy_rule_named", "faster", "packed"]


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
_PLAIN: Final[frozenset[type]] = frozenset({str, int, float, bool, type(None), bytes})
"""Types without parts that MessagePack gives back as they were, all but the largest integers and half characters."""

_TREE: Final = frozenset({dict, list})
_BUILTIN: Final = _PLAIN | _FLAT | {tuple, frozenset, bytearray}
_FUNCTIONS: Final = (FunctionType, BuiltinFunctionType, MethodDescriptorType)

_MAX_LEVELS: Final = 32
"""Levels that are read from MessagePack, which takes as much of the interpreter's stack. A pickle takes none."""


def auto_copier(value: Any) -> Callable[[], Any] | None:
    """Return a function that copies a mutable value, or None for an immutable one: the rule of ``copy="auto"``.

    A copy has the types, the content and the shared references of the value. It is made as `copy.deepcopy` would, in a
    fifth of the time: no `__init__` runs, and a class may define how its objects are copied. An iterator is not copied:
    whatever it draws from, a function or a file, would be drawn from by all its copies.

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
        # `io.BytesIO` is one that has its content.
        is_iterator = kind not in _FLAT and (hasattr(kind, "__next__") or hasattr(kind, "__anext__"))
        if not is_iterator or hasattr(kind, "__deepcopy__") or hasattr(kind, "getvalue"):
            return _copier_from_image(value) or partial(copy.deepcopy, copy.deepcopy(value))
    except Exception as error:
        raise UncopyableError(f"a result of type {kind.__qualname__} cannot be copied") from error
    raise UncopyableError(f"copies of an iterator, a {kind.__qualname__}, would draw from one source")


def faster(copier: Callable[[], Any]) -> Callable[[], Any]:
    """The fastest function that makes the same copies as one of `auto_copier`: of a tree in half the time.

    Finding it takes as long as four copies, so it is for values that have been read before. It reads MessagePack, which
    knows neither tuples and sets, nor that one list is in two places. So the types of all parts are looked at, level by
    level, as the garbage collector sees them.
    """
    if type(copier) is not partial or copier.func is not _formats().loads:
        return copier
    tree = copier()  # nobody else has this one
    containers = level = [tree]
    for _ in range(_MAX_LEVELS):
        if len({*map(id, containers)}) < len(containers):
            break
        level = [part for part in gc.get_referents(*level) if type(part) not in _PLAIN]
        if not level:
            formats = _formats()
            try:
                return (
                    partial(formats.unpack, formats.pack(tree)) if _TREE.issuperset(map(type, containers)) else copier
                )
            except (OverflowError, UnicodeEncodeError):
                break  # an integer of more than 64 bits, or text that was cut in the middle of a character
        containers = [*containers, *level]
    return copier


def packed(tree: Any) -> bytes:
    """MessagePack, which equal trees of builtins share that have the same order. It tells no tuple or set from a list.

    Raises:
        TypeError, ValueError, OverflowError, RecursionError: if there is anything in it that MessagePack does not know.
    """
    return _encoder()(tree)


@functools.cache
def _encoder() -> Callable[[Any], bytes]:
    from msgspec import msgpack

    return msgpack.Encoder().encode


AUTO: Final = CopyRule("auto", auto_copier)
SHARED: Final = CopyRule("never", lambda _value: None)


def copy_rule_named(choice: object) -> CopyRule | None:
    """The rule for a ``copy=`` option: ``"auto"``, ``"never"`` or a callable; None for anything else."""
    if not callable(choice):
        return AUTO if choice == "auto" else SHARED if choice == "never" else None
    copier: Callable[[Any], Any] = choice

    def snapshot(value: Any) -> Callable[[], Any]:
        try:
            return partial(copier, copier(value))
        except Exception as error:
            raise UncopyableError(f"copy={copier!r} failed") from error

    return CopyRule("custom", snapshot)


# Images


@functools.cache
def _formats() -> Any:
    """What makes and reads images. `pickle` and msgspec are loaded for the first value that needs one."""
    import pickle

    from msgspec import Struct, msgpack, structs

    class TreePickler(pickle.Pickler):
        """Pickles builtins alone, in one step, which no other thread interrupts."""

        def reducer_override(self, part: object) -> Any:
            raise pickle.PicklingError(type(part).__name__)

    pickler: Any = pickle.Pickler
    unpickler: Any = pickle.Unpickler
    try:
        pickler(BytesIO()).persistent_id = type
    except AttributeError:  # in Python 3.13.0 it can be set in a class that derives from these alone, which are slower
        pickler, unpickler = type("Pickler", (pickler,), {}), type("Unpickler", (unpickler,), {})

    def set_fields(made: Any, fields: dict[str, Any]) -> None:
        for name, part in fields.items():
            structs.force_setattr(made, name, part)

    return SimpleNamespace(
        Pickler=pickler,
        PicklingError=pickle.PicklingError,
        TreePickler=TreePickler,
        Unpickler=unpickler,
        loads=pickle.loads,
        pack=packed,
        unpack=msgpack.Decoder().decode,
        set_fields=set_fields,
        shallow=Struct.__copy__,  # type: ignore[attr-defined]  # what `copy.copy` calls
    )


def _copier_from_image(value: Any) -> Callable[[], Any] | None:
    """A function that makes copies of a mutable value; None if there is something in it that cannot be pickled."""
    formats = _formats()
    if type(value) in _BUILTIN:
        try:
            formats.TreePickler(image := BytesIO(), 5).dump(value)
            return partial(formats.loads, image.getvalue())
        except Exception:  # noqa: BLE001, S110 - there are objects in it, or too many levels
            pass
    kept: dict[int, tuple[int, Any]] = {}
    copied, ways = set(_BUILTIN), copyreg.dispatch_table.copy()  # no name of the pickler: it would be in a cycle

    def place_of(part: Any) -> int | None:
        """The place of a part that is kept as it is; None for one of which the image makes a copy."""
        kind = type(part)
        if kind in copied:
            return None
        if id(part) in kept or isinstance(part, _FUNCTIONS) or _is_immutable(part):
            return kept.setdefault(id(part), (len(kept), part))[0]
        own_way = getattr(part, "__deepcopy__", None)
        if own_way is not None and not (is_model(kind) and own_way.__func__.__module__ == "pydantic.main"):
            raise formats.PicklingError(kind.__name__)  # only `copy.deepcopy` copies it
        if not hasattr(kind, "__struct_fields__"):
            copied.add(kind)
        elif isinstance(kind.__reduce__, MethodDescriptorType):  # msgspec's own, which makes it by its constructor
            ways.setdefault(kind, reduced_struct)
        return None

    def reduced_struct(part: Any) -> Any:
        """A copy of a blank one, which is kept, and its attributes."""
        fields = {name: getattr(part, name) for name in part.__struct_fields__ if hasattr(part, name)}
        formats.set_fields(blank := formats.shallow(part), dict.fromkeys(fields))
        kept[id(blank)] = len(kept), blank
        return formats.shallow, (blank,), fields | getattr(part, "__dict__", {}), None, None, formats.set_fields

    pickler = formats.Pickler(image := BytesIO(), 5)
    pickler.dispatch_table, pickler.persistent_id = ways, place_of
    try:
        pickler.dump(value)
    except Exception:  # noqa: BLE001 - whatever a value does when it is pickled, `copy.deepcopy` may copy it
        return None
    return partial(_from_image, formats.Unpickler, image.getvalue(), tuple(part for _, part in kept.values()))


def _from_image(unpickler: Any, image: bytes, kept: tuple[Any, ...]) -> Any:
    reader = unpickler(BytesIO(image))
    reader.persistent_load = kept.__getitem__
    return reader.load()


# What nobody can change


def _is_immutable(value: Any) -> bool:
    """Whether no caller can change anything in a value, however deep."""
    pending, seen = [value], set[int]()
    for part in pending:
        kind: Any = type(part)
        if kind in IMMUTABLE or issubclass(kind, (Enum, type)) or text_of_standard_value(kind) or id(part) in seen:
            continue
        seen.add(id(part))
        is_record = kind.__bases__ == (tuple,) and hasattr(kind, "_fields")
        if kind is tuple or kind is frozenset or (is_record and not kind.__dictoffset__):
            members = part
        # `vars(record)["x"] = 1` changes a record with a `__dict__`, however frozen its class is.
        elif not kind.__dictoffset__ and _is_frozen(kind):
            members = [getattr(part, name, None) for base in kind.__mro__ for name in vars(base).get("__slots__", ())]
        else:
            return False
        pending.extend(member for member in members if type(member) not in IMMUTABLE)
    return True


_frozen: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


def _is_frozen(kind: Any) -> bool:
    """Whether it is a frozen dataclass with slots, or a frozen Struct, and has no method of its own.

    One that has may set attributes of a frozen object, as `functools.cached_property` does.
    """
    known = _frozen.get(kind)
    if known is None:
        settings = vars(kind).get("__dataclass_params__") or getattr(kind, "__struct_config__", None)
        own = [each for base in kind.__mro__ for name, each in vars(base).items() if name[:2] != "__"]
        without_object = (MemberDescriptorType, classmethod, staticmethod)
        has_methods = any(hasattr(each, "__get__") and not isinstance(each, without_object) for each in own)
        known = _frozen[kind] = settings is not None and settings.frozen and not has_methods
    return known
