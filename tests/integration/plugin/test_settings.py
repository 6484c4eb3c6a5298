"""Which cassette a test has, and how it is used."""

from __future__ import annotations

import textwrap

import pytest

from agent_cache.recording import Cassette
from tests.harness.slow import slow_rows

pytest_plugins = ["pytester"]

ASK = """
    import pytest
    from shop import ask

    {mark}
    def test_it():
        ask("a")
"""
FIXTURE = """
    @pytest.fixture
    def agent_cache_config():
        return {options}
"""


def test_the_path_of_a_cassette(suite):
    marks = (
        "agent_cassette('a/named.jsonl')",
        "agent_cassette(path='fixtures/x.jsonl')",
        "replay('fixtures/y.jsonl')",
    )
    for number, mark in enumerate(marks):
        text = ASK.format(mark=f"@pytest.mark.{mark}").replace("test_it", f"test_{number}")
        suite.write("test_ask.py", (suite.path / "test_ask.py").read_text() + textwrap.dedent(text) if number else text)
    suite.twice(calls=3, passed=3)
    assert suite.cassettes == ["cassettes/test_ask/a/named.jsonl", "fixtures/x.jsonl", "fixtures/y.jsonl"]


def test_a_test_may_open_its_recording_itself(suite):
    text = ASK.replace("test_it():\n", 'test_it(request):\n        request.getfixturevalue("agent_cassette")\n')
    suite.write("test_ask.py", text.format(mark=""))
    suite.twice(calls=1)


def test_classes_and_parameters_are_in_the_name_and_no_two_names_become_one(suite):
    suite.write(
        "test_ask.py",
        """
        import pytest
        from shop import ask

        @pytest.mark.agent_cassette
        class TestOuter:
            class TestInner:
                @pytest.mark.parametrize("what", ["plain", "a/b", "a:b", "../../x", "ä", "x" * 300])
                def test_it(self, what):
                    assert ask(what).endswith(what)
        """,
    )
    suite.twice(calls=6, passed=6)
    names = [name.removeprefix("cassettes/test_ask/") for name in suite.cassettes]
    assert "TestOuter.TestInner.test_it[plain].jsonl" in names
    assert len(names) == 6
    assert all(name.startswith("TestOuter.TestInner.test_it[") and len(name) < 160 for name in names)
    assert not any(set(name) & set('/\\:*?"<>| ') or not name.isascii() for name in names)


def test_the_closest_marker_wins_option_by_option(suite):
    far = 'pytestmark = pytest.mark.agent_cassette(path="far.jsonl", mode="once", model="far", allow_unplayed=True)'
    suite.write("test_ask.py", ASK.format(mark=f'{far}\n\n    @pytest.mark.agent_cassette("near", model="near")'))
    suite.run(passed=1)  # mode="once" from far away
    assert suite.cassettes == ["cassettes/test_ask/near.jsonl"]
    assert Cassette.load(suite.path / suite.cassettes[0]).model == "near"


@pytest.mark.parametrize(
    ("arguments", "fixture", "mark", "ini", "records"),
    [
        ((), None, "mode='none'", "agent_record_mode = once", False),
        ((), {"mode": "once"}, "mode='none'", "", True),
        (("--agent-record-mode=none",), {"mode": "once"}, "mode='once'", "agent_record_mode = once", False),
        *slow_rows(
            ((), None, "", "agent_record_mode = once", True),
            (("--agent-record-mode=once",), {"mode": "none"}, "mode='none'", "agent_record_mode = none", True),
        ),
    ],
)
def test_the_command_line_goes_before_the_fixture_before_the_marker_before_the_ini_file(
    suite, arguments, fixture, mark, ini, records
):
    text = ASK.format(mark=f"@pytest.mark.agent_cassette({mark})")
    suite.write("test_ask.py", text + (FIXTURE.format(options=fixture) if fixture else ""))
    with (suite.path / "pytest.ini").open("a") as file:
        file.write(ini + "\n")
    suite.run(*arguments, **({"passed": 1} if records else {"errors": 1}))
    assert bool(suite.cassettes) == records


def test_secrets_are_named_in_the_ini_file_in_the_fixture_and_in_the_marker(suite):
    text = ASK.format(mark="@pytest.mark.agent_cassette(mode='rewrite'{more})")
    for ini, more, fixture in (
        (("-o", "agent_cassette_redact=question pin"), "", ""),
        ((), ", redact=['question']", ""),
        ((), "", FIXTURE.format(options={"redact": ["question"]})),
    ):
        suite.write("test_ask.py", text.format(more=more) + fixture)
        suite.run(*ini, passed=1)
        (call,) = Cassette.load(suite.path / "cassettes/test_ask/test_it.jsonl")
        assert call.arguments == {"question": "[redacted]"}


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("agent_cassette(mode='onec')", "mode must be one of none, once, new_episodes, all, rewrite, got 'onec'"),
        ("agent_cassette(record_mode='once')", "does not know 'record_mode'; it knows name, path, mode, strict"),
        ("replay", "takes one name or path"),
        ("agent_live", "needs a reason"),
        *slow_rows(
            ("agent_cassette('a', path='b')", "takes one name or path"),
            ("agent_cassette(strict='yes')", "strict must be one of True, False"),
            ("agent_cassette(7)", "must be a text"),
            ("agent_baseline(7)", "path must be a text, got 7"),
            ('agent_baseline(fail_on="error")', "fail_on must be one of info, warning, critical, got 'error'"),
            ("agent_baseline(tolerance=0.2)", "tolerance must be a Tolerance, or the path of a file, got 0.2"),
        ),
    ],
)
def test_a_marker_that_cannot_work_stops_the_collection_and_names_the_test(suite, mark, message):
    suite.write("test_ask.py", ASK.format(mark=f"@pytest.mark.{mark}"))
    result = suite.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: test_ask.py::test_it: @pytest.mark.{mark.partition('(')[0]}*{message}*"])
    assert suite.live == []


@pytest.mark.slow
def test_a_rewrite_of_a_shared_cassette_is_refused_before_anything_is_lost(suite):
    mark = "pytestmark = pytest.mark.replay('x.jsonl', allow_unplayed=True)"
    suite.write("test_ask.py", ASK.format(mark=mark) + "\n    def test_2():\n        ask('b')\n")
    suite.run("--agent-record-mode=new_episodes", passed=2)
    suite.run(passed=2)
    suite.write("test_ask.py", ASK.format(mark=mark) + "\n    def test_2():\n        ask('c')\n")
    suite.run(passed=1, failed=1).stdout.fnmatch_lines(["*pytest --agent-record-mode=new_episodes test_ask.py::test_2"])
    result = suite.run("--agent-record-mode=rewrite", errors=2)
    result.stdout.fnmatch_lines(["*CassetteError: *x.jsonl: is the cassette of test_ask.py::test_2, too*"])
    assert len(Cassette.load(suite.path / "x.jsonl")) == 2
