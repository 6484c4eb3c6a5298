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
import re
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
from agent_cache.relay.relay_settings import DEFAULT_NAMESPACE, RelaySettings, load
from agent_cache.relay.stdio import connected, process_of, serve

__all__ = ["add_options", "run"]

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.usage = (
        "agent-cache mcp [--config FILE] [--record PATH | --replay PATH [--strict]] [--stats] [--explain] "
        "(-- COMMAND ... | --url URL [--listen HOST:PORT])\n"
        "       agent-cache mcp --advise RUNS... [--config FILE] [-- COMMAND ... | --url URL]"
    )
    add = parser.add_argument
    add("--config", metavar="FILE", help="the rules of the server's tools, as TOML")
    tape = parser.add_mutually_exclusive_group()
    tape.add_argument("--record", metavar="PATH", help="record everything that the host asks, to replay it")
    tape.add_argument("--replay", metavar="PATH", help="answer from a recording, without any server")
    add("--strict", action="store_true", help="with --replay: all of it, in the order recorded")
    add("--stats", action="store_true", help="at the end, print counters to standard error")
    explain = "print what is done with each tool, and rules to begin with, and exit"
    add("--explain", action="store_true", help=explain)
    advise = (
        "print the rules that recordings or logs show to be needed, and exit; of a server that is named, also its "
        "tools that were never called; with --config, only tools without a rule"
    )
    add("--advise", metavar="RUNS", nargs="+", help=advise)
    add("--url", metavar="URL", help="the server's endpoint of Streamable HTTP, in place of a command")
    listen = "with --url: hosts connect to this address, by Streamable HTTP too; port 0 is a free one"
    add("--listen", metavar="HOST:PORT", help=listen)
    header = (
        "with --url: add a header to each request, as in 'Authorization: Bearer ${TOKEN}', which names a variable of "
        "the environment; with --listen, where the host sends none of this name"
    )
    add("--header", metavar="NAME:VALUE", action="append", default=[], help=header)
    origin = "with --listen: pages of this web origin may connect; others than those of this machine may not"
    add("--allow-origin", metavar="ORIGIN", action="append", default=[], help=origin)
    vary = (
        "with --listen: of the headers, only this one, Authorization, Cookie and MCP-Protocol-Version tell hosts "
        "apart; by default all do but those of the transport"
    )
    add("--vary-header", metavar="NAME", action="append", default=[], help=vary)
    add("--stdin-in-thread", action="store_true", help=argparse.SUPPRESS)  # as Windows needs it
    add("server", metavar="COMMAND", nargs="*", help="after --: the command that starts the server")


def run(options: argparse.Namespace) -> int:
    """Run the relay. Returns the exit code."""
    if mistake := _mistake_in(options):
        print(f"agent-cache mcp: {mistake}", file=sys.stderr)
        return 2
    logging.basicConfig(format="agent-cache mcp: %(message)s", level=logging.WARNING)
    try:
        if options.advise:
            has_server = options.server or options.url is not None
            return _advise(options, asyncio.run(_tools_of(options)) if has_server else None)
        return asyncio.run(_explain(options) if options.explain else _relay(options))
    except (ConfigurationError, CassetteError) as error:
        print(f"agent-cache mcp: {error}", file=sys.stderr)
        return 2
    except RpcError as error:
        print(f"agent-cache mcp: the server has refused: {escaped(error)}", file=sys.stderr)
        return 2


def _mistake_in(options: argparse.Namespace) -> str:
    if options.server and options.url is not None:
        return "give either --url or the command of the server, not both"
    if options.advise is not None:
        for name in ("record", "replay", "explain", "stats", "listen"):
            if getattr(options, name):
                return f"--advise prints rules and exits, so --{name} is not for it"
    elif not options.server and options.url is None and (options.explain or options.replay is None):
        return (
            "give the command of the server after --, as in: agent-cache mcp -- mcp-server-git; or its address by --url"
        )
    for name in ("listen", "header", "allow_origin", "vary_header"):
        if getattr(options, name) and options.url is None:
            return f"--{name.replace('_', '-')} needs --url"
    if (options.allow_origin or options.vary_header) and options.listen is None:
        return "--allow-origin and --vary-header need --listen"
    if options.strict and options.replay is None:
        return "--strict needs --replay"
    return ""


def _settings(options: argparse.Namespace) -> tuple[Toolbox, RelaySettings]:
    if options.config is None:
        return Toolbox({}, namespace=DEFAULT_NAMESPACE, hints="kind"), RelaySettings()
    return load(options.config)


