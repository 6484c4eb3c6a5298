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
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from agent_cache import AgentCacheError, ConfigurationError, Toolbox
from agent_cache.cli.output import escaped
from agent_cache.recording import CassetteError
from agent_cache.relay.messages import RpcError
from agent_cache.relay.relay import Relay
from agent_cache.relay.relay_settings import DEFAULT_NAMESPACE, RelaySettings, load
from agent_cache.relay.stdio import connected, serve

__all__ = ["add_options", "run"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.usage = (
        "agent-cache mcp [--config FILE] [--record PATH | --replay PATH [--strict]] [--stats] [--explain] "
        "(-- COMMAND ... | --url URL [--listen HOST:PORT])\n"
        "       agent-cache mcp --advise RUNS... [--config FILE] [-- COMMAND ... | --url URL]"
    )
    parser.add_argument("--config", metavar="FILE", help="the rules of the server's tools, as TOML")
    tape = parser.add_mutually_exclusive_group()
    tape.add_argument("--record", metavar="PATH", help="record everything that the host asks, to replay it")
    tape.add_argument("--replay", metavar="PATH", help="answer from a recording, without any server")
    parser.add_argument("--strict", action="store_true", help="with --replay: all of it, in the order recorded")
    parser.add_argument("--stats", action="store_true", help="at the end, print counters to standard error")
    parser.add_argument(
        "--explain", action="store_true", help="print what is done with each tool, and rules to begin with, and exit"
    )
    parser.add_argument(
        "--advise",
        metavar="RUNS",
        nargs="+",
        help="print the rules that recordings or logs show to be needed, and exit; of a server that is named, also its "
        "tools that were never called; with --config, only tools without a rule",
    )
    parser.add_argument("--url", metavar="URL", help="the server's endpoint of Streamable HTTP, in place of a command")
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="with --url: hosts connect to this address, by Streamable HTTP too; port 0 is a free one",
    )
    parser.add_argument(
        "--header",
        metavar="NAME:VALUE",
        action="append",
        default=[],
        help="with --url: add a header to each request, as in 'Authorization: Bearer ${TOKEN}', which names a variable "
        "of the environment; with --listen, where the host sends none of this name",
    )
    parser.add_argument(
        "--allow-origin",
        metavar="ORIGIN",
        action="append",
        default=[],
        help="with --listen: pages of this web origin may connect; others than those of this machine may not",
    )
    parser.add_argument(
        "--vary-header",
        metavar="NAME",
        action="append",
        default=[],
        help="with --listen: of the headers, only this one, Authorization, Cookie and MCP-Protocol-Version tell hosts "
        "apart; by default all do but those of the transport",
    )
    parser.add_argument("--stdin-in-thread", action="store_true", help=argparse.SUPPRESS)  # as Windows needs it
    parser.add_argument("server", metavar="COMMAND", nargs="*", help="after --: the command that starts the server")


def run(options: argparse.Namespace) -> int:
    """Run the relay. Returns the exit code."""
    if mistake := _mistake_in(options):
        print(f"agent-cache mcp: {mistake}", file=sys.stderr)
        return 2
    logging.basicConfig(format="agent-cache mcp: %(message)s", level=logging.WARNING)
    try:
        with asyncio.Runner(loop_factory=_loop_factory(options)) as runner:
            if options.advise:
                has_server = options.server or options.url is not None
                return _advise(options, runner.run(_tools_of(options)) if has_server else None)
            return runner.run(_explain(options) if options.explain else _relay(options))
    except (ConfigurationError, CassetteError) as error:
        print(f"agent-cache mcp: {error}", file=sys.stderr)
        return 2
    except RpcError as error:
        print(f"agent-cache mcp: the server has refused: {escaped(error)}", file=sys.stderr)
        return 2


