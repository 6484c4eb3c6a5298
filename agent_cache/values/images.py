"""Images of results: bytes that copies are made from. They never leave this process.

An image is a pickle that names no class: what is immutable, such as a class or a date, is kept beside it, and shared.
A tree of builtins that is read more often has one of MessagePack.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from io import BytesIO
from pickle import Pickler, PicklingError, Unpickler, loads
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType
from typing import Any, Final

from msgspec import Struct, msgpack
from msgspec.structs import force_setattr

from agent_cache.values.canonical import is_model

__all__ = ["copier_from_image", "faster_than_pickle"]

_PLAIN: Final[frozenset[type]] = frozenset({str, int, float, bool, type(None), bytes})
"""Types without parts that MessagePack gives back as they were, all but the largest integers and half characters."""

_TREE: Final = frozenset({dict, list})
_BUILTIN: Final = _PLAIN | _TREE | {set, tuple, frozenset, bytearray}
_FUNCTIONS: Final = (FunctionType, BuiltinFunctionType, MethodDescriptorType)

_MAX_LEVELS: Final = 32
"""Levels that are read from MessagePack, which takes as much of the interpreter's stack. A pickle takes none."""

_shallow: Callable[[Any], Any] = Struct.__copy__  # type: ignore[attr-defined]  # what `copy.copy` calls
_pack, _unpack = msgpack.Encoder().encode, msgpack.Decoder().decode


class _TreePickler(Pickler):
    """Pickles builtins alone, in one step, which no other thread interrupts."""

    def reducer_override(self, part: object) -> Any:
        raise PicklingError(type(part).__name__)


class _ObjectPickler(Pickler):
    """Pickles objects, but for those that only `copy.deepcopy` copies."""

    def __init__(self, file: BytesIO, is_immutable: Callable[[Any], bool]) -> None:
        super().__init__(file, 5)
        self._is_immutable = is_immutable
        self.kept: dict[int, tuple[int, Any]] = {}
        self._copied = set(_BUILTIN)

    def _keep(self, part: Any) -> int:
        return self.kept.setdefault(id(part), (len(self.kept), part))[0]

    def persistent_id(self, part: Any) -> int | None:
        """The place of a part that is kept as it is; None for one of which the image makes a copy."""
        kind = type(part)
        if kind in self._copied:
            return None
        if id(part) in self.kept or isinstance(part, _FUNCTIONS) or self._is_immutable(part):
            return self._keep(part)
        own_way = getattr(part, "__deepcopy__", None)
        if own_way is not None and not (is_model(kind) and own_way.__func__.__module__ == "pydantic.main"):
            raise PicklingError(kind.__name__)
        if not issubclass(kind, Struct):  # of which blank ones are kept
            self._copied.add(kind)
        return None

    def reducer_override(self, part: Any) -> Any:
        """How a Struct is made: msgspec would call its `__post_init__` again, and leave out its `__dict__`."""
        kind = type(part)
        if not issubclass(kind, Struct) or kind.__reduce__ is not Struct.__reduce__:
            return NotImplemented
        state = {name: getattr(part, name) for name in kind.__struct_fields__ if hasattr(part, name)}
        blank = _shallow(part)
        for name in state:
            force_setattr(blank, name, None)
        self._keep(blank)
        return _shallow, (blank,), state | getattr(part, "__dict__", {}), None, None, _set_state


def _set_state(made: Any, state: dict[str, Any]) -> None:
    for name, part in state.items():
        force_setattr(made, name, part)


def copier_from_image(value: Any, is_immutable: Callable[[Any], bool]) -> Callable[[], Any] | None:
    """A function that makes copies of a mutable value; None if there is something in it that cannot be pickled."""
    if type(value) in _BUILTIN:
        try:
            _TreePickler(image := BytesIO(), 5).dump(value)
            return partial(loads, image.getvalue())
        except Exception:  # noqa: BLE001, S110 - there are objects in it, or too many levels
            pass
    try:
        pickler = _ObjectPickler(image := BytesIO(), is_immutable)
        pickler.dump(value)
    except Exception:  # noqa: BLE001 - whatever a value does when it is pickled, `copy.deepcopy` may copy it
        return None
    return partial(_revived, image.getvalue(), tuple(part for _, part in pickler.kept.values()))


class _ObjectReader(Unpickler):
    kept: tuple[Any, ...]

    def persistent_load(self, place: Any) -> Any:
        return self.kept[place]


def _revived(image: bytes, kept: tuple[Any, ...]) -> Any:
    reader = _ObjectReader(BytesIO(image))
    reader.kept = kept
    return reader.load()


def faster_than_pickle(copier: partial[Any]) -> Callable[[], Any]:
    """Makes the same copies from MessagePack, in half the time, if that gives them back exactly.

    MessagePack knows neither tuples and sets, nor that one list is in two places. So the types of all parts are looked
    at, level by level, as the garbage collector sees them.
    """
    if copier.func is not loads:
        return copier
    tree = copier()  # nobody else has this one
    containers = level = [tree]
    for _ in range(_MAX_LEVELS):
        if len({*map(id, containers)}) < len(containers):
            break
        level = [part for part in gc.get_referents(*level) if type(part) not in _PLAIN]
        if not level:
            try:
                return partial(_unpack, _pack(tree)) if _TREE.issuperset(map(type, containers)) else copier
            except (OverflowError, UnicodeEncodeError):
                break  # an integer of more than 64 bits, or text that was cut in the middle of a character
        containers = [*containers, *level]
    return copier
