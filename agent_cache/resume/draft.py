"""The draft of a target: what hooks change in its place, so that the target changes as a whole or not at all.

The draft of an object is an object of the same class with the same attributes. Builtin containers among them are
copied, also within each other; whatever else an attribute refers to is the same object in both. When the hooks have
returned, `Draft.commit` assigns to the target what was assigned to the draft, and changes in place the containers whose
copies were changed.
"""

from __future__ import annotations

import copy
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, Final, TypeVar

import msgspec

from agent_cache.errors import RestoreError
from agent_cache.values.canonical import full_name, has_native_state, is_model

__all__ = ["Draft", "assign_all"]

T = TypeVar("T")
_CONTAINERS: Final = frozenset({list, dict, OrderedDict, Counter, defaultdict, set, deque, bytearray})
_SCALARS: Final = frozenset({type(None), bool, int, float, complex, str, bytes, frozenset})
_MISSING: Final = object()


# Containers


def _parts(container: Any) -> tuple[Any, ...]:
    return tuple(chain.from_iterable(container.items()) if isinstance(container, dict) else container)


def _fill(container: Any, parts: tuple[Any, ...]) -> None:
    if isinstance(container, list | bytearray):
        container[:] = parts
        return
    container.clear()
    if isinstance(container, dict):
        for key, value in zip(parts[::2], parts[1::2], strict=True):
            container[key] = value
    else:
        (container.update if isinstance(container, set) else container.extend)(parts)


def _are_same(some: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    """Whether these are the same objects, so that no comparison of a user's class is run."""
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))


class _Twins:
    """Which object stands for which other one, by address; both are kept alive."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Any]] = {}

    def note(self, value: Any, twin: Any) -> None:
        self._known[id(value)] = (value, twin)

    def of(self, value: Any, copied: Callable[[Any], Any]) -> Any:
        """What stands for a value. A container that nothing stands for yet is filled with what stands for its parts.

        Args:
            value: any value.
            copied: makes the container to fill of one that is not known.
        """
        found = self._known.get(id(value))
        if found is not None:
            return found[1]
        if type(value) is types.MethodType and id(value.__self__) in self._known:
            twin = types.MethodType(value.__func__, self.of(value.__self__, copied))
            self.note(value, twin)
            return twin
        if type(value) is tuple or (isinstance(value, tuple) and hasattr(value, "_fields")):
            members = tuple(self.of(each, copied) for each in value)
            return value if _are_same(members, value) else tuple.__new__(type(value), members)
        if type(value) not in _CONTAINERS:
            return value
        twin = copied(value)
        self.note(value, twin)
        before = _parts(value)
        parts = tuple(self.of(each, copied) for each in before)
        if not _are_same(parts, before):
            _fill(twin, parts)
        return twin


# Attributes


def _slots(kind: type) -> dict[str, types.MemberDescriptorType]:
    found = {name: each for base in reversed(kind.__mro__) for name, each in vars(base).items()}
    return {name: each for name, each in found.items() if isinstance(each, types.MemberDescriptorType)}


def _attributes(owner: Any) -> dict[str, Any]:
    """The attributes of an object, as they are kept."""
    found: dict[str, Any] = {}
    for name, slot in _slots(type(owner)).items():
        with suppress(AttributeError):
            found[name] = slot.__get__(owner)
    return found | (object.__getattribute__(owner, "__dict__") if type(owner).__dictoffset__ else {})


def _containers_of_class(kind: Any, own: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Containers that are attributes of a class, and that an object without such an attribute changes in place."""
    if kind.__dictoffset__ and not is_model(kind):
        for base in reversed(kind.__mro__):
            for name, value in vars(base).items():
                if type(value) in _CONTAINERS and name not in own and not name.startswith("__"):
                    yield name, value


def _write(owner: Any, name: str, value: Any) -> None:
    """Set or remove an attribute without code of the class."""
    slot = _slots(type(owner)).get(name)
    if slot is not None:
        with suppress(AttributeError):
            slot.__delete__(owner) if value is _MISSING else slot.__set__(owner, value)
    elif value is _MISSING:
        object.__getattribute__(owner, "__dict__").pop(name, None)
    else:
        object.__getattribute__(owner, "__dict__")[name] = value


