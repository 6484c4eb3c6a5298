"""What the APIs of OpenAI and Anthropic answer, for the real clients of both. `http_server` serves it."""

from __future__ import annotations

import json
from typing import Any

COMPLETION: dict[str, Any] = {
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "large-1",
    "choices": [
        {
            "index": 0, "finish_reason": "a_reason_of_tomorrow",
            "message": {"role": "assistant", "content": '{"city": "Oslo"}', "refusal": None, "a_new_field": {"a": [1]}},
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, "prompt_cache_hit_tokens": 1},
    "a_new_field": 7,
}  # fmt: skip
"""With fields and members that the client does not know, and without a field that it requires, as compatible servers
answer."""

RESPONSE: dict[str, Any] = {
    "id": "resp_1", "object": "response", "created_at": 1.0, "model": "large-1", "status": "completed",
    "output": [
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {
            "type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
            "content": [{"type": "output_text", "text": '{"city": "Oslo"}', "annotations": []}],
        },
    ],
    "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
    "usage": {
        "input_tokens": 3, "output_tokens": 2, "total_tokens": 5,
        "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0},
    },
}  # fmt: skip
RESPONSE_EVENTS: list[dict[str, Any]] = [
    {"type": "response.created", "sequence_number": 0, "response": {**RESPONSE, "output": [], "usage": None}},
    {
        "type": "response.output_text.delta", "sequence_number": 1, "item_id": "msg_1", "output_index": 0,
        "content_index": 0, "delta": "Oslo", "logprobs": [],
    },
    {"type": "response.completed", "sequence_number": 2, "response": RESPONSE},
]  # fmt: skip
MESSAGE: dict[str, Any] = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "large-1", "stop_reason": "tool_use",
    "stop_sequence": None,
    "content": [
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "toolu_1", "name": "get_order", "input": {"order_id": "W1"}},
    ],
    "usage": {"input_tokens": 3, "output_tokens": 2},
}  # fmt: skip
STRUCTURED: dict[str, Any] = {"type": "text", "text": '{"city": "Oslo"}'}
END = {"stop_reason": "end_turn", "stop_sequence": None}
MESSAGE_EVENTS: list[dict[str, Any]] = [
    {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Oslo"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": END, "usage": {"output_tokens": 2}},
    {"type": "message_stop"},
]
LIMITED: dict[str, Any] = {
    "type": "error",
    "error": {"type": "rate_limit_error", "message": "slow down", "code": "rate_limit_exceeded", "param": None},
}


def completion_chunks() -> list[dict[str, Any]]:
    """The chunks of a streamed completion."""
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "large-1"}
    words = [{"index": 0, "delta": {"role": "assistant", "content": word}, "finish_reason": None} for word in "ab"]
    end = {"index": 0, "delta": {}, "finish_reason": "stop"}  # as servers send it; clients miss it
    chunks = [{**base, "choices": [choice]} for choice in (*words, end)]
    return [*chunks, {**base, "choices": [], "usage": COMPLETION["usage"]}]


class ModelApi:
    """A part of the server.

    Attributes:
        url: of the root; OpenAI's API is under ``/v1``.
        requests: the bodies that were sent to it.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[dict[str, Any]] = []

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, str, str]:
        """Status, content type and content. The model ``limited`` is never free."""
        self.requests.append(body)
        if body.get("model") == "limited":
            return 429, "application/json", json.dumps(LIMITED)
        kind = path.partition("?")[0].rpartition("/")[2]
        if kind == "messages" and any(name.startswith("output") for name in body):
            return 200, "application/json", json.dumps({**MESSAGE, "content": [STRUCTURED]})
        if not body.get("stream"):
            found = {"completions": COMPLETION, "responses": RESPONSE, "messages": MESSAGE}[kind]
            return 200, "application/json", json.dumps(found)
        if kind == "completions":
            events = [f"data: {json.dumps(chunk)}\n\n" for chunk in completion_chunks()]
            return 200, "text/event-stream", "".join([*events, "data: [DONE]\n\n"])
        named = RESPONSE_EVENTS if kind == "responses" else MESSAGE_EVENTS
        return 200, "text/event-stream", "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in named)
