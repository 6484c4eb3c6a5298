"""A run whose requests were recorded is forked: models say something else, and requests that write are writes."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from agent_cache import ConfigurationError
from agent_cache.recording import Cassette, WorldMovedError, diff_cassettes, fork, record, replay
from tests.harness.http_server import HttpServer


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "branch.jsonl"


CHAT: dict[str, Any] = {"model": "large-1", "messages": [{"role": "user", "content": "Which city?"}]}


def ask(server: HttpServer, path: str, method: str = "GET", body: Any = None) -> Any:
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"{server.url}{path}", content, {"content-type": "application/json"}, method=method
    )
    with urllib.request.urlopen(request) as response:
        return response.read()


# The words of a model, for its client


def completion(client: Any) -> str:
    return str(client.chat.completions.create(**CHAT).choices[0].message.content)


def completion_stream(client: Any) -> str:
    chunks = list(client.chat.completions.create(**CHAT, stream=True))
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_what_a_model_of_openai_said_is_edited(server: HttpServer, path: Path, to: Path):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="k") as client:
        with record(path, http=True):
            completion(client)
            completion_stream(client)
        server.close()
        whole, stream = (call.outcome["response"] for call in Cassette.load(path))
        body, events = whole["json"], stream["events"]
        body["choices"][0]["message"]["content"] = "Bergen"
        for event in events:
            for choice in (event.get("json") or {}).get("choices", ()):
                if choice["delta"].get("content"):
                    choice["delta"]["content"] = "-"
        with fork(path, at=None, to=to, edits={1: body, 2: events}):
            assert completion(client) == "Bergen"
            assert set(completion_stream(client)) == {"-"}
        with replay(to):
            assert completion(client) == "Bergen"


# Other requests


def test_a_request_by_an_unsafe_method_is_a_write(server: HttpServer, path: Path, to: Path, tmp_path):
    def run() -> list[bytes]:
        return [
            ask(server, "/orders/1"),
            ask(server, "/orders/1", "PUT", {"status": "paid"}),
            ask(server, "/orders/2"),
            ask(server, "/orders/2", "POST", {"status": "sent"}),
        ]

    with record(path, http=True):
        live = run()
    with pytest.raises(WorldMovedError, match=rf"call 4: POST {server.url}/orders/2"):
        fork(path, at=3, to=to)
    server.requests.clear()
    with fork(path, at=3, to=to, world="sandbox"):
        assert run() == live
    assert server.requests == ["PUT /orders/1", "GET /orders/2", "POST /orders/2"]
    assert diff_cassettes(path, to).identical
    server.requests.clear()
    with fork(path, at=3, to=tmp_path / "2.jsonl", world="as_is"):
        assert run() == live
    assert server.requests == ["GET /orders/2", "POST /orders/2"]


def test_the_body_of_a_response_is_edited_as_what_it_is(server: HttpServer, path: Path, to: Path, tmp_path):
    with record(path, http=True):
        ask(server, "/orders/1")
        ask(server, "/letters")
        ask(server, "/binary")
        ask(server, "/events")
    edits = {1: {"status": "lost", "password": "hunter2hunter2"}, 2: "none"}
    with fork(path, at=None, to=to, edits=edits):
        assert ask(server, "/orders/1") == b'{"status": "lost", "password": "[redacted]"}'
        assert ask(server, "/letters") == b"none"
        ask(server, "/binary")
        ask(server, "/events")
    assert "hunter2" not in to.read_text()
    for number, edit, body in ((1, "lost", "json"), (2, {"a": 1}, "text"), (3, "x", "text"), (4, [1], "events")):
        with pytest.raises(ConfigurationError, match=f"give the {body} of the response"):
            fork(path, at=None, to=tmp_path / "2.jsonl", edits={number: edit})
