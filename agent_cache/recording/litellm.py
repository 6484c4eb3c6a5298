"""Record and replay of `litellm.acompletion` and `litellm.aembedding` by `LLMReplay`, in the fixtures of Reyn.

Reyn is an agent framework; its fixtures are JSON Lines, one model call a line:

    {"key": "<sha256>", "model": "gpt-4o", "prompt_preview": "...", "response": {...}}

`kind` is ``completion`` where it is missing, ``embedding``, ``exception`` (a `cause` in the place of the response), or
``environment`` (a snapshot that a precondition has captured). `preconditions` and `key_components` may stand beside the
response. The key is all that identifies a call: a fixture has no order, and a call may be answered any number of times.

`to_cassette` and `from_cassette` convert: the key becomes the `key` of a call ``litellm:acompletion``.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self

import msgspec

from agent_cache.core.options import checked_choice
from agent_cache.errors import CassetteError, CassetteNotFound, MissingFixture, UncacheableArgumentsError
from agent_cache.recording.cassette import Cassette
from agent_cache.recording.file import CALLS_OF_LITELLM, RecordedCall, digest_of_key
from agent_cache.recording.partial_file import PartialFile
from agent_cache.recording.prices import Savings, Usage, savings_of
from agent_cache.recording.redaction import redaction_of

__all__ = [
    "REPLAY_DATETIME",
    "LLMReplay",
    "MissingFixture",
    "Precondition",
    "PreconditionMismatch",
    "ReplayRequest",
    "fixture_line",
    "from_cassette",
    "is_fixture",
    "read_fixture",
    "to_cassette",
]

REPLAY_DATETIME = datetime(2026, 1, 1, tzinfo=UTC)
"""The time to give an agent whose prompts contain the time: else each run asks other questions."""

_MODES = ("replay", "record", "new_episodes")
_PREVIEW = 200
_DIGEST = 12
_PATIENCE = 10.0
"""Seconds to wait for another process that writes the same fixture. It takes milliseconds."""

_COMPLETION, _EMBEDDING = CALLS_OF_LITELLM
_NAMES = {"completion": _COMPLETION, "exception": _COMPLETION, "embedding": _EMBEDDING}
_ENVIRONMENT = "litellm:environment"
_FORM = "reyn"

Entry = dict[str, Any]
"""One line of a fixture."""


class PreconditionMismatch(MissingFixture):
    """The call is in the fixture, but it was recorded in another environment."""


@dataclass(frozen=True)
class ReplayRequest:
    """A model call as a precondition sees it: what `litellm.acompletion` was given."""

    model: str
    messages: list[Any]
    tools: list[Any] | None = None
    tool_choice: Any = None


class Precondition(Protocol):
    """Something of the environment that reaches the model, such as the tools of a server that happened to be up.

    It is left out of the key of a call, and compared instead. Those of Reyn fit.

    Attributes:
        name: by which the fixture knows it.
    """

    name: str

    def scrub(self, request: ReplayRequest) -> ReplayRequest:
        """The same request without it. The given one stays as it is."""
        ...

    def observe(self, request: ReplayRequest) -> Any:
        """What `scrub` removes, as plain data."""
        ...

    def absent_value(self) -> Any:
        """What `observe` returns where nothing is removed."""
        ...

    def describe_mismatch(self, expected: Any, actual: Any) -> str:
        """How what was observed differs from what was recorded."""
        ...

    def capture(self) -> Any:
        """A snapshot of the environment as plain data, at the end of a recording; None for none."""
        ...

    def inject(self, snapshot: Any) -> None:
        """Establish what was captured, before a replay."""
        ...


class LLMReplay:
    """Answers `litellm.acompletion` and `litellm.aembedding` from a fixture, or records them there.

    ``with LLMReplay("fixtures/chat.jsonl"): ...``, or `install` and `restore`, and `flush` after a recording. All of
    the process is affected, except for code that has imported the functions themselves before. Where two are
    installed, the later one answers; they can be restored in any order.

    The key is that of Reyn: the model, the messages, and the tools and the tool choice if there are any. Calls that
    differ in another argument, such as the temperature, have one answer. Secrets are removed before the key is made
    and before a line is written. A response that was asked for as a stream is recorded whole, and comes in pieces.

    Args:
        fixture_path: a fixture, or a cassette that `to_cassette` has made.
        mode: ``"replay"``; ``"record"``, which calls the model; or ``"new_episodes"``, which calls it for what is not
            recorded. A recording replaces the entries of the calls that it makes, also if their tools have changed
            since, and keeps the others.
        preconditions: of the environment; see `Precondition`.
        redact: as `agent_cache.recording.record` takes it.
        advice: how to record again, for errors.

    Attributes:
        fixture_path, mode, preconditions: the same.

    Raises:
        CassetteError: if a line of the fixture is broken, with its number.
        ConfigurationError: if the mode is unknown.
    """

    def __init__(
        self,
        fixture_path: str | os.PathLike[str],
        mode: Literal["replay", "record", "new_episodes"] = "replay",
        preconditions: Sequence[Precondition] | None = None,
        *,
        redact: Any = None,
        advice: str = 'LLMReplay(path, mode="record")',
    ) -> None:
        self.fixture_path = Path(fixture_path)
        self.mode = checked_choice(mode, _MODES, "LLMReplay: mode")
        self.preconditions = tuple(preconditions or ())
        self._redaction = redaction_of(redact)
        self._advice = advice
        self._entries: dict[tuple[str, str], Entry] = {}
        self._environment: dict[str, Any] = {}
        self._pending: dict[tuple[str, str], Entry] = {}
        self._answered: list[Entry] = []
        if self.fixture_path.exists():
            for entry in read_fixture(self.fixture_path):
                self._add(entry)

    # The key

    @staticmethod
    def key(
        model: str,
        messages: list[Any],
        tools: list[Any] | None = None,
        tool_choice: Any = None,
        preconditions: Sequence[Precondition] | None = None,
    ) -> str:
        """The key of a call of `litellm.acompletion`: a hexadecimal SHA-256.

        Raises:
            UncacheableArgumentsError: if an argument cannot be written as JSON.
        """
        request = ReplayRequest(model, messages, tools, tool_choice)
        for one in preconditions or ():
            request = one.scrub(request)
        text = _canonical(request.messages)
        if not request.tools and not request.tool_choice:
            return _sha256(request.model + text)
        choice = request.tool_choice or ""
        choice = choice if isinstance(choice, str) else _canonical(choice)
        return _sha256(f"{request.model}|{text}|{_canonical(request.tools or [])}|{choice}")

    @staticmethod
    def embed_key(model: str, input_texts: list[Any]) -> str:
        """The key of a call of `litellm.aembedding`.

        Raises:
            UncacheableArgumentsError: as `key`.
        """
        return _sha256(f"embed|{model}|{_canonical(input_texts)}")

    def loaded_keys(self) -> set[str]:
        """The keys of the calls in the fixture."""
        return {key for _, key in self._entries}

    def consumed_keys(self) -> set[str]:
        """The keys of the calls that were answered from the fixture."""
        return {entry["key"] for entry in self._answered}

    @property
    def savings(self) -> Savings:
        """Model calls that were not made, because they were answered so far, as `Tape.savings`."""
        return savings_of((_call(number, entry) for number, entry in enumerate(self._answered, 1)), None)

    # Installation

    def install(self) -> None:
        """Take the place of the functions of litellm. A replay establishes the recorded environment first.

        Raises:
            MissingFixture: for a replay if there is no fixture.
            CassetteError: for a recording if the path is that of a cassette.
            ImportError: if litellm is not installed.
        """
        if self.mode == "replay" and not self.fixture_path.exists():
            raise MissingFixture(f"there is no such fixture. To record it: {self._advice}", self.fixture_path)
        if self.mode != "replay" and _is_cassette(self.fixture_path):
            raise CassetteError("is a cassette, and this records fixtures; give another path", self.fixture_path)
        for one in self.preconditions if self.mode != "record" else ():
            if (snapshot := self._environment.get(one.name)) is not None:
                one.inject(snapshot)
        _Patch.add(self)

    def restore(self) -> None:
        """Leave. Does nothing if it is not installed."""
        _Patch.remove(self)

    def flush(self) -> None:
        """Write what was recorded, in one step. Does nothing in a replay, or if nothing new was recorded.

        Raises:
            CassetteError: if the fixture is broken or cannot be written. The recording stays, for another `flush`.
        """
        if self.mode != "record" and not self._pending:
            return
        captured = [
            {"kind": "environment", "name": one.name, "value": self._redaction.apply(snapshot)}
            for one in self.preconditions
            if (snapshot := one.capture()) is not None
        ]
        if not captured and not self._pending:
            return
        file = _claimed(self.fixture_path)
        try:
            path, new = self.fixture_path, [*captured, *self._pending.values()]
            for entry in (*_kept(read_fixture(path) if path.exists() else (), new), *new):
                file.append(fixture_line(entry))
        except BaseException as error:
            file.discard()
            if isinstance(error, OSError):
                raise CassetteError(f"cannot be written: {error.strerror}", self.fixture_path) from error
            raise
        file.finish()
        self._pending.clear()

    def __enter__(self) -> Self:
        self.install()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()
        self.flush()

    # Calls

    async def _complete(self, original: Callable[..., Awaitable[Any]], arguments: dict[str, Any]) -> Any:
        """Answer a call of `litellm.acompletion`.

        Args:
            original: what was there before.
            arguments: of the call, by name.

        Raises:
            MissingFixture: in a replay, if the fixture does not have the call.
            PreconditionMismatch: if it was recorded in another environment.
        """
        request = ReplayRequest(
            arguments["model"],
            list(arguments.get("messages") or ()),
            arguments.get("tools"),
            arguments.get("tool_choice"),
        )
        clean = self._redacted(request)
        observed = {one.name: self._redaction.apply(one.observe(request)) for one in self.preconditions}
        response = None if self.mode == "record" else self._answer(request, clean, observed)
        if response is None and self.mode == "replay":
            raise self._missing(
                "fixture entry", request.model, _preview(clean.messages), *self._reasons(clean, observed)
            )
        if response is None:
            whole = {name: value for name, value in arguments.items() if name not in {"stream", "stream_options"}}
            response = await original(**whole)
            self._keep(
                {
                    "key": self._key(clean),
                    "kind": "completion",
                    "model": request.model,
                    "prompt_preview": _preview(clean.messages),
                    "preconditions": observed,
                    "key_components": _components(clean),
                    "response": self._redaction.apply(response.model_dump(mode="json")),
                }
            )
        return self._synthetic_stream(response) if arguments.get("stream") else response

    async def _embed(self, original: Callable[..., Awaitable[Any]], arguments: dict[str, Any]) -> Any:
        """Answer a call of `litellm.aembedding`; as `_complete`."""
        model, given = arguments["model"], arguments.get("input", [])
        texts = given if isinstance(given, list) else [given]
        clean = self._redaction.apply(texts)
        preview = ", ".join(map(str, clean))[:_PREVIEW]
        found = None
        if self.mode != "record":
            found = self._found("embedding", self.embed_key(model, clean), self.embed_key(model, texts))
        if found is not None:
            import litellm

            return litellm.EmbeddingResponse(**found["response"])
        if self.mode == "replay":
            raise self._missing("embedding fixture entry", model, preview)
        response = await original(**arguments)
        dumped = self._redaction.apply(response.model_dump(mode="json"))
        key = self.embed_key(model, clean)
        self._keep({"key": key, "kind": "embedding", "model": model, "prompt_preview": preview, "response": dumped})
        return response

    def _answer(self, request: ReplayRequest, clean: ReplayRequest, observed: dict[str, Any]) -> Any:
        """The recorded response; None if there is none."""
        keys = self._key(clean), self._key(request)
        found = self._found("completion", *keys) or self._found("exception", *keys)
        if found is None:
            return None
        if found.get("kind") == "exception":
            raise _exception(found, request.model, self.fixture_path)
        self._check_environment(found, clean, observed)
        import litellm

        return litellm.ModelResponse(**found["response"])

    def _reasons(self, clean: ReplayRequest, observed: dict[str, Any]) -> Iterator[str]:
        components = [entry["key_components"] for entry in self._entries.values() if _has_components(entry)]
        yield _attribution(_components(clean), components)
        if observed:
            yield f"Environment of this run: {observed!r}"

    def _check_environment(self, entry: Entry, clean: ReplayRequest, observed: dict[str, Any]) -> None:
        recorded = entry.get("preconditions")
        if not isinstance(recorded, dict):
            recorded = None
        for one in self.preconditions:
            actual, absent = observed[one.name], one.absent_value()
            if recorded is None:
                if actual == absent:
                    continue  # nothing was left out of the key
                expected, difference = "not recorded", "  the entry is older than its preconditions"
            else:
                expected = recorded.get(one.name, absent)
                if actual == expected:
                    continue
                difference, expected = one.describe_mismatch(expected, actual), repr(expected)
            raise PreconditionMismatch(
                f"the call is in the fixture, but was recorded in another environment: {one.name!r} differs\n"
                f"{difference}\nrecorded: {expected}\nthis run: {actual!r}\nmodel: {clean.model!r}\n"
                f"prompt: {_preview(clean.messages)!r}\nRestore that environment, or record it again: {self._advice}",
                self.fixture_path,
            )

    def _missing(self, what: str, model: str, preview: str, *lines: str) -> MissingFixture:
        head = f"No {what} for model={model!r}.\nPrompt preview: {preview!r}"
        return MissingFixture("\n".join((head, *lines, f"To record it: {self._advice}")), self.fixture_path)

    def _redacted(self, request: ReplayRequest) -> ReplayRequest:
        """The same request as plain data without its secrets; itself if it has none."""
        parts = request.messages, request.tools, request.tool_choice
        plain = json.loads(_canonical(parts))
        clean = self._redaction.apply(plain)
        return request if clean == plain else ReplayRequest(request.model, *clean)

    def _key(self, request: ReplayRequest) -> str:
        return self.key(request.model, request.messages, request.tools, request.tool_choice, self.preconditions)

    def _found(self, kind: str, *keys: str) -> Entry | None:
        for key in keys:
            if (entry := self._entries.get((kind, key))) is not None:
                self._answered.append(entry)
                return entry
        return None

    def _keep(self, entry: Entry) -> None:
        self._pending[entry["kind"], entry["key"]] = entry

    def _add(self, entry: Entry) -> None:
        kind = _kind(entry)
        if kind == "environment":
            self._environment[entry["name"]] = entry["value"]
        else:
            self._entries[kind, entry["key"]] = entry

    @staticmethod
    async def _synthetic_stream(response: Any) -> AsyncIterator[Any]:
        """A whole response in pieces: each text in two, each of several parallel tool calls under its own index."""
        from litellm.types.utils import ModelResponseStream

        def chunk(index: int, delta: dict[str, Any], finish_reason: str | None = None) -> Any:
            choice = {"index": index, "delta": delta, "finish_reason": finish_reason}
            return ModelResponseStream(
                id=response.id, created=response.created or 0, model=response.model or "", choices=[choice]
            )

        last = None
        for choice in response.choices:
            if last is not None:
                yield last
            for delta in _deltas(choice.message):
                yield chunk(choice.index, delta)
            last = chunk(choice.index, {}, choice.finish_reason)
        if last is not None:
            if getattr(response, "usage", None) is not None:
                last.usage = response.usage
            yield last


def _deltas(message: Any) -> Iterator[dict[str, Any]]:
    """What a stream would have said, piece by piece."""
    role: dict[str, Any] = {"role": "assistant"}
    calls = message.tool_calls or []
    for name in ("reasoning_content", "content"):
        for piece in _halves(getattr(message, name, None) or ""):
            yield {**role, name: piece}
            role = {}
    if role and not calls:
        yield {**role, "content": None}
    for index, call in enumerate(calls):
        first, *rest = _halves(call.function.arguments or "") or [""]
        function = {"name": call.function.name, "arguments": first}
        yield {**role, "tool_calls": [{"index": index, "id": call.id, "type": "function", "function": function}]}
        role = {}
        for piece in rest:
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _halves(text: str) -> list[str]:
    middle = len(text) // 2
    return [text[:middle], text[middle:]] if middle else [text] if text else []


def _exception(entry: Entry, model: str, path: Path) -> Exception:
    """The exception of litellm that an entry stands for. Its name is one of a few, and never that of a class."""
    import litellm

    cause, text = entry["cause"], entry.get("message") or f"recorded: {entry['cause']}"
    kinds = {
        "rate_limit": litellm.RateLimitError,
        "context_overflow": litellm.ContextWindowExceededError,
        "byte_limit": litellm.BadRequestError,
    }
    if cause not in kinds:
        return CassetteError(f"has the unknown cause {cause!r} of an exception", path)
    error: Exception = kinds[cause](message=text, model=model, llm_provider="replay")
    if cause == "byte_limit":
        vars(error)["status_code"] = 413
    return error


# The functions of litellm


class _Patch:
    """Stands in the place of a function of litellm, and asks the `LLMReplay` that was installed last.

    It gives the place back only if nothing else has taken it since. Else it stays there and only passes calls on.
    """

    installed: list[LLMReplay] = []  # noqa: RUF012 - of the process
    active: list[_Patch] = []  # noqa: RUF012
    lock = threading.RLock()

    def __init__(self, name: str, like: str, answer: Callable[..., Awaitable[Any]]) -> None:
        import litellm

        self.name = name
        self.original = getattr(litellm, name)
        self.parameters = inspect.signature(getattr(litellm, like))
        is_active = True

        @functools.wraps(self.original)
        async def call(*args: Any, **kwargs: Any) -> Any:
            current = self.installed[-1:] if is_active else []
            if not current:
                return await self.original(*args, **kwargs)
            named = dict(self.parameters.bind_partial(*args).arguments) if args else {}
            return await answer(current[0], self.original, {**named, **kwargs})

        def leave() -> None:
            nonlocal is_active
            is_active = False
            if litellm.__dict__.get(name) is call:
                setattr(litellm, name, self.original)

        self.leave = leave
        setattr(litellm, name, call)

    @classmethod
    def add(cls, replay: LLMReplay) -> None:
        with cls.lock:
            if replay in cls.installed:
                return
            if not cls.installed:
                cls.active = [
                    cls("acompletion", "acompletion", LLMReplay._complete),
                    cls("aembedding", "embedding", LLMReplay._embed),
                ]
            cls.installed.append(replay)

    @classmethod
    def remove(cls, replay: LLMReplay) -> None:
        with cls.lock:
            if replay not in cls.installed:
                return
            cls.installed.remove(replay)
            if not cls.installed:
                for patch in cls.active:
                    patch.leave()
                cls.active = []


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
    """The beginning of the last turn of the user, or of the last message if there is none."""
    plain = [one if isinstance(one, dict) else {"content": one} for one in json.loads(_canonical(messages))]
    turns = [one for one in plain if one.get("role") == "user"] or plain
    content = turns[-1].get("content") if turns else None
    if isinstance(content, list):
        content = " ".join(str(part.get("text", "")) if isinstance(part, dict) else str(part) for part in content)
    return "" if content is None else str(content)[:_PREVIEW]


def _components(request: ReplayRequest) -> dict[str, Any]:
    """What a key was made of, as digests, so that a miss can name the part that has changed."""
    messages = json.loads(_canonical(request.messages))
    tools = json.loads(_canonical(request.tools or []))
    return {
        "model": request.model,
        "tool_choice": json.loads(_canonical(request.tool_choice or "")),
        "messages": [
            f"{one.get('role') if isinstance(one, dict) else '?'}:{_sha256(_canonical(one))[:_DIGEST]}"
            for one in messages
        ],
        "tools": {_tool_name(one, index): _sha256(_canonical(one))[:_DIGEST] for index, one in enumerate(tools)},
    }


def _tool_name(tool: Any, index: int) -> str:
    function = tool.get("function") if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return str(name) if name else f"<tool #{index}>"


def _has_components(entry: Entry) -> bool:
    return isinstance(entry.get("key_components"), dict)


def _attribution(actual: Mapping[str, Any], recorded: Sequence[Mapping[str, Any]]) -> str:
    """Which parts of a call differ from those of the nearest recorded one."""
    if not recorded:
        return "Key-component attribution unavailable: no entry of the fixture says what its key was made of."
    differences = min(
        (_differing(each, actual) for each in recorded),
        key=lambda found: (len(found), sum(map(len, found.values()))),
    )
    lines = [f"Key-component attribution, against the nearest of {len(recorded)} entries:"]
    for part in ("model", "messages", "tools", "tool_choice"):
        lines.append(f"  {part}: {'DIFFERS' if part in differences else 'MATCHES'}")
        lines += [f"      {each}" for each in differences.get(part, ())]
    return "\n".join(lines)


def _differing(recorded: Mapping[str, Any], actual: Mapping[str, Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for part in ("model", "tool_choice"):
        if recorded.get(part) != actual.get(part):
            found[part] = [f"{recorded.get(part)!r} -> {actual.get(part)!r}"]
    before, after = list(recorded.get("messages") or ()), list(actual.get("messages") or ())
    counts = [f"count {len(before)} -> {len(after)}"] if len(before) != len(after) else []
    pairs = enumerate(zip(before, after, strict=False))
    if lines := counts + [f"[{index}] {was} -> {now}" for index, (was, now) in pairs if was != now]:
        found["messages"] = lines
    old, new = dict(recorded.get("tools") or {}), dict(actual.get("tools") or {})
    lines = [f"{name}: only in the recording" for name in old if name not in new]
    lines += [f"{name}: only in this run" for name in new if name not in old]
    lines += [f"{name}: its schema has changed" for name in old if name in new and old[name] != new[name]]
    if lines:
        found["tools"] = lines
    return found


# Files


def is_fixture(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a fixture of Reyn, or a cassette that was made of one, by its first lines."""
    first, second = _first_entries(path)
    return (
        {"key", "response"} <= first.keys()
        or {"key", "cause"} <= first.keys()
        or first.get("kind") == "environment"
        or ("agent_cache_cassette" in first and second.get("form") == _FORM)
    )


