"""I7, seen where a broker takes acknowledgements: nothing is acknowledged that was not delivered.

Delivered is what an application was handed: an entry counts when its last message was. Clients note that as they hand
messages over; a durable subscription's entries may be acknowledged only then. What a consumer leaves out because the
application sought past it counts as given up, and so does what an application names itself (`gave_up`). So does what a
consumer moves to a dead letter topic: `letter_watch` says whether it may. So does a chunk that comes once more when its
message was whole: its producer stored it twice.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any
from unittest.mock import patch

from magnetar.actors.dispatch.consumer import AttachedConsumer
from magnetar.actors.topics.subscription import Subscription
from magnetar.client.aio.consumer import AsyncConsumer
from magnetar.client.consuming.ack_sender import ConsumerAcks
from magnetar.client.consuming.message import Message, ReceivedEntry
from magnetar.client.consuming.partition_consumer import ChunkReceiver
from magnetar.client.core.message_id import positions_of
from magnetar.client.letters.handling import Letters
from magnetar.protocol.message_id import Position

from .history import History
from .store_watch import who


class AcknowledgeWatch:
    """See the module."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._settled: dict[tuple[str, str, Position], None] = {}
        """(partition topic, subscription, entry): delivered or given up."""
        self._whole: dict[tuple[str, str, str], None] = {}
        """(partition topic, subscription, uuid): messages of which all chunks were at a consumer."""

    def install(self, stack: ExitStack) -> None:
        """Watch until the stack is left."""
        receive, receive_many = AsyncConsumer.receive, AsyncConsumer.receive_many
        batch_receive = AsyncConsumer.batch_receive
        in_batch = ContextVar("in_batch", default=False)  # then `receive` gives its message to `batch_receive`
        leave_out, move, arrive = ConsumerAcks.acknowledge_entry, Letters._move, ChunkReceiver.arrive
        acknowledge, cumulative = Subscription.acknowledge, Subscription.acknowledge_cumulative

        async def receiving(consumer: AsyncConsumer, *arguments: Any) -> Message:
            message = await receive(consumer, *arguments)
            if not in_batch.get():
                self.handed_over(consumer.subscription_name(), [message])
            return message

        async def receiving_many(consumer: AsyncConsumer, *arguments: Any) -> Sequence[Message]:
            messages = await receive_many(consumer, *arguments)
            self.handed_over(consumer.subscription_name(), messages)
            return messages

        async def batch_receiving(consumer: AsyncConsumer) -> list[Message]:
            within = in_batch.set(True)
            try:
                messages = await batch_receive(consumer)
            finally:
                in_batch.reset(within)
            self.handed_over(consumer.subscription_name(), messages)
            return messages

        def leaving_out(acks: ConsumerAcks, position: Position) -> None:
            consumer: Any = acks._consumer
            self.gave_up(consumer.topic.full, consumer._configuration.subscription_name, position)
            leave_out(acks, position)

        def arriving(chunks: ChunkReceiver, chunk: ReceivedEntry) -> ReceivedEntry | None:
            found = arrive(chunks, chunk)
            consumer: Any = chunks._acks._consumer
            topic, subscription = consumer.topic.full, consumer._configuration.subscription_name
            message = (topic, subscription, chunk.metadata.uuid)
            if found is not None and found.chunks:
                self._whole[message] = None
            elif message in self._whole:
                self.gave_up(topic, subscription, chunk.position)
            return found

        def moving(letters: Letters, entry: ReceivedEntry) -> None:
            self.gave_up(entry.topic, letters.policy.subscription, entry.position)
            move(letters, entry)

        def acknowledging(
            subscription: Subscription, consumer: AttachedConsumer, positions: list[Position], *others: Any
        ) -> None:
            self._check(subscription, positions)
            acknowledge(subscription, consumer, positions, *others)

        def acknowledging_up_to(
            subscription: Subscription, consumer: AttachedConsumer, position: Position, *others: Any
        ) -> None:
            covered: list[Position] = []
            following = subscription.cursor.first_unacknowledged
            while following <= min(position, subscription.host.ledger.last_confirmed):
                covered.append(following)
                behind = subscription.host.ledger.next_position(following)
                following = subscription.cursor.next_unacknowledged(behind)
            self._check(subscription, covered)
            cumulative(subscription, consumer, position, *others)

        for owner, name, wrapper in (
            (AsyncConsumer, "receive", receiving),
            (AsyncConsumer, "receive_many", receiving_many),
            (AsyncConsumer, "batch_receive", batch_receiving),
            (ConsumerAcks, "acknowledge_entry", leaving_out),
            (ChunkReceiver, "arrive", arriving),
            (Letters, "_move", moving),
            (Subscription, "acknowledge", acknowledging),
            (Subscription, "acknowledge_cumulative", acknowledging_up_to),
        ):
            stack.enter_context(patch.object(owner, name, wrapper))

    def handed_over(self, subscription: str, messages: list[Message]) -> None:
        """An application has these messages."""
        for message in messages:
            message_id = message.message_id()
            if message_id.batch_index() >= message_id.batch_size() - 1:
                for position in positions_of(message_id):
                    self.gave_up(message.topic_name(), subscription, position)

    def gave_up(self, topic: str, subscription: str, position: Position) -> None:
        """An application was handed the whole entry, or wants it no more."""
        self._settled[topic, subscription, position] = None

    def _check(self, subscription: Subscription, positions: list[Position]) -> None:
        if not subscription.durable:
            return
        host: Any = subscription.host
        for position in positions:
            entry = (host.name.full, subscription.name, position)
            if entry not in self._settled and entry not in self._history.given_up:
                self._history.violated(
                    f"I7: {who()} takes an acknowledgement of {position} for {subscription.name} of {host.name.full}, "
                    "which no application was handed"
                )
