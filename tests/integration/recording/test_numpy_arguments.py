"""Numbers and arrays of numpy in arguments are known by their values."""

from collections.abc import Callable
from typing import Any

import pytest

from agent_cache.recording import CassetteError, DivergenceError, intercept, record, replay
from agent_cache.recording.arguments import plain_arguments

np = pytest.importorskip("numpy", reason="numpy is not installed")

PAIRS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "integers": lambda: (np.int64(500), np.int64(50_000)),
    "integers of other sizes": lambda: (np.int64(1), np.int32(1)),
    "an integer and a number": lambda: (np.int64(1), 1),
    "floats": lambda: (np.float64(0.5), np.float64(0.25)),
    "a float and a number": lambda: (np.float64(0.5), 0.5),
    "floats of other sizes": lambda: (np.float64(0.5), np.float32(0.5)),
    "zeros": lambda: (np.float32(0.0), np.float32(-0.0)),
    "long floats": lambda: (np.longdouble("0.1"), np.longdouble("0.2")),
    "truths": lambda: (np.bool_(True), np.bool_(False)),
    "a truth and a bool": lambda: (np.bool_(True), True),
    "complex": lambda: (np.complex64(1 + 2j), np.complex64(1 + 3j)),
    "texts": lambda: (np.str_("a"), np.str_("b")),
    "a text and a str": lambda: (np.str_("a"), "a"),
    "bytes": lambda: (np.bytes_(b"a"), np.bytes_(b"b")),
    "days": lambda: (np.datetime64("2026-01-01"), np.datetime64("2026-01-02")),
    "days and seconds": lambda: (np.datetime64("2026-01-01", "D"), np.datetime64("2026-01-01", "s")),
    "no day": lambda: (np.datetime64("NaT"), np.datetime64("2026-01-02")),
    "spans": lambda: (np.timedelta64(1, "D"), np.timedelta64(2, "D")),
    "arrays": lambda: (np.array([1, 2]), np.array([1, 3])),
    "an array and a list": lambda: (np.array([1, 2]), [1, 2]),
    "arrays of other types": lambda: (np.array([1, 2]), np.array([1.0, 2.0])),
    "arrays of other shapes": lambda: (np.zeros((2, 3)), np.zeros((3, 2))),
    "empty arrays of other shapes": lambda: (np.zeros((0, 3)), np.zeros((0, 2))),
    "an array without dimensions": lambda: (np.array(1), np.array([1])),
    "long arrays": lambda: (np.arange(5000), np.arange(1, 5001)),
    "long arrays of times": lambda: (np.arange(5000).astype("M8[s]"), np.arange(5000).astype("M8[m]")),
    "long arrays of texts": lambda: (np.array(["a"] * 5000), np.array(["a"] * 4999 + ["b"])),
    "long arrays of objects": lambda: (np.array([1, None] * 5000), np.array([2, None] * 5000)),
    "arrays of texts": lambda: (np.array(["a", "bc"]), np.array(["a", "bd"])),
    "arrays of objects": lambda: (np.array([{"a": 1}, None]), np.array([{"a": 2}, None])),
    "records": lambda: (np.array([(1, 2.0)], "i4,f8"), np.array([(1, 3.0)], "i4,f8")),
    "names of records": lambda: (np.array([(1,)], [("a", "i4")]), np.array([(1,)], [("b", "i4")])),
    "one record": lambda: (np.array([(1, 2.0)], "i4,f8")[0], np.array([(1, 3.0)], "i4,f8")[0]),
    "long floats in arrays": lambda: (np.array([1, 2], np.longdouble), np.array([1, 3], np.longdouble)),
    "types of numpy": lambda: (np.dtype("i4"), np.dtype("i8")),
    "functions of numpy": lambda: (np.add, np.subtract),
}  # fmt: skip


@pytest.mark.parametrize("case", PAIRS)
def test_another_value_is_another_call(case, path):
    for at in range(2):
        runs: list[int] = []
        refund = intercept(lambda amount: runs.append(1), name="refund")  # noqa: B023 - called in this round
        with record(path):
            refund({"amount": PAIRS[case]()[at]})
        with replay(path, strict=True):
            refund({"amount": PAIRS[case]()[at]})
        with pytest.raises(DivergenceError), replay(path, strict=True):
            refund({"amount": PAIRS[case]()[1 - at]})
        assert runs == [1]


def test_an_array_is_known_by_its_items_wherever_they_are():
    array = np.arange(6).reshape(2, 3)
    for other in (np.asfortranarray(array), np.array(array, ">i8"), np.arange(12).reshape(2, 6)[:, ::2] // 2):
        assert plain(other) == plain(array) == {"$ndarray": ["int64", [2, 3], [0, 1, 2, 3, 4, 5]]}
    long = np.arange(4000.0)
    assert plain(long) == plain(np.arange(8000.0)[::2] / 2) == plain(long.astype(">f8"))
    assert plain(np.int64(5)) == {"$numpy": ["int64", 5]}
    assert plain(np.datetime64("1970-01-02")) == {"$numpy": ["datetime64[D]", 1]}


def plain(value: Any) -> Any:
    return plain_arguments({"value": value})[0]["value"]


def test_an_array_of_another_class_is_not_recorded(path):
    ask = intercept(lambda value: 1, name="ask")
    with pytest.raises(CassetteError, match="cannot be recorded"), record(path):
        ask(np.ma.array([1], mask=[True]))
