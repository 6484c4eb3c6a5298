"""`agent-cache advise`: its rules run, its check finds the tags that are missing, and it says where a log misleads."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import random
import re
import subprocess
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_cache import Toolbox
from agent_cache.__main__ import main
from tests.harness.advice import LoggedCall, tags_of
from tests.harness.processes import python

Call = dict[str, Any]


class Shop:
    """A shop and its tools: `get_order` and `get_user` read; `cancel_order` changes the order, and a balance that its
    answer alone names; `set_address` changes a user; `list_products` never changes.
    """

    def __init__(self, users: int = 8, orders: int = 24) -> None:
        self.users = {f"user_{n:03}": {"address": f"{n} Old Street", "balance": 0} for n in range(users)}
        names = list(self.users)
        self.orders = {
            f"#W{1000 + n}": {"user_id": names[n % users], "status": "pending", "total": 10 + n} for n in range(orders)
        }

    def get_order(self, order_id: str) -> dict[str, Any]:
        return {"order_id": order_id, **self.orders[order_id]}

    def get_user(self, user_id: str) -> dict[str, Any]:
        return {"user_id": user_id, **self.users[user_id]}

    def list_products(self) -> list[str]:
        return ["tea", "coffee"]

    def cancel_order(self, order_id: str, reason: str) -> dict[str, Any]:
        order = self.orders[order_id]
        if order["status"] != "pending":
            raise ValueError("it is not pending")
        order["status"] = "cancelled"
        self.users[order["user_id"]]["balance"] += order["total"]
        return {"order_id": order_id, **order}

    def set_address(self, user_id: str, address: str) -> dict[str, Any]:
        self.users[user_id]["address"] = address
        return {"user_id": user_id, "address": address}


def called(shop: Shop, tool: str, arguments: dict[str, Any]) -> Call:
    """A call and its answer."""
    try:
        return {"tool": tool, "arguments": arguments, "result": getattr(shop, tool)(**arguments)}
    except ValueError as error:
        return {"tool": tool, "arguments": arguments, "error": f"ValueError: {error}"}


def conversation(shop: Shop, chance: random.Random) -> Iterator[tuple[str, dict[str, Any]]]:
    """What one agent calls."""
    order_id = chance.choice(list(shop.orders))
    user_id = shop.orders[order_id]["user_id"]
    yield "get_user", {"user_id": user_id}
    yield "list_products", {}
    for _ in range(chance.randint(1, 3)):
        yield "get_order", {"order_id": order_id}
        yield "get_order", {"order_id": chance.choice(list(shop.orders))}
        yield "get_user", {"user_id": chance.choice(list(shop.users))}
    if chance.random() < 0.5:
        yield "cancel_order", {"order_id": order_id, "reason": "no longer needed"}
    else:
        yield "set_address", {"user_id": user_id, "address": f"{chance.randint(1, 99)} New Street"}
    yield "get_order", {"order_id": order_id}
    yield "get_user", {"user_id": user_id}


def timed(calls: Iterable[tuple[str, Call]]) -> list[Call]:
    """Calls of runs, a second apart."""
    return [{**call, "run": run, "time": 1_790_000_000.0 + at} for at, (run, call) in enumerate(calls)]


def day(seed: int, agents: int = 30) -> list[Call]:
    """The calls of a day, in the order in which they ended, six agents at a time."""
    chance, shop = random.Random(seed), Shop()
    running = {f"run-{n:03}": conversation(shop, chance) for n in range(agents)}
    calls = []
    while running:
        run = chance.choice(list(running)[:6])
        if (step := next(running[run], None)) is None:
            del running[run]
        else:
            calls.append((run, called(shop, *step)))
    return timed(calls)


def written(path: Path, calls: Iterable[Call]) -> Path:
    """A log of these calls, as JSON Lines."""
    path.write_text("".join(f"{json.dumps(call)}\n" for call in calls), "utf-8")
    return path


class Ran:
    """What a command has printed, and how it ended."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr
        assert "Traceback" not in self.err, self.err

    def __getattr__(self, name: str) -> int:
        """A number of the last line of a check: ``hits``, ``stale``."""
        return int(re.findall(rf"(\d+) {name.removesuffix('s')}", self.out.splitlines()[-1])[0])


