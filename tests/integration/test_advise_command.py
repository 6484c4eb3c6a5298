"""`agent-cache advise` through the real command line: its rules run, its check finds the tags that are missing."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from agent_cache import Toolbox
from agent_cache.advise.calls import LoggedCall
from agent_cache.advise.replay_check import tags_of
from tests.harness import shop_days
from tests.harness.forks import forks
from tests.harness.shop_days import written
from tests.harness.slow import slow

ROOT = Path(__file__).parents[2]
IMPORTS = ["agent_cache.cli.advise", "agent_cache.cli.mcp_relay", "agent_cache.advise.replay_check"]


def day(seed: int, agents: int = 30) -> list[shop_days.Call]:
    """A short day: most commands here read one."""
    return shop_days.day(seed, agents)


class Ran:
    """What a command has printed, and how it ended."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr
        assert "Traceback" not in self.err, self.err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def agent_cache(folder: Path, *arguments: object) -> Ran:
    """Run the command in a folder, with warnings as errors."""
    environment = {**os.environ, "NO_COLOR": "", "PYTHONWARNINGS": "error"}
    environment.pop("COLUMNS", None)
    return Ran(forks().run("-m", "agent_cache", *arguments, folder=folder, environment=environment, imports=IMPORTS))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the log of a day, ``day.jsonl``, and with that of another one, ``other.jsonl``."""
    folder = tmp_path_factory.mktemp("advise")
    written(folder / "day.jsonl", day(1))
    written(folder / "other.jsonl", day(2))
    return folder


@pytest.fixture(scope="module")
def advised(folder: Path) -> dict[str, Path]:
    """The rules of that day, by the format."""
    files = {"python": "advised.py", "toml": "advised.toml", "json": "advised.json"}
    for form, name in files.items():
        ran = agent_cache(folder, "advise", "day.jsonl", "--format", form, "-o", name)
        assert ran.code == 0, ran.err
        assert ran.out == ""
    return {form: folder / name for form, name in files.items()}


def module_of(path: Path) -> Any:
    """A module, executed."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def flat(text: str) -> str:
    """Comments as running text."""
    return " ".join(text.replace("#", " ").split())


# The rules


@pytest.mark.usefixtures("advised")
@pytest.mark.parametrize("target", ["advised.py", "advised.toml"])
def test_the_rules_of_a_day_give_no_stale_answer_on_the_next_one(folder: Path, target: str) -> None:
    ran = agent_cache(folder, "advise", "--check", target, "other.jsonl", "--format", "json")
    assert ran.code == 0, (ran.out, ran.err)
    found = ran.json
    assert found["stale"] == 0
    assert found["hits"] > 100
    assert found["without_rule"] == found["without_calls"] == found["stale_answers"] == []


def test_the_python_form_is_decorated_functions_of_these_names_and_parameters(advised: dict[str, Path]) -> None:
    module = module_of(advised["python"])
    assert "order:{order_id}" in module.get_order.resource
    assert module.get_order.__agent_cache__.is_read
    assert not module.cancel_order.__agent_cache__.is_read
    assert module.cancel_order.__agent_cache__.parameters.names == ("order_id", "reason")
    assert "{result[user_id]}" in str(module.cancel_order.resource)


def test_a_pipe_gets_the_rules_and_nothing_else(folder: Path) -> None:
    ran = agent_cache(folder, "advise", "day.jsonl", "--format", "toml")
    assert ran.code == 0
    assert tomllib.loads(ran.out)["tools"]["get_order"]["kind"] == "read"
    assert "\x1b" not in ran.out + ran.err
    assert "replayed on this log" in ran.err
    assert "oracle" in ran.err
    compile(agent_cache(folder, "advise", "day.jsonl").out, "piped.py", "exec")


