"""Agents on the real clients of model providers are recorded without a decorator, and replayed with the server gone."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from agent_cache.recording import Cassette, DivergenceError, record, replay
from tests.harness.http_server import HttpServer

CHAT: dict[str, Any] = {"model": "large-1", "messages": [{"role": "user", "content": "Which city?"}]}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_token",
            "description": "The token of a user",
            "parameters": {"type": "object", "properties": {"password": {"type": "string"}}, "required": ["password"]},
        },
    }
]


@pytest.fixture(autouse=True)
def _no_accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "key")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def plain(answer: Any) -> Any:
    """An object of a client as data that can be compared."""
    if hasattr(answer, "model_dump"):
        return answer.model_dump(mode="json", warnings=False)
    if isinstance(answer, list | tuple):
        return [plain(one) for one in answer]
    return answer


async def openai_run(server: HttpServer) -> Any:
    openai = pytest.importorskip("openai")
    options = {"base_url": f"{server.url}/v1", "api_key": "k"}
    found: list[Any] = []
    with openai.OpenAI(**options) as client:
        found.append(client.chat.completions.create(**CHAT, tools=TOOLS, logprobs=True))
        found.append(list(client.chat.completions.create(**CHAT, stream=True)))
        found.append(client.responses.create(model="large-1", input="Which city?"))
        found.append(list(client.responses.create(model="large-1", input="Which city?", stream=True)))
        with client.chat.completions.with_streaming_response.create(**CHAT) as response:
            found.append(json.loads(response.read()))
    async with openai.AsyncOpenAI(**options) as client:
        found.append(await client.chat.completions.create(**CHAT))
        found.append([chunk async for chunk in await client.chat.completions.create(**CHAT, stream=True)])
        async with client.chat.completions.stream(**CHAT) as stream:
            found.append([event.type async for event in stream])
        found.append([event async for event in await client.responses.create(model="large-1", input="x", stream=True)])
    return plain(found)


async def anthropic_run(server: HttpServer) -> Any:
    anthropic = pytest.importorskip("anthropic")
    options = {"base_url": server.url, "api_key": "k"}
    found: list[Any] = []
    with anthropic.Anthropic(**options) as client:
        found.append(client.messages.create(**CHAT, max_tokens=9))
        found.append(list(client.messages.create(**CHAT, max_tokens=9, stream=True)))
        with client.messages.stream(**CHAT, max_tokens=9) as stream:
            found += [list(stream.text_stream), stream.get_final_message()]
    async with anthropic.AsyncAnthropic(**options) as client:
        found.append(await client.messages.create(**CHAT, max_tokens=9))
        async with client.messages.stream(**CHAT, max_tokens=9) as stream:
            found += [[text async for text in stream.text_stream], await stream.get_final_message()]
    return plain(found)


async def gemini_run(server: HttpServer) -> Any:
    genai = pytest.importorskip("google.genai")
    found: list[Any] = []
    client = genai.Client(api_key="k", http_options={"base_url": server.url})
    found.append(client.models.generate_content(model="gemini-9", contents="Which city?"))
    found.append(list(client.models.generate_content_stream(model="gemini-9", contents="Which city?")))
    found.append(await client.aio.models.generate_content(model="gemini-9", contents="Which city?"))
    stream = await client.aio.models.generate_content_stream(model="gemini-9", contents="Which city?")
    found.append([chunk async for chunk in stream])
    await client.aio.aclose()
    client.close()
    for one in found:
        for answer in one if isinstance(one, list) else [one]:
            answer.sdk_http_response = None  # it has the headers of the transfer
    return plain(found)


MESSAGES = [{"role": "user", "content": [{"text": "Which city?"}]}]


def _without_transfer(answer: dict[str, Any]) -> dict[str, Any]:
    metadata = answer.get("ResponseMetadata", {})
    metadata.pop("HTTPHeaders", None)
    return answer


async def boto3_run(server: HttpServer) -> Any:
    boto3 = pytest.importorskip("boto3")
    client = boto3.client("bedrock-runtime", endpoint_url=server.url)
    found = [_without_transfer(client.converse(modelId="large-1", messages=MESSAGES))]
    streamed = client.converse_stream(modelId="large-1", messages=MESSAGES)
    found.append(list(streamed["stream"]))
    found.append(list(client.invoke_model_with_response_stream(modelId="large-1", body="{}")["body"]))
    client.close()
    return found


async def aiobotocore_run(server: HttpServer) -> Any:
    aiobotocore = pytest.importorskip("aiobotocore.session")
    session = aiobotocore.get_session()
    async with session.create_client("bedrock-runtime", endpoint_url=server.url) as client:
        found = [_without_transfer(await client.converse(modelId="large-1", messages=MESSAGES))]
        streamed = await client.converse_stream(modelId="large-1", messages=MESSAGES)
        found.append([event async for event in streamed["stream"]])
    return found


RUNS = {
    "openai": openai_run,
    "anthropic": anthropic_run,
    "google-genai": gemini_run,
    "boto3": boto3_run,
    "aiobotocore": aiobotocore_run,
}


@pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")
@pytest.mark.parametrize("name", RUNS)
async def test_an_agent_is_replayed_without_its_model(name: str, server: HttpServer, path: Path, gone: Any):
    async def run() -> Any:
        return await RUNS[name](server)

    live = await run()
    assert await gone(run) == live
    calls = Cassette.load(path)
    assert {call.kind for call in calls} == {"llm"}
    assert {(call.input_tokens, call.output_tokens) for call in calls} == {(3, 2)}
    assert {call.model for call in calls} <= {"large-1", "gemini-9"}
    with replay(path, strict=True) as player:
        await run()
    assert (player.savings.calls, player.savings.input_tokens) == (len(calls), 3 * len(calls))


async def test_a_client_that_is_limited_or_polls_asks_again_at_once(server: HttpServer, path: Path):
    openai = pytest.importorskip("openai")

    def run() -> list[str]:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0)
        with client, pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(**{**CHAT, "model": "limited"})
        return [caught.value.response.headers[name] for name in ("retry-after", "openai-poll-after-ms")]

    with record(path, http=True):
        assert run() == ["7", "900"]
    server.close()
    with replay(path, strict=True):
        assert run() == ["0", "1"]


async def test_a_changed_prompt_is_named_to_the_client_and_not_tried_again(server: HttpServer, path: Path):
    openai = pytest.importorskip("openai")

    async def ask(question: str) -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=5) as client:
            await client.chat.completions.create(model="large-1", messages=[{"role": "user", "content": question}])

    with record(path, http=True):
        await ask("refund 40")
    refused = None
    with pytest.raises(DivergenceError, match="refund 4000"), replay(path) as player:
        try:
            await ask("refund 4000")
        except Exception as error:
            refused = error
    assert isinstance(refused, openai.BadRequestError)
    assert "refund 4000" in str(refused)
    assert len(player.divergences) == 1


def test_secrets_that_go_over_several_events_are_not_in_the_file(server: HttpServer, path: Path):
    openai = pytest.importorskip("openai")
    secret = "sk-" + "Zq9" * 12

    def run() -> str:
        with openai.OpenAI(base_url=f"{server.url}/split", api_key="k", max_retries=0) as client:
            stream = client.chat.completions.create(
                model="large-1", messages=[{"role": "user", "content": secret}], stream=True
            )
            return "".join(chunk.choices[0].delta.content for chunk in stream)

    with record(path, http=True):
        assert secret in run()
    text = path.read_text()
    assert secret not in text
    assert secret not in re.sub(r'"\},"finish_reason":null\}\]\}.{1,400}?"content":"', "", text)
    assert "[redacted]" in text
    server.close()
    with replay(path):
        replayed = run()
    assert secret not in replayed
    assert replayed.startswith("key: ")
    assert replayed.endswith(" end")


def test_a_method_that_was_replaced_above_the_seam_stays(server: HttpServer, path: Path, monkeypatch):
    httpx = pytest.importorskip("httpx")
    asked = []
    before = httpx.HTTPTransport.handle_request
    with record(path, http=True), record(path.with_name("inner.jsonl"), http=True):
        pass
    assert httpx.HTTPTransport.handle_request is before
    with record(path, http=True):
        ours = httpx.HTTPTransport.handle_request

        def theirs(self: Any, request: Any) -> Any:
            asked.append(request.method)
            return ours(self, request)

        monkeypatch.setattr(httpx.HTTPTransport, "handle_request", theirs)
    httpx.get(server.url)
    with record(path, http=True):
        httpx.get(server.url)
    assert asked == ["GET", "GET"]
    assert httpx.HTTPTransport.handle_request is theirs
    assert Cassette.load(path).num_steps == 1


async def test_mcp_over_http_is_replayed(path: Path):
    mcp = pytest.importorskip("mcp")
    uvicorn = pytest.importorskip("uvicorn")
    http_client = pytest.importorskip("mcp.client.streamable_http")
    app = pytest.importorskip("mcp.server.mcpserver").MCPServer("shop")

    @app.tool()
    def get_order(order_id: str) -> str:
        return f"order {order_id}"

    running = uvicorn.Server(uvicorn.Config(app.streamable_http_app(stateless_http=True), port=0, log_level="critical"))
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    while not running.started:
        time.sleep(0.01)
    port = running.servers[0].sockets[0].getsockname()[1]

    async def run() -> Any:
        url = f"http://127.0.0.1:{port}/mcp"
        async with http_client.streamable_http_client(url) as streams, mcp.ClientSession(*streams[:2]) as session:
            await session.initialize()
            tools = await session.list_tools()
            answer = await session.call_tool("get_order", {"order_id": "W1"})
            return [tool.name for tool in tools.tools], answer.content[0].text

    try:
        with record(path, http=True):
            recorded = await run()
    finally:
        running.should_exit = True
        await asyncio.to_thread(thread.join)
    assert recorded == (["get_order"], "order W1")
    with replay(path):
        assert await run() == recorded