def agent_cache(folder: Path, *arguments: object) -> Ran:
    """Run the command in a folder, with warnings as errors."""
    environment = {**os.environ, "NO_COLOR": "", "PYTHONWARNINGS": "error"}
    environment.pop("COLUMNS", None)
    return Ran(python("-m", "agent_cache", *arguments, folder=folder, environment=environment))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the log of a day, ``day.jsonl``, and that of another, ``other.jsonl``; and the rules of the day,
    ``advised.py`` and ``advised.toml``.
    """
    folder = tmp_path_factory.mktemp("advise")
    written(folder / "day.jsonl", day(1))
    written(folder / "other.jsonl", day(2))
    for form, name in (("python", "advised.py"), ("toml", "advised.toml")):
        ran = agent_cache(folder, "advise", "day.jsonl", "--format", form, "-o", name)
        assert (ran.code, ran.out) == (0, ""), ran.err
    return folder


def module_of(path: Path) -> Any:
    """A module, executed."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# The rules


@pytest.mark.parametrize("target", ["advised.py", "advised.toml"])
def test_the_rules_of_a_day_give_no_stale_answer_on_the_next_one(folder: Path, target: str) -> None:
    ran = agent_cache(folder, "advise", "--check", target, "other.jsonl")
    assert ran.code == 0, (ran.out, ran.err)
    assert ran.stale == 0
    assert ran.hits > 100
    assert re.fullmatch(r"ok  .*: \d+ reads, \d+ hits \(\d+ %\), 0 stale\n", ran.out), "and every tool has a rule"


def test_tools_of_two_shops_have_rules_by_their_whole_names(tmp_path: Path) -> None:
    calls = [{**call, "tool": f"{shop}:{call['tool']}"} for shop in ("east", "west") for call in day(3, agents=15)]
    written(tmp_path / "both.jsonl", calls)
    assert agent_cache(tmp_path, "advise", "both.jsonl", "--format", "toml", "-o", "both.toml").code == 0
    ran = agent_cache(tmp_path, "advise", "--check", "both.toml", "both.jsonl")
    assert (ran.code, ran.stale, ran.out.count("no rule")) == (0, 0, 0), ran.out


def test_a_module_has_decorated_functions_of_these_names_and_parameters(folder: Path) -> None:
    module = module_of(folder / "advised.py")
    assert module.get_order.__agent_cache__.is_read
    assert not module.cancel_order.__agent_cache__.is_read
    assert module.cancel_order.__agent_cache__.parameters.names == ("order_id", "reason")
    assert "{result[user_id]}" in str(module.cancel_order.resource)


def test_a_pipe_gets_the_rules_with_their_evidence_and_nothing_else(folder: Path) -> None:
    ran = agent_cache(folder, "advise", "day.jsonl", "--format", "toml", "-o", "-")
    assert not (folder / "-").exists()
    assert tomllib.loads(ran.out)["tools"]["get_order"]["kind"] == "read"
    text = " ".join(ran.out.replace("#", " ").split())
    assert re.search(r"user:\{user_id\}: .*changed by cancel_order \(result\[user_id\]\), \d+ of \d+ times", text)
    assert re.search(r"get_order: \d+ calls, \d+ repeats, \d+ hits expected", text)
    stale = dict(re.findall(r"^(no invalidation|advised|oracle) .* (\d+)$", ran.err, re.MULTILINE))
    assert stale["advised"] == stale["oracle"] == "0" != stale["no invalidation"]


