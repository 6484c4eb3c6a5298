"""`agent-cache mcp`: stands between an MCP host and an MCP server, and caches, records or replays the tool calls.

Exit codes: that of the server; 1 if a replay or a recording has failed; 2 usage, or a file that cannot be used; 128 and
the number of the signal that has ended it.

Standard output carries the protocol. Everything else goes to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import string
import sys
from typing import Any

from agent_cache import ConfigurationError
from agent_cache.cli.output import escaped
from agent_cache.recording import CassetteError
from agent_cache.relay.messages import RpcError
from agent_cache.relay.relay import Relay
from agent_cache.relay.relay_settings import load, proposals, starter_rules
from agent_cache.relay.stdio import introduced_by_command, serve
from agent_cache.toolbox import ToolInfo

__all__ = ["add_options", "run"]

_NAME = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
_NEEDS = {"strict": "replay", "listen": "url", "header": "url", "vary_header": "listen"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.usage = (
        "agent-cache mcp [--config FILE] [--record PATH | --replay PATH [--strict]] [--stats] -- COMMAND ...\n"
        "       agent-cache mcp [...] --url URL --listen HOST:PORT\n"
        "       agent-cache mcp --explain [--config FILE] (-- COMMAND ... | --url URL)"
    )
    add = parser.add_argument
    several: dict[str, Any] = {"action": "append", "default": []}
    tape = parser.add_mutually_exclusive_group()
    tape.add_argument("--record", metavar="PATH", help="record everything that the host asks, to replay it")
    tape.add_argument("--replay", metavar="PATH", help="answer from a recording, without any server")
    add("--config", metavar="FILE", help="the rules of the server's tools, as TOML")
    add("--strict", action="store_true", help="with --replay: every recorded call must be made")
    add("--stats", action="store_true", help="at the end, print counters to standard error")
    add("--explain", action="store_true", help="print what is done with each tool, and rules to begin with")
    add("--url", help="the server's endpoint of Streamable HTTP, in place of a command")
    add("--listen", metavar="HOST:PORT", help="with --url: hosts connect to this address")
    what = "with --url: add a header to each request; ${NAME} is a variable of the environment"
    add("--header", metavar="NAME:VALUE", help=what, **several)
    what = "with --listen: of the headers, this one and credentials tell hosts apart"
    add("--vary-header", metavar="NAME", help=what, **several)
    add("server", metavar="COMMAND", nargs="*", help="after --: the command that starts the server")


def run(options: argparse.Namespace) -> int:
    """Run the relay. Returns the exit code."""
    logging.basicConfig(format="agent-cache mcp: %(message)s", level=logging.WARNING)
    try:
        _check(options)
        return asyncio.run(_explain(options) if options.explain else _relay(options))
    except (ConfigurationError, CassetteError) as error:
        _say(str(error))
    except RpcError as error:
        _say(f"the server has refused: {escaped(error)}")
    return 2


def _say(text: str) -> None:
    print(f"agent-cache mcp: {text}", file=sys.stderr, flush=True)


def _check(options: argparse.Namespace) -> None:
    given = {name for name, value in vars(options).items() if value}
    for name, other in _NEEDS.items():
        if name in given and other not in given:
            raise ConfigurationError(f"--{name.replace('_', '-')} needs --{other}")
    if not all(map(_NAME.fullmatch, options.vary_header)):
        raise ConfigurationError("--vary-header: give the name of a header, such as X-Tenant")
    if {"server", "url"} <= given:
        raise ConfigurationError("give either --url or the command of the server, not both")
    if "url" in given and not given & {"listen", "explain"}:
        raise ConfigurationError("--url needs --listen HOST:PORT, where the hosts connect")
    if not given & {"server", "url"} and ("explain" in given or "replay" not in given):
        raise ConfigurationError("give the command of the server after --, as in: agent-cache mcp -- mcp-server-git")


async def _relay(options: argparse.Namespace) -> int:
    box, settings = load(options.config)
    relay = Relay(box, settings, record_to=options.record, replay_from=options.replay, strict=options.strict)
    code = await (serve(relay, options.server) if options.url is None else _listen(relay, options))
    if options.stats:
        metrics, names = relay.session.get_metrics(), ("calls", "hits", "misses", "shared", "invalidations")
        _say(", ".join(f"{name} {metrics[name]}" for name in names) + f", hit rate {metrics['hit_rate']:.0%}")
    for finding in relay.findings:
        _say(finding)
    return 1 if relay.findings else code


def _http() -> Any:
    try:
        from agent_cache.relay import http_proxy
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f'--url needs {error.name}: pip install "agent-cache[mcp-http]"') from error
    return http_proxy


async def _listen(relay: Relay, options: argparse.Namespace) -> int:
    from agent_cache.recording.http.identity import is_loopback

    http = _http()
    upstream, headers = http.Upstream(options.url), [_header(text) for text in options.header]
    host, port = http.address_of(options.listen)
    if not is_loopback(host):
        _say(f"{host} can be reached from other machines, and whoever reaches it uses the server and the cache")
    more = {"headers": headers, "vary_by": options.vary_header, "is_local": is_loopback(host)}
    listener = http.HttpListener(relay, upstream, **more)
    async with relay:
        await http.listen(listener, (host, port), lambda url: _say(f"{url} relays to {upstream.name}"))
    await upstream.aclose()
    return 0


def _header(text: str) -> tuple[bytes, bytes]:
    """The header that ``--header`` gives. Texts of errors do not show its value."""
    name, colon, value = text.partition(":")
    if not colon or not _NAME.fullmatch(name := name.strip()):
        raise ConfigurationError("--header: write NAME:VALUE, as in --header 'Authorization: Bearer ${TOKEN}'")
    try:
        filled = string.Template(value).substitute(os.environ).strip()  # a file of secrets ends with a new line
        sent = filled.encode("latin-1") if filled.isprintable() else None
    except KeyError as error:
        raise ConfigurationError(f"--header: the environment has no variable {error}") from None
    except ValueError:
        sent = None
    if sent is None:
        text = "has a $ of no variable (write $$ for a $), or a letter that headers cannot have"
        raise ConfigurationError(f"--header: {name} {text}")
    return name.lower().encode("ascii"), sent


async def _explain(options: argparse.Namespace) -> int:
    box, _ = load(options.config)
    if options.url is None:
        name, tools = await introduced_by_command(options.server)
    else:
        upstream = _http().Upstream(options.url)
        name, tools = await upstream.introduced([_header(text) for text in options.header])
        await upstream.aclose()
    table = box.explain(ToolInfo(tool["name"], tool.get("inputSchema"), tool.get("annotations")) for tool in tools)
    for line in str(table).splitlines():  # as comments, so that all of it is a file of rules
        print(f"# {line}".rstrip())
    rules = starter_rules(name, tools) if options.config is None else proposals(tools, box)
    print(f"\n{rules}", end="")
    return 1 if table.problems else 0
