"""The HTTP interface of a store of checkpoints: routes, authorization, problem documents, and their description.

Every answer is JSON. What goes wrong is a problem document (RFC 9457) without internals. Nothing but
``/openapi.json`` is answered without `authorize`, and a caller who may not see a session cannot tell whether it exists.
Files are read and written in threads, so that the event loop never waits for the disk.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from importlib import resources
from inspect import isawaitable
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from agent_cache.errors import ConfigurationError
from agent_cache.recording.drift import Tolerance
from agent_cache.resume.checkpoints import CheckpointEntry
from agent_cache.service.checkpoint_store import (
    CheckpointStore,
    DriftOfSession,
    Position,
    Refused,
    RestoreRequest,
    RestoreResponse,
    StoredCheckpoint,
    position_of,
)

__all__ = ["restore_app"]

T = TypeVar("T")

_Authorize: TypeAlias = Callable[[Request, str, "str | None"], "bool | Awaitable[bool]"]
"""``authorize(request, action, session_id)``: whether the sender of a request may do this. See `restore_app`."""

_MAX_BODY = 64 * 1024


class CheckpointPage(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the list of checkpoints, newest first."""

    checkpoints: list[CheckpointEntry]
    next_cursor: str | None


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A problem document (RFC 9457). Each of `errors` has the `field` that is wrong, and a `detail`."""

    title: str
    status: int
    detail: str
    type: str = msgspec.field(default_factory=lambda: "about:blank")
    errors: list[dict[str, str]] = []


class _ListQuery(msgspec.Struct, forbid_unknown_fields=True):
    session_id: str | None = None
    label: str | None = None
    cursor: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 50


def restore_app(
    store: str | os.PathLike[str],
    *,
    authorize: _Authorize,
    tolerance: Tolerance | None = None,
    key: bytes | None = None,
) -> Starlette:
    """An ASGI app that lists the checkpoints of sessions and restores sessions from them.

    Run it with any ASGI server, or mount it in another app. It executes nothing of a run: a restore makes the journal
    of a new session, and a worker that opens the session goes on from there. Several servers may serve one directory.

    Args:
        store: the directory of `agent_cache.resume.Journal`. It must exist.
        authorize: ``authorize(request, action, session_id)``, a function, which is called in a thread, or a coroutine
            function. It returns True or False, and is asked twice: with None as the session, whether the sender may
            take this action at all (else 403), and with the session that the request is about (else 404, as if there
            were none). Actions are ``"list"``, ``"read"``, ``"restore"`` and ``"drift"``; and ``"create"``, with the id
            that a request gives to the new session (else 403). An `HTTPException` of Starlette's is answered as it
            says.
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
            Route("/checkpoints", api.list_checkpoints, methods=["GET"]),
            Route("/checkpoints/{checkpoint_id}", api.read_checkpoint, methods=["GET"]),
            Route("/checkpoints/{checkpoint_id}/restore", api.restore_checkpoint, methods=["POST"]),
            Route("/sessions/{session_id:path}/drift", api.read_drift, methods=["GET"]),
            Route("/openapi.json", _read_description, methods=["GET"]),
        ],
        exception_handlers={HTTPException: _problem, Exception: _problem},
    )
    app.router.redirect_slashes = False
    return app


def _json(content: object) -> Response:
    return Response(msgspec.json.encode(content), 200, {"Cache-Control": "no-store"}, media_type="application/json")


def _problem(_request: Request, error: Exception) -> Response:
    """The answer for what went wrong. Of an error inside, which is in the log, nobody learns anything."""
    status, detail, headers = 500, "the request failed; the log of the server says why", {}
    if isinstance(error, HTTPException):
        status, detail, headers = error.status_code, str(error.detail), dict(error.headers or {})
    phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else "Error"
    errors = [{"field": error.field, "detail": detail}] if isinstance(error, Refused) and error.field else []
    content = msgspec.json.encode(Problem(title=phrase, status=status, detail=detail, errors=errors))
    return Response(content, status, {**headers, "Cache-Control": "no-store"}, media_type="application/problem+json")


