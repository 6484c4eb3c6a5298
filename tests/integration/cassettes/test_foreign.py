"""Recordings of vcrpy, cassetter and betamax are converted. The files in ``foreign/`` were written by those."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_cache.errors import CassetteError, ConfigurationError
from agent_cache.recording import Cassette, DivergenceError, replay
from tests.harness.cassettes import is_foreign, pieces_of, read_foreign

FOLDER = Path(__file__).parent / "foreign"
WHOLE = ["vcrpy-httpx.yaml", "vcrpy-requests.yaml", "vcrpy-httpx.decoded.yaml", "cassetter-httpx.yaml"]
JSON = ["betamax-exact.json", "betamax.json"]
HOST = "http://127.0.0.1"
URL = f"{HOST}:8765"
MESSAGES = [{"role": "user", "content": "Which city?"}]


@pytest.fixture
def yaml() -> Any:
    return pytest.importorskip("yaml")


@pytest.fixture(params=[*WHOLE, *JSON])
def path(request: pytest.FixtureRequest) -> Path:
    if request.param.endswith(".yaml"):
        pytest.importorskip("yaml")
    return FOLDER / request.param


def body(call: Any) -> bytes:
    return b"".join(pieces_of(call.outcome["response"]))


def test_the_requests_are_those_that_were_recorded_in_their_order(path):
    calls = list(read_foreign(path))
    assert [(call.kind, call.name) for call in calls if "bytes" not in call.name] == [
        ("http", f"POST {URL}/v1/chat/completions"),
        ("http", f"POST {URL}/v1/chat/completions"),
        ("http", f"GET {URL}/gzip"),
        ("http", f"POST {URL}/form"),
        ("http", f"PUT {URL}/upload"),
        ("http", f"GET {URL}/missing"),
        ("http", f"GET {URL}/login"),
        ("http", f"GET {URL}/empty"),
    ]
    by_name = {call.name.rpartition("/")[2]: call for call in calls}
    assert calls[0].arguments == {"json": {"model": "gpt-4o", "messages": MESSAGES}}
    assert calls[1].arguments == {"json": {"model": "gpt-4o", "messages": MESSAGES, "stream": True}}
    assert by_name["gzip"].arguments == {"query": {"a": "1", "q": "b"}}
    assert by_name["form"].arguments == {"form": {"password": "[redacted]", "name": "Åsa"}}
    assert {call.after for call in calls} == {0}


@pytest.mark.parametrize("name", [*WHOLE, *JSON, "pydantic-ai.yaml"])
def test_a_request_to_a_known_host_of_models_has_its_tokens(name, tmp_path):
    if name.endswith(".yaml"):
        pytest.importorskip("yaml")
    path = tmp_path / name
    path.write_bytes((FOLDER / name).read_bytes().replace(URL.encode(), b"https://api.openai.com"))
    call = next(iter(read_foreign(path)))
    assert (call.kind, call.model, call.input_tokens, call.output_tokens) == ("llm", "gpt-4o", 3, 2)
    assert call.arguments == {"json": {"model": "gpt-4o", "messages": MESSAGES}}
    assert call.outcome["response"]["json"]["choices"][0]["message"]["content"] == "Oslo"
    assert "content-encoding" not in call.outcome["response"].get("headers", {})


def test_the_responses_are_those_that_were_received(path):
    by_name = {call.name.rpartition("/")[2]: call for call in read_foreign(path)}
    answers = {name: call.outcome["response"] for name, call in by_name.items()}
    assert json.loads(body(by_name["gzip"])) == {"packed": True, "city": "København"}
    assert answers["gzip"]["json"] == {"packed": True, "city": "København"}
    assert "content-encoding" not in answers["gzip"]["headers"]
    assert body(by_name["form"]) == b"a plain text\nof two lines\n"
    assert (answers["missing"]["status"], answers["empty"]["status"]) == (404, 204)
    assert body(by_name["empty"]) == b""
    if "bytes" in by_name and path.name != "betamax.json":  # where betamax itself has lost them
        assert body(by_name["bytes"]) == bytes(range(256))
    stream = next(call for call in read_foreign(path) if call.arguments.get("json", {}).get("stream"))
    assert [event.get("json", event.get("data")) for event in stream.outcome["response"]["events"]] == [
        {"choices": [{"index": 0, "delta": {"content": "Os"}}]},
        {"choices": [{"index": 0, "delta": {"content": "lo"}}]},
        "[DONE]",
    ]


def test_nothing_secret_is_in_the_cassette(path):
    text = b"".join(read_foreign(path).lines())
    assert b"made-up" not in text
    if "cassetter" not in path.name:  # which leaves cookies out
        assert b"session=" in text


@pytest.mark.parametrize("name", [*WHOLE, "betamax-exact.json", "pydantic-ai.yaml"])
def test_a_real_client_is_answered_from_what_was_converted(name, tmp_path):
    httpx = pytest.importorskip("httpx")
    if name.endswith(".yaml"):
        pytest.importorskip("yaml")
    read_foreign(FOLDER / name).save(tmp_path / "ours.jsonl")
    with replay(tmp_path / "ours.jsonl"), httpx.Client() as client:
        answer = client.post(f"{URL}/v1/chat/completions", json={"model": "gpt-4o", "messages": MESSAGES})
        assert answer.json()["choices"][0]["message"]["content"] == "Oslo"
        if name == "pydantic-ai.yaml":
            return
        assert client.get(f"{URL}/gzip", params={"a": "1", "q": "b"}).json()["city"] == "København"
        assert client.post(f"{URL}/form", data={"password": "another", "name": "Åsa"}).text.startswith("a plain")
        assert client.get(f"{URL}/bytes").content == bytes(range(256))
        assert client.get(f"{URL}/missing").status_code == 404
    with pytest.raises(DivergenceError), replay(tmp_path / "ours.jsonl"), httpx.Client() as client:
        client.get(f"{URL}/gzip", params={"a": "2"})


PLAIN = {"content-type": "text/plain"}
LATIN = {"content-type": "text/plain; charset=iso-8859-1"}
BODIES = [
    *(({"content-encoding": one, **PLAIN}, {"string": "plain"}, b"plain", PLAIN) for one in ("gzip", "br", "new")),
    ({"content-encoding": "gzip"}, {"base64_string": base64.b64encode(b"\xff plain").decode()}, b"\xff plain", None),
    (LATIN, {"encoding": "ISO-8859-1", "string": "grün"}, "grün".encode("latin-1"), LATIN),
]


@pytest.mark.parametrize(("headers", "given", "content", "kept"), BODIES, ids=range(len(BODIES)))
def test_a_body_has_no_encoding_that_the_recorder_has_taken_off(headers, given, content, kept, tmp_path):
    path = tmp_path / "a.json"
    request = {"method": "GET", "uri": "https://api.test/a", "headers": {}, "body": None}
    response = {"status": {"code": 200}, "headers": headers, "body": given}
    path.write_text(json.dumps({"version": 1, "interactions": [{"request": request, "response": response}]}), "utf-8")
    [call] = read_foreign(path)
    assert (body(call), call.outcome["response"].get("headers")) == (content, kept)


def test_an_answer_that_aliases_repeat_is_no_attack(tmp_path, yaml):
    one = "{request: {method: GET, uri: 'https://a.test/'}, response: *a}"
    text = f"a: &a {{status: {{code: 200}}, body: {{string: {'x' * 9999}}}}}\ninteractions: [{(one + ',') * 99}]"
    (tmp_path / "a.yaml").write_text(text, "utf-8")
    assert len(read_foreign(tmp_path / "a.yaml")) == 99


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "cannot be read as YAML or JSON"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "git lfs pull"),
        ('{"calls": []}', "no list of interactions"),
        ('{"interactions": [{"request": {}}]}', "interaction 1 is broken: KeyError: 'response'"),
        ('{"interactions": [], "grpc_interactions": [1]}', "only HTTP"),
        (f"a: &a {[0] * 300}\nb: &b [{'*a,' * 300}]\ninteractions: [{'*b,' * 300}]", "so often that"),
        ("interactions: &a [*a]", "so often that"),
        ("interactions: !!python/object/apply:os.system ['true']", "cannot be read as YAML"),
    ],
)
def test_what_is_no_cassette_is_refused(text, reason, tmp_path, yaml):
    path = tmp_path / "a.json"
    path.write_text(text, "utf-8")
    with pytest.raises(CassetteError, match=reason):
        read_foreign(path)


def test_yaml_needs_pyyaml_and_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigurationError, match=r'pip install "agent-cache\[yaml\]"'):
        read_foreign(FOLDER / "vcrpy-httpx.yaml")
    assert len(read_foreign(FOLDER / "betamax.json")) == 9


def test_files_of_others_are_told_by_their_beginning(tmp_path):
    assert is_foreign(FOLDER / "betamax.json")
    assert is_foreign(tmp_path / "a.yml")
    assert not is_foreign(tmp_path / "missing.json")
    Cassette().save(tmp_path / "ours.jsonl")
    assert not is_foreign(tmp_path / "ours.jsonl")


def test_the_command_converts_them_and_what_it_writes_is_whole(path, command, tmp_path):
    ours = tmp_path / "ours.jsonl"
    code, out, _ = command("convert", path, "-o", ours)
    assert (code, out.splitlines()[0].rpartition(" -> ")[0]) == (0, str(path))
    assert command("verify", ours) == (0, f"ok  {ours}  {len(Cassette.load(ours))} calls\n", "")
