"""The HTTP interface of a store of checkpoints: routes, authorization, problem documents, and their description.

Every answer is JSON. What goes wrong is a problem document (RFC 9457) without internals. Nothing but
``/openapi.json`` is answered without `authorize`, and a caller who may not see a session cannot tell whether it exists.
Files are read and written in threads, so that the event loop never waits for the disk.
"""

from __future__ import annotations

import base64
import logging
import os
import re
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from http import HTTPStatus
from importlib import resources
from inspect import cleandoc, isawaitable, iscoroutinefunction
from typing import Annotated, Any, TypeAlias

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from agent_cache.errors import ConfigurationError
from agent_cache.recording.drift_events import Tolerance
from agent_cache.service.checkpoint_index import CheckpointEntry, Position, Row
from agent_cache.service.checkpoint_store import (
    CheckpointStore,
    Drift,
    DriftOfSession,
    KeyReusedError,
    NotComparableError,
    NotRestorableError,
    RestoreRequest,
    RestoreResponse,
    SessionExistsError,
    StoredCheckpoint,
    Write,
    WriteInDoubt,
)

__all__ = ["Authorize", "restore_app"]

Authorize: TypeAlias = Callable[[Request, str, "str | None"], "bool | Awaitable[bool]"]
"""``authorize(request, action, session_id)``: whether the sender of a request may do this. See `restore_app`."""

_LOG = logging.getLogger("agent_cache")
_MAX_BODY = 64 * 1024
_MAX_KEY = 255
_MAX_PAGE = 200
_DEFAULT_PAGE = 50
# Rows that are read for one page where the caller may not see all of them.
_BATCH = 200


# What is answered


