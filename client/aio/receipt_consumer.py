"""The asyncio face of a consumer whose acknowledgements wait for the broker's receipt."""

from collections.abc import Iterable

from ..consuming.message import Message
from ..consuming.topic_consumer import receipts
from ..core.message_id import MessageId
from .consumer import AsyncConsumer


class AsyncReceiptConsumer(AsyncConsumer):
    """What `AsyncClient.subscribe` makes with `ack_receipt_enabled`. Tasks that acknowledge together share a command.

    Each call also raises what keeps the broker from storing the acknowledgement: its error, ConnectionClosed, or
    Timeout. The message is then delivered again.
    """

    async def acknowledge(self, message: Message | MessageId) -> None:
        self._consumer.acknowledge(message)
        await receipts(self._consumer)

    async def acknowledge_many(self, messages: Iterable[Message | MessageId]) -> None:
        self._consumer.acknowledge_many(messages)
        await receipts(self._consumer)

    async def acknowledge_cumulative(self, message: Message | MessageId) -> None:
        self._consumer.acknowledge_cumulative(message)
        await receipts(self._consumer)
