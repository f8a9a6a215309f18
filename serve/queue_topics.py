"""The topics of a task queue, and what the admin HTTP does and says about them."""

import json
from http import HTTPStatus
from typing import NamedTuple

from ..bulk.access import ask_of_topic
from ..protocol.errors import ClusterError, InvalidConfiguration
from ..protocol.topics import TopicName

SUBSCRIPTION = "serve"
STATUS_SUFFIX = "-status"
COMPACTION_THRESHOLD_BYTES = 16 << 20


class QueueFigures(NamedTuple):
    """What the broker says of a queue."""

    backlog: int
    """Tasks that are not acknowledged: those that wait, those that run, and those that wait for a retry."""
    running: int
    """Those that a replica has."""
    delayed: int
    replicas: int
    """The consumers of the queue."""


class QueueTopics:
    """The topics of one queue."""

    def __init__(self, queue_name: str, admin_url: str | None) -> None:
        """Raises InvalidTopicName, InvalidConfiguration for a topic that is not persistent."""
        self.queue = TopicName.parse(queue_name).full
        self.status = self.queue + STATUS_SUFFIX
        if not TopicName.parse(queue_name).persistent:
            raise InvalidConfiguration(f"{self.queue} keeps nothing: name a persistent topic")
        self._admin_url = admin_url

    async def create(self, others: list[str], result_expires_s: int) -> None:
        """Make the topics, if they are not there, with the subscription of the replicas. `others`: further queues."""
        conflict = (HTTPStatus.CONFLICT,)
        for topic in (self.queue, *(TopicName.parse(one).full for one in others)):
            await ask_of_topic(self._admin_url, topic, "", "PUT", accepted=conflict)
            subscription = f"/subscription/{SUBSCRIPTION}"
            await ask_of_topic(self._admin_url, topic, subscription, "PUT", "earliest", accepted=conflict)
        await ask_of_topic(self._admin_url, self.status, "", "PUT", accepted=conflict)
        kept = {"retentionTimeInMinutes": max(1, result_expires_s // 60), "retentionSizeInMB": -1}
        await ask_of_topic(self._admin_url, self.status, "/retention", "POST", kept)
        await ask_of_topic(self._admin_url, self.status, "/compactionThreshold", "POST", COMPACTION_THRESHOLD_BYTES)

    async def figures(self) -> QueueFigures:
        """Raises ClusterError, ConnectError, CoordinatorUnavailable."""
        stats = json.loads(await ask_of_topic(self._admin_url, self.queue, "/stats"))
        figures = stats["subscriptions"].get(SUBSCRIPTION)
        if figures is None:
            raise ClusterError(f"{self.queue} has no subscription {SUBSCRIPTION}: deploy the application again")
        return QueueFigures(
            figures["msgBacklog"],
            figures["unackedMessages"],
            figures["msgDelayed"],
            len(figures["consumers"]),
        )
