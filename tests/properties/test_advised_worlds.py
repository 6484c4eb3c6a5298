"""Random worlds: records that refer to others, writes with hidden effects. Advised tags leave nothing stale."""

import json
import random
from typing import Any

from hypothesis import strategies as st

from agent_cache import Toolbox
from tests.harness.advice import UNKNOWN, LoggedCall, mine, replay_all, rules_of
from tests.harness.searches import searched

FORMS = st.sampled_from(["{kind}_{n}", "{n}", "#{kind}{n}", "{kind}:{n}", "é{n}-{kind}"])
NAMES = st.sampled_from(["{kind}_id", "id", "{kind}", "{kind}Number"])


@st.composite
def worlds(draw: st.DrawFn) -> dict[str, Any]:
    kinds = draw(st.lists(st.sampled_from(["order", "user", "ticket", "room"]), min_size=2, max_size=3, unique=True))
    ids = {kind: draw(FORMS) for kind in kinds}
    names = {kind: draw(NAMES) for kind in kinds}
    writes = {}
    for kind in kinds:
        # A write names an entity in its arguments, and may change the one that its record refers to as well.
        writes[f"update_{kind}"] = {
            "kind": kind,
            "cascade": draw(st.booleans()),
            "says": draw(st.booleans()),
            "fails": draw(st.booleans()),
        }
    return {"kinds": kinds, "ids": ids, "names": names, "writes": writes, "with_list": draw(st.booleans())}


def log_of(world: dict[str, Any], seed: int, calls: int) -> list[LoggedCall]:
    chance = random.Random(seed)
    kinds = world["kinds"]
    size = 8

    def made(kind: str, n: int) -> Any:
        text = world["ids"][kind].format(kind=kind, n=n)
        return int(text) if text.isdecimal() else text

    versions = {(kind, n): 0 for kind in kinds for n in range(1, size + 1)}
    refers = {
        (kind, n): (kinds[(at + 1) % len(kinds)], n * 3 % size + 1)
        for at, kind in enumerate(kinds)
        for n in range(1, size + 1)
    }
    log = []
    for at in range(calls):
        kind, n = chance.choice(kinds), chance.randint(1, size)
        arguments = {world["names"][kind].format(kind=kind): made(kind, n)}
        error, result = None, None
        if chance.random() < 0.2:
            tool, write = f"update_{kind}", world["writes"][f"update_{kind}"]
            arguments["amount"] = chance.randint(1, size)
            other = refers[kind, n]
            if write["fails"] and chance.random() < 0.3:
                error = "Refused: no"
            else:
                versions[kind, n] += 1
                if write["cascade"]:
                    versions[other] += 1
                result = {f"{other[0]}_id": made(*other)} if write["says"] else {"done": True}
        elif world["with_list"] and chance.random() < 0.15:
            tool, arguments = f"list_{kind}", {}
            result = [versions[kind, m] for m in range(1, size + 1)]
        else:
            tool = f"get_{kind}"
            result = {"version": versions[kind, n], "ref": made(*refers[kind, n]), "open": True, "day": "2026-01-01"}
        log.append(
            LoggedCall(tool, json.loads(json.dumps(arguments)), result, error, float(at), at + 0.5, "1",
                       "write" if tool.startswith("update") else "read")
        )  # fmt: skip
    return log


@searched(3, 25, worlds(), st.integers(0, 1_000))
def test_tags_learned_from_one_log_hold_on_another(world: dict[str, Any], seed: int) -> None:
    advice = mine(log_of(world, seed, 900))
    outcome = replay_all(log_of(world, seed + 1, 900), {"": rules_of(advice)})[""]
    assert outcome.stale_answers == ()
    assert outcome.reads > 0


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
CALLS = st.builds(
    LoggedCall,
    tool=st.sampled_from(["get_x", "set_x", "a:b.c", "{odd}", "", "läuft"]),
    arguments=st.dictionaries(
        st.sampled_from(["id", "result", "a b", "{x}", "x.y", "x[0]", "", "é"]), VALUES, max_size=3
    ),
    result=VALUES | st.just(UNKNOWN),
    error=st.none() | st.just("KeyError: 1") | st.just("TimeoutError: late"),
    run=st.sampled_from(["", "1", "2"]),
    kind=st.sampled_from([None, "read", "write"]),
    is_keyed=st.booleans(),
    is_whole=st.booleans(),
)


@searched(15, 150, st.lists(CALLS, max_size=60))
def test_whatever_a_log_holds_its_advice_can_be_used(log: list[LoggedCall]) -> None:
    """Names, values and forms of every kind: the templates compile, and a replay of the log itself is not stale."""
    advice = mine(log)
    assert set(advice.tools) == {call.tool for call in log}
    rules = {name or "nameless": rule for name, rule in rules_of(advice).items()}
    Toolbox(rules, namespace="any")
    policies: Any = {name: name for name in ("none", "roots", "advised", "oracle")}
    for policy, outcome in replay_all(log, policies, advice=advice).items():
        assert outcome.stale <= outcome.hits <= outcome.reads
        if policy == "advised":
            assert outcome.stale_answers == ()
