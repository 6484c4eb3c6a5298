"""Compares the tags in use with a log: the stale answers that they would have given, and the tools that they leave out.

The tags in use are a file of rules, a `Toolbox`, or the decorated tools that a module imports. Tools of the log are
found among them by name.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal

from agent_cache.advise.calls import LoggedCall
from agent_cache.advise.replay import StaleAnswer, tags_of
from agent_cache.advise.tag_rules import Advice, needs_parsing
from agent_cache.core.tags import meet, root_of
from agent_cache.engine.read import ReadOperation
from agent_cache.engine.state import live_tools
from agent_cache.engine.write import WriteOperation
from agent_cache.errors import ConfigurationError
from agent_cache.toolbox import Toolbox
from agent_cache.toolbox.rules import Pass, Read, Rule, Watch, Write, find_rule

__all__ = ["Cause", "Match", "Tags", "cause_of", "tags_in_use"]

Tags = Rule | ReadOperation | WriteOperation
"""What decides on the tags of a tool: the rule of a toolbox, or the operation of a decorated function."""


# The tags in use


@dataclass(frozen=True, slots=True)
class Match:
    """The tools of a log, and what is in use for each.

    Attributes:
        policy: by the name in the log. A tool that is left out of it is neither cached nor a write.
        names: what a tool is called in the target, by the name in the log.
        without_rule: tools of the log that have none, and what is done with them instead.
        ambiguous: tools of the log that several tools of the target may be, and the names of these.
        without_calls: rules and decorated tools that are of no tool of the log.
    """

    policy: dict[str, Tags] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    without_rule: dict[str, str] = field(default_factory=dict)
    ambiguous: dict[str, tuple[str, ...]] = field(default_factory=dict)
    without_calls: list[str] = field(default_factory=list)


class _TagsInUse:
    """What is in use: toolboxes, and decorated tools.

    Attributes:
        boxes: the toolboxes.
        tools: the operations of decorated tools, by name.
    """

    def __init__(self, boxes: Mapping[str, Toolbox], tools: Mapping[str, ReadOperation | WriteOperation]) -> None:
        self.boxes: Final = dict(boxes)
        self.tools: Final = dict(tools)
        self._rules = {
            where: {row.tool: box.rule(row.tool) for row in box.explain()} for where, box in self.boxes.items()
        }

    def match(self, tools: Mapping[str, Mapping[str, bool]]) -> Match:
        """Find what is in use for each tool of a log.

        Args:
            tools: the annotations of an MCP server, by the name of the tool in the log.
        """
        found = Match()
        used = set[str]()
        for tool, hints in tools.items():
            candidates = self._candidates(tool)
            if len(candidates) > 1:
                found.ambiguous[tool] = tuple(sorted(candidates))
                used.update(candidates)
            elif candidates:
                [(name, tags)] = candidates.items()
                found.policy[tool], found.names[tool] = tags, name
                used.add(name)
            else:
                self._without_rule(tool, hints, found)
        every = [*self.tools, *(self._name(where, rule) for where, rules in self._rules.items() for rule in rules)]
        by_tool = {self._name(where, rule) for where in self._rules for rule in self._decorated_by(where)}
        found.without_calls.extend(sorted(name for name in every if name not in used and name not in by_tool))
        return found

    def _name(self, where: str, rule: str) -> str:
        """What a rule is called: also by its toolbox, if there are several."""
        return rule if len(self.boxes) == 1 and not self.tools else f"{where}[{rule!r}]"

    def _decorated_by(self, where: str) -> list[str]:
        """Rules that `Toolbox.tool` has given to functions, which are among the decorated tools."""
        begin = f"{self.boxes[where].namespace}:"
        functions = [name.removeprefix(begin) for name in self.tools if name.startswith(begin)]
        return [
            name
            for name, rule in self._rules[where].items()
            if any(find_rule({name: rule}, function) is not None for function in functions)
        ]

    def _candidates(self, tool: str) -> dict[str, Tags]:
        """What may be in use for a tool: by its whole name, else without the first part of it, else by the last."""
        prefix, _, short = tool.partition(":")
        short = short or tool
        last = short.rpartition(".")[2]
        exact: dict[str, Tags] = {tool: self.tools[tool]} if tool in self.tools else {}
        return (
            exact
            or self._of_boxes(short, prefix)
            or self._of_boxes(tool, has_patterns=False)
            or {name: each for name, each in self.tools.items() if name.partition(":")[2] == short}
            or self._of_boxes(short)
            or {name: each for name, each in self.tools.items() if _last(name) == last}
        )

    def _of_boxes(self, name: str, namespace: str | None = None, *, has_patterns: bool = True) -> dict[str, Tags]:
        """The rules for a tool of this name, of toolboxes with this namespace; None is that of any."""
        found: dict[str, Tags] = {}
        for where, box in self.boxes.items():
            if namespace is not None and box.namespace != namespace:
                continue
            function = f"{box.namespace}:{name}"
            if function in self.tools:  # by `Toolbox.tool`
                found[function] = self.tools[function]
                continue
            rules = self._rules[where]
            for pattern in [name] if name in rules else rules if has_patterns else ():
                if find_rule({pattern: rules[pattern]}, name) is not None:
                    found[self._name(where, pattern)] = rules[pattern]
                    break
        return found

    def _without_rule(self, tool: str, hints: Mapping[str, bool], found: Match) -> None:
        """A tool for which there is none: what a toolbox does with it, if one toolbox is all that there is."""
        if len(self.boxes) != 1 or self.tools:
            found.without_rule[tool] = "it is not decorated"
            return
        [box] = self.boxes.values()
        [row] = box.explain([tool])
        rule = box.rule(tool, dict(hints) or None)
        found.policy[tool] = rule
        if rule is not box.rule(tool):
            found.names[tool] = "hint"
            return
        found.without_rule[tool] = {
            "write": f"each call drops {row.tags}",
            "watch": "it is not stored",
            "pass": "it is left alone",
        }[row.kind]


def _last(name: str) -> str:
    return name.rpartition(":")[2].rpartition(".")[2]


def tags_in_use(target: str) -> _TagsInUse:
    """Find the tags that a target names.

    Args:
        target: a file of rules (``rules.toml``); a module (``shop.tools``) or a file of Python (``shop/tools.py``),
            whose toolboxes and all decorated tools that it imports are meant; either with the name of a toolbox in it
            (``shop.tools:toolbox``).

    Raises:
        ConfigurationError: in one line, if there is no such thing, or nothing in it.
    """
    path, colon, attribute = target.rpartition(":")
    if not colon or "/" in attribute or "\\" in attribute:  # the colon of a drive
        path, attribute = target, ""
    if not attribute and not path.endswith(".py") and (path.endswith(".toml") or Path(path).is_file()):
        return _TagsInUse({path: Toolbox.from_file(path, hints="kind")}, {})
    module = _imported(path)
    if attribute:
        found: Any = module
        for name in attribute.split("."):
            found = getattr(found, name, None)
        if not isinstance(found, Toolbox):
            raise ConfigurationError(f"{target}: {attribute} is no Toolbox of {module.__name__}")
        return _TagsInUse({target: found}, {})
    modules = [module, *(each for name, each in list(sys.modules.items()) if name.startswith(f"{module.__name__}."))]
    boxes: dict[str, Toolbox] = {}
    for each in modules:
        for name, value in list(vars(each).items()):
            if isinstance(value, Toolbox) and value not in boxes.values():
                boxes[f"{each.__name__}:{name}"] = value
    tools = {tool.name: tool for tool in live_tools()}
    if not boxes and not tools:
        raise ConfigurationError(f"{target}: it imports no decorated tool, and has no Toolbox")
    return _TagsInUse(boxes, tools)


def _imported(target: str) -> ModuleType:
    """Import a module by its name or its file, as a program in this folder would. What it prints goes to stderr."""
    _search_beside(target)
    with contextlib.redirect_stdout(sys.stderr):
        try:
            if not target.endswith(".py"):
                return importlib.import_module(target)
            return _module_in(target)
        except (Exception, SystemExit) as error:  # the user's code, which may raise anything
            text = " ".join(str(error).split())
            raise ConfigurationError(f"{target} cannot be imported: {type(error).__name__}: {text}") from error


def _module_in(file: str) -> ModuleType:
    name = Path(file).stem
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no file of Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # for what needs the module of a class by its name, as dataclasses do
    spec.loader.exec_module(module)
    return module


def _search_beside(target: str) -> None:
    """Let modules be found beside the target, and in the working directory: for good, since they may import later."""
    here = os.fspath(Path.cwd())
    folders = [os.fspath(Path(target).absolute().parent), here] if target.endswith(".py") else [here]
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]


# Why an answer would have been stale


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a cache would have given a stale answer.

    Attributes:
        write: the write that has changed the answer; None if there was none in between.
        is_certain: whether the log shows it to be this one: by a tag that the log says is needed, or because there was
            no other.
        read_tag: what the read lacks, a template. None if it lacks nothing.
        write_tag: what the write lacks.
    """

    write: LoggedCall | None = None
    is_certain: bool = False
    read_tag: str | None = None
    write_tag: str | None = None


