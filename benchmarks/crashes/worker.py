"""A process that runs the agent under agent_cache: `python -m benchmarks.crashes.worker TASK`.

Its row says what happens with a write that is in doubt: `raise`, `rerun`, `check` or `notice`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession
from agent_cache.errors import InDoubtError
from agent_cache.recording import intercept
from benchmarks.crashes.agent import Client, Task, run_agent

Tool = Callable[[str], Coroutine[Any, Any, Any]]


class DecoratedTools:
    """The tools of the agent as a user of agent_cache writes them."""

    def __init__(self, client: Client, key_of_write: Callable[[], str | None]) -> None:
        def own_key() -> str:
            return key_of_write() or ""

        @intercept(name="model", kind="llm")
        async def model(operation: str, seen: str) -> str:
            return await client.ask(operation)

        @AgentCache("order:{order}", name="look")
        async def look(order: str) -> Any:
            return await client.request("order", order)

        @intercept(name="effect_of")
        async def effect_of(operation: str) -> Any:
            return await client.request("effect", operation)

        def write(name: str) -> Tool:
            async def tool(order: str) -> Any:
                key = own_key()  # not that of the inner write
                if name == "close":
                    await self._surely("note", order)
                return await client.write(f"{name}-of-{order}", key)

            return tool

        async def mail(order: str) -> Any:
            return await client.write(f"mail-of-{order}")

        @intercept(name="settle")
        async def settle(order: str) -> Any:
            first = await self._surely("refund", order)
            said = await client.call(f"ask-{order}", model, f"ask-{order}", "settle")
            return [first, said, await self._surely("ship", order)]

        self._client, self._model, self._effect_of = client, model, effect_of
        self.look, self.settle = look, settle
        self._writes: dict[str, Any] = {
            name: AgentCacheInvalidator("order:{order}", name=name)(write(name))
            for name in ("refund", "change", "note", "close")
        } | {"ship": intercept(write("ship"), name="ship", kind="write"), "mail": mail}
        self.refund, self.change, self.close, self.mail, self.ship = (
            partial(self._surely, name) for name in ("refund", "change", "close", "mail", "ship")
        )

    async def ask(self, name: str, seen: str) -> str:
        return str(await self._client.call(f"ask-{name}", self._model, f"ask-{name}", seen))

    async def _surely(self, name: str, order: str) -> Any:
        """Call a write. After a notice, find out whether it was carried out, and call it again if it was not."""
        operation = f"{name}-of-{order}"
        while True:
            answer = await self._client.call(operation, self._writes[name], order)
            if not isinstance(answer, str):
                return answer
            self._client.line.say("notice", operation)
            if (await self._effect_of(operation))["times"]:
                return {"operation": operation, "receipt": f"receipt of {operation}"}


def _journal(task: Task, client: Client) -> Any:
    from agent_cache.resume import Journal, NotDone

    async def by_key(arguments: dict[str, Any], key: str) -> Any:
        found = await client.request("key", key)
        return NotDone if found is None else found

    def by_operation(arguments: dict[str, Any], key: str) -> Any:  # of a request, which is synchronous here
        operation = arguments["json"]["operation"]
        if not client.fetch("effect", operation)["times"]:
            return NotDone
        return {"status": 200, "json": {"operation": operation, "receipt": f"receipt of {operation}"}}

    writes = ("refund", "change", "note", "close", "ship")
    host = "127.0.0.1"
    on_doubt: Any = task.row
    if task.row == "check":
        on_doubt = {**dict.fromkeys(writes, by_key), host: by_operation}
    elif task.row == "notice":
        # What makes other writes first is not for a model to repeat.
        on_doubt = {**dict.fromkeys(writes, "notice"), "close": by_key, host: by_operation}
    return Journal(task.folder, on_doubt=on_doubt, http=True)


async def _resume(task: Task, client: Client) -> None:
    from agent_cache.resume import idempotency_key

    async with AgentCacheSession(task.run, journal=_journal(task, client)):
        client.line.say("began")
        client.line.say("result", await run_agent(DecoratedTools(client, idempotency_key), task.seed))


async def main(task: Task) -> None:
    """Run the agent until it ends or this process is killed, and say how it ended."""
    logging.disable(logging.CRITICAL)
    client = task.client()
    try:
        await _resume(task, client)
    except BaseException as error:  # noqa: BLE001 - it is reported
        while isinstance(error, BaseExceptionGroup):
            error = min(error.exceptions, key=lambda inner: not isinstance(inner, InDoubtError | BaseExceptionGroup))
        if not isinstance(error, InDoubtError):
            client.line.say("failed", f"{type(error).__name__}: {error}")
        else:
            client.line.say("in doubt", {"tool": error.tool, "key": error.key})
    else:
        client.line.say("ended")


if __name__ == "__main__":
    asyncio.run(main(Task.read(sys.argv[1])))