def test_each_rule_has_its_evidence_and_each_tool_its_figures(folder: Path, advised: dict[str, Path]) -> None:
    text = flat(advised["toml"].read_text())
    assert re.search(r"user:\{user_id\}: changed by cancel_order \(result\[user_id\]\), \d+ of \d+ times", text)
    assert re.search(r"get_order: \d+ calls, \d+ repeats, \d+ hits expected", text)
    found = json.loads(advised["json"].read_text())
    outcomes = found["outcomes"]
    assert set(outcomes) == {"none", "roots", "advised", "oracle"}
    assert outcomes["none"]["stale"] > 0 == outcomes["advised"]["stale"] == outcomes["oracle"]["stale"]
    assert outcomes["roots"]["hits"] < outcomes["advised"]["hits"] <= outcomes["oracle"]["hits"]
    [order] = [tool for tool in found["tools"] if tool["tool"] == "get_order"]
    assert order["kind"] == "read"
    assert 0 < order["hits"] <= order["repeats"] < order["calls"]
    assert order["seconds_saved"] == pytest.approx(order["hits"] * 0.5)
    assert sum(link["changes"] for link in found["links"]) >= found["explained"] > 0


def test_what_the_log_never_showed_is_said(folder: Path) -> None:
    calls = [
        {"tool": "get_order", "arguments": {"order_id": "#W1"}, "result": {"status": "a"}, "time": 1},
        {"tool": "archive", "arguments": {"reason": "old"}, "result": "done", "time": 2, "kind": "write"},
        {"tool": "get_order", "arguments": {"order_id": "#W2"}, "result": {"status": "a"}, "time": 3},
    ]
    written(folder / "little.jsonl", calls)
    ran = agent_cache(folder, "advise", "little.jsonl", "--format", "json")
    found = ran.json
    assert any("by 1 tool (never seen between two equal answers): get_order" in line for line in found["unknown"])
    [link] = found["links"]
    assert link["origin"] == "whole root"
    text = agent_cache(folder, "advise", "little.jsonl", "--format", "toml").out
    assert "dropped whole by 1 tool (archive), too little was seen" in flat(text)


def test_the_user_may_say_what_a_tool_is(folder: Path) -> None:
    calls = [{**call, "tool": f"shop:{call['tool'].replace('get_', 'x_').replace('set_', 'y_')}"} for call in day(1)]
    written(folder / "unsaid.jsonl", calls)
    ran = agent_cache(
        folder, "advise", "unsaid.jsonl", "--format", "json", "--read", "x_*", "--write", "shop:y_address"
    )
    tools = {tool["tool"]: (tool["kind"], tool["why"]) for tool in ran.json["tools"]}
    assert tools["shop:x_order"] == tools["shop:x_user"] == ("read", "given")
    assert tools["shop:y_address"] == ("write", "given")
    assert ran.json["outcomes"]["advised"]["stale"] == 0


def test_of_what_the_user_says_the_exact_name_counts_first_and_then_the_order(tmp_path: Path) -> None:
    """As in the rules of a toolbox: `--read '*'` takes no write that is named."""
    calls = [{"tool": name, "arguments": {}, "result": 1} for name in ("get_a", "get_b", "set_a", "set_b")]
    written(tmp_path / "unsaid.jsonl", calls)
    said = ("--write", "*_b", "--read", "*", "--write", "set_a", "--write", "*_a")
    tools = agent_cache(tmp_path, "advise", "unsaid.jsonl", "--format", "json", *said).json["tools"]
    kinds = {tool["tool"]: tool["kind"] for tool in tools}
    assert kinds == {"get_a": "read", "get_b": "write", "set_a": "write", "set_b": "write"}


def test_an_existing_file_is_replaced_by_force_alone(folder: Path) -> None:
    path = folder / "mine.toml"
    path.write_text("# mine\n")
    refused = agent_cache(folder, "advise", "day.jsonl", "--format", "toml", "-o", "mine.toml")
    assert refused.code == 2
    assert "--force" in refused.err
    assert path.read_text() == "# mine\n"
    assert agent_cache(folder, "advise", "day.jsonl", "--format", "toml", "-o", "mine.toml", "--force").code == 0
    assert tomllib.loads(path.read_text())["namespace"]


