"""The tools under test as tools that are known by name: each call goes through one `Toolbox`."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

from agent_cache import Read, Toolbox, Write

TOOLBOX = "toolbox"


class Counts(NamedTuple):
    """What a tool that is known by name does not count."""

    hits: int = 0
    misses: int = 0


class NamedTool:
    """A function, called as a tool of a toolbox. It has no `fresh`, `set` and `invalidate`, as no such tool has."""

    def __init__(self, tools: NamedTools, name: str, function: Callable[..., Any]) -> None:
        self.tools = tools
        self.name = name
        self.function = function
        self.names = tuple(inspect.signature(function).parameters)
        self.returns = typing.get_type_hints(function)["return"]

    async def __call__(self, *arguments: str) -> Any:
        async def run() -> Any:
            return await self.function(*arguments)

        named = dict(zip(self.names, arguments, strict=True))
        return await self.tools.box.call(self.name, named, run, returns=self.returns)

    def contains(self, *arguments: str) -> bool:
        return False

    def cache_info(self) -> Counts:
        return Counts()


class NamedTools:
    """Makes tools of functions as the decorators do; their rules are those of one toolbox."""

    def __init__(self) -> None:
        self.rules: dict[str, Read | Write] = {}
        self._box: Toolbox | None = None

    @property
    def box(self) -> Toolbox:
        """The toolbox, made at the first call, when all tools are there."""
        if self._box is None:
            self._box = Toolbox(self.rules, namespace="properties")
        return self._box

    def read(self, resource: Any, scope: Any = "global", **options: Any) -> Callable[[Callable[..., Any]], NamedTool]:
        return self._maker(Read, resource, scope, options)

    def write(self, resource: Any, scope: Any = "global", **options: Any) -> Callable[[Callable[..., Any]], NamedTool]:
        return self._maker(Write, resource, scope, options)

    def _maker(
        self, kind: type[Any], resource: Any, scope: Any, options: dict[str, Any]
    ) -> Callable[[Callable[..., Any]], NamedTool]:
        options.pop("name", None)

        def make(function: Callable[..., Any]) -> NamedTool:
            assert self._box is None, "a tool was made after the first call"
            name = f"{kind.__name__} {len(self.rules)} {function.__name__}"
            self.rules[name] = kind(resource, scope=scope, **options)
            return NamedTool(self, name, function)

        return make
