"""One HTTP request and its response, as a call of a recording.

A *seam* in a client library (`seams`) makes an `Exchange` for each request. It passes through the recordings around the
request, the innermost first, as a call of a wrapped function does. One of them may have the answer. Otherwise the
request is made, and the exchange logs the response while the client reads it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from http import HTTPStatus
from typing import Any, TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from agent_cache.engine.interception import INTERCEPTORS
from agent_cache.engine.scope import PLACE
from agent_cache.errors import CassetteError, ReplayExhausted
from agent_cache.recording.exceptions import read_error
from agent_cache.recording.functions import CURRENT_CALL, ActiveCall
from agent_cache.recording.http.bodies import ResponseBody, is_stream, model_payloads, pairs_of, pieces_of
from agent_cache.recording.http.identity import MODEL_IN_PATH, endpoint_of, host_and_server, identity, is_loopback
from agent_cache.recording.lanes import checkpoint
from agent_cache.recording.match import call_data
from agent_cache.recording.outcomes import redact_response
from agent_cache.recording.prices import Usage
from agent_cache.recording.redaction import Redaction
from agent_cache.recording.streams import failure_outcome, leave_call
from agent_cache.recording.tape import Tape

Pairs: TypeAlias = list[tuple[str, str]]
"""Names and values of headers, in their order."""
Patch: TypeAlias = tuple[type, str, Callable[[Any], Any]]
"""Of a seam: a class, the name of its method, and what makes the new method of the original one."""

_LOG = logging.getLogger("agent_cache")

_DROPPED = frozenset({
    "age", "alt-svc", "cf-cache-status", "cf-ray", "connection", "content-encoding", "content-length", "date",
    "keep-alive", "server", "server-timing", "strict-transport-security", "transfer-encoding", "vary", "via",
    "x-content-type-options", "x-envoy-upstream-service-time",
})  # fmt: skip
"""Headers about the way of a response, which say nothing to the program."""
_RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""Statuses after which clients wait and try again."""
_HURRY = [("retry-after-ms", "1"), ("retry-after", "0")]
"""The first is known to the clients of OpenAI and Anthropic, which take the second for none."""
_OPEN_ENDED = frozenset({"cancelled", "unfinished"})
_OF_MODEL_CLIENTS = frozenset({"amz-sdk-request", "x-goog-api-client", "x-stainless-lang"})
"""Headers by which the clients of model providers and of AWS are known."""


