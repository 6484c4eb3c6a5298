"""A return annotation made ready for use: values to data and back, each proved at the moment it is written.

Most values have a *direct* form: what msgspec writes for them, and reads back as the annotation says, in C. Whether a
value is one of these is not reasoned out but tried: what was written is read again, and must be identical. If it is not
(a tuple where nothing says so, an `int` in a field of `float`, a time zone), the value is written in the tagged form of
`agent_cache.values.tagged`, and tried again. What fails both is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import msgspec

from agent_cache.values.annotations import Returns
from agent_cache.values.exact import MAX_DEPTH, identical, weigh
from agent_cache.values.failures import Undecodable, Unencodable
from agent_cache.values.fingerprint import fingerprint
from agent_cache.values.hashes import hashes_only
from agent_cache.values.nodes import node_of
from agent_cache.values.parts import is_positional, leaves_out_defaults
from agent_cache.values.tagged import pack, unpack
from agent_cache.values.wires import FEW, JSON, NUMBERS, Wire, field_values, from_fields

__all__ = ["Schema", "schema_of"]

MAX_PARTS = 1_000_000
MAX_LEVELS = 3 * MAX_DEPTH + 2
"""Containers within containers of plain data. An object of the tagged form is three of them: tag, pair, fields; what is
innermost, such as a time, is two."""

_MARK = "$typed"


class Schema:
    """How values of one annotation are written and read.

    Attributes:
        annotation: what it was made from, names resolved.
        fingerprint: bytes that differ if the annotation, or the fields of a class in it, differ.
    """

    def __init__(self, annotation: Any) -> None:
        self.annotation = Any if annotation is None else annotation
        try:
            self._node = node_of(self.annotation)
        except Exception:  # noqa: BLE001 - what is no annotation says nothing
            self.annotation = Any
            self._node = node_of(Any)
        self._typed: dict[Wire, Callable[[bytes], Any] | None] = {}

    @cached_property
    def fingerprint(self) -> bytes:
        return fingerprint(self._node).encode("utf-8", "surrogatepass")

    def dump(self, value: Any, wire: Wire, max_parts: int = MAX_PARTS) -> tuple[bytes, bool]:
        """Write a value: the data, and whether it is in the tagged form.

        Raises:
            Unencodable: if it would not come back as it is, or has more than `max_parts` parts.
        """
        types = weigh(value, max_parts)
        if self._reader(wire) is not None and not any(map(leaves_out_defaults, types)):
            try:
                data = wire.encode(value)
                if identical(value, self._read(data, wire, is_tagged=False), types):
                    return data, False
            except Exception:  # noqa: BLE001, S110 - the value has no direct form, for whatever reason
                pass
        return self._proved(
            value,
            types,
            lambda: wire.encode(pack(value, self._node)),
            lambda data: self._read(data, wire, is_tagged=True),
        ), True

    def load(self, data: bytes, wire: Wire, *, is_tagged: bool) -> Any:
        """Read what `dump` wrote for the same annotation.

        Raises:
            Undecodable: if it is anything else.
        """
        try:
            return self._read(data, wire, is_tagged=is_tagged)
        except Undecodable:
            raise
        except Exception as error:
            raise Undecodable(f"not the data of such a value ({type(error).__name__})") from error

    def to_plain(self, value: Any) -> Any:
        """Write a value as plain data that JSON carries exactly: ``null``, booleans, text, numbers, lists and dicts.

        Raises:
            Unencodable: if it would not come back as it is.
        """
        types = weigh(value, MAX_PARTS)
        try:
            if any(is_positional(kind) or leaves_out_defaults(kind) for kind in types):
                raise Unencodable("read by a class that has changed, it would be another value")  # noqa: TRY301
            plain = msgspec.to_builtins(value, str_keys=True, enc_hook=field_values)
            is_carried = identical(JSON.decode(JSON.encode(plain)), plain, weigh(plain, MAX_PARTS))
            if is_carried and not _is_marked(plain) and identical(value, self._converted(plain), types):
                return plain
        except Exception:  # noqa: BLE001, S110 - the value has no direct form, for whatever reason
            pass
        return self._proved(value, types, lambda: {_MARK: pack(value, self._node)}, self.from_plain)

    def from_plain(self, plain: Any) -> Any:
        """Read what `to_plain` wrote for the same annotation. Data that a person edited will do if its types do.

        Raises:
            Undecodable: if it is anything else.
        """
        try:
            weigh(plain, MAX_PARTS, MAX_LEVELS)
            if _is_marked(plain):
                return unpack(plain[_MARK], self._node)
            return self._converted(plain)
        except Undecodable:
            raise
        except Exception as error:
            raise Undecodable(f"not the data of such a value ({type(error).__name__})") from error

    def _converted(self, plain: Any) -> Any:
        return msgspec.convert(plain, self.annotation, strict=True, str_keys=True, dec_hook=from_fields)

    def _read(self, data: bytes, wire: Wire, *, is_tagged: bool) -> Any:
        has_many = len(data) > FEW and wire.check(data, MAX_LEVELS if is_tagged else MAX_DEPTH)
        if is_tagged:
            value = unpack(wire.decode(data), self._node)
            if has_many:
                weigh(value, len(data) + 1)
            return value
        read = self._typed.get(wire) or self._reader(wire) or _no_direct_form
        return read(data)

    def _reader(self, wire: Wire) -> Callable[[bytes], Any] | None:
        """What reads the direct form, None if msgspec cannot tell the annotation's types apart, or would build sets and
        dicts that a forger can make slow.
        """
        try:
            return self._typed[wire]
        except KeyError:
            pass
        read: Callable[[bytes], Any] | None
        try:
            read = wire.decode if self._node.anything else self._typed_reader(wire)
        except Exception:  # noqa: BLE001 - it evaluates annotations, which may raise anything
            read = None
        self._typed[wire] = read
        return read

    def _typed_reader(self, wire: Wire) -> Callable[[bytes], Any] | None:
        if hashes_only(wire.hashed, self._node):
            return wire.typed(self.annotation)
        if wire.long_number is None or not hashes_only(wire.hashed | NUMBERS, self._node):
            return None
        read, has_long = wire.typed(self.annotation), wire.long_number

        def bounded(data: bytes) -> Any:
            if has_long(data):
                raise Undecodable("a number in it may have been chosen for its hash")
            return read(data)

        return bounded

    def _proved(self, value: Any, types: set[type], write: Callable[[], Any], read: Callable[[Any], Any]) -> Any:
        try:
            data = write()
            if identical(value, read(data), types):
                return data
        except Unencodable:
            raise
        except Exception as error:
            raise Unencodable(f"writing a value of type {_name(value)} raised {type(error).__name__}") from error
        raise Unencodable(f"a value of type {_name(value)} would not come back as it is")


_schemas: dict[Any, Schema] = {}
_MAX_SCHEMAS = 1024


def schema_of(returns: Any) -> Schema:
    """What an annotation, or the `Returns` of a function, says; made once for each."""
    if type(returns) is Returns:
        if returns.schema is None:
            returns.schema = Schema(returns.resolve())
        found: Schema = returns.schema
        return found
    try:
        known = _schemas.get(returns)
    except TypeError:  # an annotation with metadata that has no hash
        return Schema(returns)
    if known is None:
        known = Schema(returns)
        while len(_schemas) >= _MAX_SCHEMAS:
            _schemas.pop(next(iter(_schemas), None), None)
        _schemas[returns] = known
    return known


def _no_direct_form(_data: bytes) -> Any:
    raise Undecodable("the return annotation has no direct form")


def _is_marked(plain: Any) -> bool:
    return type(plain) is dict and len(plain) == 1 and _MARK in plain


def _name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
