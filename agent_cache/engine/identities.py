"""Which tools share a name. On a tier that is shared, a name is all that tells their answers apart.

The same function may be there more than once: a module was loaded again, a cell of a notebook was run again, and a
registry still has the former one. Its answers are the same entries on purpose, as they are for two processes of which
one has the newer code. What is refused is a name that two different functions have.
"""

from __future__ import annotations

import gc
import inspect
import sys
import weakref
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from agent_cache.engine.state import LEDGER
from agent_cache.errors import ConfigurationError

if TYPE_CHECKING:
    from agent_cache.engine.read_operation import ReadOperation

__all__ = ["check_identity", "enrol"]

_VALUES = (str, int, float, bool, bytes, type(None))

_tools: dict[str, weakref.WeakKeyDictionary[ReadOperation, CodeType | None]] = {}
"""By name, each with the code that its function was defined in: of a module, a cell, a class or a function."""

_MIN_NAMES = 100
_names_to_sweep = _MIN_NAMES


def enrol(tool: ReadOperation) -> None:
    """Note a tool that is being decorated.

    Raises:
        ConfigurationError: if a live tool of another function has its name and uses the same tier.
    """
    origin = _origin(tool)
    with LEDGER.lock:
        _sweep()
        _tools.setdefault(tool.name, weakref.WeakKeyDictionary())[tool] = origin
    try:
        check_identity(tool)
    except ConfigurationError:
        with LEDGER.lock:
            del _tools[tool.name][tool]
        raise


def _sweep() -> None:
    """Forget names that no tool has any more, whenever there are twice as many names as were left the last time."""
    global _names_to_sweep  # noqa: PLW0603 - belongs to the table above
    if len(_tools) >= _names_to_sweep:
        for name in [name for name, tools in _tools.items() if not tools]:
            del _tools[name]
        _names_to_sweep = max(_MIN_NAMES, 2 * len(_tools))


def check_identity(tool: ReadOperation) -> None:
    """Refuse what would answer from another function's entries.

    Raises:
        ConfigurationError: as `enrol`.
    """
    if len(_tools[tool.name]) > 1 and tool.tiers() and _twin(tool) is not None:
        gc.collect()  # a tool that nobody has any more refers to itself: it counts only if it is still there now
        if (twin := _twin(tool)) is not None:
            raise ConfigurationError(
                f"two tools are called {tool.name!r} and share a tier, so each would be answered with what the other "
                f"has loaded: {_place(twin)} and {_place(tool)}; give one of them another name=, or delete the first"
            )


def _twin(tool: ReadOperation) -> ReadOperation | None:
    tiers = {id(tier) for tier in tool.tiers()}
    with LEDGER.lock:
        others = dict(_tools[tool.name])
    origin = others.pop(tool)
    for other, its_origin in others.items():
        if not tiers.isdisjoint(map(id, other.tiers())) and not _is_same(tool, origin, other, its_origin):
            return other
    return None


def _is_same(tool: ReadOperation, origin: CodeType | None, other: ReadOperation, its_origin: CodeType | None) -> bool:
    """Whether they are one function: itself, defined again, or compiled again.

    What a factory makes has the same code and is bound to other things. Two functions that stand under one name in one
    module have codes of their own, and come from one run of it; a module that is loaded again is another code.
    """
    mine, theirs = inspect.unwrap(tool.function), inspect.unwrap(other.function)
    if (mine.__module__, mine.__qualname__) != (theirs.__module__, theirs.__qualname__):
        return False
    if _code(mine) is not _code(theirs):
        return origin is None or origin is not its_origin
    return _are_same(_bound(mine), _bound(theirs))


def _bound(function: Any) -> list[Any]:
    """What a function has beside its code: what it closes over, and its defaults."""
    cells = [_content(cell) for cell in getattr(function, "__closure__", None) or ()]
    return [
        *cells,
        *(getattr(function, "__defaults__", None) or ()),
        *(getattr(function, "__kwdefaults__", None) or {}).values(),
    ]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty yet: a function that names itself
        return None


def _are_same(mine: list[Any], theirs: list[Any]) -> bool:
    return len(mine) == len(theirs) and all(
        a is b or (type(a) is type(b) and isinstance(a, _VALUES) and a == b) for a, b in zip(mine, theirs, strict=True)
    )


def _origin(tool: ReadOperation) -> CodeType | None:
    """The code that defines the function, if that is what runs now; None if it is decorated later, from elsewhere."""
    code = _code(inspect.unwrap(tool.function))
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if code is not None and any(constant is code for constant in frame.f_code.co_consts):
            return frame.f_code
        frame = frame.f_back
    return None


def _code(function: Any) -> CodeType | None:
    return getattr(function, "__code__", None)  # what is compiled to an extension has none


def _place(tool: ReadOperation) -> str:
    function = inspect.unwrap(tool.function)
    code = _code(function)
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    return f"{function.__module__}:{function.__qualname__}{where}"
