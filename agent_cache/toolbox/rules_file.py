"""The rules of a toolbox as a TOML file: read, checked, and every mistake named with its key and its fix."""

from __future__ import annotations

import hashlib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from agent_cache.core.options import LoopHints, checked_choice
from agent_cache.errors import ConfigurationError
from agent_cache.toolbox.rules import Inner, Pass, Read, Rule, Watch, Write

__all__ = ["RulesFile", "read_rules"]

_TOP: Final = ("namespace", "hints", "unknown", "vary", "remote", "tools")
_RELAY: Final = ("on_loop", "new_turn_after", "max_tool_repeats", "on")
"""Keys that `agent-cache mcp` alone uses, which reads and checks them."""

_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "read": (
        "tags", "parse", "scope", "ttl", "maxsize", "jitter", "grace", "stale_if_error", "copy", "inherit", "shared",
        "version", "loop",
    ),
    "write": ("tags", "parse", "scope", "settle", "doubt", "shared", "loop"),
    "watch": ("loop",),
    "pass": (),
    "inner": ("inner",),
}  # fmt: skip
_LOOP: Final = ("poll", "max_unchanged", "off")


class RulesFile(NamedTuple):
    """What a file of rules says. Who has read it closes `remote`, the tier that its reads share."""

    namespace: str
    rules: dict[str, Rule]
    unknown: Literal["write", "watch", "pass"]
    hints: Literal["off", "kind"]
    remote: Any


class _OfProcess:
    """A ``vary`` that tells processes apart, and says nothing of who asks within one."""

    is_of_process = True

    def __init__(self, varied: str) -> None:
        self._varied = varied

    def __call__(self) -> str:
        return self._varied


def read_rules(path: str | os.PathLike[str], *, hints: Literal["off", "kind"] = "off") -> RulesFile:
    """Read a file of rules.

    Args:
        hints: what ``hints`` is if the file does not say.

    Raises:
        ConfigurationError: naming the file, the key and the fix.
    """
    where = os.fspath(path)
    try:
        data = tomllib.loads(Path(path).read_text("utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{where}: the file of rules cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{where}: the file of rules is no TOML: {error}") from None
    _refuse_unknown(data, (*_TOP, *_RELAY), where)
    namespace, remote, tools = data.get("namespace"), data.get("remote"), data.get("tools", {})
    if not isinstance(namespace, str) or not namespace or ":" in namespace:
        raise ConfigurationError(
            f'{where}: namespace must be a name without a colon, for example namespace = "shop"; got {namespace!r}'
        )
    if remote is not None and (not isinstance(remote, str) or not remote):
        raise ConfigurationError(f"{where}: remote must be the address of a tier, got {remote!r}")
    if not isinstance(tools, Mapping):
        raise ConfigurationError(f"{where}: tools must be tables, [tools.NAME]; got {tools!r}")
    if "" in tools:
        raise ConfigurationError(f'{where}: [tools.""] is of no tool: write its name, or "*" for every other')
    tier = None if remote is None else _tier_at(remote, where)
    of_writes: dict[str, Any] = {} if tier is None else {"remote_cache": tier}
    varied = _vary_of(data.get("vary", []), where)
    of_reads = of_writes if varied is None else {**of_writes, "vary": _OfProcess(varied)}
    return RulesFile(
        namespace,
        {name: _rule_of(said, f"{where}: tools.{name}", of_reads, of_writes) for name, said in tools.items()},
        checked_choice(data.get("unknown", "write"), ("write", "watch", "pass"), f"{where}: unknown"),
        checked_choice(data.get("hints", hints), ("off", "kind"), f"{where}: hints"),
        tier,
    )


def _refuse_unknown(given: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in given:
        if key not in known:
            from difflib import get_close_matches  # for an error alone

            near = get_close_matches(key, known, 1)
            fix = f"is {near[0]!r} meant?" if near else f"use one of {', '.join(known) or 'none'}"
            raise ConfigurationError(f"{where}: {key!r} is not known here; {fix}")


def _rule_of(said: Any, where: str, of_reads: Mapping[str, Any], of_writes: Mapping[str, Any]) -> Rule:
    if not isinstance(said, Mapping):
        raise ConfigurationError(f'{where} must be a table with a kind, for example kind = "read"; got {said!r}')
    if "kind" not in said and "inner" not in said:
        raise ConfigurationError(f'{where}: kind is missing; add kind = "read", "write", "watch" or "pass"')
    kinds = ("read", "write", "watch", "pass")
    kind: str = "inner" if "inner" in said else checked_choice(said["kind"], kinds, f"{where}: kind")
    _refuse_unknown(said, ("kind", *_OPTIONS[kind]) if kind != "inner" else _OPTIONS[kind], where)
    if isinstance(hints := said.get("loop"), Mapping):
        _refuse_unknown(hints, _LOOP, f"{where}: loop")
    try:
        return _made_rule(kind, {key: value for key, value in said.items() if key != "kind"}, of_reads, of_writes)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from None


def _made_rule(kind: str, given: dict[str, Any], of_reads: Mapping[str, Any], of_writes: Mapping[str, Any]) -> Rule:
    if kind == "inner":
        inner = given["inner"]
        if not isinstance(inner, Mapping) or set(inner) != {"tool", "arguments"}:
            example = 'inner = { tool = "name", arguments = "params" }'
            raise ConfigurationError(f"inner must name two arguments, as in {example}; got {inner!r}")
        return Inner(**inner)
    if "loop" in given:
        if not isinstance(given["loop"], Mapping):
            raise ConfigurationError(f"loop must be a table, for example {{ poll = true }}; got {given['loop']!r}")
        given["loop"] = LoopHints(**given["loop"])
    if kind == "watch":
        return Watch(**given)
    if kind == "pass":
        return Pass()
    tags = given.pop("tags", None)
    if not isinstance(tags, list) or not tags:
        raise ConfigurationError(
            f'tags must be a list of what it {kind}s, for example tags = ["order:{{order_id}}"]; got {tags!r}'
        )
    return Read(tags, **given, **of_reads) if kind == "read" else Write(tags, **given, **of_writes)


def _vary_of(names: Any, where: str) -> str | None:
    """A hash of the environment variables that distinguish the entries of this process."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigurationError(f'{where}: vary must be a list such as ["env:GITHUB_TOKEN"]; got {names!r}')
    if not names:
        return None
    digest = hashlib.sha256()
    for name in names:
        source, _, variable = name.partition(":")
        if source != "env" or not variable:
            raise ConfigurationError(f'{where}: vary: write {name!r} as "env:NAME", the name of a variable')
        value = os.environ.get(variable)
        digest.update(b"\0absent" if value is None else b"\1" + os.fsencode(value) + b"\0")
    return digest.hexdigest()


def _tier_at(address: str, where: str) -> Any:
    """The tier at an address. The path of a file is relative to that of the rules: hosts start programs anywhere."""
    from agent_cache.remote.addresses import from_url, path_of_url

    try:
        path = path_of_url(address)
        if path is not None:
            from agent_cache.remote.file import FileTier

            return FileTier(Path(where).absolute().parent / Path(path).expanduser())
        return from_url(address)
    except ImportError as error:
        raise ConfigurationError(f'{where}: remote needs redis: pip install "agent-cache[redis]"') from error
    except ValueError as error:
        raise ConfigurationError(f"{where}: remote is no address of a tier: {error}") from error
