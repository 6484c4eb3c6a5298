"""One run of the demo: a store, a cast, a script, from the first call to the last."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from random import Random
from typing import Any

from agent_cache import AgentCacheSession, AgentLoopDetectedError, configure
from agent_cache._demo.agent import Agent
from agent_cache._demo.chronicle import Chronicle
from agent_cache._demo.clocks import VirtualTimeLoop, library_on
from agent_cache._demo.script import ACTS, CAST
from agent_cache._demo.shop import Shop
from agent_cache._demo.spectator import Spectator
from agent_cache._demo.tools import ShopTools
from agent_cache._demo.truth import Truth

__all__ = ["play"]


def play(spectator: Spectator, *, seed: int, is_fast: bool, tools: type[ShopTools] = ShopTools) -> Chronicle:
    """Run the whole script once. The store lives in a temporary file, and is gone afterwards."""
    with (
        configure(),  # whatever this process has configured: the store of the demo is its own
        tempfile.TemporaryDirectory(prefix="agent-cache-demo-") as folder,
        Shop(Path(folder, "shop.sqlite")) as shop,
        asyncio.Runner(loop_factory=VirtualTimeLoop if is_fast else None) as runner,
    ):
        try:
            chronicle = runner.run(_perform(spectator, shop, tools, seed, is_simulated=is_fast))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures  # one agent's failure ends the others, and is what has happened
    spectator.finished(chronicle)
    return chronicle


async def _perform(
    spectator: Spectator, shop: Shop, tools: type[ShopTools], seed: int, *, is_simulated: bool
) -> Chronicle:
    loop = asyncio.get_running_loop()
    began = loop.time()
    chance = Random(seed)  # noqa: S311  # no secret: a seed is there to be repeated
    truth = Truth(lambda tool, arguments: getattr(shop, tool)(*arguments))
    shop.on_change = truth.changed
    company = AgentCacheSession(session_id="demo", loop_detection=False)  # adds up what happens in the agents' own
    chronicle = Chronicle(seed, tuple(CAST), ACTS, company, lambda: loop.time() - began, is_simulated)
    shared_tools = tools(shop, chance)
    with library_on(loop):
        async with company, spectator.watching(chronicle), asyncio.TaskGroup() as group:
            group.create_task(_announce(spectator, chronicle))
            for name, part in CAST.items():
                agent = Agent(name, chronicle, truth, spectator)
                group.create_task(_play_part(agent, part(agent, shared_tools, chance)))
    chronicle.close()
    return chronicle


async def _play_part(agent: Agent, part: Coroutine[Any, Any, None]) -> None:
    """Play one part, inside the agent's session, until it is over or the session stops it."""
    try:
        async with agent.session:
            await part
    except AgentLoopDetectedError:
        pass  # its last call is in the chronicle, as stopped


async def _announce(spectator: Spectator, chronicle: Chronicle) -> None:
    for number, act in enumerate(chronicle.acts, start=1):
        await asyncio.sleep(act.begins - chronicle.clock())
        spectator.act_began(number, act)
