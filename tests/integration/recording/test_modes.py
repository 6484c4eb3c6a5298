"""What becomes of a file: in each mode, as vcrpy has them; when a run, a process or a disk ends early; when
it was edited.
"""

import asyncio
import json
import os
import signal
import textwrap
from pathlib import Path

import pytest

from agent_cache import ConfigurationError
from agent_cache.recording import Cassette, CassetteError, CassetteNotFound, DivergenceError, intercept, record, replay
from tests.harness.processes import python


class Source:
    version = 1


@intercept(name="ask")
def ask(question: str) -> str:
    return f"{question} v{Source.version}"


@intercept(name="outer")
def outer(question: str) -> str:
    return ask(question) + "!"


@pytest.fixture(autouse=True)
def version():
    Source.version = 1


def a_recording(path: Path, *questions: str) -> list[bytes]:
    """Its lines. What is asked later has other answers."""
    Source.version = 1
    with record(path):
        for one in questions:
            ask(one)
    Source.version = 2
    return path.read_bytes().splitlines(keepends=True)


def answers(path: Path) -> list[str]:
    return [call.outcome["value"] for call in Cassette.load(path)]


# Modes


MODES = [
    ("none", "ab", "a", ["a v1"], ["a v1", "b v1"]),
    ("once", "ab", "a", ["a v1"], ["a v1", "b v1"]),
    ("once", "", "a", ["a v2"], ["a v2"]),
    ("new_episodes", "ab", "acb", ["a v1", "c v2", "b v1"], ["a v1", "c v2", "b v1"]),
    ("new_episodes", "ab", "c", ["c v2"], ["c v2", "a v1", "b v1"]),
    ("all", "ab", "ac", ["a v2", "c v2"], ["a v2", "c v2", "b v1"]),
    ("rewrite", "ab", "c", ["c v2"], ["c v2"]),
]


@pytest.mark.parametrize(("mode", "recorded", "asked", "heard", "kept"), MODES)
def test_what_a_mode_runs_and_what_it_keeps(mode, recorded, asked, heard, kept, path):
    Source.version = 2
    if recorded:
        a_recording(path, *recorded)
    with record(path, mode=mode):
        assert [ask(one) for one in asked] == heard
    assert answers(path) == kept
    with replay(path, strict=True):
        assert [ask(one[0]) for one in kept] == kept


def test_a_mode_that_runs_nothing_refuses_what_is_new_and_none_wants_a_file(path):
    with pytest.raises(CassetteNotFound, match="record it first"), record(path, mode="none"):
        pass
    assert not path.parent.exists()
    a_recording(path, "a")
    for mode in ("none", "once"):
        with pytest.raises(DivergenceError), record(path, mode=mode):
            ask("b")


def test_new_episodes_keeps_what_a_replayed_call_encloses(path):
    with record(path):
        outer("a")
    Source.version = 2
    with record(path, mode="new_episodes"):
        assert [outer("a"), ask("z")] == ["a v1!", "z v2"]
    assert [(call.name, call.parent) for call in Cassette.load(path)] == [("outer", None), ("ask", 1), ("ask", None)]
    with replay(path, strict=True, policy={"outer": "live"}):
        assert [outer("a"), ask("z")] == ["a v1!", "z v2"]


@pytest.mark.parametrize(
    ("function", "given", "options"),
    [
        (record, "a.jsonl", {"mode": "onse"}),
        (record, "a.jsonl", {"model": 3}),
        *((record, "a.jsonl", {"redact": wrong}) for wrong in ("token", 3, [3])),
        (record, "a.jsonl", {"policy": {"ask": "maybe"}}),
        *((replay, "a.jsonl", {"policy": wrong}) for wrong in ("stub", {ask: "stub"})),
        (replay, "a.jsonl", {"strict": "yes"}),
        *((record, wrong, {}) for wrong in ("", None, 3, "nul\0l.jsonl")),
    ],
)
def test_wrong_options_are_refused_at_once(function, given, options):
    with pytest.raises(ConfigurationError):
        function(given, **options)


