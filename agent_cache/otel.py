"""OpenTelemetry: spans of the tool calls that run, a span for each session, and the counters as metrics.

Needs ``pip install "agent-cache[otel]"``, which brings the API alone; the SDK and its exporters are the program's.

A call that runs has a live span, so that what its tool sends stands inside of it. A hit costs nothing for all this: it
is counted as ever, and its session says at its end how many there were. The counters are read when a reader collects.

Names of attributes are literals here: every constant of ``opentelemetry.semconv`` for ``gen_ai`` is deprecated.
"""

from __future__ import annotations

import time
import weakref
from asyncio import CancelledError
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from importlib.metadata import version
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from agent_cache.at_fork import lock_of
from agent_cache.config import CURRENT
from agent_cache.core.options import checked_flag
from agent_cache.engine.middleware import ToolCall
from agent_cache.engine.operation import Operation
from agent_cache.engine.scope import PLACE
from agent_cache.engine.state import warn_once
from agent_cache.errors import ConfigurationError
from agent_cache.metrics import CounterFamily, ToolLabels, counter_families
from agent_cache.session.session import WATCHERS, AgentCacheSession
from agent_cache.values.compare import utf8_text

try:
    from opentelemetry import context, metrics, trace
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation
    from opentelemetry.trace import Span, Status, StatusCode, Tracer, TracerProvider
except ImportError as error:
    raise ImportError('agent_cache.otel needs OpenTelemetry: pip install "agent-cache[otel]"') from error

if TYPE_CHECKING:
    from agent_cache.recording.redaction import Redaction

__all__ = ["Instrumentation", "instrument"]

_NAME: Final = "agent_cache"
_EXECUTE: Final = "execute_tool"
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/gen-ai/1.42.0"
"""Of the conventions for GenAI, v0.1.0, which have a repository and a schema of their own."""
_MAX_TOOLS_OF_SESSION: Final = 32
"""Tools whose hits the span of a session names one by one. The SDK keeps 128 attributes."""
_MAX_CONTENT: Final = 16_384
"""Characters of the arguments or the result of a call."""
_MAX_TAGS: Final = 100
_SECONDS: Final = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92]
"""The buckets that the semantic conventions advise for the durations of ``gen_ai``."""
_SUMS: Final = (
    "hits", "misses", "shared", "validated", "writes", "uncached", "errors", "loop_detections", "time_saved"
)  # fmt: skip
_RUN: Final = frozenset({"miss", "uncached", "write"})
"""Sources of calls whose tool has run for themselves."""

_lock = lock_of(__name__)
_installed: Instrumentation | None = None


class Instrumentation:
    """What `instrument` has installed. Also a context manager, which takes it away at the end of the block."""

    def __init__(self, spans: _Spans, instruments: _Instruments) -> None:
        self._spans, self._instruments = spans, instruments

    @property
    def is_active(self) -> bool:
        """Whether calls and sessions are exported by this one, and not taken away or replaced by a later one."""
        return self._spans.watch in WATCHERS

    def uninstrument(self) -> None:
        """Take it away. Calls and sessions that have begun end their spans; the counters are reported no more.

        Nothing happens if it is taken away already, or a later `instrument` has replaced it.
        """
        global _installed  # noqa: PLW0603 - as in `instrument`
        with _lock:
            if _installed is self:
                _installed = None
                CURRENT.instrument(None)
            if self._spans.watch in WATCHERS:
                WATCHERS.remove(self._spans.watch)
            if self._instruments.user is self:
                self._instruments.user = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.uninstrument()


