"""Users of one relay, and of relays that share a tier, are told apart by all that is sent to the server."""

from __future__ import annotations

import re
import sys

import pytest

pytest.importorskip("httpx2", reason="the relay over HTTP needs it")
pytest.importorskip("uvicorn", reason="as above")
pytest.importorskip("starlette", reason="as above")

import httpx2

from agent_cache.testing import reset
from tests.harness.mcp_host import RELAY, started
from tests.harness.mcp_http_host import ACCEPT, relaying, running
from tests.harness.odd_mcp_server import FORMS, ODD, OddApplication, call_of
from tests.integration.reach.test_relay_odd_messages import NOT_JUDGED

pytestmark = pytest.mark.usefixtures("clean")

RULES = """
namespace = "users"
on_loop = "off"
tools.whoami = { kind = "read", tags = ["user:{key}"] }
tools.get = { kind = "read", tags = ["value:{key}"] }
tools.raw = { kind = "pass" }
tools.odd = { kind = "read", tags = ["odd"] }
tools.form = { kind = "read", tags = ["form"] }
"""

TELLING = [
    "authorization", "cookie", "x-api-key", "x-forwarded-user", "x-forwarded-email", "x-forwarded-access-token",
    "x-forwarded-preferred-username", "x-forwarded-client-cert", "x-forwarded-host", "x-forwarded-for", "forwarded",
    "accept-language", "baggage", "sec-token", "x-stainless-helper", "x-b3-user", "mcp-param-tenant", "referer",
    "cache-control", "priority", "x-request-id-of-user", "x-amzn-oidc-data", "cf-access-jwt-assertion", "from",
]  # fmt: skip
NEUTRAL = [
    "accept-encoding", "b3", "cf-ray", "content-language", "date", "last-event-id", "mcp-method", "mcp-name",
    "sentry-trace", "traceparent", "tracestate", "user-agent", "x-amzn-trace-id", "x-b3-traceid",
    "x-cloud-trace-context", "x-correlation-id", "x-request-id", "uber-trace-id", "newrelic", "x-datadog-trace-id",
]  # fmt: skip


@pytest.fixture
async def application():
    """The server, and its address."""
    made = OddApplication()
    async with running(made) as origin:
        made.url = f"{origin}/mcp"
        yield made


async def answer(url, tool="whoami", key="a", **headers):
    """What a user is answered."""
    async with httpx2.AsyncClient(timeout=None) as client:
        sent = {**ACCEPT, **{name.replace("_", "-"): value for name, value in headers.items()}}
        found = await client.post(url, content=call_of(tool, key, b"1"), headers=sent)
    return found.json()["result"]["content"][0]["text"] if "result" in found.json() else found.json()


async def test_any_header_but_those_of_the_transport_tells_users_apart(application, rules):
    async with relaying(application.url, rules) as relay:
        for name in TELLING:
            for user in ("ada", "bob"):
                assert user in await answer(relay.url, key=name, **{name: user}), name


async def test_headers_of_the_transport_cost_no_hit(application, rules):
    async with relaying(application.url, rules) as relay:
        first = await answer(relay.url, "get")
        for name in NEUTRAL:
            for value in ("one", "two"):
                assert await answer(relay.url, "get", **{name: value}) == first, name
        balanced = [f"AWSALB={one}; user=ada; AWSALBCORS={one}" for one in ("one", "two")]
        assert len({await answer(relay.url, "get", cookie=one) for one in (*balanced, "user=bob")}) == 2


async def test_the_query_of_a_request_tells_users_apart(application, rules):
    async with relaying(application.url, rules) as relay:
        for user in ("ada", "bob", "ada"):
            assert await answer(f"{relay.url}?api_key={user}") == f"api_key={user}"


async def test_a_header_that_the_user_has_named_is_the_only_one_beside_the_credentials(application, rules):
    async with relaying(application.url, rules, vary_by=["X-User"]) as relay:
        first = await answer(relay.url, "get", x_forwarded_host="ada", x_user="one")
        assert await answer(relay.url, "get", x_forwarded_host="bob", x_user="one") == first
        assert await answer(relay.url, "get", x_forwarded_host="ada", x_user="two") != first
        assert await answer(relay.url, "get", x_user="one", cookie="user=ada") != first
        assert await answer(f"{relay.url}?user=ada", "get", x_user="one") != first


async def test_a_user_without_a_session_has_one_for_all_arguments_until_her_host_begins_anew(application, rules):
    async with relaying(application.url, rules) as relay, httpx2.AsyncClient() as client:
        for user, lists in (("ada", 1), ("bob", 2), ("ada", 3)):
            for key in ("a", "b"):  # which is repeated in a header, as revision 2026-07-28 has it
                sent = {"authorization": user, "mcp-protocol-version": "2026-07-28", "mcp-param-key": key}
                assert user in await answer(relay.url, key=key, **sent)
            assert sum(b'"tools/list"' in message for message in application.server.seen) == lists
            hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
            await client.post(relay.url, json=hello, headers={**ACCEPT, "authorization": user})


def shared(rules, tmp_path):
    rules.write_text(f'remote = "sqlite:///{tmp_path}/answers.db"\n{RULES}')
    return rules


