"""A recorded call as a line of text for people: its arguments, how it ended, how long it took, whether it failed.

The texts are cut to a length. They are not escaped: what shows them does that for its own medium.
"""

from __future__ import annotations

from typing import Any

from agent_cache.recording.file import RecordedCall
from agent_cache.values.compare import plural, shortened

_SHORT = 60
_ARGUMENTS = 400


def call_text(call: RecordedCall) -> str:
    """The call as it would be written: ``shop:get_order(order_id='W1')``; ``shop:get_order ['W1']`` by its key."""
    if call.key is not None:
        return f"{call.name} [{shortened(repr(call.key), _SHORT)}]"
    return f"{call.name}({arguments_text(call)})"


def described(name: str, arguments: dict[str, Any], each: int = _SHORT, most: int = _ARGUMENTS) -> str:
    """A call as it would be written; of the arguments as many characters of each and of all are shown."""
    text = ", ".join(f"{key}={shortened(repr(value), each)}" for key, value in arguments.items())
    return f"{name}({shortened(text, most)})"


def function_in(name: str) -> str:
    """The name of a function without its module. A request has none."""
    return name if " " in name else name.rpartition(":")[2]


def arguments_text(call: RecordedCall, each: int = _SHORT, most: int = _ARGUMENTS) -> str:
    """The arguments by name: of a request to a model, the last message alone."""
    shown = call.arguments
    if call.kind == "llm" and {"json", "messages"} & shown.keys() and (message := last_text(shown)) is not None:
        shown = {"...": message}  # all requests to a model begin alike
    return described("", shown, each, most)[1:-1]


def outcome_text(call: RecordedCall, most: int = _SHORT) -> str:
    """What the call has returned or raised, in `most` characters of each part."""
    stream, response = call.outcome.get("stream"), call.outcome.get("response")
    if isinstance(response, dict):
        return _response_text(response, most)
    if not isinstance(stream, dict):
        return _result_text(call.outcome, most)
    chunks, end = plural(len(stream.get("chunks", ())), "chunk"), stream.get("end") or {}
    return chunks if end.get("value", end) is None else f"{chunks}, {_result_text(end, most)}"


def has_error(call: RecordedCall) -> bool:
    """Whether the call raised, or the stream that it returned did."""
    outcome = call.outcome.get("stream") or call.outcome.get("response") or {}
    return isinstance((outcome.get("end") or call.outcome).get("error"), dict)


def duration_text(ms: float) -> str:
    """A time in the unit that fits: ``80 us``, ``312 ms``, ``2.0 s``, ``3.5 min``."""
    if ms < 1:
        return f"{ms * 1000:.0f} us"
    if ms < 1000:
        return f"{ms:.0f} ms"
    return f"{ms / 1000:.1f} s" if ms < 120_000 else f"{ms / 60_000:.1f} min"


_HOLDERS = ("json", "messages", "contents", "input", "prompt", "question", "choices", "candidates", "message", "output",
            "content", "parts", "text", "body", "request")  # fmt: skip
"""Where the texts of requests to models and of their answers stand, the outer ones first."""


def last_text(value: Any) -> str | None:
    """The text of the last message in a request to a model or in its answer; None if there is none."""
    while not isinstance(value, str):
        if isinstance(value, list) and value:
            value = value[-1]
        elif isinstance(value, dict):
            value = next((value[name] for name in _HOLDERS if value.get(name)), None)
        else:
            return None
    return value


def _response_text(response: dict[str, Any], most: int) -> str:
    parts, pieces = [str(response["status"])], [one for one in ("events", "frames", "lines") if response.get(one)]
    parts += [plural(len(response[one]), one.removesuffix("s")) for one in pieces]
    if "json" in response or "text" in response:
        body = response.get("json", response.get("text"))
        parts.append(shortened(repr(last_text(body) or body), most))
    if isinstance(response.get("end"), dict):
        parts.append(_result_text(response["end"], most))
    return ", ".join(parts)


def _result_text(outcome: dict[str, Any], most: int) -> str:
    error = outcome.get("error")
    if isinstance(error, dict):
        name, message = str(error.get("type", "")).removeprefix("builtins:"), str(error.get("message") or "")
        return f"raised {name}{': ' if message else ''}{shortened(message.replace(chr(10), ' '), most)}"
    for form in ("value", "typed", "any"):
        if form in outcome:
            return shortened(repr(outcome[form]), most)
    if "object" in outcome:
        return f"{outcome['object'][0]} {shortened(repr(outcome['object'][1]), most)}"
    if "unencodable" in outcome:
        return f"a {outcome['unencodable']}, not written down"
    return ", ".join(outcome) or "nothing"
