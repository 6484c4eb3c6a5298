"""The draft of a target: what hooks change in its place, so that the target changes as a whole or not at all.

The draft of an object is an object of the same class with the same attributes. Its methods, properties and slots are
those of the class, so a hook can do with the draft what it would do with the target. Containers of builtin kinds are
copied, also within each other; whatever else an attribute refers to is the same object in both, and what a hook does to
*that* is done at once. When the hooks have returned, `Draft.commit` does to the target what they did to the draft:
attributes that were assigned are assigned with ``setattr``, and containers that were changed in place are changed in
place, so that whoever else refers to them sees it, too.
"""

from __future__ import annotations

import copy
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from agent_cache.errors import RestoreError
from agent_cache.values.canonical import full_name, has_native_state, is_model

__all__ = ["Draft", "assign_all"]

T = TypeVar("T")


# Containers


class _Kind(NamedTuple):
    """How the containers of one type are read and filled."""

    empty: Callable[[Any], Any]
    members: Callable[[Any], tuple[Any, ...]]
    fill: Callable[[Any, tuple[Any, ...]], None]


def _fill_list(target: Any, members: tuple[Any, ...]) -> None:
    target[:] = members


def _fill_dict(target: dict[Any, Any], members: tuple[Any, ...]) -> None:
    target.clear()
    for key, value in zip(members[::2], members[1::2], strict=True):
        target[key] = value  # noqa: PERF403 - `Counter.update` adds


def _fill(target: Any, members: tuple[Any, ...]) -> None:
    target.clear()
    (target.update if type(target) is set else target.extend)(members)


def _pairs(value: dict[Any, Any]) -> tuple[Any, ...]:
    return tuple(chain.from_iterable(value.items()))


_DICT = _Kind(lambda value: type(value)(), _pairs, _fill_dict)
_KINDS: Final[dict[type, _Kind]] = {
    list: _Kind(lambda _: [], tuple, _fill_list),
    dict: _DICT,
    OrderedDict: _DICT,
    Counter: _DICT,
    defaultdict: _DICT._replace(empty=lambda value: defaultdict(value.default_factory)),
    set: _Kind(lambda _: set(), tuple, _fill),
    deque: _Kind(lambda value: deque(maxlen=value.maxlen), tuple, _fill),
    bytearray: _Kind(lambda _: bytearray(), tuple, _fill_list),
}


class _Pair:
    """A container and its copy, and the members of both when the copy was made."""

    __slots__ = ("copied", "copy", "kind", "original", "seen")

    def __init__(self, original: Any, kind: _Kind) -> None:
        self.original = original
        self.kind = kind
        self.seen = kind.members(original)
        self.copy = kind.empty(original)
        self.copied: tuple[Any, ...] = ()

    def is_changed(self) -> bool:
        """Whether a hook has changed the copy."""
        return not _are_same(self.kind.members(self.copy), self.copied, self.original)

    def is_moved(self) -> bool:
        """Whether anything else has changed the container since."""
        return not _are_same(self.kind.members(self.original), self.seen, self.original)


def _are_same(some: tuple[Any, ...], others: tuple[Any, ...], of: Any) -> bool:
    """Whether these are the same objects, so that no comparison of a user's class is run."""
    if len(some) != len(others):
        return False
    if type(of) is set:
        return set(map(id, some)) == set(map(id, others))
    return all(one is other for one, other in zip(some, others, strict=True))


def _is_tuple(value: Any) -> bool:
    return type(value) is tuple or (isinstance(value, tuple) and hasattr(value, "_fields"))