SERVER_OF_ONE_USER = """
import json, os, sys
tool = {"name": "whoami", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
text = " ".join([*sys.argv[1:], os.path.basename(os.getcwd()), os.environ["SHOP_TOKEN"]])
results = {"tools/list": {"tools": [tool]}, "tools/call": {"content": [{"type": "text", "text": text}]}}
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = results.get(message["method"], {})
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("part", ["argument", "directory", "variable"])
async def test_relays_of_a_command_share_the_answers_of_one_user_alone(rules, tmp_path, part, monkeypatch):
    rules, found = shared(rules, tmp_path), []
    for user in ("ada", "bob", "ada"):
        (tmp_path / user).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / (user if part == "directory" else "."))
        command = (sys.executable, "-c", SERVER_OF_ONE_USER, user if part == "argument" else "eve")
        token = f"token-of-{user}" if part == "variable" else "eves"
        async with started((*RELAY, "--config", rules, "--", *command), greets=False, SHOP_TOKEN=token) as host:
            answers = [await host.call("whoami", key="a") for _ in range(2)]
        found.append([user in one for one in answers])
    assert found == [[True, True]] * 3
    kept = b"".join(each.read_bytes() for each in tmp_path.glob("answers.db*"))
    assert b"bob" in kept  # where they have been shared, that is one user's


async def test_relays_that_listen_share_the_answers_of_one_user_and_of_one_address_alone(application, rules, tmp_path):
    rules = shared(rules, tmp_path)

    async def asked(key, url, *headers, **sent):
        async with relaying(url, rules, headers=headers) as relay:
            found = await answer(relay.url, "get", key, **sent)
        reset()  # what is in the file stays
        return found

    ada, bob = (b"authorization", b"ada.w"), (b"authorization", b"bob.r")
    url = application.url
    for number, (one, other) in enumerate([
        ((url, ada), (url, bob)),
        ((f"{url}?user=ada.w",), (f"{url}?user=bob.r",)),
        ((url.replace("//", "//ada.w:x@"),), (url.replace("//", "//bob.r:x@"),)),
        ((url,), (url.replace("127.0.0.1", "localhost"),)),
    ]):  # fmt: skip
        first = await asked(f"key {number}", *one)
        assert await asked(f"key {number}", *one) == first
        assert await asked(f"key {number}", *other) != first
    first = await asked("own", url, authorization="ada.w")
    assert await asked("own", url, authorization="ada.w") == first
    assert await asked("own", url, authorization="bob.r") != first
    kept = b"".join(each.read_bytes() for each in tmp_path.glob("answers.db*"))
    assert b"ada.w" not in kept
    assert b"bob.r" not in kept


async def test_a_recording_tells_users_apart(application, rules, tape):
    async with relaying(application.url, rules, record_to=tape) as relay:
        for user in ("ada", "bob"):
            assert user in await answer(relay.url, authorization=user)
            assert user in await answer(f"{relay.url}?user={user}")
    async with relaying(application.url, rules, replay_from=tape) as relay:
        for user in ("bob", "ada"):
            assert user in await answer(f"{relay.url}?user={user}")
            assert user in await answer(relay.url, authorization=user)
        assert "error" in await answer(relay.url, authorization="eve")


async def test_a_recording_is_replayed_without_the_credentials_and_the_address_of_its_relay(rules, tape):
    application = OddApplication()
    async with running(application) as origin:
        credentials = [(b"authorization", b"ada")]
        async with relaying(f"{origin}/mcp?x=1", rules, record_to=tape, headers=credentials) as relay:
            recorded = await answer(relay.url, "get"), await answer(relay.url, "raw")
    for version in ("2025-06-18", "2026-07-28"):
        sent = {"mcp-protocol-version": version}
        async with relaying("http://localhost/mcp", rules, replay_from=tape) as relay:
            assert (await answer(relay.url, "get", **sent), await answer(relay.url, "raw", **sent)) == recorded
    async with started((*RELAY, "--config", rules, "--replay", tape), greets=False) as host:
        assert await host.call("get", key="a") == recorded[0]


async def test_a_call_in_a_form_that_nobody_can_judge_passes_and_ends_all_that_it_may_have_written(application, rules):
    async with relaying(application.url, rules) as relay, httpx2.AsyncClient(timeout=None) as client:
        for line in NOT_JUDGED:
            first = await answer(relay.url, "get")
            found = await client.post(relay.url, content=line, headers=ACCEPT)
            assert (found.status_code, application.server.seen[-1]) == (200, line)
            assert await answer(relay.url, "get") != first


@pytest.mark.parametrize("events", [False, True])
async def test_an_answer_that_cannot_be_read_passes_as_it_came(events, rules):
    async with (
        running(OddApplication(events=events)) as origin,
        relaying(f"{origin}/mcp", rules) as relay,
        httpx2.AsyncClient(timeout=None) as client,
    ):
        for kind, value in ODD.items():
            found = await client.post(relay.url, content=call_of("odd", kind, b"2"), headers=ACCEPT)
            assert b'{"jsonrpc":"2.0","id":2,"result":{"content":[],"odd":%b}}' % value in found.content
        for form in FORMS:
            found = await client.post(relay.url, content=call_of("form", form, b"2"), headers=ACCEPT)
            text = re.search(rb"\(\d+\)", found.content)[0].decode()
            assert await answer(relay.url, "form", form) == f"{form} {text}"