async def _relay(options: argparse.Namespace) -> int:
    box, settings = _settings(options)
    relay = Relay(box, settings, record_to=options.record, replay_from=options.replay, strict=options.strict)
    in_thread = options.stdin_in_thread
    if options.url is None:
        # A tier may be shared with the processes of others
        command = json.dumps([*options.server, str(Path.cwd())]).encode("utf-8", "surrogatepass")
        who = hashlib.sha256(command).hexdigest()
        code = await serve(relay, process_of(options.server), vary=who, reads_in_thread=in_thread)
    else:
        upstream, headers = _upstream_of(options)
        try:
            if options.listen is not None:
                code = await _listen(relay, upstream, headers, options)
            else:
                http = _http()
                who = http.identity_of(headers, url=str(upstream.url))
                connect = partial(http.HttpServer, upstream, headers, relay.schema_of)
                code = await serve(relay, connect, vary=who, reads_in_thread=in_thread)
        finally:
            await upstream.aclose()
    if options.stats:
        metrics = relay.session.get_metrics()
        shown = ", ".join(f"{name} {metrics[name]}" for name in ("calls", "hits", "misses", "shared", "invalidations"))
        _say(f"{shown}, hit rate {metrics['hit_rate']:.0%}")
    for finding in relay.findings:
        _say(finding)
    return 1 if relay.findings else code


def _say(text: str) -> None:
    print(f"agent-cache mcp: {text}", file=sys.stderr, flush=True)


# A server over HTTP


def _http() -> Any:
    """The module of servers over HTTP."""
    try:
        from agent_cache.relay import http_server
    except ModuleNotFoundError as error:
        needed = f'--url needs {error.name}: pip install "agent-cache[mcp-http]"'
        raise ModuleNotFoundError(needed, name=error.name) from error
    return http_server


def _upstream_of(options: argparse.Namespace) -> tuple[Any, list[tuple[bytes, bytes]]]:
    return _http().Upstream(options.url), [_header(text) for text in options.header]


async def _listen(relay: Relay, upstream: Any, headers: Any, options: argparse.Namespace) -> int:
    from agent_cache.relay import http_proxy

    host, port = http_proxy.address_of(options.listen)
    is_local = http_proxy.is_loopback(host)
    if not is_local:
        _say(f"{host} can be reached from other machines, and whoever reaches it uses the server and the cache")
    listener = http_proxy.HttpListener(
        relay,
        upstream,
        headers=headers,
        vary_by=options.vary_header,
        is_local=is_local,
        origins=options.allow_origin,
    )
    async with relay:
        await http_proxy.listen(listener, (host, port), lambda url: _say(f"{url} relays to {upstream.name}"))
    return 0


def _header(text: str) -> tuple[bytes, bytes]:
    """The header that ``--header`` gives.

    Raises:
        ConfigurationError: for a header without name, or an unknown variable. The value is not shown.
    """
    name, colon, value = text.partition(":")
    if not colon or not _TOKEN.fullmatch(name.strip()):
        raise ConfigurationError("--header: write NAME:VALUE, as in --header 'Authorization: Bearer ${TOKEN}'")
    try:
        filled = string.Template(value.strip()).substitute(os.environ)
        return name.strip().lower().encode(), filled.encode("latin-1")
    except KeyError as error:
        raise ConfigurationError(f"--header: the environment has no variable {error}") from None
    except ValueError:
        raise ConfigurationError(
            f"--header: the value of {name.strip()} has a $ that names no variable (write $$ for a $), or a letter "
            "that headers cannot have"
        ) from None


# What the server has


async def _tools_of(options: argparse.Namespace) -> tuple[str, dict[str, Mapping[str, Any]]]:
    from agent_cache.relay.starter import introduced

    if options.url is None:
        async with connected(process_of(options.server)) as ask:
            return await introduced(ask)
    upstream, headers = _upstream_of(options)
    try:
        async with connected(partial(_http().HttpServer, upstream, headers, lambda _: None)) as ask:
            return await introduced(ask)
    finally:
        await upstream.aclose()


def _advise(options: argparse.Namespace, server: tuple[str, dict[str, Mapping[str, Any]]] | None) -> int:
    """Print the rules that logs show to be needed, and those to begin with for tools that were never called."""
    from agent_cache.cli.advise import advised_rules, print_summary, refusal_of
    from agent_cache.recording import Redaction
    from agent_cache.relay.starter import proposals
    from agent_cache.toolbox.box import has_rule

    box = None if options.config is None else _settings(options)[0]
    redaction = Redaction()
    try:
        rules = advised_rules(options.advise, redaction)
    except (AgentCacheError, OSError) as error:
        _say(refusal_of(error, redaction))
        return 2

    def is_known(name: str) -> bool:
        return box is not None and has_rule(box, name)

    namespace = DEFAULT_NAMESPACE if server is None else server[0]
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
    from agent_cache.relay.starter import proposals, starter_rules
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