class _Copies:
    """Copies of containers within each other. What occurs twice, or contains itself, does so in the copy."""

    def __init__(self, target: Any) -> None:
        self.pairs: list[_Pair] = []
        self._target = target
        self._draft = target
        self._copies: dict[int, tuple[Any, Any]] = {}  # by the address of the original, which is kept alive
        self._originals: dict[int, tuple[Any, Any]] = {}  # by the address of the copy

    def begin(self, draft: Any) -> None:
        """Have this object stand for the target wherever the target occurs."""
        self._draft = draft
        self._note(self._target, draft)

    def of(self, value: Any) -> Any:
        """The copy of a container, the draft for the target, or any other value itself."""
        known = self._copies.get(id(value))
        if known is not None:
            return known[1]
        if type(value) is types.MethodType and value.__self__ is self._target:
            method = types.MethodType(value.__func__, self._draft)
            self._note(value, method)
            return method
        kind = _KINDS.get(type(value))
        if kind is None and not _is_tuple(value):
            return value
        if kind is None:
            members = tuple(self.of(member) for member in value)
            twin = value if _are_same(members, value, value) else tuple.__new__(type(value), members)
            self._note(value, twin)
            return twin
        pair = _Pair(value, kind)
        self._note(value, pair.copy)
        # A container may change while it is read if another thread does it; `seen` is what was there.
        kind.fill(pair.copy, tuple(self.of(member) for member in pair.seen))
        pair.copied = kind.members(pair.copy)
        self.pairs.append(pair)
        return pair.copy

    def _note(self, value: Any, twin: Any) -> None:
        self._copies[id(value)] = (value, twin)
        self._originals[id(twin)] = (twin, value)

    def original_of(self, value: Any) -> Any:
        """What the target is to have for a value of the draft.

        Of a copy it is the original. A container that a hook has made is changed in place to contain originals.
        """
        found = self._originals.get(id(value))
        if found is not None:
            return found[1]
        if type(value) is types.MethodType and value.__self__ is self._draft:
            return types.MethodType(value.__func__, self._target)
        kind = _KINDS.get(type(value))
        if kind is not None:
            self._originals[id(value)] = (value, value)
            members = kind.members(value)
            originals = tuple(map(self.original_of, members))
            if not _are_same(originals, members, value):
                kind.fill(value, originals)
        elif _is_tuple(value):
            members = tuple(map(self.original_of, value))
            if not _are_same(members, value, value):
                return tuple.__new__(type(value), members)
        return value


# Attributes

_SCALARS = frozenset({bool, int, float, complex, str, bytes, frozenset})
_MISSING: Final = object()


class _Place(NamedTuple):
    """Where an attribute of an object is kept: in its ``__dict__``, or in a slot."""

    name: str
    slot: types.MemberDescriptorType | None

    def read(self, owner: Any) -> Any:
        if self.slot is None:
            return object.__getattribute__(owner, "__dict__").get(self.name, _MISSING)
        try:
            return self.slot.__get__(owner)
        except AttributeError:
            return _MISSING

    def write(self, owner: Any, value: Any) -> None:
        """Set or remove the attribute without code of the class."""
        if value is _MISSING:
            if self.slot is None:
                object.__getattribute__(owner, "__dict__").pop(self.name, None)
            elif self.read(owner) is not _MISSING:
                self.slot.__delete__(owner)
        elif self.slot is None:
            object.__getattribute__(owner, "__dict__")[self.name] = value
        else:
            self.slot.__set__(owner, value)

    def assign(self, owner: Any, value: Any) -> None:
        """Set or remove the attribute as any code would, so that the class can refuse it, or take note of it."""
        if self.name.startswith("__"):  # of pydantic's own
            self.write(owner, value)
        elif value is _MISSING:
            delattr(owner, self.name)
        else:
            setattr(owner, self.name, value)


def _places(owner: Any) -> Iterator[_Place]:
    for base in type(owner).__mro__:
        for name, found in vars(base).items():
            if isinstance(found, types.MemberDescriptorType) and name != "__dict__":
                yield _Place(name, found)
    if _has_dict(type(owner)):
        for name in list(object.__getattribute__(owner, "__dict__")):
            yield _Place(name, None)


def _has_dict(kind: type) -> bool:
    return kind.__dictoffset__ != 0


