"""Journals as runs write them, a real server of them, and a client that checks every answer against the description."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import socket
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import uvicorn
from starlette.exceptions import HTTPException
from starlette.requests import Request

from agent_cache.recording.file import RecordedCall, Trailer, call_line, digest_of, trailer_line
from agent_cache.resume.journal import journal_path, read_journal

_minutes = itertools.count(10)


class WrittenJournal:
    """The journal of a session, written line by line; one that is there already goes on. Calls do not overlap."""

    def __init__(self, directory: Path, session_id: str, **header: Any) -> None:
        self.path = journal_path(directory, session_id)
        self.last_id = self.last_ended = self.sequence = 0
        if self.path.exists():
            found = read_journal(self.path)
            self.last_ended, self.sequence = found.calls[-1].id, len(found.checkpoints)
            self.last_id = max([self.last_ended, *(one.id for one in found.in_doubt)])
            return
        about = {"session_id": session_id, "recorded_at": "2026-01-01T00:00:00Z", "redact": {}, **header}
        self._append({"agent_cache_journal": 1, **about, "run": os.urandom(16).hex(), "secret": os.urandom(16).hex()})

    def append(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)

    def _append(self, line: dict[str, Any]) -> None:
        self.append(json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def call(self, name: str, value: Any = None, source: str = "miss", **arguments: Any) -> None:
        self.last_id += 1
        digest = digest_of(name, arguments).hex()
        call = RecordedCall(
            id=self.last_id, name=name, arguments=arguments, digest=digest, after=self.last_ended, kind="tool",
            outcome={"value": value}, source=source, place=os.urandom(16).hex(),
        )  # fmt: skip
        self.append(call_line(call))
        self.last_ended = self.last_id

    def begin_write(self, name: str, **arguments: Any) -> str:
        """A write that has begun. Returns its key."""
        self.last_id += 1
        key = os.urandom(16).hex()
        intent = {"id": self.last_id, "kind": "tool", "name": name, "arguments": arguments, "place": key, "key": key}
        self._append({"intent": intent})
        return key

    def write(self, name: str, value: Any = None, **arguments: Any) -> None:
        self.begin_write(name, **arguments)
        self.last_id -= 1
        self.call(name, value, "write", **arguments)

    def checkpoint(self, label: str = "", state: dict[str, Any] | None = None, **fields: Any) -> str:
        self.sequence += 1
        number = uuid.uuid4().hex
        about = {"id": number, "sequence": self.sequence, "after": self.last_ended, "label": label, "importance": 0.5}
        made = {"created_at": f"2026-01-01T{next(_minutes):05}Z", "framework": "custom", "state": state or {}}
        self._append({"checkpoint": {**about, **made, **fields}})
        return number

    def seal(self) -> None:
        self.append(trailer_line(Trailer(calls=self.last_ended)))


def by_name(request: Request, action: str, session_id: str | None) -> bool:
    """Whoever is named may see sessions whose ids begin with the name; nobody may see the others."""
    kind, _, name = request.headers.get("Authorization", "").partition(" ")
    if kind != "Bearer" or not name:
        raise HTTPException(401, "say who you are", {"WWW-Authenticate": "Bearer"})
    if name == "guest":
        return False
    return session_id is None or session_id.startswith(f"{name}-")


class Client(httpx.Client):
    """A client whose every answer has to be what the description of the service says."""

    def __init__(self, url: str, name: str = "ann") -> None:
        headers = {"Authorization": f"Bearer {name}"} if name else {}
        super().__init__(
            base_url=url, headers=headers, timeout=60, verify=False, event_hooks={"response": [self._check]}
        )
        self._description: dict[str, Any] = {}

    def description(self) -> dict[str, Any]:
        if not self._description:
            self._description = httpx.get(f"{str(self.base_url).rstrip('/')}/openapi.json", verify=False).json()
        return self._description

    def _check(self, response: httpx.Response) -> None:
        response.read()
        assert response.headers["Cache-Control"] == "no-store"
        path = response.request.url.path.removeprefix(self.base_url.path.rstrip("/"))
        found = [
            operations[response.request.method.lower()]
            for template, operations in self.description()["paths"].items()
            if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), path)
            and response.request.method.lower() in operations
        ]
        if found:
            answer = found[0]["responses"][str(response.status_code)]
            if "$ref" in answer:
                answer = self.description()["components"]["responses"][str(response.status_code)]
            [(kind, content)] = answer["content"].items()
            schema = content["schema"]
        else:
            kind, schema = "application/problem+json", {"$ref": "#/components/schemas/Problem"}
        assert response.headers["Content-Type"] == kind
        validator = jsonschema.Draft202012Validator({**schema, "components": self.description()["components"]})
        validator.validate(response.json())


@contextlib.contextmanager
def running(app: Any) -> Iterator[str]:
    """The app on a free port, in a thread. Gives its URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="critical", lifespan="off", ws="none", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
