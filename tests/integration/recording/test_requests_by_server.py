"""Which requests are calls of a model: by a known host, a known client, or the user's word. A path alone says nothing.

Also which requests pass a recording, and which servers are one.
"""

import json

import pytest

from agent_cache import AgentCacheSession
from agent_cache.recording import Cassette, CassetteError, DivergenceError, Http, Redaction, record, replay
from agent_cache.resume import Journal
from tests.harness.cassettes import identity
from tests.harness.http_server import http_server

httpx = pytest.importorskip("httpx")

PATHS = [
    "/v3/shop.example/messages", "/v19.0/10123/messages", "/api/v10/channels/42/messages", "/v2/messages",
    "/v1/forms/7/responses", "/functions/charge/invoke", "/model/charge/invoke", "/v1/chat/completions", "/embeddings",
    "/charges:predict",
]  # fmt: skip


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def other_server():
    with http_server() as running:
        yield running


def kind_of(host, path, headers=(), http=None, method="POST"):
    """The kind of a request to a host, as a recording has it."""
    url = f"http://{host}{path}"
    return identity(method, url, dict(headers), b"{}", http or Http(), Redaction())[0]


OTHERS = ["api.mail.example", "127.0.0.1", "api.openai.com.mail.example", "myapi.openai.com.de"]


@pytest.mark.parametrize("path", PATHS)
def test_a_path_alone_makes_no_call_of_a_model(path):
    assert {kind_of(host, path) for host in OTHERS} == {"http"}
    assert kind_of("api.sms.example", path, {"user-agent": "Sms/Python 3.1", "x-stainless-lang": "python"}) == "http"


@pytest.mark.parametrize(
    ("kind", "host", "path", "headers"),
    [
        *(
            ("llm", *url.split("/", 1), {})
            for url in (
                "api.openai.com/v1/chat/completions",
                "api.openai.com/v1/responses",
                "api.openai.com/v1/audio/transcriptions",
                "api.anthropic.com/v1/messages/count_tokens",
                "eu.api.openai.com/v1/responses",
                "shop.openai.azure.com/openai/deployments/large/chat/completions?api-version=1",
                "api.anthropic.com/v1/messages",
                "generativelanguage.googleapis.com/v1beta/models/gemini-9:streamGenerateContent",
                "europe-west1-aiplatform.googleapis.com/v1/projects/p/models/g:generateContent",
                "bedrock-runtime.eu-central-1.amazonaws.com/model/large.nova-1%3A0/converse-stream",
                "api.cohere.com/v2/chat",
                "openrouter.ai/api/v1/chat/completions",
            )
        ),
        *(
            ("http", *url.split("/", 1), {"user-agent": "OpenAI/Python 3.57.0"})
            for url in (
                "api.openai.com/v1/threads/thread_1/messages",
                "api.openai.com/v1/files",
                "api.anthropic.com/v1/messages/batches",
                "lambda.eu-central-1.amazonaws.com/functions/charge/invoke",
            )
        ),
        *(
            ("llm", "127.0.0.1", path, headers)
            for path, headers in (
                ("v1/chat/completions", {"user-agent": "AsyncOpenAI/Python 3.57.0"}),
                ("v1/chat/completions", {"user-agent": "pydantic-ai/1.0"}),
                ("v1/messages", {"user-agent": "Anthropic/Python 2.14.0"}),
                ("v1beta/models/g:generateContent", {"x-goog-api-client": "gl-python/3.11 google-genai-sdk/3.6.1"}),
                ("api/chat", {"user-agent": "ollama-python/0.6.3 (x86_64 linux) Python/3.11"}),
                ("v2/chat", {"x-fern-sdk-name": "cohere"}),
                ("model/large/converse", {"authorization": "Credential=A/20260101/eu/bedrock/aws4_request, x"}),
            )
        ),
    ],
)
def test_a_known_host_or_client_makes_a_call_of_a_model(kind, host, path, headers):
    assert kind_of(host, f"/{path}", headers) == kind
    assert kind_of(host, f"/{path}", headers, method="PUT") == "http"


@pytest.mark.parametrize("models", ["{host}", "{host}:{port}", "http://{host}:{port}/v1/", "http://{host}"])
def test_the_user_names_a_server_of_models(models):
    http = Http(models=[models.format(host="llm.example", port=8000)])
    assert kind_of("llm.example:8000", "/v1/anything", http=http) == "llm"
    assert kind_of("llm.example:8000", "/v1/anything", http=http, method="PUT") == "http"
    assert kind_of("other.example", "/v1/anything", http=http) == "http"
    assert kind_of("llm.example.mail.example", "/v1/anything", http=http) == "http"


async def test_a_resumed_run_does_not_repeat_a_request_that_was_cut_off(tmp_path, server):
    """It is a write in doubt, also if its path looks like one of a model."""

    async def run(dies):
        client = httpx.AsyncClient(event_hooks={"response": [die]} if dies else {})
        async with AgentCacheSession("job", journal=Journal(tmp_path, http=True)), client:
            await client.post(f"{server.url}/v2/messages", json={"n": 1})

    async def die(_response):
        raise Killed

    with pytest.raises(Killed):
        await run(dies=True)
    with pytest.raises(CassetteError, match="nothing says whether it took effect"):
        await run(dies=False)
    assert len(server.requests) == 1


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE", "QUERY"])
def test_reads_are_get_head_and_options(tmp_path, server, method):
    with record(tmp_path / "run.jsonl", http=True):
        httpx.request(method, server.url + "/orders")
    (call,) = Cassette.load(tmp_path / "run.jsonl")
    assert call.is_write is (method not in ("GET", "HEAD", "OPTIONS"))


