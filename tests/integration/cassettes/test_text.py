"""`agent-cache cassette text`, as the diff driver of git that it is."""

from pathlib import Path

import pytest

from agent_cache.recording import cached_llm_call, intercept, record

RULES = "Be patient. " * 60


@cached_llm_call(name="model")
def think(messages: list[dict[str, str]]) -> str:
    return f"answer {len(messages)}"


@intercept(name="mail")
def mail(text: str) -> None:
    think([{"role": "user", "content": text}])


def talk(path: Path, *questions: str, more: tuple[str, ...] = ()) -> Path:
    messages = [{"role": "system", "content": RULES}]
    with record(path, model="large-1"):
        for question in questions:
            messages.append({"role": "user", "content": question})
            messages.append({"role": "assistant", "content": think(messages)})
        for text in more:
            mail(text)
    return path


def test_text_has_each_value_on_lines_of_its_own(tmp_path, command):
    path = talk(tmp_path / "a.jsonl", "Where?", "When?", more=("Dear A\nBye",))
    code, out, err = command("text", path)
    assert (code, err) == (0, "")
    expected = f"""\
        cassette: {{"model": "large-1"}}
        llm model
            messages:
              -:
                role: "system"
                content: "{RULES}"
              -: {{"role": "user", "content": "Where?"}}
            -> value: "answer 2"
        llm model
            messages:
              -:
                role: "system"
                content: "{RULES}"
              -: {{"role": "user", "content": "Where?"}}
              -: {{"role": "assistant", "content": "answer 2"}}
              -: {{"role": "user", "content": "When?"}}
            -> value: "answer 4"
        call mail
            text:
              | Dear A
              | Bye
            -> value: null
          llm model
              messages: [{{"role": "user", "content": "Dear A\\nBye"}}]
              -> value: "answer 1"
        ended: returned
    """
    assert out.splitlines() == [line[8:] for line in expected.splitlines()[:-1]]


@pytest.mark.parametrize("content", ["", "<<<<<<< HEAD\n{}\n", "something else\n", '{"agent_cache_cassette":99}\n'])
def test_what_is_no_cassette_is_printed_as_it_is(content, tmp_path, command):
    path = tmp_path / "a.jsonl"
    path.write_text(content)
    assert command("text", path) == (0, content, "")


def test_text_has_the_model_and_its_tokens(cassette, command):
    lines = command("text", cassette("a.jsonl", "model:hi"))[1].splitlines()
    assert lines[-4:-1] == ["    model: m-1", "    input_tokens: 120", "    output_tokens: 30"]
