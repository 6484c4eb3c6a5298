"""Tokens and money of model calls: the token counts of an answer, their price, and what a replay has saved.

Providers count in different ways. With OpenAI, Gemini, Cohere and LiteLLM the input tokens contain those that were read
from the provider's prompt cache or written to it; with Anthropic and Bedrock these are counted beside them. Here, input
tokens are all input.

The prices are those of the optional package `genai-prices`: for each model, by date, in US dollars at list price.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol, TypeAlias

from agent_cache.recording.file import RecordedCall

__all__ = [
    "Members",
    "Savings",
    "Tokens",
    "Usage",
    "asked_model",
    "larger",
    "members_of",
    "model_calls",
    "savings_of",
    "tokens_of",
]

_LOG = logging.getLogger("agent_cache")


# Tokens


class Tokens(NamedTuple):
    """Token counts of one or several model calls.

    Attributes:
        input: all input.
        output: all output, reasoning included.
        cache_read: the part of `input` that was read from the provider's prompt cache.
        cache_write: the part of `input` that was written to it.
        cache_write_1h: the part of `cache_write` that is kept for one hour, at a higher price.
    """

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cache_write_1h: int = 0

    def plus(self, other: Tokens) -> Tokens:
        """The sum."""
        return Tokens(*(one + two for one, two in zip(self, other, strict=True)))

    def fields(self) -> dict[str, int]:
        """The counts by the names that they have in a `RecordedCall`."""
        return {f"{name}_tokens": count for name, count in self._asdict().items()}


NO_TOKENS = Tokens()
"""Nothing is known."""

_BLOCKS = ("usage", "usage_metadata", "usageMetadata", "token_usage", "meta")
"""Members of an answer that hold token counts."""
_PROMPT = ("prompt_tokens", "prompt_token_count", "promptTokenCount")
_INPUT = ("input_tokens", "inputTokens", "prompt_eval_count")
_OUTPUT = (
    "output_tokens", "completion_tokens", "candidates_token_count", "candidatesTokenCount", "outputTokens",
    "eval_count",
)  # fmt: skip
_THOUGHTS = ("thoughts_token_count", "thoughtsTokenCount")
_TOOL_RESULTS = ("tool_use_prompt_token_count", "toolUsePromptTokenCount")
"""Gemini: results of its own tools, counted beside the prompt."""
_DETAILS = ("prompt_tokens_details", "input_tokens_details", "input_token_details")
_READ_BESIDE = ("cache_read_input_tokens", "cacheReadInputTokens")
_WRITTEN_BESIDE = ("cache_creation_input_tokens", "cacheWriteInputTokens")
_READ = (
    "cache_read_tokens", "cached_content_token_count", "cachedContentTokenCount", "prompt_cache_hit_tokens",
    "cached_tokens",
)  # fmt: skip
_WRITTEN = ("cache_write_tokens",)
_READ_DETAIL = ("cached_tokens", "cache_read")
_WRITTEN_DETAIL = ("cache_write_tokens", "cache_creation_tokens", "cache_creation")
_WRITTEN_5M = ("ephemeral_5m_input_tokens",)
_WRITTEN_1H = ("ephemeral_1h_input_tokens",)


Members: TypeAlias = Callable[[str], Any]
"""Gives a member of an object by its name; None if there is none."""

_NOTHING: dict[str, Any] = {}
_PLAIN = (str, bytes, int, float, list, tuple, type(None))


def members_of(holder: Any) -> Members:
    """The members of a dict, or the attributes of another object.

    pydantic takes 3 us to find that a model has no such attribute, in each chunk of a stream for each name.
    """
    found: Members
    if type(holder) is dict:
        found = holder.get
    elif isinstance(holder, _PLAIN):
        found = _NOTHING.get
    elif isinstance(holder, Mapping):
        found = holder.get
    elif isinstance(getattr(type(holder), "model_extra", None), property):
        extra = holder.model_extra
        found = (vars(holder) | extra if extra else vars(holder)).get
    else:
        return lambda name: getattr(holder, name, None)
    return found


def tokens_of(answer: Members) -> Tokens:
    """The token counts of an answer of a model, or of a chunk of one, by its members; zeros if it has none.

    It may be of OpenAI (chat and responses), Anthropic, Gemini, Bedrock's converse, Cohere, Ollama, LiteLLM, LangChain,
    or of what speaks like one of them.
    """
    found = NO_TOKENS
    for name in _BLOCKS:
        block = answer(name)
        if block is not None:
            found = larger(found, _tokens_of_block(members_of(block)))
    if answer("eval_count") is not None:
        found = larger(found, _tokens_of_block(answer))
    return found


def larger(one: Tokens, other: Tokens) -> Tokens:
    """What two reports of one answer say together, such as two chunks of a stream, whose counts grow.

    The counts of the input are taken from one of them, so that a part is never larger than the whole.
    """
    inputs = max(one, other, key=lambda each: (each.input, each.cache_read + each.cache_write, each.cache_write_1h))
    return inputs._replace(output=max(one.output, other.output))


def _tokens_of_block(block: Members) -> Tokens:
    for name in ("billed_units", "tokens"):  # Cohere's; the latter if it does not say what it bills
        billed = members_of(block(name))
        total, output = _count(billed, _INPUT), _count(billed, _OUTPUT)
        if total is not None or output is not None:
            return _checked(total or 0, output or 0, _count(block, ("cached_tokens",)) or 0, 0, 0)
    details = next((found for name in _DETAILS if (found := block(name)) is not None), None)
    has_details, details_of = details is not None, members_of(details)
    prompt = _count(block, _PROMPT)
    total = (_count(block, _INPUT) or 0) if prompt is None else prompt
    total += _count(block, _TOOL_RESULTS) or 0
    read = _count(block, _READ_BESIDE)
    written = _count(block, _WRITTEN_BESIDE)
    if prompt is None and not has_details:
        total += (read or 0) + (written or 0)
    if read is None:
        read = _count(details_of, _READ_DETAIL) or _count(block, _READ) or 0
    written_1h, by_age = _written_for_an_hour(block, details_of)
    if written is None:
        written = _count(details_of, _WRITTEN_DETAIL) or _count(block, _WRITTEN) or by_age
    output = (_count(block, _OUTPUT) or 0) + (_count(block, _THOUGHTS) or 0)
    if prompt is not None:  # xAI, and Gemini where it speaks like OpenAI: reasoning is in the total only
        output = max(output, (_count(block, ("total_tokens",)) or 0) - prompt)
    return _checked(total, output, read, written, written_1h)


def _written_for_an_hour(block: Members, details: Members) -> tuple[int, int]:
    """Tokens that were written to the prompt cache for one hour, and those that were written for any time."""
    for holder in (members_of(block("cache_creation")), details, members_of(details("cache_creation_token_details"))):
        hour, minutes = _count(holder, _WRITTEN_1H), _count(holder, _WRITTEN_5M)
        if hour is not None or minutes is not None:
            return hour or 0, (hour or 0) + (minutes or 0)
    entries = block("cacheDetails")
    if not isinstance(entries, list | tuple):
        return 0, 0
    ages = [(one("ttl"), _count(one, ("inputTokens",)) or 0) for one in map(members_of, entries)]
    return sum(number for age, number in ages if age == "1h"), sum(number for _, number in ages)


def _checked(total: int, output: int, read: int, written: int, written_1h: int) -> Tokens:
    read = min(read, total)
    written = min(written, total - read)
    return Tokens(total, output, read, written, min(written_1h, written))


def _count(holder: Members, names: tuple[str, ...]) -> int | None:
    for name in names:
        found = holder(name)
        if isinstance(found, int | float) and not isinstance(found, bool) and 0 <= found < _TOO_MANY:
            return int(found)
    return None


_TOO_MANY = 1 << 53
"""No count, but infinity or noise; and JSON numbers are exact below."""

_ASKED = ("model", "modelId", "model_id")
_PLACES = ("kwargs", "request", "json")


def asked_model(arguments: Mapping[str, Any]) -> str | None:
    """The model that a call has asked for, by its arguments."""
    for place in (arguments, *(arguments.get(name) for name in _PLACES)):
        if isinstance(place, Mapping):
            for name in _ASKED:
                found = place.get(name)
                if isinstance(found, str) and found:
                    return found
    return None


# One call

_MODEL = ("model", "model_version", "modelVersion", "model_name")
_NESTED = ("message", "response", "response_metadata", "llm_output", "metadata", "delta")
"""Where usage may stand one level down: Anthropic's `message_start`, OpenAI's `response.completed`, LangChain's
messages, Bedrock's `metadata`, Cohere's `message-end`."""


class LanguageModelCall(Protocol):
    """A running call of a model, as `Usage` reads it: an `ActiveCall`."""

    function: Any
    arguments: dict[str, Any]
    passed: tuple[tuple[Any, ...], dict[str, Any]]


class Usage:
    """Tokens and model of one LLM call, from what the usual clients return (`tokens_of`).

    The chunks of a stream carry counts that grow, so the largest are kept. The counts of the requests that the call has
    made are summed. The answer that it returns repeats them, so its own counts stand only if they are larger.

    Attributes:
        model: the model, None if it is not known.
    """

    __slots__ = ("_inside", "_own", "model")

    def __init__(self) -> None:
        self._own = self._inside = NO_TOKENS
        self.model: str | None = None

    @property
    def tokens(self) -> Tokens:
        """The token counts."""
        own, inside = self._own, self._inside
        return inside if inside.input + inside.output >= own.input + own.output else own

    def add(self, answer: Any) -> None:
        """Search an answer, or a chunk of one, or a list of chunks."""
        if isinstance(answer, str | bytes | int | float | None):
            return
        if isinstance(answer, list | tuple):
            for one in answer:
                if isinstance(one, Mapping):
                    self.add(one)
            return
        try:
            members = members_of(answer)
            self._search(members)
            for name in _NESTED:
                inner = members(name)
                if inner is not None and not isinstance(inner, str):
                    self._search(members_of(inner))
        except Exception as error:  # noqa: BLE001 - reading an attribute of the user's object may raise anything
            _LOG.debug("recording: tokens could not be read: %r", error)

    def join(self, inside: Usage) -> None:
        """Add the usage of a request that this call has made, which is not recorded by itself."""
        self._inside = self._inside.plus(inside.tokens)
        self.model = inside.model or self.model

    def complete(self, call: LanguageModelCall, answer: Any) -> None:
        """Apply the user's extractors. If nothing has named a model, take it from the arguments.

        Args:
            call: the LLM call.
            answer: what it returned; the list of its chunks if that was a stream.
        """
        if self.model is None:
            self.model = asked_model(call.arguments)
        function = call.function
        if not function.has_extractors:
            return
        args, kwargs = call.passed
        passed = {"args": list(args), "kwargs": dict(kwargs)}
        if function.extract_model is not None:
            try:
                self.model = str(function.extract_model(passed, answer))
            except Exception as error:  # noqa: BLE001 - the user's function; the recording goes on without it
                _LOG.warning("extract_model of %s raised %r; the default was used", function.name, error)
        if function.extract_tokens is not None:
            try:
                found_input, found_output = function.extract_tokens(passed, answer)
                self._own, self._inside = Tokens(int(found_input), int(found_output)), NO_TOKENS
            except Exception as error:  # noqa: BLE001 - as above
                _LOG.warning("extract_tokens of %s raised %r; the default was used", function.name, error)

    def _search(self, answer: Members) -> None:
        found = tokens_of(answer)
        if found is not NO_TOKENS:
            self._own = larger(self._own, found)
        for name in _MODEL:
            model = answer(name)
            if isinstance(model, str) and model:
                self.model = model
                return


# Savings


@dataclass(frozen=True, slots=True)
class Savings:
    """Model calls that were answered from a recording, and what it would have taken to make them.

    Attributes:
        calls: the number of model calls.
        input_tokens, output_tokens: their tokens, as far as they are known.
        cost: their price in US dollars, at the list prices of the day of the recording, without calls that are
            `unpriced`. None if there are calls and none of them has a price.
        unpriced: the number of calls whose price is not known, because their model or their tokens are not, or because
            `genai-prices` is not installed.
        seconds: how long they took when they were recorded, one after another.
    """

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: Decimal | None = Decimal(0)
    unpriced: int = 0
    seconds: float = 0.0

    def __add__(self, other: Savings) -> Savings:
        calls, unpriced = self.calls + other.calls, self.unpriced + other.unpriced
        return Savings(
            calls=calls,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost=None if calls and calls == unpriced else (self.cost or Decimal(0)) + (other.cost or Decimal(0)),
            unpriced=unpriced,
            seconds=self.seconds + other.seconds,
        )

    def __str__(self) -> str:
        """``2 model calls, 1200+340 tokens, $0.0062``; how many calls have no price, or what to install to know it."""
        parts = [f"{self.calls} model call{'' if self.calls == 1 else 's'}"]
        if self.input_tokens or self.output_tokens:
            parts.append(f"{self.input_tokens}+{self.output_tokens} tokens")
        if self.cost is not None and self.calls:
            is_tiny = 0 < self.cost < _LEAST_SHOWN
            parts.append(f"less than ${_LEAST_SHOWN}" if is_tiny else f"${self.cost.quantize(_LEAST_SHOWN)}")
        if self.unpriced:
            is_installed = find_spec("genai_prices") is not None
            parts.append(f"{self.unpriced} of unknown price" if is_installed else _INSTALL)
        return ", ".join(parts)


_LEAST_SHOWN = Decimal("0.0001")
_INSTALL = 'pip install "agent-cache[prices]" to see money'


def model_calls(
    calls: Sequence[RecordedCall], chosen: Iterable[int], enclosing: Callable[[int], int]
) -> Iterator[RecordedCall]:
    """Those of the chosen calls that count as model calls.

    Of model calls inside of each other, such as a function that calls another one, only the outermost that knows its
    tokens counts; the innermost, if none knows them.

    Args:
        calls: all calls.
        chosen: indices of calls of models.
        enclosing: gives the index of the call that encloses one, below 0 if none does.
    """
    outer = {index: list(_around(index, enclosing)) for index in chosen}
    has_inner: set[int] = set()
    for around in outer.values():
        around[:] = [at for at in around if at in outer]
        has_inner.update(around)
    knows = {index: _knows_tokens(calls[index]) for index in has_inner}
    for index, around in outer.items():
        if not any(knows[at] for at in around) and knows.get(index, True):
            yield calls[index]


def _around(index: int, enclosing: Callable[[int], int]) -> Iterator[int]:
    while (index := enclosing(index)) >= 0:
        yield index


def savings_of(calls: Iterable[RecordedCall], recorded_at: str | None) -> Savings:
    """The sum of model calls.

    Args:
        calls: the calls, as `model_calls` gives them.
        recorded_at: the start of their recording, in UTC.
    """
    number = input_tokens = output_tokens = unpriced = 0
    cost, seconds = Decimal(0), 0.0
    began = _moment(recorded_at)
    for call in calls:
        number += 1
        input_tokens += call.input_tokens
        output_tokens += call.output_tokens
        seconds += call.duration_ms / 1000
        price = _price_of(call, began)
        if price is None:
            unpriced += 1
        else:
            cost += price
    has_price = not number or unpriced < number
    return Savings(number, input_tokens, output_tokens, cost if has_price else None, unpriced, seconds)


def _knows_tokens(call: RecordedCall) -> bool:
    return bool(call.input_tokens or call.output_tokens)


def _moment(recorded_at: str | None) -> datetime:
    """The time of a recording; now if it is not known."""
    try:
        found = datetime.fromisoformat(recorded_at or "")
    except ValueError:
        return datetime.now(UTC)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


# Money


def _price_of(call: RecordedCall, began: datetime) -> Decimal | None:
    """The price of a call in US dollars; None if it is not known."""
    if not _knows_tokens(call):
        return Decimal(0) if _was_refused(call) else None
    pricing = _pricing()
    if pricing is None:
        return None
    usage = {
        "input_tokens": call.input_tokens,
        "output_tokens": call.output_tokens,
        "cache_read_tokens": call.cache_read_tokens,
        "cache_write_tokens": call.cache_write_tokens,
        "cache_write_1h_tokens": call.cache_write_1h_tokens,
    }
    when = began + timedelta(milliseconds=call.started_ms)
    for reference, provider in _references(call):
        found = pricing(usage, reference, when, provider)
        if found is not None:
            return found
    return None


def _was_refused(call: RecordedCall) -> bool:
    """Whether a server has answered with an error. That is not charged."""
    response = call.outcome.get("response")
    status = response.get("status") if isinstance(response, dict) else None
    return isinstance(status, int) and status >= 400


_PROVIDERS = {"azure_ai": "azure", "azure_text": "azure", "fireworks_ai": "fireworks"}
"""Prefixes of LiteLLM that `genai-prices` does not know as its provider's name."""
_NOT_PROVIDERS = frozenset({"models", "litellm_proxy"})
"""Prefixes that say nothing of the provider: Gemini's own, and that of a gateway."""
_BEDROCK = re.compile(r"(?:[a-z]{2,6}\.)?[a-z0-9]+\.[a-z]")