def _is_cassette(path: str | os.PathLike[str]) -> bool:
    return "agent_cache_cassette" in _first_entries(path)[0]


def _first_entries(path: str | os.PathLike[str]) -> tuple[Entry, Entry]:
    """The first two lines of a file of JSON Lines; empty if they are something else, or missing."""
    found: list[Any] = []
    try:
        with Path(path).open("rb") as file:
            for line in islice((line for line in file if line.strip()), 2):
                found.append(json.loads(line))  # noqa: PERF401 - the first line counts also if the second is broken
    except (OSError, ValueError, RecursionError):
        pass
    entries: list[Entry] = [*(entry if isinstance(entry, dict) else {} for entry in found), {}, {}]
    return entries[0], entries[1]


def read_fixture(path: str | os.PathLike[str]) -> list[Entry]:
    """The entries of a fixture, or of a cassette that was made from one.

    Raises:
        CassetteNotFound: if there is no such file.
        CassetteError: if a line is broken, with its number.
    """
    if _is_cassette(path):
        return from_cassette(Cassette.load(path))
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        raise CassetteNotFound("does not exist", path) from None
    except OSError as error:
        raise CassetteError(f"cannot be read: {error.strerror}", path) from error
    return [_checked(line, path, number) for number, line in enumerate(content.split(b"\n"), 1) if line.strip()]


