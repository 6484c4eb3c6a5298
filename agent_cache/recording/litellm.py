"""Record and replay of `litellm.acompletion` and `litellm.aembedding` by `LLMReplay`, in the fixtures of Reyn.

Reyn is an agent framework; its fixtures are JSON Lines, one model call a line:

    {"key": "<sha256>", "model": "gpt-4o", "prompt_preview": "...", "response": {...}}

`kind` is ``completion`` where it is missing, ``embedding``, ``exception`` (a `cause` in the place of the response), or
``environment``, which is kept and not read. The key is all that identifies a call: a fixture has no order, and a call
may be answered any number of times.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import inspect
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Self

import msgspec

from agent_cache.core.options import checked_choice
from agent_cache.errors import CassetteError, MissingFixture, UncacheableArgumentsError
from agent_cache.recording.cassette import Cassette
from agent_cache.recording.file import CALLS_OF_LITELLM, RecordedCall, digest_of, read_bytes
from agent_cache.recording.partial_file import replace_file
from agent_cache.recording.prices import Savings, Usage, savings_of
from agent_cache.recording.redaction import redaction_of

__all__ = [
    "REPLAY_DATETIME", "LLMReplay", "MissingFixture", "fixture_line", "from_cassette", "is_fixture", "read_fixture",
    "to_cassette",
]  # fmt: skip

REPLAY_DATETIME = datetime(2026, 1, 1, tzinfo=UTC)
"""The time to give an agent whose prompts contain the time: else each run asks other questions."""

_COMPLETION, _EMBEDDING = CALLS_OF_LITELLM
_NAMES = {"completion": _COMPLETION, "exception": _COMPLETION, "embedding": _EMBEDDING}
_RESPONSES = {"completion": "ModelResponse", "embedding": "EmbeddingResponse"}
"""What litellm answers, by the kind of the call."""
_CAUSES = {"rate_limit": "RateLimit", "context_overflow": "ContextWindowExceeded", "byte_limit": "BadRequest"}
_ENVIRONMENT, _FORM = "litellm:environment", "reyn"
_PREVIEW = 200

Entry = dict[str, Any]
"""One line of a fixture."""


class LLMReplay:
    """Answers `litellm.acompletion` and `litellm.aembedding` from a fixture, or records them there.

    ``with LLMReplay("fixtures/chat.jsonl"): ...``, or `install` and `restore`, and `flush` after a recording. All of
    the process is affected, except for code that has imported the functions themselves before. Where two are
    installed, the later one answers, records what the earlier one answers, and is to be restored first.

    The key is that of Reyn: the model, the messages, and the tools and the tool choice if there are any. Calls that
    differ in another argument, such as the temperature, have one answer. Secrets are removed before the key is made
    and before a line is written. A response that was asked for as a stream is recorded whole, and is one chunk again.

    Args:
        fixture_path: a fixture, or a cassette that `to_cassette` has made.
        mode: ``"replay"``; ``"record"``, which calls the model; or ``"new_episodes"``, which calls it for what is not
            recorded. A recording replaces the entries of the calls that it makes, and keeps the others.
        redact: as `agent_cache.recording.record` takes it.
        advice: how to record again, for errors.

    Raises:
        CassetteError: if a line of the fixture is broken, with its number.
        ConfigurationError: if the mode is unknown.
    """

    def __init__(
        self,
        fixture_path: str | os.PathLike[str],
        mode: Literal["replay", "record", "new_episodes"] = "replay",
        *,
        redact: Any = None,
        advice: str = 'LLMReplay(path, mode="record")',
    ) -> None:
        self.fixture_path = Path(fixture_path)
        self.mode = checked_choice(mode, ("replay", "record", "new_episodes"), "LLMReplay: mode")
        self._redaction = redaction_of(redact)
        self._advice = advice
        found = read_fixture(self.fixture_path) if self.fixture_path.exists() else []
        self._entries = {_identity(entry): entry for entry in found}
        self._pending: dict[tuple[bool, str], Entry] = {}
        self._answered: list[Entry] = []
        self._originals: dict[str, Any] = {}

    @staticmethod
    def key(model: str, messages: list[Any], tools: list[Any] | None = None, tool_choice: Any = None) -> str:
        """The key of a call of `litellm.acompletion`: a hexadecimal SHA-256.

        Raises:
            UncacheableArgumentsError: if an argument cannot be written as JSON.
        """
        text = _canonical(messages)
        if not tools and not tool_choice:
            return _sha256(model + text)
        choice = tool_choice or "" if isinstance(tool_choice or "", str) else _canonical(tool_choice)
        return _sha256(f"{model}|{text}|{_canonical(tools or [])}|{choice}")

    @staticmethod
    def embed_key(model: str, input_texts: list[Any]) -> str:
        """The key of a call of `litellm.aembedding`.

        Raises:
            UncacheableArgumentsError: as `key`.
        """
        return _sha256(f"embed|{model}|{_canonical(input_texts)}")

    def loaded_keys(self) -> set[str]:
        """The keys of the calls in the fixture."""
        return {key for is_call, key in self._entries if is_call}

    def consumed_keys(self) -> set[str]:
        """The keys of the calls that were answered from the fixture."""
        return {entry["key"] for entry in self._answered}

    @property
    def savings(self) -> Savings:
        """Model calls that were not made, because they were answered so far, as `Tape.savings`."""
        return savings_of((_call(number, entry) for number, entry in enumerate(self._answered, 1)), None)

    def install(self) -> None:
        """Take the place of the functions of litellm.

        Raises:
            MissingFixture: for a replay if there is no fixture.
            CassetteError: for a recording if the path is that of a cassette.
            ImportError: if litellm is not installed.
        """
        if self.mode == "replay" and not self.fixture_path.exists():
            raise MissingFixture(f"there is no such fixture. To record it: {self._advice}", self.fixture_path)
        if self.mode != "replay" and "agent_cache_cassette" in _line(self.fixture_path, 0):
            raise CassetteError("is a cassette, and this records fixtures; give another path", self.fixture_path)
        for kind in () if self._originals else _RESPONSES:
            self._replace(kind)

    def _replace(self, kind: str) -> None:
        """Replace the function for this kind of calls."""
        import litellm

        self._originals[f"a{kind}"] = original = getattr(litellm, f"a{kind}")
        parameters = inspect.signature(getattr(litellm, kind))  # it takes positional arguments as this one does

        @functools.wraps(original)
        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self._answer(kind, original, {**parameters.bind_partial(*args).arguments, **kwargs})

        setattr(litellm, f"a{kind}", call)

    def restore(self) -> None:
        """Leave. Does nothing if it is not installed."""
        originals, self._originals = self._originals, {}
        for name, original in originals.items():
            import litellm

            setattr(litellm, name, original)

    def flush(self) -> None:
        """Write what was recorded, in one step. Does nothing in a replay, or if nothing new was recorded.

        Raises:
            CassetteError: if the fixture is broken, cannot be written, or is being written. The recording stays, for
            another `flush`.
        """
        if self._pending:
            replace_file(self.fixture_path, self._merged())
            self._pending.clear()

    def _merged(self) -> Iterator[bytes]:
        """The lines of the fixture, which are read now that nobody else writes it, and the new ones."""
        old = read_fixture(self.fixture_path) if self.fixture_path.exists() else []
        yield from map(fixture_line, ({_identity(one): one for one in old} | self._pending).values())

    def __enter__(self) -> Self:
        self.install()
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()
        self.flush()

    async def _answer(self, kind: str, original: Callable[..., Awaitable[Any]], arguments: dict[str, Any]) -> Any:
        """Answer a call of this kind. The original is what was there before."""
        import litellm

        model = arguments["model"]
        make_key: Callable[..., str] = self.key if kind == "completion" else self.embed_key
        if kind == "completion":
            parts = [arguments.get("messages") or [], *map(arguments.get, ("tools", "tool_choice"))]
        else:
            given = arguments.get("input", [])
            parts = [given if isinstance(given, list) else [given]]
        plain = json.loads(_canonical(parts))
        clean = self._redaction.apply(plain)
        keys = [make_key(model, *one) for one in (clean, plain)]  # the latter is that of Reyn
        known = () if self.mode == "record" else keys
        found = next((self._entries[True, key] for key in known if (True, key) in self._entries), None)
        if found is None:
            response = await self._record(kind, keys[0], _preview(clean[0]), original, arguments)
        else:
            self._answered.append(found)
            if _kind(found) == "exception":
                raise _exception(found, model, self.fixture_path)
            response = getattr(litellm, _RESPONSES[kind])(**found["response"])
        return _stream(response) if arguments.get("stream") else response

    async def _record(
        self, kind: str, key: str, preview: str, original: Callable[..., Any], arguments: dict[str, Any]
    ) -> Any:
        """Make a call that no entry answers, and keep its response."""
        model = arguments["model"]
        if self.mode == "replay":
            recorded = [str(one.get("prompt_preview")) for one in self._entries.values() if _kind(one) == kind]
            nearest = difflib.get_close_matches(preview, recorded, 1, 0.0)
            head = f"No {kind} of the fixture answers this call of model={model!r}.\nPrompt: {preview!r}"
            lines = [head, *(f"Nearest: {one!r}" for one in nearest), f"To record it: {self._advice}"]
            raise MissingFixture("\n".join(lines), self.fixture_path)
        whole = {name: value for name, value in arguments.items() if name not in ("stream", "stream_options")}
        response = await original(**whole)
        dumped = self._redaction.apply(response.model_dump(mode="json"))
        entry = {"key": key, "kind": kind, "model": model, "prompt_preview": preview, "response": dumped}
        self._pending[True, key] = entry
        return response


async def _stream(response: Any) -> AsyncIterator[Any]:
    """A whole response as a stream: each choice in one chunk, and its end in another."""
    from litellm.types.utils import ModelResponseStream

    choices: list[dict[str, Any]] = []
    for choice in response.choices:
        delta = choice.message.model_dump(exclude_none=True)
        for number, call in enumerate(delta.get("tool_calls", ())):
            call["index"] = number
        choices.append({"index": choice.index, "delta": delta, "finish_reason": None})
        choices.append({"index": choice.index, "delta": {}, "finish_reason": choice.finish_reason})
    for number, one in enumerate(choices, 1):
        chunk = ModelResponseStream(
            id=response.id, created=response.created or 0, model=response.model or "", choices=[one]
        )
        if number == len(choices) and getattr(response, "usage", None) is not None:
            chunk.usage = response.usage
        yield chunk


def _exception(entry: Entry, model: str, path: Path) -> Exception:
    """The exception of litellm that an entry stands for. Its name is one of a few, and never that of a class."""
    import litellm

    if (cause := entry["cause"]) not in _CAUSES:
        return CassetteError(f"has the unknown cause {cause!r} of an exception", path)
    message = entry.get("message") or f"recorded: {cause}"
    error: Exception = getattr(litellm, f"{_CAUSES[cause]}Error")(message=message, model=model, llm_provider="replay")
    if cause == "byte_limit":
        vars(error)["status_code"] = 413
    return error


# Keys, and why one is missing


def _canonical(value: Any) -> str:
    """The JSON of Reyn's keys. Messages of pydantic are those of their fields, as `litellm` itself sends them."""

    def plain(other: Any) -> Any:
        if callable(dump := getattr(other, "model_dump", None)) and not isinstance(other, type):
            return dump(mode="json", exclude_none=True)
        raise UncacheableArgumentsError(f"an argument contains a {type(other).__qualname__}", _COMPLETION)

    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=plain)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _preview(messages: list[Any]) -> str:
    """The beginning of the last turn of the user, or of the texts to embed."""
    turns = [one for one in messages if isinstance(one, dict) and one.get("role") == "user"]
    content = turns[-1].get("content") or "" if turns else messages
    parts = content if isinstance(content, list) else [content]
    return " ".join(str(part.get("text", "")) if isinstance(part, dict) else str(part) for part in parts)[:_PREVIEW]