def test_of_what_the_user_says_the_exact_name_counts_first_and_then_the_order(tmp_path: Path) -> None:
    """As in the rules of a toolbox: `--read '*'` takes no write that is named."""
    calls = [{"tool": f"shop:{name}", "arguments": {}, "result": 1} for name in ("get_a", "get_b", "set_a", "set_b")]
    written(tmp_path / "unsaid.jsonl", calls)
    said = ("--write", "*_b", "--read", "*", "--write", "set_a", "--write", "shop:*_a")
    rules = tomllib.loads(agent_cache(tmp_path, "advise", "unsaid.jsonl", "--format", "toml", *said).out)["tools"]
    kinds = {name: rule["kind"] for name, rule in rules.items()}
    assert kinds == {"get_a": "read", "get_b": "write", "set_a": "write", "set_b": "write"}


@pytest.mark.slow
@pytest.mark.parametrize("form", ["python", "toml"])
def test_answers_that_are_json_as_text_are_parsed_for_the_tags_of_a_file(tmp_path: Path, form: str) -> None:
    """A decorator cannot: it gets the whole root."""
    calls = [{**call, "result": json.dumps(call["result"])} if "result" in call else call for call in day(6)]
    written(tmp_path / "texts.jsonl", calls)
    name = "rules.toml" if form == "toml" else "advised_texts.py"
    assert agent_cache(tmp_path, "advise", "texts.jsonl", "--format", form, "-o", name).code == 0
    ran = agent_cache(tmp_path, "advise", "--check", name, "texts.jsonl")
    assert (ran.code, ran.stale) == (0, 0)
    answer = next(call for call in calls if call["tool"] == "cancel_order" and "result" in call)
    user_id = json.loads(answer["result"])["user_id"]
    logged = LoggedCall("cancel_order", answer["arguments"], answer["result"])
    if form == "python":
        assert "user" in tags_of(module_of(tmp_path / name).cancel_order.__agent_cache__, logged)
    else:
        assert f"user:{user_id}" in tags_of(Toolbox.from_file(tmp_path / name).rule("cancel_order"), logged)


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


def test_a_forgotten_tag_is_found_with_the_write_and_the_mend(shop: Path) -> None:
    ran = agent_cache(shop, "advise", "--check", "forgetful", "day.jsonl")
    assert ran.code == 1
    assert ran.stale > 0
    assert re.search(r"stale  forgetful:get_user|stale  get_user", ran.out)
    assert "answers; add 'user:{result[user_id]}' to cancel_order\n" in ran.out, "the read has its tag"
    moment = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ"
    wrong = rf"get_user\(user_id='user_\d+'\) at {moment}, loaded at {moment}, changed by cancel_order\(order_id='#W"
    assert re.search(wrong, ran.out)


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
@pytest.mark.parametrize(
    ("target", "prefix"), [("shop", ""), ("shop.py", ""), ("shop", "elsewhere:"), ("shop", "store.deep.tools:")]
)
def test_tags_written_by_hand_pass_whatever_stands_before_the_names(shop: Path, target: str, prefix: str) -> None:
    written(shop / "named.jsonl", [{**call, "tool": f"{prefix}{call['tool']}"} for call in day(4)])
    ran = agent_cache(shop, "advise", "--check", target, "named.jsonl")
    assert re.fullmatch(r"ok  .*: \d+ reads, \d+ hits \(\d+ %\), 0 stale\n", ran.out), ran.out
    assert "imported" in ran.err


def test_a_name_that_two_tools_have_is_not_checked(shop: Path) -> None:
    (shop / "both.py").write_text("import shop\nimport forgetful\n")
    ran = agent_cache(shop, "advise", "--check", "both", "day.jsonl")
    assert ran.code == 1
    assert re.search(r"no rule  cancel_order: \d+ calls; it may be forgetful:cancel_order or shop:canc", ran.out)


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


