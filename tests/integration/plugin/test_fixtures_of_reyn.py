"""Tests that are marked with a fixture of Reyn: litellm is answered from it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agent_cache.recording.litellm import LLMReplay, read_fixture

pytest_plugins = ["pytester"]

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else its import asks the network for prices
litellm = pytest.importorskip("litellm")

ASK = """
    import litellm
    import pytest
    from agent_cache.recording import MissingFixture

    pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning:pydantic")  # of litellm's own types

    async def ask(text="hi", reply=None):
        messages = [{"role": "user", "content": text}]
        response = await litellm.acompletion(model="gpt-4o", messages=messages, mock_response=reply)
        return response.choices[0].message.content
"""
TEST = (
    ASK
    + """
    @pytest.mark.replay("fixtures/x.jsonl", **OPTIONS)
    async def test_it(agent_cassette):
        assert await ask("hi", "live") == "EXPECTED"
"""
)


def entry(text: str, reply: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": reply}}
    response = {"id": "a", "created": 1, "model": "gpt-4o", "object": "chat.completion", "choices": [choice]}
    return {"key": LLMReplay.key("gpt-4o", messages), "model": "gpt-4o", "prompt_preview": text, "response": response}


@pytest.fixture
def fixture(suite) -> Path:
    lines = [json.dumps(entry("hi", "recorded")), json.dumps(entry("ho", "of another test"))]
    return suite.write("fixtures/x.jsonl", "\n".join([*lines, ""]))


def written(suite, expected: str, **options: Any) -> None:
    suite.write("test_ask.py", TEST.replace("EXPECTED", expected).replace("OPTIONS", repr(options)))


def test_the_marker_answers_from_the_fixture_and_lets_other_entries_be(suite, fixture):
    written(suite, "recorded")
    suite.run(passed=1)
    suite.run("--agent-block-live", passed=1)


def test_a_call_that_the_fixture_does_not_have_names_the_command(suite, fixture):
    suite.write(
        "test_ask.py",
        ASK
        + """
    @pytest.mark.replay("fixtures/x.jsonl")
    async def test_it():
        await ask("changed")

    @pytest.mark.replay("fixtures/x.jsonl")
    async def test_the_prompt_is_in_the_key():
        with pytest.raises(MissingFixture):
            await ask("changed")
    """,
    )
    result = suite.run(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["*No completion of the fixture answers*", "*--agent-record-mode=rewrite test_ask.py::*"]
    )


@pytest.mark.parametrize(("mode", "expected"), [("rewrite", "live"), ("all", "live"), ("new_episodes", "recorded")])
def test_recording_again_keeps_the_entries_of_others(mode, expected, suite, fixture):
    written(suite, expected)
    suite.run(f"--agent-record-mode={mode}", passed=1)
    suite.run(passed=1)
    replies = {
        one["prompt_preview"]: one["response"]["choices"][0]["message"]["content"] for one in read_fixture(fixture)
    }
    assert replies == {"hi": expected, "ho": "of another test"}


def test_other_calls_run_where_live_calls_are_refused_only_in_a_recording(suite, fixture):
    suite.write(
        "test_ask.py",
        ASK
        + """
    @pytest.mark.replay("fixtures/x.jsonl")
    async def test_it():
        import shop
        await ask("hi", "live")
        shop.ask("a tool")
    """,
    )
    suite.run(passed=1)
    suite.run("--agent-block-live", failed=1)
    suite.run("--agent-block-live", "--agent-record-mode=rewrite", passed=1)


def test_a_strict_test_has_to_use_every_entry(suite, fixture):
    written(suite, "recorded", strict=True)
    result = suite.run(failed=1)
    result.stdout.fnmatch_lines(["*1 of 2 entries were not used, and the test is strict*"])


def test_settings_of_cassettes_are_refused(suite, fixture):
    written(suite, "recorded", policy={"a": "live"})
    suite.run(errors=1).stdout.fnmatch_lines(["*policy and model are settings of cassettes*"])