def _loop_factory(options: argparse.Namespace) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the event loop: where hosts connect, uvloop, which takes a fifth off a call."""
    if options.listen is None or options.explain or options.advise:
        return None
    from agent_cache.cli import mcp_http

    return mcp_http.loop_factory()


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
    if options.url is None:
        who = _identity_of(options.server)  # a tier may be shared with the processes of others
        code = await serve(relay, options.server, vary=who, reads_in_thread=options.stdin_in_thread)
    else:
        from agent_cache.cli import mcp_http

        code = await mcp_http.relayed(relay, options)
    if options.stats:
        print(_stats_line(relay.session.get_metrics()), file=sys.stderr)
    for finding in relay.findings:
        print(f"agent-cache mcp: {finding}", file=sys.stderr)
    return 1 if relay.findings else code


def _identity_of(command: Sequence[str]) -> str:
    """A hash of how a server is started: the command, its arguments, and the directory."""
    return hashlib.sha256(json.dumps([*command, str(Path.cwd())]).encode("utf-8", "surrogatepass")).hexdigest()


def _stats_line(metrics: dict[str, Any]) -> str:
    shown = ", ".join(f"{name} {metrics[name]}" for name in ("calls", "hits", "misses", "shared", "invalidations"))
    return f"agent-cache mcp: {shown}, hit rate {metrics['hit_rate']:.0%}"


def _connected(options: argparse.Namespace) -> AbstractAsyncContextManager[Any]:
    if options.url is None:
        return connected(options.server)
    from agent_cache.cli import mcp_http

    return mcp_http.connected(options)


async def _tools_of(options: argparse.Namespace) -> tuple[str, dict[str, Mapping[str, Any]]]:
    from agent_cache.relay.starter import introduced

    async with _connected(options) as ask:
        return await introduced(ask)


def _advise(options: argparse.Namespace, server: tuple[str, dict[str, Mapping[str, Any]]] | None) -> int:
    """Print the rules that logs show to be needed, and those to begin with for tools that were never called."""
    from agent_cache.cli.advise import advised_rules, exit_code_of, print_summary, refusal_of
    from agent_cache.recording import Redaction
    from agent_cache.relay.starter import starter_rules
    from agent_cache.toolbox.box import has_rule

    box = None if options.config is None else _settings(options)[0]
    redaction = Redaction()
    try:
        rules = advised_rules(options.advise, redaction)
    except (AgentCacheError, OSError) as error:
        print(f"agent-cache mcp: {refusal_of(error, redaction)}", file=sys.stderr)
        return 2

    def is_known(name: str) -> bool:
        return box is not None and has_rule(box, name)

    namespace = DEFAULT_NAMESPACE if server is None else server[0]
    print(rules.toml(relay=namespace, has_rule=is_known, is_new=box is None), end="")
    if server is not None:
        called = set(rules.names.of.values())
        others = [tool for name, tool in server[1].items() if name not in called]
        text = starter_rules(namespace, others, box or Toolbox({}, namespace=DEFAULT_NAMESPACE, hints="kind"))
        print(f"\n# Tools that were never called\n\n{text}" if text else "", end="")
        for name in sorted(called - server[1].keys()):
            print(f"agent-cache mcp: the server has no tool {rules.names.shown(name)}", file=sys.stderr)
    sys.stdout.flush()
    print_summary(rules)
    return exit_code_of(rules)


async def _explain(options: argparse.Namespace) -> int:
    from agent_cache.relay.starter import starter_rules
    from agent_cache.toolbox import ToolInfo

    box, _ = _settings(options)
    name, tools = await _tools_of(options)
    table = box.explain(
        ToolInfo(tool["name"], tool.get("inputSchema"), tool.get("annotations")) for tool in tools.values()
    )
    for line in str(table).splitlines():  # as comments, so that all of it is a file of rules
        print(f"# {line}".rstrip())
    rules = starter_rules(name, tools.values(), None if options.config is None else box)
    if rules:
        print(f"\n{rules}", end="")
    return 1 if table.problems else 0
