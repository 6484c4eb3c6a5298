"""Tokens and money of model calls: the token counts of an answer, their price, and what a replay has saved.

With OpenAI, Gemini, Cohere and LiteLLM the input tokens contain those that were read from the provider's prompt cache
or written to it; Anthropic and Bedrock count these beside them. Here, input tokens are all input.

Prices are those of the optional package `genai-prices`: for each model, by date, in US dollars at list price.
"""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from importlib.resources import files
from importlib.util import find_spec
from typing import Any, NamedTuple

from agent_cache.recording.file import RecordedCall

_LOG = logging.getLogger("agent_cache")

_KNOWN = tomllib.loads(files("agent_cache.recording").joinpath("token_counts.toml").read_text("utf-8"))
_PLACES = _KNOWN["places"]
_COUNTS = {name: [path.split(".") for path in paths] for name, paths in _KNOWN["counts"].items()}
_PLAIN = (str, bytes, int, float, list, tuple, type(None))


class Tokens(NamedTuple):
    """Token counts of model calls: all input and output, what of the input was read from the provider's prompt cache or
    written to it, and what of the latter is kept for an hour, at a higher price.
    """

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cache_write_1h: int = 0

    def fields(self) -> dict[str, int]:
        """The counts by the names that they have in a `RecordedCall`."""
        return {f"{name}_tokens": count for name, count in self._asdict().items()}


def _member(holder: Any, *path: str) -> Any:
    """A member of a dict, or an attribute of another object, by the path to it; None if there is none."""
    for name in path:
        holder = holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)
    return holder


def _tokens(block: Any) -> Tokens:
    """The counts of one block of an answer."""

    def count(name: str) -> int | None:
        for path in _COUNTS[name]:
            found = _member(block, *path)
            if isinstance(found, int | float) and not isinstance(found, bool) and 0 <= found < 1 << 53:
                return int(found)
        return None

    prompt, read_beside, written_beside = map(count, ("prompt", "read beside", "written beside"))
    total = (prompt if prompt is not None else count("input") or 0) + (count("tool results") or 0)
    if prompt is None and all(_member(block, name) is None for name in _PLACES["details"]):
        total += (read_beside or 0) + (written_beside or 0)
    read = (count("read") or 0) if read_beside is None else read_beside
    hour = count("for an hour") or 0
    of_any_age = hour + (count("for minutes") or 0)
    if entries := _member(block, "cacheDetails"):  # Bedrock's
        hour = sum(_member(one, "inputTokens") or 0 for one in entries if _member(one, "ttl") == "1h")
    written = (count("written") or of_any_age) if written_beside is None else written_beside
    output = (count("output") or 0) + (count("thoughts") or 0)
    if prompt is not None:  # xAI, and Gemini where it speaks like OpenAI: reasoning is in the total only
        output = max(output, (count("total") or 0) - prompt)
    read = min(read, total)
    written = min(written, total - read)
    return Tokens(total, output, read, written, min(hour, written))


def _larger(one: Tokens, other: Tokens) -> Tokens:
    """What two reports of one answer say together, such as two chunks of a stream, whose counts grow.

    The counts of the input are taken from one of them, so that a part is never larger than the whole.
    """
    inputs = max(one, other, key=lambda each: (each.input, each.cache_read + each.cache_write, each.cache_write_1h))
    return inputs._replace(output=max(one.output, other.output))


def asked_model(arguments: Mapping[str, Any]) -> str | None:
    """The model that a call has asked for, by its arguments."""
    places = (arguments, *(arguments.get(name) for name in ("kwargs", "request", "json")))
    names = [_member(place, name) for place in places for name in ("model", "modelId", "model_id")]
    if isinstance(parts := arguments.get("multipart"), list):  # of a request with a file
        names += [_member(part, "text") for part in parts if _member(part, "name") == "model"]
    return next((name for name in names if isinstance(name, str) and name), None)


