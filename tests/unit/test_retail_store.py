"""The retail store of the benchmark, on a small database of its own: what the acceptance run is judged by."""

from __future__ import annotations

import gzip
import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recorded_runs import DATA_VARIABLE, DataAbsentError, data_directory, load_runs
from benchmarks.retail.store import Record, RetailStore
from benchmarks.retail.truth import ObservedStore, Verdict, Witness

MOVED = {"address1": "1 New Street", "address2": "", "city": "Oslo", "state": "OS", "country": "NO", "zip": "00010"}


def order(order_id: str, status: str, method: str = "gift_card_1") -> Record:
    return {
        "order_id": order_id,
        "user_id": "ada_1",
        "address": {"zip": "10001"},
        "items": [{"name": "Mug", "product_id": "7", "item_id": "71", "price": 10.0, "options": {"size": "S"}}],
        "status": status,
        "payment_history": [{"transaction_type": "payment", "amount": 10.0, "payment_method_id": method}],
    }


@pytest.fixture
def store() -> RetailStore:
    ada: Record = {
        "name": {"first_name": "Ada", "last_name": "Byron"},
        "address": {"zip": "10001"},
        "email": "ada@example.com",
        "payment_methods": {
            "gift_card_1": {"source": "gift_card", "id": "gift_card_1", "balance": 20.0},
            "paypal_1": {"source": "paypal", "id": "paypal_1"},
        },
        "orders": ["#P", "#D"],
    }
    mugs: Record = {
        "name": "Mug",
        "product_id": "7",
        "variants": {
            "71": {"item_id": "71", "options": {"size": "S"}, "available": True, "price": 10.0},
            "72": {"item_id": "72", "options": {"size": "L"}, "available": True, "price": 25.5},
            "73": {"item_id": "73", "options": {"size": "XL"}, "available": False, "price": 30.0},
            "74": {"item_id": "74", "options": {"size": "XXL"}, "available": True, "price": 99.0},
        },
    }
    orders = [order("#P", "pending"), order("#D", "delivered", "paypal_1")]
    return RetailStore({"ada_1": ada}, {o["order_id"]: o for o in orders}, {"7": mugs, "3": {"name": "Bag"}})


def balance(store: RetailStore) -> float:
    amount: float = store.users["ada_1"]["payment_methods"]["gift_card_1"]["balance"]
    return amount


def swap(order_id: str, new_item_id: str, method: str) -> dict[str, Any]:
    ids = {"item_ids": ["71"], "new_item_ids": [new_item_id]}
    return {"order_id": order_id, **ids, "payment_method_id": method}


PENDING_ITEMS, PENDING_PAYMENT = "modify_pending_order_items", "modify_pending_order_payment"
EXCHANGE, RETURN = "exchange_delivered_order_items", "return_delivered_order_items"
CANCEL = "cancel_pending_order"


@pytest.mark.parametrize(
    ("tool", "arguments", "text"),
    [
        ("get_order_details", {"order_id": "#X"}, "order not found"),
        ("find_user_id_by_email", {"email": "bob@example.com"}, "user not found"),
        (CANCEL, {"order_id": "#D", "reason": "?"}, "non-pending order cannot be cancelled"),
        (CANCEL, {"order_id": "#P", "reason": "?"}, "invalid reason"),
        (PENDING_ITEMS, {**swap("#P", "72", "paypal_1"), "item_ids": ["71", "71"]}, "71 not found"),
        (PENDING_ITEMS, swap("#P", "73", "paypal_1"), "new item 73 not found or available"),
        (PENDING_ITEMS, swap("#P", "72", "visa"), "payment method not found"),
        (PENDING_ITEMS, swap("#P", "74", "gift_card_1"), "insufficient gift card balance to pay for the new item"),
        (
            PENDING_PAYMENT,
            {"order_id": "#P", "payment_method_id": "gift_card_1"},
            "the new payment method should be different from the current one",
        ),
        ("modify_user_address", {"user_id": "bob", **MOVED}, "user not found"),
        (EXCHANGE, swap("#P", "72", "paypal_1"), "non-delivered order cannot be exchanged"),
        (RETURN, {"order_id": "#D", "item_ids": ["72"], "payment_method_id": "paypal_1"}, "some item not found"),
    ],
)
def test_a_refused_call_says_why_and_changes_nothing(
    store: RetailStore, tool: str, arguments: dict[str, Any], text: str
) -> None:
    before = json.dumps([store.users, store.orders])
    assert store.answer(tool, arguments) == f"Error: {text}"
    assert json.dumps([store.users, store.orders]) == before
    assert store.version == 0


