"""Spans and metrics of OpenTelemetry, collected in memory by its SDK."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class _Meters(MeterProvider):
    __hash__ = None  # as Logfire's has none


class Telemetry:
    """Providers of the SDK, and what was exported by them.

    Args:
        sampler: decides which spans are recorded; all if left out.

    Attributes:
        tracers, meters: the providers.
    """

    def __init__(self, sampler: Any = None) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracers = TracerProvider(shutdown_on_exit=False, **({} if sampler is None else {"sampler": sampler}))
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meters = _Meters([self._reader], shutdown_on_exit=False)

    def close(self) -> None:
        self.tracers.shutdown()
        self.meters.shutdown()

    def spans(self, name: str | None = None, **attributes: Any) -> list[ReadableSpan]:
        """The finished spans with this name and these attributes (``__`` for ``.``), by their start."""
        wanted = {key.replace("__", "."): value for key, value in attributes.items()}
        return sorted(
            (
                span
                for span in self._exporter.get_finished_spans()
                if (name is None or span.name == name)
                and all((span.attributes or {}).get(key) == value for key, value in wanted.items())
            ),
            key=lambda span: (span.start_time, span.end_time),
        )

    def span(self, name: str, **attributes: Any) -> ReadableSpan:
        """The one span with this name and these attributes."""
        (found,) = self.spans(name, **attributes)
        return found

    def clear(self) -> None:
        """Forget the spans."""
        self._exporter.clear()

    def tree(self) -> list[Any]:
        """All spans as nested lists: the name and the source of each, then what is inside of it."""
        spans = self.spans()
        ids = {span.context.span_id for span in spans}

        def inside(parent: int | None) -> Iterator[Any]:
            for span in spans:
                above = span.parent.span_id if span.parent is not None and span.parent.span_id in ids else None
                if above == parent:
                    source = (span.attributes or {}).get("agent_cache.source")
                    yield [span.name if source is None else f"{span.name} {source}", *inside(span.context.span_id)]

        return list(inside(None))

    def points(self, name: str) -> dict[tuple[tuple[str, Any], ...], Any]:
        """The data points of a metric by their attributes: values, and counts of a histogram."""
        found: dict[tuple[tuple[str, Any], ...], Any] = {}
        for metric in self.metrics():
            if metric.name == name:
                for point in metric.data.data_points:
                    key = tuple(sorted(point.attributes.items()))
                    assert key not in found, f"{name} has {key} twice"
                    found[key] = point.value if hasattr(point, "value") else point.count
        return found

    def metrics(self) -> list[Any]:
        """All metrics that are exported now."""
        data = self._reader.get_metrics_data()
        if data is None:
            return []
        return [
            metric for resource in data.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics
        ]
