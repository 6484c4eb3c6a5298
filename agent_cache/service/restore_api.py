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
from http import HTTPStatus
from importlib import resources
from inspect import isawaitable, iscoroutinefunction
from itertools import islice
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from agent_cache.errors import ConfigurationError
from agent_cache.recording.drift_events import Tolerance
from agent_cache.resume.checkpoints import CheckpointEntry
from agent_cache.service.checkpoint_store import (
    CheckpointStore,
    Drift,
    DriftOfSession,
    Position,
    RestoreRequest,
    RestoreResponse,
    StoredCheckpoint,
    StoreError,
    Write,
    WriteInDoubt,
    position_of,
)

__all__ = ["Authorize", "restore_app"]

T = TypeVar("T")

Authorize: TypeAlias = Callable[[Request, str, "str | None"], "bool | Awaitable[bool]"]
"""``authorize(request, action, session_id)``: whether the sender of a request may do this. See `restore_app`."""

_LOG = logging.getLogger("agent_cache")
_MAX_BODY = 64 * 1024
_MAX_KEY = 255
_BATCH = 500  # checkpoints that are looked at before the event loop is asked again
_NO_CHECKPOINT = "there is no such checkpoint"
_NO_SESSION = "there is no session of this id that was restored with track_drift"


class CheckpointPage(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the list of checkpoints, newest first."""

    checkpoints: list[CheckpointEntry]
    next_cursor: str | None


class FieldProblem(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with one part of a request."""

    field: str
    detail: str


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A problem document (RFC 9457)."""

    title: str
    status: int
    detail: str
    type: str = msgspec.field(default_factory=lambda: "about:blank")
    errors: list[FieldProblem] = []


class _NoQuery(msgspec.Struct, forbid_unknown_fields=True):
    """No query parameters."""


class _ListQuery(msgspec.Struct, forbid_unknown_fields=True):
    session_id: str | None = None
    label: str | None = None
    cursor: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 50


_Cursor = tuple[str | None, str | None, Position]


def restore_app(
    store: str | os.PathLike[str],
    *,
    authorize: Authorize,
    tolerance: Tolerance | None = None,
    key: bytes | None = None,
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
        key: of encrypted journals; by default the environment variable ``AGENT_CACHE_JOURNAL_KEY`` has it.

    Raises:
        ConfigurationError: if an argument cannot work.
    """
    if not callable(authorize):
        raise ConfigurationError(f"restore_app: authorize must be a function, got {authorize!r}")
    if tolerance is not None and not isinstance(tolerance, Tolerance):
        raise ConfigurationError(f"restore_app: tolerance must be a Tolerance, got {tolerance!r}")
    api = _RestoreApi(CheckpointStore(store, tolerance, key), authorize)
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


def _json(content: object) -> Response:
    return Response(msgspec.json.encode(content), 200, {"Cache-Control": "no-store"}, media_type="application/json")


def _problem(error: StoreError) -> Response:
    phrase = HTTPStatus(error.status).phrase if error.status in set(HTTPStatus) else "Error"
    errors = [FieldProblem(field=error.field, detail=error.detail)] if error.field else []
    content = msgspec.json.encode(Problem(title=phrase, status=error.status, detail=error.detail, errors=errors))
    headers = {**(error.headers or {}), "Cache-Control": "no-store"}
    return Response(content, error.status, headers, media_type="application/problem+json")


def _refuse_route(_request: Request, error: Exception) -> Response:
    """The answer for a path or a method that there is not."""
    assert isinstance(error, HTTPException)
    details = {404: "there is no such path", 405: "this path does not have this method"}
    detail = details.get(error.status_code, str(error.detail))
    return _problem(StoreError(error.status_code, detail, headers=dict(error.headers or {})))


def _handled(handle: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """The handler of a route, with every exception as a problem document."""

    async def answer(request: Request) -> Response:
        try:
            return await handle(request)
        except StoreError as error:
            return _problem(error)
        except HTTPException as error:  # of `authorize`
            return _problem(StoreError(error.status_code, str(error.detail), headers=dict(error.headers or {})))
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        except Exception:  # noqa: BLE001 - a sender gets no internals of any error
            _LOG.exception("a request to %s failed", request.url.path)
            return _problem(StoreError(500, "the request failed; the log of the server says why"))

    return answer


class _RestoreApi:
    def __init__(self, store: CheckpointStore, authorize: Authorize) -> None:
        self._store = store
        self._authorize = authorize
        call = getattr(authorize, "__call__", None)  # noqa: B004 - of an object whose method is a coroutine function
        self._is_async = iscoroutinefunction(authorize) or iscoroutinefunction(call)

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

    async def _permit(self, request: Request, action: str, query: type[T]) -> T:
        """The query of a sender who may take this action for some session."""
        if not await self._is_allowed(request, action, None):
            raise StoreError(403, "this is not allowed")
        pairs = request.query_params.multi_items()
        for at, (name, _) in enumerate(pairs):
            if name in dict(pairs[:at]):
                raise StoreError(400, "it is given twice", field=name)
        return _valid(400, lambda: msgspec.convert(dict(pairs), query, strict=False))

    async def _may_see(self, request: Request, action: str, session_id: str) -> bool:
        """Whether the sender may take this action for this session. However it is refused, nobody sees a difference."""
        try:
            return await self._is_allowed(request, action, session_id)
        except HTTPException as error:
            if error.status_code in (401, 403, 404):
                return False
            raise

    async def _found(self, request: Request, action: str) -> CheckpointEntry:
        found = await run_in_threadpool(self._store.find, request.path_params["checkpoint_id"])
        if found is None or not await self._may_see(request, action, found.session_id):
            raise StoreError(404, _NO_CHECKPOINT)
        return found

    async def list_checkpoints(self, request: Request) -> Response:
        query = await self._permit(request, "list", _ListQuery)
        after = None if query.cursor is None else _position(query.cursor, query.session_id, query.label)
        listed = self._store.listed(query.session_id, query.label, after)
        seen: dict[str, bool] = {}
        found: list[CheckpointEntry] = []
        while len(found) <= query.limit:
            batch = await run_in_threadpool(lambda: list(islice(listed, _BATCH)))
            for one in batch:
                if one.session_id not in seen:
                    seen[one.session_id] = await self._may_see(request, "list", one.session_id)
                if seen[one.session_id]:
                    found.append(one)
                    if len(found) > query.limit:
                        break
            if len(batch) < _BATCH:
                break
        cursor = None
        if len(found) > query.limit:
            last: _Cursor = query.session_id, query.label, position_of(found[query.limit - 1])
            cursor = base64.urlsafe_b64encode(msgspec.json.encode(last)).decode().rstrip("=")
        return _json(CheckpointPage(checkpoints=found[: query.limit], next_cursor=cursor))

    async def read_checkpoint(self, request: Request) -> Response:
        await self._permit(request, "read", _NoQuery)
        found = await run_in_threadpool(self._store.read, await self._found(request, "read"))
        if found is None:
            raise StoreError(404, _NO_CHECKPOINT)
        return _json(found)

    async def restore_checkpoint(self, request: Request) -> Response:
        await self._permit(request, "restore", _NoQuery)
        key, asked = _idempotency_key(request), await _request_of(request)
        found = await self._found(request, "restore")
        if asked.session_id and not await self._is_allowed(request, "create", asked.session_id):
            raise StoreError(403, "a session of this id is not allowed")
        response = await run_in_threadpool(self._store.restore, found, asked, key)
        if response is None:
            raise StoreError(404, _NO_CHECKPOINT)
        return _json(response)

    async def read_drift(self, request: Request) -> Response:
        await self._permit(request, "drift", _NoQuery)
        session_id = request.path_params["session_id"]
        restored = await run_in_threadpool(self._store.restored, session_id)
        token = request.headers.get("Restore-Token")
        is_token = restored is not None and token is not None and restored.is_token(token)
        if restored is None or not (is_token or await self._may_see(request, "drift", session_id)):
            raise StoreError(404, _NO_SESSION)
        return _json(await run_in_threadpool(self._store.drift, restored))


# What is sent

_PLACE = re.compile(r"(?P<reason>.*?)(?: - at `(?:key in )?(?P<place>.*)`)?", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)


def _valid(status: int, read: Callable[[], T]) -> T:
    """What a function of msgspec returns. What is invalid is answered with the name of its field."""
    try:
        return read()
    except msgspec.ValidationError as error:
        found = _PLACE.fullmatch(str(error))
        reason, place = (found["reason"], found["place"] or "$") if found else (str(error), "$")
        if unknown := _UNKNOWN.fullmatch(reason):
            raise StoreError(status, "there is no such field", field=unknown[1]) from None
        raise StoreError(status, reason, field=place.removeprefix("$.")) from None


def _position(text: str, session_id: str | None, label: str | None) -> Position:
    try:
        content = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        cursor: _Cursor = msgspec.json.decode(content, type=_Cursor)
    except (ValueError, msgspec.DecodeError, RecursionError):
        raise StoreError(400, "it is not a next_cursor of this service", field="cursor") from None
    if cursor[:2] != (session_id, label):
        raise StoreError(400, "it is from a list with another session_id or label", field="cursor")
    return cursor[2]


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
        detail = f'it must be one text such as "8e03978e-40d5-43dd", of at most {_MAX_KEY} characters'
        raise StoreError(400, detail, field="Idempotency-Key")
    return key


async def _request_of(request: Request) -> RestoreRequest:
    if request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
        raise StoreError(415, "the body must be application/json", headers={"Accept": "application/json"})
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_BODY:
            raise StoreError(413, f"the body has more than {_MAX_BODY} bytes", headers={"Connection": "close"})
    try:
        found = _valid(422, lambda: msgspec.json.decode(bytes(body), type=RestoreRequest))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise StoreError(400, "the body is not JSON") from None
    return msgspec.structs.replace(
        found, session_id=(found.session_id or "").strip() or None, label=found.label.strip()
    )


# The description

_TYPES: tuple[type[msgspec.Struct], ...] = (
    CheckpointEntry, CheckpointPage, Drift, DriftOfSession, FieldProblem, Problem, RestoreRequest, RestoreResponse,
    StoredCheckpoint, Write, WriteInDoubt,
)  # fmt: skip


async def _read_description(request: Request) -> Response:
    """The OpenAPI document: the paths of ``openapi.json``, and the schemas of the structs."""
    _, schemas = msgspec.json.schema_components(_TYPES, ref_template="#/components/schemas/{name}")
    document: dict[str, Any] = msgspec.json.decode(resources.files(__package__).joinpath("openapi.json").read_bytes())
    document["components"]["schemas"] = schemas
    return _json({**document, "servers": [{"url": request.scope.get("root_path", "") or "/"}]})
