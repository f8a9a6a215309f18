"""The statistics of a topic of an embedded cluster, as the admin shows them."""

import time
from collections.abc import Callable
from typing import Any

from magnetar.actors.admin.topic_figures import topic_json
from magnetar.protocol.topic_figures import TopicFigures

from .embedded_cluster import EmbeddedCluster


def loaded(cluster: EmbeddedCluster, topic: str) -> Any:
    """The topic on its owner broker."""
    return cluster.brokers[cluster.owner(topic)].topics.loaded[topic]


def figures(cluster: EmbeddedCluster, topic: str) -> dict[str, Any]:
    """`GET …/stats`."""

    async def ask() -> TopicFigures:
        return loaded(cluster, topic).describe()

    return topic_json(cluster.run(ask()))


def until(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    """Wait for what nothing announces to the test's thread."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.01)