def _references(call: RecordedCall) -> Iterator[tuple[str, dict[str, str]]]:
    """Model names and providers under which a call may have a price, the most exact ones first."""
    asked = asked_model(call.arguments)
    models = [name for name in dict.fromkeys((call.model, asked)) if name]
    _, _, url = call.name.partition(" ")
    if "://" in url:
        for model in models:
            for reference in _endings(model):
                yield reference, {"provider_api_url": url}
    prefixes = [name.partition("/")[0] for name in models if "/" in name]
    for model in models:
        for prefix in dict.fromkeys(prefixes):
            provider = {"provider_id": _PROVIDERS.get(prefix, prefix)}
            for reference in _endings(model.removeprefix(f"{prefix}/")):
                yield reference, provider
    for model in models:
        prefix, _, name = model.partition("/")
        if not name:
            yield from _bare(model)
        elif prefix in _NOT_PROVIDERS:
            yield from _bare(name.rpartition("/")[2])


def _endings(model: str) -> Iterator[str]:
    """``converse/nova`` and ``nova``, since a name may begin with a route or a region."""
    yield model
    while "/" in model:
        model = model.partition("/")[2]
        yield model


def _bare(model: str) -> Iterator[tuple[str, dict[str, str]]]:
    """A name without a provider. One such as ``llama3:8b`` is of a model that runs on a machine of one's own."""
    if _BEDROCK.match(model):
        yield model, {"provider_id": "aws"}
    elif ":" not in model or model.startswith("ft:"):
        yield model, {}
        yield model, {"provider_id": "openai"}  # embeddings and fine-tuned models, which name nobody


@cache
def _pricing() -> Callable[[dict[str, int], str, datetime, dict[str, str]], Decimal | None] | None:
    """A function that gives the price of token counts; None if `genai-prices` is not installed.

    Loading it takes half a second, so that is done as late as possible.
    """
    try:
        import genai_prices
    except ImportError:
        return None

    def price(usage: dict[str, int], model: str, when: datetime, provider: dict[str, str]) -> Decimal | None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an earlier version does not know every count
                counts = genai_prices.Usage(**usage)
            found = genai_prices.calc_price(counts, model, genai_request_timestamp=when, **provider)
        except (LookupError, ValueError):
            return None
        is_free = not any(vars(found.model_price).values())
        # A model that is paid by the second of sound has a price, but not for its tokens.
        return found.total_price if found.total_price or is_free else None

    return price