class CheckpointPage(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the list of checkpoints, newest first.

    Attributes:
        checkpoints: the checkpoints, without their states.
        next_cursor: `cursor` of the next page; null at the end of the list.
    """

    checkpoints: list[CheckpointEntry]
    next_cursor: str | None


class FieldProblem(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with one part of a request.

    Attributes:
        field: its name: of a query parameter or a header, or as a path in the body.
        detail: what is wrong with it.
    """

    field: str
    detail: str


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A problem document (RFC 9457).

    Attributes:
        type: always ``about:blank``: the status says which problem it is.
        title: the name of the status.
        status: the status of the response.
        detail: what is wrong.
        errors: the parts of the request that are wrong, if it is one of them.
    """

    title: str
    status: int
    detail: str
    type: str = msgspec.field(default_factory=lambda: "about:blank")
    errors: list[FieldProblem] = []


class _ProblemError(Exception):
    def __init__(self, status: int, detail: str, *, field: str = "", headers: dict[str, str] | None = None) -> None:
        super().__init__(status, detail)
        self.status = status
        self.detail = detail
        self.field = field
        self.headers = headers


def _json(content: object) -> Response:
    return Response(msgspec.json.encode(content), 200, {"Cache-Control": "no-store"}, media_type="application/json")


def _problem(status: int, detail: str, *, field: str = "", headers: dict[str, str] | None = None) -> Response:
    phrase = HTTPStatus(status).phrase if status in _STATUSES else "Error"
    errors = [FieldProblem(field=field, detail=detail)] if field else []
    content = msgspec.json.encode(Problem(title=phrase, status=status, detail=detail, errors=errors))
    return Response(
        content, status, {**(headers or {}), "Cache-Control": "no-store"}, media_type="application/problem+json"
    )


_STATUSES = frozenset(status.value for status in HTTPStatus)
_NO_CHECKPOINT = "there is no such checkpoint"
_NO_SESSION = "there is no session of this id that was restored with track_drift"


# The app


def restore_app(
    store: str | os.PathLike[str], *, authorize: Authorize, tolerance: Tolerance | None = None
) -> Starlette:
    """An ASGI app that lists the checkpoints of sessions and restores sessions from them.

    Run it with any ASGI server, or mount it in another app. It executes nothing of a run: a restore makes the journal
    of a new session, and a worker that opens the session goes on from there. Several servers may serve one directory.

    Args:
        store: the directory of `agent_cache.resume.Journal`. It must exist.
        authorize: ``authorize(request, action, session_id)``, a function or a coroutine function. A function is called
            in a thread. It returns True or False; `PermissionError` is the same as False, and an `HTTPException` of
            Starlette's is answered as it says, such as 401 with the header ``WWW-Authenticate``. It is asked twice:

            - with None as the session, whether the sender may take this action at all, before anything is looked up:
              False is answered with 403.
            - with the session that the request is about: False is answered with 404, as if there were none.

            Actions are ``"list"``, ``"read"``, ``"restore"`` and ``"drift"``; and ``"create"``, which is asked with
            the id that a request gives to the new session. False for that is answered with 403.
        tolerance: what of a drift is accepted, and by `fail_on` which drifts are reported as detected.

    Raises:
        ConfigurationError: if an argument cannot work.
    """
    if not callable(authorize):
        raise ConfigurationError(f"restore_app: authorize must be a function, got {authorize!r}")
    if tolerance is not None and not isinstance(tolerance, Tolerance):
        raise ConfigurationError(f"restore_app: tolerance must be a Tolerance, got {tolerance!r}")
    api = _RestoreApi(CheckpointStore(store, tolerance=tolerance), authorize)
    app = Starlette(
        routes=[
            Route("/checkpoints", _handled(api.list_checkpoints), methods=["GET"]),
            Route("/checkpoints/{checkpoint_id}", _handled(api.read_checkpoint), methods=["GET"]),
            Route("/checkpoints/{checkpoint_id}/restore", _handled(api.restore_checkpoint), methods=["POST"]),
            Route("/sessions/{session_id:path}/drift", _handled(api.read_drift), methods=["GET"]),
            Route("/openapi.json", _handled(_read_description), methods=["GET"]),
        ],
        exception_handlers={HTTPException: _refuse_route},
    )
    app.router.redirect_slashes = False
    return app


def _refuse_route(_request: Request, error: Exception) -> Response:
    """The answer for a path or a method that there is not."""
    assert isinstance(error, HTTPException)
    details = {404: "there is no such path", 405: "this path does not have this method"}
    detail = details.get(error.status_code, str(error.detail))
    return _problem(error.status_code, detail, headers=dict(error.headers or {}))


def _handled(handle: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """The handler of a route, with every exception as a problem document."""

    async def answer(request: Request) -> Response:
        try:
            return await handle(request)
        except _ProblemError as error:
            return _problem(error.status, error.detail, field=error.field, headers=error.headers)
        except HTTPException as error:  # of `authorize`
            return _problem(error.status_code, str(error.detail), headers=dict(error.headers or {}))
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        except Exception:  # noqa: BLE001 - a sender gets no internals of any error
            _LOG.exception("a request to %s failed", request.url.path)
            return _problem(500, "the request failed; the log of the server says why")

    return answer


class _RestoreApi:
    def __init__(self, store: CheckpointStore, authorize: Authorize) -> None:
        self._store = store
        self._authorize = authorize
        call = getattr(authorize, "__call__", None)  # noqa: B004 - of an object whose method is a coroutine function
        self._is_async = iscoroutinefunction(authorize) or iscoroutinefunction(call)

    # Authorization

    async def _is_allowed(self, request: Request, action: str, session_id: str | None) -> bool:
        try:
            if self._is_async:
                answer: object = self._authorize(request, action, session_id)
            else:
                answer = await run_in_threadpool(self._authorize, request, action, session_id)
            if isawaitable(answer):
                answer = await answer
        except PermissionError:
            return False
        if not isinstance(answer, bool):
            raise TypeError(f"authorize must return True or False, and returned {answer!r}")
        return answer

    async def _permit(self, request: Request, action: str) -> None:
        """Refuse a sender who may not take this action for any session."""
        if not await self._is_allowed(request, action, None):
            raise _ProblemError(403, "this is not allowed")

    async def _may_see(self, request: Request, action: str, session_id: str) -> bool:
        """Whether the sender may take this action for this session. However it is refused, nobody sees a difference."""
        try:
            return await self._is_allowed(request, action, session_id)
        except HTTPException as error:
            if error.status_code in (401, 403, 404):
                return False
            raise

    # Routes

    async def list_checkpoints(self, request: Request) -> Response:
        await self._permit(request, "list")
        query = _query(request, ("session_id", "label", "cursor", "limit"))
        session_id, label = query.get("session_id"), query.get("label")
        limit = _limit(query.get("limit"))
        filters = _digest(session_id, label)
        after = None if "cursor" not in query else _position(query["cursor"], filters)
        seen: dict[str, bool] = {}
        found: list[Row] = []
        while len(found) <= limit:
            rows = await run_in_threadpool(
                self._store.index.page, session_id=session_id, label=label, after=after, limit=_BATCH + 1
            )
            for row in rows:
                session = row.entry.session_id
                if session not in seen:
                    seen[session] = await self._may_see(request, "list", session)
                if seen[session]:
                    found.append(row)
                    if len(found) > limit:
                        break
            if len(rows) <= _BATCH:
                break
            after = rows[-1].position
        shown = found[:limit]
        cursor = _cursor(shown[-1].position, filters) if len(found) > limit else None
        return _json(CheckpointPage(checkpoints=[row.entry for row in shown], next_cursor=cursor))

    async def read_checkpoint(self, request: Request) -> Response:
        await self._permit(request, "read")
        _query(request, ())
        row = await self._found(request, "read")
        checkpoint = await run_in_threadpool(self._store.read, row)
        if checkpoint is None:
            raise _ProblemError(404, _NO_CHECKPOINT)
        return _json(checkpoint)

    async def restore_checkpoint(self, request: Request) -> Response:
        await self._permit(request, "restore")
        _query(request, ())
        key = _idempotency_key(request)
        asked = await _request_of(request)
        row = await self._found(request, "restore")
        if asked.session_id and not await self._is_allowed(request, "create", asked.session_id):
            raise _ProblemError(403, "a session of this id is not allowed")
        try:
            response = await run_in_threadpool(self._store.restore, row, asked, key)
        except KeyReusedError:
            raise _ProblemError(
                422, "this key was used for another request to this checkpoint", field="Idempotency-Key"
            ) from None
        except SessionExistsError:
            raise _ProblemError(409, "there is a session of this id already", field="session_id") from None
        except NotRestorableError as error:
            _LOG.warning("the checkpoint %r cannot be restored: %s", row.entry.id, error)
            raise _ProblemError(409, "the journal of this checkpoint is gone or broken") from None
        except NotComparableError as error:
            raise _not_comparable(row.entry.session_id, error) from None
        if response is None:
            raise _ProblemError(404, _NO_CHECKPOINT)
        return _json(response)

    async def read_drift(self, request: Request) -> Response:
        await self._permit(request, "drift")
        _query(request, ())
        session_id = request.path_params["session_id"]
        restored = await run_in_threadpool(self._store.restored, session_id)
        if restored is None:
            raise _ProblemError(404, _NO_SESSION)
        token = request.headers.get("Restore-Token")
        is_token = token is not None and restored.is_token(token)
        if not is_token and not await self._may_see(request, "drift", session_id):
            raise _ProblemError(404, _NO_SESSION)
        try:
            return _json(await run_in_threadpool(self._store.drift, restored))
        except NotRestorableError as error:
            _LOG.warning("the drift of the session %r cannot be judged: %s", session_id, error)
            raise _ProblemError(409, "a journal that is to be compared is gone or broken") from None
        except NotComparableError as error:
            raise _not_comparable(session_id, error) from None

    async def _found(self, request: Request, action: str) -> Row:
        row: Row | None = await run_in_threadpool(self._store.index.find, request.path_params["checkpoint_id"])
        if row is None or not await self._may_see(request, action, row.entry.session_id):
            raise _ProblemError(404, _NO_CHECKPOINT)
        return row


def _not_comparable(session_id: str, error: Exception) -> _ProblemError:
    _LOG.warning("the drift of the session %r cannot be judged: %s", session_id, error)
    return _ProblemError(409, "the session cannot be compared with the original; the log of the server says why")


# What is sent


def _query(request: Request, known: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in known:
            raise _ProblemError(400, "there is no such query parameter", field=name)
        if name in found:
            raise _ProblemError(400, "it is given twice", field=name)
        found[name] = value
    return found


def _limit(text: str | None) -> int:
    if text is None:
        return _DEFAULT_PAGE
    if not re.fullmatch(r"[0-9]{1,3}", text) or not 1 <= int(text) <= _MAX_PAGE:
        raise _ProblemError(400, f"it must be a number from 1 to {_MAX_PAGE}", field="limit")
    return int(text)


_Integer = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]


class _Cursor(msgspec.Struct, frozen=True, array_like=True):
    filters: str
    position: tuple[_Integer, str, _Integer, str]


def _digest(session_id: str | None, label: str | None) -> str:
    return blake2b(msgspec.json.encode([session_id, label]), digest_size=6).hexdigest()


def _cursor(position: Position, filters: str) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode([filters, position])).decode().rstrip("=")


def _position(text: str, filters: str) -> Position:
    try:
        content = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        found = msgspec.json.decode(content, type=_Cursor)
    except (ValueError, msgspec.DecodeError, RecursionError):
        raise _ProblemError(400, "it is not a next_cursor of this service", field="cursor") from None
    if found.filters != filters:
        raise _ProblemError(400, "it is from a list with another session_id or label", field="cursor")
    return Position(*found.position)


_QUOTED = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])+)"')
_BARE = re.compile(r"[!#-+\--~]+")


def _idempotency_key(request: Request) -> str | None:
    """The key of a request: a string of a structured header field (RFC 9651), or, as many clients send it, its text."""
    found = request.headers.getlist("Idempotency-Key")
    if not found:
        return None
    text = found[0].strip()
    quoted = _QUOTED.fullmatch(text)
    key = re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else text
    if len(found) > 1 or not (quoted or _BARE.fullmatch(text)) or len(key) > _MAX_KEY:
        raise _ProblemError(
            400, f'it must be one text such as "8e03978e-40d5-43dd", of at most {_MAX_KEY} characters',
            field="Idempotency-Key",
        )  # fmt: skip
    return key


_PLACE = re.compile(r"(?P<reason>.*?)(?: - at `(?P<place>.*)`)?", re.DOTALL)


async def _request_of(request: Request) -> RestoreRequest:
    content_type = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise _ProblemError(415, "the body must be application/json", headers={"Accept": "application/json"})
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_BODY:
            raise _ProblemError(413, f"the body has more than {_MAX_BODY} bytes", headers={"Connection": "close"})
    try:
        found = msgspec.json.decode(bytes(body), type=RestoreRequest)
    except msgspec.ValidationError as error:
        place = _PLACE.fullmatch(str(error))
        assert place is not None
        path = (place["place"] or "$").removeprefix("$.")
        unknown = re.fullmatch(r"Object contains unknown field `(.*)`", place["reason"], re.DOTALL)
        if unknown:
            raise _ProblemError(422, "there is no such field", field=unknown[1]) from None
        raise _ProblemError(422, place["reason"], field=path) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _ProblemError(400, "the body is not JSON") from None
    return msgspec.structs.replace(
        found, session_id=(found.session_id or "").strip() or None, label=found.label.strip()
    )


# The description


async def _read_description(request: Request) -> Response:
    return _json(_description(request.scope.get("root_path", "")))


_TYPES: tuple[type[msgspec.Struct], ...] = (
    CheckpointEntry, CheckpointPage, Drift, DriftOfSession, FieldProblem, Problem, RestoreRequest, RestoreResponse,
    StoredCheckpoint, Write, WriteInDoubt,
)  # fmt: skip


def _described(kind: type) -> tuple[str, dict[str, str]]:
    """The first paragraph of a docstring, and what it says of each attribute."""
    if not issubclass(kind, msgspec.Struct) or kind is msgspec.Struct:
        return "", {}
    summary, _, attributes = cleandoc(kind.__doc__ or "").partition("\n\nAttributes:\n")
    found = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", attributes, re.MULTILINE)
    return summary, {name: re.sub(r"\s*\n\s*", " ", text) for name, text in found}


def _description(root_path: str) -> dict[str, Any]:
    """The OpenAPI document: the paths of ``openapi.json``, and the schemas of the structs."""
    _, schemas = msgspec.json.schema_components(_TYPES, ref_template="#/components/schemas/{name}")
    for kind in _TYPES:
        schema = schemas[kind.__name__]
        schema["description"] = _described(kind)[0]
        for base in reversed(kind.__mro__):
            for name, text in _described(base)[1].items():
                about = schema["properties"].get(name, {})
                if "$ref" in about:
                    about = {"allOf": [about]}
                schema["properties"][name] = {**about, "description": text}
    paths: dict[str, Any] = msgspec.json.decode(resources.files(__package__).joinpath("openapi.json").read_bytes())
    components = {**paths["components"], "schemas": schemas}
    return {**paths, "servers": [{"url": root_path or "/"}], "components": components}
