"""Tokens and model of an LLM call, found in what OpenAI, Anthropic, Gemini, LiteLLM and LangChain return.

Objects and dicts alike; of a stream, chunk by chunk: counts grow, so the largest that was seen stands.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Extract", "Usage"]

_LOG = logging.getLogger("agent_cache")

_USAGE = ("usage", "usage_metadata", "usageMetadata")
_INPUT = ("input_tokens", "prompt_tokens", "prompt_token_count", "promptTokenCount", "inputTokens")
_OUTPUT = ("output_tokens", "completion_tokens", "candidates_token_count", "candidatesTokenCount", "outputTokens")
_THOUGHTS = ("thoughts_token_count", "thoughtsTokenCount")
_MODEL = ("model", "model_version", "modelVersion", "model_name")
_INSIDE = ("message", "response", "response_metadata", "llm_output")
"""Where the shape may stand one level down: Anthropic's `message_start`, OpenAI's `response.completed`, LangChain."""


class Usage:
    """What is known of one call so far."""

    __slots__ = ("input_tokens", "model", "output_tokens")

    def __init__(self) -> None:
        self.input_tokens = 0
        self.output_tokens = 0
        self.model: str | None = None

    def see(self, answer: Any) -> None:
        """Look at an answer, or at a chunk of one."""
        if isinstance(answer, str | bytes | int | float | None):
            return
        try:
            self._look(answer)
            for name in _INSIDE:
                inner = _get(answer, name)
                if inner is not None and not isinstance(inner, str):
                    self._look(inner)
        except Exception as error:  # noqa: BLE001 - somebody's attribute
            _LOG.debug("recording: tokens could not be read: %r", error)

    def see_arguments(self, arguments: Mapping[str, Any]) -> None:
        """The model that was asked for, if the answer does not name one."""
        if self.model is None:
            for place in (arguments, arguments.get("kwargs"), arguments.get("request")):
                found = place.get("model") if isinstance(place, Mapping) else None
                if isinstance(found, str):
                    self.model = found
                    return

    def _look(self, answer: Any) -> None:
        for name in _USAGE:
            usage = _get(answer, name)
            if usage is not None:
                self.input_tokens = max(self.input_tokens, _count(usage, _INPUT))
                self.output_tokens = max(self.output_tokens, _count(usage, _OUTPUT) + _count(usage, _THOUGHTS))
        for name in _MODEL:
            model = _get(answer, name)
            if isinstance(model, str) and model:
                self.model = model
                return


class Extract:
    """The user's own ways to find tokens and model. One that raises is a warning, and the default."""

    def __init__(
        self,
        model: Callable[..., Any] | None = None,
        tokens: Callable[..., Any] | None = None,
    ) -> None:
        self._model = model
        self._tokens = tokens

    def see(self, usage: Usage, args: tuple[Any, ...], kwargs: Mapping[str, Any], answer: Any, name: str) -> None:
        """Ask them about an answer; of a stream, about the list of its chunks."""
        call = {"args": list(args), "kwargs": dict(kwargs)}
        if self._model is not None:
            try:
                usage.model = str(self._model(call, answer))
            except Exception as error:  # noqa: BLE001 - the user's function; the recording goes on without it
                _LOG.warning("extract_model of %s raised %r; the default was used", name, error)
        if self._tokens is not None:
            try:
                found_input, found_output = self._tokens(call, answer)
                usage.input_tokens, usage.output_tokens = int(found_input), int(found_output)
            except Exception as error:  # noqa: BLE001 - as above
                _LOG.warning("extract_tokens of %s raised %r; the default was used", name, error)


def _get(holder: Any, name: str) -> Any:
    if isinstance(holder, Mapping):
        return holder.get(name)
    return getattr(holder, name, None)


def _count(usage: Any, names: tuple[str, ...]) -> int:
    for name in names:
        found = _get(usage, name)
        if isinstance(found, int | float) and not isinstance(found, bool) and found >= 0:
            return int(found)
    return 0