def test_a_log_that_is_read_is_not_replaced(folder: Path, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    log, link = logs / "day.jsonl", tmp_path / "link.jsonl"
    log.write_bytes((folder / "day.jsonl").read_bytes())
    link.hardlink_to(log)
    before = log.read_bytes()
    for runs, target in (
        ("logs/day.jsonl", "logs/day.jsonl"),
        ("logs/day.jsonl", "link.jsonl"),
        ("logs", "logs/day.jsonl"),
        ("logs/*.jsonl", "link.jsonl"),
    ):
        refused = agent_cache(tmp_path, "advise", runs, "-o", target, "--force")
        assert (refused.code, refused.out) == (2, ""), (runs, target)
        assert f"{target} is among the logs that are read: choose another name with -o\n" in refused.err
    assert log.read_bytes() == before


def test_what_stood_there_stays_if_the_rules_cannot_be_written(folder: Path, tmp_path: Path) -> None:
    ran = agent_cache(folder, "advise", "day.jsonl", "-o", tmp_path, "--force")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[-1] == f"agent-cache advise: {tmp_path}: cannot be written: Is a directory"
    target = tmp_path / "rules.py"
    target.write_text("# mine\n")
    target.chmod(0o640)
    assert agent_cache(folder, "advise", "day.jsonl", "-o", target, "--force").code == 0
    assert target.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["rules.py"]


def test_the_tables_fit_into_eighty_columns(folder: Path, tmp_path: Path) -> None:
    calls = [{**call, "tool": f"a_module.with_a_long_name.{'and_more' * 6}:{call['tool']}"} for call in day(3, 20)]
    written(tmp_path / "long.jsonl", calls)
    ran = agent_cache(tmp_path, "advise", "long.jsonl", "--format", "json")
    table = ran.err[ran.err.index("replayed on this log") :]
    assert max(map(len, table.splitlines())) <= 80


@pytest.mark.slow
@pytest.mark.parametrize("form", ["python", "toml"])
def test_answers_that_are_json_as_text_are_parsed_for_the_tags_of_a_file(tmp_path: Path, form: str) -> None:
    """A decorator cannot: it gets the whole root."""
    calls = [{**call, "result": json.dumps(call["result"])} if "result" in call else call for call in day(6)]
    written(tmp_path / "texts.jsonl", calls)
    name = "rules.toml" if form == "toml" else "advised_texts.py"
    assert agent_cache(tmp_path, "advise", "texts.jsonl", "--format", form, "-o", name).code == 0
    ran = agent_cache(tmp_path, "advise", "--check", name, "texts.jsonl", "--format", "json")
    assert (ran.code, ran.json["stale"]) == (0, 0)
    answer = next(call for call in calls if call["tool"] == "cancel_order" and "result" in call)
    user_id = json.loads(answer["result"])["user_id"]
    logged = LoggedCall("cancel_order", answer["arguments"], answer["result"])
    if form == "python":
        assert "user" in tags_of(module_of(tmp_path / name).cancel_order.__agent_cache__, logged)
    else:
        assert f"user:{user_id}" in tags_of(Toolbox.from_file(tmp_path / name).rule("cancel_order"), logged)


@pytest.mark.slow
def test_runs_that_begin_anew_get_rules_of_a_session(tmp_path: Path) -> None:
    calls = []
    for number in range(40):
        calls += [{**call, "time": call["time"] + 1000 * number, "run": str(number)} for call in day(number, 1)]
    written(tmp_path / "anew.jsonl", calls)
    for form, name in (("toml", "anew.toml"), ("python", "anew.py")):
        assert agent_cache(tmp_path, "advise", "anew.jsonl", "--format", form, "-o", name).code == 0
        assert 'scope = "session"' in (text := (tmp_path / name).read_text()) or 'scope="session"' in text
        ran = agent_cache(tmp_path, "advise", "--check", name, "anew.jsonl", "--format", "json")
        assert (ran.code, ran.json["stale"]) == (0, 0)
        assert ran.json["hits"] > 0


def test_a_list_of_messages_is_a_log_too(tmp_path: Path) -> None:
    messages: list[dict[str, Any]] = []
    for number, call in enumerate(day(7)):
        function = {"name": call["tool"], "arguments": json.dumps(call["arguments"])}
        content = json.dumps(call["result"]) if "result" in call else f"Error: {call['error']}"
        messages += [
            {"role": "assistant", "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": content},
        ]
    written(tmp_path / "messages.jsonl", [{"messages": messages}])
    ran = agent_cache(tmp_path, "advise", "messages.jsonl", "--format", "json")
    assert ran.code == 0
    tags = {tool["tool"]: tool["tags"] for tool in ran.json["tools"]}
    assert tags["get_user"] == ["user:{user_id}"]
    assert "user:{result[user_id]}" in tags["cancel_order"]
    assert "no call has a time" in ran.err


# The check

SHOP = """
from agent_cache import AgentCache, AgentCacheInvalidator

print("imported")


@AgentCache("order:{order_id}")
async def get_order(order_id): ...


@AgentCache("user:{user_id}")
async def get_user(user_id): ...


@AgentCache("products")
async def list_products(): ...


@AgentCacheInvalidator(["order:{order_id}", "user:{result[user_id]}"])
async def cancel_order(order_id, reason): ...


@AgentCacheInvalidator("user:{user_id}")
async def set_address(user_id, address): ...
"""
FORGETFUL = SHOP.replace('["order:{order_id}", "user:{result[user_id]}"]', '"order:{order_id}"')


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A project: ``shop.py`` with the right tags, ``forgetful.py`` with one that is missing, and a log."""
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "forgetful.py").write_text(FORGETFUL)
    written(tmp_path / "day.jsonl", day(4))
    return tmp_path


@pytest.mark.slow
def test_tags_written_by_hand_pass(shop: Path) -> None:
    for target in ("shop", "shop.py", str(shop / "shop.py")):
        ran = agent_cache(shop, "advise", "--check", target, "day.jsonl")
        assert ran.code == 0, ran.out
        assert re.fullmatch(r"ok  .*: \d+ reads, \d+ hits \(\d+ %\), 0 stale\n", ran.out)
        assert "imported" in ran.err


def test_a_forgotten_tag_is_found_with_the_write_and_the_mend(shop: Path) -> None:
    ran = agent_cache(shop, "advise", "--check", "forgetful", "day.jsonl")
    assert ran.code == 1
    assert "add 'user:{result[user_id]}' to cancel_order" in ran.out
    assert re.search(r"get_user\(user_id='user_\d+'\) at \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", ran.out)
    assert re.search(r"loaded at \d{4}-\S+ \S+Z, changed by cancel_order\(order_id='#W", ran.out)
    ran = agent_cache(shop, "advise", "--check", "forgetful", "day.jsonl", "--format", "json")
    assert ran.code == 1
    found = ran.json
    assert found["has_failed"]
    assert found["stale"] == len(found["stale_answers"]) > 0
    for answer in found["stale_answers"]:
        assert answer["tool"] == "get_user"
        assert answer["rule"] == "forgetful:get_user"
        assert answer["write"]["tool"] == "cancel_order"
        assert answer["loaded_at"] < answer["write"]["at"] < answer["at"]
        assert (answer["add_to_read"], answer["add_to_write"]) == (None, "user:{result[user_id]}")
    text = FORGETFUL.replace("user:{", "customer:{")
    (shop / "otherwise.py").write_text(text)
    ran = agent_cache(shop, "advise", "--check", "otherwise", "day.jsonl")
    assert "add 'customer:{result[user_id]}' to cancel_order" in ran.out, "the root is that which is in use"


def test_a_read_that_lacks_a_tag_is_told_so(shop: Path) -> None:
    (shop / "reads.py").write_text(
        SHOP.replace('"user:{user_id}")\nasync def get_user', '"person:{user_id}")\nasync def get_user')
    )
    ran = agent_cache(shop, "advise", "--check", "reads", "day.jsonl", "--format", "json")
    assert ran.code == 1
    mends = {(answer["add_to_read"], answer["add_to_write"]) for answer in ran.json["stale_answers"]}
    assert mends <= {(None, "person:{user_id}"), (None, "person:{result[user_id]}")}


def test_tools_without_rules_and_rules_without_calls_fail_unless_stale_answers_alone_do(shop: Path) -> None:
    (shop / "rules.toml").write_text(
        'namespace = "shop"\n[tools.get_order]\nkind = "read"\ntags = ["order:{order_id}"]\n'
        '[tools."get_usr"]\nkind = "read"\ntags = ["user:{user_id}"]\n'
    )
    ran = agent_cache(shop, "advise", "--check", "rules.toml", "day.jsonl")
    assert ran.code == 1
    assert re.search(r"no rule  get_user: \d+ calls; each call drops order, user", ran.out)
    assert "no calls  get_usr" in ran.out
    assert "(2 %), 0 stale, 4 tools without a rule, 1 rule without a call" in ran.out
    assert agent_cache(shop, "advise", "--check", "rules.toml", "day.jsonl", "--fail-on", "stale").code == 0


@pytest.mark.slow
def test_tools_are_found_by_their_names(shop: Path, tmp_path: Path) -> None:
    package = tmp_path / "store"
    (package / "deep").mkdir(parents=True)
    (package / "__init__.py").write_text("from store.deep import tools\n")
    (package / "deep" / "__init__.py").write_text("")
    (package / "deep" / "tools.py").write_text(SHOP)
    for prefix in ("", "store.deep.tools:", "__main__:", "elsewhere:"):
        written(tmp_path / "named.jsonl", [{**call, "tool": f"{prefix}{call['tool']}"} for call in day(4)])
        ran = agent_cache(tmp_path, "advise", "--check", "store", "named.jsonl")
        assert ran.code == 0, (prefix, ran.out)


def test_a_name_that_two_tools_have_is_ambiguous(shop: Path) -> None:
    (shop / "both.py").write_text("import shop\nimport forgetful\n")
    ran = agent_cache(shop, "advise", "--check", "both", "day.jsonl", "--fail-on", "stale")
    assert ran.code == 1
    assert "ambiguous  cancel_order may be forgetful:cancel_order, shop:cancel_order: not checked" in ran.out


def test_a_module_with_a_toolbox_is_checked_by_its_rules(shop: Path) -> None:
    (shop / "boxed.py").write_text(
        "from agent_cache import Read, Toolbox, Write\n"
        "box = Toolbox({'get_*': Read('all'), 'list_*': Read('all'), 'cancel_order': Write('all')}, "
        "namespace='shop', unknown='pass')\n"
    )
    for target in ("boxed", "boxed:box", "boxed.py:box"):
        ran = agent_cache(shop, "advise", "--check", target, "day.jsonl")
        assert ran.code == 1
        assert "add 'user:{user_id}' to get_user and add 'user:{user_id}' to set_address" in ran.out
        assert "no rule  set_address" in ran.out
        assert "it is left alone" in ran.out


@pytest.mark.slow
def test_functions_that_a_toolbox_decorates_are_no_second_tools(shop: Path) -> None:
    (shop / "decorated.py").write_text(
        "from agent_cache import Pass, Read, Toolbox, Write\n"
        "box = Toolbox({'get_*': Read('all'), 'list_products': Read('all'), '*': Write('all')}, namespace='shop')\n"
        + "".join(
            f"@box.tool\nasync def {name}({parameters}): ...\n"
            for name, parameters in {
                "get_order": "order_id",
                "get_user": "user_id",
                "list_products": "",
                "cancel_order": "order_id, reason",
                "set_address": "user_id, address",
            }.items()
        )
    )
    for prefix in ("", "shop:", "__main__:"):
        written(shop / "named.jsonl", [{**call, "tool": f"{prefix}{call['tool']}"} for call in day(4)])
        ran = agent_cache(shop, "advise", "--check", "decorated", "named.jsonl")
        assert ran.code == 0, (prefix, ran.out)


@pytest.mark.slow
def test_a_reader_that_closes_the_pipe_is_no_error(folder: Path) -> None:
    command = f"{sys.executable} -m agent_cache advise day.jsonl --format json | head -c 10"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "roken" not in done.stderr
    assert done.returncode in (0, 141)


MISTAKES = [
    (
        ("--check", "empty", "day.jsonl"),
        "empty: it imports no decorated tool, and has no Toolbox",
    ),  # before others import some
    (("--check", "nowhere", "day.jsonl"), "nowhere cannot be imported: ModuleNotFoundError"),
    (("--check", "nowhere.py", "day.jsonl"), "nowhere.py cannot be imported: FileNotFoundError"),
    (("--check", "nowhere.toml", "day.jsonl"), "nowhere.toml: the file of rules cannot be read"),
    (("--check", "shop:box", "day.jsonl"), "box is no Toolbox of shop"),
    (("--check", "broken", "day.jsonl"), "broken cannot be imported: ZeroDivisionError: division by zero"),
    (("--check", "leaves", "day.jsonl"), "leaves cannot be imported: SystemExit: 3"),
    (("--check", "bad.toml", "day.jsonl"), "bad.toml: tools.a: kind is missing"),
    (("--check", "shop", "day.jsonl", "--format", "toml"), "--check has the formats text and json"),
    (("--check", "shop", "day.jsonl", "-o", "x"), "-o and --force are not for it"),
    (("day.jsonl", "--format", "text"), "--format text and --fail-on are for --check"),
    (("day.jsonl", "--fail-on", "stale"), "--format text and --fail-on are for --check"),
    (("day.jsonl", "--force"), "--force is for -o"),
    (("nothing.jsonl",), "nothing.jsonl"),
    (("nocalls.jsonl",), "there is no call of a tool"),
    (("day.jsonl", "-o", "missing/rules.toml"), "No such file or directory"),
]
ONE_AFTER_ANOTHER = """
import contextlib, io, json, sys
from agent_cache.cli.main import main

found = []
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(["advise", *arguments])
    found.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(found))
