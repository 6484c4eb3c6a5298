"""A collector for `prometheus_client`: everything that `get_metrics` counts, read when Prometheus asks.

Needs ``pip install "agent-cache[prometheus]"``. Calls pay nothing for it: the counters are there anyway, and a scrape
reads them.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent_cache.metrics import CounterFamily, ToolLabels, counter_families

try:
    from prometheus_client.core import CounterMetricFamily
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError(
        'agent_cache.prometheus needs prometheus_client: pip install "agent-cache[prometheus]"'
    ) from error

__all__ = ["collector"]


def collector() -> Collector:
    """A collector of the counters of this process, for a registry: ``REGISTRY.register(collector())``.

    Its counters and their labels are those of `agent_cache.otel`, whose ``agent_cache.time_saved`` is
    ``agent_cache_time_saved_seconds_total`` here.

    No label is an id: the first 1,000 tools have series of their own, later ones share ``tool="(others)"``.
    Invalidations without a tool, by `invalidate` and `writing`, have ``tool="(no tool)"``.

    Each process has counters of its own. The multiprocess mode of `prometheus_client` reads no collectors: let every
    worker serve its own endpoint. One collector belongs into one registry: a second one there is refused by the
    registry, with a `ValueError`.
    """
    return _Collector()


class _Collector(Collector):
    def __init__(self) -> None:
        self._labels = ToolLabels()

    def describe(self) -> Iterator[CounterMetricFamily]:
        """The families without samples, by which a registry finds that it has them twice."""
        return map(_empty, counter_families(ToolLabels()))

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The families as they are now, all from one snapshot."""
        for counted in counter_families(self._labels):
            family = _empty(counted)
            for labels, count in counted.values.items():
                family.add_metric(labels, count)
            yield family


def _empty(counted: CounterFamily) -> CounterMetricFamily:
    name = counted.name.replace(".", "_") + ("_seconds" if counted.unit == "s" else "")
    return CounterMetricFamily(name, counted.description, labels=counted.labels)
