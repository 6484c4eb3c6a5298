"""One HTTP request and its response, as a call of a recording.

A *seam* in a client library (`seams`) opens an `Exchange` for each request. It passes through the recordings around the
request, the innermost first, as a call of a wrapped function does. One of them may have the response: `respond` gives
it. Otherwise the request is made inside of `running`. In both cases the seam tells the head of the response to `log`,
and hands out its body through `logged`, so that the recordings that have no answer get it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from http.client import responses
from typing import Any, TypeAlias
from urllib.parse import SplitResult, urlsplit

import msgspec

from agent_cache.engine.hooks import CURRENT_CALL, leave_call
from agent_cache.engine.scope import HOOKS, PLACE
from agent_cache.engine.state import event_loop
from agent_cache.errors import CassetteError
from agent_cache.recording.exceptions import read_error
from agent_cache.recording.functions import ActiveCall
from agent_cache.recording.http.bodies import ResponseBody, is_stream, model_payloads, pairs_of, pieces_of
from agent_cache.recording.http.identity import KNOWN, endpoint_of, host_and_server, identity, is_loopback, model_in
from agent_cache.recording.lanes import CHECKPOINT
from agent_cache.recording.outcomes import is_utf8, redact_response
from agent_cache.recording.prices import Usage
from agent_cache.recording.redaction import Redaction
from agent_cache.recording.streams import failure_outcome
from agent_cache.recording.tape import Tape

Pairs: TypeAlias = list[tuple[str, str]]
"""Names and values of headers, in their order."""
Patch: TypeAlias = tuple[type, str, Callable[[Any], Any]]
"""Of a seam: a class, the name of its method, and what makes the new method of the original one."""

_LOG = logging.getLogger("agent_cache")

_DROPPED, _CHECKSUMS, _RETRIED = (frozenset(KNOWN["responses"][one]) for one in ("dropped", "checksums", "retried"))
_OF_MODEL_CLIENTS = frozenset(KNOWN["requests"]["of_model_clients"])
_AT_ONCE = {"retry-after-ms": "1", "retry-after": "0"}
"""The first is known to the clients of OpenAI and Anthropic, which take the second for none."""
_OPEN_ENDED = frozenset({"cancelled", "unfinished"})


def response_data(
    status: int, reason: str, headers: Pairs, body: ResponseBody, rules: Redaction, end: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What a cassette has under ``response``, redacted. Names of headers are in lower case."""
    data: dict[str, Any] = {"status": status}
    if reason and reason != responses.get(status, ""):
        data["reason"] = reason
    content = body.data(is_whole=end is None)
    kept: Pairs = []
    is_packed = any(name == "content-encoding" for name, _ in headers)
    for name, value in headers:
        if name == "set-cookie":  # the client's jar needs its name and attributes
            pair, semicolon, attributes = value.partition(";")
            kept.append((name, f"{pair.partition('=')[0]}={rules.replacement}{semicolon}{attributes}"))
        elif name == "content-length":  # of a response to HEAD, or one that broke off: else it is known by the body
            if (end is not None and not is_packed) or (not body.sent and value != "0"):
                kept.append((name, value))
        elif name not in _DROPPED or (name == "content-encoding" and body.is_encoded):
            kept.append((name, value))
    if kept:
        data["headers"] = pairs_of(kept)
    data |= content
    if end is not None:
        data["end"] = end
    return redact_response(data, rules)


def _may_have_body(method: str, status: int) -> bool:
    return method.upper() != "HEAD" and status not in (204, 304)


def _readable(text: str) -> str:
    """A header without the surrogates that aiohttp has for bytes that are not UTF-8: no file can have them."""
    return text if is_utf8(text) else text.encode("utf-8", "surrogateescape").decode("latin-1")


# Which recordings a request concerns

IS_CONNECTING: ContextVar[bool] = ContextVar("agent_cache_is_connecting", default=False)
"""Whether a seam makes a request in this context, for which a connection may be opened."""
_DEFAULT_RULES = Redaction()


