"""Record and replay of `litellm.acompletion` and `litellm.aembedding` by `LLMReplay`, in the fixtures of Reyn.

Reyn is an agent framework; its fixtures are JSON Lines, one model call a line:

    {"key": "<sha256>", "model": "gpt-4o", "prompt_preview": "...", "response": {...}}

`kind` is ``completion`` where it is missing, ``embedding``, ``exception`` (a `cause` in the place of the response), or
``environment`` (a snapshot that a precondition has captured). `preconditions` and `key_components` may stand beside the
response. The key is all that identifies a call: a fixture has no order, and a call may be answered any number of times.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
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
    "REPLAY_DATETIME", "LLMReplay", "MissingFixture", "Precondition", "PreconditionMismatch", "ReplayRequest",
    "fixture_line", "from_cassette", "is_fixture", "read_fixture", "to_cassette",
]  # fmt: skip

REPLAY_DATETIME = datetime(2026, 1, 1, tzinfo=UTC)
"""The time to give an agent whose prompts contain the time: else each run asks other questions."""

_COMPLETION, _EMBEDDING = CALLS_OF_LITELLM
_NAMES = {"completion": _COMPLETION, "exception": _COMPLETION, "embedding": _EMBEDDING}
_ENVIRONMENT, _FORM = "litellm:environment", "reyn"
_PREVIEW = 200
_PATIENCE = 10.0
"""Seconds to wait for another process that writes the same fixture. It takes milliseconds."""

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
        self.mode = checked_choice(mode, ("replay", "record", "new_episodes"), "LLMReplay: mode")
        self.preconditions = tuple(preconditions or ())
        self._redaction = redaction_of(redact)
        self._advice = advice
        found = read_fixture(self.fixture_path) if self.fixture_path.exists() else []
        self._environment = {entry["name"]: entry["value"] for entry in found if _kind(entry) == "environment"}
        self._entries = {(_kind(entry), entry["key"]): entry for entry in found if _kind(entry) != "environment"}
        self._pending: dict[tuple[str, str], Entry] = {}
        self._answered: list[Entry] = []

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

    def install(self) -> None:
        """Take the place of the functions of litellm. A replay establishes the recorded environment first.

        Raises:
            MissingFixture: for a replay if there is no fixture.
            CassetteError: for a recording if the path is that of a cassette.
            ImportError: if litellm is not installed.
        """
        if self.mode == "replay" and not self.fixture_path.exists():
            raise MissingFixture(f"there is no such fixture. To record it: {self._advice}", self.fixture_path)
        if self.mode != "replay" and "agent_cache_cassette" in _first_entries(self.fixture_path)[0]:
            raise CassetteError("is a cassette, and this records fixtures; give another path", self.fixture_path)
        for one in self.preconditions if self.mode != "record" else ():
            if (snapshot := self._environment.get(one.name)) is not None:
                one.inject(snapshot)
        with _lock:
            if self not in _installed:
                if not _installed:
                    _patches.append(_patched("acompletion", "acompletion", LLMReplay._complete))
                    _patches.append(_patched("aembedding", "embedding", LLMReplay._embed))
                _installed.append(self)

    def restore(self) -> None:
        """Leave. Does nothing if it is not installed."""
        with _lock:
            if self in _installed:
                _installed.remove(self)
            while _patches and not _installed:
                _patches.pop()()

    def flush(self) -> None:
        """Write what was recorded, in one step. Does nothing in a replay, or if nothing new was recorded.

        Raises:
            CassetteError: if the fixture is broken or cannot be written. The recording stays, for another `flush`.
        """
        new = [
            {"kind": "environment", "name": one.name, "value": self._redaction.apply(snapshot)}
            for one in self.preconditions
            if (self.mode == "record" or self._pending) and (snapshot := one.capture()) is not None
        ]
        new += self._pending.values()
        if not new:
            return
        file = _claimed(self.fixture_path)
        try:
            old = read_fixture(self.fixture_path) if self.fixture_path.exists() else []
            replaced = {_identity(entry) for entry in new} | {_group(entry) for entry in new} - {None}
            kept = [entry for entry in old if replaced.isdisjoint((_identity(entry), _group(entry)))]
            for entry in (*kept, *new):
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

    def __exit__(self, *_: object) -> None:
        self.restore()
        self.flush()

    async def _complete(self, original: Callable[..., Awaitable[Any]], arguments: dict[str, Any]) -> Any:
        """Answer a call of `litellm.acompletion`.

        Args:
            original: what was there before.
            arguments: of the call, by name.
        """
        import litellm

        messages, tools, choice = (arguments.get(name) for name in ("messages", "tools", "tool_choice"))
        request = ReplayRequest(arguments["model"], list(messages or ()), tools, choice)
        plain = json.loads(_canonical((request.messages, tools, choice)))
        redacted = self._redaction.apply(plain)
        clean = request if redacted == plain else ReplayRequest(request.model, *redacted)
        observed = {one.name: self._redaction.apply(one.observe(request)) for one in self.preconditions}
        keys = [
            self.key(one.model, one.messages, one.tools, one.tool_choice, self.preconditions)
            for one in (clean, request)
        ]
        found = self._found(("completion", "exception"), keys)
        preview = _preview(clean.messages)
        if found is None:
            whole = {name: value for name, value in arguments.items() if name not in {"stream", "stream_options"}}
            if self.mode == "replay":
                lines = [_attribution(_components(clean), self._entries.values())]
                lines += [f"Environment of this run: {observed!r}"] if observed else []
                raise self._missing("fixture entry", request.model, preview, *lines)
            response = await original(**whole)
            self._pending["completion", keys[0]] = {
                "key": keys[0],
                "kind": "completion",
                "model": request.model,
                "prompt_preview": preview,
                "preconditions": observed,
                "key_components": _components(clean),
                "response": self._redaction.apply(response.model_dump(mode="json")),
            }
        elif _kind(found) == "exception":
            raise _exception(found, request.model, self.fixture_path)
        else:
            self._check_environment(found, observed, f"model: {clean.model!r}\nprompt: {preview!r}")
            response = litellm.ModelResponse(**found["response"])
        return self._synthetic_stream(response) if arguments.get("stream") else response

    async def _embed(self, original: Callable[..., Awaitable[Any]], arguments: dict[str, Any]) -> Any:
        """Answer a call of `litellm.aembedding`; as `_complete`."""
        import litellm

        model, given = arguments["model"], arguments.get("input", [])
        texts = given if isinstance(given, list) else [given]
        clean = self._redaction.apply(texts)
        keys = [self.embed_key(model, one) for one in (clean, texts)]
        preview = ", ".join(map(str, clean))[:_PREVIEW]
        if (found := self._found(("embedding",), keys)) is not None:
            return litellm.EmbeddingResponse(**found["response"])
        if self.mode == "replay":
            raise self._missing("embedding fixture entry", model, preview)
        response = await original(**arguments)
        dumped = self._redaction.apply(response.model_dump(mode="json"))
        entry = {"key": keys[0], "kind": "embedding", "model": model, "prompt_preview": preview, "response": dumped}
        self._pending["embedding", keys[0]] = entry
        return response

    def _found(self, kinds: Sequence[str], keys: Sequence[str]) -> Entry | None:
        """The recorded call, by its key without secrets or by that of Reyn, which has them."""
        for name in ((kind, key) for kind in kinds for key in keys) if self.mode != "record" else ():
            if (entry := self._entries.get(name)) is not None:
                self._answered.append(entry)
                return entry
        return None

    def _check_environment(self, entry: Entry, observed: dict[str, Any], call: str) -> None:
        recorded = entry.get("preconditions")
        for one in self.preconditions:
            actual, absent = observed[one.name], one.absent_value()
            expected = recorded.get(one.name, absent) if isinstance(recorded, dict) else absent
            if actual == expected:
                continue
            difference = one.describe_mismatch(expected, actual)
            shown = repr(expected) if isinstance(recorded, dict) else "not recorded"
            raise PreconditionMismatch(
                f"the call is in the fixture, but was recorded in another environment: {one.name!r} differs\n"
                f"{difference}\nrecorded: {shown}\nthis run: {actual!r}\n{call}\n"
                f"Restore that environment, or record it again: {self._advice}",
                self.fixture_path,
            )

    def _missing(self, what: str, model: str, preview: str, *lines: str) -> MissingFixture:
        head = f"No {what} for model={model!r}.\nPrompt preview: {preview!r}"
        return MissingFixture("\n".join((head, *lines, f"To record it: {self._advice}")), self.fixture_path)

    @staticmethod
    async def _synthetic_stream(response: Any) -> AsyncIterator[Any]:
        """A whole response in pieces: each text in two, each of several parallel tool calls under its own index."""
        from litellm.types.utils import ModelResponseStream

        deltas = [
            {"index": choice.index, "delta": delta, "finish_reason": reason}
            for choice in response.choices
            for delta, reason in (*((one, None) for one in _deltas(choice.message)), ({}, choice.finish_reason))
        ]
        for number, choice in enumerate(deltas, 1):
            chunk = ModelResponseStream(
                id=response.id, created=response.created or 0, model=response.model or "", choices=[choice]
            )
            if number == len(deltas) and getattr(response, "usage", None) is not None:
                chunk.usage = response.usage
            yield chunk


def _deltas(message: Any) -> list[dict[str, Any]]:
    """What a stream would have said, piece by piece. The first piece names the role."""
    found: list[dict[str, Any]] = [
        {name: piece}
        for name in ("reasoning_content", "content")
        for piece in _halves(getattr(message, name, None) or "")
    ]
    for index, call in enumerate(message.tool_calls or ()):
        first, *rest = _halves(call.function.arguments or "") or [""]
        function = {"name": call.function.name, "arguments": first}
        found.append({"tool_calls": [{"index": index, "id": call.id, "type": "function", "function": function}]})
        found += ({"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in rest)
    found = found or [{"content": None}]
    return [{"role": "assistant", **found[0]}, *found[1:]]


def _halves(text: str) -> list[str]:
    middle = (len(text) + 1) // 2 if len(text) < 2 else len(text) // 2
    return [piece for piece in (text[:middle], text[middle:]) if piece]


def _exception(entry: Entry, model: str, path: Path) -> Exception:
    """The exception of litellm that an entry stands for. Its name is one of a few, and never that of a class."""
    import litellm

    kinds = {
        "rate_limit": litellm.RateLimitError,
        "context_overflow": litellm.ContextWindowExceededError,
        "byte_limit": litellm.BadRequestError,
    }
    if (cause := entry["cause"]) not in kinds:
        return CassetteError(f"has the unknown cause {cause!r} of an exception", path)
    error: Exception = kinds[cause](
        message=entry.get("message") or f"recorded: {cause}", model=model, llm_provider="replay"
    )
    if cause == "byte_limit":
        vars(error)["status_code"] = 413
    return error


# The functions of litellm

_installed: list[LLMReplay] = []
_patches: list[Callable[[], None]] = []
_lock = threading.RLock()


def _patched(name: str, like: str, answer: Callable[..., Awaitable[Any]]) -> Callable[[], None]:
    """Put a function in the place of one of litellm, which asks the replay that was installed last.

    Returns what gives the place back, unless something else has taken it since. Then it stays, and passes calls on.
    """
    import litellm

    original = getattr(litellm, name)
    parameters = inspect.signature(getattr(litellm, like))
    is_active = True

    @functools.wraps(original)
    async def call(*args: Any, **kwargs: Any) -> Any:
        if not is_active or not _installed:
            return await original(*args, **kwargs)
        named = dict(parameters.bind_partial(*args).arguments) if args else {}
        return await answer(_installed[-1], original, {**named, **kwargs})

    def leave() -> None:
        nonlocal is_active
        is_active = False
        if vars(litellm).get(name) is call:
            setattr(litellm, name, original)

    setattr(litellm, name, call)
    return leave


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
    messages, tools, choice = json.loads(_canonical((request.messages, request.tools or [], request.tool_choice or "")))

    def role(message: Any) -> Any:
        return message.get("role") if isinstance(message, dict) else "?"

    def name(tool: Any, index: int) -> str:
        function = tool.get("function") if isinstance(tool, dict) else None
        found = function.get("name") if isinstance(function, dict) else None
        return str(found) if found else f"<tool #{index}>"

    return {
        "model": request.model,
        "tool_choice": choice,
        "messages": [f"{role(one)}:{_sha256(_canonical(one))[:12]}" for one in messages],
        "tools": {name(one, index): _sha256(_canonical(one))[:12] for index, one in enumerate(tools)},
    }


def _attribution(actual: dict[str, Any], entries: Iterable[Entry]) -> str:
    """Which parts of a call differ from those of the nearest recorded one."""
    recorded = [entry["key_components"] for entry in entries if isinstance(entry.get("key_components"), dict)]
    if not recorded:
        return "What differs is not known: no entry of the fixture says what its key was made of."
    nearest = min(recorded, key=lambda one: sum(one.get(part) != actual[part] for part in actual))
    lines = [
        f"{part}: {nearest.get(part)!r} -> {actual[part]!r}"
        for part in ("model", "messages", "tool_choice")
        if nearest.get(part) != actual[part]
    ]
    old, new = dict(nearest.get("tools") or {}), actual["tools"]
    if names := sorted(name for name in {**old, **new} if old.get(name) != new.get(name)):
        lines.append(f"tools: {', '.join(names)}")
    return "\n  ".join((f"The nearest of {len(recorded)} entries differs in", *lines))


# Files


def is_fixture(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a fixture of Reyn, or a cassette that was made of one, by its first lines."""
    first, second = _first_entries(path)
    is_entry = ("key" in first and ("response" in first or "cause" in first)) or first.get("kind") == "environment"
    return is_entry or ("agent_cache_cassette" in first and second.get("form") == _FORM)


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
    if "agent_cache_cassette" in _first_entries(path)[0]:
        return from_cassette(Cassette.load(path))
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        raise CassetteNotFound("does not exist", path) from None
    except OSError as error:
        raise CassetteError(f"cannot be read: {error.strerror}", path) from error
    return [_checked(line, path, number) for number, line in enumerate(content.split(b"\n"), 1) if line.strip()]


