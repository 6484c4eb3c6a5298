"""The rules of a toolbox in a TOML file."""

import os
from pathlib import Path
from typing import Any

import pytest

from agent_cache import ConfigurationError, Toolbox, configure, testing
from agent_cache.remote import MemoryTier
from agent_cache.toolbox import Read, Watch, Write

RULES = """
namespace = "git"
hints = "kind"
unknown = "watch"
on_loop = "notice"
[tools.git_log]
kind = "read"
tags = ["repo:{repo_path}"]
ttl = 60
[tools."git_*"]
kind = "write"
tags = ["repo:{repo_path}"]
[tools.get_current_time]
kind = "watch"
loop = { poll = true }
[tools.handoff]
kind = "pass"
"""


def written(directory: Path, text: str) -> Path:
    path = directory / "rules.toml"
    path.write_text(text, "utf-8")
    return path


def test_a_file_gives_the_rules_that_it_says(tmp_path: Path):
    path = written(tmp_path, RULES)
    box = Toolbox.from_file(path)
    assert box.namespace == "git"
    log, add, clock = box.rule("git_log"), box.rule("git_add"), box.rule("get_current_time")
    assert isinstance(log, Read)
    assert log.decorator.policy.ttl == 60
    assert isinstance(add, Write)
    assert isinstance(clock, Watch)
    assert clock.decorator.policy.loop.poll
    assert box.rule("handoff").kind == "pass"
    assert box.rule("other").kind == "watch"
    assert box.rule("other", {"readOnlyHint": False}).kind == "write"


async def test_the_variables_named_by_vary_keep_entries_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    names = ("RULES_TENANT", "RULES_TEAM")
    rules = 'namespace = "v"\nvary = ["env:RULES_TENANT", "env:RULES_TEAM"]\n[tools.get]\nkind = "read"\ntags = ["t"]'
    path, hashes, called = written(tmp_path, rules), [], []
    with configure(remote=MemoryTier()):
        for values in (("a", None), (None, "a"), (None, None), ("", None), ("a", None)):
            for name, value in zip(names, values, strict=True):
                monkeypatch.delenv(name, raising=False)
                if value is not None:
                    monkeypatch.setenv(name, value)
            box = Toolbox.from_file(path)

            async def run(values: Any = values) -> Any:
                called.append(values)
                return [*values]

            assert await box.call("get", {}, run) == [*values]
            hashes.append(box.rule("get").decorator.policy.vary())  # type: ignore[union-attr]  # of a read
    assert len(called) == len({*hashes}) == 4
    assert all(len(one) == 64 for one in hashes)


