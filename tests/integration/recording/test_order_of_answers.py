"""Calls that are waited for at the same time get their answers in the order in which they ended, requests and tools."""

import asyncio
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from agent_cache import AgentCache, Read, Toolbox
from agent_cache.recording import cached_llm_call, intercept, record, replay
from agent_cache.testing import reset

COUNT = 8


class Gates:
    """Lets call after call end: each when the agent has had the answer before."""

    def __init__(self):
        self.in_loop = [asyncio.Event() for _ in range(COUNT)]
        self.in_thread = [threading.Event() for _ in range(COUNT)]

    def open(self, number):
        if 0 <= number < COUNT:
            self.in_loop[number].set()
            self.in_thread[number].set()


GATES = Gates()


@pytest.fixture(autouse=True)
def empty_caches():
    reset()


@pytest.fixture(scope="module")
def url():
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            number = int(self.path.strip("/"))
            GATES.in_thread[number].wait(30)
            body = b'{"n": %d}' % number
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


async def work(n):
    await GATES.in_loop[n].wait()
    return n


@intercept(name="order:function")
async def function(n):
    return await work(n)


@cached_llm_call(name="order:model")
async def model(n):
    return await work(n)


@AgentCache("n:{n}", name="order:tool")
async def tool(n: int) -> int:
    return await work(n)


BOX = Toolbox({"get": Read("n:{n}")}, namespace="order")


async def named(n):
    return await BOX.call("get", {"n": n}, lambda: work(n))


TOOLS = {"function": function, "tool": tool, "toolbox": named}


async def agent(makers):
    """Start all calls at once, and take the answers as they come: the last call ends first."""
    global GATES
    GATES = Gates()
    tasks = [asyncio.ensure_future(makers[n % len(makers)](n)) for n in range(COUNT)]
    GATES.open(COUNT - 1)
    got = []
    for task in asyncio.as_completed(tasks):
        got.append(await task)
        GATES.open(got[-1] - 1)
    return got


@pytest.mark.parametrize("library", ["httpx", "aiohttp"])
async def test_requests_and_tools_are_answered_in_one_order(tmp_path, library, url):
    module = pytest.importorskip(library)

    async def run():
        async with module.AsyncClient() if library == "httpx" else module.ClientSession() as client:

            async def ask(n):
                if library == "httpx":
                    return (await client.get(f"{url}/{n}", timeout=60)).json()["n"]
                async with client.get(f"{url}/{n}") as response:
                    return (await response.json())["n"]

            return await agent([ask, function, tool])

    path = tmp_path / "run.jsonl"
    with record(path, http=True):
        recorded = await run()
    with replay(path, strict=True):
        assert await run() == recorded == list(range(COUNT))[::-1]


@pytest.mark.parametrize("other", TOOLS)
async def test_tools_are_answered_in_one_order_however_many_tasks_wait_for_them(tmp_path, other):
    path = tmp_path / "run.jsonl"
    makers = [TOOLS[other], function]
    with record(path):
        recorded = await agent(makers)
    with replay(path, strict=True):
        assert await agent(makers) == recorded == list(range(COUNT))[::-1]


async def test_a_program_that_waits_for_its_calls_in_another_way_is_not_held_up(tmp_path):
    """The first call is left alone until the others have their answers, although it had ended before them."""
    path = tmp_path / "run.jsonl"
    with record(path):
        await agent([function])
    with replay(path):
        later = [asyncio.ensure_future(function(n)) for n in range(COUNT - 1)]
        await asyncio.wait(later)
        assert await function(COUNT - 1) == COUNT - 1


async def test_an_answer_that_nobody_waits_for_any_more_holds_up_no_other(tmp_path):
    path = tmp_path / "run.jsonl"
    with record(path):
        await agent([function])
    with replay(path):
        first, last = (asyncio.ensure_future(function(n)) for n in (COUNT - 1, 0))
        await asyncio.sleep(0)
        first.cancel()
        async with asyncio.timeout(30):
            assert await last == 0
