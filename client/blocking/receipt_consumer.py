"""The blocking face of a consumer whose acknowledgements wait for the broker's receipt."""

from collections.abc import Iterable

from ..consuming.message import Message
from ..consuming.topic_consumer import receipts
from ..core.message_id import MessageId
from .consumer import Consumer


class ReceiptConsumer(Consumer):
    """What `Client.subscribe` makes with `ack_receipt_enabled`. Threads that acknowledge together share a command.

    Each call also raises what keeps the broker from storing the acknowledgement: its error, ConnectionClosed, or
    Timeout. The message is then delivered again.
    """

    def acknowledge(self, message: Message | MessageId) -> None:
        self._consumer.acknowledge(message)
        self._running.run(receipts(self._consumer))

    def acknowledge_many(self, messages: Iterable[Message | MessageId]) -> None:
        self._consumer.acknowledge_many(messages)
        self._running.run(receipts(self._consumer))

    def acknowledge_cumulative(self, message: Message | MessageId) -> None:
        self._consumer.acknowledge_cumulative(message)
        self._running.run(receipts(self._consumer))
