"""Requests in a journal: those that change something are writes, those to models are not."""

import asyncio
import json
import urllib.error
import urllib.request

import pytest

from agent_cache import AgentCacheSession
from agent_cache.errors import InDoubtError
from agent_cache.recording import Cassette, Http, replay
from agent_cache.resume import Journal, NotDone
from agent_cache.resume.journal import read_journal

ORDER, MODEL, PAY = "GET /orders/1", "POST /models/large-1", "POST /pay"
ALL = [ORDER, MODEL, PAY, ORDER]


def agent(url):
    """Four requests, of which one changes something."""

    def request(name):
        method, path = name.split()
        data = None if method == "GET" else json.dumps({"order": "1"}).encode()
        asked = urllib.request.Request(f"{url}{path}", data, {"content-type": "application/json"}, method=method)
        with urllib.request.urlopen(asked) as response:
            return json.load(response)

    return list(map(request, ALL))


def run(directory, server, on_doubt="raise"):
    async def session():
        kept = Journal(directory, on_doubt=on_doubt, http=Http(models=[f"{server.url}/models/"]))
        async with AgentCacheSession("run", journal=kept):
            return agent(server.url)

    return asyncio.run(session())


def kill(directory, server, request):
    """A run whose process is killed in a request: it has no line for it. Returns what it was answered before."""
    answers, path = run(directory, server), directory / "run.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    name = request.replace("/", f"{server.url}/", 1).encode()
    ends = [number for number, line in enumerate(lines) if name in line and b'"outcome"' in line]
    path.write_bytes(b"".join(lines[: ends[0]]))
    server.requests.clear()
    return answers[: ALL.index(request)]


def test_a_request_that_changes_something_is_in_doubt(server, tmp_path):
    before = kill(tmp_path, server, PAY)
    (doubt,) = read_journal(tmp_path / "run.jsonl").in_doubt
    assert (doubt.name, doubt.arguments) == (f"POST {server.url}/pay", {"json": {"order": "1"}})
    for word in ("raise", "notice", {"127.0.0.1": lambda arguments, key: "nonsense"}):
        with pytest.raises(InDoubtError) as raised:
            run(tmp_path, server, word)
        assert (raised.value.tool, raised.value.key) == (doubt.name, doubt.key)
    assert server.requests == []

    def check(arguments, key):
        return {"status": 201, "json": {"paid": arguments["json"]["order"], "key": key}}

    result = run(tmp_path, server, {"127.0.0.1": check})
    assert result[:3] == [*before, {"paid": "1", "key": doubt.key}]
    assert server.requests == [ORDER]
    with replay(tmp_path / "run.jsonl", strict=True):
        assert agent(server.url) == result


@pytest.mark.parametrize("on_doubt", ["rerun", {"127.0.0.1": lambda arguments, key: NotDone}])
def test_it_can_be_made_again(server, tmp_path, on_doubt):
    before = kill(tmp_path, server, PAY)
    assert run(tmp_path, server, on_doubt)[:2] == before
    assert server.requests == [PAY, ORDER]


@pytest.mark.parametrize("request_", [ORDER, MODEL])
def test_requests_that_change_nothing_are_made_again_without_a_question(server, tmp_path, request_):
    kill(tmp_path, server, request_)
    assert read_journal(tmp_path / "run.jsonl").intents == {}
    run(tmp_path, server)
    assert server.requests == ALL[ALL.index(request_) :]
    assert Cassette.load(tmp_path / "run.jsonl").num_steps == 4


@pytest.mark.parametrize("path", ["/busy", "/missing"])
def test_a_request_that_was_refused_last_is_made_again(server, tmp_path, path):
    async def session():
        async with AgentCacheSession("run", journal=Journal(tmp_path, http=True)):
            urllib.request.urlopen(f"{server.url}/orders/1").read()
            try:
                urllib.request.urlopen(f"{server.url}{path}")
            except urllib.error.HTTPError as error:
                with error:
                    raise LookupError(error.read()) from None

    for _ in range(2):
        with pytest.raises(LookupError):
            asyncio.run(session())
    assert server.requests == ["GET /orders/1", f"GET {path}", f"GET {path}"]
