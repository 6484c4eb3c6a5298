"""Requests in tests: the marker's `http`, the ini file's `agent_http`, and `--agent-block-live`."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

TEST = """
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
    suite.write("test_requests.py", TEST.format(mark="@pytest.mark.agent_cassette", url=server.url))
    suite.run("--agent-record-mode=once", passed=1)
    suite.run("-o", "agent_http=true", passed=1)
    assert len(server.requests) == 2
    suite.write("test_requests.py", TEST.format(mark=f"@pytest.mark.agent_cassette{mark}", url=server.url))
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
