"""Nothing acknowledged is lost: processes killed and stopped on real Ray while a publisher runs, then everything
restarted.

The publisher keeps only what its callbacks said, and the log is read through a fresh client, so the check stands
outside the system.
"""

import pytest

import magnetar
from magnetar.protocol.names import COORDINATOR_ID
from support.clients.partitions import create_partitioned
from support.clients.workload import Publisher, check_history, read_log
from support.servers import ray_nodes

SESSION_TIMEOUT_S = 3.0
PAST_THE_SESSION_S = SESSION_TIMEOUT_S + 1.5


def keep(cluster, topic):
    """A durable subscription, without which a topic keeps nothing."""
    client = cluster.client()
    client.subscribe(topic, "keeper", initial_position=magnetar.InitialPosition.Earliest).close()
    client.close()


def past_the_session():
    import time

    time.sleep(PAST_THE_SESSION_S)  # the fault itself: a process stopped for longer than its session lasts


@pytest.mark.promise("1.6", "29.4", "29.6")
def test_nothing_acknowledged_is_lost(harmed, start_cluster):
    cluster = harmed
    directory = cluster.status()["data_directory"]
    create_partitioned(cluster, "orders", 4)
    keep(cluster, "orders")
    with Publisher(cluster.service_url, "orders") as publisher:
        publisher.wait_for(2000)
        for node in ("broker-1", "bookie-1", COORDINATOR_ID):
            old = ray_nodes.kill(node)
            publisher.wait_for(1000)
            ray_nodes.wait_new_process(node, old)
            publisher.wait_for(1000)
        for node in ("broker-2", "bookie-2", COORDINATOR_ID):
            with ray_nodes.Stopped(node):
                past_the_session()
            publisher.wait_for(1000)
        history = publisher.history
    client = cluster.client()
    found = check_history(history, read_log(client, "orders"))
    client.close()
    assert found["messages"] >= 9000

    cluster.stop()
    again = start_cluster(directory)
    client = again.client()
    assert check_history(history, read_log(client, "orders")) == found
    client.close()


@pytest.mark.promise("1.6")
def test_everything_killed_at_once_and_restarted(harmed):
    cluster = harmed
    keep(cluster, "payments")
    publisher = Publisher(cluster.service_url, "payments", send_timeout_millis=60_000)
    with publisher:
        publisher.wait_for(1000)
        for node in (COORDINATOR_ID, "bookie-1", "bookie-2", "bookie-3", "broker-1", "broker-2"):
            ray_nodes.kill(node)
        publisher.wait_for(500, timeout_s=60)
    client = cluster.client()
    check_history(publisher.history, read_log(client, "payments"))
    client.close()


def test_a_coordinator_that_was_stopped_goes_on_with_the_sessions_it_had(start_cluster, tmp_path):
    """Found by chaos, seed 7: its members had given it up, and every living broker lost its session and its topics.

    Its cluster is new: where a broker came back before, topics may move to it meanwhile.
    """
    cluster = start_cluster(tmp_path / "data")
    create_partitioned(cluster, "orders", 4)
    keep(cluster, "orders")
    before = members(cluster)
    assert sum(topics for _, topics in before.values()) == 4
    with ray_nodes.Stopped(COORDINATOR_ID):
        past_the_session()
    past_the_session()  # by when whoever had not come back would have been ended
    assert members(cluster) == before


def members(cluster):
    """Incarnation and number of topics of every broker and bookie."""
    found = cluster.status()["members"]
    return {one["id"]: (one["incarnation"], one["topics"]) for one in found if one["role"] in ("broker", "bookie")}
