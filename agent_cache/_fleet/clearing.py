"""`agent-cache clear`: what a write to these tags would do, and nothing else is needed."""

from __future__ import annotations

import argparse
import os
import sys

from agent_cache._fleet.listing import tags_of
from agent_cache._fleet.screen import print_json, progress
from agent_cache._fleet.servers import Servers, opened
from agent_cache._fleet.survey import batches, entries_of, root_of_cell
from agent_cache.errors import ConfigurationError
from agent_cache.remote.protocol import WriteIntent
from agent_cache.remote.redis import RedisTier
from agent_cache.remote.redis.wire import ReplyError, Unreachable

__all__ = ["clear"]

_ROOTS_AT_ONCE = 100


async def clear(options: argparse.Namespace) -> int:
    """Run the command."""
    tags = tags_of(options)
    if options.all == bool(tags):
        raise ConfigurationError("clear: name tags, such as order:7 or order, or --all for everything; not both")
    if options.all and not options.yes:
        print(f"This drops everything under {options.namespace!r}, in every process. Add --yes.", file=sys.stderr)
        return 2
    deleted = 0
    async with opened(options.url, options.namespace, options.timeout) as servers:
        if options.all:
            tags = sorted(await _roots(servers, options.namespace))
        tier = RedisTier(
            servers.deployment,
            namespace=options.namespace,
            timeout=options.timeout,
            max_staleness=1.2 * options.timeout,
        )
        async with tier:
            for at in range(0, len(tags), _ROOTS_AT_ONCE):
                await _write(tier, tuple(tags[at : at + _ROOTS_AT_ONCE]))
        if options.all:  # they are dead already; this gives their memory back
            deleted = await _delete_values(servers, options.namespace)
    if options.json:
        print_json({"namespace": options.namespace, "tags": tags, "deleted": deleted})
    elif options.all:
        print(f"cleared {len(tags)} roots, deleted {deleted:,} entries")
    else:
        print(f"cleared {', '.join(tags)}")
    return 0


async def _write(tier: RedisTier, tags: tuple[str, ...]) -> None:
    """Begin and commit a write of these tags.

    Raises:
        RemoteTierError, Unreachable: if it did not land.
    """
    write = WriteIntent(os.urandom(16).hex(), tags, on_unreachable="refuse")
    await tier.begin(write)
    await tier.commit(write, tags, failed=False, hold=0.0)
    if tier.stats()["pending"]:
        raise Unreachable("the server was lost half way; what was held dies with the lease, but run it again")


async def _roots(servers: Servers, namespace: str) -> set[str]:
    """Every root that has anything on the servers, and every root that a process listens to: it may hold copies."""
    roots: set[str] = set()
    channels = b"SHARDCHANNELS" if servers.is_cluster else b"CHANNELS"
    for server in servers.all:
        heard = await server.ask(b"PUBSUB", channels)
        start = b"c:{%b:" % namespace.encode()
        roots |= {root_of_cell(channel) for channel in heard if channel.startswith(start)}
        with progress("looking for roots", await server.ask(b"DBSIZE")) as tick:
            async for batch in batches(server, namespace, tick):
                roots |= {root_of_cell(key) for key in [*batch.cells, *batch.registries]}
                for entry in await entries_of(servers, server, batch.values):
                    roots |= entry.roots
    return roots - {""}


async def _delete_values(servers: Servers, namespace: str) -> int:
    deleted = 0
    for server in servers.all:
        with progress("deleting", await server.ask(b"DBSIZE")) as tick:
            async for batch in batches(server, namespace, tick):
                replies = await server.ask_all([(b"UNLINK", key) for key in [*batch.values, *batch.claims]])
                for reply in replies:
                    if isinstance(reply, ReplyError):
                        raise reply
                deleted += sum(replies[: len(batch.values)])
    return deleted