"""


def test_bad_use_is_said_in_one_line(shop: Path) -> None:
    (shop / "broken.py").write_text("1 / 0\n")
    (shop / "leaves.py").write_text("raise SystemExit(3)\n")
    (shop / "empty.py").write_text("")
    (shop / "bad.toml").write_text('namespace = "x"\n[tools.a]\ntags = ["b"]\n')
    (shop / "nocalls.jsonl").write_text("")
    arguments = json.dumps([arguments for arguments, _ in MISTAKES])
    done = forks().run("-c", ONE_AFTER_ANOTHER, arguments, folder=shop, imports=IMPORTS)
    for (arguments, message), (code, out, err) in zip(MISTAKES, json.loads(done.stdout), strict=True):
        assert (code, out) == (2, ""), arguments
        [line] = [line for line in err.splitlines() if line.startswith("agent-cache")]
        assert message in line, arguments


def test_an_error_is_json_where_json_was_asked_for(shop: Path) -> None:
    ran = agent_cache(shop, "advise", "--check", "nowhere", "day.jsonl", "--format", "json")
    assert ran.code == 2
    assert "nowhere cannot be imported" in ran.json["error"]


# Names and values that somebody else has chosen

HOSTILE = [
    'quo"te',
    "apo'strophe",
    "new\nline = 1\n[tools.x]",
    "\x1b[31mred\x1b[0m\x07",
    "[bold red]markup[/]",
    "back\\slash",
    '"""\nraise SystemExit("run")\n"""',
    "'); raise SystemExit('run'); ('",
    "star*[a-z]?",
    "with space",
    "class",
    "__debug__",
    "\u202egnp.exe",
    "ünïcode",
    "{braces}",
    "colon:in:it",
    "7up",
    "\ud800",
    "",
    "a\r\nb",
    "%s{0}",
    "\x00nul",
]


def hostile_day() -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    for number, name in enumerate(HOSTILE):
        value = {"text": name, "version": number}
        for version, kind in enumerate(("read", "read", "write", "read", "read")):
            tool = f"{name}{'set' if kind == 'write' else 'get'}" if name else kind
            calls.append(
                {
                    "tool": tool,
                    "arguments": {"item_id": f"i-{number}", name or "x": name},
                    "result": {**value, "version": version // 3},
                    "time": 1000.0 + len(calls),
                    "kind": kind,
                    "run": name,
                }
            )
    return calls


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    written(folder / "hostile.jsonl", hostile_day())
    return folder


def is_inert(text: str) -> bool:
    """Whether nothing in a text is for a terminal to interpret."""
    return all(character.isprintable() or character == "\n" for character in text)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["toml", "python", *slow("json")])
def test_hostile_names_stay_inert(hostile: Path, form: str) -> None:
    ran = agent_cache(hostile, "advise", "hostile.jsonl", "--format", form)
    assert ran.code == 0, ran.err
    assert is_inert(ran.out)
    assert is_inert(ran.err)
    if form == "json":
        tools = {tool["tool"] for tool in ran.json["tools"]}
        assert {f"{name}get" for name in HOSTILE if name and name != "\ud800"} <= tools
        return
    if form == "toml":
        (hostile / "rules.toml").write_text(ran.out, "utf-8")
        names = set(tomllib.loads(ran.out)["tools"])
        assert "x" not in names
        box = Toolbox.from_file(hostile / "rules.toml")
    else:
        module = hostile / f"hostile_{form}.py"
        module.write_text(ran.out, "utf-8")
        assert module_of(module).__dict__.keys() & {"run"} == set()
        return
    for name in HOSTILE:
        if name not in ("\ud800", "", "colon:in:it"):
            assert box.rule(f"{name}get").kind == "read", name
    assert box.rule("starXYabget").kind == "write", "a name is no pattern"
    checked = agent_cache(hostile, "advise", "--check", "rules.toml", "hostile.jsonl")
    assert is_inert(checked.out + checked.err)
    assert checked.code == 0, checked.out


@pytest.mark.slow
def test_a_hostile_log_is_inert_in_the_findings_of_a_check(hostile: Path) -> None:
    (hostile / "forgetful.py").write_text(
        "from agent_cache import Read, Toolbox, Watch\n"
        "box = Toolbox({'*get': Read('item:{item_id}'), '*': Watch()}, namespace='x')\n"
    )
    for form in ("text", "json"):
        ran = agent_cache(hostile, "advise", "--check", "forgetful:box", "hostile.jsonl", "--format", form)
        assert ran.code == 1
        assert is_inert(ran.out)
        assert is_inert(ran.err)
    assert ran.json["stale"] > 10


SECRETS = {
    "key": "sk-ant-api03-" + "Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy4z" * 2,
    "github": "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8",
    "password": "correct horse battery",
    "url": "https://user:hunter2hunter2@example.com/",
}


def test_no_secret_is_in_any_output(tmp_path: Path) -> None:
    key, github = SECRETS["key"], SECRETS["github"]
    calls: list[dict[str, Any]] = []

    def add(kind: str, tool: str, arguments: dict[str, Any], result: Any) -> None:
        calls.append(
            {"tool": tool, "arguments": arguments, "result": result, "time": len(calls) + 1.0, "kind": kind, "run": key}
        )

    for version in range(3):
        for _ in range(2):
            arguments = {"item_id": "i-1", "password": SECRETS["password"], "url": SECRETS["url"], github: 1}
            add("read", "get_item", arguments, {"version": version, "token": key})
            add("read", github, {"item_id": "i-1"}, {"version": version})
            add("read", "by_token", {"key_id": key}, {"version": version})
            add("read", f"get_{github}", {f"item_{key}": 1}, {"version": version})
        add("write", "set_item", {"item_id": "i-1", "key_id": key, "api_key": key}, {"done": True, github: key})
    written(tmp_path / "secret.jsonl", calls)
    (tmp_path / "watching.py").write_text(
        "from agent_cache import Read, Toolbox, Watch\nbox = Toolbox({'*set*': Watch(), '*': Read('x')}, namespace='s')"
    )
    outputs = [agent_cache(tmp_path, "advise", "secret.jsonl", "--format", form) for form in ("python", "toml", "json")]
    outputs += [
        agent_cache(tmp_path, "advise", "--check", "watching:box", "secret.jsonl", "--format", form)
        for form in ("text", "json")
    ]
    outputs.append(agent_cache(tmp_path, "mcp", "--advise", "secret.jsonl"))
    outputs.append(agent_cache(tmp_path, "advise", "--check", f"watching:{key}", "secret.jsonl"))
    outputs.append(agent_cache(tmp_path, "advise", f"{github}.jsonl"))
    for number, ran in enumerate(outputs):
        for name, secret in SECRETS.items():
            assert secret not in ran.out + ran.err, (number, name)
            assert "hunter2hunter2" not in ran.out + ran.err
    assert [ran.code for ran in outputs] == [0, 0, 0, 1, 1, 0, 2, 2]
    named = agent_cache(tmp_path, "advise", "--check", "watching:box", "secret.jsonl", "--redact", "item_id")
    assert "'i-1'" not in named.out


# A terminal


def on_a_terminal(folder: Path, *arguments: object) -> str:
    """What a terminal of 80 columns gets from the command."""
    pty = pytest.importorskip("pty", reason="this system has no pseudo-terminals")
    master, slave = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": "80"}
    environment.pop("NO_COLOR", None)
    command = ["-m", "agent_cache", *arguments]
    with Path(os.devnull).open("rb") as nothing, os.fdopen(slave, "wb", buffering=0) as screen:
        streams = (nothing, screen, screen)
        process = forks().start(*command, streams=streams, folder=folder, environment=environment, imports=IMPORTS)
    with os.fdopen(master, "rb", buffering=0):
        found = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # the other side is closed
                break
            if not part:
                break
            found += part
        assert process.wait() in (0, 1)
    return found.decode()


@pytest.mark.slow
def test_a_terminal_shows_progress_and_a_pipe_does_not(tmp_path: Path) -> None:
    first = day(5, 1)[0]
    calls = [{**first, "time": first["time"] + number} for number in range(21_000)]
    written(tmp_path / "large.jsonl", [{**call, "padding": "x" * 400} for call in calls])
    assert (tmp_path / "large.jsonl").stat().st_size > 5_000_000
    shown = on_a_terminal(tmp_path, "advise", "large.jsonl")
    for label in ("reading", "mining", "replaying"):
        assert re.search(rf"\r{label} \[#* *\] +\d+%", shown), label
    assert "\r" not in agent_cache(tmp_path, "advise", "large.jsonl").err


# The runs of a published set

DATA = os.environ.get("AGENT_CACHE_DATA")


@pytest.mark.skipif(not DATA, reason="the runs are not part of this project; AGENT_CACHE_DATA names their folder")
def test_the_rules_of_a_real_shop_are_ready_to_use(tmp_path: Path) -> None:
    import gzip

    assert DATA is not None
    calls, time = [], 0
    with gzip.open(Path(DATA) / "tau_retail_gold.jsonl.gz", "rt") as lines:
        for line in lines:
            run = json.loads(line)
            for call in run["calls"]:
                time += 1
                error = call["result"] if str(call["result"]).startswith("Error") else None
                calls.append(
                    {
                        "tool": call["tool"],
                        "arguments": call["args"],
                        "time": time,
                        "run": run["id"],
                        **({"error": error} if error else {"result": call["result"]}),
                    }
                )
    written(tmp_path / "retail.jsonl", calls)
    for form, name in (("toml", "rules.toml"), ("python", "tools.py")):
        assert agent_cache(tmp_path, "advise", "retail.jsonl", "--format", form, "-o", name).code == 0
        ran = agent_cache(tmp_path, "advise", "--check", name, "retail.jsonl", "--format", "json")
        assert ran.code == 0, ran.out[:2000]
        assert ran.json["stale"] == 0
