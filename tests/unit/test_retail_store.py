"""The judge of runs on the retail store, on one order. That the store itself is right, all recorded calls show."""

from __future__ import annotations

import gzip
import json
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from benchmarks.recorded_runs import DATA_VARIABLE, DataAbsentError, data_directory, load_runs
from benchmarks.retail.store import Record, RetailStore
from benchmarks.retail.truth import ObservedStore, Verdict, Witness

MOVED = {"address1": "1 New Street", "address2": "", "city": "Oslo", "state": "OS", "country": "NO", "zip": "00010"}


@pytest.fixture
def store() -> RetailStore:
    card = {"source": "gift_card", "id": "gift_card_1", "balance": 20.0}
    ada: Record = {"payment_methods": {"gift_card_1": card}, "orders": ["#P"]}
    order: Record = {
        "order_id": "#P",
        "user_id": "ada_1",
        "address": {"zip": "10001"},
        "items": [],
        "status": "pending",
        "payment_history": [{"transaction_type": "payment", "amount": 10.0, "payment_method_id": "gift_card_1"}],
    }
    return RetailStore({"ada_1": ada}, {"#P": order}, {})


def cancel(observed: ObservedStore) -> None:
    observed.answer("cancel_pending_order", {"order_id": "#P", "reason": "no longer needed"})


def move_order(observed: ObservedStore) -> None:
    observed.answer("modify_pending_order_address", {"order_id": "#P", **MOVED})


def read_order(store: RetailStore) -> str:
    return store.answer("get_order_details", {"order_id": "#P"})


def watching_order(observed: ObservedStore) -> AbstractContextManager[Witness]:
    return observed.watching("get_order_details", {"order_id": "#P"})


def test_an_answer_is_judged_by_the_writes_that_had_ended_when_its_read_began(store: RetailStore) -> None:
    def read_now() -> Witness:
        with watching_order(observed) as witness:
            return witness

    observed, answers = ObservedStore(store), [read_order(store)]
    with watching_order(observed) as around, observed.writing():
        move_order(observed)
        answers.append(read_order(store))
        with observed.writing():
            pass  # which changes nothing
        within_one = read_now()
        with observed.writing():
            cancel(observed)
        after_one = read_now()
    answers += [read_order(store), "what was never true"]
    true, overlapped, stale = Verdict.TRUE, Verdict.OVERLAPPED, Verdict.STALE
    witnesses = [around, within_one, after_one, read_now()]
    assert [[witness.verdict(answer) for answer in answers] for witness in witnesses] == [
        [true, true, true, stale],
        [overlapped, true, stale, stale],
        [stale, stale, true, stale],  # though the older write still runs
        [stale, stale, true, stale],
    ]


def test_the_judge_does_not_count_its_own_reads(store: RetailStore) -> None:
    observed = ObservedStore(store)
    with watching_order(observed), observed.writing():
        observed.answer("get_order_details", {"order_id": "#P"})
        cancel(observed)
    assert observed.reads_executed == 1


def test_lists_that_were_recorded_as_text_arrive_as_lists(tmp_path: Path) -> None:
    call = {
        "tool": "return_delivered_order_items",
        "args": {"order_id": "#D", "item_ids": "['71', '72']"},
        "result": "",
        "error": False,
    }
    call |= {"kind": "write", "turn": 1, "batch": 1}
    with gzip.open(tmp_path / "set.jsonl.gz", "wt", encoding="utf-8") as lines:
        lines.write(json.dumps({"id": "run", "success": True, "calls": [call]}) + "\n")
    (run,) = load_runs(tmp_path, "set")
    assert run.calls[0].arguments == {"order_id": "#D", "item_ids": ["71", "72"]}


def test_missing_data_is_an_error_that_names_the_folder_and_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    with pytest.raises(DataAbsentError, match=DATA_VARIABLE) as caught:
        data_directory()
    assert str(tmp_path) in str(caught.value)