def response_data(
    status: int,
    reason: str,
    headers: Pairs,
    body: ResponseBody,
    redaction: Redaction,
    end: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """What a cassette has under ``response``, redacted."""
    data: dict[str, Any] = {"status": status}
    if reason and reason != _phrase(status):
        data["reason"] = reason
    content = body.data(is_whole=end is None)
    kept: Pairs = []
    is_packed = any(given.lower() == "content-encoding" for given, _ in headers)
    for given, value in headers:
        name = given.lower()
        if name == "set-cookie":  # the client's jar needs its name and attributes
            pair, semicolon, attributes = value.partition(";")
            kept.append((name, f"{pair.partition('=')[0]}={redaction.replacement}{semicolon}{attributes}"))
        elif name == "content-length":  # of a response to HEAD, or one that broke off: else it is known by the body
            if (end is not None and not is_packed) or (not body.size and value != "0"):
                kept.append((name, value))
        elif name not in _DROPPED or (name == "content-encoding" and body.is_encoded):
            kept.append((name, value))
    if kept:
        data["headers"] = pairs_of(kept)
    data |= content
    if end is not None:
        data["end"] = end
    return redact_response(data, redaction)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _readable(text: str) -> str:
    """A header without the surrogates that aiohttp has for bytes that are not UTF-8: no file can have them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape").decode("latin-1")
    return text


# Which recordings a request concerns

IS_CONNECTING: ContextVar[bool] = ContextVar("agent_cache_is_connecting", default=False)
"""Whether a seam makes a request in this context, for which a connection may be opened."""
_DEFAULT_RULES = Redaction()


def is_intercepted() -> bool:
    """Whether a request made here may concern a recording. It is asked for every request of the process.

    Outside of all recordings, it does in a thread that may have lost its context.
    """
    if PLACE.get().scope.interceptor is not None:
        return True
    return bool(INTERCEPTORS) and threading.get_ident() != threading.main_thread().ident


def running_call(tape: Tape) -> ActiveCall | None:
    """The innermost call of this recording that is running here. Nothing inside of it is recorded."""
    call = CURRENT_CALL.get()
    while call is not None and call.owner is not tape:
        call = call.outer
    return call


def open_exchange(method: str, url: str, headers: Mapping[str, str]) -> Exchange | None:
    """The exchange of a request, or None if it is to be made as if there were no recording.

    Raises:
        CassetteError: if live calls are refused here.
    """
    if headers.get("upgrade", "").lower() == "websocket" or IS_CONNECTING.get():  # a part of a request has no other
        return None
    parts = urlsplit(url)
    scope: Any = PLACE.get().scope
    if scope.interceptor is None:
        _report_escape(method, url, parts, headers)
        return None
    tapes: list[Tape] = []
    learners: list[Usage] = []
    is_guarded = False
    while scope.interceptor is not None:
        interceptor, scope = scope.interceptor, scope.outside
        settings = getattr(interceptor, "http", None)
        if settings is None:
            continue
        is_guarded = is_guarded or settings.guard
        if not settings.takes(parts):
            if isinstance(interceptor, Tape) and interceptor.is_strict_replay and settings.refuses(parts):
                return _unsent(method, parts)
        elif not isinstance(interceptor, Tape):
            if (refusal := _refusal_of(interceptor, method, url, headers)) is not None:
                return refusal
        elif (call := running_call(interceptor)) is None:
            tapes.append(interceptor)
        elif call.usage is not None and call.exchange is None:
            learners.append(call.usage)
    return Exchange(method, url, headers, tapes, learners) if tapes or learners or is_guarded else None


def _unsent(method: str, parts: SplitResult) -> Exchange:
    """An exchange in place of one of telemetry, which a strict replay does not let out. It is no error of the run."""
    url = f"{parts.scheme}://{host_and_server(parts)[1]}{parts.path}"
    text = f"{method} {url} is not recorded, and a strict replay makes no request; Http(live=[...]) names it"
    _LOG.warning("%s", text)
    return Exchange(method, url, {}, refusal=CassetteError(text))


def _refusal_of(blocker: Any, method: str, url: str, headers: Mapping[str, str]) -> Exchange | None:
    """An exchange that refuses a request to a model, where live calls are refused. None if it may be made.

    A server on loopback is one of the test's own, unless it is a model.

    Raises:
        CassetteError: for another request.
    """
    kind, name, _ = identity(method, url, headers, b"", blocker.http, _DEFAULT_RULES)
    if kind != "llm" and is_loopback(urlsplit(url).hostname or ""):
        return None
    try:
        blocker.escaped(endpoint_of(kind, name))
    except CassetteError as error:
        if kind != "llm":
            raise
        return Exchange(method, url, {}, refusal=error)
    return None


def _report_escape(method: str, url: str, parts: SplitResult, headers: Mapping[str, str]) -> None:
    """Report a request in a thread without a context, as the engine does for other calls."""
    thread = threading.get_ident()
    for interceptor in list(INTERCEPTORS):
        settings = getattr(interceptor, "http", None)
        if interceptor.thread == thread or settings is None or not settings.takes(parts):
            continue
        if isinstance(interceptor, Tape) or not is_loopback(parts.hostname or ""):
            rules = getattr(interceptor, "redaction", _DEFAULT_RULES)
            kind, name, _ = identity(method, url, headers, b"", settings, rules)
            interceptor.escaped(endpoint_of(kind, name))


class Exchange:
    """A request, and its response while it is read.

    A seam calls `start`. If the exchange `is_answered` then, it calls `respond`, and hands out `pieces`. Else it makes
    the request inside of `running`, and reports the response by `responded`, `logged` or `add`, and `ended`, `closed`
    or `failed`.
    """

    status: int  # of the recorded response, as the others, after `respond`
    reason: str
    headers: Pairs
    is_stream: bool
    is_empty: bool

    def __init__(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        tapes: Iterable[Tape] = (),
        learners: Iterable[Usage] = (),
        refusal: CassetteError | None = None,
    ) -> None:
        self._method = method
        self._url = url
        self._headers = headers
        self._tapes = tapes
        self._learners = learners
        self._refusal = refusal
        self.is_answered = refusal is not None
        self._calls: list[tuple[Tape, ActiveCall]] = []
        self._answering: tuple[Tape, ActiveCall] | None = None
        self._pieces: list[bytes] = []
        self._recorded_end: dict[str, Any] | None = None
        self._head: tuple[int, str, Pairs] | None = None
        self._body: ResponseBody | None = None
        self._length: int | None = None
        self._is_over = False

    # The request

    @property
    def needs_body(self) -> bool:
        """Whether `start` is to be called, which needs the body of the request."""
        return bool(self._tapes) or self.is_answered

    def start(self, body: bytes) -> None:
        """Begin the call in each recording, until one has the answer.

        Raises:
            CassetteError: if a replay has no answer to the request, and it is not one to a model.
        """
        token = CURRENT_CALL.set(CURRENT_CALL.get())
        try:
            for tape in self._tapes:
                kind, name, arguments = identity(
                    self._method, self._url, self._headers, body, tape.http, tape.redaction
                )
                try:
                    call = tape.begin_exchange(endpoint_of(kind, name), arguments)
                except CassetteError as error:
                    # The clients of models take any exception for a broken connection, and try again: they get an
                    # error that they do not retry. The replay raises its own at the end.
                    if kind == "llm" or not _OF_MODEL_CLIENTS.isdisjoint(self._headers):
                        self._refusal, self.is_answered = error, True
                        return
                    self.failed(error)
                    raise
                CURRENT_CALL.set(call)
                if call.recorded is not None:
                    self._answering, self.is_answered = (tape, call), True
                    return
                call.exchange = self
                self._calls.append((tape, call))
        finally:
            leave_call(token)

    @contextmanager
    def running(self) -> Iterator[None]:
        """While the request is made. What that calls is inside of the recorded call."""
        token = CURRENT_CALL.set(self._calls[-1][1] if self._calls else CURRENT_CALL.get())
        connecting = IS_CONNECTING.set(True)
        try:
            with self._failing():
                yield
        finally:
            IS_CONNECTING.reset(connecting)
            leave_call(token)

    # A recorded response

    def respond(self) -> None:
        """Begin the answer, in a thread that may wait.

        Raises:
            BaseException: what the recorded request raised.
        """
        with self._failing():
            if self._answering is not None and not _OPEN_ENDED.isdisjoint(_outcome(self._answering[1])):
                tape, call = self._answering
                raise tape.broken(call.index, f"{call.function.name} had not ended when the recording did")
            self._begin_answer()

    async def respond_async(self) -> None:
        """Begin the answer, in a task. Other tasks run before, as they did when the request was recorded.

        Raises:
            BaseException: what the recorded request raised.
        """
        with self._failing():
            outcome = {} if self._answering is None else _outcome(self._answering[1])
            response = outcome.get("response")
            if self._answering is None or (response is not None and (is_stream(response) or "end" in response)):
                await checkpoint()
            else:
                tape, call = self._answering
                await tape.turn(call)
                if not _OPEN_ENDED.isdisjoint(outcome):
                    await tape.wait_until_cancelled(call)
            self._begin_answer()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """While the answer or the live response is handed out: what is raised ends the exchange."""
        try:
            yield
        except BaseException as error:
            self._answered()
            self.failed(error)
            raise

    def _begin_answer(self) -> None:
        if self._answering is None:
            assert self._refusal is not None
            self._play(_refusal(self._refusal), hurry=False)
            return
        tape, call = self._answering
        outcome = _outcome(call)
        if "error" in outcome:
            raise read_error(outcome["error"])
        try:
            self._play(outcome["response"], hurry=tape.http.hurry)
        except (msgspec.MsgspecError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise tape.broken(call.index, f"has a malformed response: {error!r}") from error

    def _play(self, response: Mapping[str, Any], *, hurry: bool) -> None:
        self._pieces = pieces_of(response)
        self._recorded_end = response.get("end")
        self.status = response["status"]
        self.reason = response.get("reason") or _phrase(self.status)
        self.is_stream = is_stream(response)
        self.is_empty = self._recorded_end is None and not self._pieces
        dropped: tuple[str, ...] = ()
        added: Pairs = []
        if hurry and self.status in _RETRIED:
            dropped, added = ("retry-after", "retry-after-ms"), _HURRY
        if not self.is_stream and self._recorded_end is None and self._may_have_body(self.status):
            dropped += ("content-length",)  # of an edited file
            added = [*added, ("content-length", str(sum(map(len, self._pieces))))]
        self.headers = [
            (name, one)
            for name, value in response.get("headers", {}).items()
            for one in (value if isinstance(value, list) else [value])
            if name.lower() not in dropped
        ] + added
        self.responded(self.status, self.reason, self.headers)
        if self.is_empty:
            self._answered()
            self.ended()

    def _answered(self) -> None:
        if self._answering is not None:
            (tape, call), self._answering = self._answering, None
            tape.answered(call)

    def pieces(self) -> Iterator[bytes]:
        """The body. It has ended when its last piece is handed out: the client may know, and not ask for the end.

        Raises:
            BaseException: what broke the body off.
        """
        with self._failing():
            for number, piece in enumerate(self._pieces, 1):
                self.add(piece, is_decoded=True)
                if number == len(self._pieces) and self._recorded_end is None:
                    self._answered()
                    self.ended()
                yield piece
            if self._recorded_end is not None:
                self._raise_end(self._recorded_end)

    async def awaited_pieces(self) -> AsyncIterator[bytes]:
        """The same. Other tasks run between two pieces."""
        pieces, end = self.pieces(), self._recorded_end or {}
        with self._failing():
            for number in range(len(self._pieces) + 1):
                await checkpoint()
                if number == len(self._pieces) and not _OPEN_ENDED.isdisjoint(end) and self._answering is not None:
                    tape, call = self._answering
                    await tape.wait_until_cancelled(call, is_for_ever="unfinished" in end)
                for piece in pieces:
                    yield piece
                    break

    def _raise_end(self, end: dict[str, Any]) -> None:
        """Raise what broke a body off, or that the client did not read on here when it was recorded."""
        if "error" in end:
            raise read_error(end["error"])
        assert self._answering is not None
        tape, call = self._answering
        assert call.recorded is not None
        text = (
            f"the response of {call.function.name} was closed before its end when it was recorded, and is read on now"
        )
        shown = call_data(call)
        raise tape.latch(ReplayExhausted(call.recorded.id, shown, shown, text, tape.source_path))

    # A response that is logged

    def _may_have_body(self, status: int) -> bool:
        return self._method.upper() != "HEAD" and status not in (204, 304)

    def responded(self, status: int, reason: str, headers: Pairs) -> None:
        """The head of the response has arrived."""
        if not self._calls and not self._learners:
            return
        headers = [(name, _readable(value)) for name, value in headers]
        by_name: dict[str, str] = {}
        for given, value in headers:
            name = given.lower()
            by_name[name] = f"{by_name[name]}, {value}" if name in by_name else value
        self._head = status, _readable(reason), headers
        self._body = ResponseBody(by_name)
        if not self._may_have_body(status):
            self._length = 0
        elif by_name.get("content-length", "").isdecimal():
            self._length = int(by_name["content-length"])
        if self._length == 0:
            self._end(None)

    def add(self, data: bytes, *, is_decoded: bool = False) -> None:
        """A part of the body has arrived, as it was sent or with its content-encoding taken off."""
        if not self._is_over and self._body is not None and data:
            self._body.add(data, is_decoded=is_decoded)

    def logged(self, source: Iterable[bytes]) -> Iterator[bytes]:
        """The same pieces of a body; they are added while they are read."""
        with self._failing():
            for piece in source:
                self.add(piece)
                yield piece
            self.ended()

    async def logged_async(self, source: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        """The same for a body that is awaited."""
        with self._failing():
            async for piece in source:
                self.add(piece)
                yield piece
            self.ended()

    def ended(self) -> None:
        """The body has arrived."""
        self._end(None)

    def closed(self) -> None:
        """The client does not read on. It may know by the length that all has arrived, and not ask for the end."""
        self._answered()
        if self._body is not None:
            self._end(None if self._length == self._body.size else {"closed": True})

    def failed(self, error: BaseException) -> None:
        """The request or the body has raised this. Any other recorded call ends in the same way."""
        if self._head is not None:
            self._end({"closed": True} if isinstance(error, GeneratorExit) else error)
        elif not self._is_over:
            self._is_over = True
            for tape, call in self._calls:
                tape.end_exchange(call, failure_outcome(error, tape.redaction))

    def unfinished(self, redaction: Redaction) -> dict[str, Any]:
        """The outcome so far, when the recording ends before the exchange."""
        end = {"unfinished": True}
        if self._head is None or self._body is None:
            return end
        return {"response": response_data(*self._head, self._body, redaction, end)}

    def _end(self, end: dict[str, Any] | BaseException | None) -> None:
        if self._is_over:
            return
        self._is_over = True
        head, body = self._head, self._body
        if head is None or body is None:
            return
        for tape, call in self._calls:
            outcome: dict[str, Any] = {}
            if call.id:  # without one it runs, and is not written
                ended = failure_outcome(end, tape.redaction) if isinstance(end, BaseException) else end
                outcome = {"response": response_data(*head, body, tape.redaction, ended)}
            if call.usage is not None and outcome:
                _count_tokens(call.usage, outcome["response"])
                call.usage.complete(call, None)
                if call.usage.model is None and (found := MODEL_IN_PATH.search(urlsplit(self._url).path)):
                    call.usage.model = unquote(found[1])
            tape.end_exchange(call, outcome)
        if self._learners:
            inside = Usage()
            _count_tokens(inside, body.data(is_whole=end is None))
            for usage in self._learners:
                usage.join(inside)


def _outcome(call: ActiveCall) -> dict[str, Any]:
    assert call.recorded is not None
    return call.recorded.outcome


def _count_tokens(usage: Usage, data: Mapping[str, Any]) -> None:
    for payload in model_payloads(data):
        usage.add(payload)


def _refusal(error: CassetteError) -> dict[str, Any]:
    """A response that no client tries again, with the text where the clients of model providers find it."""
    text = str(error)
    return {
        "status": 400,
        "headers": {
            "content-type": "application/json",
            "x-should-retry": "false",
            "x-amzn-errortype": "ValidationException",
        },
        "json": {
            "type": "error",
            "error": {"type": "invalid_request_error", "message": text, "code": 400, "status": "INVALID_ARGUMENT"},
            "message": text,
        },
    }
