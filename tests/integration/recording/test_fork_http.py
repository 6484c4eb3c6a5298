"""A run whose requests were recorded is forked: models say something else, and requests that write are writes."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from agent_cache import ConfigurationError
from agent_cache.recording import (
    Cassette,
    DivergenceError,
    Http,
    Raised,
    WorldMovedError,
    diff_cassettes,
    fork,
    record,
    replay,
)
from tests.harness.http_server import HttpServer
from tests.harness.model_api import MESSAGE


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


def response(client: Any) -> str:
    return str(client.responses.create(model="large-1", input="Which city?").output_text)


def response_stream(client: Any) -> str:
    events = list(client.responses.create(model="large-1", input="Which city?", stream=True))
    whole = next(event.response.output_text for event in events if event.type == "response.completed")
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    return str(whole) if said in whole else f"{said} and {whole}"


@pytest.mark.parametrize("say", [completion, completion_stream, response, response_stream])
def test_what_a_model_of_openai_said_is_edited(say: Any, server: HttpServer, path: Path, to: Path):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="k") as client:
        with record(path, http=True):
            assert say(client) != "Bergen, I think"
        server.close()
        with fork(path, at=None, to=to, edits={1: "Bergen, I think"}):
            assert say(client) == "Bergen, I think"
        with replay(to):
            assert say(client) == "Bergen, I think"


def test_what_a_model_of_anthropic_said_is_edited_also_in_a_stream(server: HttpServer, path: Path, to: Path, tmp_path):
    anthropic = pytest.importorskip("anthropic")
    with anthropic.Anthropic(base_url=server.url, api_key="k") as client:

        def streamed() -> str:
            with client.messages.stream(**CHAT, max_tokens=9) as stream:
                return str(stream.get_final_text())

        with record(path, http=True):
            assert streamed() == "Oslo"
            client.messages.create(**CHAT, max_tokens=9)
        server.close()
        with pytest.raises(ConfigurationError, match="called tools in its answer; give the whole answer as data"):
            fork(path, at=None, to=to, edits={2: "Bergen"})
        whole = {**MESSAGE, "content": [{"type": "text", "text": "Bergen"}], "stop_reason": "end_turn"}
        with fork(path, at=None, to=to, edits={1: "Tromsø", 2: whole}):
            assert streamed() == "Tromsø"
            assert client.messages.create(**CHAT, max_tokens=9).content[0].text == "Bergen"
        with pytest.raises(ConfigurationError, match=r"answer in pieces.*give the words that the model says"):
            fork(path, at=None, to=tmp_path / "2.jsonl", edits={1: whole})


def test_the_client_of_a_model_gets_the_exception_of_an_edit(server: HttpServer, path: Path, to: Path):
    openai, httpx = pytest.importorskip("openai"), pytest.importorskip("httpx")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0) as client:
        with record(path, http=True):
            completion(client)
        edits = {1: Raised(httpx.ConnectError("no route"))}
        with fork(path, at=None, to=to, edits=edits), pytest.raises(openai.APIConnectionError):
            completion(client)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("/v1beta/models/gemini-9:generateContent", "candidates"),
        ("/v1beta/models/gemini-9:streamGenerateContent?alt=sse", "candidates"),
        ("/model/large-1/converse", "output"),
        ("/model/large-1/converse-stream", "delta"),
    ],
)
def test_the_answers_of_gemini_and_bedrock_are_known(url: str, words: str, server: HttpServer, path: Path, to: Path):
    with record(path, http=Http(models=[server.url])):
        assert b"Os" in ask(server, url, "POST", {"contents": "Which city?"})
    server.close()
    with fork(path, at=None, to=to, edits={1: "Bergen"}):
        answer = ask(server, url, "POST", {"contents": "Which city?"})
    assert answer.count(b"Bergen") == 1
    assert b"Os" not in answer
    assert b'"lo"' not in answer
    assert words.encode() in answer


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


def test_a_request_that_was_refused_has_not_moved_the_world(server: HttpServer, path: Path, to: Path):
    def run() -> None:
        ask(server, "/orders/1")
        with pytest.raises(urllib.error.HTTPError):
            ask(server, "/missing", "DELETE")

    with record(path, http=True):
        run()
    with fork(path, at=1, to=to):
        run()


def test_a_write_that_is_answered_differently_in_a_sandbox_ends_the_run(server: HttpServer, path: Path, to: Path):
    with record(path, http=True):
        ask(server, "/orders/1", "PUT", {"status": "paid"})
        ask(server, "/orders/2")
    path.write_text(path.read_text().replace('\\"paid', '\\"late'))
    server.requests.clear()
    with (
        pytest.raises(DivergenceError, match=r"call 1, PUT .* has another outcome"),
        fork(path, at=2, to=to, world="sandbox"),
    ):
        ask(server, "/orders/1", "PUT", {"status": "paid"})
        with pytest.raises(DivergenceError):
            ask(server, "/orders/2")
    assert server.requests == ["PUT /orders/1"], "nothing is asked after it"


def test_the_body_of_a_response_is_edited_as_what_it_is(server: HttpServer, path: Path, to: Path, tmp_path):
    with record(path, http=True):
        ask(server, "/orders/1")
        ask(server, "/letters")
        ask(server, "/binary")
        ask(server, "/events")
    edits = {1: {"status": "lost"}, 2: "none"}
    with fork(path, at=None, to=to, edits=edits):
        assert ask(server, "/orders/1") == b'{"status": "lost"}'
        assert ask(server, "/letters") == b"none"
        ask(server, "/binary")
        ask(server, "/events")
    for number, edit, text in (
        (1, "lost", "is a text, and the body of the response is JSON"),
        (2, {"a": 1}, "must be a text, as the body"),
        (3, "x", "must be a text, as the body"),
        (4, [1], "is an answer in pieces"),
        (1, b"x", "is a bytes; give the JSON of the body, or a text"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            fork(path, at=None, to=tmp_path / "2.jsonl", edits={number: edit})


def test_before_the_fork_no_request_is_made_that_was_not_recorded(server: HttpServer, path: Path, to: Path):
    with record(path, http=True):
        ask(server, "/orders/1")
        ask(server, "/orders/2")
    server.requests.clear()
    with pytest.raises(DivergenceError, match="would run before call 2"), fork(path, at=2, to=to):
        ask(server, "/orders/9", "PUT", {})
    assert server.requests == []


def test_a_branch_records_requests_as_its_original(server: HttpServer, path: Path, to: Path):
    with record(path, http=True):
        ask(server, "/orders/1")
    with fork(path, at=None, to=to):
        ask(server, "/orders/1")
        ask(server, "/orders/2")
    header = Cassette.load(to).header
    assert header.http == Cassette.load(path).header.http
    server.close()
    with replay(to):
        ask(server, "/orders/2")