def _checked(line: bytes, path: object, number: int) -> Entry:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CassetteError(f"this line is broken: {error}", path, number) from error
    if not isinstance(entry, dict):
        raise CassetteError("this line is broken: it is no JSON object", path, number)
    fields: dict[Any, dict[str, type]] = {
        "completion": {"key": str, "response": dict},
        "embedding": {"key": str, "response": dict},
        "exception": {"key": str, "cause": str},
        "environment": {"name": str, "value": object},
    }
    kind = _kind(entry)
    if kind not in fields:
        raise CassetteError(f"this line is of the unknown kind {kind!r}", path, number)
    for name, form in fields[kind].items():
        if not isinstance(entry.get(name, ...), form) or name not in entry:
            raise CassetteError(f"this line is broken: {name!r} is missing, or no {form.__name__}", path, number)
    return entry


def _kind(entry: Entry) -> Any:
    return entry.get("kind", "completion")


def _kept(old: Iterable[Entry], new: Sequence[Entry]) -> Iterator[Entry]:
    """The entries that new ones do not replace: of another key, another conversation and another environment."""
    names = {entry["name"] for entry in new if "name" in entry}
    keys = {entry["key"] for entry in new if "key" in entry}
    groups = {_group(entry) for entry in new if _has_components(entry)}
    for entry in old:
        if _kind(entry) == "environment":
            is_replaced = entry["name"] in names
        else:
            is_replaced = entry["key"] in keys or (_has_components(entry) and _group(entry) in groups)
        if not is_replaced:
            yield entry


