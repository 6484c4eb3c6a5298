"""Tags learned from one log hold on others: no answer is stale, in worlds that are not in any data."""

import itertools
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from agent_cache.testing import reset
from agent_cache.toolbox import Read, Toolbox, Write
from benchmarks.advise.retail_log import first_quarter, interleave
from benchmarks.advise.worlds import (
    WORLDS,
    Airline,
    Bank,
    Database,
    Inventory,
    Mail,
    Projects,
    Repositories,
    Station,
    World,
    play,
)
from benchmarks.recorded_runs import DataAbsentError, data_directory, load_retail_runs
from benchmarks.retail.store import load_store
from tests.harness.advice import (
    BY_NAME,
    UNKNOWN,
    Advice,
    LoggedCall,
    Outcome,
    Policy,
    is_failure,
    kind_by_name,
    mine,
    replay_all,
    rules_of,
    tags_of,
)
from tests.harness.slow import slow

SERVERS = {"filesystem": 9, "github": 9, "mcp git git": 9, "canvas": 9, "notion": 9, "order": 1}
LENGTH = 1_500
SEEDS = (1, 2, 3)
LIKE_OTHERS = [one for one in WORLDS if one not in (Repositories, Inventory, Station, Projects)]


@cache
def played(world: type[World], seed: int, length: int = LENGTH) -> list[LoggedCall]:
    """A log that many tests read."""
    return play(world, seed, length)


@cache
def learned(world: type[World], seed: int = 0, length: int = LENGTH) -> Advice:
    """What such a log says."""
    return mine(played(world, seed, length))


def replay(log: list[LoggedCall], policy: Policy, advice: Advice | None = None) -> Outcome:
    return replay_all(log, {"": policy}, advice=advice)[""]


def paths(advice: Advice, write: str, read: str) -> set[tuple[str, str]]:
    pairs = [link.pair for link in advice.links]
    return {(pair.write_path, pair.read_path) for pair in pairs if (pair.write, pair.read) == (write, read)}


def call(tool: str, result: object = None, error: str | None = None, **arguments: object) -> LoggedCall:
    kind = "read" if tool.startswith("get") else "write"
    return LoggedCall(tool, dict(arguments), UNKNOWN if error else result, error, kind=kind)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "world", [*(one for one in WORLDS if one not in LIKE_OTHERS), *slow(*LIKE_OTHERS)], ids=lambda world: world.__name__
)
@pytest.mark.parametrize("others", [1, *slow(len(SEEDS))])
def test_rules_learned_from_one_log_leave_no_answer_stale_in_others(world: type[World], others: int) -> None:
    advice = learned(world)
    policies: dict[str, Any] = {"advised": rules_of(advice), "roots": "roots", "none": "none", "oracle": "oracle"}
    for seed in SEEDS[:others]:
        outcomes = replay_all(played(world, seed), policies, advice=advice)
        assert outcomes["advised"].stale_answers == ()
        assert outcomes["advised"].hits > outcomes["roots"].hits
        assert outcomes["none"].stale > 0
        assert outcomes["oracle"].stale == 0


@pytest.mark.slow
@pytest.mark.parametrize("world", [Bank, Inventory, Airline, Repositories], ids=lambda world: world.__name__)
@pytest.mark.parametrize("options", [{"overlap": True}, {"is_told": False}], ids=["overlapped", "untold"])
def test_rules_hold_when_calls_overlapped_and_when_nothing_said_what_writes(
    world: type[World], options: dict[str, bool]
) -> None:
    advice = mine(play(world, 0, LENGTH, **options))
    for seed in SEEDS:
        assert replay(played(world, seed), rules_of(advice)).stale_answers == ()


