"""A run, for a process of its own, that makes requests with a client of the standard library."""

import asyncio
import json
import os
import urllib.request
from typing import Any

from agent_cache import AgentCacheSession
from agent_cache.errors import InDoubtError
from agent_cache.recording import Http
from agent_cache.resume import Journal, NotDone, idempotency_key


def request(url: str, body: Any = None) -> Any:
    """Make a request. The server may kill this process before it answers."""
    headers = {"content-type": "application/json", "x-process": str(os.getpid())}
    if (key := idempotency_key()) is not None:
        headers["idempotency-key"] = key
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers)) as response:
        return json.load(response)


async def agent(url: str) -> list[Any]:
    """Four requests, of which one changes something."""
    return [
        request(f"{url}/orders/1"),
        request(f"{url}/v1/chat/completions", {"model": "large-1", "messages": ["pay it"]}),
        request(f"{url}/pay", {"order": "1"}),
        request(f"{url}/orders/1"),
    ]


def _not_done(_arguments: dict[str, Any], _key: str) -> Any:
    return NotDone


def _done(arguments: dict[str, Any], key: str) -> Any:
    return {"status": 201, "json": {"paid": arguments["json"]["order"], "key": key}}


def _nonsense(_arguments: dict[str, Any], _key: str) -> Any:
    return "paid"


CHECKS = {"not done": _not_done, "done": _done, "nonsense": _nonsense}


def main(directory: str, url: str, on_doubt: str, connection: Any) -> None:
    """Make the run, or go on with it, and send its result or error."""
    choice: Any = {"127.0.0.1": CHECKS[on_doubt]} if on_doubt in CHECKS else on_doubt

    async def session() -> list[Any]:
        journal = Journal(directory, on_doubt=choice, http=Http(models=[f"{url}/v1/chat/"]))
        async with AgentCacheSession("run", journal=journal):
            return await agent(url)

    try:
        connection.send(asyncio.run(session()))
    except InDoubtError as error:
        connection.send(f"in doubt {error.tool} {error.key} {error.reason}")
