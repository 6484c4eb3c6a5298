"""`agent-cache drift` and `agent-cache drift accept`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_cache import AgentCacheSession
from agent_cache.__main__ import main
from agent_cache.recording import Baseline, CassetteNotFound, DriftDetector, DriftEvent, intercept, record
from agent_cache.resume import Journal

SECRET = "sk-" + "a1b2c3d4" * 4


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run `agent-cache ...`: exit code, stdout, stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(one) for one in arguments])
        return code, *capsys.readouterr()

    return run


@intercept(name="shop:refund", kind="write")
def refund(order_id: str) -> str:
    return "done"


@intercept(name="shop:show")
def show(order_id: str) -> dict[str, Any]:
    return {"id": order_id, "status": "late"}


def run_of(path: str, *orders: str, refunds: str = "W1", fails: bool = False) -> Path:
    """Record an agent that shows these orders and refunds one."""
    try:
        with record(path):
            for order in orders:
                show(order)
            refund(refunds)
            if fails:
                raise LookupError("no such customer")
    except LookupError:
        pass
    return Path(path)


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths of these tests are names in the folder in which runs are recorded."""
    monkeypatch.chdir(tmp_path)
    run_of("base.jsonl", "W1", "W2")
    run_of("same.jsonl", "W1", "W2")
    run_of("read.jsonl", "W1", "W9")
    run_of("write.jsonl", "W1", "W2", refunds="W9")


# drift


@pytest.mark.parametrize(
    ("new", "fail_on", "code"),
    [("same", "info", 0), ("read", "", 1), ("read", "critical", 0), ("write", "", 1), ("write", "critical", 1)],
)
@pytest.mark.parametrize("form", ["text", "json"])
def test_the_exit_code_says_whether_there_is_drift_that_fails(new, fail_on, code, form, command):
    options = ("--fail-on", fail_on) if fail_on else ()
    assert command("drift", "check", "base.jsonl", f"{new}.jsonl", *options, "--format", form)[0] == code


def test_the_text_and_the_document_name_both_and_each_drift_and_the_verdict(command):
    code, out, err = command("drift", "check", "base.jsonl", "write.jsonl")
    lines = out.splitlines()
    assert (code, err) == (1, "")
    assert lines[:2] == ["--- base.jsonl  1 run", "+++ write.jsonl  3 calls"]
    assert all(line.startswith("critical  ") and "refund" in line for line in lines[2:-1])
    assert lines[-1] == "drift: 1 critical, 0 warning, 0 info (fails on warning)"
    out = command("drift", "check", "base.jsonl", "read.jsonl", "--fail-on", "critical")[1]
    assert out.splitlines()[-1].startswith("no drift that fails: 0 critical, ")
    assert command("drift", "check", "base.jsonl", "same.jsonl")[1].endswith("The run does as the baseline.\n")
    document = json.loads(command("drift", "check", "base.jsonl", "write.jsonl", "--format", "json")[1])
    (drift,) = document.pop("drifts")
    assert document == {
        "baseline": ["base.jsonl"], "new": "write.jsonl", "fail_on": "warning", "has_drifted": True, "calls": 3,
        "worst": "critical", "counts": {"critical": 1, "warning": 0, "info": 0},
    }  # fmt: skip
    assert list(drift) == list(DriftEvent.__struct_fields__)
    assert (drift["severity"], drift["name"], drift["event_type"]) == ("critical", "shop:refund", "write")


def test_a_folder_is_a_baseline_of_all_its_runs(command):
    for number, refunds in ((1, "W1"), (2, "W1"), (10, "W1")):
        run_of(f"base/{number}.jsonl", "W1", "W2", refunds=refunds)
    Path("base/notes.txt").write_text("no run")
    code, out, _ = command("drift", "check", "base", "base.jsonl", "same.jsonl", "--format", "json")
    assert code == 0
    assert json.loads(out)["baseline"] == ["base/1.jsonl", "base/2.jsonl", "base/10.jsonl", "base.jsonl"]
    assert DriftDetector("base").drifts == Baseline.load("base", "base.jsonl").compare("same.jsonl") == []
    with pytest.raises(CassetteNotFound, match="there is no baseline"):
        Baseline.load("base", "no such folder")