@pytest.mark.slow
@pytest.mark.parametrize(("learned_from", "least"), [(list, 0.93), (first_quarter, 0.9)], ids=["all", "a quarter"])
def test_rules_learned_from_retail_runs_find_most_hits_of_an_oracle(learned_from: Any, least: float) -> None:
    """In other orders of the runs. Failed writes are ignored, as the oracle does."""
    try:
        directory = data_directory()
    except DataAbsentError as absent:
        pytest.skip(str(absent))
    runs, store = load_retail_runs(directory), load_store(directory)
    advice = mine(learned_from(interleave(runs, store, 0)))
    writes = {name for name, tool in advice.tools.items() if tool.kind == "write"}
    for seed in SEEDS:
        log = interleave(runs, store, seed)
        without_failures = [one for one in log if one.tool not in writes or not is_failure(one)]
        outcome = replay(without_failures, rules_of(advice))
        assert outcome.stale_answers == replay(log, rules_of(advice)).stale_answers == ()
        assert outcome.hits >= least * replay(log, "oracle", advice=advice).hits


# Which links


@pytest.mark.parametrize(
    ("world", "write", "read", "expected"),
    [
        (Bank, "transfer", "get_balance", {("from_account", "account_id"), ("to_account", "account_id")}),
        (Bank, "deposit", "get_balance", {("account_id", "account_id")}),  # and not the amount, which is a number, too
        (Airline, "cancel_booking", "get_flight", {("result[flight_number]", "flight_number")}),
        (Inventory, "ship_items", "get_stock", {("lines[][product_id]", "product_id")}),
        (Inventory, "reserve_for_shipment", "get_stock", {("result[reserved][product_id]", "product_id")}),
        pytest.param(
            Repositories, "update_issue", "get_issue", {("repo:number", "repo:number")}, marks=pytest.mark.slow
        ),
        pytest.param(Database, "update_row", "select_row", {("table:id", "table:id")}, marks=pytest.mark.slow),
    ],
)
def test_a_write_is_linked_through_the_ids_that_both_name(
    world: type[World], write: str, read: str, expected: set[tuple[str, str]]
) -> None:
    length = 2_000 if world in (Repositories, Database) else LENGTH
    assert paths(learned(world, 0, length), write, read) == expected


def test_answers_that_change_by_themselves_are_not_blamed_on_a_write() -> None:
    advice = learned(Station)
    for tool in ("get_time", "random_number"):
        assert advice.tools[tool].kind == "watch"
        assert advice.tools[tool].tags == ()
        assert not any(link.pair.read == tool for link in advice.links)


def test_tools_without_a_kind_are_told_apart_by_what_changes_after_them() -> None:
    foreign = {"get_balance": "konto", "deposit": "einzahlung"}
    log = play(Bank, 0, LENGTH)
    advice = mine([replace(one, kind=None, tool=foreign.get(one.tool, one.tool)) for one in log])
    assert advice.tools["einzahlung"].kind == "write"
    assert "change after it" in advice.tools["einzahlung"].reason
    assert advice.tools["get_account"].reason == BY_NAME
    assert advice.tools["konto"].kind != "read"  # nothing says that it has no effect


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("write", "check_in checkOutGuest filesystem-write_file mcp__git__git_commit canvas_delete_user comment_list"),
        ("read", "check_status list_users_and_groups log get_comments github__get_file mcp__git__git_log"),
        ("read", "canvas_get_user"),
        (None, "get_or_create_user search_replace get_and_increment log_workout load_data order_status"),
        (None, "resolve_ticket browser_select_option select_seat"),
    ],
)
def test_a_name_that_may_mean_a_write_is_no_read(kind: str | None, names: str) -> None:
    assert {name: kind_by_name(name, SERVERS) for name in names.split()} == dict.fromkeys(names.split(), kind)


def test_a_list_that_is_often_empty_depends_on_the_items_that_it_has_had() -> None:
    """A write meets each empty list, which says nothing of what it does to one with the item that it names."""
    log: list[LoggedCall] = []
    for turn in range(60):
        items = [{"drug_id": f"d-{turn % 12}"}] if turn % 4 == 0 else []
        look = call("get_drugs", {"items": items}, patient=f"p-{turn % 12}")
        log += [look, call("stop", "ok", drug_id=f"d-{100 + turn}"), look]
    assert paths(mine(log), "stop", "get_drugs")


