"""Whether two processes mean the same by an annotation: its structure as text, alike on every Python version."""

from __future__ import annotations

from typing import Any

from agent_cache.values.nodes import Fields, Node, Record
from agent_cache.values.parts import declared_names, is_model, is_positional

__all__ = ["fingerprint"]


def fingerprint(node: Node) -> str:
    """Describe what a node allows, down to the fields of every class in it. A class is named where it occurs again."""
    return _text(node, set())


def _text(node: Node, seen: set[type]) -> str:
    parts = ["*"] if node.anything else []
    parts += sorted(kind.__name__ for kind in node.leaves)
    parts += sorted(f"={kind.__name__}:{value!r}" for kind, value in node.literals)
    if node.lists:
        parts.append("".join(sorted(kind.__name__ for kind in node.lists)))
        if node.fixed is not None:
            parts.append(f"({','.join(_text(each, seen) for each in node.fixed)})")
        if node.item is not None:
            parts.append(f"[{_text(node.item, seen)}]")
    if node.value is not None:
        parts.append(f"{{{'' if node.key is None else _text(node.key, seen)}:{_text(node.value, seen)}}}")
    if node.fields is not None:
        parts.append(_fields(node.fields, seen))
    parts += [_record(record, seen) for record in sorted(node.records, key=lambda record: record.kind.__qualname__)]
    return "|".join(parts)


def _fields(fields: Fields, seen: set[type]) -> str:
    name = "|".join(sorted(kind.__qualname__ for kind in fields.kinds))
    if seen.issuperset(fields.kinds):
        return name
    seen.update(fields.kinds)
    required = sorted(",".join(sorted(names)) for names in fields.required)
    return f"<{name};{required};{_names(fields.nodes, seen)}>"


def _record(record: Record, seen: set[type]) -> str:
    name = record.kind.__qualname__
    if record.kind in seen:
        return name
    seen.add(record.kind)
    members = getattr(record.kind, "__members__", None)
    if members is not None:
        return f"{name}<{','.join(f'{member}={_literal(each._value_)}' for member, each in members.items())}>"
    return f"{name}<{_layout(record.kind)}{_names(record.nodes, seen)}>"


def _layout(kind: Any) -> str:
    """Where data has the fields of a class, as far as that is not under their names."""
    names = declared_names(kind) or ()
    layout = [",".join(names)] if is_positional(kind) else []
    if is_model(kind):
        aliases = {name: field.validation_alias for name, field in kind.__pydantic_fields__.items()}
        layout += [f"{name}={alias!r}" for name, alias in sorted(aliases.items()) if alias is not None]
    config = getattr(kind, "__struct_config__", None)
    if config is not None:
        layout += [
            f"{name}={field}"
            for name, field in sorted(zip(names, kind.__struct_encode_fields__, strict=True))
            if name != field
        ]
        if config.tag is not None:
            layout.append(f"{config.tag_field}={config.tag!r}")
    return f"{';'.join(layout)}:" if layout else ""


def _literal(value: object) -> str:
    """A value by `repr` if that says nothing but what it is worth: others print an address."""
    return repr(value) if type(value) in {str, int, float, bool, bytes, type(None)} else type(value).__qualname__


def _names(nodes: dict[str, Node], seen: set[type]) -> str:
    return ",".join(f"{name}:{_text(node, seen)}" for name, node in sorted(nodes.items()))