def instrument(
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    *,
    content: bool = False,
    redact: Any = None,
) -> Instrumentation:
    """Export what the cache does, from now on: calls and sessions as spans, the counters as metrics.

    Each call that runs has a span ``execute_tool {tool}``: a miss, a write, an uncached call, one that waits for
    another's run, and a hit of a tier. If the current span already is such a span of a framework for this tool, that
    one gets the attributes ``agent_cache.tool`` and ``agent_cache.source`` instead. Each session has a span
    ``agent_cache.session``, the parent of what runs inside, with what its calls were.

    There is one instrumentation at a time: a second call replaces the first. A provider, processor or exporter that
    raises is logged once and changes nothing about the call.

    Args:
        tracer_provider: the one to use; the global one if left out, also if that is set later.
        meter_provider: likewise.
        content: whether spans have arguments, results, tags and the texts of exceptions: redacted, and at most 16,384
            characters of each.
        redact: what is secret beside the known forms of credentials, as in `agent_cache.recording.record`: names,
            compiled patterns, a function, or a `Redaction`.

    Returns:
        The instrumentation, whose `uninstrument` takes it away. It is a context manager as well.

    Raises:
        ConfigurationError: if `content` or `redact` cannot work.
    """
    global _installed  # noqa: PLW0603 - there is one in a process
    checked_flag(content, "instrument: content")
    redaction: Redaction | None = None
    if content:
        from agent_cache.recording.redaction import redaction_of

        redaction = redaction_of(redact)
    elif redact is not None:
        raise ConfigurationError("instrument: redact= needs content=True, without which nothing secret is exported")
    with _lock:
        instruments = _instruments_of(meter_provider)
        tracer = trace.get_tracer(_NAME, version("agent-cache"), tracer_provider, SCHEMA_URL)
        spans = _Spans(tracer, instruments, redaction)
        if _installed is not None:
            _installed.uninstrument()
        _installed = made = Instrumentation(spans, instruments)
        instruments.user = made
        WATCHERS.append(spans.watch)
        CURRENT.instrument(spans.observe)
    return made


# Spans of calls


class _Running:
    """The span of a call or a session, and the contexts before and with it: None if it is current as a framework's."""

    def __init__(self, names: tuple[str, str], span: Span = trace.INVALID_SPAN, *, is_own: bool = False) -> None:
        self.full, self.short = names
        self.span = span
        self.outer = context.get_current() if is_own else None
        self.inner = trace.set_span_in_context(span, self.outer) if is_own else None
        if self.inner is not None:
            context.attach(self.inner)
        self.seconds = 0.0
        self.contents: list[tuple[Any, Any]] = []  # as given, and redacted
        self._began = time.perf_counter()

    def leave(self) -> None:
        """Stop its time, and make the context around it the current one, where it is the current one itself: by its
        value, since a call may end in another context than it began in, where a token is refused and logged.
        """
        self.seconds = time.perf_counter() - self._began
        if self.outer is not None and context.get_current() is self.inner:
            context.attach(self.outer)


def _names_of(operation: Operation[Any]) -> tuple[str, str]:
    """The whole name of a tool, and the one that a model has for it."""
    full, function = operation.name, operation.function
    behind = full.partition(":")[2] or full
    is_path = full == f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"
    return full, behind.rpartition(".")[2] if is_path else behind


