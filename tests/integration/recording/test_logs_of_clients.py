"""Message lists of the clients of models, made of their own types, read as logs."""

import json

import pytest

pytest.importorskip("openai", reason="the messages of these tests are those of its types")
pytest.importorskip("anthropic", reason="and of its types")

from anthropic.types import Message
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from tests.harness.advice import UNKNOWN, read_log


def read(tmp_path, *records):
    path = tmp_path / "log"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    log = read_log(path)
    calls = log.calls
    assert not log.problems
    return calls


def completion(*calls, created=0):
    message = {
        "role": "assistant", "content": None, "refusal": None,
        "tool_calls": [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for call_id, name, arguments in calls
        ] or None,
    }  # fmt: skip
    return ChatCompletion.model_validate({
        "id": "chatcmpl-1", "object": "chat.completion", "created": created, "model": "m",
        "choices": [{"index": 0, "finish_reason": "tool_calls", "message": message, "logprobs": None}],
    })  # fmt: skip


def test_requests_and_responses_of_chat_completions(tmp_path):
    history, records = [{"role": "user", "content": "hello"}], []
    steps = [
        ("call_Zk3n9Qe81bXw0tRm5uPd", "get_order", {"order_id": "W1"}, '{"status": "late"}'),
        ("call_a7Yc2Lw64vHj9sKf1gBn", "refund", {"order_id": "W1", "amount": 4}, "refunded 4"),
    ]
    for number, (call_id, name, arguments, answer) in enumerate(steps):
        response = completion((call_id, name, arguments), created=1_780_000_000 + number)
        records.append({"request": {"model": "m", "messages": list(history)}, "response": response.model_dump()})
        history += [
            response.choices[0].message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call_id, "content": answer},
        ]
    records.append(
        {"request": {"messages": history}, "response": completion(created=1_780_000_002).model_dump(mode="json")}
    )
    one, two = read(tmp_path, *records)
    assert (one.tool, one.arguments, one.result) == ("get_order", {"order_id": "W1"}, {"status": "late"})
    assert (two.tool, two.arguments, two.result) == ("refund", {"order_id": "W1", "amount": 4}, "refunded 4")
    assert (one.started, one.ended) == (1_780_000_000, 1_780_000_001)


def response(number, *output):
    return Response.model_validate({
        "id": f"resp_{number}", "object": "response", "created_at": 1_780_000_000 + number, "model": "m",
        "output": list(output), "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "status": "completed",
    })  # fmt: skip


def test_requests_and_responses_of_the_responses_api(tmp_path):
    call = {
        "type": "function_call", "id": "fc_1", "call_id": "call_Zk3n9Qe81bXw0tRm5uPd", "name": "get_order",
        "arguments": '{"order_id": "W1"}', "status": "completed",
    }  # fmt: skip
    answer = {"type": "function_call_output", "call_id": call["call_id"], "output": '{"status": "late"}'}
    remote = {
        "type": "mcp_call", "id": "mcp_0Qe81bXw0tRm5uPd", "name": "refund", "arguments": '{"amount": 4}',
        "server_label": "shop", "output": None,
        "error": {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "too much"}]},
    }  # fmt: skip
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": []}
    records = [
        {"session_id": "s", "request": {"input": "hello"}, "response": response(0, reasoning, call).model_dump()},
        {
            "session_id": "s", "request": {"input": [answer], "previous_response_id": "resp_0"},
            "response": response(1, remote).model_dump(mode="json"),
        },
    ]  # fmt: skip
    one, two = read(tmp_path, *records)
    assert (one.tool, one.arguments, one.result) == ("get_order", {"order_id": "W1"}, {"status": "late"})
    assert (two.tool, two.arguments, two.error) == ("refund", {"amount": 4}, "mcp_tool_execution_error: too much")
    assert one.run == two.run == "s"


def test_messages_of_anthropic(tmp_path):
    answer = Message.model_validate({
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "tool_use",
        "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1},
        "content": [
            {"type": "text", "text": "I look."},
            {
                "type": "tool_use", "id": "toolu_01A09q90qw90lq917835lq9", "name": "get_order",
                "input": {"order_id": "W1"},
            },
            {"type": "tool_use", "id": "toolu_01B19r81rx81mr826746mr8", "name": "refund", "input": {"amount": 4}},
        ],
    })  # fmt: skip
    results = {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_01B19r81rx81mr826746mr8", "content": "no", "is_error": True},
            {
                "type": "tool_result", "tool_use_id": "toolu_01A09q90qw90lq917835lq9",
                "content": [{"type": "text", "text": '{"status": "late"}'}],
            },
        ],
    }  # fmt: skip
    history = [{"role": "user", "content": "hello"}]
    whole = [*history, {"role": "assistant", "content": answer.model_dump()["content"]}, results]
    for records in (
        [{"request": {"messages": history}, "response": answer.model_dump()}, {"request": {"messages": whole}}],
        [{"messages": whole}],
        whole,
        [whole],
    ):
        refund, order = read(tmp_path, *records)
        assert (order.tool, order.arguments, order.result) == ("get_order", {"order_id": "W1"}, {"status": "late"})
        assert (refund.tool, refund.result, refund.error) == ("refund", UNKNOWN, "Error: no")
