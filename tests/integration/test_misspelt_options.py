"""An option that does not exist, or one that is missing, is a `ConfigurationError` that names those there are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_cache import (
    AgentCache,
    AgentCacheInvalidator,
    AgentCacheSession,
    ConfigurationError,
    LoopHints,
    Read,
    Toolbox,
    configure,
    get_metrics,
    remote,
    tags_from,
)
from agent_cache.remote import FileTier

MISSPELT: dict[str, tuple[Callable[[], object], str, str]] = {
    "AgentCache": (lambda: AgentCache("order", tttl=5), "tttl", "ttl"),  # type: ignore[call-arg]
    "Read": (lambda: Read("order", tttl=5), "tttl", "ttl"),  # type: ignore[call-arg]
    "Toolbox": (lambda: Toolbox(namespace="shop", hint="kind"), "hint", "hints"),  # type: ignore[call-arg]
    "AgentCacheSession": (lambda: AgentCacheSession(tenants="acme"), "tenants", "tenant"),  # type: ignore[call-arg]
    "configure": (lambda: configure(enable=False), "enable", "enabled"),  # type: ignore[call-arg]
    "tags_from": (lambda: tags_from("order", functions=len), "functions", "function"),  # type: ignore[call-arg]
    "LoopHints": (lambda: LoopHints(polls=True), "polls", "poll"),  # type: ignore[call-arg]
    "FileTier": (lambda: FileTier("cache.db", time_out=1), "time_out", "timeout"),  # type: ignore[call-arg]
    "RedisTier": (lambda: remote.RedisTier("redis://localhost", name_space="x"), "name_space", "namespace"),  # type: ignore[call-arg]
}

MISSING: dict[str, tuple[Callable[[], object], str]] = {
    "AgentCache": (lambda: AgentCache(ttl=5), "resource"),  # type: ignore[call-arg]
    "Toolbox": (lambda: Toolbox({"get": Read("order")}), "namespace"),  # type: ignore[call-arg]
    "FileTier": (lambda: FileTier(), "path"),  # type: ignore[call-arg]
}


@pytest.mark.parametrize("name", MISSPELT)
def test_a_misspelt_option_is_named_beside_those_there_are(name: str, tmp_path: Path, monkeypatch: Any):
    if name == "RedisTier":
        pytest.importorskip("redis")
    monkeypatch.chdir(tmp_path)
    make, misspelt, meant = MISSPELT[name]
    with pytest.raises(ConfigurationError) as caught:
        make()
    text = str(caught.value)
    assert text.startswith(name)
    assert repr(misspelt) in text
    assert meant in text.replace(repr(misspelt), "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", MISSING)
def test_what_is_missing_is_named(name: str):
    make, missing = MISSING[name]
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert str(caught.value).startswith(name)
    assert missing in str(caught.value)


def test_too_many_arguments_by_position_are_refused_likewise():
    with pytest.raises(ConfigurationError, match=r"AgentCache.*positional"):
        AgentCache("order", "global", 5, 128, 0, None, None, "one too many")  # type: ignore[misc]


def test_an_error_of_the_users_own_code_stays_what_it_is():
    class Rules(dict[str, Any]):
        def items(self) -> Any:
            raise TypeError("a mapping of somebody's")

        def keys(self) -> Any:
            raise TypeError("a mapping of somebody's")

        __iter__ = keys

    with pytest.raises(TypeError, match="somebody's") as caught:
        Toolbox(Rules(get=Read("order")), namespace="shop")
    assert not isinstance(caught.value, ConfigurationError)


@pytest.mark.parametrize("decorator", [AgentCache, AgentCacheInvalidator])
@pytest.mark.parametrize("name", [5, [], b"order", "", type(None), object()])
def test_a_name_is_a_text(decorator: Any, name: Any):
    with pytest.raises(ConfigurationError) as caught:
        decorator("order", name=name)
    assert decorator.__name__ in str(caught.value)
    assert "name" in str(caught.value)
    assert get_metrics()["tools"] == {}, "the counters can be read"
