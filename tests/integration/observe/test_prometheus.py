"""The collector behind an endpoint of `prometheus_client`, scraped over HTTP, and the dashboard over what is there."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("prometheus_client", reason='pip install "agent-cache[prometheus]" brings it')

from prometheus_client import REGISTRY, CollectorRegistry, start_http_server
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

import agent_cache
from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession, get_metrics, prometheus, testing
from tests.harness import page_examples

PAGE = "how-to/export-metrics-and-spans.md"
DASHBOARD = Path(__file__).parents[3] / "docs" / "assets" / "grafana-dashboard.json"


@AgentCache("prom_order:{order_id}")
async def get_order(order_id: str) -> str:
    await asyncio.sleep(0)
    return f"order {order_id}"


@AgentCacheInvalidator("prom_order:{order_id}")
async def cancel_order(order_id: str) -> None:
    return None


@AgentCache("prom_rate")
async def get_rate(currency: str) -> float:
    raise LookupError(currency)


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    testing.reset()
    yield
    testing.reset()


@pytest.fixture
def registry() -> CollectorRegistry:
    made = CollectorRegistry()
    made.register(prometheus.collector())
    return made


@pytest.fixture
def scrape(registry: CollectorRegistry) -> Iterator[Callable[[], dict[str, list[Sample]]]]:
    """Read the endpoint, and give the samples of each series by their name."""
    server, thread = start_http_server(0, "127.0.0.1", registry)
    url = f"http://127.0.0.1:{server.server_port}/metrics"

    def scrape() -> dict[str, list[Sample]]:
        found: dict[str, list[Sample]] = {}
        with urllib.request.urlopen(url, timeout=100) as answer:
            for family in text_string_to_metric_families(answer.read().decode()):
                for sample in family.samples:
                    found.setdefault(sample.name, []).append(sample)
        return found

    yield scrape
    server.shutdown()
    server.server_close()
    thread.join()


async def use_everything() -> None:
    """Every source, an error, an explicit invalidation, a loop and the notice before it."""
    await get_order("1")
    await get_order("1")
    await asyncio.gather(get_order("2"), get_order("2"))
    await cancel_order("1")
    with agent_cache.bypass():
        await get_order("1")
    with pytest.raises(LookupError):
        await get_rate("EUR")
    await agent_cache.invalidate("prom_order:9")
    async with AgentCacheSession(on_loop="warn"):
        for _ in range(9):
            await get_order("3")


async def test_a_scrape_gives_what_get_metrics_counts(scrape):
    await use_everything()
    found, counted = scrape(), get_metrics()
    requests = {
        (one.labels["tool"].partition(":")[2], one.labels["source"]): one.value
        for one in found["agent_cache_requests_total"]
    }
    assert requests.pop(("get_rate", "hit")) == 0  # so a tool that never was a hit has a rate
    assert {key: value for key, value in requests.items() if value} == {
        ("get_order", "hit"): 9, ("get_order", "miss"): 3, ("get_order", "shared"): 1, ("get_order", "uncached"): 1,
        ("cancel_order", "write"): 1, ("get_rate", "miss"): 1,
    }  # fmt: skip
    for name in ("errors", "evictions", "invalidations", "stale"):
        samples = found[f"agent_cache_{name}_total"]
        assert sum(one.value for one in samples) == counted[name]
        for one in samples:
            if one.labels["tool"] != "(no tool)":
                assert one.value == counted["tools"][one.labels["tool"]][name]
    saved = sum(one.value for one in found["agent_cache_time_saved_seconds_total"])
    assert saved == pytest.approx(counted["time_saved"])
    (no_tool,) = [one for one in found["agent_cache_invalidations_total"] if one.labels["tool"] == "(no tool)"]
    assert no_tool.value == 1
    for name in ("loops", "loop_notices"):
        kinds = {one.labels["kind"]: one.value for one in found[f"agent_cache_{name}_total"]}
        assert kinds == counted[name] != {}
    assert [one.value for one in found["agent_cache_callback_errors_total"]] == [0]


@pytest.mark.parametrize(("code", "output"), page_examples.examples(PAGE, "prometheus_client"))
def test_the_example_of_the_page_prints_what_the_page_says(code, output, capsys):
    names: dict[str, Any] = {"__name__": __name__}
    try:
        page_examples.run(code, names)
    finally:
        REGISTRY.unregister(names["counters"])
        names["server"].shutdown()
        names["server"].server_close()
        names["thread"].join()
    assert capsys.readouterr().out == output


def test_what_compose_starts_knows_the_dashboard_and_its_own_files():
    """Docker is not needed: the files that it would mount are there, and are what each program reads."""
    yaml = pytest.importorskip("yaml")
    composed = yaml.safe_load(DASHBOARD.with_name("compose.yaml").read_text("utf-8"))
    services = composed["services"]
    inside = {name: yaml.safe_load(one["content"]) for name, one in composed["configs"].items()}
    used = [config["source"] for service in services.values() for config in service.get("configs", ())]
    assert sorted(used) == sorted(inside)
    (mounted,) = services["grafana"]["volumes"]
    source, target, _ = mounted.split(":")
    assert (DASHBOARD.parent / source).resolve() == DASHBOARD
    assert services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == target
    assert target.startswith(inside["dashboards"]["providers"][0]["options"]["path"])
    assert inside["datasources"]["datasources"][0]["type"] == "prometheus"
    assert all(port.startswith("127.0.0.1:") for service in services.values() for port in service["ports"])


async def test_the_dashboard_shows_every_counter_and_no_other(registry: CollectorRegistry):
    await use_everything()
    exported = {sample.name for family in registry.collect() for sample in family.samples}
    assert set(re.findall(r"agent_cache_\w+_total", DASHBOARD.read_text("utf-8"))) == exported
