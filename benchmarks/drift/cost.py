"""Measures what a detector adds to a call, and how that grows with the length of a run."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from agent_cache.recording import (
    Baseline,
    CallListener,
    Cassette,
    DriftDetector,
    RecordedCall,
    intercept,
    observe,
    record,
)

SIZES: Final = (1_000, 10_000)
_ROUNDS: Final = 7
_TEXT: Final = "x" * 400


@intercept(name="shop:get_order")
def _get_order(order_id: int) -> dict[str, object]:
    return {"id": order_id, "status": "pending", "items": [{"sku": "a", "n": 1}, {"sku": "b", "n": 2}], "text": _TEXT}


class _Nothing:
    """A listener that does nothing."""

    def on_start(self, call: RecordedCall) -> None: ...

    def on_end(self, call: RecordedCall) -> None: ...


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a run of so many calls, in microseconds of processor time a call.

    Attributes:
        calls: their number.
        what: what the run does.
        online: the detector, over a listener that does nothing.
        at_end: what the end of the run takes.
        compared: `Baseline.compare` of two recordings.
    """

    calls: int
    what: str
    online: float
    at_end: float
    compared: float


def measured(advance: Callable[[], None] = lambda: None) -> list[Cost]:
    """The cost of runs that do the same, and of runs in which a call has moved."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for size in SIZES:
            calls = list(range(size))
            baseline = Baseline(_recorded(calls, Path(folder) / "base.jsonl"))
            for what, order in (("the same", calls), ("one call moved", [*calls[1:], calls[0]])):
                found.append(_cost(baseline, what, order, Path(folder) / "new.jsonl"))
                advance()
    return found


def _cost(baseline: Baseline, what: str, order: list[int], path: Path) -> Cost:
    cassette = _recorded(order, path)
    online, at_end, compared = [], [], []
    for _ in range(_ROUNDS):
        detector = DriftDetector(baseline)
        bare, _ = _observed(_Nothing(), order)
        watched, end = _observed(detector, order)
        online.append((watched - bare) / len(order) * 1e6)
        at_end.append(end / len(order) * 1e6)
        gc.collect()
        began = time.process_time()
        baseline.compare(cassette)
        compared.append((time.process_time() - began) / len(order) * 1e6)
    return Cost(len(order), what, median(online), median(at_end), median(compared))


def _observed(listener: CallListener, order: list[int]) -> tuple[float, float]:
    gc.collect()
    block = observe(listener)
    block.__enter__()
    began = time.process_time()
    for number in order:
        _get_order(number)
    done = time.process_time()
    block.__exit__(None, None, None)
    return done - began, time.process_time() - done


def _recorded(order: list[int], path: Path) -> Cassette:
    with record(path):
        for number in order:
            _get_order(number)
    return Cassette.load(path)