@pytest.mark.parametrize(("writes", "is_dropped"), [(60, True), (110, False)])
def test_a_search_needs_a_hundred_writes_however_many_of_its_pages_they_left_alone(
    writes: int, is_dropped: bool
) -> None:
    pages = [[{"handle": f"h-{10 * page + number}"} for number in range(10)] for page in range(12)]
    log: list[LoggedCall] = []
    for number in range(writes):
        log += [call("get_users", {"users": users}, page=page) for page, users in enumerate(pages)]
        log.append(call("register", "ok", handle=f"h-{number}"))
    links = {(link.pair.write, link.pair.read) for link in mine(log).links if link.origin == "whole root"}
    assert (("register", "get_users") in links) is is_dropped


@pytest.mark.parametrize(
    ("where", "is_list", "linked"),
    [
        ("result", False, {("result[order_id]", "order_id")}),
        ("result", True, set()),
        ("arguments", True, {("sent[][order_id]", "order_id")}),
    ],
)
def test_of_items_that_a_write_answers_with_fewer_show_that_it_left_them_alone(
    where: str, is_list: bool, linked: set[tuple[str, str]]
) -> None:
    log: list[LoggedCall] = []
    for turn in range(60):
        look = call("get_order", 1, order_id=f"o-{turn % 10}")
        named: Any = {"order_id": f"o-{turn if turn < 7 else 100 + turn}"}
        named = {"sent": [named]} if is_list else named
        log += [look, call("ship", named) if where == "result" else call("ship", "ok", **named), look]
    assert paths(mine(log), "ship", "get_order") == linked


def test_a_write_that_shares_arguments_with_a_read_drops_its_answer_though_the_two_never_met() -> None:
    """A lamp is looked at before and after a zone of another floor was dimmed."""
    log: list[LoggedCall] = []
    for turn, (seen, floor, zone) in enumerate(itertools.product(range(6), repeat=3)):
        look = call("get_lamp", 0, floor=seen, zone=seen)
        if floor != zone:
            log += [look, call("dim", "ok", floor=floor, zone=zone, level=turn % 3), look]
    assert paths(mine(log), "dim", "get_lamp") == {("floor:zone", "floor:zone")}


# What a log does not show