class _RestoreApi:
    def __init__(self, store: CheckpointStore, authorize: _Authorize) -> None:
        self._store, self._authorize = store, authorize

    async def _is_allowed(self, request: Request, action: str, session_id: str | None) -> bool:
        answer = await run_in_threadpool(self._authorize, request, action, session_id)
        if isawaitable(answer):
            answer = await answer
        if not isinstance(answer, bool):
            raise TypeError(f"authorize must return True or False, and returned {answer!r}")
        return answer

    async def _permit(self, request: Request, action: str) -> None:
        """Refuse a sender who may not take this action for any session."""
        if not await self._is_allowed(request, action, None):
            raise Refused(403, "this is not allowed")

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
            raise Refused(404, "there is no such checkpoint")
        return found

    async def list_checkpoints(self, request: Request) -> Response:
        await self._permit(request, "list")
        query = _valid(400, lambda: msgspec.convert(dict(request.query_params), _ListQuery, strict=False))
        try:
            after = None if query.cursor is None else msgspec.json.decode(query.cursor, type=Position)
        except (msgspec.DecodeError, RecursionError):
            raise Refused(400, "it is not a next_cursor of this service", "cursor") from None
        seen: dict[str, bool] = {}
        found: list[CheckpointEntry] = []
        for one in await run_in_threadpool(self._store.listed, query.session_id, query.label, after):
            if one.session_id not in seen:
                seen[one.session_id] = await self._may_see(request, "list", one.session_id)
            if seen[one.session_id]:
                found.append(one)
            if len(found) > query.limit:
                break
        is_more = len(found) > query.limit
        cursor = msgspec.json.encode(position_of(found[query.limit - 1])).decode() if is_more else None
        return _json(CheckpointPage(checkpoints=found[: query.limit], next_cursor=cursor))

    async def read_checkpoint(self, request: Request) -> Response:
        await self._permit(request, "read")
        return _json(await run_in_threadpool(self._store.read, await self._found(request, "read")))

    async def restore_checkpoint(self, request: Request) -> Response:
        await self._permit(request, "restore")
        key, asked = _idempotency_key(request), await _request_of(request)
        found = await self._found(request, "restore")
        if asked.session_id and not await self._is_allowed(request, "create", asked.session_id):
            raise Refused(403, "a session of this id is not allowed")
        return _json(await run_in_threadpool(self._store.restore, found, asked, key))

    async def read_drift(self, request: Request) -> Response:
        await self._permit(request, "drift")
        session_id = request.path_params["session_id"]
        restored = await run_in_threadpool(self._store.restored, session_id)
        token = request.headers.get("Restore-Token")
        is_token = restored is not None and token is not None and restored[0].is_token(token)
        if restored is None or not (is_token or await self._may_see(request, "drift", session_id)):
            raise Refused(404, "there is no session of this id that was restored with track_drift")
        return _json(await run_in_threadpool(self._store.drift, *restored))


# What is sent


def _valid(status: int, read: Callable[[], T]) -> T:
    """What a function of msgspec returns. What is invalid is answered with the name of its field."""
    try:
        return read()
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `")
        place = place.removeprefix("key` in `").rstrip("`").removeprefix("$.") or "$"
        if reason.startswith("Object contains unknown field"):
            raise Refused(status, "there is no such field", reason.split("`")[1]) from None
        raise Refused(status, reason, place) from None


def _idempotency_key(request: Request) -> str | None:
    """The key of a request: in quotes, as RFC 9651 has it, or, as many clients send it, without."""
    found = request.headers.get("Idempotency-Key")
    if found is None:
        return None
    if (key := re.fullmatch(r'("?)([!#-~]{1,255})\1', found)) is None:
        detail = 'it must be a text such as "8e03978e-40d5-43dd", of at most 255 visible characters'
        raise Refused(400, detail, "Idempotency-Key")
    return key[2]


async def _request_of(request: Request) -> RestoreRequest:
    if request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, "the body must be application/json", headers={"Accept": "application/json"})
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MAX_BODY:
                raise Refused(413, f"the body has more than {_MAX_BODY} bytes", headers={"Connection": "close"})
        found = _valid(422, lambda: msgspec.json.decode(bytes(body), type=RestoreRequest))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ClientDisconnect):
        raise Refused(400, "the body is not JSON") from None
    return msgspec.structs.replace(
        found, session_id=(found.session_id or "").strip() or None, label=found.label.strip()
    )


# The description


async def _read_description(request: Request) -> Response:
    """The OpenAPI document: the paths of ``openapi.json``, and the schemas of the structs."""
    types = CheckpointPage, DriftOfSession, Problem, RestoreRequest, RestoreResponse, StoredCheckpoint
    document: dict[str, Any] = msgspec.json.decode(resources.files(__package__).joinpath("openapi.json").read_bytes())
    template = "#/components/schemas/{name}"
    document["components"]["schemas"] = msgspec.json.schema_components(types, ref_template=template)[1]
    return _json({**document, "servers": [{"url": request.scope.get("root_path", "") or "/"}]})