MISTAKES = [  # the first before others import some
    (("--check", "empty", "day.jsonl"), "empty: it imports no decorated tool, and has no Toolbox"),
    (("--check", "nowhere.toml", "day.jsonl"), "nowhere.toml: the file of rules cannot be read"),
    (("--check", "shop:box", "day.jsonl"), "box is no Toolbox of shop"),
    (("--check", "leaves", "day.jsonl"), "leaves cannot be imported: SystemExit: 3"),
    (("--check", "bad.toml", "day.jsonl"), "bad.toml: tools.a: "),
    (("nothing.jsonl",), "nothing.jsonl"),
    (("nocalls.jsonl",), "there is no call of a tool"),
    (("day.jsonl", "-o", "missing/rules.toml"), "No such file or directory"),
    (("day.jsonl", "-o", "day.jsonl"), "day.jsonl is there already"),
    (("--check", "nowhere.py", "day.jsonl"), "nowhere.py cannot be imported: ModuleNotFoundError"),
    (("--check", "tools/email.py", "day.jsonl"), "another module is named email: name it as package.module"),
]
ONE_AFTER_ANOTHER = """
import contextlib, io, json, sys
from agent_cache.__main__ import main

found = []
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        found.append([main(["advise", *arguments]), out, err])
print(json.dumps([[code, out.getvalue(), err.getvalue()] for code, out, err in found]))
"""


def test_bad_use_is_said_in_one_line(shop: Path) -> None:
    (shop / "leaves.py").write_text("raise SystemExit(3)\n")
    (shop / "empty.py").write_text("")
    (shop / "tools").mkdir()
    (shop / "tools/email.py").write_text(SHOP)
    (shop / "bad.toml").write_text('namespace = "x"\n[tools.a]\ntags = ["b"]\n')
    (shop / "nocalls.jsonl").write_text("")
    arguments = json.dumps([arguments for arguments, _ in MISTAKES])
    done = python("-c", ONE_AFTER_ANOTHER, arguments, folder=shop)
    for (arguments, message), (code, out, err) in zip(MISTAKES, json.loads(done.stdout), strict=True):
        assert (code, out) == (2, ""), arguments
        [line] = [line for line in err.splitlines() if line.startswith("agent-cache")]
        assert message in line, arguments


# Names and values that somebody else has chosen

HOSTILE = [
    'quo"te', "apo'strophe", "new\nline = 1\n[tools.x]", "\x1b[31mred\x1b[0m\x07", "[bold red]markup[/]", "back\\slash",
    '"""\nraise SystemExit("run")\n"""', "'); raise SystemExit('run'); ('", "star*[a-z]?", "class", "\u202egnp.exe",
    "ünïcode", "{braces}", "colon:in:it", "7up", "\ud800", "", "a\r\nb", "%s{0}", "\x00nul",
]  # fmt: skip


