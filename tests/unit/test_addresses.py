"""The address of a tier as a text."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent_cache import ConfigurationError
from agent_cache.remote import FileTier, from_url
from tests.harness.processes import run_python


async def test_a_url_of_a_file_is_relative_with_three_slashes_and_absolute_with_four(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for url, name in (
        ("sqlite:///near.db", "near.db"),
        (f"sqlite:///{tmp_path}/far.db", "far.db"),
        ("sqlite:///~/home.db", "home.db"),
        ("SQLite:///50%20percent.db", "50%20percent.db"),
    ):
        async with from_url(url) as tier:
            assert isinstance(tier, FileTier)
            assert tier.path == Path(os.path.realpath(tmp_path)) / name
            assert (tmp_path / name).is_file()
    async with from_url("sqlite:///near.db", lease=3.0) as tier:
        assert tier.lease == 3.0
    with pytest.raises(ConfigurationError, match="namespace must be a short text"):
        from_url("sqlite:///near.db", namespace="a b")


async def test_a_url_of_a_server_makes_a_tier_on_it():
    pytest.importorskip("redis")
    from agent_cache.remote import RedisTier

    for url in ("redis://cache.internal/0", "rediss://cache.internal", "unix:///run/valkey.sock"):
        tier = from_url(url, max_staleness=2.0)  # it connects to nothing
        assert isinstance(tier, RedisTier)
        assert tier.max_staleness == 2.0


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://me:secret@host", "it must begin with redis://"),
        ("cache.db", "it must begin with redis://.* or sqlite:///"),
        (None, "it must begin with redis://"),
        ("sqlite://me:secret@host/cache.db", "a path and nothing else: sqlite:///relative.db"),
        ("sqlite://", "a path and nothing else"),
        ("sqlite:///", "a path and nothing else"),
        ("sqlite:///cache.db?mode=secret", "a path and nothing else"),
        ("sqlite:///:memory:", "path of a file"),
    ],
)
def test_any_other_url_is_refused_with_the_schemes_that_there_are(url, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=says) as raised:
        from_url(url)
    assert "secret" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_a_program_without_a_file_does_not_load_sqlite():
    script = "import sys, agent_cache, agent_cache.remote; print('sqlite3' in sys.modules, 'redis' in sys.modules)"
    assert run_python(script) == "False False\n"
