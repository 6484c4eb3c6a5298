"""A process that runs the agent as a workflow of DBOS, its tools as steps: `python dbos_worker.py TASK`.

Run as a file, by a Python that has DBOS. Its system database is a file of SQLite, its settings are the usual ones. A
step that was not stored when the process was killed is run again: DBOS promises that a step is carried out at least
once.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.crashes.agent import Task, run_agent

dbos: Any = importlib.import_module("dbos")  # which only this row needs
TASK = Task.read(sys.argv[1])
CLIENT = TASK.client()


@dbos.DBOS.step()  # type: ignore[untyped-decorator]  # what is imported above has no types
async def model(operation: str) -> str:
    return await CLIENT.ask(operation)


@dbos.DBOS.step()  # type: ignore[untyped-decorator]
async def look(order: str) -> Any:
    return await CLIENT.request("order", order)


@dbos.DBOS.step()  # type: ignore[untyped-decorator]
async def write(operation: str) -> Any:
    return await CLIENT.write(operation)


class Steps:
    """The tools of the agent as steps. What makes several of them is part of the workflow."""

    async def ask(self, name: str, seen: str) -> str:
        return str(await CLIENT.call(f"ask-{name}", model, f"ask-{name}"))

    async def look(self, order: str) -> Any:
        return await look(order)

    async def _write(self, operation: str) -> Any:
        return await CLIENT.call(operation, write, operation)

    async def refund(self, order: str) -> Any:
        return await self._write(f"refund-of-{order}")

    async def change(self, order: str) -> Any:
        return await self._write(f"change-of-{order}")

    async def mail(self, order: str) -> Any:
        return await self._write(f"mail-of-{order}")

    async def ship(self, order: str) -> Any:
        return await self._write(f"ship-of-{order}")

    async def settle(self, order: str) -> Any:
        first = await self.refund(order)
        return [first, await self.ask(order, "settle"), await self.ship(order)]

    async def close(self, order: str) -> Any:
        await self._write(f"note-of-{order}")
        return await self._write(f"close-of-{order}")


@dbos.DBOS.workflow()  # type: ignore[untyped-decorator]
async def workflow(seed: int) -> Any:
    CLIENT.line.say("began")
    return await run_agent(Steps(), seed)


async def main() -> None:
    database = Path(TASK.folder) / f"{TASK.run}.sqlite"
    config = {"name": "crashes", "system_database_url": f"sqlite:///{database}", "run_admin_server": False}
    dbos.DBOS(config={**config, "log_level": "CRITICAL"})
    dbos.DBOS.launch()  # which resumes the workflow, if there is one
    with dbos.SetWorkflowID(TASK.run):
        handle = await dbos.DBOS.start_workflow_async(workflow, TASK.seed)
    CLIENT.line.say("result", await handle.get_result())
    CLIENT.line.say("ended")
    dbos.DBOS.destroy()


if __name__ == "__main__":
    asyncio.run(main())
