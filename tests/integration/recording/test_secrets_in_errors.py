"""The text of an exception repeats its arguments, so it is written without what they have lost."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_cache import AgentCache
from agent_cache.recording import Cassette, cached_llm_call, intercept, record, replay
from agent_cache.toolbox import Toolbox

S = "Zq9x7Kp2Lm4Tv8"
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{S}\n-----END RSA PRIVATE KEY-----"


class ApiError(Exception):
    pass


class WithText(Exception):
    def __init__(self, status: int, body: Any) -> None:
        super().__init__(status, body)
        self.body = body

    def __str__(self) -> str:
        return f"{self.args[0]} for {json.dumps(self.body, default=str)}"


ARGUMENTS: dict[str, Any] = {
    "a text": {"password": S},
    "a dict": {"secret": {"value": S}},
    "a dict in a dict": {"secret": {"a": {"b": [S]}}},
    "a list": {"auth": ["bob", S]},
    "a tuple": {"auth": ("bob", S)},
    "a tuple with a number": {"password": (S, 1)},
    "inside": {"status": 401, "request": {"api_key": [S]}},
    "credentials": {"credentials": {"user": "bob", "password": S}},
    "a key": {"private_key": {"pem": S}},
    "a number": {"token": 777.12399},
    "several": {"passwords": {"bob": S}},
    "a short one": {"password": ("Zq9", 1)},
    "line breaks": {"private_key": [PEM]},
    "bytes": {"secret": [S.encode()]},
    "a set": {"api_keys": {S}},
    "JSON": json.dumps({"secret": {"value": S}}),
    "OAuth": {"grant_type": "authorization_code", "code": S},
    "a header": [("Authorization", f"Bearer {S}")],
    "a URL": {"hook": f"https://hooks.slack.com/services/T01/B01/{S}"},
    "named pairs": [{"name": "DB_PASSWORD", "value": S}],
}
MAKERS: dict[str, Callable[[Any], Exception]] = {
    "ValueError": ValueError,
    "own class": lambda given: ApiError("401", given),
    "own text": lambda given: WithText(401, given),
}


def has_secret(text: str) -> bool:
    return any(one in text for one in (S, "777.12399", "Zq9", base64.b64encode(S.encode()).decode()))


@pytest.mark.parametrize("label", ARGUMENTS)
@pytest.mark.parametrize("maker", MAKERS)
def test_the_text_of_an_exception_has_no_secret_of_its_arguments(label: str, maker: str, path: Path) -> None:
    @intercept(name="fail")
    def fail() -> None:
        raise MAKERS[maker](ARGUMENTS[label])

    with record(path), pytest.raises((ValueError, ApiError, WithText)):
        fail()
    assert not has_secret(path.read_text()), path.read_text()
    assert "error" in path.read_text()


def fail_now() -> None:
    raise WithText(401, {"secret": {"value": S}})


async def fail_in_task(**_: Any) -> None:
    fail_now()


def fail_in_stream() -> Any:
    yield 1
    fail_now()


async def in_toolbox() -> None:
    await Toolbox(namespace="errors").call("fail", {}, fail_in_task)


@pytest.mark.parametrize(
    "run",
    [
        lambda: asyncio.run(intercept(fail_in_task, name="fail")()),
        lambda: list(intercept(fail_in_stream, name="fail")()),
        lambda: asyncio.run(AgentCache("errors", name="fail")(fail_in_task)()),
        lambda: AgentCache("errors", name="fail_now")(fail_now)(),
        lambda: asyncio.run(in_toolbox()),
        lambda: cached_llm_call(name="ask")(fail_now)(),
    ],
    ids=["task", "stream", "cached tool", "cached def", "toolbox", "model call"],
)
def test_every_way_to_fail_is_written_in_the_same_way(run: Callable[[], object], path: Path) -> None:
    with record(path), pytest.raises(WithText):
        run()
    assert not has_secret(path.read_text()), path.read_text()
    assert "[redacted]" in path.read_text()


def test_notes_causes_and_groups_lose_what_any_of_them_has_lost(path: Path) -> None:
    @intercept(name="fail")
    def fail() -> None:
        try:
            raise ValueError({"secret": {"value": S}})
        except ValueError as cause:
            error = ApiError(f"cannot log in with {S}")
            error.add_note(f"tried {S} twice")
            group = ExceptionGroup(f"all of {S}", [error, KeyError(S)])
            raise group from cause

    with record(path), pytest.raises(ExceptionGroup):
        fail()
    assert not has_secret(path.read_text())
    assert "cannot log in with [redacted]" in path.read_text()
    assert "tried [redacted] twice" in path.read_text()


def test_the_rest_of_the_text_stays(path: Path) -> None:
    @intercept(name="fail")
    def fail() -> None:
        raise ValueError({"status": 401, "secret": {"value": S}, "page": "2 of 7"})

    with record(path), pytest.raises(ValueError, match="401"):
        fail()
    [call] = Cassette.load(path)
    expected = {"status": 401, "secret": {"value": "[redacted]"}, "page": "2 of 7"}
    assert call.outcome["error"]["message"] == str(expected)
    with replay(path), pytest.raises(ValueError, match="401") as caught:
        fail()
    assert str(caught.value) == str(expected)
