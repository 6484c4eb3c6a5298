"""Going through what a run did after a checkpoint, event by event, with a function that may stop it.

A checkpoint's place is the last call that had ended when it was made: times, which clocks set back, decide nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from agent_cache.errors import CheckpointError, ConfigurationError
from agent_cache.recording.file import RecordedCall
from agent_cache.resume.checkpoints import Checkpoint, CheckpointEntry

__all__ = ["AutoReplayManager", "ReplayReport", "events_after", "importance_of"]

Event: TypeAlias = RecordedCall | Checkpoint


def importance_of(event: Event) -> float:
    """The importance of an event, from 0 to 1.

    A checkpoint has its own. Of calls, one that failed or did not end has 0.9, a write 0.8, a request to a model 0.7,
    a time, a random number or another value of the environment 0.2, and any other 0.5.
    """
    if isinstance(event, Checkpoint):
        return event.importance
    if not event.outcome.keys().isdisjoint(("error", "cancelled", "unfinished")):
        return 0.9
    if event.is_write:
        return 0.8
    return {"llm": 0.7, "env": 0.2}.get(event.kind, 0.5)


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What a replay of events did.

    Attributes:
        replayed: the events that were replayed, in their order.
        filtered: the events after the checkpoint that `where` or `min_importance` left out, up to where it ended.
        cancelled_at: the event at which it was stopped, which was not replayed; None if it came to the end.
    """

    replayed: tuple[Event, ...]
    filtered: tuple[Event, ...]
    cancelled_at: Event | None = None


class AutoReplayManager:
    """Replays the events of a run that come after a checkpoint. Nothing is called again: a function is shown them.

    The function can bring a restored agent to the end of the run, step by step.

    Args:
        events: a journal that was read, or calls and checkpoints of one, the calls in the order in which they ended.
        after: the checkpoint. Calls that had ended when it was made are left out; one that was under way is replayed.
        where: ``where(event)`` says whether an event is replayed; may be a coroutine function.
        min_importance: events of less importance are left out; see `importance_of`.
        on_event: ``on_event(event)`` is called for each event before it counts as replayed; may be a coroutine
            function. False ends the replay before the event.

    Attributes:
        replayed: the events that have been replayed so far.

    Raises:
        CheckpointError: if the checkpoint is not of this run.
        ConfigurationError: if an argument cannot work.
    """

    def __init__(
        self,
        events: Any,
        *,
        after: Checkpoint,
        where: Callable[[Event], Any] | None = None,
        min_importance: float = 0,
        on_event: Callable[[Event], Any] | None = None,
    ) -> None:
        if not isinstance(after, Checkpoint):
            raise ConfigurationError(f"AutoReplayManager: after must be a Checkpoint, got {after!r}")
        if not (where is None or callable(where)) or not (on_event is None or callable(on_event)):
            raise ConfigurationError("AutoReplayManager: where and on_event must be functions of an event")
        if not isinstance(min_importance, int | float) or not 0 <= min_importance <= 1:
            raise ConfigurationError(f"AutoReplayManager: min_importance is from 0 to 1, got {min_importance!r}")
        self._events = events_after(events, after)
        self._where, self._min_importance, self._on_event = where, min_importance, on_event
        self.replayed: list[Event] = []

    async def run(self) -> ReplayReport:
        """Replay the events, from the first.

        Returns:
            What was replayed. What a function raises is raised here; `replayed` then has the events before.
        """
        replayed = self.replayed = []
        filtered: list[Event] = []
        for event in self._events:
            if importance_of(event) < self._min_importance or not await _answer(self._where, event):
                filtered.append(event)
                continue
            if self._on_event is not None and await _answer(self._on_event, event) is False:
                return ReplayReport(tuple(replayed), tuple(filtered), event)
            replayed.append(event)
        return ReplayReport(tuple(replayed), tuple(filtered))


async def _answer(function: Callable[[Event], Any] | None, event: Event) -> Any:
    answer = function is None or function(event)
    return await answer if inspect.isawaitable(answer) else answer


def events_after(source: Any, after: CheckpointEntry) -> list[Event]:
    """The events behind a checkpoint, each checkpoint behind the last call that had ended when it was made.

    Raises:
        CheckpointError: if the checkpoint is not of this run.
        ConfigurationError: if there are other things among the events.
    """
    is_journal = hasattr(source, "checkpoints")
    events = [*source.calls, *source.checkpoints] if is_journal else list(source)
    calls = [event for event in events if isinstance(event, RecordedCall)]
    checkpoints = [event for event in events if isinstance(event, Checkpoint)]
    if len(calls) + len(checkpoints) < len(events):
        raise ConfigurationError("AutoReplayManager: events are a journal, or its calls and checkpoints")
    places = {0: -1} | {call.id: index for index, call in enumerate(calls)}
    begin = places.get(after.after)
    if begin is None:
        raise CheckpointError(f"there is no call {after.after}, after which the checkpoint was made", "after")
    is_of_run = all(one.session_id == after.session_id for one in checkpoints)
    if not is_of_run or (is_journal and after.id not in {one.id for one in checkpoints}):
        raise CheckpointError("the checkpoint is of another run", "id")
    found: list[tuple[int, int, Event]] = [(index, 0, call) for index, call in enumerate(calls) if index > begin]
    later = [one for one in checkpoints if one.sequence > after.sequence]
    found += [(max(places.get(one.after, -1), begin), one.sequence, one) for one in later]
    return [event for _, _, event in sorted(found, key=lambda each: each[:2])]
