"""A process that runs the agent under agent_cache: `python -m benchmarks.crashes.worker TASK`.

Its row says what happens with a write that is in doubt: `raise`, `rerun`, `check` or `notice`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession
from agent_cache.errors import InDoubtError
from agent_cache.recording import intercept
from benchmarks.crashes.agent import Client, Task, run_agent

Tool = Callable[[str], Awaitable[Any]]


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

        @AgentCacheInvalidator("order:{order}", name="refund")
        async def refund(order: str) -> Any:
            return await client.write(f"refund-of-{order}", own_key())

        @AgentCacheInvalidator("order:{order}", name="change")
        async def change(order: str) -> Any:
            return await client.write(f"change-of-{order}", own_key())

        @AgentCacheInvalidator("order:{order}", name="note")
        async def note(order: str) -> Any:
            return await client.write(f"note-of-{order}", own_key())

        @AgentCacheInvalidator("order:{order}", name="close")
        async def close(order: str) -> Any:
            key = own_key()  # not that of the inner write
            await self._surely("note", note, order)
            return await client.write(f"close-of-{order}", key)

        @intercept(name="ship", kind="write")
        async def ship(order: str) -> Any:
            return await client.write(f"ship-of-{order}", own_key())

        @intercept(name="settle")
        async def settle(order: str) -> Any:
            first = await self._surely("refund", refund, order)
            said = await client.call(f"ask-{order}", model, f"ask-{order}", "settle")
            return [first, said, await self._surely("ship", ship, order)]

        async def mail(order: str) -> Any:
            return await client.write(f"mail-of-{order}")

        self._client = client
        self._model = model
        self._effect_of = effect_of
        self.look, self.settle = look, settle
        self._writes: dict[str, Tool] = {
            "refund": refund, "change": change, "close": close, "ship": ship, "mail": mail,
        }  # fmt: skip

    async def ask(self, name: str, seen: str) -> str:
        return str(await self._client.call(f"ask-{name}", self._model, f"ask-{name}", seen))

    async def refund(self, order: str) -> Any:
        return await self._surely("refund", self._writes["refund"], order)

    async def change(self, order: str) -> Any:
        return await self._surely("change", self._writes["change"], order)

    async def close(self, order: str) -> Any:
        return await self._surely("close", self._writes["close"], order)

    async def mail(self, order: str) -> Any:
        return await self._surely("mail", self._writes["mail"], order)

    async def ship(self, order: str) -> Any:
        return await self._surely("ship", self._writes["ship"], order)

    async def _surely(self, name: str, tool: Tool, order: str) -> Any:
        """Call a write. After a notice, find out whether it was carried out, and call it again if it was not."""
        operation = f"{name}-of-{order}"
        while True:
            answer = await self._client.call(operation, tool, order)
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
