"""A call of a tool as a log tells of it, the one form that every log is read into; and when two answers are equal."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, Literal

from agent_cache.core.keys import Uncacheable, key_part

__all__ = ["UNKNOWN", "LoggedCall", "answer_digest", "is_failure", "is_transient", "key_of", "says_outage"]

UNKNOWN: Final = type("Unknown", (), {"__slots__": ()})()
"""The result of a call that shows none: the log has none, or a cache answered, or the call failed."""


@dataclass(frozen=True, slots=True)
class LoggedCall:
    """One call of a tool.

    Attributes:
        arguments, result: JSON values; a text that is a JSON object or list is parsed. Redacted leaves are None.
        error: what it raised, as ``"TypeName: text"``. None where it answered.
        started, ended: Unix seconds. None where the log does not say.
        kind, hints: what the log says that the tool is, and its annotations of MCP: ``{"readOnlyHint": True}``.
        is_parsed: whether the result stood in the log as a text, which was parsed.
        is_keyed: whether the arguments tell this call from others. False where they are missing, cut off or redacted:
            then no other call is the same call.
        is_whole: whether the result is complete. False where a part of it was redacted: then another answer proves a
            change, and an equal one proves nothing.
        encloses: whether other calls of the log were made inside of it, as of an agent's own handler.
    """

    tool: str
    arguments: dict[str, Any]
    result: Any = UNKNOWN
    error: str | None = None
    started: float | None = None
    ended: float | None = None
    run: str = ""
    kind: Literal["read", "write"] | None = None
    hints: Mapping[str, bool] = field(default_factory=dict)
    is_parsed: bool = False
    is_keyed: bool = True
    is_whole: bool = True
    encloses: bool = False


_ERROR_TEXT: Final = re.compile(
    r"\s*((an )?[\w.]*(error|exception)|traceback|failed|failure|fatal|denied|invalid)\b", re.IGNORECASE
)
_TRANSIENT: Final = re.compile(
    r"time(d )?.?out|connect|unavailable|rate.?limit|too many requests|overload|temporar|broken pipe|reset by peer"
    r"|\b(408|425|429|500|502|503|504)\b|cancel",
    re.IGNORECASE,
)


def is_failure(call: LoggedCall) -> bool:
    """Whether a write failed: it raised, or its answer says so. What it has done is then not known."""
    result = call.result
    if call.error is not None:
        return True
    if isinstance(result, str):
        return _ERROR_TEXT.match(result[:500]) is not None
    if not isinstance(result, Mapping):
        return False
    has_failed = any(result.get(name) is False for name in ("success", "ok", "succeeded")) or bool(result.get("error"))
    return has_failed or result.get("isError") is True or result.get("status") in ("error", "failed", "failure")


def is_transient(call: LoggedCall) -> bool:
    """Whether an error says nothing of what the tool reads: another call at the same time might have succeeded."""
    return call.error is not None and _TRANSIENT.search(call.error) is not None


def says_outage(answer: Any) -> bool:
    """Whether an answer is the text of such an error, in a form of logs that has no other way to say so."""
    return isinstance(answer, str) and bool(_ERROR_TEXT.match(answer[:500]) and _TRANSIENT.search(answer[:500]))


def answer_digest(result: Any) -> bytes:
    """A digest of an answer: equal for equal ones, whatever the order of keys."""
    text = json.dumps(result, sort_keys=True, ensure_ascii=False, default=repr)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def key_of(call: LoggedCall) -> Any:
    """What tells a call from others of its tool, as the cache does; None if nothing does."""
    try:
        return key_part(call.arguments) if call.is_keyed else None
    except (Uncacheable, TypeError, ValueError):
        return None
