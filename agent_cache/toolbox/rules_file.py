"""The rules of a toolbox as a TOML file: read, checked, and every mistake named with its key and its fix."""

from __future__ import annotations

import hashlib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final

from agent_cache.core.options import LoopHints, checked_choice
from agent_cache.errors import ConfigurationError
from agent_cache.toolbox.rules import Inner, Pass, Read, Rule, Watch, Write

__all__ = ["read_rules"]

_TOP: Final = ("namespace", "hints", "unknown", "vary", "remote", "tools")
_RELAY: Final = ("on_loop", "new_turn_after", "max_tool_repeats", "on")
"""Keys that `agent-cache mcp` alone uses, which reads and checks them."""

_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "read": (
        "tags", "parse", "scope", "ttl", "maxsize", "jitter", "grace", "stale_if_error", "copy", "inherit", "shared",
        "version", "validate", "validate_after", "loop",
    ),
    "write": ("tags", "parse", "scope", "settle", "doubt", "shared", "loop"),
    "watch": ("loop",),
    "pass": (),
    "inner": ("inner",),
}  # fmt: skip


def read_rules(path: str | os.PathLike[str], hints: str) -> tuple[dict[str, Any], Any]:
    """The arguments of the `Toolbox` that a file describes, and the tier that its reads share: see its `from_file`."""
    where = os.fspath(path)
    try:
        return _read(tomllib.loads(Path(path).read_text("utf-8-sig")), Path(path).absolute().parent, hints)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{where}: the file of rules cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{where}: the file of rules is no TOML: {error}") from None
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error.__cause__


def _read(data: Mapping[str, Any], directory: Path, hints: str) -> tuple[dict[str, Any], Any]:
    _refuse_unknown(data, (*_TOP, *_RELAY))
    namespace, remote, tools = data.get("namespace"), data.get("remote"), data.get("tools", {})
    if not isinstance(namespace, str) or not namespace or ":" in namespace:
        raise ConfigurationError(
            f'namespace must be a name without a colon, above all [tables], as namespace = "shop"; got {namespace!r}'
        )
    if remote is not None and (not isinstance(remote, str) or not remote):
        raise ConfigurationError(f"remote must be the address of a tier, got {remote!r}")
    unknown = checked_choice(data.get("unknown", "write"), ("write", "watch", "pass"), "unknown")
    hints = checked_choice(data.get("hints", hints), ("off", "kind"), "hints")
    of_writes: dict[str, Any] = {} if remote is None else {"remote_cache": _tier_at(remote, directory)}
    vary = _vary_of(data.get("vary", []))
    of_reads = {} if vary is None else {"vary": vary}
    rules: dict[str, Rule] = {}
    for name, said in _table(tools, "tools").items():
        if not name:
            raise ConfigurationError('[tools.""] is of no tool: write its name, or "*" for every other')
        try:
            rules[name] = _rule_of(said, of_reads, of_writes)
        except ConfigurationError as error:
            raise ConfigurationError(f"tools.{name}: {error}") from None
    return {"rules": rules, "namespace": namespace, "unknown": unknown, "hints": hints}, of_writes.get("remote_cache")


def _refuse_unknown(given: Mapping[str, Any], known: tuple[str, ...], table: str = "") -> None:
    for key in given:
        if key not in known:
            from difflib import get_close_matches  # for an error alone

            near = get_close_matches(key, known, 1)
            fix = f"is {near[0]!r} meant?" if near else f"use one of {', '.join(known) or 'none'}"
            raise ConfigurationError(f"{table + key!r} is not known here; {fix}")


def _table(said: Any, key: str, known: tuple[str, ...] = ()) -> Mapping[str, Any]:
    if not isinstance(said, Mapping):
        raise ConfigurationError(f"{key} must be a table, got {said!r}")
    _refuse_unknown(said if known else {}, known, f"{key}.")
    return said


def _rule_of(said: Any, of_reads: Mapping[str, Any], of_writes: Mapping[str, Any]) -> Rule:
    if not isinstance(said, Mapping) or not {"kind", "inner"} & said.keys():
        raise ConfigurationError(f'a tool is a table with a kind, as kind = "read", got {said!r}; dots need quotes')
    given, kinds = dict(said), ("read", "write", "watch", "pass")
    kind: str = "inner" if "inner" in given else checked_choice(given.pop("kind"), kinds, "kind")
    _refuse_unknown(given, _OPTIONS[kind])
    if kind == "inner":
        inner: Any = _table(given["inner"], "inner", ("tool", "arguments"))
        return Inner(tool=inner.get("tool"), arguments=inner.get("arguments"))
    if "loop" in given:
        given["loop"] = LoopHints(**_table(given["loop"], "loop", ("poll", "max_unchanged", "off")))
    if "validate" in given:
        given["validate"] = _function_at(given["validate"])
    if kind in ("watch", "pass"):
        return Watch(**given) if kind == "watch" else Pass()
    tags = given.pop("tags", None)
    if not isinstance(tags, list) or not tags:
        raise ConfigurationError(f'tags must be a list, for example tags = ["order:{{order_id}}"]; got {tags!r}')
    if kind == "write":
        return Write(tags, **given, **of_writes)
    tier = {} if given.get("scope") == "session" else of_writes  # what is of a session does not leave the process
    return Read(tags, **given, **of_reads, **tier)


def _function_at(name: Any) -> Any:
    """The function of a module that can be imported here."""
    try:
        return resolve_name(name)
    except Exception as error:  # importing a module runs its code
        raise ConfigurationError(
            f'validate must name a function, for example "shop.checks:is_unchanged"; {name!r}: {error!r}'
        ) from error


def _vary_of(names: Any) -> Any:
    """A ``vary`` that gives a hash of the environment variables that distinguish the entries of this process: it says
    nothing of who asks within one.
    """
    if not isinstance(names, list) or not all(isinstance(one, str) and one[:4] == "env:" and one[4:] for one in names):
        raise ConfigurationError(f'vary must be a list such as ["env:GITHUB_TOKEN"]; got {names!r}')
    if not names:
        return None
    digest = hashlib.sha256()
    for value in [os.environ.get(name.removeprefix("env:")) for name in names]:
        digest.update(b"\0absent" if value is None else b"\1" + os.fsencode(value) + b"\0")

    def vary() -> str:
        return digest.hexdigest()

    vary.is_of_process = True  # type: ignore[attr-defined]  # what `AgentCache` asks a vary for
    return vary


def _tier_at(address: str, directory: Path) -> Any:
    """The tier at an address. The path of a file is relative to that of the rules: hosts start programs anywhere."""
    from agent_cache.remote import from_url, path_of_url

    try:
        path = path_of_url(address)
        if path is not None:
            from agent_cache.remote.file import FileTier

            return FileTier(directory / Path(path).expanduser())
        return from_url(address)
    except ImportError as error:
        raise ConfigurationError('remote needs redis: pip install "agent-cache[redis]"') from error
    except (ValueError, RuntimeError) as error:  # the latter: of `~name`, if there is no such user
        raise ConfigurationError(f"remote is no address of a tier: {error}") from error