# Telemetry


def test_what_passes_live_is_listed_as_full_urls():
    live = Http().live
    assert "https://api.openai.com/v1/traces/ingest" in live
    for url in live:
        assert url.count("/") > 3 or not url.endswith("/"), url
        assert not url.endswith(("*/", "/*", "com/", "io/")), url
    with pytest.raises(ValueError, match="live"):
        Http(live=["posthog.com"])


@pytest.mark.parametrize(
    ("url", "passes"),
    [
        ("https://api.openai.com/v1/traces/ingest", True),
        ("https://api.openai.com/v1/traces/ingest/", False),
        ("https://api.openai.com/v1/traces/ingest2", False),
        ("https://api.smith.langchain.com/runs/batch", True),
        ("https://eu.api.smith.langchain.com/runs/multipart", True),
        ("https://api.smith.langchain.com/runs/query", False),
        ("https://api.smith.langchain.com/datasets", False),
        ("https://api.smith.langchain.com/mcp", False),
        ("https://us.cloud.langfuse.com/api/public/otel/v1/traces", True),
        ("https://cloud.langfuse.com/api/public/mcp", False),
        ("https://us.i.posthog.com/batch/", True),
        ("https://mcp.posthog.com/mcp", False),
        ("https://us.posthog.com/api/projects/1/feature_flags/7", False),
        ("https://o1.ingest.us.sentry.io/api/12/envelope/", True),
        ("https://o1.ingest.us.sentry.io/api/12/other/envelope/", False),
        ("https://mcp.sentry.dev/mcp", False),
        ("https://huggingface.co/api/agent-harnesses", True),
        ("https://huggingface.co/api/models/gpt2", False),
    ],
)
def test_only_the_full_paths_of_telemetry_pass(url, passes, tmp_path):
    """A strict replay makes neither request: one is left out, the other is missing in the recording."""
    path = tmp_path / "run.jsonl"
    for live, is_known in ((None, passes), ((), False)):
        with record(path, http=Http() if live is None else Http(live=live)):
            pass
        try:
            with replay(path, strict=True):
                refused = httpx.post(url, json={})
                text = refused.json()["message"]  # where clients of AWS look, and below where others do
                assert (refused.status_code, "Http(live=" in text) == (400, True)
                assert refused.json()["error"]["message"] == text
        except DivergenceError:
            assert not is_known
        else:
            assert is_known


def test_the_user_names_what_passes_and_a_strict_replay_makes_that_alone(tmp_path, server):
    path = tmp_path / "run.jsonl"
    with record(path, http=Http(live=[f"{server.url}/ingest/*"])):
        httpx.post(f"{server.url}/ingest/7", json={})
        httpx.post(f"{server.url}/orders", json={})
    assert len(Cassette.load(path)) == 1
    with replay(path, strict=True):
        assert httpx.post(f"{server.url}/ingest/8", json={}).status_code == 200
        httpx.post(f"{server.url}/orders", json={})
    assert server.requests == ["POST /ingest/7", "POST /orders", "POST /ingest/8"]


def test_telemetry_that_is_switched_off_is_recorded_like_any_request(tmp_path, server):
    path = tmp_path / "run.jsonl"
    with record(path, http=Http(aliases={"127.0.0.1": "shop"}, live=())):
        httpx.post(f"{server.url}/v1/traces/ingest", json={})
    assert [call.name for call in Cassette.load(path)] == ["POST http://shop/v1/traces/ingest"]
    assert json.loads(path.read_text().splitlines()[0])["http"]["live"] == []


# Servers


@pytest.mark.parametrize("is_known", [False, True])
def test_a_request_to_another_port_diverges_and_the_text_proposes_an_alias(is_known, tmp_path, server, other_server):
    path = tmp_path / "run.jsonl"
    with record(path, http=True):
        httpx.post(f"{server.url}/orders", json={"n": 1})
        if is_known:  # as by a router, which chooses one of several for each request
            httpx.post(f"{other_server.url}/orders", json={"n": 2})
    old, new = (one.url.removeprefix("http://") for one in (server, other_server))
    with pytest.raises(DivergenceError) as caught, replay(path):
        httpx.post(f"{other_server.url}/orders", json={"n": 1})
    assert f"It was recorded at {old}" in str(caught.value)
    with pytest.raises(DivergenceError, match=f"was recorded, but of POST http://{old}/orders\n"), replay(path):
        httpx.post(f"{server.url}/v2/orders", json={"n": 1})  # as by a client of another version
    assert "record it with http=Http(aliases={'127.0.0.1': 'server'})" in str(caught.value)
    assert f"record(path, mode='none', http=Http(aliases={{{new!r}: {old!r}}}))" in str(caught.value)
    with record(path, mode="none", http=Http(aliases={new: old})):
        httpx.post(f"{other_server.url}/orders", json={"n": 1})
    with record(path, mode="rewrite", http=Http(aliases={"127.0.0.1": "server"})):
        httpx.post(f"{server.url}/orders", json={"n": 1})
    with replay(path, strict=True):
        httpx.post(f"{other_server.url}/orders", json={"n": 1})
