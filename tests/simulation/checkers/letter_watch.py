"""I1 for letters: a message that was not consumed is acknowledged only when its copy is stored.

Brokers know nothing of letters, so this stands beside them and looks at what they store and at what they are told. A
copy counts as stored when the log of its topic says so to the broker, which then sends the receipt. It counts for the
message that its own properties name: REAL_TOPIC and ORIGIN_MESSAGE_ID. A recovery may store an append that failed.
Deduplication then reads it, and answers a second one as a duplicate. So a copy that a broker reads is stored, too.

For each entry that a broker takes an acknowledgement of, and each message in it, one of these holds:

- an application consumed it (`consumed`);
- a copy with one attempt more (RECONSUMETIMES) is stored in the retry letter or the dead letter topic;
- a copy with as many attempts is stored in the dead letter topic: it was delivered too often.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple
from unittest.mock import patch

from magnetar.actors.dispatch.consumer import AttachedConsumer, Delivery
from magnetar.actors.topics.subscription import Subscription
from magnetar.client.letters.handling import (
    ORIGIN_MESSAGE_ID,
    REAL_SUBSCRIPTION,
    REAL_TOPIC,
    RECONSUMETIMES,
    default_dead_letter_topic,
    default_retry_topic,
)
from magnetar.protocol.entries import is_batch, parse_metadata
from magnetar.protocol.message_id import Position
from magnetar.protocol.pulsar_pb2 import MessageMetadata
from magnetar.protocol.topics import TopicName
from magnetar.storage.managed.managed_ledger import ManagedLedger

from .history import History
from .store_watch import is_dead, who

Origin = tuple[str, str]
"""The topic that a message was first published to, without partition, and the text of its id there."""


class Attempt(NamedTuple):
    """A message as it lies somewhere: where it came from, and how often it was stored again."""

    origin: Origin
    times: int


class LetterWatch:
    """See the module. `topic` in full; the letter topics have their default names."""

    def __init__(self, history: History, topic: str, subscription: str) -> None:
        self.topic = topic
        self.retry_topic = default_retry_topic(topic, subscription)
        self.dead_letter_topic = default_dead_letter_topic(topic, subscription)
        self._history = history
        self._subscription = subscription
        self._contents: dict[tuple[str, Position], tuple[Attempt, ...]] = {}
        """(partition, entry) of the topic and its retry letters → the messages there."""
        self._consumed: dict[tuple[str, Position, int], None] = {}
        self._stored: dict[tuple[str, Attempt], None] = {}
        """By letter topic."""
        self.has_dead_letters = False
        """Whether a broker tried to store one. An append that failed may be stored all the same, by a recovery."""
        self._attached: dict[AttachedConsumer, str] = {}

    def install(self, stack: ExitStack) -> None:
        """Watch until the stack is left."""
        append, deliver, attach = ManagedLedger.append, AttachedConsumer.deliver, Subscription.attach
        read = ManagedLedger.read
        acknowledge = Subscription.acknowledge

        def appending(ledger: ManagedLedger, body: bytes, callback: Any) -> None:
            topic = TopicName.parse(_full_name(ledger.name)).partitioned_name
            if topic in (self.retry_topic, self.dead_letter_topic):
                self.has_dead_letters = self.has_dead_letters or topic == self.dead_letter_topic
                callback = self._behind(topic, parse_metadata(body), callback)
            append(ledger, body, callback)

        async def reading(ledger: ManagedLedger, *others: Any, **named: Any) -> list[tuple[Position, bytes]]:
            entries = await read(ledger, *others, **named)
            topic = TopicName.parse(_full_name(ledger.name)).partitioned_name
            if topic in (self.retry_topic, self.dead_letter_topic):
                for _, body in entries:
                    self._is_there(topic, parse_metadata(body))
            return entries

        async def attaching(subscription: Subscription, consumer: AttachedConsumer, *others: Any) -> None:
            if subscription.name == self._subscription:
                self._attached[consumer] = _topic_of(subscription)
            await attach(subscription, consumer, *others)

        def delivering(consumer: AttachedConsumer, delivery: Delivery, *others: Any) -> None:
            topic = self._attached.get(consumer)
            if topic is not None:
                self._goes_out(topic, delivery)
            deliver(consumer, delivery, *others)

        def acknowledging(
            subscription: Subscription, consumer: AttachedConsumer, positions: list[Position], *others: Any
        ) -> None:
            if subscription.name == self._subscription and not is_dead():
                for position in positions:
                    self.acknowledged(_topic_of(subscription), position)
            acknowledge(subscription, consumer, positions, *others)

        for owner, name, wrapper in (
            (ManagedLedger, "append", appending),
            (ManagedLedger, "read", reading),
            (Subscription, "attach", attaching),
            (AttachedConsumer, "deliver", delivering),
            (Subscription, "acknowledge", acknowledging),
        ):
            stack.enter_context(patch.object(owner, name, wrapper))

    def _behind(self, topic: str, metadata: MessageMetadata, callback: Any) -> Callable[..., None]:
        def answered(position: Position | None, error: Any) -> None:
            if position is not None:
                self.stored(topic, properties_of(metadata))
            callback(position, error)

        return answered

    def _is_there(self, topic: str, metadata: MessageMetadata) -> None:
        attempt = _attempt(properties_of(metadata))
        if attempt is not None:
            self._stored[topic, attempt] = None

    def stored(self, topic: str, properties: dict[str, str]) -> None:
        """A copy with these properties is stored in a letter topic."""
        what = "dead letters" if topic == self.dead_letter_topic else "retry letters"
        self._history.counts[what] += 1
        attempt = _attempt(properties)
        if attempt is None or properties.get(REAL_SUBSCRIPTION) != self._subscription:
            self._history.violated(f"I1: a copy in {topic} does not say where it came from: {properties}")
        else:
            self._stored[topic, attempt] = None

    def consumed(self, topic: str, position: Position, index: int) -> None:
        """An application is about to acknowledge a message (−1: not of a batch): it needs no copy."""
        self._consumed[topic, position, index] = None

    def _goes_out(self, topic: str, delivery: Delivery) -> None:
        for position, body, _, _ in delivery.entries:
            if (topic, position) not in self._contents:
                self.holds(topic, position, parse_metadata(body))

    def holds(self, topic: str, position: Position, metadata: MessageMetadata) -> None:
        """An entry of that partition is known."""
        name = TopicName.parse(topic)
        if name.partitioned_name == self.retry_topic:
            attempt = _attempt(properties_of(metadata))
            attempts = () if attempt is None else (attempt,)
        else:
            text = f"{position[0]}:{position[1]}:{name.partition}"
            texts = [f"{text}:{index}" for index in range(metadata.num_messages_in_batch)]
            texts = texts if is_batch(metadata) else [text]
            attempts = tuple(Attempt((name.partitioned_name, one), 0) for one in texts)
        self._contents[topic, position] = attempts

    def acknowledged(self, topic: str, position: Position) -> None:
        """A broker takes an acknowledgement of a whole entry of the subscription."""
        if TopicName.parse(topic).partitioned_name not in (self.topic, self.retry_topic):
            return
        for attempt in self._unsettled(topic, position):
            self._history.violated(
                f"I1: {who()} takes an acknowledgement of {position} of {topic}, and message {attempt.origin[1]} was "
                f"neither consumed nor stored again after attempt {attempt.times}"
            )

    def _unsettled(self, topic: str, position: Position) -> Iterator[Attempt]:
        attempts = self._contents.get((topic, position), ())
        for index, attempt in enumerate(attempts):
            if (topic, position, index) in self._consumed or (topic, position, -1) in self._consumed:
                continue
            again = attempt._replace(times=attempt.times + 1)
            letters = (self.retry_topic, again), (self.dead_letter_topic, again), (self.dead_letter_topic, attempt)
            if not any(one in self._stored for one in letters):
                yield attempt


def properties_of(metadata: MessageMetadata) -> dict[str, str]:
    """Of a message that was sent alone."""
    return {pair.key: pair.value for pair in metadata.properties}


def _attempt(properties: dict[str, str]) -> Attempt | None:
    topic, origin = properties.get(REAL_TOPIC), properties.get(ORIGIN_MESSAGE_ID)
    times = properties.get(RECONSUMETIMES, "0")
    return None if topic is None or origin is None else Attempt((topic, origin), int(times))


def _topic_of(subscription: Subscription) -> str:
    host: Any = subscription.host
    name: str = host.name.full
    return name


def _full_name(path: str) -> str:
    domain, _, rest = path.partition("/")
    return f"{domain}://{rest}"