def cause_of(stale: StaleAnswer, in_use: Mapping[str, Tags], advice: Advice) -> Cause:
    """Find the write that made an answer stale, and the tags that would have dropped it.

    Args:
        in_use: the tags that gave the answer, by the name of the tool in the log.
        advice: what the same log shows to be needed.
    """
    if not stale.writes:
        return Cause()
    needed = _templates(advice, stale.loaded)
    for write in reversed(stale.writes):  # the last one made the answer what it was
        for write_template, write_tags in _templates(advice, write).items():
            for read_template, read_tags in needed.items():
                if any(meet(one, other) for one in read_tags for other in write_tags):
                    return _lacking(stale, write, in_use, (read_template, read_tags), (write_template, write_tags))
    return Cause(stale.writes[-1], is_certain=len(stale.writes) == 1)


Templates = tuple[str, tuple[str, ...]]
"""A template, and the tags that it gave."""


def _lacking(
    stale: StaleAnswer, write: LoggedCall, in_use: Mapping[str, Tags], of_read: Templates, of_write: Templates
) -> Cause:
    """What the tags in use lack of two that meet. An entity keeps the root that it has in the tags in use."""
    read_tags, write_tags = _tags(in_use, stale.loaded), _tags(in_use, write)
    (read_template, wanted_read), (write_template, wanted_write) = of_read, of_write
    if root := _root_in_use(wanted_read, read_tags):
        return Cause(write, is_certain=True, write_tag=_rooted(write_template, root))
    if root := _root_in_use(wanted_write, write_tags):
        return Cause(write, is_certain=True, read_tag=_rooted(read_template, root))
    return Cause(write, is_certain=True, read_tag=read_template, write_tag=write_template)


def _root_in_use(wanted: tuple[str, ...], present: tuple[str, ...]) -> str | None:
    """The root under which tags in use name the same entity."""
    for tag in wanted:
        below = tag.partition(":")[2]
        for one in present:
            if one == tag or (below and one.partition(":")[2] == below):
                return root_of(one)
    return None


def _rooted(template: str, root: str) -> str:
    _, colon, below = template.partition(":")
    return f"{root}{colon}{below}"


def _templates(advice: Advice, call: LoggedCall) -> dict[str, tuple[str, ...]]:
    """The tags that a call needs, by the template that gives them."""
    tool = advice.tools.get(call.tool)
    if tool is None:
        return {}
    parse: Literal["json"] | None = "json" if needs_parsing(tool) else None
    kind = Read if tool.kind == "read" else Write
    return {tag: tags_of(kind(tag, parse=parse), call) for tag in tool.tags}


def _tags(policy: Mapping[str, Tags], call: LoggedCall) -> tuple[str, ...]:
    rule = policy.get(call.tool)
    return () if rule is None or isinstance(rule, Watch | Pass) else tags_of(rule, call)
