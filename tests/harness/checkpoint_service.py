"""A real server of checkpoints on loopback, and a real client that checks every answer against the description."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import uvicorn
from starlette.exceptions import HTTPException
from starlette.requests import Request

from agent_cache.service import restore_app


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


def main(store: str, descriptor: int) -> None:
    """Serve in a process of its own, on a socket that it has inherited."""
    app = restore_app(store, authorize=by_name)
    uvicorn.run(app, fd=descriptor, log_level="critical", lifespan="off", ws="none")