def test_a_run_that_ended_by_an_error_drifts_from_those_that_did_not(command):
    run_of("failed.jsonl", "W1", "W2", fails=True)
    code, out, _ = command("drift", "check", "base.jsonl", "failed.jsonl", "--fail-on", "critical")
    assert code == 1
    assert "critical  the run raised LookupError, and the baseline returned" in out
    assert command("drift", "check", "failed.jsonl", "failed.jsonl")[0] == 0
    assert command("drift", "check", "failed.jsonl", "base.jsonl")[0] == 1


def torn(path: str) -> Path:
    """A run whose process was killed while it was recorded."""
    lines = Path(path).read_bytes().splitlines(keepends=True)
    target = Path("torn.jsonl")
    target.write_bytes(b"".join(lines[:-1]))
    return target


BAD = [
    ("base.jsonl no.jsonl", "no.jsonl"),
    ("no$ same.jsonl", "no$: there is no baseline; `agent-cache drift accept RUN --as 'no$'` makes one"),
    ("empty same.jsonl", "empty: has no accepted run"),
    ("base.jsonl empty", "empty: cannot be read: it is not a regular file"),
    ("base.jsonl torn.jsonl", "torn.jsonl: "),
    ("torn.jsonl same.jsonl", "torn.jsonl: "),
    ("base.jsonl broken.jsonl", "broken.jsonl"),
    ("base.jsonl other.jsonl", "another agent"),
    ("base.jsonl same.jsonl --tolerance bad.toml", "fail_at"),
    ("base.jsonl same.jsonl --tolerance no.toml", "no.toml"),
]


@pytest.mark.parametrize(("arguments", "text"), BAD)
@pytest.mark.parametrize("form", ["text", "json"])
def test_where_drift_cannot_be_told_the_exit_code_is_2_in_every_form(arguments, text, form, command, cassette):
    Path("empty").mkdir()
    torn("same.jsonl")
    Path("broken.jsonl").write_text('{"agent_cache_cassette": 2}\n{"id": \n')
    Path("bad.toml").write_text('fail_at = "critical"\n')
    cassette("other.jsonl", "who")
    code, out, err = command("drift", "check", *arguments.split(), "--format", form)
    assert code == 2
    assert text in err
    assert "Traceback" not in err
    assert out == "" if form == "text" else text in json.loads(out)["error"]


# baseline accept


def names(folder: str = ".") -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file())


def test_an_old_baseline_is_neither_replaced_nor_extended_unless_that_is_said(command):
    for target in ("baseline", "baseline.jsonl"):
        command("drift", "accept", "base.jsonl", "--as", target)
    before = {path: path.read_bytes() for path in (Path("baseline/1.jsonl"), Path("baseline.jsonl"))}
    for target, texts in (("baseline", ("--add", "--replace", "1 accepted run")), ("baseline.jsonl", ("--replace",))):
        code, out, err = command("drift", "accept", "write.jsonl", "--as", target)
        assert (code, out) == (2, "")
        assert all(text in err for text in texts)
    assert {path: path.read_bytes() for path in before} == before
    code, out, _ = command("drift", "accept", "write.jsonl", "--as", "baseline", "--replace")
    accepted, text, *lines = out.splitlines()
    assert (code, text) == (0, "It differs from the old baseline:")
    assert accepted == "accepted  write.jsonl -> baseline/1.jsonl  3 calls, instead of 1 run"
    assert all(line.startswith("critical  ") for line in lines)
    assert command("drift", "check", "baseline", "write.jsonl")[0] == 0
    assert command("drift", "accept", "write.jsonl", "--as", "baseline.jsonl", "--replace")[0] == 0
    assert command("drift", "check", "baseline.jsonl", "write.jsonl")[0] == 0