# A run, a process or a disk that ends early


def test_a_name_that_is_too_long_is_an_error_of_ours_and_a_program_may_change_its_directory(tmp_path, monkeypatch):
    for mode, length in (("once", 300), ("rewrite", 300), ("rewrite", 245)):
        with pytest.raises(CassetteError, match="too long"), record(tmp_path / ("x" * length), mode=mode):
            raise AssertionError("the run began, which would have been lost at its end")
    with pytest.raises(CassetteNotFound), replay(tmp_path / ("x" * 250)):
        pass
    monkeypatch.chdir(tmp_path)
    with record("run.jsonl") as recorder:
        ask("a")
        monkeypatch.chdir("/")
        assert len(recorder.steps) == 1
    assert len(recorder.steps) == len(Cassette.load(tmp_path / "run.jsonl")) == 1


def test_the_old_file_stands_until_the_new_one_is_whole_and_the_new_one_is_as_private(path, tmp_path):
    before = b"".join(a_recording(path, "a"))
    path.chmod(0o600)
    path.with_name("run.jsonl.partial").write_bytes(before)  # by a process that was killed
    for name in ("run.jsonl.partial.sorted", "run.jsonl.partial.old"):
        path.with_name(name).symlink_to(tmp_path / "others")
    with record(path):
        ask("b")
        assert path.read_bytes() == before == path.with_name("run.jsonl.partial.old").read_bytes()
    assert answers(path) == ["b v2"]
    assert not (tmp_path / "others").exists()
    with record(path):
        assert [one.stat().st_mode & 0o77 for one in path.parent.iterdir()] == [0, 0, 0]


def test_a_killed_recording_leaves_what_it_had_recorded(path):
    script = f"""
        import os, signal
        from agent_cache.recording import intercept, record
        @intercept(name="ask")
        def ask(question): return question + "?"
        @intercept(name="outer")
        def outer():
            ask("c")
            os.kill(os.getpid(), signal.SIGKILL)
        with record({str(path)!r}):
            ask("a"); ask("b"); outer()
    """
    run = python("-c", textwrap.dedent(script))
    assert run.returncode == -signal.SIGKILL
    partial = path.with_name("run.jsonl.partial")
    assert Cassette.load(partial).is_partial
    assert answers(partial) == ["a?", "b?", "c?"]
    with replay(partial):
        assert [ask("a"), ask("b")] == ["a?", "b?"]
    with pytest.raises(CassetteNotFound, match=r"run\.jsonl\.partial"), replay(path):
        pass
    assert len(a_recording(path, "d")) == 3
    assert Cassette.load(partial.with_name(partial.name + ".old")).num_steps == 3, "nothing is lost"


async def test_a_run_that_ends_early_leaves_a_whole_cassette(path):
    @intercept(name="wait")
    async def wait() -> None:
        await asyncio.Event().wait()

    async def agent() -> None:
        with record(path):
            ask("a")
            waiting.append(asyncio.create_task(wait()))
            await asyncio.sleep(0)
            asyncio.current_task().cancel()
            await asyncio.sleep(0)

    waiting: list[asyncio.Task[None]] = []
    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(agent())
    waiting[0].cancel()
    cassette = Cassette.load(path)
    assert (cassette.num_steps, cassette.trailer.ended) == (2, "raised CancelledError")
    assert cassette[1].outcome == {"unfinished": True}


def test_a_child_that_was_forked_adds_nothing_to_the_recording(path):
    with record(path):
        ask("a")
        child = os.fork()
        if not child:
            ask("of the child")
            os._exit(0)
        os.waitpid(child, 0)
        ask("b")
    assert answers(path) == ["a v1", "b v1"]


