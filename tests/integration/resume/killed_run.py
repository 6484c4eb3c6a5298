"""A run of an agent for a process of its own, which waits at certain points until it may go on, or is killed there."""

import asyncio
import os
from pathlib import Path
from typing import Any

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession
from agent_cache.errors import InDoubtError
from agent_cache.recording import cached_llm_call, intercept
from agent_cache.resume import Journal, NotDone, idempotency_key

LEDGER = Path()
CONNECTION: Any = None


def point(name: str) -> None:
    """Say where the process is, and wait until it may go on."""
    CONNECTION.send(name)
    CONNECTION.recv()


def outside(what: str) -> None:
    """Do something that outlives the process."""
    descriptor = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{what} {idempotency_key()}\n".encode())
    os.close(descriptor)


@cached_llm_call(name="killed:ask")
async def ask(prompt: str) -> str:
    point(f"asking {prompt}")
    outside(f"ask-{prompt}")
    return f"answer-{os.getpid()}-{prompt}"


@AgentCache("order:{order}", name="killed:read")
async def read(order: str) -> str:
    point(f"reading {order}")
    return f"order-{order}"


@AgentCacheInvalidator("order:{order}", name="killed:pay")
async def pay(order: str) -> str:
    point(f"before pay {order}")
    outside(f"pay-{order}")
    point(f"after pay {order}")
    return f"paid-{order}"


@intercept(kind="write", name="killed:ship")
def ship(order: str) -> str:
    point(f"before ship {order}")
    outside(f"ship-{order}")
    point(f"after ship {order}")
    return f"shipped-{order}"


@intercept(name="killed:handle")
async def handle(order: str) -> list[str]:
    return [await ask(f"about-{order}"), await pay(order), await asyncio.to_thread(ship, order)]


def check(_arguments: dict[str, Any], key: str) -> object:
    """Look into the ledger."""
    point("checking")
    lines = LEDGER.read_text().splitlines() if LEDGER.exists() else []
    return next((line.split()[0] for line in lines if line.split()[1] == key), NotDone)


async def agent() -> None:
    await ask("plan")
    await read("1")
    await handle("1")
    await asyncio.gather(*(pay(order) for order in ("2", "3")))
    await ask("done")


async def _session(directory: str, on_doubt: Any) -> None:
    if on_doubt == "check":
        on_doubt = dict.fromkeys((pay, ship), check)
    async with AgentCacheSession("run", journal=Journal(directory, on_doubt=on_doubt)):
        await agent()


def main(directory: str, ledger: str, on_doubt: str, connection: Any) -> None:
    """Make the run, or go on with it. At the end a list with one text is sent: how it has ended."""
    global LEDGER, CONNECTION
    LEDGER, CONNECTION = Path(ledger), connection
    try:
        asyncio.run(_session(directory, on_doubt))
    except InDoubtError as error:
        connection.send([f"in doubt {error.tool} {error.key}"])
    else:
        connection.send(["done"])
