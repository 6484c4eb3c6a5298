"""One HTTP request and its response, as a call of a recording.

A *seam* in a client library (`seams`) makes an `Exchange` for each request. It passes through the recordings around the
request, the innermost first, as a call of a wrapped function does. One of them may have the `Answer`. Otherwise the
request is made, and the exchange logs the response while the client reads it.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
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
from agent_cache.recording.http.bodies import (
    Pieces,
    ResponseBody,
    is_stream,
    model_payloads,
    pairs_of,
)
from agent_cache.recording.http.identity import (
    MODEL_IN_PATH,
    Http,
    endpoint_of,
    host_and_server,
    identity,
    is_at,
    is_loopback,
)
from agent_cache.recording.lanes import checkpoint
from agent_cache.recording.match import call_data
from agent_cache.recording.outcomes import redact_response
from agent_cache.recording.prices import Usage
from agent_cache.recording.redaction import Redaction
from agent_cache.recording.streams import failure_outcome, leave_call
from agent_cache.recording.tape import Tape

__all__ = [
    "Answer",
    "Exchange",
    "is_intercepted",
    "open_exchange",
    "response_data",
    "running_call",
]

Pairs: TypeAlias = list[tuple[str, str]]
"""Names and values of headers, in their order."""


_LOG = logging.getLogger("agent_cache")


# Responses

_DROPPED = frozenset({
    "age", "alt-svc", "cf-cache-status", "cf-ray", "connection", "content-encoding", "content-length", "date",
    "keep-alive", "server", "server-timing", "strict-transport-security", "transfer-encoding", "vary", "via",
    "x-content-type-options", "x-envoy-upstream-service-time",
})  # fmt: skip
"""Headers about the way of a response, which say nothing to the program."""


def _readable(text: str) -> str:
    """A header without the surrogates that aiohttp has for bytes that are not UTF-8: no file can have them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape").decode("latin-1")
    return text


