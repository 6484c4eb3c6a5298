"""How a template of tags is written: ``order:{order_id}``, read into segments of fixed text and fields.

Its fields are those of `str.format` without conversions and formats. Each names a parameter of the tool, or ``result``
for what the tool returns, and may go on to attributes and keys of it.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_cache.errors import ConfigurationError

__all__ = ["Field", "Segment", "parse_template"]

_STEP = re.compile(r"\.(?P<attribute>[^.\[\]]+)|\[(?P<key>[^\]]+)\]")


@dataclass(frozen=True, slots=True)
class Field:
    """A replacement field of a template: ``{name}``, ``{name.attribute}`` or ``{name[key]}``."""

    name: str
    of_result: bool
    path: tuple[tuple[bool, str | int], ...]

    @property
    def is_bare(self) -> bool:
        return not self.path

    def value(self, arguments: Mapping[str, Any], result: Any) -> Any:
        found = result if self.of_result else arguments[self.name]
        for is_attribute, step in self.path:
            found = getattr(found, str(step)) if is_attribute else found[step]
        return found


Segment = list[str | Field]
"""What stands between two colons: fixed text and fields in turn."""


def parse_template(template: str, parameters: Sequence[str], tool: str) -> tuple[str, list[Segment]]:
    """Read a template: its root, as it is written there, and the segments below it.

    Raises:
        ConfigurationError: naming the tool, if it is malformed, has no fixed root, or names no parameter.
    """
    segments = _split(_pieces(template, parameters, tool))
    if not all(segments):
        raise ConfigurationError(f"{tool}: resource {template!r} has an empty segment")
    (root, *others), *below = segments
    if others or not isinstance(root, str):
        raise ConfigurationError(
            f"{tool}: resource {template!r} must start with a fixed root, as in 'order:{{order_id}}'"
        )
    return root, below


def _pieces(template: str, parameters: Sequence[str], tool: str) -> list[str | Field]:
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ConfigurationError(f"{tool}: resource {template!r} is not a template: {error}") from None
    pieces: list[str | Field] = []
    for literal, field, spec, conversion in parsed:
        if literal and pieces and isinstance(pieces[-1], str):
            pieces[-1] += literal  # an escaped brace comes as a piece of its own
        elif literal:
            pieces.append(literal)
        if field is None:
            continue
        if spec or conversion:
            raise ConfigurationError(
                f"{tool}: resource {template!r} may not use a conversion or a format; values are written by str()"
            )
        read = _name_and_path(field)
        if read is None:
            raise ConfigurationError(f"{tool}: resource {template!r} is not a template: {{{field}}} cannot be read")
        name, path = read
        if name not in parameters and name != "result":
            raise ConfigurationError(
                f"{tool}: resource {template!r} names {name!r}, which is no parameter of the tool; it has "
                f"{', '.join(parameters) or 'none'} (and 'result' for what it returns)"
            )
        pieces.append(Field(name, name == "result" and name not in parameters, path))
    if not pieces:
        raise ConfigurationError(
            f"{tool}: resource is empty; name what the tool reads, as in 'order' or 'order:{{order_id}}'"
        )
    return pieces


def _name_and_path(field: str) -> tuple[str, tuple[tuple[bool, str | int], ...]] | None:
    """Name and steps of ``name.attribute[key]``, as `str.format` reads it: a key of digits is an index. None if
    malformed.
    """
    name = re.match(r"[^.\[\]]*", field)
    assert name is not None
    steps: list[tuple[bool, str | int]] = []
    at = name.end()
    while at < len(field):
        step = _STEP.match(field, at)
        if step is None:
            return None
        attribute, key = step["attribute"], step["key"]
        steps.append((True, attribute) if attribute else (False, int(key) if key.isdecimal() else key))
        at = step.end()
    return name.group(), tuple(steps)


def _split(pieces: Iterable[str | Field]) -> list[Segment]:
    """Cut at the colons of the fixed text only: what a field yields is one segment, or part of one."""
    segments: list[Segment] = [[]]
    for piece in pieces:
        if isinstance(piece, Field):
            segments[-1].append(piece)
            continue
        first, *rest = piece.split(":")
        if first:
            segments[-1].append(first)
        segments.extend([text] if text else [] for text in rest)
    return segments
