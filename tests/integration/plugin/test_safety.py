"""Nothing runs live by accident, and no cassette is forgotten."""

from __future__ import annotations

import pytest

from tests.harness.slow import slow_but

pytest_plugins = ["pytester"]

CALLS = {
    "a tool that reads": 'await get_order("W1")',
    "a tool that writes": 'await cancel_order("W1")',
    "a function": 'ask("?")',
    "a model": 'think("?")',
    "a stream": "[one async for one in chunks(1)]",
    "a thread": 'await asyncio.to_thread(ask, "?")',
}
TEST = """
    import asyncio
    import pytest
    from shop import ask, cancel_order, chunks, get_order, now, think

    {mark}
    async def test_it():
        {call}
"""


@pytest.mark.parametrize("call", slow_but(["a tool that writes", "a thread"], CALLS))
def test_what_would_run_live_fails_outside_of_a_recording_which_decides_inside(suite, call):
    suite.write("test_live.py", TEST.format(mark="", call=call))
    result = suite.run("--agent-block-live", failed=1)
    result.stdout.fnmatch_lines(
        ["*CassetteError: shop:* was called outside of a recording. --agent-block-live forbids*"]
    )
    assert suite.live == []
    suite.write("test_live.py", TEST.format(mark="@pytest.mark.agent_cassette", call=call))
    suite.twice("--agent-block-live", calls=1)


def test_a_block_of_record_in_a_test_may_run_live_and_what_follows_may_not(suite):
    call = (
        "from agent_cache import AgentCacheSession\n"
        "        from agent_cache.recording import record\n"
        "        async with AgentCacheSession():\n"
        '            with record("own.jsonl"):\n'
        '                await get_order("W1")\n'
        "                ask('?')\n"
        '            await cancel_order("W1")'
    )
    suite.write("test_live.py", TEST.format(mark="", call=call))
    suite.run("--agent-block-live", failed=1).stdout.fnmatch_lines(["*cancel_order was called outside*"])
    assert suite.live == ["get_order", "ask"]


def test_a_swallowed_refusal_fails_a_test_that_does_not_say_that_it_runs_live(suite):
    call = 'try:\n            await get_order("W1")\n        except Exception:\n            pass'
    suite.write("test_live.py", TEST.format(mark="", call=call))
    result = suite.run("--agent-block-live", failed=1)
    result.stdout.fnmatch_lines(["This was raised at *test_live.py:*, in test_it, and something has caught it."])
    suite.write("test_live.py", TEST.format(mark='@pytest.mark.agent_live("smoke test")', call=call))
    suite.run("--agent-block-live", passed=1)
    assert suite.live == ["get_order"]


ESCAPING = """
    import asyncio
    import pytest
    from concurrent.futures import ThreadPoolExecutor
    from shop import ask, get_order

    @pytest.mark.agent_cassette
    def test_it():
        ask("first")
        with ThreadPoolExecutor(1) as pool:
            pool.submit({call}).result()
"""


@pytest.mark.parametrize("call", ["lambda: ask('?')", "lambda: asyncio.run(get_order('W1'))"])
def test_a_replay_refuses_what_a_thread_without_its_context_calls(suite, call):
    suite.write("test_live.py", ESCAPING.format(call=call))
    suite.run("--agent-record-mode=once", passed=1)
    assert len(suite.live) == 2
    suite.run(failed=1).stdout.fnmatch_lines(["*was called in a thread*would have run*copy_context*"])
    assert suite.live == []


# Requests: the marker's `http`, the ini file's `agent_http`, and `--agent-block-live`


REQUEST = """
    import urllib.request, pytest
    from agent_cache.recording import Http

    {mark}
    def test_it():
        with urllib.request.urlopen({url!r}) as response:
            assert response.status == 200
"""
REFUSED = """
    import urllib.error, urllib.request

    def test_it():
        try:
            request = urllib.request.Request({url!r}, {body!r}, {{"user-agent": "OpenAI/Python 3.57.0"}})
            urllib.request.urlopen(request, timeout=100).close()
        except urllib.error.HTTPError as error:  # the answer in the place of a model's, as its client sees it
            error.close()
"""


@pytest.mark.parametrize(
    ("mark", "options"),
    [("(http=Http(ignore=['other.example']))", []), ("", ["-o", "agent_http=true"])],
    ids=["settings", "ini"],
)
def test_requests_are_recorded_and_replayed(suite, mark, options, server):
    """A cassette without them leaves them alone when the project begins to record them."""
    suite.write("test_requests.py", REQUEST.format(mark="@pytest.mark.agent_cassette", url=server.url))
    suite.run("--agent-record-mode=once", passed=1)
    suite.run("-o", "agent_http=true", passed=1)
    assert len(server.requests) == 2
    suite.write("test_requests.py", REQUEST.format(mark=f"@pytest.mark.agent_cassette{mark}", url=server.url))
    suite.run("--agent-record-mode=rewrite", *options, passed=1)
    server.close()
    suite.run(passed=1)
    suite.run(*options, passed=1)


@pytest.mark.parametrize(
    ("path", "body", "is_refused"),
    [("/orders", None, False), ("/v1/chat/completions", b'{"model": "large-1"}', True)],
    ids=["of the test", "of a model"],
)
def test_requests_on_loopback_are_refused_if_they_go_to_a_model(suite, path, body, is_refused, server):
    suite.write("test_requests.py", REFUSED.format(url=server.url + path, body=body))
    result = suite.run("--agent-block-live", **({"failed": 1} if is_refused else {"passed": 1}))
    if is_refused:
        result.stdout.fnmatch_lines(["*POST http://127.0.0.1:*/v1/chat/completions was called outside of a recording*"])
    assert bool(server.requests) is not is_refused
