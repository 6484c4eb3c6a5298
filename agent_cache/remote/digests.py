"""Names that a fleet agrees on: of an entry by its call, of an entity by its tag. Neither shows what it was made of.

A key of this process names classes by serial numbers. Here they are named by module and qualified name, and only if
that name leads to them: equal digests mean the same types and the same structure on every machine and Python version.
"""

from __future__ import annotations

import functools
import sys
from hashlib import blake2b
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar

from agent_cache.core.keys import Uncacheable
from agent_cache.remote.protocol import Request
from agent_cache.values.canonical import Encoder

__all__ = ["entry_digest", "lasting_digest", "segment_digest"]

_SIZE = 24
"""Bytes of a digest. Nobody finds two calls that share one: that would take 2**96 attempts."""


def entry_digest(request: Request, *, namespace: str, version: int) -> str | None:
    """Name the entry of a call: tool, arguments, tenant and session.

    None if one of them has no identity outside this process: a function, an object known by its address, a class that
    cannot be found under its name.

    Args:
        namespace: what keeps the fleets on one server apart.
        version: of everything that the fleet shares.
    """
    return lasting_digest(request, namespace=namespace, version=version)[0]


def lasting_digest(request: Request, *, namespace: str, version: int) -> tuple[str | None, bool]:
    """The same, and whether equal calls have it for as long as this process lives: there is no class in it, whose name
    may come to lead elsewhere.
    """
    encoder = _StableEncoder()
    try:
        tool = _outside(request.tool)
        parts = [encoder.encode(part) for part in (version, tool, request.arguments, request.tenant, request.session)]
    except Uncacheable:
        return None, False
    digest = blake2b(b"".join(parts), digest_size=_SIZE, key=_key(namespace)).hexdigest()
    return digest, not encoder.names_classes


def segment_digest(segment: str, *, namespace: str) -> str:
    """Name an entity by the second segment of its tag, for keys and messages that are not to show it."""
    text = segment.encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=_SIZE, key=_key(namespace), person=b"segment").hexdigest()


@functools.lru_cache(maxsize=64)
def _key(namespace: str) -> bytes:
    return blake2b(namespace.encode("utf-8", "surrogatepass"), digest_size=32).digest()


class _StableEncoder(Encoder):
    """Canonical bytes in which a class stands by its name."""

    __slots__ = ("names_classes",)

    leaves: ClassVar = {kind: code for kind, code in Encoder.leaves.items() if kind not in {FunctionType, type}}

    def __init__(self) -> None:
        super().__init__()
        self.names_classes = False

    def class_code(self, kind: type) -> bytes:
        self.names_classes = True
        name = _name_of(kind)
        return b"%d:%b" % (len(name), name)


def _name_of(kind: type) -> bytes:
    module, qualname = kind.__module__, kind.__qualname__
    found: Any = sys.modules.get(module)
    for attribute in qualname.split("."):
        found = getattr(found, attribute, None)
    if found is not kind:
        raise Uncacheable(f"the class {module}.{qualname} is not what is found under that name")
    return _outside(f"{module}:{qualname}").encode("utf-8", "surrogatepass")


def _outside(name: str) -> str:
    """What ``module:qualname`` is called by other processes.

    Every script is called ``__main__``. One that was started with ``-m`` has a name of its own; another is known by
    what stands in its file, so that two scripts do not meet.
    """
    module, colon, qualname = name.partition(":")
    if colon and module in {"__main__", "__mp_main__"}:
        return f"{_main()}:{qualname}"
    return name


def _main() -> str:
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        return str(spec.name)
    return _script(str(getattr(main, "__file__", "")))


@functools.lru_cache(maxsize=4)
def _script(path: str) -> str:
    try:
        text = Path(path).read_bytes()
    except OSError:
        raise Uncacheable(
            "a name in __main__ means nothing to other processes if there is no file to know it by"
        ) from None
    return f"__main__@{blake2b(text, digest_size=16).hexdigest()}"
