"""A run of OpenAI's client is killed in the middle of a request to another service, and resumed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agent_cache import AgentCacheSession
from agent_cache.errors import InDoubtError
from agent_cache.resume import Journal, NotDone
from agent_cache.resume.journal import read_journal
from tests.harness.http_server import HttpServer

openai = pytest.importorskip("openai")
httpx = pytest.importorskip("httpx")


async def agent(url: str, journal: Journal, *, kill: Path | None = None) -> list[Any]:
    """The run. `kill` gets what its journal is while the answer to the last write is read."""
    async with AgentCacheSession("s", journal=journal):
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=2)
        async with client, httpx.AsyncClient() as http:

            async def ask(text: str, **more: Any) -> Any:
                messages = [{"role": "user", "content": text}]
                return await client.chat.completions.create(model="large-1", messages=messages, **more)

            seen = [(await ask("plan")).choices[0].message.content]
            told = await ask("tell", stream=True)
            seen.append([chunk.choices[0].delta.content async for chunk in told if chunk.choices])
            seen.append((await http.post(f"{url}/echo", json={"pay": 1})).json())
            seen.append((await ask("next")).choices[0].message.content)
            async with http.stream("POST", f"{url}/events", json={"pay": 2}) as response:
                lines = []
                async for line in response.aiter_lines():
                    if not lines and kill is not None:
                        kill.write_bytes(journal.path("s").read_bytes())
                    lines.append(line)
                seen.append(lines)
            seen.append((await ask("end")).choices[0].message.content)
            return seen


async def test_what_a_model_has_answered_is_not_asked_again_and_the_other_request_is_in_doubt(
    server: HttpServer, tmp_path: Path
) -> None:
    killed = Journal(tmp_path / "killed", http=True)
    (tmp_path / "killed").mkdir()
    reference = await agent(server.url, Journal(tmp_path / "whole", http=True), kill=killed.path("s"))
    assert Counter(server.requests) == {"POST /v1/chat/completions": 4, "POST /echo": 1, "POST /events": 1}
    server.requests.clear()
    (intent,) = read_journal(killed.path("s")).in_doubt
    for _ in range(2):
        with pytest.raises(InDoubtError) as raised:
            await agent(server.url, killed)
        assert (raised.value.tool, raised.value.arguments) == (intent.name, {"json": {"pay": 2}})
        assert raised.value.key == intent.key
        assert server.requests == [], "nothing was sent"
    again = Journal(tmp_path / "killed", on_doubt={"127.0.0.1": lambda arguments, key: NotDone}, http=True)
    assert await agent(server.url, again) == reference
    assert Counter(server.requests) == {"POST /v1/chat/completions": 1, "POST /events": 1}
    assert read_journal(again.path("s")).is_sealed