def _by_name(pairs: Pairs) -> dict[str, str]:
    """Headers by name in lower case. Values of one name are joined."""
    found: dict[str, str] = {}
    for given, value in pairs:
        name = given.lower()
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def response_data(
    status: int,
    reason: str,
    headers: Pairs,
    body: ResponseBody,
    redaction: Redaction,
    end: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """What a cassette has under ``response``, redacted.

    Args:
        status, reason, headers: of the response.
        body: of the response, as far as it arrived.
        redaction: of the recording.
        end: how the body ended, if it did not arrive as a whole.
    """
    data: dict[str, Any] = {"status": status}
    if reason and reason != _phrase(status):
        data["reason"] = reason
    content = body.data(is_whole=end is None)
    kept: Pairs = []
    is_packed = any(given.lower() == "content-encoding" for given, _ in headers)
    for given, value in headers:
        name = given.lower()
        if name == "content-length" and ((end is not None and not is_packed) or (not body.size and value != "0")):
            kept.append((name, value))  # of a response to HEAD, or one that broke off: else it is known by the body
            continue
        if name == "set-cookie":
            kept.append((name, _cookie_without_value(value, redaction)))
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


def _cookie_without_value(cookie: str, redaction: Redaction) -> str:
    """Its name and attributes are needed by the client's jar."""
    pair, semicolon, attributes = cookie.partition(";")
    return f"{pair.partition('=')[0]}={redaction.replacement}{semicolon}{attributes}"


_RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""Statuses after which clients wait and try again."""
_HURRY = [("retry-after-ms", "1"), ("retry-after", "0")]
"""The first is known to the clients of OpenAI and Anthropic, which take the second for none."""


class Answer:
    """A recorded response while it is replayed, or a refusal in the place of one.

    Attributes:
        status, reason, headers: of the response.
        is_stream: whether it has several pieces.
    """

    def __init__(
        self,
        exchange: Exchange,
        response: Mapping[str, Any],
        pieces: Pieces,
        *,
        on_end: Callable[[], None],
        raise_end: Callable[[dict[str, Any]], None],
        hurry: bool = False,
    ) -> None:
        self.status: int = response["status"]
        self.reason: str = response.get("reason") or _phrase(self.status)
        self.headers: Pairs = [
            (name, one)
            for name, value in response.get("headers", {}).items()
            for one in (value if isinstance(value, list) else [value])
        ]
        if hurry and self.status in _RETRIED:
            self.headers = [pair for pair in self.headers if pair[0] not in ("retry-after", "retry-after-ms")] + _HURRY
        self.is_stream = is_stream(response)
        self._pieces = pieces
        self._end: dict[str, Any] | None = response.get("end")
        if not self.is_stream and self._end is None and exchange.may_have_body(self.status):
            self.headers = [pair for pair in self.headers if pair[0].lower() != "content-length"]  # of an edited file
            self.headers.append(("content-length", str(sum(map(len, pieces)))))
        self._exchange = exchange
        self._on_end: Callable[[], None] | None = on_end
        self._raise_end = raise_end
        exchange.responded(self.status, self.reason, self.headers)
        if self.is_empty:
            self._finish()
            exchange.ended()

    @property
    def is_empty(self) -> bool:
        """Whether it has a whole body of no bytes."""
        return self._end is None and not self._pieces

    def pieces(self) -> Iterator[bytes]:
        """The body. It has ended when its last piece is handed out: the client may know, and not ask for the end.

        Raises:
            BaseException: what broke the body off.
        """
        count = len(self._pieces)
        try:
            for number, piece in enumerate(self._pieces, 1):
                self._exchange.add(piece, is_decoded=True)
                if number == count and self._end is None:
                    self._finish()
                    self._exchange.ended()
                yield piece
        except GeneratorExit:  # the client has forgotten the response: that ends a recorded one, too
            self.close()
            raise
        if self._end is not None:
            try:
                self._raise_end(self._end)
            except BaseException as error:
                self._exchange.failed(error)
                raise
            finally:
                self._finish()

    async def awaited_pieces(self) -> AsyncIterator[bytes]:
        """The same. Other tasks run between two pieces.

        Raises:
            BaseException: what broke the body off.
        """
        pieces = self.pieces()
        for number in range(len(self._pieces) + 1):
            await checkpoint()
            if number == len(self._pieces):
                await self._wait_for_end()
            for piece in pieces:
                yield piece
                break

    async def _wait_for_end(self) -> None:
        if self._end is not None and ("cancelled" in self._end or "unfinished" in self._end):
            try:
                await self._exchange.wait_until_cancelled(is_for_ever="unfinished" in self._end)
            except BaseException as error:
                self._exchange.failed(error)
                raise
            finally:
                self._finish()

    def close(self) -> None:
        """The client does not read on."""
        self._finish()
        self._exchange.closed()

    def _finish(self) -> None:
        if self._on_end is not None:
            on_end, self._on_end = self._on_end, None
            on_end()


# Exchanges

IS_CONNECTING: ContextVar[bool] = ContextVar("agent_cache_is_connecting", default=False)
"""Whether a seam makes a request in this context, for which a connection may be opened."""


def is_intercepted() -> bool:
    """Whether a request made here may concern a recording. It is asked for every request of the process.

    Outside of all recordings, it does in a thread that may have lost its context: see `report_escape`.
    """
    if PLACE.get().scope.interceptor is not None:
        return True
    return bool(INTERCEPTORS) and threading.get_ident() != threading.main_thread().ident


def open_exchange(method: str, url: str, headers: Mapping[str, str]) -> Exchange | None:
    """The exchange of a request, or None if it is to be made as if there were no recording.

    Args:
        method, url: of the request.
        headers: of the request, with names in lower case.

    Raises:
        CassetteError: if live calls are refused here.
    """
    if headers.get("upgrade", "").lower() == "websocket":
        return None
    parts = urlsplit(url)
    scope = PLACE.get().scope
    tapes: list[Tape] = []
    learners: list[Usage] = []
    is_guarded = False
    if IS_CONNECTING.get():  # a part of a request that has an exchange
        return None
    if scope.interceptor is None:
        _report_escape(method, url, parts, headers)
        return None
    while scope.interceptor is not None:
        interceptor: Any = scope.interceptor
        settings: Http | None = getattr(interceptor, "http", None)
        if settings is not None and settings.guard:
            is_guarded = True
        if (
            isinstance(interceptor, Tape)
            and settings is not None
            and interceptor.is_strict_replay
            and not settings.takes(url, parts)
            and not settings.has_named(parts)
            and (settings.only is None or is_at(settings.only, parts))
        ):
            return _unsent(method, parts)
        if settings is not None and settings.takes(url, parts):
            if not isinstance(interceptor, Tape):
                if (refusal := _refusal_of(interceptor, settings, method, url, headers)) is not None:
                    return refusal
            elif (call := running_call(interceptor)) is None:
                tapes.append(interceptor)
            elif call.usage is not None and call.exchange is None:
                learners.append(call.usage)
        assert scope.outside is not None  # a scope with an interceptor has an outer one
        scope = scope.outside
    return Exchange(method, url, headers, tapes, learners) if tapes or learners or is_guarded else None


def _unsent(method: str, parts: SplitResult) -> Exchange:
    """An exchange in place of one of telemetry, which a strict replay does not let out. It is no error of the run."""
    url = f"{parts.scheme}://{host_and_server(parts)[1]}{parts.path}"
    text = (
        f"{method} {url} is not recorded, and a strict replay makes no request; Http(live=[...]) names what it may make"
    )
    if url not in _told:
        _told.add(url)
        _LOG.warning("%s", text)
    return Exchange(method, url, {}, [], [], CassetteError(text))


_told: set[str] = set()


def _refusal_of(blocker: Any, settings: Http, method: str, url: str, headers: Mapping[str, str]) -> Exchange | None:
    """An exchange that refuses a request to a model, where live calls are refused. None if it may be made.

    A server on loopback is one of the test's own, unless it is a model.

    Raises:
        CassetteError: for another request.
    """
    kind, name, _ = identity(method, url, headers, b"", settings, _redaction_of(blocker))
    if kind != "llm" and is_loopback(urlsplit(url).hostname or ""):
        return None
    try:
        blocker.escaped(endpoint_of(kind, name))
    except CassetteError as error:
        if kind != "llm":
            raise
        return Exchange(method, url, {}, [], [], error)
    return None


_DEFAULT_RULES = Redaction()


def _redaction_of(interceptor: Any) -> Redaction:
    """The rules of a recording, or of what refuses live calls outside of one."""
    found = getattr(interceptor, "redaction", None)
    return found if isinstance(found, Redaction) else _DEFAULT_RULES


def running_call(tape: Tape) -> ActiveCall | None:
    """The innermost call of this recording that is running here. Nothing inside of it is recorded."""
    call = CURRENT_CALL.get()
    while call is not None and call.owner is not tape:
        call = call.outer
    return call


def _report_escape(method: str, url: str, parts: SplitResult, headers: Mapping[str, str]) -> None:
    """Report a request in a thread without a context, as `report_escape` does for other calls."""
    thread = threading.get_ident()
    for interceptor in list(INTERCEPTORS):
        settings: Http | None = getattr(interceptor, "http", None)
        if interceptor.thread == thread or settings is None or not settings.takes(url, parts):
            continue
        if isinstance(interceptor, Tape) or not is_loopback(parts.hostname or ""):
            kind, name, _ = identity(method, url, headers, b"", settings, _redaction_of(interceptor))
            interceptor.escaped(endpoint_of(kind, name))


class Exchange:
    """A request, and its response while it is read.

    A seam calls `start`; then it hands out the `answer` if there is one, else it makes the request inside of `running`,
    and reports the response by `responded`, `add`, and `ended`, `closed` or `failed`.

    Attributes:
        answer: the answer; None if the request is to be made.
    """

    def __init__(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        tapes: list[Tape],
        learners: list[Usage],
        refusal: CassetteError | None = None,
    ) -> None:
        self.answer: Answer | None = None
        self._method = method
        self._url = url
        self._headers = headers
        self._tapes = tapes
        self._learners = learners
        self._calls: list[tuple[Tape, ActiveCall]] = []
        self._answering: tuple[Tape, ActiveCall] | None = None
        self._refusal = refusal
        self._head: tuple[int, str, Pairs] | None = None
        self._body: ResponseBody | None = None
        self._ending: dict[str, Any] | BaseException | None = None
        self._length: int | None = None
        self._is_encoded = False
        self._is_over = False

    @property
    def needs_body(self) -> bool:
        """Whether `start` is to be called, which needs the body of the request."""
        return bool(self._tapes) or self._refusal is not None

    def start(self, body: bytes) -> None:
        """Begin the call in each recording, until one has the answer.

        Args:
            body: of the request.

        Raises:
            CassetteError: if a replay has no answer to the request, and it is not one to a model.
        """
        token = CURRENT_CALL.set(CURRENT_CALL.get())
        try:
            for tape in self._tapes:
                settings = tape.http
                assert settings is not None
                kind, name, arguments = identity(self._method, self._url, self._headers, body, settings, tape.redaction)
                try:
                    call = tape.begin_exchange(endpoint_of(kind, name), arguments)
                except CassetteError as error:
                    if kind == "llm" or not _OF_MODEL_CLIENTS.isdisjoint(self._headers):
                        self._refusal = error
                        return
                    self.failed(error)
                    raise
                CURRENT_CALL.set(call)
                if call.recorded is not None:
                    self._answering = tape, call
                    return
                call.exchange = self
                self._calls.append((tape, call))
        finally:
            leave_call(token)

    @property
    def is_answered(self) -> bool:
        """Whether the request is not made: `respond` or `respond_async` has the answer."""
        return self._answering is not None or self._refusal is not None

    def respond(self) -> Answer:
        """The answer, in a thread that may wait.

        Raises:
            BaseException: what the recorded request raised.
        """
        if self._refusal is None:
            tape, call = self._answered_by()
            outcome = self._outcome_of(call)
            if "cancelled" in outcome or "unfinished" in outcome:
                text = f"{call.function.name} had not ended when the recording did"
                error = tape.broken(call.index, text)
                tape.answered(call)
                self.failed(error)
                raise error
        return self._respond()

    async def respond_async(self) -> Answer:
        """The answer, in a task. Other tasks run before, as they did when the request was recorded.

        Raises:
            BaseException: what the recorded request raised.
        """
        if self._refusal is not None:
            await checkpoint()
            return self._respond()
        tape, call = self._answered_by()
        try:
            outcome = self._outcome_of(call)
            response = outcome.get("response")
            if response is not None and (is_stream(response) or "end" in response):
                await checkpoint()
            else:
                await tape.turn(call)
            if "cancelled" in outcome or "unfinished" in outcome:
                await tape.wait_until_cancelled(call)
        except BaseException as error:
            tape.answered(call)
            self.failed(error)
            raise
        return self._respond()

    async def wait_until_cancelled(self, *, is_for_ever: bool) -> None:
        """Wait in the middle of a body, as `Tape.wait_until_cancelled` does."""
        tape, call = self._answered_by()
        await tape.wait_until_cancelled(call, is_for_ever=is_for_ever)

    def _answered_by(self) -> tuple[Tape, ActiveCall]:
        assert self._answering is not None
        return self._answering

    def _outcome_of(self, call: ActiveCall) -> dict[str, Any]:
        assert call.recorded is not None
        return call.recorded.outcome

    def _respond(self) -> Answer:
        if self._refusal is not None:
            response = _refusal(self._refusal)
            self.answer = Answer(self, response, Pieces(response), on_end=_nothing, raise_end=_never)
            return self.answer
        tape, call = self._answered_by()
        outcome = self._outcome_of(call)
        if "error" in outcome:
            error = read_error(outcome["error"])
            tape.answered(call)
            self.failed(error)
            raise error
        try:
            settings = tape.http
            self.answer = Answer(
                self,
                *_checked_response(outcome, tape, call),
                on_end=functools.partial(tape.answered, call),
                raise_end=functools.partial(_raise_end, tape, call),
                hurry=settings is not None and settings.hurry,
            )
        except BaseException as error:
            tape.answered(call)
            self.failed(error)
            raise
        return self.answer

    @contextmanager
    def running(self) -> Iterator[None]:
        """While the request is made. What that calls is inside of the recorded call."""
        token = CURRENT_CALL.set(self._calls[-1][1] if self._calls else CURRENT_CALL.get())
        connecting = IS_CONNECTING.set(True)
        try:
            yield
        except BaseException as error:
            self.failed(error)
            raise
        finally:
            IS_CONNECTING.reset(connecting)
            leave_call(token)

    def may_have_body(self, status: int) -> bool:
        """Whether a response with this status has a body, which may be empty."""
        return self._method.upper() != "HEAD" and status not in (204, 304)

    def responded(self, status: int, reason: str, headers: Pairs) -> None:
        """The head of the response has arrived.

        Args:
            status, reason, headers: of the response. What a client could not read as UTF-8 is taken for Latin-1.
        """
        reason = _readable(reason)
        headers = [(name, _readable(value)) for name, value in headers]
        by_name = _by_name(headers)
        self._head = status, reason, headers
        self._body = ResponseBody(by_name)
        self._is_encoded = by_name.get("content-encoding", "identity").lower() != "identity"
        if not self.may_have_body(status):
            self._length = 0
        elif by_name.get("content-length", "").isdecimal():
            self._length = int(by_name["content-length"])
        if not self._length and self._length is not None:
            self._end(None)

    def add(self, data: bytes, *, is_decoded: bool = False) -> None:
        """A part of the body has arrived, as it was sent or with its content-encoding taken off.

        The exchange ends with the last one, if that is known by the length: the client may not ask for the end.
        A stream does not: all of its events may arrive at once, and a replay hands them out one by one.
        """
        if not self._is_over and self._body is not None and (self._calls or self._learners):
            self._body.add(data, is_decoded=is_decoded)
            is_last = self._length == self._body.size and not (is_decoded and self._is_encoded)
            if is_last and not self._body.is_stream:
                self._end(None)

    def ended(self) -> None:
        """The body has arrived."""
        self._end(None)

    def closed(self) -> None:
        """The client does not read on."""
        if not self._is_over and self._body is not None:
            self._end({"closed": True})

    def failed(self, error: BaseException) -> None:
        """The request or the body has raised this. Any other recorded call ends in the same way."""
        if self._is_over:
            return
        if self._head is not None:
            if isinstance(error, GeneratorExit):
                self.closed()
            else:
                self._end(error)
            return
        self._is_over = True
        for tape, call in self._calls:
            tape.end_exchange(call, failure_outcome(error, tape.redaction))

    def unfinished(self, redaction: Redaction) -> dict[str, Any]:
        """The outcome so far, when the recording ends before the exchange."""
        end = {"unfinished": True}
        if self._head is None or self._body is None:
            return end
        return {"response": response_data(*self._head, self._body, redaction, end)}

    def whole_outcome(self, redaction: Redaction) -> dict[str, Any]:
        """The outcome by other rules of redaction, once it has ended with a response."""
        assert self._head is not None
        assert self._body is not None
        end = self._ending
        ended = failure_outcome(end, redaction) if isinstance(end, BaseException) else end
        return {"response": response_data(*self._head, self._body, redaction, ended)}

    def _end(self, end: dict[str, Any] | BaseException | None) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._ending = end
        head, body = self._head, self._body
        if head is None or body is None:
            return
        for tape, call in self._calls:
            if not call.id:  # it runs, and nothing is written
                tape.end_exchange(call, {})
                continue
            ended = failure_outcome(end, tape.redaction) if isinstance(end, BaseException) else end
            data = response_data(*head, body, tape.redaction, ended)
            if call.usage is not None:
                _count_tokens(call.usage, data)
                call.usage.complete(call, None)
                if call.usage.model is None and (found := MODEL_IN_PATH.search(urlsplit(self._url).path)):
                    call.usage.model = unquote(found[1])
            tape.end_exchange(call, {"response": data})
        if self._learners:
            inside = Usage()
            _count_tokens(inside, body.data(is_whole=end is None))
            for usage in self._learners:
                usage.join(inside)


def _count_tokens(usage: Usage, data: Mapping[str, Any]) -> None:
    for payload in model_payloads(data):
        usage.add(payload)


def _checked_response(outcome: Mapping[str, Any], tape: Tape, call: ActiveCall) -> tuple[Mapping[str, Any], Pieces]:
    """The response of an outcome, and the pieces of its body.

    Raises:
        CassetteError: if the file was edited, and it is none.
    """
    try:
        response: Mapping[str, Any] = outcome["response"]
        return response, Pieces(response)
    except KeyError as error:
        reason = f"has a malformed response: {error} is missing"
    except (msgspec.MsgspecError, TypeError, ValueError, AttributeError) as error:
        reason = f"has a malformed response: {error}"
    raise tape.broken(call.index, reason)


def _raise_end(tape: Tape, call: ActiveCall, end: dict[str, Any]) -> None:
    """Raise what broke a body off.

    Raises:
        BaseException: that.
        ReplayExhausted: if the client did not read on here when it was recorded.
    """
    if "error" in end:
        raise read_error(end["error"])
    shown = call_data(call)
    text = f"the response of {call.function.name} was closed before its end when it was recorded, and is read on now"
    raise tape.latch(
        ReplayExhausted(None if call.recorded is None else call.recorded.id, shown, shown, text, tape.source_path)
    )


_OF_MODEL_CLIENTS = frozenset({"amz-sdk-request", "x-goog-api-client", "x-stainless-lang"})
"""Headers by which the clients of model providers and of AWS are known."""


def _refusal(error: CassetteError) -> dict[str, Any]:
    """A response that no client tries again, with the text where the clients of model providers find it.

    They take any exception of a request for a broken connection, and try again. The replay keeps the error and raises
    it at its end.
    """
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


def _nothing() -> None:
    """A refusal is over at once."""


def _never(end: dict[str, Any]) -> None:
    raise AssertionError(end)
