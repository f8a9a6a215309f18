"""What a broker counts for all its topics together, as entries are published."""

from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.actors.topics.producer import AttachedProducer
from magnetar.actors.topics.publishing import Publishing
from magnetar.actors.topics.topic import TopicState
from magnetar.actors.topics.traffic import Traffic
from magnetar.protocol.errors import StorageFailed
from magnetar.protocol.pulsar_pb2 import MessageMetadata
from magnetar.protocol.topics import TopicName

PLAIN = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)


class Log:
    """A ledger that answers when it is told to."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []

    def append(self, entry: bytes, completed: Any) -> None:
        self.waiting.append(completed)


class Published:
    """One topic of a broker, with one producer."""

    def __init__(self, traffic: Traffic) -> None:
        self.log = Log()
        host: Any = SimpleNamespace(
            name=TopicName.parse("t"),
            state=TopicState.OPEN,
            nothing_pending=lambda: None,
            publish_failed=lambda _: None,
        )
        outlet: Any = SimpleNamespace(
            write=lambda data: None,
            publish_began=lambda size: None,
            publish_ended=lambda size: None,
            producer_closed=lambda producer: None,
        )
        self.publishing = Publishing(host, self.log, lambda *_: None, stages=(), traffic=traffic)  # type: ignore[arg-type]
        self._producer = AttachedProducer(self.publishing, outlet, 1, "p", user_provided_name=True, encrypted=False)

    def publish(self, entry: bytes, messages: int = 1) -> Any:
        """Returns what to call with the ledger's answer."""
        self.publishing.publish(self._producer, 0, 0, messages, entry, PLAIN)
        return self.log.waiting.pop()


async def test_the_topics_of_a_broker_are_counted_together() -> None:
    traffic = Traffic()
    one, other = Published(traffic), Published(traffic)
    one.publish(b"entry", messages=3)((1, 0), None)
    other.publish(b"another")((2, 0), None)
    assert traffic.published.counts == [4, len(b"entry" + b"another"), 2]


@pytest.mark.parametrize("stored", [True, False])
async def test_one_publish_at_a_time_is_timed_also_one_that_fails(stored: bool) -> None:
    traffic = Traffic()
    topic = Published(traffic)
    first, second = topic.publish(b"first"), topic.publish(b"second")
    second((1, 1), None)
    assert traffic.publish_times.quantiles(0.0, 1.0) == [0.0] and traffic.timed is not None
    first(*(((1, 0), None) if stored else (None, StorageFailed("the disk is gone"))))
    assert traffic.timed is None
    third = topic.publish(b"third") if stored else None
    assert (traffic.timed is None) is (third is None)
