"""Which broker owns a topic, and topics that a broker of a given node owns."""

import json
import urllib.request

import magnetar
from magnetar.cluster.handle import Cluster
from support.clients.partitions import create_partitioned

from .network import Host
from .ray_hosts import NodesCluster

TOPICS_MAX = 200
"""Of so many new topics one is a given broker's, if it owns any slots."""


def owner(cluster: Cluster, topic: str) -> str:
    """The broker that owns a topic or partition, by its id."""
    url = f"{cluster.admin_url}/lookup/v2/topic/persistent/public/default/{topic}"
    with urllib.request.urlopen(url, timeout=20) as answer:
        found = json.load(answer)["brokerUrl"]
    return next(one["id"] for one in cluster.status()["members"] if one["data"].get("url") == found)


def topic_on(cluster: NodesCluster, node: Host, prefix: str, partitions: int = 0) -> str:
    """Create a topic that a broker on this node owns, or one of whose partitions it owns. A subscription keeps what is
    published.
    """
    brokers = [one for one, place in cluster.places().items() if place is node and one.startswith("broker")]
    for number in range(TOPICS_MAX):
        topic = f"{prefix}-{number}"
        if partitions:
            create_partitioned(cluster, topic, partitions)
        with cluster.client() as client:
            client.subscribe(topic, "keeper", initial_position=magnetar.InitialPosition.Earliest).close()
        parts = [f"{topic}-partition-{part}" for part in range(partitions)] or [topic]
        if any(owner(cluster, part) in brokers for part in parts):
            return topic
    raise RuntimeError(f"no broker on {node.name} owns any of {TOPICS_MAX} new topics")