async def test_a_file_names_the_function_that_says_whether_an_answer_still_holds(tmp_path: Path, monkeypatch):
    module = (
        "asked = []\ndef holds(answer, **arguments):\n    asked.append((answer, arguments))\n    return len(asked) != 2"
    )
    (tmp_path / "rules_checks.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    rule = 'namespace = "v"\n[tools.get]\nkind = "read"\ntags = ["t"]\nttl = 60\nvalidate = "rules_checks:holds"'
    box, runs = Toolbox.from_file(written(tmp_path, rule)), []

    async def get() -> int:
        runs.append(1)
        return len(runs)

    with testing.FakeClock() as clock:
        answers = []
        for _ in range(4):
            answers.append(await box.call("get", {"page": 7}, get))
            clock.advance(61)
    import rules_checks  # type: ignore[import-not-found]

    assert answers == [1, 1, 2, 2]
    assert rules_checks.asked == [(1, {"page": 7}), (1, {"page": 7}), (2, {"page": 7})]


async def test_closing_a_toolbox_closes_the_tier_of_its_file_and_no_other(tmp_path: Path):
    pytest.importorskip("redis")
    rules = 'namespace = "r"\nremote = "redis://127.0.0.1:1/0"\n[tools.get]\nkind = "read"\ntags = ["t"]'
    box = Toolbox.from_file(written(tmp_path, rules))
    rule = box.rule("get")
    assert isinstance(rule, Read)
    tier: Any = rule.decorator.tiers[-1]
    await box.aclose()
    assert tier.is_closed
    await Toolbox({"get": Read("t")}, namespace="r").aclose()


@pytest.mark.parametrize("is_absolute", [False, True])
async def test_a_file_of_answers_is_found_from_that_of_the_rules(tmp_path: Path, monkeypatch, is_absolute: bool):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    place = tmp_path / "shared.db"
    address = f"sqlite:///{place}" if is_absolute else "sqlite:///shared.db"
    rules = f'namespace = "r"\nremote = "{address}"\n[tools.get]\nkind = "read"\ntags = ["t"]'
    own = "\n[tools.note]\nkind = 'read'\ntags = ['t']\nscope = 'session'"
    box = Toolbox.from_file(os.path.relpath(written(tmp_path, rules + own)))
    assert place.is_file()
    assert [len(box.rule(name).decorator.tiers) for name in ("get", "note")] == [1, 0]  # type: ignore[union-attr]
    await box.aclose()


A = "namespace = 'a'\n"
X = f"{A}[tools.x]\n"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("namespace = ", r"rules\.toml: the file of rules is no TOML"),
        (
            "[tools.x]\nkind = 'pass'\nnamespace = 'a'",
            r"rules\.toml: namespace must be a name .*, above all \[tables\]",
        ),
        (A + "hint = 'kind'", r"'hint' is not known here; is 'hints' meant"),
        (A + "hints = 'all'", r"hints must be one of 'off', 'kind'"),
        (A + "unknown = 'read'", r"unknown must be one of"),
        (A + "vary = 'env:X'", r"vary must be a list"),
        (A + "vary = ['X']", r"vary must be a list such as"),
        (A + "remote = 7", r"remote must be the address"),
        (A + "remote = 'mysql://h'", r"remote is no address of a tier: .* redis://.* sqlite:///PATH"),
        (A + "remote = 'sqlite:///a.db?x=1'", r"remote is no address of a tier: .* a path and"),
        (A + "tools = 7", r"tools must be a table"),
        (A + "[tools.'']\nkind = 'watch'", r'rules\.toml: \[tools\.""\] is of no tool'),
        (A + "[tools]\nx = 'read'", r"tools\.x: a tool is a table with a kind"),
        (A + "[tools.x.y]\nkind = 'pass'", r"tools\.x: a tool is a table with a kind, .*; dots need quotes"),
        (X + "kind = 'cache'", r"tools\.x: kind must be one of"),
        (X + "kind = 'read'", r"tools\.x: tags must be a list"),
        (X + "kind = 'read'\ntags = 'a'", r"tools\.x: tags must be a list"),
        (X + "kind = 'read'\ntags = ['a:']", r"tools\.x: .*empty parts"),
        (X + "kind = 'read'\ntags = ['a']\nttl = 'x'", r"tools\.x: .*ttl must be seconds"),
        (X + "kind = 'read'\ntags = ['a']\ntl = 5", r"tools\.x: 'tl' is not known here; is 'ttl'"),
        (X + "kind = 'read'\ntags = ['a']\nvalidate = 7", r"tools\.x: validate must name a function, .*; 7: "),
        (X + "kind = 'read'\ntags = ['a']\nvalidate = 'os:nothing'", r"tools\.x: validate must name a function"),
        (X + "kind = 'read'\ntags = ['a']\nvalidate = 'no.such:thing'", r"tools\.x: validate must name a function"),
        (X + "kind = 'read'\ntags = ['a']\nvalidate = 'os'", r"tools\.x: .*validate"),
        (X + "kind = 'write'\ntags = ['a']\nttl = 5", r"tools\.x: 'ttl' is not known here"),
        (X + "kind = 'watch'\nloop = true", r"tools\.x: loop must be a table"),
        (X + "kind = 'watch'\nloop = { max_unchanged = 3 }", r"tools\.x: LoopHints: .*poll=True"),
        (X + "kind = 'watch'\nloop = { pol = true }", r"tools\.x: 'loop\.pol' is not known here; is 'poll' meant"),
        (X + "inner = 'x'", r"tools\.x: inner must be a table"),
        (X + "inner = { tool = 1, arguments = 2 }", r"tools\.x: Inner: tool must be a str"),
        (X + "inner = { tool = 'a' }", r"tools\.x: Inner: arguments must be a str"),
        (X + "inner = { tool = 'a', args = 'b' }", r"tools\.x: 'inner\.args' is not known here; is 'arguments' meant"),
        (X + "kind = 'read'\ntags = ['a:{}']", r"tools\.x: .*fields \{a\}"),
        (X + "kind = 'write'\ntags = ['a:*']", r"tools\.x: .*wildcards"),
        (
            X + "kind = 'read'\ntags = ['a']\nvalidate = 'this_raises:f'",
            r"tools\.x: validate .* RuntimeError\('boom'\)",
        ),
        (A + "remote = 'sqlite:///~nobody-of-this-name/a.db'", r"rules\.toml: remote is no address"),
    ],
)
def test_a_mistake_is_named_with_its_key_and_its_fix(tmp_path: Path, monkeypatch, text: str, match: str):
    (tmp_path / "this_raises.py").write_text("raise RuntimeError('boom')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError, match=match):
        Toolbox.from_file(written(tmp_path, text))


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path):
    path = written(tmp_path, "\ufeffnamespace = 'a'\non_loop = 'warn'")
    assert Toolbox.from_file(path).namespace == "a"