# Files


def is_fixture(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a fixture of Reyn, or a cassette that was made of one, by its first lines."""
    first = _line(path, 0)
    is_entry = ("key" in first and ("response" in first or "cause" in first)) or first.get("kind") == "environment"
    return is_entry or ("agent_cache_cassette" in first and _line(path, 1).get("form") == _FORM)


def _line(path: str | os.PathLike[str], number: int) -> Entry:
    """A line of a file of JSON Lines, from 0; empty if it is missing, or something else."""
    try:
        with Path(path).open("rb") as file:
            found = json.loads(next(islice(filter(bytes.strip, file), number, None), b"{}"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def read_fixture(path: str | os.PathLike[str]) -> list[Entry]:
    """The entries of a fixture, or of a cassette that was made from one.

    Raises:
        CassetteNotFound: if there is no such file.
        CassetteError: if a line is broken, with its number.
    """
    if "agent_cache_cassette" in _line(path, 0):
        return from_cassette(Cassette.load(path))
    content = read_bytes(Path(path))
    return [_checked(line, path, number) for number, line in enumerate(content.split(b"\n"), 1) if line.strip()]


_FIELDS: dict[Any, dict[str, type]] = {
    "completion": {"key": str, "response": dict},
    "embedding": {"key": str, "response": dict},
    "exception": {"key": str, "cause": str},
    "environment": {"name": str, "value": object},
}


def _checked(line: bytes, path: object, number: int) -> Entry:
    try:
        entry: Entry = json.loads(line)
        fields = _FIELDS[_kind(entry)]
        if wrong := [name for name, form in fields.items() if not isinstance(entry[name], form)]:
            raise TypeError(f"{wrong[0]!r} is of another type")  # noqa: TRY301 - it is told as the others are
    except (ValueError, RecursionError, AttributeError, LookupError, TypeError) as error:
        raise CassetteError(f"this line is no entry of a fixture: {error!r}", path, number) from error
    return entry


def _kind(entry: Entry) -> Any:
    return entry.get("kind", "completion")


def _identity(entry: Entry) -> tuple[bool, str]:
    """Whether this is a call, and its key or name: what a new entry replaces."""
    return ("key" in entry, entry.get("key") or entry["name"])


def fixture_line(entry: Entry) -> bytes:
    """The line of an entry."""
    return json.dumps(entry, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def to_cassette(entries: Iterable[Entry], path: str | os.PathLike[str] = "") -> Cassette:
    """A cassette with the calls of a fixture; of two with one key, the later one. `LLMReplay` replays it, and
    `from_cassette` converts it back.
    """
    found = {_identity(entry): entry for entry in entries}
    return Cassette([_call(number, entry) for number, entry in enumerate(found.values(), 1)], path=path)


def _call(number: int, entry: Entry) -> RecordedCall:
    is_environment = _kind(entry) == "environment"
    key = entry["name" if is_environment else "key"]
    name = _ENVIRONMENT if is_environment else _NAMES[_kind(entry)]
    usage = Usage()
    usage.add(entry.get("response"))
    call = RecordedCall(
        id=number,
        kind="env" if is_environment else "llm",
        name=name,
        arguments={part: value for part, value in entry.items() if part not in {"key", "response", "value"}},
        key=key,
        digest=digest_of(name, {}, key).hex(),
        outcome={"value": entry["value"] if is_environment else entry.get("response")},
        model=usage.model or entry.get("model"),
        form=_FORM,
    )
    return msgspec.structs.replace(call, **usage.tokens.fields())


def from_cassette(cassette: Cassette) -> list[Entry]:
    """The entries of a fixture with the calls of a cassette that `to_cassette` has made.

    Raises:
        CassetteError: if the cassette has none of them.
    """
    entries: list[Entry] = []
    for call in cassette:
        if call.form == _FORM and "value" in call.outcome:
            is_call = call.name != _ENVIRONMENT
            entry = {"key": call.key, **call.arguments} if is_call else dict(call.arguments)
            if _kind(entry) != "exception":
                entry["response" if is_call else "value"] = call.outcome["value"]
            entries.append(entry)
    if not entries:
        raise CassetteError("has no call of litellm:acompletion or litellm:aembedding", cassette.path)
    return entries
