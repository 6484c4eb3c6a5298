"""A process that calls one tool behind a tier on a server: python -m tests.harness.loader_process URL FLIGHT KIND LEASE

It prints ``ready``, and after a line from its standard input calls the tool. A number in that line is the timeout of
the call. Then it prints ``waiting`` as soon as the call waits for another process, and at its end ``answer VALUE``,
``timeout`` or ``error``, with the seconds that the call took.

A run of the tool pushes its process id to the list ``runs`` of the server, and then waits for its result: ``fail``, or
a value, from the list ``results``.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from redis import Redis

from agent_cache import AgentCache, RemotePolicy
from agent_cache.remote.redis import RedisTier

_BATCHES_OF_A_LOADER = 2


def main(url: str, flight: str, kind: str, lease: str) -> None:
    """Run until the standard input ends."""
    asyncio.run(_serve(url, flight, kind, float(lease)))


async def _serve(url: str, flight: str, kind: str, lease: float) -> None:
    data = Redis.from_url(url, decode_responses=True, socket_timeout=120)  # by default some versions wait for 5 s
    tier = RedisTier.from_url(url, namespace="loads", lease=lease, timeout=5.0, max_staleness=20.0)

    def load() -> str:
        data.rpush("runs", os.getpid())
        _, result = data.blpop(["results"], 60)
        if result == "fail":
            raise ValueError(result)
        return str(result)

    async def get_order(id: str) -> str:
        return await asyncio.to_thread(load)

    def get_order_in_thread(id: str) -> str:
        return load()

    policy = RemotePolicy(flight="fleet") if flight == "fleet" else RemotePolicy()
    decorate = AgentCache("order:{id}", name="get_order", remote_cache=tier, remote=policy)
    read, read_in_thread = (
        decorate(get_order),
        AgentCache("order:{id}", name="get_order_in_thread", remote_cache=tier, remote=policy)(get_order_in_thread),
    )
    async with tier:
        tier.subscribe(lambda _: None)
        while not await tier.caught_up():
            await asyncio.sleep(0.01)
        _say("ready")
        while line := await asyncio.to_thread(sys.stdin.readline):
            before, began = tier.stats()["batches"], time.monotonic()
            call = asyncio.ensure_future(asyncio.to_thread(read_in_thread, "7") if kind == "def" else read("7"))
            seconds = float(line) if line.strip() else None
            reporting = asyncio.ensure_future(_report_waiting(tier, before + _BATCHES_OF_A_LOADER))
            try:
                async with asyncio.timeout(seconds):
                    outcome = f"answer {await call}"
            except TimeoutError:
                outcome = "timeout"
            except ValueError:
                outcome = "error"
            reporting.cancel()
            _say(f"{outcome} {time.monotonic() - began}")


async def _report_waiting(tier: RedisTier, batches: int) -> None:
    while tier.stats()["batches"] <= batches:
        await asyncio.sleep(0.002)
    _say("waiting")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
