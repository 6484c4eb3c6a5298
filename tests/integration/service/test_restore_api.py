"""Checkpoints over HTTP: a real server, a client that checks each answer, and journals of runs that were killed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import socket
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx")
pytest.importorskip("openapi_spec_validator")

import httpx
import jsonschema
import uvicorn
from openapi_spec_validator import validate
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Mount

from agent_cache import AgentCacheSession, ConfigurationError
from agent_cache.recording import RecordedCall
from agent_cache.resume import Journal
from agent_cache.resume.journal import journal_path, read_journal
from agent_cache.service import restore_app
from tests.harness.cassettes import Trailer, digest_of, line_of

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
        call = RecordedCall(
            id=self.last_id, name=name, arguments=arguments, digest=digest_of(name, arguments).hex(), kind="tool",
            after=self.last_ended, outcome={"value": value}, source=source, place=os.urandom(16).hex(),
        )  # fmt: skip
        self.append(line_of(call))
        self.last_ended = self.last_id

    def begin_write(self, name: str, **arguments: Any) -> str:
        """A write that has begun. Returns its key."""
        self.last_id += 1
        key = os.urandom(16).hex()
        about = {"kind": "tool", "name": name, "arguments": arguments, "place": key, "key": key}
        self._append({"intent": {"id": self.last_id, **about}})
        return key

    def write(self, name: str, value: Any = None, **arguments: Any) -> None:
        self.begin_write(name, **arguments)
        self.last_id -= 1
        self.call(name, value, "write", **arguments)

    def checkpoint(self, label: str = "", state: dict[str, Any] | None = None, **fields: Any) -> str:
        self.sequence += 1
        about = {"id": uuid.uuid4().hex, "sequence": self.sequence, "after": self.last_ended, "label": label}
        made = {"created_at": f"2026-01-01T{next(_minutes):05}Z", "importance": 0.5, "framework": "custom"}
        self._append({"checkpoint": {**about, **made, "state": state or {}, **fields}})
        return about["id"]

    def seal(self) -> None:
        self.append(line_of({"trailer": Trailer(calls=self.last_ended)}))


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


class Switch:
    """An app that is another for each test: to start and stop a server takes as long as all else that a test does."""

    app = None

    async def __call__(self, scope, receive, send):
        await self.app(scope, receive, send)


@pytest.fixture(scope="module")
def server():
    switch = Switch()
    with running(switch) as url:
        yield url, switch


@pytest.fixture
def store(tmp_path):
    directory = tmp_path / "journals"
    directory.mkdir()
    return directory


@pytest.fixture
def journal(store):
    return lambda session_id="ann-1", **header: WrittenJournal(store, session_id, **header)


@pytest.fixture
def served(store, server):
    """URL of a server of the store. Whoever is named may see the sessions that begin with the name."""
    url, switch = server
    switch.app = restore_app(store, authorize=by_name)
    return url


@pytest.fixture
def client(served):
    with Client(served) as client:
        yield client


@pytest.fixture
def killed(journal):
    """A run that was killed in the middle of a write, after two checkpoints."""
    run = journal("ann-1")
    run.call("shop:get_order", {"status": "pending"}, order_id="7")
    run.write("shop:pay", "paid", order_id="7")
    run.checkpoint("paid", {"step": 2, "messages": ["hi"]})
    run.call("shop:get_order", {"status": "paid"}, order_id="7")
    run.write("shop:ship", "shipped", order_id="7")
    run.checkpoint("shipped", {"step": 4})
    run.key = run.begin_write("shop:mail", to="ann")
    return run


def restored(client, checkpoint_id, key=None, **body):
    headers = {} if key is None else {"Idempotency-Key": key}
    return client.post(f"/checkpoints/{checkpoint_id}/restore", json=body, headers=headers)


def ids(client, **query):
    return [one["id"] for one in client.get("/checkpoints", params=query).raise_for_status().json()["checkpoints"]]


def sessions_in(store):
    return sorted(read_journal(path).session_id for path in store.glob("*.jsonl"))


def problem(response):
    assert response.headers["Content-Type"] == "application/problem+json"
    return response.status_code, [one["field"] for one in response.json().get("errors", [])]


# Reading


def test_checkpoints_are_listed_newest_first_and_read_with_their_state(client, killed):
    page = client.get("/checkpoints").json()
    assert ([one["label"] for one in page["checkpoints"]], page["next_cursor"]) == (["shipped", "paid"], None)
    first = page["checkpoints"][1]
    assert {name: first[name] for name in ("session_id", "sequence", "after", "importance", "framework")} == {
        "session_id": "ann-1", "sequence": 1, "after": 2, "importance": 0.5, "framework": "custom",
    }  # fmt: skip
    whole = client.get(f"/checkpoints/{first['id']}").json()
    assert whole == {**first, "state": {"framework": "custom", "step": 2, "messages": ["hi"]}}


def test_the_list_is_filtered_by_session_and_label_and_a_page_has_50_unless_something_else_is_asked(client, journal):
    one, other = journal("ann-1"), journal("ann-2")
    first, second, third = one.checkpoint("a"), other.checkpoint("a"), other.checkpoint("b")
    assert ids(client) == [third, second, first]
    assert ids(client, session_id="ann-2") == [third, second]
    assert ids(client, label="a", session_id="ann-1") == [first]
    assert ids(client, label="") == []
    made = [first, second, third, *(one.checkpoint() for _ in range(48))]
    page = client.get("/checkpoints").json()
    assert [one["id"] for one in page["checkpoints"]] == made[:0:-1]
    assert ids(client, cursor=page["next_cursor"]) == made[:1]


def test_pages_stay_the_same_while_checkpoints_are_added(client, journal):
    runs = [journal(f"ann-{number}") for number in range(3)]
    made = [runs[number % 3].checkpoint(str(number)) for number in range(10)]
    seen, cursor = [], None
    while True:
        page = client.get("/checkpoints", params={"limit": 3} | ({"cursor": cursor} if cursor else {})).json()
        seen += [one["id"] for one in page["checkpoints"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
        runs[0].checkpoint("later")
        journal(f"ann-new-{len(seen)}").checkpoint("later")
    assert seen == made[::-1]


# Restoring


def test_a_restore_makes_a_session_with_the_calls_until_the_checkpoint_or_with_all(client, killed, store):
    [_, checkpoint_id] = ids(client)
    answer = restored(client, checkpoint_id, label="second try").json()
    assert (answer["checkpoint_id"], answer["original_session_id"]) == (checkpoint_id, "ann-1")
    assert answer["state"] == {"framework": "custom", "step": 2, "messages": ["hi"]}
    assert (answer["copied_call_count"], answer["replayed_events_count"], answer["drift_detected"]) == (2, 0, None)
    assert answer["in_doubt"] == [{"id": 5, "name": "shop:mail", "key": killed.key, "arguments": {"to": "ann"}}]
    assert answer["later_writes"] == [{"id": 4, "name": "shop:ship", "arguments": {"order_id": "7"}}]
    assert len(answer["restore_token"]) >= 32
    [path] = [path for path in store.glob("*.jsonl") if path != killed.path]
    new = read_journal(path)
    assert (new.session_id, new.is_sealed) == (answer["new_session_id"], False)
    assert [call.name for call in new.calls] == ["shop:get_order", "shop:pay"]
    assert [(one.id, one.label) for one in new.checkpoints] == [(answer["new_checkpoint_id"], "second try")]
    assert answer["new_checkpoint_id"] != checkpoint_id
    with_events = restored(client, checkpoint_id, replay_events=True, session_id="ann-new").json()
    assert (with_events["copied_call_count"], with_events["replayed_events_count"]) == (2, 2)
    assert (with_events["new_session_id"], with_events["later_writes"]) == ("ann-new", [])
    new = read_journal(journal_path(store, "ann-new"))
    assert ([call.id for call in new.calls], [one.key for one in new.in_doubt]) == ([1, 2, 3, 4], [killed.key])


def test_labels_are_redacted_and_tokens_and_keys_are_in_no_file(client, journal, store):
    run = journal(redact={"names": [], "patterns": ["ord-[0-9]+"]})
    answer = restored(client, run.checkpoint(), label="of ord-77", session_id="ann-2", key="a-key").json()
    assert client.get(f"/checkpoints/{answer['new_checkpoint_id']}").json()["label"] == "of [redacted]"
    for path in store.rglob("*"):
        assert not any(one in path.read_bytes() for one in (b"ord-77", answer["restore_token"].encode(), b"a-key"))


def test_a_journal_that_is_broken_is_not_restored_and_the_log_says_where(client, killed, journal, store, caplog):
    journal("ann-9", restored={"of": "another version"})  # which keeps no other from being restored
    killed.append(b'{"id":9,"kind"}\n')
    answer = restored(client, ids(client)[0], key="k")
    assert problem(answer) == (409, [])
    assert str(store) not in answer.text
    assert f"{killed.path}:11: this line is broken" in caplog.text
    os.truncate(killed.path, killed.path.stat().st_size - len(b'{"id":9,"kind"}\n'))
    assert restored(client, ids(client)[0], key="k").status_code == 200


# Repeated requests


def test_a_repeated_request_makes_one_session_and_gets_the_same_answer(client, killed, store):
    [_, checkpoint_id] = ids(client)
    first = restored(client, checkpoint_id, key='"k-1"', track_drift=True)
    killed.write("shop:later", order_id="7")
    again = restored(client, checkpoint_id, key="k-1", track_drift=True, label="")
    assert first.raise_for_status().content == again.raise_for_status().content
    assert len(sessions_in(store)) == 2
    assert restored(client, checkpoint_id, key="k-2").json()["new_session_id"] != first.json()["new_session_id"]
    assert restored(client, checkpoint_id).json()["restore_token"] != first.json()["restore_token"]
    assert len(sessions_in(store)) == 4


def test_a_key_with_another_body_is_refused_and_with_another_checkpoint_it_is_another(client, killed, store):
    [later, checkpoint_id] = ids(client)
    before = killed.path.read_bytes()  # a session that exists is never replaced, and the key was not used up
    assert problem(restored(client, checkpoint_id, session_id="ann-1", key="k")) == (409, ["session_id"])
    assert killed.path.read_bytes() == before
    restored(client, checkpoint_id, key="k").raise_for_status()
    assert problem(restored(client, checkpoint_id, key="k", replay_events=True)) == (422, ["Idempotency-Key"])
    assert len(sessions_in(store)) == 2
    assert restored(client, later, key="k").json()["checkpoint_id"] == later


def test_two_servers_make_one_session_of_requests_at_the_same_time(served, store, killed):
    with running(restore_app(store, authorize=by_name)) as other, ThreadPoolExecutor(8) as pool:
        with Client(served) as one, Client(other) as two:
            [_, checkpoint_id] = ids(one)
            asked = [pool.submit(restored, (one, two)[turn % 2], checkpoint_id, key="k") for turn in range(16)]
            answers = {each.result().content for each in asked}
        assert len(answers) == 1
    assert len(sessions_in(store)) == 2


# Who may


def test_nobody_is_answered_without_a_name_and_everything_is_refused_to_a_guest(served, killed):
    path = f"/checkpoints/{killed.checkpoint()}"
    with Client(served, "") as nobody, Client(served, "guest") as guest:
        for method, url in [
            ("GET", "/checkpoints"), ("GET", path), ("GET", "/checkpoints/none"), ("POST", f"{path}/restore"),
            ("POST", "/checkpoints/none/restore"), ("GET", "/sessions/ann-1/drift"), ("GET", "/sessions/none/drift"),
        ]:  # fmt: skip
            refused = nobody.request(method, url)
            assert (refused.status_code, refused.headers["WWW-Authenticate"]) == (401, "Bearer")
            assert guest.request(method, url).status_code == 403


def test_what_is_not_ones_own_looks_as_if_it_were_not_there(served, killed, store):
    with Client(served) as ann, Client(served, "bob") as bob:
        [_, checkpoint_id] = ids(ann)
        session = restored(ann, checkpoint_id, session_id="ann-2", track_drift=True).json()["new_session_id"]
        for method, path, body in [
            ("GET", "/checkpoints/{}", None),
            ("POST", "/checkpoints/{}/restore", {}),
            ("POST", "/checkpoints/{}/restore", {"session_id": "ann-2"}),
        ]:
            hidden = bob.request(method, path.format(checkpoint_id), json=body)
            absent = bob.request(method, path.format("0" * 32), json=body)
            assert hidden.status_code == 404
            assert (hidden.content, hidden.headers.raw[2:]) == (absent.content, absent.headers.raw[2:])
        assert bob.get(f"/sessions/{session}/drift").content == bob.get("/sessions/bob-9/drift").content
        assert bob.get("/checkpoints").json() == {"checkpoints": [], "next_cursor": None}
        assert ids(bob, session_id="ann-1") == []
    assert sessions_in(store) == ["ann-1", "ann-2"]


def test_a_new_session_gets_no_id_that_the_sender_may_not_use(served, killed, journal, store):
    journal("bob-1")
    with Client(served) as ann:
        [_, checkpoint_id] = ids(ann)
        taken = restored(ann, checkpoint_id, session_id="bob-1")
        free = restored(ann, checkpoint_id, session_id="bob-2")
        assert taken.status_code == free.status_code == 403
        assert taken.content == free.content
    assert sessions_in(store) == ["ann-1", "bob-1"]


def test_the_token_shows_the_drift_of_its_session_and_nothing_else(served, killed):
    with Client(served) as ann:
        [_, checkpoint_id] = ids(ann)
        first = restored(ann, checkpoint_id, track_drift=True).json()  # its id does not begin with the name
        other = restored(ann, checkpoint_id, track_drift=True).json()
        path = f"/sessions/{first['new_session_id']}/drift"
        assert ann.get(path).status_code == 404
        assert ann.get(path, headers={"Restore-Token": other["restore_token"]}).status_code == 404
        headers = {"Restore-Token": first["restore_token"]}
        assert ann.get(path, headers=headers).json()["drifts"] == []
        assert ann.get(f"/checkpoints/{first['new_checkpoint_id']}", headers=headers).status_code == 404
    with Client(served, "guest") as guest:
        assert guest.get(path, headers=headers).status_code == 403


async def refuse_later(*asked):
    await asyncio.sleep(0)
    return False


def fail(*asked):
    raise RuntimeError("an internal reason")


def limited(*asked):
    raise HTTPException(429, "slowly", {"Retry-After": "3"})


def test_whatever_authorize_does_but_allow_refuses_and_a_hidden_session_looks_as_if_it_were_not_there(
    served, server, store, killed
):
    number = killed.checkpoint()
    with httpx.Client(base_url=served) as client:
        for authorize, status in [(refuse_later, 403), (fail, 500), (limited, 429), (lambda *asked: 1, 500)]:
            server[1].app = restore_app(store, authorize=authorize)
            answer = client.get("/checkpoints")
            assert problem(answer) == (status, [])
            assert "internal reason" not in answer.text
            assert ("Retry-After" in answer.headers) == (status == 429)
        for status in (401, 403, 404):

            def refuse(request, action, session_id, status=status):
                if session_id is not None:
                    raise HTTPException(status, "this one is secret")
                return True

            server[1].app = restore_app(store, authorize=refuse)
            assert ids(client) == []
            hidden, absent = (client.get(f"/checkpoints/{one}") for one in (number, "0" * 32))
            assert (hidden.status_code, hidden.content) == (404, absent.content)


def test_authorize_is_asked_for_the_action_and_then_for_the_session(client, server, store, killed):
    asked = []

    def authorize(request, action, session_id):
        asked.append((action, session_id))
        return True

    number = killed.checkpoint()
    server[1].app = restore_app(store, authorize=authorize)
    assert client.get("/checkpoints").status_code == client.get(f"/checkpoints/{number}").status_code == 200
    assert restored(client, number, session_id="new", track_drift=True).status_code == 200
    assert client.get("/sessions/new/drift").status_code == 200
    actions = [("list", "ann-1"), ("read", "ann-1"), ("restore", "ann-1"), ("create", "new"), ("drift", "new")]
    assert [one for one in asked if one[1] is not None] == actions
    assert [one for one in asked if one[1] is None] == [(action, None) for action, _ in actions if action != "create"]
    with pytest.raises(ConfigurationError, match="authorize"):
        restore_app(store, authorize=None)


# What is sent

LIST, RESTORE = ("GET", "/checkpoints"), ("POST", "/checkpoints/{}/restore")
REFUSED = [
    *((LIST, {"params": {name: value}}, 400, name) for name, value in [
        ("cursor", "x"), ("cursor", "[1]"), ("limit", "0"), ("limit", "201"), ("offset", "3"),
    ]),
    *((RESTORE, {"content": body}, status, field) for body, status, field in [
        (b"", 400, None),
        (b"{", 400, None),
        (b"null", 422, "$"),
        (b'{"session_id": 3}', 422, "session_id"),
        (json.dumps({"label": "x" * 201}).encode(), 422, "label"),
        (json.dumps({"session_id": "x" * 501}).encode(), 422, "session_id"),
        (b'{"replay": true}', 422, "replay"),
        (b'{"label": "' + b"x" * 70_000 + b'"}', 413, None),
    ]),
    (RESTORE, {"content": b"{}", "headers": {"Content-Type": "text/plain"}}, 415, None),
    *((RESTORE, {"json": {}, "headers": {"Idempotency-Key": key.encode()}}, 400, "Idempotency-Key")
      for key in ("", '"', "a b", "x" * 256, "é")),
    *((request, {}, status, None) for *request, status in [
        ("GET", "/", 404), ("GET", "/checkpoints/", 404), ("GET", "/checkpoints/none", 404),
        ("POST", "/checkpoints", 405), ("DELETE", "/checkpoints/{}", 405), ("GET", "/checkpoints/none/restore", 405),
        ("GET", "/sessions/ann-1/drift", 404), ("GET", "/sessions/x", 404),
    ]),
]  # fmt: skip


def test_what_is_wrong_is_a_problem_document_that_names_the_field_and_changes_nothing(client, killed, store):
    [_, checkpoint_id] = ids(client)
    for (method, path), options, status, field in REFUSED:
        headers = {"Content-Type": "application/json"} | options.get("headers", {})
        answer = client.request(method, path.format(checkpoint_id), **{**options, "headers": headers})
        assert problem(answer) == (status, [field] if field else []), options
        assert ("Allow" in answer.headers) == (status == 405)
        assert sessions_in(store) == ["ann-1"]


async def test_a_sender_who_leaves_before_the_body_is_there_is_no_error_of_the_server(client, killed, store):
    path, send = f"/checkpoints/{ids(client)[0]}/restore", AsyncMock()
    scope = {"type": "http", "method": "POST", "path": path, "headers": [(b"content-type", b"application/json")]}
    begun, left = {"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}
    await restore_app(store, authorize=lambda *_: True)(scope, AsyncMock(side_effect=[begun, left]), send)
    assert send.await_args_list[0].args[0]["status"] == 400
    assert sessions_in(store) == ["ann-1"]


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a\0b", "ä" * 200, "%2e%2e"])
def test_no_id_leads_out_of_the_store(client, killed, store, name):
    before = sorted(store.parent.rglob("*"))
    quoted = "".join(f"%{byte:02X}" for byte in name.encode())
    for path in (f"/checkpoints/{quoted}", f"/sessions/{quoted}/drift"):
        assert client.get(path).status_code == 404
    answer = restored(client, ids(client)[1], session_id=f"ann-{name}", track_drift=True)
    assert answer.json()["new_session_id"] == f"ann-{name}"
    assert {path.parent for path in store.parent.rglob("*") if path not in before} <= {store}
    assert sessions_in(store) == sorted(["ann-1", f"ann-{name}"])


# Drift


def test_the_drift_of_a_session_is_compared_with_the_original(client, killed, store):
    [_, checkpoint_id] = ids(client)
    answer = restored(client, checkpoint_id, track_drift=True, session_id="ann-2").json()
    assert answer["drift_detected"] is False
    worker = WrittenJournal(store, "ann-2")

    def drift():
        return client.get("/sessions/ann-2/drift").raise_for_status().json()

    first = drift()
    assert (first["drift_detected"], first["calls"], first["is_ended"], first["worst"]) == (False, 2, False, None)
    assert (first["original_session_id"], first["checkpoint_id"]) == ("ann-1", checkpoint_id)
    worker.call("shop:get_order", {"status": "paid"}, order_id="7")
    assert drift()["drifts"] == []
    worker.write("shop:refund", "refunded", order_id="7")
    found = drift()
    assert (found["drift_detected"], found["worst"]) == (True, "critical")
    assert [(one["kind"], one["name"]) for one in found["drifts"]] == [("extra", "shop:refund")]
    worker.seal()
    ended = drift()
    found = sorted((one["kind"], one["name"]) for one in ended["drifts"])
    assert (ended["is_ended"], found) == (True, [("extra", "shop:refund"), ("missing", "shop:ship")])


def test_what_goes_beyond_an_original_that_was_killed_is_no_drift(client, killed, store):
    restored(client, ids(client)[0], track_drift=True, session_id="ann-2").raise_for_status()
    worker = WrittenJournal(store, "ann-2")
    worker.write("shop:mail", "sent", to="ann")
    worker.seal()
    assert client.get("/sessions/ann-2/drift").json()["drifts"] == []
    killed.seal()
    assert client.get("/sessions/ann-2/drift").json()["drift_detected"] is True


# The description


def test_the_description_is_valid_openapi_and_asks_for_nothing(client):
    document = httpx.get(f"{client.base_url}/openapi.json").raise_for_status().json()
    validate(document)
    assert document["openapi"].startswith("3.1")
    key = document["paths"]["/checkpoints/{checkpoint_id}/restore"]["post"]["parameters"][1]["schema"]["pattern"]
    assert [one for one in ("k-1", '"k-1"', "", '"', '"k', "a b", "x" * 256) if re.search(key, one)] == ["k-1", '"k-1"']
    named = document["components"]["schemas"]
    assert set(named["RestoreRequest"]["properties"]) == {"session_id", "label", "replay_events", "track_drift"}


def test_the_app_can_be_mounted_under_a_path(store, killed):
    app = Starlette(routes=[Mount("/api", app=restore_app(store, authorize=by_name))])
    with running(app) as url, Client(f"{url}/api") as client:
        assert client.description()["servers"] == [{"url": "/api"}]
        assert restored(client, ids(client)[0]).status_code == 200
        assert problem(client.get("/nothing")) == (404, [])


# The files behind the list


def test_a_line_and_a_header_are_read_when_they_are_whole(client, journal):
    run = journal()
    header = run.path.read_bytes()
    run.path.write_bytes(header[:30])
    assert ids(client) == []
    run.path.write_bytes(header)
    first = run.checkpoint()
    whole = run.path.read_bytes()
    second = run.checkpoint()
    line = run.path.read_bytes()[len(whole) :]
    run.path.write_bytes(whole + line[:40])
    assert ids(client) == [first]
    run.append(line[40:])
    assert ids(client) == [second, first]
    aside = run.path.with_name("ann-1.12345678.jsonl")
    run.path.rename(aside)
    third = journal().checkpoint()
    assert ids(client) == [third, second, first]
    aside.unlink()
    assert ids(client) == [third]


def test_a_journal_that_grows_is_not_read_from_its_beginning_again(client, journal):
    run = journal()
    first = run.checkpoint("first")
    assert ids(client, label="first") == [first]
    run.path.write_bytes(run.path.read_bytes().replace(b'"first"', b'"1st"  '))
    second = run.checkpoint("second")
    assert ids(client) == [second, *ids(client, label="first")] == [second, first]
    run.path.write_bytes(re.sub(rb'("(?:run|id)":)"(\w{16})(\w{16})"', rb'\1"\3\2"', run.path.read_bytes()))
    assert ids(client) == [one[16:] + one[:16] for one in (second, first)], "another run, in a file of the same number"
    run.path.write_bytes(run.path.read_bytes().partition(b'{"checkpoint"')[0])
    assert ids(client) == []


def test_a_copy_of_an_earlier_state_is_not_restored_and_a_store_that_is_gone_is_an_error(client, killed, store):
    [_, checkpoint_id] = ids(client)
    whole = killed.path.read_bytes()
    for name in ("0", "ann-1 (copy)", "z"):
        (store / f"{name}.jsonl").write_bytes(whole[: whole.index(b'"shipped"')])
    answer = restored(client, checkpoint_id, track_drift=True).json()
    assert [one["name"] for one in answer["later_writes"]] == ["shop:ship"]
    path = f"/sessions/{answer['new_session_id']}/drift"
    assert client.get(path, headers={"Restore-Token": answer["restore_token"]}).status_code == 200
    store.rename(store.with_name("elsewhere"))
    assert problem(client.get("/checkpoints")) == (500, [])


def test_what_is_no_journal_is_left_out_and_said(client, store, journal, caplog):
    good = journal().checkpoint()
    (store / "note.jsonl").write_bytes(b"hello\n")
    (store / "empty.jsonl").touch()
    (store / "cassette.jsonl").write_bytes(b'{"agent_cache_cassette":2}\n{"checkpoint":{}}\n')
    (store / "folder.jsonl").mkdir()
    os.mkfifo(store / "pipe.jsonl")
    journal("s-2").checkpoint(sequence="1")
    journal("s-3").append(b'{"checkpoint":[1]}\n')
    assert ids(client) == [good]
    for name in ("note", "empty", "cassette", "folder", "pipe", "s-2", "s-3"):
        assert f"{name}.jsonl cannot be read, so its checkpoints are not listed" in caplog.text


def test_encrypted_journals_are_listed_and_restored_with_their_key(client, server, store):
    pytest.importorskip("cryptography")
    key = bytes(range(32))

    async def run():
        async with AgentCacheSession("ann-1", journal=Journal(store, key=key)) as session:
            await session.checkpoint("made", {"password": "hunter2", "step": 1})

    asyncio.run(run())
    assert ids(client) == []
    server[1].app = restore_app(store, authorize=by_name, key=key)
    answer = restored(client, *ids(client), session_id="ann-2").json()
    assert answer["state"] == {"framework": "custom", "password": "[redacted]", "step": 1}
    made = journal_path(store, "ann-2")
    assert b"ann-2" not in made.read_bytes()
    assert read_journal(made, key=key).session_id == "ann-2"


# The pages

DOCS = Path(__file__).parents[3] / "docs"
REFERENCE = (DOCS / "reference" / "service.md").read_text()


def test_the_example_of_the_page_works(capsys):
    namespace = {"__name__": "__main__"}
    text = (DOCS / "how-to" / "serve-checkpoints.md").read_text()
    blocks = re.findall(r"^```python(?: no-run)?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    for block in blocks[:2]:
        exec(block, namespace)
    assert capsys.readouterr().out == "['pay', 'ship']\n"
    with running(namespace["app"]) as url:
        for block in blocks[2:]:
            exec(block.replace("http://127.0.0.1:8000", url), namespace)
    namespace["client"].close()


def test_the_reference_names_every_field_and_status(client):
    named = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", REFERENCE, re.MULTILINE))))
    components = client.description()["components"]
    for kind in ("RestoreRequest", "RestoreResponse"):
        assert set(components["schemas"][kind]["properties"]) <= named
    assert set(re.findall(r"^\| (\d{3}) \|", REFERENCE, re.MULTILINE)) == {*components["responses"], "405"}
