"""`agent-cache cassette text`, as the diff driver of git that it is."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import agent_cache
from agent_cache.recording import cached_llm_call, intercept, record
from tests.harness.slow import slow

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


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
@pytest.mark.parametrize("is_whole", [False, *slow(True)], ids=["what has changed", "and nothing else"])
def test_git_shows_what_has_changed_and_nothing_else(tmp_path, is_whole):
    root = str(Path(agent_cache.__file__).parents[1])
    settings = tmp_path / ".gitconfig"
    settings.touch()
    environment = {**os.environ, "PYTHONPATH": root, "GIT_CONFIG_GLOBAL": str(settings), "GIT_CONFIG_NOSYSTEM": "1"}

    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        found = subprocess.run(
            ["git", *who, *arguments], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
        )
        return found.stdout

    git("init", "-q")
    git("config", "diff.agent-cassette.textconv", f"{sys.executable} -m agent_cache cassette text")
    (tmp_path / ".gitattributes").write_text("*.jsonl diff=agent-cassette\n")
    talk(tmp_path / "a.jsonl", "Where?", "When?", "Why?", more=("Dear A\nBye",))
    git("add", ".")
    git("commit", "-qm", "recorded")
    if is_whole:
        talk(tmp_path / "a.jsonl", "Where?", "When?", "Why?", more=("Dear A\nBye",))
        assert git("diff") == ""
    talk(tmp_path / "a.jsonl", "Where?", "How?", "Why?", more=("Dear A\nBye",))
    changed = [line for line in git("diff", "-U0").splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert changed == 2 * [
        '-      -: {"role": "user", "content": "When?"}',
        '+      -: {"role": "user", "content": "How?"}',
    ]
    if is_whole:
        assert "How?" in git("log", "-p", "--textconv", "--all", "-1") + git("diff")