class Usage:
    """Tokens and model of one model call, from what the usual clients return. `model` is None if it is not known.

    The counts of the requests that the call has made are summed. The answer that it returns repeats them, so its own
    counts stand only if they are larger.
    """

    __slots__ = ("_inside", "_own", "model")

    def __init__(self) -> None:
        self._own = self._inside = Tokens()
        self.model: str | None = None

    @property
    def tokens(self) -> Tokens:
        """The token counts."""
        return max(self._inside, self._own, key=lambda one: one.input + one.output)

    def add(self, answer: Any) -> None:
        """Search an answer, or a chunk of one, or several of them."""
        if isinstance(answer, list | tuple | Iterator):
            for one in answer:
                if isinstance(one, Mapping | list):
                    self.add(one)
        elif not isinstance(answer, _PLAIN):
            with suppress(Exception):  # reading an attribute of the user's object may raise anything
                for holder in (answer, *(_member(answer, name) for name in _PLACES["nested"])):
                    if holder is not None:
                        self._search(holder)

    def _search(self, answer: Any) -> None:
        blocks = [_member(answer, name) for name in _PLACES["blocks"]]
        if any(_member(answer, name) is not None for name in _PLACES["bare"]):
            blocks.append(answer)
        for block in blocks:
            if block is not None:
                self._own = _larger(self._own, _tokens(block))
        names = (_member(answer, name) for name in _PLACES["model"])
        self.model = next((name for name in names if isinstance(name, str) and name), self.model)

    def join(self, inside: Usage) -> None:
        """Add the usage of a request that this call has made, which is not recorded by itself."""
        self._inside = Tokens(*map(sum, zip(self._inside, inside.tokens, strict=True)))
        self.model = inside.model or self.model

    def complete(self, call: Any, answer: Any) -> None:
        """Apply the user's extractors. If nothing has named a model, take it from the arguments."""
        if self.model is None:
            self.model = asked_model(call.arguments)
        passed = {"args": list(call.passed[0]), "kwargs": dict(call.passed[1])} if call.function.has_extractors else {}
        for name in ("extract_model", "extract_tokens") if passed else ():
            try:
                if (extract := getattr(call.function, name)) is None:
                    continue
                found = extract(passed, answer)
                if name == "extract_model":
                    self.model = str(found)
                else:
                    self._own, self._inside = Tokens(int(found[0]), int(found[1])), Tokens()
            except Exception as error:  # noqa: BLE001 - the user's function; the recording goes on without it
                _LOG.warning("%s of %s raised %r; the default was used", name, call.function.name, error)


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
        tokens = self.input_tokens + other.input_tokens, self.output_tokens + other.output_tokens
        cost = None if calls and calls == unpriced else (self.cost or Decimal(0)) + (other.cost or Decimal(0))
        return Savings(calls, *tokens, cost, unpriced, self.seconds + other.seconds)

    def __str__(self) -> str:
        """``2 model calls, 1200+340 tokens, $0.0062``; how many calls have no price, or what to install to know it."""
        parts = [f"{self.calls} model call{'' if self.calls == 1 else 's'}"]
        if self.input_tokens or self.output_tokens:
            parts.append(f"{self.input_tokens}+{self.output_tokens} tokens")
        if self.cost is not None and self.calls:
            least = Decimal("0.0001")
            parts.append(f"less than ${least}" if 0 < self.cost < least else f"${self.cost.quantize(least)}")
        if self.unpriced:
            is_installed = find_spec("genai_prices") is not None
            hint = 'pip install "agent-cache[prices]" to see money'
            parts.append(f"{self.unpriced} of unknown price" if is_installed else hint)
        return ", ".join(parts)


def model_calls(
    calls: Sequence[RecordedCall], chosen: Iterable[int], enclosing: Callable[[int], int]
) -> Iterator[RecordedCall]:
    """Those of the chosen calls that count as model calls.

    Of model calls inside of each other, such as a function that calls another one, only the outermost that knows its
    tokens counts; the innermost, if none knows them.
    """
    outer: dict[int, list[int]] = {index: [] for index in chosen}
    for index, around in outer.items():
        at = index
        while (at := enclosing(at)) >= 0:
            if at in outer:
                around.append(at)
    has_inner = {at for around in outer.values() for at in around}
    for index, around in outer.items():
        is_inside = any(_knows_tokens(calls[at]) for at in around)
        if not is_inside and (index not in has_inner or _knows_tokens(calls[index])):
            yield calls[index]


def _knows_tokens(call: RecordedCall) -> bool:
    return bool(call.input_tokens or call.output_tokens)


def savings_of(calls: Iterable[RecordedCall], recorded_at: str | None) -> Savings:
    """The sum of model calls."""
    try:
        began = datetime.fromisoformat(recorded_at or "")
        began = began if began.tzinfo else began.replace(tzinfo=UTC)
    except ValueError:
        began = datetime.now(UTC)
    total = Savings()
    for call in calls:
        price = _price(call, began + timedelta(milliseconds=call.started_ms))
        total += Savings(1, call.input_tokens, call.output_tokens, price, int(price is None), call.duration_ms / 1000)
    return total


def _price(call: RecordedCall, when: datetime) -> Decimal | None:
    """The price of a call in US dollars; None if it is not known."""
    if not _knows_tokens(call):  # a server that has answered with an error charges nothing
        response = call.outcome.get("response")
        status = response.get("status") if isinstance(response, dict) else None
        is_free = call.name.endswith(tuple(_KNOWN["free"])) or (isinstance(status, int) and status >= 400)
        return Decimal(0) if is_free else None
    try:
        import genai_prices as library  # it takes half a second to load
    except ImportError:
        return None
    usage = library.Usage(**{f"{name}_tokens": getattr(call, f"{name}_tokens") for name in Tokens._fields})
    for model, provider in _references(call):
        with suppress(LookupError, ValueError):
            found = library.calc_price(usage, model, genai_request_timestamp=when, **provider)
            # A model that is paid by the second of sound has a price, but not for its tokens.
            if found.total_price or not any(vars(found.model_price).values()):
                return Decimal(found.total_price)
    return None


def _references(call: RecordedCall) -> Iterator[tuple[str, dict[str, str]]]:
    """Names of the model, and what is known of its provider, under which it may have a price; the most exact first.

    A name may begin with a provider and a route, as LiteLLM has it. One such as ``llama3:8b`` runs on a machine of
    one's own.
    """
    models = [name for name in dict.fromkeys((call.model, asked_model(call.arguments))) if name]
    url = call.name.partition(" ")[2]
    providers = [{"provider_api_url": url}] if "://" in url else []
    providers += [{"provider_id": name.partition("/")[0]} for name in models if "/" in name]
    for provider in providers:
        for parts in (model.split("/") for model in models):
            yield from (("/".join(parts[at:]), provider) for at in range(len(parts)))
    for name in (model.removeprefix("models/").removeprefix("litellm_proxy/") for model in models):
        if "/" not in name and (":" not in name or name.startswith("ft:")):
            yield name, {}
            yield name, {"provider_id": "openai"}  # embeddings and fine-tuned models, which name nobody
        elif "/" not in name and name.partition(".")[0].isalpha():  # us.anthropic.claude-v1:0
            yield name, {"provider_id": "aws"}