_FIELDS: dict[Any, dict[str, type]] = {
    "completion": {"key": str, "response": dict},
    "embedding": {"key": str, "response": dict},
    "exception": {"key": str, "cause": str},
    "environment": {"name": str, "value": object},
}


def _checked(line: bytes, path: object, number: int) -> Entry:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CassetteError(f"this line is broken: {error}", path, number) from error
    if not isinstance(entry, dict):
        raise CassetteError("this line is broken: it is no JSON object", path, number)
    if (kind := _kind(entry)) not in _FIELDS:
        raise CassetteError(f"this line is of the unknown kind {kind!r}", path, number)
    for name, form in _FIELDS[kind].items():
        if name not in entry or not isinstance(entry[name], form):
            raise CassetteError(f"this line is broken: {name!r} is missing, or no {form.__name__}", path, number)
    return entry


def _kind(entry: Entry) -> Any:
    return entry.get("kind", "completion")


def _identity(entry: Entry) -> tuple[bool, str]:
    """What a new entry replaces: that of the same environment, or of the same key."""
    return ("key" in entry, entry.get("key") or entry["name"])


def _group(entry: Entry) -> str | None:
    """What all recordings of one call have in common, however its tools have changed; None if that is not known."""
    components = entry.get("key_components")
    if not isinstance(components, dict):
        return None
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


def to_cassette(entries: Iterable[Entry], path: str | os.PathLike[str] = "") -> Cassette:
    """A cassette with the calls of a fixture. `LLMReplay` replays it, and `from_cassette` converts it back.

    Args:
        entries: as `read_fixture` returns them. Of two with one key, the later one counts.
        path: for messages.
    """
    found = {(_kind(entry), entry.get("key", entry.get("name"))): entry for entry in entries}
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
        digest=digest_of_key(name, key).hex(),
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
