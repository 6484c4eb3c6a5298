"""Who a server is, asked on every new connection before it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_cache.remote.redis.leases import boottime
from agent_cache.remote.redis.transport import Link
from agent_cache.remote.redis.wire import Interrupted, Unreachable

if TYPE_CHECKING:
    from agent_cache.remote.redis.core import Core
    from agent_cache.remote.redis.topology import Node

__all__ = ["INFO", "identity_in", "introduced"]

INFO = (b"INFO", b"replication")


def identity_in(info: object) -> bytes:
    """The replication id in a reply to `INFO`.

    Raises:
        Unreachable: if this is no master. A replica has its master's id, and may be behind it.
    """
    fields = dict(line.partition(b":")[::2] for line in info.splitlines()) if isinstance(info, bytes) else {}
    if fields.get(b"role") != b"master" or not fields.get(b"master_replid"):
        raise Unreachable("the server is not a master")
    return fields[b"master_replid"].strip()


async def introduced(core: Core, node: Node) -> tuple[Link, bytes]:
    """A connection to a server that is a master now, and its identity.

    Raises:
        Unreachable: if there is none.
    """
    generation = node.generation
    link = await Link.open(core.topology.deployment, node.address, limit=core.max_reply_size, timeout=core.timeout)
    try:
        before = boottime()
        info, now = await link.ask(INFO, (b"TIME",))
        node.clock_offset = int(now[0]) + int(now[1]) / 1e6 - (before + boottime()) / 2
        ident = identity_in(info)
    except BaseException:
        link.close()
        raise
    core.met(node, ident)
    if generation != node.generation:
        link.close()
        raise Interrupted("the server has changed its identity meanwhile")
    return link, ident
