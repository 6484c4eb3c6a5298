"""What the real clients of OpenAI and Anthropic return and raise comes back as what it was, without a request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from agent_cache.recording import CassetteError, DivergenceError, cached_llm_call, intercept, record, replay
from tests.harness.http_server import http_server
from tests.harness.model_api import ModelApi

openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")
pydantic = pytest.importorskip("pydantic")

MESSAGES = [{"role": "user", "content": "Which city?"}]
CHAT: dict[str, Any] = {"model": "large-1", "messages": MESSAGES}
RESPONSE: dict[str, Any] = {"model": "large-1", "input": "Which city?"}
MESSAGE: dict[str, Any] = {**CHAT, "max_tokens": 9}


class City(pydantic.BaseModel):
    city: str


class Place(pydantic.BaseModel):
    city: str
    country: str = "NO"


@pytest.fixture(scope="module")
def api() -> Iterator[ModelApi]:
    with http_server() as server:
        yield server.model_api


class Clients:
    """The four clients. Their methods are found by path: ``aopenai.chat.completions.create``."""

    def __init__(self, api: ModelApi) -> None:
        to_openai: dict[str, Any] = {"base_url": f"{api.url}/v1", "api_key": "k", "max_retries": 0}
        to_anthropic: dict[str, Any] = {"base_url": api.url, "api_key": "k", "max_retries": 0}
        self.openai, self.aopenai = openai.OpenAI(**to_openai), openai.AsyncOpenAI(**to_openai)
        self.anthropic, self.aanthropic = anthropic.Anthropic(**to_anthropic), anthropic.AsyncAnthropic(**to_anthropic)

    def method(self, path: str) -> Any:
        found: Any = self
        for name in path.split("."):
            found = getattr(found, name)
        return found


@pytest.fixture
async def clients(api: ModelApi) -> AsyncIterator[Clients]:
    made = Clients(api)
    yield made
    for plain in (made.openai, made.anthropic):
        plain.close()
    for client in (made.aopenai, made.aanthropic):
        await client.close()


METHODS = [
    ("openai.chat.completions.create", CHAT),
    ("openai.responses.create", RESPONSE),
    ("anthropic.messages.create", MESSAGE),
]


async def twice(path: Path, api: ModelApi, run: Callable[[], Awaitable[Any]]) -> tuple[Any, Any]:
    """What a run returns while it is recorded, and then in a replay without a request."""
    with record(path):
        recorded = await run()
    count = len(api.requests)
    with replay(path, strict=True):
        replayed = await run()
    assert len(api.requests) == count
    return recorded, replayed


def states(value: Any) -> Any:
    """Everything that a model and the models in it have, with their classes."""
    if isinstance(value, pydantic.BaseModel):
        extra, given = value.model_extra, value.model_fields_set
        return type(value), states(dict(vars(value))), states(extra), given, value.__pydantic_private__
    if isinstance(value, dict):
        return {name: states(each) for name, each in value.items()}
    return [states(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize(("method", "arguments"), METHODS)
async def test_an_answer_and_the_chunks_of_a_stream_come_back_as_the_clients_models(
    method, arguments, path, api, clients
):
    create = cached_llm_call(name="create")(clients.method(f"a{method}"))

    async def run() -> Any:
        async with await create(**arguments, stream=True) as stream:
            return [await create(**arguments), *[chunk async for chunk in stream]]

    recorded, replayed = await twice(path, api, run)
    assert len(replayed) >= 4
    assert states(replayed) == states(recorded)
    assert type(replayed[0]).__module__.partition(".")[0] in {"openai", "anthropic"}
    assert (replayed[0], replayed[0]._request_id) == (recorded[0], "req_1")


PARSERS = [
    ("openai.chat.completions.parse", CHAT, "response_format"),
    ("openai.responses.parse", RESPONSE, "text_format"),
    ("anthropic.messages.parse", MESSAGE, "output_format"),
    ("anthropic.beta.messages.parse", MESSAGE, "output_format"),
]


def parsed(answer: Any) -> Any:
    """The object that a client made of an answer."""
    if hasattr(answer, "choices"):
        return answer.choices[0].message.parsed
    return answer.parsed_output if hasattr(answer, "parsed_output") else answer.output_parsed


@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize(("method", "arguments", "name"), PARSERS)
async def test_a_parsed_answer_comes_back_as_its_class_and_that_of_the_caller(
    method, arguments, name, is_plain, path, api, clients, caplog
):
    parse = cached_llm_call(name="parse")(clients.method(method if is_plain else f"a{method}"))

    async def run() -> Any:
        answers = [parse(**arguments, **{name: kind}) for kind in (City, Place)]
        return [answer if is_plain else await answer for answer in answers]

    recorded, replayed = await twice(path, api, run)
    assert states(replayed) == states(recorded)
    assert list(map(type, map(parsed, replayed))) == [City, Place]
    assert parsed(replayed[0]) == City(city="Oslo")
    assert "recording to" not in caplog.text


@pytest.mark.parametrize(("method", "arguments"), METHODS)
async def test_an_error_comes_back_as_the_clients_own(method, arguments, path, api, clients, caplog):
    create = cached_llm_call(name="create")(clients.method(f"a{method}"))
    library = openai if method.startswith("openai") else anthropic

    async def run() -> Any:
        try:
            await create(**{**arguments, "model": "limited"})
        except library.RateLimitError as error:
            return error
        raise AssertionError

    recorded, replayed = await twice(path, api, run)
    assert type(replayed) is library.RateLimitError
    assert (str(replayed), replayed.status_code, replayed.request_id) == (str(recorded), 429, "req_1")
    assert (replayed.body, replayed.type) == (recorded.body, recorded.type)
    assert replayed.response.headers["retry-after"] == "7"
    assert replayed.response.json() == recorded.response.json()
    assert (replayed.request.method, replayed.request.url) == ("POST", recorded.request.url)
    assert "recording to" not in caplog.text


@pytest.mark.parametrize("is_strict", [False, True])
async def test_a_context_manager_is_said_while_recording_to_need_a_function_around_it(
    is_strict, path, api, clients, caplog
):
    stream = cached_llm_call(name="stream")(clients.aanthropic.messages.stream)

    async def run() -> str:
        async with stream(**MESSAGE) as events:
            return "".join([text async for text in events.text_stream])

    refused = pytest.raises(CassetteError, match=r"stream returned a .*StreamManager.* record a function")
    with refused if is_strict else nullcontext():
        async with record(path, strict=is_strict):
            assert await run() == "Oslo"
    [warning] = [text for entry in caplog.records if (text := entry.getMessage()).startswith("recording to")]
    assert "record a function that opens it, and returns or yields what is in it" in warning
    with pytest.raises(CassetteError, match="record a function that opens it"), replay(path):
        await run()


async def test_a_method_is_known_by_what_is_passed_and_not_by_its_defaults(path, api, clients):
    """The defaults are another version's tomorrow; what stands for nothing is none of it."""
    nothing = [getattr(openai, name) for name in ("NOT_GIVEN", "omit", "not_given") if hasattr(openai, name)]
    ask = cached_llm_call(name="ask")(clients.aopenai.chat.completions.create)

    @intercept(name="plain")
    def plain(prompt: str, temperature: Any = anthropic.NOT_GIVEN) -> str:
        return prompt

    with record(path) as recorder:
        await ask(**CHAT)
        await ask(messages=MESSAGES, model="large-1", temperature=nothing[0], timeout=nothing[-1])
        plain("a")
    assert [call.arguments for call in recorder.steps] == [CHAT, CHAT, {"prompt": "a"}]
    with replay(path, strict=True):
        await ask(**CHAT, extra_body=nothing[0])
        await ask(**CHAT)
        plain("a", anthropic.NOT_GIVEN)
    with pytest.raises(DivergenceError), replay(path):
        await ask(**CHAT, temperature=0.0)
