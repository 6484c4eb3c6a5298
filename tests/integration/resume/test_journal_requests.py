"""Requests in a journal: those that change something are writes, those to models are not."""

import json
import multiprocessing
import os
import signal
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from agent_cache.recording import Cassette, replay
from agent_cache.resume.journal import read_journal
from tests.integration.resume import requesting_run

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the system has no SIGKILL")


class Shop:
    """A server that kills its client in the middle of a request to a path, once."""

    def __init__(self):
        self.seen = Counter()
        self.kills_at = None
        shop = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                shop.seen[f"{self.command} {self.path}"] += 1
                if self.path == shop.kills_at:
                    shop.kills_at = None
                    os.kill(int(self.headers["x-process"]), signal.SIGKILL)
                    return
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
def shop():
    shop = Shop()
    thread = threading.Thread(target=shop.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield shop
    shop.server.shutdown()
    shop.server.server_close()
    thread.join()


def run(directory, shop, on_doubt="raise"):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([requesting_run.__name__])
    here, there = context.Pipe()
    process = context.Process(target=requesting_run.main, args=(str(directory), shop.url, on_doubt, there))
    process.start()
    there.close()
    with here:
        try:
            said = here.recv()
        except EOFError:
            said = None
        process.join()
    process.close()
    return said


def test_a_request_that_changes_something_is_in_doubt(shop, tmp_path):
    shop.kills_at = "/pay"
    assert run(tmp_path, shop) is None
    (doubt,) = read_journal(tmp_path / "run.jsonl").in_doubt
    assert doubt.name == f"POST {shop.url}/pay"
    assert doubt.arguments == {"json": {"order": "1"}}
    for word in ("raise", "notice", "nonsense"):
        assert run(tmp_path, shop, word).startswith(f"in doubt {doubt.name} {doubt.key}")
    assert shop.seen == {"GET /orders/1": 1, "POST /v1/chat/completions": 1, "POST /pay": 1}


@pytest.mark.parametrize("on_doubt", ["rerun", "not done"])
def test_it_can_be_made_again(shop, tmp_path, on_doubt):
    shop.kills_at = "/pay"
    run(tmp_path, shop)
    result = run(tmp_path, shop, on_doubt)
    assert result[0] == {"answer": 1}
    assert result[1] == {"answer": 2}
    assert shop.seen == {"GET /orders/1": 2, "POST /v1/chat/completions": 1, "POST /pay": 2}


def test_a_check_can_give_its_response(shop, tmp_path):
    shop.kills_at = "/pay"
    run(tmp_path, shop)
    (doubt,) = read_journal(tmp_path / "run.jsonl").in_doubt
    result = run(tmp_path, shop, "done")
    assert result[2] == {"paid": "1", "key": doubt.key}
    assert shop.seen == {"GET /orders/1": 2, "POST /v1/chat/completions": 1, "POST /pay": 1}
    with replay(tmp_path / "run.jsonl", strict=True):
        assert [requesting_run.request(f"{shop.url}/orders/1")] == result[:1]
        requesting_run.request(f"{shop.url}/v1/chat/completions", {"model": "large-1", "messages": ["pay it"]})
        assert requesting_run.request(f"{shop.url}/pay", {"order": "1"}) == result[2]
        requesting_run.request(f"{shop.url}/orders/1")


@pytest.mark.parametrize("path", ["/orders/1", "/v1/chat/completions"])
def test_requests_that_change_nothing_are_made_again_without_a_question(shop, tmp_path, path):
    shop.kills_at = path
    assert run(tmp_path, shop) is None
    assert read_journal(tmp_path / "run.jsonl").intents == {}
    assert len(run(tmp_path, shop)) == 4
    assert shop.seen["POST /pay"] == 1
    assert Cassette.load(tmp_path / "run.jsonl").num_steps == 4
