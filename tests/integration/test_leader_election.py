"""Leader election on real Ray: the broker of the log is killed while its leader is stopped."""

import json
import threading
import urllib.request

import pytest

import magnetar
from support.clients.leader import LeaderProcess, check_log
from support.nodes.owning import owner
from support.servers import ray_nodes

TOPIC = "leaders"


def waiting(cluster):
    """How many producers wait for access."""
    path = f"/admin/v2/persistent/public/default/{TOPIC}/stats"
    with urllib.request.urlopen(cluster.admin_url + path, timeout=20) as answer:
        return json.load(answer)["waitingPublishers"]


@pytest.mark.promise("4.6")
def test_the_next_one_takes_over_when_the_leader_stands_still_and_its_broker_dies(harmed):
    """The old leader goes on later: it is fenced, and none of its messages lies behind those of the new one."""
    cluster = harmed
    client = cluster.client()
    client.subscribe(TOPIC, "keep").close()
    elected = []
    with LeaderProcess(cluster.service_url, TOPIC) as leader:
        leader.wait_for(1)

        def wait_for_access():
            wait = magnetar.ProducerAccessMode.WaitForExclusive
            elected.append(client.create_producer(TOPIC, producer_name="next", access_mode=wait))

        election = threading.Thread(target=wait_for_access, daemon=True)
        election.start()
        ray_nodes.wait_until(lambda: waiting(cluster) == 1, "the next one waits")
        leader.wait_for(50)
        leader.stop()
        ray_nodes.kill(owner(cluster, TOPIC))
        election.join(60)
        assert elected, "nobody took over"
        elected[0].send(b"elected")
        leader.go_on()
        leader.wait_for_end()
    assert leader.fenced
    reader = client.create_reader(TOPIC, magnetar.MessageId.earliest)
    log = []
    while reader.has_message_available():
        log.append(reader.read_next(30_000).data())
    check_log(log, leader.acknowledged, b"elected")
    client.close()