def full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_full_disk_stops_the_recording_and_not_the_agent(path, monkeypatch):
    with pytest.raises(CassetteError, match="No space left") as caught, record(path):
        ask("a")
        monkeypatch.setattr("agent_cache.recording.partial_file.PartialFile.append", full)
        assert ask("b") == "b v1"
        assert ask("c") == "c v1"
    assert caught.value.path == str(path)
    assert not path.exists()
    assert answers(path.with_name("run.jsonl.partial")) == ["a v1"]


def test_a_system_that_takes_a_line_in_parts_gets_all_of_it(path, monkeypatch):
    write = os.write
    with monkeypatch.context() as patch, record(path):
        patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:9]))
        ask("a")
    assert answers(path) == ["a v1"]


def test_a_save_that_fails_leaves_the_old_file(path, monkeypatch):
    before = b"".join(a_recording(path, "a"))
    cassette = Cassette.load(path)
    monkeypatch.setattr("agent_cache.recording.partial_file.PartialFile.append", full)
    with pytest.raises(CassetteError, match="No space left"):
        cassette.save(path)
    assert path.read_bytes() == before
    assert [one.name for one in path.parent.iterdir()] == [path.name]


# One recorder a path


def test_a_recorder_or_a_replay_of_a_path_that_is_being_recorded_is_refused(path):
    script = f"from agent_cache.recording import record\nwith record({str(path)!r}): pass"
    with record(path):
        for block in (record(path), record(path, mode="new_episodes"), replay(path)):
            with pytest.raises(CassetteError, match="is being recorded"), block:
                pass
        run = python("-c", script)
        assert "is being recorded by another recorder" in run.stderr
        ask("a")
    assert answers(path) == ["a v1"]


def test_a_block_is_entered_once(path):
    block = record(path)
    with block, pytest.raises(CassetteError, match="entered already"):
        block.__enter__()
    with pytest.raises(CassetteError, match="not entered"):
        block.__exit__(None, None, None)


def test_where_a_link_leads_to_is_recorded_and_the_link_stays(tmp_path):
    link, file = tmp_path / "link.jsonl", tmp_path / "there" / "run.jsonl"
    link.symlink_to(file)
    with record(link) as recorder:
        ask("a")
        assert len(recorder.steps) == 1
        with pytest.raises(CassetteError, match="is being recorded"):
            Cassette().save(file)
    assert link.is_symlink()
    assert len(Cassette.load(file)) == 1


# Files that are none, and files that were edited


HEADER = b'{"agent_cache_cassette":2,"log":true}\n'
CALL = b'{"id":1,"kind":"call","name":"ask","digest":"00","outcome":{"value":1}}\n'