def test_cancelling_refunds_the_gift_card_of_a_user_that_the_arguments_do_not_name(store: RetailStore) -> None:
    answer = json.loads(store.answer("cancel_pending_order", {"order_id": "#P", "reason": "no longer needed"}))
    assert answer["status"] == "cancelled"
    assert answer["payment_history"][-1]["transaction_type"] == "refund"
    assert balance(store) == 30.0


def test_changing_items_and_the_payment_moves_the_balance_of_the_gift_card(store: RetailStore) -> None:
    answer = json.loads(store.answer(PENDING_ITEMS, swap("#P", "72", "gift_card_1")))
    assert (answer["items"][0]["item_id"], answer["payment_history"][-1]["amount"]) == ("72", 15.5)
    assert balance(store) == 4.5


def test_changing_the_payment_gives_back_what_the_gift_card_paid(store: RetailStore) -> None:
    arguments = {"order_id": "#P", "payment_method_id": "paypal_1"}
    history = json.loads(store.answer(PENDING_PAYMENT, arguments))["payment_history"]
    assert [entry["transaction_type"] for entry in history] == ["payment", "payment", "refund"]
    assert balance(store) == 30.0


def test_a_user_who_moved_is_found_under_the_new_zip(store: RetailStore) -> None:
    ada = {"first_name": "ADA", "last_name": "byron"}
    assert store.answer("find_user_id_by_name_zip", {**ada, "zip": "10001"}) == "ada_1"
    store.answer("modify_user_address", {"user_id": "ada_1", **dict(reversed(MOVED.items()))})
    assert list(store.users["ada_1"]["address"]) == list(MOVED)
    assert store.answer("find_user_id_by_name_zip", {**ada, "zip": "10001"}) == "Error: user not found"
    assert store.answer("find_user_id_by_name_zip", {**ada, "zip": "00010"}) == "ada_1"


def test_a_copy_is_not_reached_by_writes_to_the_original(store: RetailStore) -> None:
    copy = store.copy()
    store.answer("cancel_pending_order", {"order_id": "#P", "reason": "ordered by mistake"})
    assert copy.orders["#P"]["status"] == "pending"
    assert balance(copy) == 20.0


def cancel(observed: ObservedStore) -> None:
    observed.answer("cancel_pending_order", {"order_id": "#P", "reason": "no longer needed"})


def move_order(observed: ObservedStore) -> None:
    observed.answer("modify_pending_order_address", {"order_id": "#P", **MOVED})


def read_order(store: RetailStore) -> str:
    return store.answer("get_order_details", {"order_id": "#P"})


def watching_order(observed: ObservedStore) -> AbstractContextManager[Witness]:
    return observed.watching("get_order_details", {"order_id": "#P"})


def test_a_read_is_true_if_its_answer_was_so_at_some_moment_of_the_call(store: RetailStore) -> None:
    observed = ObservedStore(store)
    before = read_order(store)
    with watching_order(observed) as observation, observed.writing():
        cancel(observed)
    assert observation.verdict(before) is Verdict.TRUE
    assert observation.verdict(read_order(store)) is Verdict.TRUE


def test_what_a_write_replaced_before_the_read_began_is_stale(store: RetailStore) -> None:
    observed = ObservedStore(store)
    before = read_order(store)
    with observed.writing():
        cancel(observed)
    with watching_order(observed) as observation:
        pass
    assert observation.verdict(before) is Verdict.STALE
    assert observation.verdict(read_order(store)) is Verdict.TRUE


def test_what_a_write_has_replaced_is_overlapped_for_a_read_that_begins_while_it_runs(store: RetailStore) -> None:
    observed = ObservedStore(store)
    before = read_order(store)
    with observed.writing():
        cancel(observed)
        with watching_order(observed) as observation:
            pass
    assert observation.verdict(before) is Verdict.OVERLAPPED
    assert observation.verdict("what was never true") is Verdict.STALE


def test_what_a_finished_write_replaced_is_stale_though_an_older_write_still_runs(store: RetailStore) -> None:
    observed = ObservedStore(store)
    first = read_order(store)
    with observed.writing():
        move_order(observed)
        second = read_order(store)
        with observed.writing():
            cancel(observed)
        with watching_order(observed) as observation:
            pass
    assert [observation.verdict(first), observation.verdict(second)] == [Verdict.STALE, Verdict.STALE]


def test_the_judge_does_not_count_its_own_reads(store: RetailStore) -> None:
    observed = ObservedStore(store)
    with watching_order(observed), observed.writing():
        observed.answer("get_order_details", {"order_id": "#P"})
        cancel(observed)
    assert observed.reads_executed == 1


def test_lists_that_were_recorded_as_text_arrive_as_lists(tmp_path: Path) -> None:
    call = {"tool": RETURN, "args": {"order_id": "#D", "item_ids": "['71', '72']"}, "result": "", "error": False}
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
