"""`agent-cache mcp` between a host and a server of the MCP SDK, over the pipes of real processes."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from importlib.util import find_spec

import pytest

pytest.importorskip("mcp", reason="the servers of these tests are made by its SDK")

from agent_cache.recording import Cassette
from tests.harness.advice import read_log
from tests.harness.mcp_host import RELAY, SERVER, hello_of, relayed, run_of, started, text_of

OVER_HTTP = pytest.mark.skipif(find_spec("httpx2") is None, reason="the relay over HTTP needs httpx2")
RULES = """
namespace = "relay"
new_turn_after = 1000
tools.get_value = { kind = "read", tags = ["value:{key}"] }
tools.set_value = { kind = "write", tags = ["value:{key}"] }
tools.wait_for = { kind = "read", tags = ["gate:{key}"] }
tools.ask_host = { kind = "read", tags = ["ask"] }
tools.large = { kind = "read", tags = ["large"] }
tools.fail = { kind = "read", tags = ["fail"] }
tools.die = { kind = "write", tags = ["value"] }
tools.run_count = { kind = "pass" }
tools.open_gate = { kind = "pass" }
tools.change_list = { kind = "pass" }
"""


async def test_without_a_file_nothing_is_stored():
    async with relayed() as host:
        assert await host.call("clock") == "tick 1"
        assert await host.call("clock") == "tick 2"
        assert await host.call("get_value", key="a") == "nothing (1)"
        assert await host.call("get_value", key="a") == "nothing (2)"


async def test_when_the_leader_is_cancelled_a_waiter_runs_the_tool_anew_and_the_server_is_told(rules):
    async with relayed("--config", rules) as host:
        progress = {"_meta": {"progressToken": "of the second"}}
        first = host.begin("wait_for", key="a")
        leader = host.last_id
        second = host.start("tools/call", {"name": "wait_for", "arguments": {"key": "a"}, **progress})
        await host.call("run_count", name="wait_for a")
        await host.notify("notifications/cancelled", {"requestId": leader, "reason": "enough"})
        await host.until(lambda: host.notifications)  # the second run begins with progress, under its own token
        assert host.notifications[0]["params"]["progressToken"] == "of the second"
        assert await host.call("run_count", name="wait_for a") == "2"
        await host.call("open_gate", key="a")
        assert text_of((await second)["result"]) == "a open (2)"
        assert not first.done() or "error" in first.result()  # as the server answers a cancelled request, if it does


async def test_the_answer_to_a_read_that_asked_the_host_is_not_stored(rules):
    async with relayed("--config", rules) as host:
        assert await host.call("ask_host", key="a") == "red (1)"
        host.answer = lambda message: {"action": "accept", "content": {"color": "blue"}}
        assert await host.call("ask_host", key="a") == "blue (2)"
        assert [each["method"] for each in host.asked] == ["elicitation/create"] * 2
        await host.until(lambda: "it is for its caller alone" in host.errors)


# What passes by


async def test_what_is_no_tool_call_passes_byte_for_byte(rules):
    requests = [
        ("tools/list", {}), ("prompts/list", {}), ("prompts/get", {"name": "greet", "arguments": {"name": "Ada"}}),
        ("resources/templates/list", {}), ("resources/read", {"uri": "text://ada"}),
        ("resources/read", {"uri": "text://ada"}), ("ping", {}), ("no/such/method", {"x": 1}),
    ]  # fmt: skip
    async with relayed("--config", rules) as host, started(SERVER) as direct:
        for each in (host, direct):
            for method, params in requests:
                await each.start(method, params)
            await each.write(b"this is no JSON\n")
            await each.request("ping")
        answers = [[line for line in each.lines if b'"method"' not in line] for each in (host, direct)]
        assert answers[0] == answers[1]  # a server may also notify of what it cannot read, before it goes on or after
        assert len(answers[0]) > len(requests)


async def test_a_host_that_writes_before_it_reads_does_not_wait_for_ever(rules):
    async with relayed("--config", rules) as host:
        await host.call("large", size=300_000)
        host._reader.cancel()
        await asyncio.gather(host._reader, return_exceptions=True)
        calls = [host.begin("large", size=300_000) for _ in range(20)] + [host.begin("large", size=200_001)]
        await host.process.stdin.drain()
        for _ in range(20):
            host.begin("set_value", key="a", value="z" * 200_000)
        await host.process.stdin.drain()
        host._reader = asyncio.ensure_future(host._read())
        assert all("result" in each for each in await asyncio.gather(*calls))


@pytest.mark.parametrize("reaction", ["notice", "raise", "short_circuit", "warn", "off"])
async def test_the_file_says_what_a_loop_leads_to(rules, reaction):
    rules.write_text(f'max_tool_repeats = 2\non_loop = "{reaction}"\n' + RULES)
    async with relayed("--config", rules) as host:
        results = [await host.request("tools/call", {"name": "get_value", "arguments": {"key": "a"}}) for _ in range(4)]
        assert [bool(each.get("isError")) for each in results] == [False] + [reaction in ("notice", "raise")] * 3
        assert await host.end() == (1 if reaction == "raise" else 0)
    told = text_of(results[1]) if reaction == "notice" else host.errors  # to the model, or to who reads the log
    assert ("loop detected" in told or "get_value was called 2 times" in told) == (reaction != "off")


# Ends


async def test_when_the_server_dies_its_calls_get_an_error_and_its_exit_code_is_the_relays(rules):
    async with relayed("--config", rules) as host:
        waiting = host.begin("wait_for", key="a")
        response = await host.begin("die", code=7)
        assert response["error"]["code"] == -32603
        assert "server has ended" in response["error"]["message"]
        assert (await waiting)["error"]["code"] == -32603
        assert await host.process.wait() == 7


async def test_a_server_that_a_signal_has_ended_gives_the_exit_code_of_a_shell():
    async with started((*RELAY, "--", "bash", "-c", "kill -KILL $$"), greets=False) as host:
        await host._reader
        assert await host.process.wait() == 128 + signal.SIGKILL


@pytest.mark.parametrize("kind", ["a pipe", "a file"])
async def test_the_end_of_the_input_lets_calls_end_and_the_server_too(rules, tmp_path, kind):
    asked = [{"id": 1, "method": "initialize", "params": hello_of()}, {"method": "notifications/initialized"}]
    read = {"method": "tools/call", "params": {"name": "get_value", "arguments": {"key": "a"}}}
    script = "\n".join(
        json.dumps({"jsonrpc": "2.0", **each}) for each in (*asked, {"id": 2, **read}, {"id": 3, **read})
    )
    (tmp_path / "script").write_text(script)
    with (tmp_path / "script").open("rb") as file:
        given, pipe = (file, None) if kind == "a file" else (asyncio.subprocess.PIPE, script.encode())
        command = (*RELAY, "--config", str(rules), "--", *SERVER)
        process = await asyncio.create_subprocess_exec(*command, stdin=given, stdout=asyncio.subprocess.PIPE)
        found, _ = await process.communicate(pipe)
    answers = {each["id"]: each["result"] for each in map(json.loads, found.splitlines())}
    assert text_of(answers[2]) == text_of(answers[3]) == "nothing (1)"
    assert process.returncode == 0


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_server_and_finishes_the_recording(rules, tmp_path, number):
    tape = tmp_path / "run.jsonl"
    async with relayed("--config", rules, "--record", tape) as host:
        await host.call("get_value", key="a")
        host.begin("wait_for", key="a")
        await host.request("ping")
        host.process.send_signal(number)
        assert await host.process.wait() == 128 + number
    assert "Traceback" not in host.errors
    steps = Cassette.load(tape).steps
    assert [(each.name, list(each.outcome)) for each in steps if each.name.startswith("relay:")] == [
        ("relay:get_value", ["value"]),
        ("relay:wait_for", ["unfinished"]),
    ]
    assert not tape.with_name("run.jsonl.partial").exists()


# The command itself


async def test_standard_output_carries_the_protocol_alone(rules):
    async with relayed("--config", rules, "--stats") as host:
        await host.call("get_value", key="a")
        await host.call("get_value", key="a")
        await host.call("undescribed")
    assert all(json.loads(line)["jsonrpc"] == "2.0" for line in host.lines)
    assert "calls 3, hits 1, misses 1" in host.errors


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('namespace = "n"\nttl = 5', "'ttl' is not known here"),
        ('namespace = "n"\non_loop = "stop"', "at `$.on_loop`"),
        ('namespace = "n"\nvary = ["GITHUB_TOKEN"]', "env:GITHUB_TOKEN"),
        ('namespace = "n"\n[on."notifications/x"]\ninvalidate = ["a:{b}"]', "notifications/x"),
        ("namespace = ", "is no TOML"),
    ],
)
def test_a_mistake_in_the_file_ends_with_two_and_names_the_key(tmp_path, text, expected):
    path = tmp_path / "rules.toml"
    path.write_text(text)
    found = run("--config", path, "--", *SERVER)
    assert found.returncode == 2
    assert expected in found.stderr
    assert "rules.toml" in found.stderr
    assert not found.stdout
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "give the command of the server after --"),
        (("--config", "/no/such/file", "--", "x"), "/no/such/file"),
        (("--", "no-such-command"), "there is no command 'no-such-command'"),
        (("--replay", "/no/such/file"), "/no/such/file"),
        (("--record", "/dev/null/run", "--", "x"), "/dev/null/run"),
        (("--strict", "--", "x"), "--strict needs --replay"),
        (("--record", "a", "--replay", "b", "--", "x"), "not allowed with"),
        (("--url", "http://a/", "--", "command"), "not both"),
        (("--url", "http://a/"), "--url needs --listen"),
        (("--replay", "x", "--listen", "127.0.0.1:1"), "--listen needs --url"),
        (("--url", "http://a/", "--vary-header", "a"), "--vary-header needs --listen"),
        (("--url", "http://a/", "--listen", "1", "--vary-header", "A: b"), "--vary-header: give the name"),
        (("--explain", "--", "false"), "the server has ended"),
        *(
            pytest.param(*row, marks=OVER_HTTP)
            for row in [
                (("--url", "example.com/mcp", "--listen", "1"), "give the endpoint of the server"),
                (("--url", "http://a:99999/", "--explain"), "give the endpoint of the server"),
                (("--url", "http://a/", "--listen", "nowhere"), "'nowhere' is no address"),
                (("--url", "http://a/", "--listen", "1", "--header", "Authorization"), "write NAME:VALUE"),
                (("--url", "http://a/", "--listen", "1", "--header", "A B: c"), "write NAME:VALUE"),
                (("--url", "http://a/", "--listen", "1", "--header", "A: b\nC: d"), "that headers cannot have"),
                (("--url", "http://a/", "--listen", "1", "--header", "A: ${NO_SUCH_ONE}"), "no variable 'NO_SUCH_ONE'"),
            ]
        ),
    ],
)
def test_a_mistake_in_the_arguments_ends_with_two(arguments, expected):
    found = run(*arguments)
    assert found.returncode == 2
    assert expected in found.stderr
    assert not found.stdout
    assert "Traceback" not in found.stderr


def run(*arguments):
    """The finished process of a relay without a host."""
    return subprocess.run(
        [*RELAY, *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


# Recordings


def replayed(tape, *options, **more):
    """A host of a relay that has no server."""
    return started((*RELAY, "--replay", tape, *options, "--", "/nonexistent"), **more)


@pytest.mark.parametrize("strict", [[], ["--strict"]])
async def test_a_recorded_run_replays_without_any_server(rules, tape, strict):
    async with relayed("--config", rules, "--record", tape) as host:
        recorded = await run_of(host)
        assert await host.end() == 0
    async with replayed(tape, "--config", rules, *strict) as host:
        assert await run_of(host, token=2) == recorded
        assert not host.asked
        assert await host.end() == 0
    assert text_of(recorded[-3]["result"]) == "done (1)"


async def test_what_says_who_asks_is_not_recorded(rules, tape):
    async with relayed("--config", rules, "--record", tape, greets=False) as host:
        await host.request("initialize", hello_of(name="marked-host"))
        await host.notify("notifications/initialized")
        meta = {"_meta": {"progressToken": "marked-token", "x": "marked-meta"}}
        await host.request("tools/list", meta)
        for name, arguments in (("get_value", {"key": "a"}), ("run_count", {"name": "clock"})):
            await host.request("tools/call", {"name": name, "arguments": arguments, **meta})
    assert "get_value" in tape.read_text()
    assert "marked" not in tape.read_text()


async def test_a_miss_names_the_nearest_call_and_the_exit_code_is_one(rules, tape):
    async with relayed("--config", rules, "--record", tape) as host:
        await host.call("get_value", key="abc")
    async with replayed(tape, "--config", rules) as host:
        response = await host.start("tools/call", {"name": "get_value", "arguments": {"key": "abd"}})
        assert response["error"]["code"] == -32603
        assert "key='abd'" in response["error"]["message"]
        assert "key='abc'" in response["error"]["message"]
        assert await host.call("get_value", key="abc") == "nothing (1)"
        other = await host.start("prompts/get", {"name": "greet"})
        assert "mcp:request" in other["error"]["message"]
        await host.write(b'[{"jsonrpc":"2.0","id":9,"method":"tools/call"}]\n')
        await host.until(lambda: b"is not recorded" in host.lines[-1])
        assert await host.end() == 1
    assert "was not recorded" in host.errors


async def test_a_strict_replay_wants_all_of_the_recording(rules, tape):
    async with relayed("--config", rules, "--record", tape) as host:
        await host.call("get_value", key="a")
        await host.call("get_value", key="b")
    async with replayed(tape, "--config", rules, "--strict") as host:
        assert await host.call("get_value", key="a") == "nothing (1)"
        assert await host.end() == 1
    assert "1 recorded calls were not made" in host.errors
    async with replayed(tape, "--config", rules) as host:
        assert await host.call("get_value", key="a") == "nothing (1)"
        assert await host.end() == 0


async def test_the_tools_are_those_of_the_recording_after_their_list_has_changed(rules, tape):
    async with relayed("--config", rules, "--record", tape) as host:
        await host.call("get_value", key="a")
        await host.call("change_list")
        await host.until(lambda: host.notifications)
        assert await host.call("get_value", key="a", form="long") == "nothing (2)"
    async with replayed(tape, "--config", rules, "--strict") as host:
        assert await host.call("get_value", key="a") == "nothing (1)"
        await host.call("change_list")
        assert await host.call("get_value", key="a") == "nothing (2)"
        assert await host.end() == 0


async def test_a_recording_is_a_log_of_the_tools_with_their_hints(tape):
    async with relayed("--record", tape) as host:
        await run_of(host)
        await host.request("tools/list")
        assert await host.end() == 0
    log = read_log(tape)
    calls = log.calls
    assert not log.problems
    assert {call.tool.rpartition(":")[2] for call in calls} >= {"get_value"}
    assert not any(call.tool.startswith("mcp:request") or call.tool == "mcp:tools" for call in calls)
    assert any(call.hints for call in calls)