def _attributes(owner: Any) -> dict[_Place, Any]:
    found = {place: place.read(owner) for place in _places(owner)}
    return {place: value for place, value in found.items() if value is not _MISSING}


def assign_all(names: Iterable[T], assign: Callable[[T], None]) -> None:
    """Assign attributes in an order that the class accepts: what it refuses is tried again after the others.

    Raises:
        Exception: the last refusal, when the class accepts no more.
    """
    left = list(names)
    while left:
        refused: dict[T, Exception] = {}
        for name in left:
            try:
                assign(name)
            except Exception as error:  # noqa: BLE001 - a setter may raise anything
                refused[name] = error
        if len(refused) == len(left):
            raise refused[left[-1]]
        left = list(refused)


class _Discarded:
    """The class of a draft after use, if its own has a ``__del__`` that would close what the target still uses."""


class Draft:
    """The draft of one target.

    Args:
        target: any object.

    Attributes:
        value: what the hooks get. Of a value without parts, such as None, it is the target.

    Raises:
        RestoreError: if the target keeps state that only code in C can copy.
    """

    def __init__(self, target: Any) -> None:
        self._target = target
        self._copies = _Copies(target)
        self._before: dict[_Place, Any] = {}
        self._made: dict[_Place, Any] = {}
        self._of_class: frozenset[str] = frozenset()
        self._has_attributes = False
        self.value = self._drafted(target)

    def _drafted(self, target: Any) -> Any:
        kind: Any = type(target)
        if kind in _KINDS or isinstance(target, tuple) or target is None or kind in _SCALARS:
            return self._copies.of(target)
        if kind is types.SimpleNamespace:
            draft: Any = types.SimpleNamespace()
        else:
            if has_native_state(kind):
                raise RestoreError(
                    f"the target is a {full_name(kind)}, which keeps state that cannot be copied; give restore the "
                    "object that your hook changes, or None if it makes a new one"
                )
            draft = _unset(target, kind)
        self._copies.begin(draft)
        self._before = _attributes(target)
        for place, value in self._before.items():
            place.write(draft, self._copies.of(value))
        if _has_dict(kind) and not is_model(kind):
            self._of_class = frozenset(self._copy_containers_of_class(kind, draft))
        self._made = _attributes(draft)
        self._has_attributes = True
        return draft

    def _copy_containers_of_class(self, kind: type, draft: Any) -> Iterator[str]:
        """Give the draft its own copies of containers that are attributes of the class."""
        own = object.__getattribute__(draft, "__dict__")
        for base in kind.__mro__:
            for name, value in vars(base).items():
                if type(value) in _KINDS and name not in own and not name.startswith("__"):
                    own[name] = self._copies.of(value)
                    yield name

    def commit(self) -> None:
        """Do to the target what was done to the draft.

        Raises:
            RestoreError: if something else has changed the same part of the target since, or the target's class
                refuses a value. The target is then as it was, unless the text says which part could not be put back.
        """
        target = self._target
        try:
            changed = [
                (pair, tuple(map(self._copies.original_of, pair.kind.members(pair.copy))))
                for pair in self._copies.pairs
                if pair.is_changed()
            ]
            assigned = dict(self._assigned())
        except RecursionError as error:
            raise RestoreError("a hook has given the target a value that is nested too deep", (error,)) from error
        for place in assigned:
            if place.read(target) is not self._before.get(place, _MISSING):
                raise RestoreError(f"{self._name(place.name)} was changed by something else while its hooks ran")
        if any(pair.is_moved() for pair, _ in changed):
            raise RestoreError(
                f"a container in the target, a {full_name(type(target))}, was changed by something else while its "
                "hooks ran"
            )
        before = _attributes(target) if self._has_attributes else {}
        touched = self._copies.pairs if assigned else [pair for pair, _ in changed]
        contents = [(pair, pair.kind.members(pair.original)) for pair in touched]
        begun: list[_Place] = []

        def assign(place: _Place) -> None:
            begun.append(place)
            place.assign(target, assigned[place])

        try:
            for pair, members in changed:
                pair.kind.fill(pair.original, members)
            assign_all(assigned, assign)
            for place, value in assigned.items():
                if place.read(target) is not value:  # its class makes something of what is assigned, a second time
                    place.write(target, value)
        except BaseException as error:
            errors = [error, *self._roll_back(contents, begun, before)]
            for each in errors:
                if not isinstance(each, Exception):
                    raise each from None
            refused = self._name(begun[-1].name) if begun else "a container"
            left = [place.name for place in self._differing(before)]
            state = f"{', '.join(left)} could not be put back" if left else "the target is as it was"
            raise RestoreError(f"{refused} did not take its value: {error!r}; {state}", errors) from error
        self._share_attributes()

    def _share_attributes(self) -> None:
        """Have the draft, to which a hook may have left references, read and change the attributes of the target."""
        if not self._has_attributes:
            return
        for place, value in _attributes(self._target).items():
            if place.slot is not None:
                place.write(self.value, value)
        if _has_dict(type(self._target)):
            with suppress(AttributeError):  # of a SimpleNamespace, it cannot be replaced
                object.__setattr__(self.value, "__dict__", object.__getattribute__(self._target, "__dict__"))

    def discard(self) -> None:
        """End the use of the draft."""
        draft = self.value
        if self._has_attributes and hasattr(type(draft), "__del__"):
            draft.__class__ = _Discarded

    def _assigned(self) -> Iterator[tuple[_Place, Any]]:
        """The attributes that were assigned or removed, with their values."""
        if not self._has_attributes:
            return
        after = _attributes(self.value)
        for place, value in after.items():
            if value is not self._made.get(place, _MISSING):
                yield place, self._copies.original_of(value)
        for place in self._made.keys() - after.keys():
            if place.name not in self._of_class:
                yield place, _MISSING

    def _roll_back(
        self,
        contents: list[tuple[_Pair, tuple[Any, ...]]],
        begun: list[_Place],
        before: dict[_Place, Any],
    ) -> list[BaseException]:
        """Put everything back, the last first. What the class refuses is put back without its code."""
        errors: list[BaseException] = []
        for place in reversed(begun):
            old = before.get(place, _MISSING)
            if place.read(self._target) is not old:
                try:
                    place.assign(self._target, old)
                except BaseException as error:  # noqa: BLE001 - a setter may raise anything; the rest is put back
                    errors.append(error)
        for place in self._differing(before):
            try:
                place.write(self._target, before.get(place, _MISSING))
            except Exception as error:  # noqa: BLE001 - as above
                errors.append(error)
        for pair, members in reversed(contents):
            if not _are_same(pair.kind.members(pair.original), members, pair.original):
                pair.kind.fill(pair.original, members)
        return errors

    def _differing(self, before: dict[_Place, Any]) -> list[_Place]:
        now = _attributes(self._target) if self._has_attributes else {}
        return [
            place
            for place in {**before, **now}
            if before.get(place, _MISSING) is not now.get(place, _MISSING)
        ]  # fmt: skip

    def _name(self, attribute: str) -> str:
        return f"{type(self._target).__qualname__}.{attribute}"


def _unset(target: Any, kind: Any) -> Any:
    """An object of the target's class, whose attributes are not set yet."""
    if issubclass(kind, msgspec.Struct):  # it is made in C only, and with the attributes of another
        return copy.copy(target)
    if not hasattr(kind, "__del__"):
        return object.__new__(kind)
    made: Any = _Discarded()
    try:
        made.__class__ = kind
    except TypeError:
        raise RestoreError(
            f"the target is a {full_name(kind)}, whose __del__ would also be run for its draft; give restore the "
            "object that your hook changes, or None if it makes a new one"
        ) from None
    return made
