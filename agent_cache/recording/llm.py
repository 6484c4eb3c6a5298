"""`cached_llm_call`: a model's answers come from the recording."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from agent_cache.core.policies import checked_function
from agent_cache.errors import ConfigurationError
from agent_cache.recording.functions import Subject, module_and_name
from agent_cache.recording.intercept import checked_for_recording, taped
from agent_cache.recording.llm_shapes import Extract

__all__ = ["cached_llm_call"]

F = TypeVar("F", bound=Callable[..., Any])

_LOG = logging.getLogger("agent_cache")


def cached_llm_call(
    *,
    extract_model: Callable[[Mapping[str, Any], Any], str] | None = None,
    extract_tokens: Callable[[Mapping[str, Any], Any], tuple[int, int]] | None = None,
    cache_key: Callable[..., str] | None = None,
    name: str | None = None,
) -> Callable[[F], F]:
    """Serve a function that asks a model from the recording, and record it where the mode says so.

    Takes functions, coroutine functions and generators of both kinds. Tokens and model are found by themselves in what
    OpenAI, Anthropic, Gemini and LiteLLM return. Outside of a recording it is the function that it was; nothing is
    cached there.

    Args:
        extract_model: ``extract_model(call, answer)`` names the model; `call` is ``{"args": [...], "kwargs": {...}}``,
            and `answer` of a stream the list of its chunks. One that raises is a warning, and the default.
        extract_tokens: likewise, input and output tokens.
        cache_key: ``cache_key(*args, **kwargs)`` is the identity of a call, and its arguments are not. One that raises
            is a warning, and the arguments.
        name: its name in recordings, instead of ``module:qualname``.

    Raises:
        ConfigurationError: if it cannot be recorded, or is already.
    """
    for option, given in (
        ("extract_model", extract_model),
        ("extract_tokens", extract_tokens),
        ("cache_key", cache_key),
    ):
        checked_function(given, f"cached_llm_call: {option}")
    if name is not None and (not isinstance(name, str) or not name):
        raise ConfigurationError(f"cached_llm_call: name must be a text, got {name!r}")
    extract = Extract(extract_model, extract_tokens) if extract_model or extract_tokens else None

    def decorate(function: F) -> F:
        checked = checked_for_recording(function, "cached_llm_call")
        subject = Subject(checked, module_and_name(checked, name), "llm", key=cache_key, extract=extract)
        said = False

        def say_once() -> None:
            nonlocal said
            if not said:
                said = True
                _LOG.debug("%s was called outside of a recording, so it just ran", subject.name)

        wrapped: F = taped(checked, subject, say_once)
        return wrapped

    return decorate
