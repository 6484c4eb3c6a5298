"""`observe`: shows the calls of a run to listeners while they are made, as a recording would write them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import msgspec

from agent_cache.errors import ConfigurationError
from agent_cache.recording.api import Block
from agent_cache.recording.cassette_file import RecordedCall
from agent_cache.recording.functions import ActiveCall
from agent_cache.recording.http.exchange import Http
from agent_cache.recording.recorder import CallLog, Recorder
from agent_cache.recording.redaction import Redaction, redaction_of
from agent_cache.recording.tagged import decode, encode

__all__ = ["CallListener", "observe"]

_LOG = logging.getLogger("agent_cache")


@runtime_checkable
class CallListener(Protocol):
    """Sees the calls of an observed run.

    Calls of one observation come in one order, also from several threads, in the thread that makes the call, which
    waits meanwhile. A listener that raises is removed, and the error is logged: the run does not notice.

    It may also have these attributes, which `observe` asks for:

    - ``redaction``: a `Redaction` that is applied with that of `observe`, so that calls have the arguments and the
      digests of a recording that was made with it.
    - ``http``: an `Http`, or None: which requests it is shown, if `observe` is not given ``http=``.
    - ``on_close(error)``: called at the end of the block, with the exception that leaves it or None.
    """

    def on_start(self, call: RecordedCall) -> None:
        """A call starts. Its outcome is ``{"unfinished": True}``; `tags`, tokens and duration are not known yet."""

    def on_end(self, call: RecordedCall) -> None:
        """A call has ended, or the block has, and the call has not: then its outcome is ``{"unfinished": True}``.

        `after` is the id of the last call that had ended when it started.
        """


class observe(Block[Recorder]):  # noqa: N801 - used as a function, as `record`
    """Show the calls of a run to listeners: ``with observe(listener): ...``

    It sees what `record` would write, and writes nothing. Recordings and replays around it get the calls, too. Calls
    whose arguments do not tell them from others are shown all the same.

    Args:
        listeners: each a `CallListener`, such as a `DriftDetector`.
        redact: as in `record`.
        http: as in `record`; by default as the listeners want it.

    Raises:
        ConfigurationError: if an argument cannot work.
    """

    ends_refusal = False  # it makes no live call a recorded one

    def __init__(self, *listeners: CallListener, redact: Any = None, http: bool | Http | None = None) -> None:
        for listener in listeners:
            if isinstance(listener, type) or not isinstance(listener, CallListener):
                raise ConfigurationError(
                    f"observe: {listener!r} is no listener; give it the methods on_start(call) and on_end(call)"
                )
        redaction = redaction_of(redact)
        for listener in listeners:
            wanted = getattr(listener, "redaction", None)
            if wanted is not None:
                redaction = redaction.joined(_described(wanted))
            if http is None:
                http = getattr(listener, "http", None)
        self._listeners = listeners
        self._redaction = redaction
        self._http = Http.of(http, "observe")

    def _open(self) -> tuple[Recorder, Recorder]:
        log = _Observation(self._redaction, self._listeners)
        recorder = Recorder(None, "observe", self._redaction, writer=log, http=self._http)
        return recorder, recorder


def _described(redaction: Redaction) -> dict[str, Any]:
    """Its rules but for the hook, which a listener cannot ask for: it is the user's, and given as ``redact=``."""
    return redaction.without_hook().describe()


class _Observation(CallLog):
    """Shows calls to listeners, and keeps none."""

    needs_identity = False

    def __init__(self, redaction: Redaction, listeners: tuple[CallListener, ...]) -> None:
        super().__init__(redaction)
        self._listeners = listeners

    def start(self, call: ActiveCall) -> None:
        """Number a call that starts, and show it."""
        super().start(call)
        started = self.recorded(call, {"unfinished": True})
        self._show(lambda listener: listener.on_start(started))

    def keep(self, call: RecordedCall) -> None:
        """Show a call that has ended."""
        super().keep(call)
        shown = msgspec.structs.replace(call, outcome=decode(encode(call.outcome)))  # parts of it are encoded already
        self._show(lambda listener: listener.on_end(shown))

    def finish(self, error: BaseException | None) -> None:
        """Show the calls that have not ended, and tell that the block has."""
        super().finish(error)
        self._show(lambda listener: getattr(listener, "on_close", _nothing)(error))

    def _show(self, show: Callable[[CallListener], object]) -> None:
        for listener in self._listeners:
            try:
                show(listener)
            except Exception:  # noqa: BLE001 - the user's; an observer changes nothing for the run
                self._listeners = tuple(one for one in self._listeners if one is not listener)
                _LOG.exception("%r raised, and sees no more calls of this run", listener)


def _nothing(_error: BaseException | None) -> None:
    """Stands for `on_close` where a listener has none."""