def _group(entry: Entry) -> str:
    """What all recordings of one call have in common, however its tools have changed."""
    components = entry["key_components"]
    return _canonical([components.get(part) for part in ("model", "tool_choice", "messages")])


def fixture_line(entry: Entry) -> bytes:
    """The line of an entry."""
    return json.dumps(entry, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def _claimed(path: Path) -> PartialFile:
    """The file to write, as soon as no other recording writes it."""
    last = time.monotonic() + _PATIENCE
    while True:
        try:
            return PartialFile(path)
        except CassetteError as error:
            if not error.reason.startswith("is being recorded") or time.monotonic() > last:
                raise
        time.sleep(0.01)


# Conversion


def to_cassette(entries: Iterable[Entry], path: str | os.PathLike[str] = "") -> Cassette:
    """A cassette with the calls of a fixture. `LLMReplay` replays it, and `from_cassette` converts it back.

    Args:
        entries: as `read_fixture` returns them. Of two with one key, the later one counts.
        path: for messages.
    """
    found = {(_kind(entry), entry.get("key", entry.get("name"))): entry for entry in entries}
    return Cassette([_call(number, entry) for number, entry in enumerate(found.values(), 1)], path=path)


def _call(number: int, entry: Entry) -> RecordedCall:
    kind = _kind(entry)
    rest = {name: value for name, value in entry.items() if name not in {"key", "response", "value"}}
    response: dict[str, Any] = entry.get("response") or {}
    usage = Usage()
    usage.add(response)
    if kind == "environment":
        name, key, value = _ENVIRONMENT, entry["name"], entry["value"]
    else:
        name, key, value = _NAMES[kind], entry["key"], response or None
    call = RecordedCall(
        id=number,
        kind="env" if kind == "environment" else "llm",
        name=name,
        arguments=rest,
        key=key,
        digest=digest_of_key(name, key).hex(),
        outcome={"value": value},
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
            is_call, payload = call.name != _ENVIRONMENT, call.outcome["value"]
            entry = {"key": call.key, **call.arguments} if is_call else dict(call.arguments)
            if _kind(entry) != "exception":
                entry["response" if is_call else "value"] = payload
            entries.append(entry)
    if not entries:
        raise CassetteError("has no call of litellm:acompletion or litellm:aembedding", cassette.path)
    return entries
