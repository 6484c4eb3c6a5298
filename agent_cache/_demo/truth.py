"""Whether an answer was true: compared with what the store itself says, at every moment that counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

__all__ = ["Truth", "Witness"]

Question = tuple[str, tuple[object, ...]]


@dataclass(slots=True, eq=False)
class _Write:
    is_running: bool = True


@dataclass(frozen=True, slots=True)
class _Moment:
    """From here on the store's answer to one question was this; `since` is the write that made it so."""

    answer: object
    since: _Write | None


@dataclass(frozen=True, slots=True)
class Witness:
    """One read in progress: everything that the store has answered to its question, and where the read began."""

    history: list[_Moment]
    began: int

    def confirms(self, answer: object) -> bool:
        """Whether the answer was true at some moment from the start of the call until now.

        A read that overlaps a write may be answered from before or after it. Nobody has been told of a write that has
        not returned, so one that was running when the read began counts as an overlap, wherever its effect lay.
        """
        return any(moment.answer == answer for moment in self.history[self.began :])


class Truth:
    """What the store has said, and since when.

    Every question that an agent has asked is put to the store again, past the cache, at the instant of each change.

    Args:
        ask: answers a question from the store as it is now.
    """

    def __init__(self, ask: Callable[[str, tuple[object, ...]], object]) -> None:
        self._ask = ask
        self._histories: dict[Question, list[_Moment]] = {}
        self._write: ContextVar[_Write | None] = ContextVar("write", default=None)

    def watch(self, tool: str, arguments: tuple[object, ...]) -> Witness:
        """Begin to watch one read."""
        history = self._histories.setdefault((tool, arguments), [])
        if not history:
            history.append(_Moment(self._ask(tool, arguments), None))
        began = len(history) - 1
        while (write := history[began].since) is not None and write.is_running:
            began -= 1
        return Witness(history, began)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Surround a call of a write tool, up to the moment when its caller has its answer."""
        write = _Write()
        token = self._write.set(write)
        try:
            yield
        finally:
            write.is_running = False
            self._write.reset(token)

    def changed(self) -> None:
        """The store has changed, at this instant, by the write that is being made."""
        for (tool, arguments), history in self._histories.items():
            answer = self._ask(tool, arguments)
            if answer != history[-1].answer:
                history.append(_Moment(answer, self._write.get()))