BROKEN = {
    "empty": (b"", "is empty", 0),
    "yaml": (b"interactions:\n- request: {}\n", "no cassette.*cassette convert", 1),
    "a pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git LFS.*git lfs pull", 1),
    "json that is something else": (b'{"a": 1}', "no cassette of agent-cache or agentcassette", 1),
    "a header that breaks off": (b'{"agent_cache_cassette":2,"rec', "truncated", 1),
    "a newer version": (b'{"agent_cache_cassette":3,"shiny":true}\n', "version 3.*; update agent-cache", 1),
    "an older version": (b'{"agent_cache_cassette":1}\n', "version 1, and this agent-cache reads 2$", 1),
    "a conflict in the header": (b"<<<<<<< HEAD\n" + HEADER, "merge conflict", 1),
    "a conflict": (HEADER + CALL + b"<<<<<<< HEAD\n" + CALL + b"=======\n>>>>>>> theirs\n", "merge conflict", 3),
    "a broken line": (HEADER + b'{"id":1,\n' + CALL, "broken", 2),
    "names that are none": (HEADER[:-2] + b',"redact":{"names":5}}\n', "invalid redaction rules", 1),
    "one id twice": (HEADER + CALL + CALL, "id 1", 3),
    "more after the end": (HEADER + b'{"trailer":{"calls":0}}\n' + CALL, "follows the trailer: use one of", 3),
    "two that git has merged": (HEADER + HEADER + CALL, "second header.* use one of", 2),
    "formatted": (json.dumps(json.loads(HEADER), indent=2).encode(), "no header in its first line.*formatted", 1),
    "without a header": (CALL + CALL, "no header in its first line", 1),
    "agentcassette, of the future": (b'{"version": 999, "steps": []}', "enum value 999", 1),
    "agentcassette, without a name": (b'{"version": 1, "steps": [{"arguments": {}}]}', "`name`", 1),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_cassette_is_refused_with_its_line_and_left_alone(name, path):
    content, message, line = BROKEN[name]
    path.parent.mkdir()
    path.write_bytes(content)
    for block in (replay(path), record(path, mode="new_episodes"), record(path, mode="all")):
        with pytest.raises(CassetteError, match=message) as caught, block:
            pass
        assert (caught.value.path, caught.value.line) == (str(path), line)
        assert str(path) in str(caught.value)
    assert path.read_bytes() == content
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_a_file_that_is_no_recording_is_not_written_over(tmp_path):
    path = tmp_path / "agent.py"
    path.write_text("# the work of a week")
    for write in (record(path).__enter__, lambda: Cassette().save(path)):
        with pytest.raises(CassetteError, match=r"would be lost.*no recording"):
            write()
    assert path.read_text() == "# the work of a week"


def test_a_cassette_may_be_edited_by_hand_and_a_last_line_that_breaks_off_is_dropped(path):
    lines = a_recording(path, "a", "b", "c")
    path.write_bytes(lines[0] + lines[1] + lines[3].replace(b"c v1", b"new") + b"\n" + lines[4])
    with replay(path, strict=True):
        assert [ask("a"), ask("c")] == ["a v1", "new"]
    path.write_bytes(
        b"\xef\xbb\xbf" + b"\r\n".join(json.dumps(json.loads(one), sort_keys=True).encode() for one in lines)
    )
    with replay(path, strict=True):
        assert [ask(one) for one in "abc"] == ["a v1", "b v1", "c v1"]
    path.write_bytes(b'\xef\xbb\xbf{"version": 1, "steps": []}')
    assert len(Cassette.load(path)) == 0, "of agentcassette"
    path.write_bytes(lines[0] + lines[1].replace(b'"a"', b'"b"', 1))
    with pytest.raises(DivergenceError, match=r"the line was edited; Cassette\.redact"), replay(path):
        ask("b")
    Cassette.load(path).redact().save(path)
    with replay(path):
        assert ask("b") == "a v1"
    path.write_bytes(b"".join(lines[:2]) + lines[2][:30])
    cassette = Cassette.load(path)
    assert (cassette.num_steps, cassette.is_partial) == (1, True)
    with pytest.raises(DivergenceError, match="was not recorded until the recording was killed"), replay(path):
        assert ask("a") == "a v1"
        ask("b")


OUTCOMES = [
    {}, {"novel": 1}, {"error": 5}, {"error": {"type": "builtins:KeyError", "args": 7}}, {"object": [["a"], 5]},
    {"stream": 5}, {"stream": {"chunks": [5], "end": {}}}, {"value": 1, "instead": 3}, {"error": None},
]  # fmt: skip


@pytest.mark.parametrize("outcome", OUTCOMES, ids=json.dumps)
def test_an_outcome_that_is_none_is_refused_with_its_line(outcome, path):
    lines = a_recording(path, "a")
    path.write_bytes(b"".join([lines[0], json.dumps(json.loads(lines[1]) | {"outcome": outcome}).encode() + b"\n"]))
    with pytest.raises(CassetteError) as caught, replay(path):
        try:
            ask("a")
        except CassetteError:
            pass
    assert (caught.value.path, caught.value.line) == (str(path), 2)
