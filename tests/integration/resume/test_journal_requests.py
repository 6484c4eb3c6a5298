"""Requests in a journal: those that change something are writes, those to models are not.

A process that is killed in a request leaves the journal as the server finds it when it gets that request.
"""

import asyncio
import json
import threading
import urllib.request
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from agent_cache import AgentCacheSession
from agent_cache.errors import InDoubtError
from agent_cache.recording import Cassette, Http, replay
from agent_cache.resume import Journal, NotDone
from agent_cache.resume.journal import read_journal


class Shop:
    """A server that keeps what the journal is when it gets a request to one path."""

    def __init__(self, journal):
        self.seen = Counter()
        self.kills_at = None
        self.left = b""
        shop = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                shop.seen[f"{self.command} {self.path}"] += 1
                if self.path == shop.kills_at:
                    shop.kills_at, shop.left = None, journal.read_bytes()
                body = json.dumps({"answer": sum(shop.seen.values())}).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self):
                self.rfile.read(int(self.headers["content-length"]))
                self.do_GET()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path).path("run")


@pytest.fixture
def shop(journal):
    shop = Shop(journal)
    thread = threading.Thread(target=shop.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield shop
    shop.server.shutdown()
    shop.server.server_close()
    thread.join()


def request(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, {"content-type": "application/json"})) as response:
        return json.load(response)


def agent(url):
    """Four requests, of which one changes something."""
    return [
        request(f"{url}/orders/1"),
        request(f"{url}/v1/chat/completions", {"model": "large-1", "messages": ["pay it"]}),
        request(f"{url}/pay", {"order": "1"}),
        request(f"{url}/orders/1"),
    ]


def run(journal, shop, on_doubt="raise"):
    async def session():
        kept = Journal(journal.parent, on_doubt=on_doubt, http=Http(models=[f"{shop.url}/v1/chat/"]))
        async with AgentCacheSession("run", journal=kept):
            return agent(shop.url)

    return asyncio.run(session())


def kill(journal, shop, path):
    """A run whose process is killed in a request to this path."""
    shop.kills_at = path
    run(journal, shop)
    journal.write_bytes(shop.left)
    for name in list(shop.seen):  # what came after is not
        shop.seen[name] = min(1, shop.seen[name])


def test_a_request_that_changes_something_is_in_doubt(shop, journal):
    kill(journal, shop, "/pay")
    (doubt,) = read_journal(journal).in_doubt
    assert (doubt.name, doubt.arguments) == (f"POST {shop.url}/pay", {"json": {"order": "1"}})
    for word in ("raise", "notice", {"127.0.0.1": lambda arguments, key: "nonsense"}):
        with pytest.raises(InDoubtError) as raised:
            run(journal, shop, word)
        assert (raised.value.tool, raised.value.key) == (doubt.name, doubt.key)
    assert shop.seen == {"GET /orders/1": 1, "POST /v1/chat/completions": 1, "POST /pay": 1}

    def check(arguments, key):
        return {"status": 201, "json": {"paid": arguments["json"]["order"], "key": key}}

    result = run(journal, shop, {"127.0.0.1": check})
    assert result[2] == {"paid": "1", "key": doubt.key}
    assert shop.seen == {"GET /orders/1": 2, "POST /v1/chat/completions": 1, "POST /pay": 1}
    with replay(journal, strict=True):
        assert agent(shop.url) == result


@pytest.mark.parametrize("on_doubt", ["rerun", {"127.0.0.1": lambda arguments, key: NotDone}])
def test_it_can_be_made_again(shop, journal, on_doubt):
    kill(journal, shop, "/pay")
    assert run(journal, shop, on_doubt)[:2] == [{"answer": 1}, {"answer": 2}]
    assert shop.seen == {"GET /orders/1": 2, "POST /v1/chat/completions": 1, "POST /pay": 2}


@pytest.mark.parametrize("path", ["/orders/1", "/v1/chat/completions"])
def test_requests_that_change_nothing_are_made_again_without_a_question(shop, journal, path):
    kill(journal, shop, path)
    assert read_journal(journal).intents == {}
    shop.seen.clear()
    assert len(run(journal, shop)) == 4
    assert shop.seen["POST /pay"] == 1
    assert Cassette.load(journal).num_steps == 4