def running_call(tape: Tape) -> ActiveCall | None:
    """The innermost call of this recording that is running here. Nothing inside of it is recorded."""
    call: ActiveCall | None = CURRENT_CALL.get()
    while call is not None and call.owner is not tape:
        call = call.outer
    return call


def open_exchange(method: str, url: str, headers: Mapping[str, str]) -> Exchange | None:
    """The exchange of a request, or None if it is to be made as if there were no recording."""
    if IS_CONNECTING.get() or headers.get("upgrade", "").lower() == "websocket":  # a part of a request has no other
        return None
    parts = urlsplit(url)
    scope: Any = PLACE.get().scope
    if scope.hook is None:
        _report_escape(method, url, parts, headers)
        return None
    exchange = Exchange(method, url, headers)
    is_guarded = False
    while scope.hook is not None:
        hook, scope = scope.hook, scope.outside
        settings = getattr(hook, "http", None)
        if settings is None:
            continue
        is_guarded = is_guarded or settings.guard
        if not settings.takes(parts):
            if isinstance(hook, Tape) and hook.answers and not hook.file and hook.is_strict and settings.refuses(parts):
                shown = f"{method} {parts.scheme}://{host_and_server(parts)[1]}{parts.path}"
                text = f"{shown} is not recorded, and a strict replay makes no request; Http(live=[...]) names it"
                _LOG.warning("%s", text)
                exchange.refusal = CassetteError(text)  # it is no error of the run
                return exchange
        elif not isinstance(hook, Tape):
            kind, name, _ = identity(method, url, headers, b"", settings, _DEFAULT_RULES)
            if kind == "llm" or not is_loopback(parts.hostname or ""):  # another server there is the test's own
                try:
                    hook.escaped(endpoint_of(kind, name))
                except CassetteError as error:
                    exchange.refuse(error, kind)
                    return exchange
        elif (call := running_call(hook)) is None:
            exchange.tapes.append(hook)
        elif call.usage is not None and call.exchange is None:
            exchange.learners.append(call.usage)
    return exchange if exchange.tapes or exchange.learners or is_guarded else None


def _report_escape(method: str, url: str, parts: SplitResult, headers: Mapping[str, str]) -> None:
    """Report a request in a thread without a context, as the engine does for other calls."""
    thread = threading.get_ident()
    if thread == threading.main_thread().ident:
        return
    for hook in list(HOOKS):
        settings = getattr(hook, "http", None)
        if hook.thread == thread or settings is None or not settings.takes(parts):
            continue
        if isinstance(hook, Tape) or not is_loopback(parts.hostname or ""):
            rules = getattr(hook, "redaction", _DEFAULT_RULES)
            hook.escaped(endpoint_of(*identity(method, url, headers, b"", settings, rules)[:2]))