class _Spans:
    """Makes the spans. Nothing here raises because of a provider: the call goes on without its span."""

    def __init__(self, tracer: Tracer, instruments: _Instruments, redaction: Redaction | None) -> None:
        self.tracer, self.instruments, self._redaction = tracer, instruments, redaction

    def watch(self, session: AgentCacheSession) -> _SessionSpan:
        """The block around a session: see `agent_cache.session.session.WATCHERS`."""
        return _SessionSpan(self, session)

    async def observe(self, call: ToolCall, proceed: Callable[[], Awaitable[Any]]) -> Any:
        """The middleware."""
        running = self._begin(call)
        if running is None:
            return await proceed()
        try:
            result = await proceed()
        except BaseException as error:
            running.leave()
            has_stopped = call.is_stream and isinstance(error, CancelledError)  # its reader has, which is no failure
            self._end(running, call, None, GeneratorExit() if has_stopped else error)
            raise
        running.leave()
        self._end(running, call, result, None)
        return result

    def _begin(self, call: ToolCall) -> _Running | None:
        place = PLACE.get().call
        if place is None:
            return None
        plain = _names_of(place.operation)
        full, short = utf8_text(plain[0]), utf8_text(plain[1])
        try:
            span = trace.get_current_span()
            is_own = not _is_span_of(span, {*plain, full, short, full.partition(":")[2]})
            if is_own:
                span = self._start(full, short, call.session)
            else:
                span.set_attribute("agent_cache.tool", full)
            running = _Running((full, short), span, is_own=is_own)
        except Exception as failure:  # noqa: BLE001 - a provider's or a processor's
            _failed(failure)
            return _Running((full, short))
        if is_own and self._redaction is not None and span.is_recording():
            self._set_content(running, "gen_ai.tool.call.arguments", dict(call.arguments))
        return running

    def _start(self, full: str, short: str, session: str | None) -> Span:
        attributes = {
            "gen_ai.operation.name": _EXECUTE,
            "gen_ai.tool.name": short,
            "gen_ai.tool.type": "function",
            "agent_cache.tool": full,
        }
        if session is not None:
            attributes["gen_ai.conversation.id"] = utf8_text(session)
        return self.tracer.start_span(f"{_EXECUTE} {short}", attributes=attributes)

    def _end(self, running: _Running, call: ToolCall, result: Any, error: BaseException | None) -> None:
        try:
            source = call.source or ("uncached" if call.is_read_only else "write")
            span, is_own = running.span, running.outer is not None
            try:
                if span.is_recording():
                    span.set_attribute("agent_cache.source", source)
                    if source != "write":
                        span.set_attribute("gen_ai.tool.cache.hit", source in ("hit", "validated"))
                    if is_own and error is not None:
                        self.set_error(span, error)
                    if is_own and self._redaction is not None:
                        from agent_cache.recording.redaction import redact_key

                        if error is None:
                            self._set_content(running, "gen_ai.tool.call.result", result)
                        if len(running.contents) == 1 + (error is None):  # else they may repeat what is not known
                            tags = [utf8_text(tag) for tag in call.tags[:_MAX_TAGS]]
                            for given, clean in running.contents:
                                tags = [redact_key(tag, given, clean, self._redaction) for tag in tags]
                            span.set_attribute("agent_cache.tags", tags)
            finally:
                if source in _RUN:
                    self.instruments.record(running, error)
                if is_own:
                    span.end()
        except Exception as failure:  # noqa: BLE001 - a processor's or an exporter's
            _failed(failure)

    def set_error(self, span: Span, error: BaseException) -> None:
        """Say that what the span stands for has failed, by the class of the exception; its text is content."""
        if isinstance(error, GeneratorExit):
            return
        kind = utf8_text(type(error).__qualname__)
        span.set_attribute("error.type", kind)
        if self._redaction is None:
            span.set_status(Status(StatusCode.ERROR, kind))
            return
        from agent_cache.recording.exceptions import error_outcome

        try:
            shown = error_outcome(error, self._redaction)["error"]["message"]  # also without secrets of its arguments
            text = utf8_text(shown)[:_MAX_CONTENT] if str(error) else ""
        except Exception:  # noqa: BLE001 - a user's __str__, or a pattern of the user's that takes too long
            text = kind
        span.set_status(Status(StatusCode.ERROR, text))
        span.add_event("exception", {"exception.type": kind, "exception.message": text})

    def _set_content(self, running: _Running, name: str, value: Any) -> None:
        from agent_cache.recording.arguments import plain_arguments
        from agent_cache.recording.outcomes import encode

        assert self._redaction is not None
        try:
            given = plain_arguments({"value": value}, is_identity=False)[0]
            clean = self._redaction.apply(given)
            running.span.set_attribute(name, encode(clean["value"]).decode()[:_MAX_CONTENT])
        except Exception as failure:  # noqa: BLE001 - a user's object or redaction; the span goes on without
            warn_once(f"{name} could not be written, so spans lack it: {type(failure).__name__}", "agent_cache.otel")
            return
        running.contents.append((given, clean))


def _is_span_of(span: Span, names: set[str]) -> bool:
    """Whether this is a framework's span for a call of this tool, that no other call has annotated yet.

    A tool may call itself, and then the current span is the one of the outer call.
    """
    attributes: Any = getattr(span, "attributes", None)  # of the SDK: the API cannot read a span
    if not isinstance(attributes, Mapping) or not span.is_recording() or "agent_cache.tool" in attributes:
        return False
    if attributes.get("gen_ai.operation.name") == _EXECUTE or attributes.get("mcp.method.name") == "tools/call":
        return attributes.get("gen_ai.tool.name") in names
    if attributes.get("openinference.span.kind") == "TOOL":
        return attributes.get("tool.name") in names
    kind, _, tool = str(getattr(span, "name", "")).partition(" ")  # some set the attributes at the end
    return kind == _EXECUTE and tool in names


def _failed(failure: Exception) -> None:
    warn_once(
        "a provider, processor or exporter of OpenTelemetry raised, so spans or metrics are missing; calls go on",
        "agent_cache.otel",
        failure,
    )


# Spans of sessions


