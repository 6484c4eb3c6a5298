"""A run of OpenAI's client is killed in the middle of a request to another service, and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_cache.resume.journal import read_journal
from tests.harness.http_server import HttpServer

pytest.importorskip("openai")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

ROOT = Path(__file__).parents[3]
SCRIPT = """
import asyncio, json, os, sys
import httpx, openai
from agent_cache import AgentCacheSession
from agent_cache.resume import InDoubtError, Journal, NotDone

url = sys.argv[1]

def say(what, content=None):
    print(json.dumps([what, content]), flush=True)

async def agent(session):
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=2)
    async with client, httpx.AsyncClient() as http:
        async def ask(text, **more):
            return await client.chat.completions.create(
                model="large-1", messages=[{"role": "user", "content": text}], **more
            )
        seen = [(await ask("plan")).choices[0].message.content]
        seen.append([chunk.choices[0].delta.content async for chunk in await ask("tell", stream=True) if chunk.choices])
        seen.append((await http.post(f"{url}/echo", json={"pay": 1})).json())
        seen.append((await ask("next")).choices[0].message.content)
        async with http.stream("POST", f"{url}/events", json={"pay": 2}) as response:
            lines = []
            async for line in response.aiter_lines():
                lines.append(line)
                if len(lines) == 1:
                    say("the first line of the answer")
            seen.append(lines)
        seen.append((await ask("end")).choices[0].message.content)
    return seen

async def main(directory, word):
    check = {"127.0.0.1": lambda arguments, key: NotDone}
    journal = Journal(directory, on_doubt=check if word == "check" else word, http=True)
    try:
        async with AgentCacheSession("s", journal=journal) as session:
            say("result", await agent(session))
    except InDoubtError as error:
        say("in doubt", [error.tool, error.arguments, error.key])

openai.AsyncOpenAI(base_url=url, api_key="none").chat.completions  # which imports the most
for line in sys.stdin:  # a process for each run; importing the client takes longer than all of them
    if not (child := os.fork()):
        asyncio.run(main(*json.loads(line)))
        os._exit(0)
    say("process", child)
    os.waitpid(child, 0)
    say("over")
"""


class Agents:
    """Makes runs, or goes on with them, each in a process of its own."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, "-c", SCRIPT, url]
        self._parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)

    def run(self, directory: Path, word: str, *, kill_after: str = "") -> Any:
        """The last thing that the process says, which is killed when it says this; None if it says nothing more."""
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(json.dumps([str(directory), word]).encode() + b"\n")
        self._parent.stdin.flush()
        process, has_struck, last = 0, False, None
        for line in self._parent.stdout:
            what, content = json.loads(line)
            match what:
                case "over":
                    return last
                case "process":
                    process = content
                case _:
                    last = None if what == kill_after else (what, content)
                    has_struck = has_struck or what == kill_after
            if has_struck and process:
                os.kill(process, signal.SIGKILL)
                has_struck = False
        pytest.fail("the agents have ended")

    def close(self) -> None:
        self._parent.communicate()


@pytest.fixture
def agents(server: HttpServer) -> Iterator[Agents]:
    agents = Agents(server.url)
    try:
        yield agents
    finally:
        agents.close()


def test_what_a_model_has_answered_is_not_asked_again_and_the_other_request_is_in_doubt(server, agents, tmp_path):
    reference = agents.run(tmp_path / "undisturbed", "raise")
    assert reference[0] == "result"
    assert Counter(server.requests) == {"POST /v1/chat/completions": 4, "POST /echo": 1, "POST /events": 1}

    server.requests.clear()
    server.next_piece.clear()  # the answer to the last write stops behind its first line
    assert agents.run(tmp_path, "raise", kill_after="the first line of the answer") is None
    server.next_piece.set()
    seen = {"POST /v1/chat/completions": 3, "POST /echo": 1, "POST /events": 1}
    assert Counter(server.requests) == seen
    (intent,) = read_journal(tmp_path / "s.jsonl").in_doubt

    for _ in range(2):
        doubt = [intent.name, {"json": {"pay": 2}}, intent.key]
        assert agents.run(tmp_path, "raise") == ("in doubt", doubt)
        assert Counter(server.requests) == seen, "nothing was sent"

    assert agents.run(tmp_path, "check") == reference
    assert Counter(server.requests) == {"POST /v1/chat/completions": 4, "POST /echo": 1, "POST /events": 2}
    assert read_journal(tmp_path / "s.jsonl").is_sealed