def test_a_read_that_no_id_links_to_a_write_is_said_to_change_by_itself_perhaps() -> None:
    """The sensor does. Orders have an id that a write names, and the number of those shipped is of no single thing."""
    versions = {f"o-{number}": 0 for number in range(3)}
    log: list[LoggedCall] = []
    for turn in range(120):
        order_id = f"o-{turn % 3}"
        log += [
            call("get_sensor", {"celsius": turn // 7}, sensor_id=f"s-{turn % 4}"),
            call("get_order", {"v": versions[order_id]}, order_id=order_id),
            call("get_shipped", sum(versions.values())),
        ]
        if turn % 2:
            versions[order_id] += 1
            log.append(call("ship", "ok", order_id=order_id))
        else:
            log.append(call("ping", "pong", host=f"h-{turn % 5}.example"))
    advice = mine(log)
    reason = "it may change by itself: its answers change after ping, and no id says which"
    assert (advice.tools["get_sensor"].kind, advice.tools["get_sensor"].reason) == ("watch", reason)
    assert advice.tools["get_order"].kind == advice.tools["get_shipped"].kind == "read"


def test_an_answer_that_was_never_the_same_is_that_of_a_clock_whatever_was_written_between() -> None:
    log: list[LoggedCall] = []
    for turn, write in zip(range(30), itertools.cycle(("push", "ping", "note"))):
        log += [call("get_time", turn), call("get_total", turn // 3), call(write, "ok", text=f"text {turn}")]
    tools = mine(log).tools
    assert (tools["get_time"].kind, tools["get_total"].kind) == ("watch", "read")


def test_a_failed_write_refutes_nothing() -> None:
    log = [call("get_order", {"v": 1}, order_id="o-1")]
    for _ in range(40):
        log += [call("cancel", error="Refused: no", order_id="o-1"), call("get_order", {"v": 1}, order_id="o-1")]
    assert paths(mine(log), "cancel", "get_order") != set()


def test_a_write_that_overlapped_a_read_refutes_nothing() -> None:
    log: list[LoggedCall] = []
    for turn in range(40):
        read = LoggedCall("get_order", {"order_id": f"o-{turn}"}, 1, None, 10.0 * turn, 10.0 * turn + 1, kind="read")
        ping = LoggedCall("ping", {"text": f"t {turn}"}, "ok", None, 10.0 * turn + 0.5, 10.0 * turn + 2, kind="write")
        log += [read, ping, replace(read, started=10.0 * turn + 3, ended=10.0 * turn + 4)]
    assert paths(mine(log), "ping", "get_order") == {("", "")}


@pytest.mark.parametrize("named", ["n{}", "{}"], ids=["something else", "what the answer holds"])
def test_a_change_is_not_explained_by_writes_that_failed_if_one_succeeded(named: str) -> None:
    """The tool that changes answers is not acquitted by one that always fails beside it."""
    log: list[LoggedCall] = []
    for turn in range(40):
        log += [
            call("get_top", {"v": str(turn)}),
            call("push", "ok", text=f"text {turn}"),
            call("halve", error="Refused: odd", number=named.format(turn)),
            call("get_top", {"v": str(turn + 1)}),
        ]
    advice = mine(log)
    changes = {link.pair.write: link.changes for link in advice.links}
    assert changes == {"push": 40, "halve": 0}


def test_an_answer_that_is_missing_or_redacted_proves_nothing() -> None:
    log: list[LoggedCall] = []
    for turn in range(60):
        log.append(call("get_order", {"v": turn}, order_id="o-1"))
        log.append(call("ship", {"done": True}, order_id="o-2"))
    assert not any(link.changes for link in mine([replace(one, result=UNKNOWN) for one in log]).links)
    hidden = mine([replace(one, result={"v": None}, is_whole=False) if one.tool == "get_order" else one for one in log])
    assert [(link.origin, link.changes) for link in hidden.links] == [("whole root", 0)]


@pytest.mark.parametrize(
    ("world", "seed"),
    [(Station, 0), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((Station, 1), (Mail, 2), (Mail, 3)))],
)
def test_rules_learned_from_runs_that_begin_anew_hold_in_one_world(world: type[World], seed: int) -> None:
    """The sensor of the station changes by itself, and each time between two of the runs."""
    advice = mine(play(world, seed, 2_000, runs=40))
    assert advice.resets
    if world is Station:
        assert advice.tools["get_sensor"].kind == "watch"
    rules = rules_of(advice)
    assert replay(play(world, 11, 2_000), rules).stale_answers == ()
    assert {one.decorator.policy.scope for one in rules.values() if isinstance(one, Read | Write)} == {"session"}


VERBS = ("close", "open", "assign", "lock", "merge", "label", "archive", "cancel", "approve", "reject")


def of_servers(runs: int, *, does_touch: bool) -> list[LoggedCall]:
    """Files are read and tickets written, on two servers, by ten tools a few times each; that may change a file."""
    log, version = list[LoggedCall](), 0
    for turn in range(runs):
        log.append(LoggedCall("files__read_file", {"path": f"/f{turn % 5}"}, {"v": version}))
        log.append(LoggedCall("files__list_files", {"folder": "/"}, {"v": version}))
        if turn % 3 == 0:
            version += does_touch and turn % 2
            log.append(LoggedCall(f"tickets__{VERBS[turn // 3 % len(VERBS)]}_ticket", {"n": str(turn)}, "ok"))
    return log


@pytest.mark.parametrize("does_touch", [False, True])
def test_writes_of_another_server_are_judged_together(does_touch: bool) -> None:
    advice = mine(of_servers(90, does_touch=does_touch))
    dropped = {link.pair.read for link in advice.links if link.origin == "whole root"}
    assert ("files__read_file" in dropped or advice.tools["files__read_file"].kind == "watch") is does_touch


def test_an_agents_own_handler_is_no_tool() -> None:
    log: list[LoggedCall] = []
    for turn in range(40):
        log += [
            call("get_order", {"v": turn // 4}, order_id="o-1"),
            *([call("ship", "ok", order_id="o-1")] if turn % 4 == 3 else []),
            LoggedCall("handle", {"n": turn}, None, encloses=True),
            LoggedCall("log_line", {"text": f"turn {turn}"}, None),
        ]
    advice = mine(log, ignore=["log_*"])
    assert advice.ignored == ("handle", "log_line")
    assert advice.tools.keys() == {"get_order", "ship"}


def test_a_read_that_changes_by_itself_and_back_is_no_new_beginning_of_the_runs() -> None:
    """What a write has changed is still so in the next run: they share a state, whatever else goes to and fro."""
    log: list[LoggedCall] = []
    for run in range(20):
        status = call("get_status", {"is_open": run // 3 % 2 == 0})
        turn = [
            status,
            call("get_order", {"v": run}, order_id="o-1"),
            call("ship", "ok", order_id="o-1"),
            call("get_order", {"v": run + 1}, order_id="o-1"),
            status,
        ]
        log += [replace(one, run=str(run)) for one in turn]
    advice = mine(log)
    assert advice.is_shared
    assert advice.tools["get_status"].kind == "watch"
    assert replay(log, "advised", advice=advice).stale == 0


# The replay


@pytest.mark.parametrize("world", [Airline, Bank, Repositories, Projects, Mail], ids=lambda world: world.__name__)
def test_the_replay_counts_what_the_real_toolbox_does(world: type[World]) -> None:
    advice = learned(world)
    log = played(world, 1, 600)
    outcome = replay(log, "advised", advice=advice)
    reset()
    toolbox = Toolbox(rules_of(advice), namespace=f"replayed_{world.__name__.lower()}", unknown="pass")
    hits = stale = 0
    for one in log:
        ran = []

        def run(one: LoggedCall = one, ran: list[int] = ran) -> object:
            ran.append(1)
            if one.error is not None:
                raise LookupError(one.error)
            return one.result

        try:
            answer = toolbox.call_sync(one.tool, one.arguments, run)
        except LookupError:
            continue
        if not ran:
            hits += 1
            stale += answer != one.result
    reset()
    assert (outcome.hits, outcome.stale) == (hits, stale)


def test_a_stale_answer_names_the_writes_that_may_have_caused_it() -> None:
    log = [
        call("get_order", {"v": 1}, order_id="o-1"),
        call("get_order", {"v": 1}, order_id="o-1"),
        call("ship", "ok", order_id="o-1"),
        call("get_order", {"v": 2}, order_id="o-1"),
        call("ship", "ok", order_id="o-2"),
        call("get_order", {"v": 2}, order_id="o-1"),
    ]
    outcome = replay(log, {"get_order": Read("order:{order_id}"), "ship": Write("parcel:{order_id}")})
    assert (outcome.reads, outcome.hits, outcome.stale) == (4, 3, 2)
    first, second = outcome.stale_answers
    assert (first.served, first.loaded) == (log[3], log[0])
    assert first.writes == second.writes == (log[2],)


def test_a_failed_write_drops_what_it_names_and_the_root_of_what_its_result_would_name() -> None:
    rule = Write(["order:{order_id}", "user:{result[user_id]}"])
    assert tags_of(rule, call("ship", {"user_id": "u"}, order_id="o")) == ("order:o", "user:u")
    assert tags_of(rule, call("ship", error="Refused: no", order_id="o")) == ("order:o", "user")
    assert tags_of(Read("order:{order_id}"), call("get_order", {}, order_id="a:b")) == ("order:a%3Ab",)
    log = [call("get_user", 1, user_id="u"), call("ship", error="no", order_id="o"), call("get_user", 1, user_id="u")]
    rules = {"get_user": Read("user:{user_id}"), "ship": rule}
    assert replay(log, rules).hits == 0


@pytest.mark.parametrize("order_id", [None, 7.0, "absent"])
def test_a_write_of_the_replay_reaches_what_one_of_a_toolbox_does(order_id: Any) -> None:
    given = {} if order_id == "absent" else {"order_id": order_id}
    log = [call("get_order", 1, order_id="7"), call("ship", "ok", **given), call("get_order", 1, order_id="7")]
    rules: dict[str, Any] = {"get_order": Read("order:{order_id}"), "ship": Write("order:{order_id}")}
    box, runs = Toolbox(rules, namespace="replayed_writes"), []
    for one in log:
        box.call_sync(one.tool, one.arguments, lambda one=one: runs.append(one))
    assert (len(runs), replay(log, rules).hits) == (3, 0)


def test_a_read_that_a_write_overlapped_is_neither_stale_nor_stored() -> None:
    def made(tool: str, began: float, ended: float, result: object) -> LoggedCall:
        return LoggedCall(tool, {"order_id": "o-1"}, result, None, began, ended)

    log = [made("get_order", 0, 1, 1), made("ship", 2, 4, "ok"), made("get_order", 3, 5, 2), made("get_order", 6, 7, 2)]
    read = Read("order:{order_id}")
    assert replay(log, {"get_order": read, "ship": Write("parcel")}).stale == 1
    assert replay(log, {"get_order": read, "ship": Write("order:{order_id}")}).hits == 0


@pytest.mark.parametrize(
    "arguments",
    [
        {"sql": "UPDATE orders SET status = 'closed' WHERE id = 7"},
        {"q": "SELECT status FROM orders WHERE id = 7; delete  from orders where id = 7"},
        {"statement": "with old as (select 1) delete from orders"},
        {"query": 'mutation Close { close(id: "7") { id } }'},
        {"url": "https://example.com/orders/7", "method": "DELETE"},
        {"command": "cat order-7"},
        {"code": "orders[7].close()"},
    ],
)
def test_a_tool_whose_arguments_say_what_it_does_is_no_read_by_its_name(arguments: dict[str, Any]) -> None:
    log = [
        LoggedCall("get_data", {"query": "how to select a gift from a shop", "code": "BER"}, 1),
        LoggedCall("get_data", arguments, 1),
    ]
    assert mine(log[:1]).tools["get_data"].kind == "read"
    followed = [call("get_order", 1, order_id=7), log[1]] * 120
    for seen in (log, [*log, *followed]):  # what harmless commands show says nothing of the next one
        advice = mine(seen).tools["get_data"]
        assert (advice.kind, advice.reason) == ("unknown", "its arguments, and not its name, say whether it writes")


def test_where_no_answer_is_followed_nothing_is_said_to_leave_answers_alone() -> None:
    """Neither where no tool is known to read, nor where every read changes by itself."""
    turns = [[LoggedCall("alpha", {"id": 1}, n), LoggedCall("beta", {"id": 1}, "ok")] for n in range(40)]
    log = [one for turn in turns for one in turn]
    assert {tool.kind for tool in mine(log).tools.values()} == {"unknown"}
    clock = [LoggedCall("get_time", {}, n) for n in range(40)]
    assert {name: one.kind for name, one in mine([*clock, *log]).tools.items()} == {
        "get_time": "watch", "alpha": "unknown", "beta": "unknown",
    }  # fmt: skip