class _SessionSpan:
    """The span of a session, entered around it. It raises nothing."""

    def __init__(self, spans: _Spans, session: AgentCacheSession) -> None:
        self._spans = spans
        self._session = weakref.ref(session)  # which has this
        self._before: dict[str, Any] = {}
        self._running: _Running | None = None

    def __enter__(self) -> None:
        session = self._session()
        assert session is not None
        try:
            if session.metrics.calls:  # it was entered before, and its counters go on
                self._before = session.get_metrics()
            attributes = {"gen_ai.conversation.id": utf8_text(session.session_id)}
            span = self._spans.tracer.start_span("agent_cache.session", attributes=attributes)
            self._running = _Running(("", ""), span, is_own=True)
        except Exception as failure:  # noqa: BLE001 - a provider's or a processor's
            _failed(failure)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        session, running = self._session(), self._running
        if running is None or session is None:
            return
        span = running.span
        running.leave()
        try:
            try:
                if span.is_recording():
                    self._count(span, session.get_metrics())
                    if error is not None:
                        self._spans.set_error(span, error)
            finally:
                span.end()
        except Exception as failure:  # noqa: BLE001 - a processor's or an exporter's
            _failed(failure)

    def _count(self, span: Span, after: dict[str, Any]) -> None:
        before = self._before
        for name in _SUMS:
            span.set_attribute(f"agent_cache.{name}", after[name] - before.get(name, 0))
        tools = before.get("tools", {})
        hits = Counter({tool: row["hits"] - tools.get(tool, {}).get("hits", 0) for tool, row in after["tools"].items()})
        for tool, count in hits.most_common(_MAX_TOOLS_OF_SESSION):
            if count:
                span.set_attribute(f"agent_cache.hits_of.{utf8_text(tool)}", count)


# Metrics


class _Instruments:
    """The instruments of one meter provider.

    OpenTelemetry cannot take an instrument back. So a provider has them once, and they report nothing while no
    instrumentation uses them.
    """

    def __init__(self, meter: Meter) -> None:
        self.user: Instrumentation | None = None
        self._labels = ToolLabels()
        self._names = ToolLabels()
        self._families: dict[str, CounterFamily] = {}
        self._duration = meter.create_histogram(
            "gen_ai.execute_tool.duration",
            unit="s",
            description="Duration of the runs of a tool.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        for family in counter_families(ToolLabels()):
            observe = partial(self._observe, family.name)
            meter.create_observable_counter(family.name, [observe], family.unit, family.description)

    def record(self, running: _Running, error: BaseException | None) -> None:
        """Record the duration of a run, with its span as an example."""
        if self.user is None or not self.user.is_active:
            return
        tool = self._names.of(running.full)
        attributes = {
            "gen_ai.operation.name": _EXECUTE,
            "gen_ai.tool.name": running.short if tool == running.full else tool,
            "agent_cache.tool": tool,
        }
        if error is not None and not isinstance(error, GeneratorExit):
            attributes["error.type"] = utf8_text(type(error).__qualname__)
        self._duration.record(running.seconds, attributes, context=running.inner)

    def _observe(self, name: str, _options: CallbackOptions) -> list[Observation]:
        """The values of a counter, out of a snapshot that all counters of one collection share: the first one that is
        asked for again takes the next. Without a lock, which a fork would leave held in the child.
        """
        if self.user is None or not self.user.is_active:
            return []
        family = self._families.pop(name, None)
        if family is None:
            families = {family.name: family for family in counter_families(self._labels)}
            family = families.pop(name)
            self._families = families
        return [
            Observation(count, dict(zip(family.labels, labels, strict=True))) for labels, count in family.values.items()
        ]


_OF_PROVIDERS: dict[int, _Instruments] = {}
"""By the id of a provider, which goes with it: some have no hash, as Logfire's."""
_of_global: _Instruments | None = None
"""Those of the global provider, also from before it was set."""


def _instruments_of(provider: MeterProvider | None) -> _Instruments:
    global _of_global  # noqa: PLW0603 - there is one global provider
    current = metrics.get_meter_provider()
    key = current if provider is None else provider
    instruments = _OF_PROVIDERS.get(id(key)) or (_of_global if key is current else None)
    if instruments is None:
        instruments = _Instruments(metrics.get_meter(_NAME, version("agent-cache"), provider, SCHEMA_URL))
    if id(key) not in _OF_PROVIDERS:
        weakref.finalize(key, _OF_PROVIDERS.pop, id(key), None).atexit = False
    _OF_PROVIDERS[id(key)] = instruments
    if key is current:
        _of_global = instruments
    return instruments