def _assign(owner: Any, name: str, value: Any) -> None:
    """Set or remove an attribute as any code would, so that the class can refuse it, or take note of it."""
    if name.startswith("__"):  # of pydantic's own
        _write(owner, name, value)
    elif value is _MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, value)
        if _attributes(owner).get(name, value) is not value:  # its class makes something of it, a second time
            _write(owner, name, value)


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
        self._copies, self._originals = _Twins(), _Twins()
        self._pairs: list[tuple[Any, Any]] = []  # containers and their copies
        kind = type(target)
        self._has_attributes = not (kind in _CONTAINERS or kind in _SCALARS or isinstance(target, tuple))
        self._before = _attributes(target) if self._has_attributes else {}
        self._of_class = dict(_containers_of_class(kind, self._before)) if self._has_attributes else {}
        self.value = _unset(target, kind) if self._has_attributes else target
        if self._has_attributes:
            self._copies.note(target, self.value)
            self._originals.note(self.value, target)
            for name, value in self._before.items():
                _write(self.value, name, self._copies.of(value, self._copied))
            for name, value in self._of_class.items():
                _write(self.value, name, self._copies.of(value, self._copied))
        else:
            self.value = self._copies.of(target, self._copied)
        self._given = _attributes(self.value) if self._has_attributes else {}
        self._seen = [(_parts(original), _parts(twin)) for original, twin in self._pairs]

    def _copied(self, container: Any) -> Any:
        twin = copy.copy(container)
        self._pairs.append((container, twin))
        self._originals.note(twin, container)
        return twin

    def _original(self, value: Any) -> Any:
        """What the target is to have for a value of the draft. Containers that a hook has made stay the same ones."""
        return self._originals.of(value, lambda container: container)

    def commit(self) -> None:
        """Do to the target what was done to the draft.

        Raises:
            RestoreError: if something else has changed the same part of the target since, or the target's class
                refuses a value. The target is then as it was, unless the text says which part could not be put back.
        """
        target = self._target
        contents: list[tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = []
        try:
            for (original, twin), (before, copied) in zip(self._pairs, self._seen, strict=True):
                if not _are_same(parts := _parts(twin), copied):
                    contents.append((original, before, tuple(map(self._original, parts))))
            assigned = dict(self._assigned())
        except RecursionError as error:
            raise RestoreError("a hook has given the target a value that is nested too deep", (error,)) from error
        now = _attributes(target) if self._has_attributes else {}
        for name in assigned:
            if now.get(name, _MISSING) is not self._before.get(name, _MISSING):
                raise RestoreError(f"{self._name(name)} was changed by something else while its hooks ran")
        if not all(_are_same(_parts(original), before) for original, before, _ in contents):
            raise RestoreError(
                f"a container in the target, a {full_name(type(target))}, was changed by something else while its "
                "hooks ran"
            )
        held = [(original, _parts(original)) for original, _ in self._pairs]
        begun: list[str] = []

        def assign(name: str) -> None:
            begun.append(name)
            _assign(target, name, assigned[name])

        try:
            for original, _, parts in contents:
                _fill(original, parts)
            assign_all(assigned, assign)
        except BaseException as error:
            errors = [error]
            for name in reversed(begun):  # as any code would; what the class refuses is put back without its code
                try:
                    if name in self._differing(now):
                        _assign(target, name, now.get(name, _MISSING))
                except BaseException as other:  # noqa: BLE001 - a setter may raise anything; the rest is put back
                    errors.append(other)
            for name in self._differing(now):
                with suppress(Exception):
                    _write(target, name, now.get(name, _MISSING))
            for original, parts in held:
                if not _are_same(_parts(original), parts):
                    _fill(original, parts)
            for each in errors:
                if not isinstance(each, Exception):
                    raise each from None
            refused = self._name(begun[-1]) if begun else "a container"
            left = self._differing(now)
            state = f"{', '.join(left)} could not be put back" if left else "the target is as it was"
            raise RestoreError(f"{refused} did not take its value: {error!r}; {state}", errors) from error
        if self._has_attributes and type(target).__dictoffset__:
            with suppress(AttributeError):  # what a hook has left a reference to the draft with changes the target
                object.__setattr__(self.value, "__dict__", object.__getattribute__(target, "__dict__"))

    def discard(self) -> None:
        """End the use of the draft."""
        if self._has_attributes and hasattr(type(self.value), "__del__"):
            self.value.__class__ = _Discarded

    def _assigned(self) -> Iterator[tuple[str, Any]]:
        """The attributes that were assigned or removed, with their values."""
        after = _attributes(self.value) if self._has_attributes else {}
        for name, value in after.items():
            if value is not self._given.get(name, _MISSING):
                yield name, self._original(value)
        for name in self._given.keys() - after.keys() - self._of_class.keys():
            yield name, _MISSING

    def _differing(self, before: dict[str, Any]) -> list[str]:
        now = _attributes(self._target) if self._has_attributes else {}
        return [name for name in before | now if before.get(name, _MISSING) is not now.get(name, _MISSING)]

    def _name(self, attribute: str) -> str:
        return f"{type(self._target).__qualname__}.{attribute}"


def _unset(target: Any, kind: Any) -> Any:
    """An object of the target's class, whose attributes are not set yet."""
    if kind is types.SimpleNamespace:
        return types.SimpleNamespace()
    if has_native_state(kind):
        raise RestoreError(
            f"the target is a {full_name(kind)}, which keeps state that cannot be copied; give restore the "
            "object that your hook changes, or None if it makes a new one"
        )
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