def hostile_day() -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    for number, name in enumerate(HOSTILE):
        for version, kind in enumerate(("read", "read", "write", "read", "read")):
            tool = f"{name}{'set' if kind == 'write' else 'get'}" if name else kind
            arguments, result = {"item_id": f"i-{number}", name or "x": name}, {"text": name, "version": version // 3}
            made = {"tool": tool, "arguments": arguments, "result": result, "kind": kind, "run": name}
            calls.append(made | {"time": 1000.0 + len(calls)})
    return calls


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    written(folder / "hostile.jsonl", hostile_day())
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("form", ["toml", "python"])
def test_hostile_names_stay_inert(hostile: Path, form: str) -> None:
    ran = agent_cache(hostile, "advise", "hostile.jsonl", "--format", form)
    assert ran.code == 0, ran.err
    assert (ran.out + ran.err).replace("\n", "").isprintable()
    if form == "python":
        (hostile / "hostile.py").write_text(ran.out, "utf-8")
        assert "run" not in module_of(hostile / "hostile.py").__dict__
        return
    (hostile / "rules.toml").write_text(ran.out, "utf-8")
    assert "x" not in tomllib.loads(ran.out)["tools"]
    box = Toolbox.from_file(hostile / "rules.toml")
    for name in {*HOSTILE} - {"\ud800", "", "colon:in:it"}:
        assert box.rule(f"{name}get").kind == "read", name
    assert box.rule("starXYabget").kind == "write", "a name is no pattern"
    checked = agent_cache(hostile, "advise", "--check", "rules.toml", "hostile.jsonl")
    assert (checked.out + checked.err).replace("\n", "").isprintable()
    assert re.findall(r"^no rule  (\S+):", checked.out, re.MULTILINE) == [r"\ud800get", r"\ud800set"], "no file can"
    assert ", 0 stale, 2 tools without a rule\n" in checked.out


KEY, GITHUB = "sk-ant-api03-" + "Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy4z" * 2, "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
PASSWORD = "correct horse battery"


def test_no_secret_is_in_any_output(tmp_path: Path) -> None:
    arguments = {"item_id": "i-1", "password": PASSWORD, "url": "https://user:hunter2hunter2@example.com/", GITHUB: 1}
    calls: list[Call] = []
    for version in range(3):
        for tool, asked in 2 * [
            ("get_item", arguments), (GITHUB, {"item_id": "i-1"}), ("get_token", {"key_id": KEY}),
            (f"get_{GITHUB}", {f"item_{KEY}": 1}),
        ]:  # fmt: skip
            calls.append(
                {"tool": tool, "arguments": asked, "result": {"version": version, "token": KEY}, "kind": "read"}
            )
        asked = {"item_id": "i-1", "key_id": KEY, "api_key": KEY}
        calls.append({"tool": "set_item", "arguments": asked, "result": {"done": True, GITHUB: KEY}, "kind": "write"})
    written(tmp_path / "secret.jsonl", timed((KEY, call) for call in calls))
    (tmp_path / "watching.py").write_text(
        "from agent_cache import Read, Toolbox, Watch\nbox = Toolbox({'*set*': Watch(), '*': Read('x')}, namespace='s')"
    )
    check = ("advise", "--check", "watching:box", "secret.jsonl")
    ran = [
        agent_cache(tmp_path, "advise", "secret.jsonl"),
        agent_cache(tmp_path, "advise", "secret.jsonl", "--format", "toml", "-o", "/dev/stdout"),
        agent_cache(tmp_path, *check),
        agent_cache(tmp_path, "advise", "--check", f"watching:{KEY}", "secret.jsonl"),
        agent_cache(tmp_path, "advise", f"{GITHUB}.jsonl"),
    ]
    for number, one in enumerate(ran):
        for secret in (KEY, GITHUB, PASSWORD, "hunter2hunter2"):
            assert secret not in one.out + one.err, (number, secret)
    assert [one.code for one in ran] == [0, 0, 1, 2, 2]
    assert "'i-1'" in ran[2].out
    assert "'i-1'" not in agent_cache(tmp_path, *check, "--redact", "item_id").out


# Logs that mislead: runs that begin anew, and answers that came from a cache

RULES = """
namespace = "shop"
[tools.get_order]
kind = "read"
tags = ["order:{order_id}"]
[tools.cancel_order]
kind = "write"
tags = ["order:{order_id}"]
[tools."*"]
kind = "watch"
"""


def advised(capsys: pytest.CaptureFixture[str], log: Path, *options: str) -> tuple[str, str]:
    """The rules, and what was said, as running text."""
    assert main(["advise", str(log), *options]) == 0
    printed = capsys.readouterr()
    return printed.out, " ".join(printed.err.split())


def test_runs_that_begin_anew_are_worlds_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four at any time."""
    runs = []
    for number in range(40):
        shop = Shop(users=3, orders=6)
        steps = conversation(shop, random.Random(number))
        runs.append([(f"run-{number}", called(shop, *step)) for step in steps])
    waves = [itertools.zip_longest(*runs[at : at + 4]) for at in range(0, 40, 4)]
    calls = [step for wave in waves for turn in wave for step in turn if step is not None]
    out, err = advised(capsys, written(tmp_path / "evaluation.jsonl", timed(calls)))
    assert "runs begin anew" in err
    assert '@AgentCache("order:{order_id}", scope="session")\nasync def get_order(order_id)' in out
    assert re.search(r" advised \d+ \d+ \d+ % 0 ", err)


def test_runs_of_which_none_looks_again_are_not_taken_for_one_world(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []
    for run in range(40):
        shop = Shop()
        read, cancel = {"order_id": f"#W{1000 + run % 4}"}, {"order_id": f"#W{1000 + run % 4}", "reason": "none"}
        calls += [(str(run), called(shop, *step)) for step in (("get_order", read), ("cancel_order", cancel))]
    out, err = advised(capsys, written(tmp_path / "log.jsonl", timed(calls)))
    assert "the log does not show that its runs share one state" in err
    assert '@AgentCacheInvalidator("order:{order_id}")' in out


def test_runs_that_find_what_others_changed_share_a_world(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = advised(capsys, written(tmp_path / "log.jsonl", day(3, agents=60)))
    assert "begin anew" not in err
    assert "share one state" not in err


# Calls that show nothing


FROM_CACHE, NO_ANSWER, NO_ARGUMENTS = {"result": "paid", "source": "hit"}, {}, {"result": "paid", "arguments": None}


@pytest.mark.parametrize(
    ("blank", "number", "unjudged", "code"),
    [
        (FROM_CACHE, 0, 0, 0), (FROM_CACHE, 1, 1, 0), (FROM_CACHE, 2, 2, 1), (FROM_CACHE, 30, 30, 1),
        (NO_ANSWER, 1, 1, 0), (NO_ANSWER, 2, 2, 1), (NO_ANSWER, 31, 30, 1),
        (NO_ARGUMENTS, 1, 1, 0), (NO_ARGUMENTS, 31, 31, 1),
    ],
)  # fmt: skip
def test_a_check_says_how_many_reads_cannot_be_judged_and_fails_if_these_are_one_in_twenty(
    blank: Call, number: int, unjudged: int, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rules.toml").write_text(RULES)
    read = {"tool": "get_order", "arguments": {"order_id": "o1"}, "kind": "read"}
    calls = [{**read, **(blank if at >= 31 - number else {"result": "paid"})} for at in range(31)]
    calls = [{name: value for name, value in call.items() if value is not None} for call in calls]
    calls.append({"tool": "cancel_order", "arguments": {"order_id": "o1"}, "result": "ok", "kind": "write"})
    log = written(tmp_path / "log.jsonl", timed(("1", call) for call in calls))
    assert main(["advise", "--check", str(tmp_path / "rules.toml"), str(log), "--fail-on", "stale"]) == code
    out = capsys.readouterr().out
    assert (f"{unjudged} repeated read" in out, f"{unjudged} not judged" in out) == (bool(unjudged),) * 2
    assert ("0 stale" in out, "no calls" in out) == (True, False), "all that is left may be nothing"


@pytest.mark.parametrize(
    "decorator",
    ['"weather:{city}", ignore=["units"]', '"weather:{city}", key=lambda city, units: city', '"weather", skip_args=2'],
)
def test_a_check_tells_calls_apart_as_the_tool_does(decorator: str, tmp_path: Path) -> None:
    """Here it forgets that the answer depends on the units."""
    tool = f"@AgentCache({decorator})\nasync def get_weather(city, units): ...\n"
    (tmp_path / "weather.py").write_text(f"from agent_cache import AgentCache\n\n\n{tool}")
    asked = [{"city": "Rome", "units": units} for units in "CFCF"]
    calls = [{"tool": "get_weather", "arguments": one, "result": one["units"]} for one in asked]
    written(tmp_path / "log.jsonl", calls)
    ran = agent_cache(tmp_path, "advise", "--check", "weather.py", "log.jsonl")
    assert (ran.code, ran.hits, ran.stale) == (1, 3, 2), ran.out
