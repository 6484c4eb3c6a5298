"""Methods of clients are known by what the caller passes: their defaults are another version's tomorrow."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agent_cache import AgentCache
from agent_cache.recording import DivergenceError, cached_llm_call, intercept, record, replay

COMPLETION = {
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "small-1",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hello"}}],
}  # fmt: skip


@asynccontextmanager
async def server(answer: dict[str, Any]) -> AsyncIterator[tuple[str, list[str]]]:
    """An HTTP server with one answer. Yields its address and the lines of the requests that it got."""
    requests: list[str] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = next((line for line in head.splitlines() if line.startswith("content-length:")), "0:0")
        requests.append((await reader.readexactly(int(length.split(":")[1]))).decode())
        body = json.dumps(answer).encode()
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        await writer.drain()
        writer.close()

    running = await asyncio.start_server(handle, "127.0.0.1")
    port = running.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}", requests
    finally:
        running.close()


async def test_a_method_of_openais_client_is_known_by_what_is_passed(path):
    openai = pytest.importorskip("openai", reason="openai is not installed")
    messages = [{"role": "user", "content": "Hello?"}]
    nothing = [getattr(openai, name) for name in ("NOT_GIVEN", "omit", "not_given") if hasattr(openai, name)]

    async with server(COMPLETION) as (address, requests):
        client = openai.AsyncOpenAI(api_key="k", base_url=address, max_retries=0)
        ask = intercept(client.chat.completions.create, name="ask")
        model = cached_llm_call(name="model")(client.chat.completions.create)
        with record(path) as recorder:
            for function in (ask, model):
                await function(model="small-1", messages=messages)
                await function(messages=messages, model="small-1", temperature=nothing[0], timeout=nothing[-1])
        assert len(requests) == 4
    assert [call.arguments for call in recorder.steps] == [{"messages": messages, "model": "small-1"}] * 4
    assert not any(word in path.read_text().lower() for word in ("omit", "not_given", "notgiven"))
    with replay(path, strict=True):
        for function in (ask, model):
            await function(model="small-1", messages=messages, extra_body=None if function is None else nothing[0])
            await function(model="small-1", messages=messages)
    with pytest.raises(DivergenceError), replay(path):
        await ask(model="small-1", messages=messages, temperature=0.0)


@pytest.mark.parametrize("package", ["openai", "anthropic"])
async def test_what_stands_for_nothing_is_in_no_file(package, path):
    client = pytest.importorskip(package, reason=f"{package} is not installed")
    nothing = client.NOT_GIVEN

    @intercept(name="plain")
    def plain(prompt: str, temperature: Any = nothing) -> str:
        return prompt

    @AgentCache("answer", name="tool")
    async def tool(prompt: str, temperature: Any = nothing) -> str:
        return prompt

    async def run(**options: Any) -> None:
        plain("a", **options)
        await tool("a", **options)
        await tool({"prompt": "a"} | options)  # type: ignore[arg-type]

    with record(path) as recorder:
        await run()
    assert [call.arguments for call in recorder.steps] == [{"prompt": "a"}] * 2 + [{"prompt": {"prompt": "a"}}]
    for value in (nothing, client.omit) if hasattr(client, "omit") else (nothing,):
        with replay(path, strict=True):
            await run(temperature=value)