def test_a_run_is_accepted_a_further_one_is_added_and_what_varies_is_said_and_tolerated(command):
    accepted = 0, "accepted  base.jsonl -> baseline/1.jsonl  3 calls\n", ""
    assert command("drift", "accept", "base.jsonl", "--as", "baseline") == accepted
    code, out, _ = command("drift", "accept", "read.jsonl", "--as", "baseline", "--add")
    lines = out.splitlines()
    assert (code, lines[0]) == (0, "accepted  read.jsonl -> baseline/2.jsonl  3 calls")
    assert lines[1] == "Tolerated from now on:"
    assert all(line.startswith("warning   ") for line in lines[2:])
    assert names("baseline") == ["1.jsonl", "2.jsonl"]
    for run in ("base.jsonl", "read.jsonl"):
        assert command("drift", "check", "baseline", run, "--fail-on", "info")[0] == 0
    assert command("drift", "check", "baseline", "write.jsonl")[0] == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("torn.jsonl", "torn.jsonl: "),
        ("failed.jsonl", "it raised LookupError; --failed accepts it all the same"),
        ("no.jsonl", "no.jsonl: "),
        ("nothing.jsonl", "nothing.jsonl: has no calls"),
        ("other.jsonl", "another agent"),
    ],
)
def test_a_run_that_is_not_fit_is_refused_and_nothing_changes(path: str, text: str, command, cassette):
    command("drift", "accept", "base.jsonl", "--as", "baseline")
    torn("same.jsonl")
    run_of("failed.jsonl", "W1", fails=True)
    cassette("nothing.jsonl")
    cassette("other.jsonl", "who")
    before = names()
    code, out, err = command("drift", "accept", "read.jsonl", path, "--as", "baseline", "--add")
    assert (code, out) == (2, "")
    assert text in err
    assert names() == before
    if path == "failed.jsonl":
        assert command("drift", "accept", path, "--as", "baseline", "--add", "--failed")[0] == 0


def test_a_run_with_secrets_is_refused_with_the_command_that_removes_them(command):
    with record("leak.jsonl", redact=None):
        show("W1")
    path = Path("leak.jsonl")
    path.write_text(path.read_text().replace('"late"', json.dumps(SECRET)))
    code, out, err = command("drift", "accept", "base.jsonl", "leak.jsonl", "--as", "baseline")
    assert (code, err) == (1, "")
    assert SECRET not in out
    assert "secret  leak.jsonl: 1 x shop:show outcome.value.status" in out
    assert not Path("baseline").exists()
    advice = out.splitlines()[-1].partition(": ")[2]
    assert advice == "agent-cache cassette redact leak.jsonl"
    assert main(shlex.split(advice)[1:]) == 0
    assert command("drift", "accept", "base.jsonl", "leak.jsonl", "--as", "baseline")[0] == 0


async def test_a_journal_is_a_run_once_it_has_ended(command):
    async def run(session: str) -> str:
        async with AgentCacheSession(session, journal=Journal("journals")):
            show("W1")
        return f"journals/{session}.jsonl"

    first, second = await run("one"), await run("two")
    assert command("drift", "accept", first, "--as", "baseline")[0] == 0
    assert command("drift", "check", "baseline", second)[0] == 0
    assert '"secret"' not in Path("baseline/1.jsonl").read_text()  # the key of the run
    *lines, _ = Path(second).read_bytes().splitlines(keepends=True)
    Path(second).write_bytes(b"".join(lines))
    for arguments in (("check", "baseline", second), ("accept", second, "--as", "baseline", "--replace")):
        code, _, err = command("drift", *arguments)
        assert code == 2
        assert f"{second}: " in err