class Recorded:
    """A recorded response. Its body is read in a loop, sync or async, which raises what broke it off."""

    def __init__(self, response: Mapping[str, Any], method: str, source: tuple[Tape, ActiveCall] | None) -> None:
        self._source = source
        self._end: dict[str, Any] | None = response.get("end")
        self.pieces = pieces_of(response)
        self.is_empty = not self.pieces and self._end is None
        self.is_open = is_stream(response) or self._end is not None  # nothing but its end says how long it is
        self.status: int = response["status"]
        self.reason: str = response.get("reason") or responses.get(self.status, "")
        added = _AT_ONCE if source is not None and self.status in _RETRIED else {}
        if not self.is_open and _may_have_body(method, self.status):
            added = {**added, "content-length": str(sum(map(len, self.pieces)))}  # of an edited file, too
        if "openai-poll-after-ms" in response.get("headers", {}):
            added = {**added, "openai-poll-after-ms": "1"}
        left_out = added.keys() | (_CHECKSUMS if self.pieces else ())
        self.headers: Pairs = [
            (name, one)
            for name, value in response.get("headers", {}).items()
            for one in (value if isinstance(value, list) else [value])
            if name.lower() not in left_out
        ] + list(added.items())

    def __iter__(self) -> Iterator[bytes]:
        yield from self.pieces
        self._raise_end()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The same. Other tasks run between two pieces."""
        for piece in self.pieces:
            await CHECKPOINT
            yield piece
        await CHECKPOINT
        if self._end is not None and self._source is not None and not _OPEN_ENDED.isdisjoint(self._end):
            tape, call = self._source
            await tape.wait_until_cancelled(call, is_for_ever="unfinished" in self._end)
        self._raise_end()

    def _raise_end(self) -> None:
        """Raise what broke the body off, or that the client did not read on here when it was recorded."""
        if self._end is None or self._source is None:
            return
        if "error" in self._end:
            raise read_error(self._end["error"])
        tape, call = self._source
        text = f"the response of {call.function.name} was closed before its end when it was recorded"
        raise tape.exhausted(call, f"{text}, and is read on now")

    def close(self) -> None:
        """Nothing: as a response of a library has it."""

    async def aclose(self) -> None:
        """Nothing, likewise."""


class Exchange:
    """A request, and its response while it is read."""

    def __init__(self, method: str, url: str, headers: Mapping[str, str]) -> None:
        self.tapes: list[Tape] = []
        self.learners: list[Usage] = []
        self.refusal: CassetteError | None = None
        self._method, self._url, self._headers = method, url, headers
        self._calls: list[tuple[Tape, ActiveCall]] = []
        self._answering: tuple[Tape, ActiveCall] | None = None
        self._head: tuple[int, str, Pairs] = 0, "", []
        self._body: ResponseBody | None = None
        self._length: int | None = None
        self._is_over = False

    def refuse(self, error: CassetteError, kind: str) -> None:
        """Answer the request by this error.

        The clients of models take any exception for a broken connection, and try again: they get a response that they
        do not retry. The recording raises its error at the end.
        """
        if kind != "llm" and _OF_MODEL_CLIENTS.isdisjoint(self._headers):
            raise error
        self.refusal = error

    # The request

    def respond(self, body: bytes) -> Recorded | None:
        """The recorded response to the request with this body, in a thread that may wait. None if it is to be made."""
        with self._failing():
            outcome = self._begin(body)
            if self._answering is not None and not _OPEN_ENDED.isdisjoint(outcome):
                tape, call = self._answering
                raise tape.broken(call.index, f"{call.function.name} had not ended when the recording did")
            return self._recorded(outcome)

    async def respond_async(self, body: bytes) -> Recorded | None:
        """The same in a task. Other tasks run before, as they did when the request was recorded."""
        event_loop(f"{self._method} {urlsplit(self._url).hostname}")
        with self._failing():
            outcome = self._begin(body)
            response = outcome.get("response", {})
            if self._answering is not None and not is_stream(response) and "end" not in response:
                tape, call = self._answering
                await tape.turn(call)
                if not _OPEN_ENDED.isdisjoint(outcome):
                    await tape.wait_until_cancelled(call)
            elif outcome:
                await CHECKPOINT
            return self._recorded(outcome)

    def _begin(self, body: bytes) -> dict[str, Any]:
        """Begin the call in each recording, until one has the answer, whose outcome this is. Empty if none has."""
        token = CURRENT_CALL.set(CURRENT_CALL.get())
        try:
            for tape in self.tapes if self.refusal is None else ():
                kind, name, given = identity(self._method, self._url, self._headers, body, tape.http, tape.redaction)
                try:
                    call = tape.begin_exchange(endpoint_of(kind, name), given)
                except CassetteError as error:
                    self.refuse(error, kind)
                    break
                CURRENT_CALL.set(call)
                if call.recorded is not None:
                    self._answering = tape, call
                    return call.recorded.outcome
                call.exchange = self
                self._calls.append((tape, call))
        finally:
            leave_call(token)
        return {} if self.refusal is None else {"response": _refusal(self.refusal)}

    def _recorded(self, outcome: dict[str, Any]) -> Recorded | None:
        if "error" in outcome:
            raise read_error(outcome["error"])
        if not outcome:
            return None
        try:
            return Recorded(outcome["response"], self._method, self._answering)
        except (msgspec.MsgspecError, LookupError, TypeError, ValueError, AttributeError) as error:
            assert self._answering is not None
            tape, call = self._answering
            raise tape.broken(call.index, f"has a malformed response: {error!r}") from error

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

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """While the request is made, or a piece of the body is read: what is raised ends the exchange."""
        try:
            yield
        except BaseException as error:
            self._finish(error)
            raise

    # The response

    def log(self, status: int, reason: str, headers: Pairs) -> None:
        """The head of the response has arrived."""
        headers = [(name.lower(), _readable(value)) for name, value in headers]
        by_name: dict[str, str] = {}
        for name, value in headers:
            by_name[name] = f"{by_name[name]}, {value}" if name in by_name else value
        self._head = status, _readable(reason), headers
        self._body = ResponseBody(by_name)
        if not _may_have_body(self._method, status):
            self._length = 0
        elif by_name.get("content-length", "").isdecimal():
            self._length = int(by_name["content-length"])
        if self._length == 0:
            self._finish(None)

    def _arrived(self, piece: bytes) -> bytes:
        """A piece of the body has arrived; an empty one is the end."""
        if not piece:
            self._finish(None)
        elif not self._is_over and self._body is not None:
            self._body.add(piece)
        return piece

    def logged(self, source: Iterable[bytes]) -> Iterator[bytes]:
        """The same pieces of a body, which are logged while they are read."""
        pieces = iter(source)
        try:
            while True:
                with self._failing():
                    piece = next(pieces, b"")
                if not self._arrived(piece):
                    return
                yield piece
        finally:
            self.closed()

    async def logged_piece(self, read: Callable[[], Awaitable[bytes]]) -> bytes:
        """The next piece of a body, as this function reads it, which gives nothing at the end."""
        with self._failing():
            return self._arrived(await read())

    async def logged_async(self, source: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        """The same as `logged` for a body that is awaited."""
        pieces = aiter(source)
        try:
            while piece := await self.logged_piece(partial(anext, pieces, b"")):
                yield piece
        finally:
            self.closed()

    def closed(self) -> None:
        """The client does not read on. It may know by the length that all has arrived, and not ask for the end."""
        is_whole = self._body is not None and self._length == len(self._body.sent)
        self._finish(None if is_whole else {"closed": True})

    def unfinished(self, redaction: Redaction) -> dict[str, Any]:
        """The outcome so far, when the recording ends before the exchange."""
        return self._outcome({"unfinished": True}, redaction)

    def _outcome(self, end: dict[str, Any] | None, redaction: Redaction) -> dict[str, Any]:
        if self._body is None:
            return end or {}
        return {"response": response_data(*self._head, self._body, redaction, end)}

    def _finish(self, end: BaseException | dict[str, Any] | None) -> None:
        """The response has arrived, or broken off."""
        if self._is_over:
            return
        self._is_over = True
        if self._answering is not None:
            tape, call = self._answering
            tape.answered(call)
        for tape, call in self._calls:
            outcome: dict[str, Any] = {}
            if call.id:  # without one it runs, and is not written
                ended = call.written(failure_outcome, end, tape.redaction) if isinstance(end, BaseException) else end
                outcome = call.written(self._outcome, ended, tape.redaction)
            if call.usage is not None and "response" in outcome:
                call.usage.add(model_payloads(outcome["response"]))
                call.usage.complete(call, None)
                call.usage.model = call.usage.model or model_in(self._url)
            if tape.file is not None:
                tape.write(call, outcome)
        if self.learners and self._body is not None:
            inside = Usage()
            inside.add(model_payloads(self._body.data(is_whole=end is None)))
            for usage in self.learners:
                usage.join(inside)


def _refusal(error: CassetteError) -> dict[str, Any]:
    """A response that no client tries again, with the text where the clients of model providers find it."""
    told = {"message": str(error)}
    return {**KNOWN["refusal"], "json": {"type": "error", **told, "error": {**KNOWN["refused"], **told}}}
