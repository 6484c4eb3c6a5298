"""The harness itself: clusters and sentinels that lose their primaries and get others, as a real client sees it."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.harness import sentinels
from tests.harness.clusters import Cluster, slot_of
from tests.harness.sentinels import Sentinel

redis = pytest.importorskip("redis")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def test_a_cluster_is_three_primaries_with_a_replica_each(cluster: Cluster):
    assert len(cluster.primaries) == 3
    assert [len(cluster.replicas_of(primary)) for primary in cluster.primaries] == [1, 1, 1]
    assert {cluster.primary_for(key).port for key in "abcdefgh"} == {primary.port for primary in cluster.primaries}


def test_a_client_of_the_cluster_reads_what_it_wrote_on_the_node_that_answers_for_the_key(cluster: Cluster):
    with redis.RedisCluster.from_url(cluster.url, decode_responses=True) as client:
        for key in "abcdefgh":
            client.set(key, key.upper())
            assert client.get(key) == key.upper()
            assert cluster.primary_for(key).command("GET", key) == key.upper()


def test_sharded_publish_reaches_the_subscribers_of_the_slot_s_node(cluster: Cluster):
    node = cluster.primary_for("{order}")
    with node.client() as client, client.pubsub() as subscription:
        subscription.ssubscribe("{order}")
        assert subscription.get_sharded_message(timeout=10)["type"] == "ssubscribe"
        assert node.command("SPUBLISH", "{order}", "news") == 1
        assert subscription.get_sharded_message(timeout=10)["data"] == "news"


@pytest.mark.parametrize("how", ["key by key", "atomically"])
def test_a_slot_moves_with_its_keys(cluster: Cluster, how: str):
    source = cluster.primary_for("{order}")
    for number in range(25):
        source.command("SET", f"{{order}}:{number}", number)
    target = cluster.another_than(source)
    if how == "atomically":
        cluster.move_slot_atomically(slot_of("{order}"), target)
    else:
        assert list(cluster.move_slot(slot_of("{order}"), target)) == [0, 10, 20, 25]
    cluster.wait_until_ok()
    assert cluster.primary_for("{order}") is target
    assert sorted(map(int, target.command("MGET", *(f"{{order}}:{number}" for number in range(25))))) == list(range(25))


def test_failover_and_failback_keep_what_was_written_and_change_the_replication_id(own_cluster: Cluster):
    first = own_cluster.primary_for("key")
    first.command("SET", "key", "value")
    process, identity = first.info("server")["run_id"], first.info("replication")["master_replid"]

    second = own_cluster.failover(first)
    assert own_cluster.primary_for("key") is second
    assert own_cluster.replicas_of(second) == [first]
    assert second.command("GET", "key") == "value"
    assert second.info("replication")["master_replid"] != identity

    assert own_cluster.failover(second) is first
    assert own_cluster.primary_for("key") is first
    # The same process as before under another identity: why the run id names nothing.
    assert first.info("server")["run_id"] == process
    assert first.info("replication")["master_replid"] != identity


def test_a_killed_primary_is_replaced_and_returns_as_a_replica(own_cluster: Cluster):
    first = own_cluster.primary_for("key")
    heir = own_cluster.kill(first)
    assert heir is not None
    assert own_cluster.primary_for("key") is heir
    heir.command("SET", "key", "value")
    first.restart(empty=True)
    own_cluster.wait_until_ok()
    assert own_cluster.replicas_of(heir) == [first]
    assert own_cluster.primary_for("key") is heir


@pytest.mark.parametrize("how", ["failover", "kill"])
def test_a_sentinel_puts_a_replica_in_the_primary_s_place(own_sentinel: Sentinel, how: str):
    first = own_sentinel.primary
    second = getattr(own_sentinel, how)()
    assert second is not first
    assert second in own_sentinel.nodes
    watched = redis.Sentinel([own_sentinel.address], decode_responses=True)
    with ExitStack() as opened:
        for each in watched.sentinels:
            opened.enter_context(each)
        client = opened.enter_context(watched.master_for(sentinels.NAME))
        assert client.set("key", "value")
    assert second.command("GET", "key") == "value"
