"""The parts of the Redis tier that need no server: replies, values, invalidations, settings."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("redis")

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from hypothesis import strategies as st

from agent_cache import AgentCache, AgentCacheInvalidator
from agent_cache.errors import ConfigurationError
from agent_cache.remote.redis.connection import OVERSIZED, Counters, Log, Replies, ReplyError, Unreachable, pack
from agent_cache.remote.redis.deployments import deployment_of_client, deployment_of_url
from agent_cache.remote.redis.keyspace import (
    BadValue,
    Header,
    Invalidations,
    Keyspace,
    messages,
    pack_header,
    read_header,
    topics_of,
    unpack_value,
    whole_of,
)
from agent_cache.remote.redis.subscriber import Report
from tests.harness.searches import searched

values = st.recursive(
    st.none() | st.integers(-(2**40), 2**40) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


def written(value: object) -> bytes:
    """A reply as a server writes it."""
    if value is None:
        return b"$-1\r\n"
    if isinstance(value, int):
        return b":%d\r\n" % value
    if isinstance(value, bytes):
        return b"$%d\r\n%b\r\n" % (len(value), value)
    assert isinstance(value, list)
    return b"*%d\r\n" % len(value) + b"".join(map(written, value))


@searched(15, 100, st.lists(values, max_size=5), st.lists(st.integers(1, 30) | st.just(1000), min_size=1, max_size=20))
def test_replies_are_the_same_however_they_are_cut(replies, sizes):
    data = b"".join(map(written, replies))
    parser, got, at, turn = Replies(1000), [], 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        got += parser.feed(data[at : at + size])
        at, turn = at + size, turn + 1
    assert got == replies


@pytest.mark.parametrize(
    "texts",
    [
        [b"a\r\n$1\r\nb", b"c", b"d"],
        [b"a", b"\r\n", b"c", b"d"],
        [b"a", None, b"$1", b"d"],
        [b"", b"$-1\r\n", b"", b""],
        [b"a", b"b" * 1000, [b"c", b"d"], 5],
        [b"a", b"b" * 70_000, b"c", b"d"],
    ],
)
def test_texts_of_a_list_are_read_by_their_lengths_whatever_lines_they_have(texts):
    data = written(texts)
    assert Replies(100_000).feed(data + data + b"+OK\r\n") == [texts, texts, b"OK"]
    for cut in range(1, len(data), max(1, len(data) // 100)):
        parser = Replies(100_000)
        assert parser.feed(data[:cut]) + parser.feed(data[cut:]) == [texts]


def test_a_list_that_says_to_be_endless_is_read_as_far_as_it_goes():
    parser = Replies(1000)
    assert parser.feed(b"*%d\r\n$1\r\na\r\n" % 10**30) == []


@searched(30, 100, st.integers(1, 500))
def test_what_is_too_long_is_skipped_without_being_kept(size):
    parser = Replies(10)
    data = b"*3\r\n" + written(b"a") + written(b"x" * (10 + size)) + written(b"b")
    got = []
    for at in range(0, len(data), 7):
        got += parser.feed(data[at : at + 7])
        assert len(parser._buffer) < 40
    assert got == [[b"a", OVERSIZED, b"b"]]


def test_errors_are_replies():
    (error,) = Replies(10).feed(b"-MOVED 7 127.0.0.1:1\r\n")
    assert isinstance(error, ReplyError)
    assert error.code == "MOVED"


def test_an_error_is_told_in_a_few_words():
    (error,) = Replies(10).feed(b"-ERR " + b"x" * 60_000 + b"\r\n")
    assert error.code == "ERR"
    assert len(str(error)) < 400
    assert len(str(Unreachable("x" * 60_000))) < 400


@pytest.mark.parametrize("data", [b"hello\r\n", b"$x\r\n", b"*x\r\n", b":x\r\n", b"x" * 100_000])
def test_what_is_not_the_protocol_is_an_error(data):
    with pytest.raises(ValueError):
        Replies(10).feed(data)


def test_a_command_is_packed_by_lengths():
    assert pack(b"SET", b"", b"a\r\nb") == b"*3\r\n$3\r\nSET\r\n$0\r\n\r\n$4\r\na\r\nb\r\n"


CELLS = {b"t:{ns:a b}:S": b"id 1", b"t:{ns:order}:T0": b"id 2"}


@searched(
    15,
    100,
    st.dictionaries(
        st.binary(min_size=1, max_size=9).filter(lambda key: b"\n" not in key), st.just(b"id x"), min_size=1
    ),
    st.floats(0, 1e11),
    st.binary(max_size=30),
    st.binary(max_size=30),
)
def test_a_value_comes_back_as_it_was(cells, loaded, late, payload):
    header = Header(cells, loaded, 60.0, 5.0, 0.5, late)
    head = pack_header(header)
    assert unpack_value(head + payload) == (header, head, payload)


@searched(30, 100, st.data())
def test_a_damaged_value_is_bad_or_says_something_else(data):
    good = pack_header(Header(CELLS, 100.0, 60.0, 0.0, 0.5, b"")) + b"payload"
    at = data.draw(st.integers(0, len(good) - 1))
    bad = data.draw(
        st.sampled_from([good[:at], good[:at] + bytes([good[at] ^ 1 << data.draw(st.integers(0, 7))]) + good[at + 1 :]])
    )
    try:
        unpack_value(bad)
    except BadValue:
        pass


@searched(30, 100, st.binary(max_size=200))
def test_junk_is_bad_and_nothing_else(junk):
    try:
        unpack_value(junk)
    except BadValue:
        pass
    assert read_header(junk, b"x id 1") is None or b"x id 1" in junk


def test_the_short_look_agrees_with_the_long_one():
    cells = b"\n".join(key + b" " + version for key, version in CELLS.items())
    value = pack_header(Header(CELLS, 100.0, 60.0, 0.0, 0.5, b"")) + b"payload"
    loaded, ttl, cost, start = read_header(value, cells)
    assert (loaded, ttl, cost, value[start:]) == (100.0, 60.0, 0.5, b"payload")
    assert read_header(value, cells[:-1] + b"3") is None
    assert read_header(value, cells[:-1]) is None
    late = pack_header(Header(CELLS, 100.0, 60.0, 0.0, 0.5, b"x")) + b"payload"
    assert read_header(late, cells) is None
    for header in (Header(CELLS, float("nan"), 60.0, 0.0, 0.5, b""), Header(CELLS, 1.0, float("inf"), 0.0, 0.5, b"")):
        assert read_header(pack_header(header), cells) is None
        with pytest.raises(BadValue):
            unpack_value(pack_header(header))


paths = st.lists(st.sampled_from(["order", "order:7", "order:8", "user", "user:7"]), min_size=1, max_size=3)


@searched(30, 100, paths, paths, st.booleans())
def test_a_write_is_published_where_whoever_depends_on_it_listens(read, written, names_entry):
    """To the whole root, or to its parts."""
    keyspace = Keyspace("ns")
    depends_on = {cell: root for tag in read for cell, root in keyspace.cells_read(tag).items()}
    home = keyspace.root("order")
    depends_on[home.cell(b"K1")] = home
    moved = {home.cell(b"K1"): home} if names_entry else keyspace.cells_written(written)
    topics = topics_of(depends_on)
    parts = {part for topic in topics for part in (topic, whole_of(topic) + b":*") if topic != whole_of(topic)}
    for root in set(moved.values()):
        own = [cell for cell in moved if moved[cell] == root]
        sent = messages(b"me", b"B", root, own)
        channels, texts = set(sent[::2]), sent[1::2]
        assert root.channel in channels
        assert all(text.startswith(b"me B ") for text in texts)
        if any(cell in depends_on for cell in own):
            assert channels & {whole_of(topic) for topic in topics}
            assert channels & (parts | {topic for topic in topics if topic == whole_of(topic)})


def test_what_is_pruned_reads_as_touched(monkeypatch):
    monkeypatch.setattr("agent_cache.remote.redis.keyspace._MAX_CELLS", 3)
    invalidations = Invalidations(Counters(), Log("tier"))
    before = invalidations.now
    invalidations.add([b"a"])
    since = invalidations.now
    assert not invalidations.is_valid([b"a"], before)
    assert invalidations.is_valid([b"a"], since)
    invalidations.add([b"b", b"c", b"d"])
    assert not invalidations.is_valid([b"z"], since)
    assert invalidations.is_valid([b"a"], invalidations.now)


def test_after_a_loss_everything_is_touched():
    invalidations = Invalidations(Counters(), Log("tier"))
    since = invalidations.now
    invalidations.add_all()
    assert not invalidations.is_valid([], since)
    assert invalidations.is_valid([], invalidations.now)


@pytest.mark.parametrize(
    ("client", "kind", "transport", "seed"),
    [
        (redis.Redis(host="a", port=1), "single", "tcp", ("a", 1)),
        (redis.asyncio.Redis(host="a", port=1, ssl=True), "single", "tls", ("a", 1)),
        (redis.Redis.from_url("rediss://me:pw@a:1/2?ssl_check_hostname=false"), "single", "tls", ("a", 1)),
        (redis.Redis(unix_socket_path="redis.sock"), "single", "unix", ("redis.sock", 0)),
        (redis.asyncio.sentinel.Sentinel([("s", 2)]).master_for("shop", ssl=True), "sentinel", "tls", ("s", 2)),
        (redis.sentinel.Sentinel([("s", 2)]).master_for("shop"), "sentinel", "tcp", ("s", 2)),
        (redis.asyncio.RedisCluster(host="127.0.0.1", port=3), "cluster", "tcp", ("127.0.0.1", 3)),
        (redis.asyncio.RedisCluster(host="127.0.0.1", port=3, ssl=True), "cluster", "tls", ("127.0.0.1", 3)),
    ],
)
def test_a_client_is_read_for_its_settings(client, kind, transport, seed):
    deployment = deployment_of_client(client)
    assert (deployment.kind, deployment.transport, deployment.seeds[0]) == (kind, transport, seed)


class Traced(redis.asyncio.SSLConnection):
    """As people make them to watch their connections."""


class TracedPlain(redis.asyncio.Connection):
    pass


class Foreign:
    pass


@pytest.mark.parametrize(("kind", "transport"), [(Traced, "tls"), (TracedPlain, "tcp")])
def test_a_class_of_connections_that_is_derived_keeps_what_it_goes_over(kind, transport):
    """Else a password went in clear to where TLS was asked for."""
    pool = redis.asyncio.ConnectionPool(connection_class=kind, host="a", password="pw")
    assert deployment_of_client(redis.asyncio.Redis(connection_pool=pool)).transport == transport


def test_connections_of_nobody_knows_what_kind_are_refused():
    pool = redis.asyncio.ConnectionPool(connection_class=Foreign, host="a")
    with pytest.raises(ConfigurationError, match="Foreign is none of"):
        deployment_of_client(redis.asyncio.Redis(connection_pool=pool))


def test_credentials_and_tls_settings_are_taken_over_and_timeouts_are_not():
    client = redis.Redis.from_url(
        "rediss://me:pw@a:1/2?ssl_check_hostname=false&socket_timeout=99&health_check_interval=5"
    )
    assert deployment_of_client(client).settings == {
        "username": "me", "password": "pw", "db": 2, "ssl_check_hostname": False
    }  # fmt: skip
    options = {"client_name": "x"}
    assert deployment_of_url("redis://a", cluster=False, options=options).settings == options


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"pasword": "hunter2"}, "mean password"),
        ({"max_stalenes": 0.1}, "mean max_staleness"),
        ({"sssl": True}, "mean ssl"),
        ({"socket_timeout": 9}, "timeouts"),
        ({"max_connections": 2}, "connections"),
        ({"decode_responses": True}, "of its own"),
        ({"ssl_ca_certs": "ca.pem"}, "without TLS"),
        ({"ssl": "no"}, "ssl="),
        ({"qqqq": 1}, "no effect$"),
    ],
)
def test_a_setting_that_would_have_no_effect_is_refused(options, reason):
    with pytest.raises(ConfigurationError, match=reason) as refused:
        deployment_of_url("redis://a", cluster=False, options=options)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["redis://a?pasword=hunter2", "redis://a?ssl=true", "redis://a?ssl_ca_certs=x", "rediss://a?ssl_nonsense=1"]
)
def test_a_parameter_that_nobody_knows_is_refused(url):
    with pytest.raises(ConfigurationError) as refused:
        deployment_of_url(url, cluster=False, options={})
    assert "hunter2" not in str(refused.value)


def test_what_other_clients_have_from_a_url_is_ignored():
    url = "redis://me:p%40ss@a:1/2?socket_timeout=9&max_connections=3&protocol=3&client_name=x@y"
    deployment = deployment_of_url(url, cluster=False, options={})
    assert deployment.settings == {"username": "me", "password": "p@ss", "db": 2, "client_name": "x@y"}


def test_tls_is_asked_for_by_the_url_or_beside_it():
    for url, options in (("rediss://a", {}), ("redis://a", {"ssl": True}), ("rediss://a", {"ssl": True})):
        deployment = deployment_of_url(url, cluster=False, options=options)
        assert deployment.transport == "tls"
    assert deployment_of_url("redis://a", cluster=False, options={"ssl": False}).transport == "tcp"
    for url, on in (("rediss://a", False), ("unix:///x", True)):
        with pytest.raises(ConfigurationError, match="ssl="):
            deployment_of_url(url, cluster=False, options={"ssl": on})


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis://h?password=hunter2&socket_timeout=abc", "redis://h cannot be read: the value of socket_timeout"),
        ("redis://user:hun/ter2@h", "the URL cannot be read: the characters / "),
        ("redis://hun/ter2@h:1", "the URL cannot be read: the characters / "),
        ("redis://:hun#ter2@h", "the URL cannot be read: the characters / "),
        ("redis://hun#ter2@h", "the URL cannot be read: the characters / "),
        ("redis://:hunter2", "the URL cannot be read: the port"),
        ("redis://u:hunter2@h:99999", "redis://h cannot be read: the port"),
        ("redis://u:hunter2@h/abc", "redis://h cannot be read: the database"),
        ("redis://u:hunter2@[h", "the URL cannot be read: its host"),
        ("redis+sentinel://u:hunter2@h", "the URL cannot be read: it must begin"),
        ("hunter2", "the URL cannot be read: it must begin"),
        (b"redis://:hunter2@h", "the URL cannot be read: it is no text"),
    ],
)
def test_a_url_that_cannot_be_read_is_told_without_its_secrets(url, told):
    with pytest.raises(ConfigurationError) as refused:
        deployment_of_url(url, cluster=False, options={})
    assert str(refused.value).startswith(f"RedisTier.from_url: {told}")
    assert not any(part in str(refused.value) for part in ("hunter2", "hun", "ter2"))


async def test_a_heartbeat_reports_the_roots_that_were_read_and_no_others(clock):
    """Every process decorates all tools; an operator sees those that it uses."""

    @AgentCache("order:{id}")
    async def get_order(id: str) -> str:
        return id

    @AgentCacheInvalidator("written:{id}")
    async def change(id: str) -> None: ...

    @AgentCache("idle:{id}")
    async def idle(id: str) -> str:
        return id

    for _ in range(3):
        await get_order("7")
        await change("7")
    assert json.loads(Report().text()) == {"order": [2, 1, 0]}
