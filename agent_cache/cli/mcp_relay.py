"""`agent-cache mcp`: stands between an MCP host and an MCP server, and caches, records or replays the tool calls.

Exit codes: that of the server; 1 if a replay or a recording has failed; 2 usage, or a file that cannot be used; 128 and
the number of the signal that has ended it.

Standard output carries the protocol. Everything else goes to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import logging
import os
import string
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from agent_cache import AgentCacheError, ConfigurationError, Toolbox
from agent_cache.cli.output import escaped
from agent_cache.recording import CassetteError
from agent_cache.relay.messages import RpcError
from agent_cache.relay.relay import Relay
from agent_cache.relay.relay_settings import DEFAULT_NAMESPACE, RelaySettings, load, proposals, starter_rules
from agent_cache.relay.stdio import Process, introduced, serve

__all__ = ["add_options", "run"]


_OPTIONS = (
    ("--config", "FILE", "the rules of the server's tools, as TOML"),
    ("--strict", "", "with --replay: all of it, in the order recorded"),
    ("--stats", "", "at the end, print counters to standard error"),
    ("--explain", "", "print what is done with each tool, and rules to begin with, and exit"),
    ("--advise", "RUNS", "print the rules that recordings or logs show to be needed, and exit"),
    ("--url", "URL", "the server's endpoint of Streamable HTTP, in place of a command"),
    ("--listen", "HOST:PORT", "with --url: hosts connect to this address, by Streamable HTTP too"),
    ("--header", "NAME:VALUE", "with --url: add a header to each request; ${NAME} is a variable of the environment"),
    ("--allow-origin", "ORIGIN", "with --listen: pages of this web origin may connect"),
    ("--vary-header", "NAME", "with --listen: of the headers, only this one and credentials tell hosts apart"),
)
_SEVERAL = ("--header", "--allow-origin", "--vary-header")
_NEEDS = {"strict": "replay", "listen": "url", "header": "url", "allow_origin": "listen", "vary_header": "listen"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.usage = (
        "agent-cache mcp [--config FILE] [--record PATH | --replay PATH [--strict]] [--stats] [--explain] "
        "(-- COMMAND ... | --url URL [--listen HOST:PORT])\n"
        "       agent-cache mcp --advise RUNS... [--config FILE] [-- COMMAND ... | --url URL]"
    )
    tape = parser.add_mutually_exclusive_group()
    tape.add_argument("--record", metavar="PATH", help="record everything that the host asks, to replay it")
    tape.add_argument("--replay", metavar="PATH", help="answer from a recording, without any server")
    for name, metavar, text in _OPTIONS:
        options: dict[str, Any] = {"metavar": metavar} if metavar else {"action": "store_true"}
        options |= {"nargs": "+"} if name == "--advise" else {}
        options |= {"action": "append", "default": []} if name in _SEVERAL else {}
        parser.add_argument(name, help=text, **options)
    parser.add_argument("server", metavar="COMMAND", nargs="*", help="after --: the command that starts the server")


def run(options: argparse.Namespace) -> int:
    """Run the relay. Returns the exit code."""
    logging.basicConfig(format="agent-cache mcp: %(message)s", level=logging.WARNING)
    mistake = _mistake_in(options)
    try:
        if not mistake:
            if options.advise:
                return _advise(options)
            return asyncio.run(_explain(options) if options.explain else _relay(options))
    except (ConfigurationError, CassetteError) as error:
        mistake = str(error)
    except RpcError as error:
        mistake = f"the server has refused: {escaped(error)}"
    _say(mistake)
    return 2


def _say(text: str) -> None:
    print(f"agent-cache mcp: {text}", file=sys.stderr, flush=True)


def _mistake_in(options: argparse.Namespace) -> str:
    given = {name for name, value in vars(options).items() if value}
    for name, other in _NEEDS.items():
        if name in given and other not in given:
            return f"--{name.replace('_', '-')} needs --{other}"
    if {"server", "url"} <= given:
        return "give either --url or the command of the server, not both"
    if "advise" in given:
        surplus = sorted(given & {"record", "replay", "explain", "stats", "listen"})
        return f"--advise prints rules and exits, so --{surplus[0]} is not for it" if surplus else ""
    if not given & {"server", "url"} and ("explain" in given or "replay" not in given):
        return (
            "give the command of the server after --, as in: agent-cache mcp -- mcp-server-git; or its address by --url"
        )
    return ""


def _settings(options: argparse.Namespace) -> tuple[Toolbox, RelaySettings]:
    if options.config is None:
        return Toolbox({}, namespace=DEFAULT_NAMESPACE, hints="kind"), RelaySettings()
    return load(options.config)


async def _relay(options: argparse.Namespace) -> int:
    box, settings = _settings(options)
    relay = Relay(box, settings, record_to=options.record, replay_from=options.replay, strict=options.strict)
    if options.url is None:
        command = json.dumps([*options.server, str(Path.cwd())])  # a tier may be shared with the processes of others
        who = hashlib.sha256(command.encode("utf-8", "surrogatepass")).hexdigest()
        code = await serve(relay, partial(Process, options.server), vary=who)
    else:
        http, upstream, headers = _over_http(options)
        try:
            if options.listen is not None:
                code = await _listen(relay, upstream, headers, options)
            else:
                who = http.identity_of(headers, url=str(upstream.url))
                connect = partial(http.HttpServer, upstream, headers, relay.schema_of)
                code = await serve(relay, connect, vary=who)
        finally:
            await upstream.aclose()
    if options.stats:
        metrics = relay.session.get_metrics()
        shown = ", ".join(f"{name} {metrics[name]}" for name in ("calls", "hits", "misses", "shared", "invalidations"))
        _say(f"{shown}, hit rate {metrics['hit_rate']:.0%}")
    for finding in relay.findings:
        _say(finding)
    return 1 if relay.findings else code


# A server over HTTP


def _over_http(options: argparse.Namespace) -> tuple[Any, Any, list[tuple[bytes, bytes]]]:
    """The module of servers over HTTP, the client of this one, and the headers for it."""
    try:
        from agent_cache.relay import http_server
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f'--url needs {error.name}: pip install "agent-cache[mcp-http]"') from error
    return http_server, http_server.Upstream(options.url), [_header(text) for text in options.header]


async def _listen(relay: Relay, upstream: Any, headers: Any, options: argparse.Namespace) -> int:
    from agent_cache.recording.http.identity import is_loopback
    from agent_cache.relay.http_proxy import HttpListener, address_of, listen

    host, port = address_of(options.listen)
    if not is_loopback(host):
        _say(f"{host} can be reached from other machines, and whoever reaches it uses the server and the cache")
    more = {"vary_by": options.vary_header, "is_local": is_loopback(host), "origins": options.allow_origin}
    listener = HttpListener(relay, upstream, headers=headers, **more)
    async with relay:
        await listen(listener, (host, port), lambda url: _say(f"{url} relays to {upstream.name}"))
    return 0


def _header(text: str) -> tuple[bytes, bytes]:
    """The header that ``--header`` gives. Texts of errors do not show its value."""
    name, colon, value = text.partition(":")
    if not colon or not name.strip().replace("-", "").replace("_", "").isalnum():
        raise ConfigurationError("--header: write NAME:VALUE, as in --header 'Authorization: Bearer ${TOKEN}'")
    try:
        filled = string.Template(value.strip()).substitute(os.environ)
        return name.strip().lower().encode("ascii"), filled.encode("latin-1")
    except KeyError as error:
        raise ConfigurationError(f"--header: the environment has no variable {error}") from None
    except ValueError:
        raise ConfigurationError(
            f"--header: the value of {name.strip()} has a $ that names no variable (write $$ for a $), or a letter "
            "that headers cannot have"
        ) from None


# What the server has


async def _tools_of(options: argparse.Namespace) -> tuple[str, dict[str, Mapping[str, Any]]]:
    if options.url is None:
        return await introduced(partial(Process, options.server))
    http, upstream, headers = _over_http(options)
    try:
        return await introduced(partial(http.HttpServer, upstream, headers, {}.get))
    finally:
        await upstream.aclose()


def _advise(options: argparse.Namespace) -> int:
    """Print the rules that logs show to be needed, and those to begin with for tools that were never called."""
    from agent_cache.cli.advise import advised_rules, print_summary, refusal_of
    from agent_cache.recording import Redaction
    from agent_cache.toolbox.box import has_rule

    server = asyncio.run(_tools_of(options)) if options.server or options.url is not None else None
    box = None if options.config is None else _settings(options)[0]
    redaction = Redaction()
    try:
        rules = advised_rules(options.advise, redaction)
    except (AgentCacheError, OSError) as error:
        _say(refusal_of(error, redaction))
        return 2
    namespace = DEFAULT_NAMESPACE if server is None else server[0]

    def is_known(name: str) -> bool:
        return box is not None and has_rule(box, name)

    text = rules.toml(relay=namespace, has_rule=is_known, is_new=box is None)
    if server is not None:
        called = set(rules.names.of.values())
        rest = proposals([tool for name, tool in server[1].items() if name not in called], box)
        if rest:
            rest = f"# Tools that were never called; these lines stand above the first table\n\n{rest}"
            head, mark, tables = text.partition('\nunknown = "write"\n')
            text = f"{head}{mark}\n{rest}{tables}" if mark else f"{rest}\n{text}"
        for name in sorted(called - server[1].keys()):
            _say(f"the server has no tool {rules.names.shown(name)}")
    print(text, end="", flush=True)
    print_summary(rules)
    return 0


async def _explain(options: argparse.Namespace) -> int:
    from agent_cache.toolbox import ToolInfo

    box, _ = _settings(options)
    name, tools = await _tools_of(options)
    infos = [ToolInfo(tool["name"], tool.get("inputSchema"), tool.get("annotations")) for tool in tools.values()]
    table = box.explain(infos)
    for line in str(table).splitlines():  # as comments, so that all of it is a file of rules
        print(f"# {line}".rstrip())
    rules = starter_rules(name, tools.values()) if options.config is None else proposals(tools.values(), box)
    if rules:
        print(f"\n{rules}", end="")
    return 1 if table.problems else 0
