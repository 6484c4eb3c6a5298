"""The parameters of a tool, settled once at decoration: which of them identify a call, and in what form."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agent_cache.core.injection import is_injected
from agent_cache.core.keys import Part, Uncacheable, key_part
from agent_cache.values.serials import serial_of
from agent_cache.errors import ConfigurationError

__all__ = ["Parameter", "Parameters", "receiver_part"]

_LIKELY: dict[str, type] = {"str": str, "int": int, "bool": bool, "dict": dict, "list": list}
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a tool.

    Attributes:
        in_key: whether its value identifies the call: not if it is skipped or filled in by a framework.
        is_receiver: whether it is the ``self`` or ``cls`` of a method.
        hint: ``"str"``, ``"int"``, ``"bool"``, ``"dict"`` or ``"list"`` where the annotation says just that, so that
            the likely case is tested first. It decides nothing else: what is passed decides the key.
    """

    name: str
    kind: inspect._ParameterKind
    default: Any
    in_key: bool
    is_receiver: bool
    hint: str

    @property
    def has_default(self) -> bool:
        return self.default is not inspect.Parameter.empty

    def part(self, value: Any) -> Part:
        """Its component of the key."""
        return receiver_part(value) if self.is_receiver else key_part(value)


@dataclass(frozen=True, slots=True)
class Parameters:
    """All parameters of a tool, in order."""

    all: tuple[Parameter, ...]
    signature: inspect.Signature
    names: tuple[str, ...]
    is_positional: bool
    """Whether a call in its canonical spelling is just one value for each name, in order."""
    positional_only: tuple[str, ...]
    surplus: str | None
    """Name of the parameter that takes surplus keywords."""

    @classmethod
    def of(cls, function: Callable[..., Any], skip_args: int, tool: str) -> Parameters:
        """Read a tool's signature.

        Raises:
            ConfigurationError: if `skip_args` is not a number of its positional parameters.
        """
        signature = inspect.signature(function)
        positional = [parameter for parameter in signature.parameters.values() if parameter.kind in _POSITIONAL]
        if isinstance(skip_args, bool) or not isinstance(skip_args, int) or not 0 <= skip_args <= len(positional):
            raise ConfigurationError(
                f"{tool}: skip_args is how many of the tool's {len(positional)} positional parameters to leave out, "
                f"got {skip_args!r}"
            )
        skipped = {parameter.name for parameter in positional[:skip_args]}
        receiver = _receiver(function, positional)
        return cls(
            tuple(
                Parameter(
                    name=parameter.name,
                    kind=parameter.kind,
                    default=parameter.default,
                    in_key=parameter.name not in skipped
                    and not is_injected(parameter.annotation, parameter.default, function),
                    is_receiver=parameter.name == receiver,
                    hint=_hint(parameter.annotation),
                )
                for parameter in signature.parameters.values()
            ),
            signature,
            tuple(signature.parameters),
            len(positional) == len(signature.parameters),
            tuple(one.name for one in positional if one.kind is inspect.Parameter.POSITIONAL_ONLY),
            next(
                (name for name, one in signature.parameters.items() if one.kind is inspect.Parameter.VAR_KEYWORD), None
            ),
        )

    @property
    def key_names(self) -> tuple[str, ...]:
        """Parameters that identify a call."""
        return tuple(parameter.name for parameter in self.all if parameter.in_key)

    def named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Names and values of a call in its canonical spelling."""
        if self.is_positional:
            return dict(zip(self.names, args, strict=True))
        return self.bind(args, kwargs)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Names and values of a call, defaults filled in: what the generated body does by being called.

        Raises:
            TypeError: as the tool itself would.
        """
        surplus: dict[str, Any] = {}
        if self.surplus is not None:
            # Signature.bind of Python 3.11 refuses a keyword with the name of a positional-only parameter; the
            # interpreter takes it for a surplus one.
            surplus = {name: kwargs[name] for name in self.positional_only if name in kwargs}
        bound = self.signature.bind(*args, **{name: value for name, value in kwargs.items() if name not in surplus})
        bound.apply_defaults()
        if surplus and self.surplus is not None:
            bound.arguments[self.surplus] |= surplus
        return bound.arguments

    def split(self, arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The one canonical spelling of a call: keyword-only and surplus keywords by name, everything else by
        position.
        """
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for parameter in self.all:
            value = arguments[parameter.name]
            if parameter.kind in _POSITIONAL:
                args.append(value)
            elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                args.extend(value)
            elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                kwargs[parameter.name] = value
            else:
                kwargs.update(value)
        return tuple(args), kwargs

    def key(self, arguments: Mapping[str, Any]) -> Part:
        """Identity of a call by its arguments: one part as it is, several as a tuple.

        Raises:
            Uncacheable: if an argument has none.
        """
        parts = tuple(parameter.part(arguments[parameter.name]) for parameter in self.all if parameter.in_key)
        return parts[0] if len(parts) == 1 else parts


def receiver_part(value: Any) -> Part:
    """Identity of the object a method is called on: its declared fields if it is a value, else a serial of the
    instance.
    """
    try:
        return key_part(value)
    except Uncacheable:
        return b"#%d" % serial_of(value)


def _receiver(function: Callable[..., Any], positional: list[inspect.Parameter]) -> str | None:
    """Name of the receiver, if the function was written inside a class body."""
    owner = getattr(function, "__qualname__", "").rpartition(".")[0]
    if not owner or owner.endswith("<locals>") or not positional:
        return None
    first = positional[0].name
    return first if first in {"self", "cls", "mcs"} else None


def _hint(annotation: Any) -> str:
    if isinstance(annotation, str):
        text = annotation.partition("[")[0]
        return text if text in _LIKELY else ""
    kind = typing.get_origin(annotation) or annotation
    return kind.__name__ if kind in _LIKELY.values() else ""
