"""The asyncio face of a producer that has a schema: values become payloads, and then go the way of all payloads.

Producers without a schema are of the plain class, and pay nothing.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta

from ..core.configuration import ProducerConfiguration
from ..core.message_id import MessageId
from ..producing.outbox import SendCallback
from ..producing.values import encoded, encoded_without_key
from .intercepted_producer import InterceptedAsyncProducer
from .producer import AsyncProducer


class AsyncSchemaProducer(AsyncProducer):
    """See AsyncProducer."""

    async def send(
        self,
        content: object,
        properties: Mapping[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: object = None,
        disable_replication: bool | None = None,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> MessageId:
        """As in AsyncProducer."""
        payload, key = encoded(self._producer.configuration.schema, content, partition_key)
        return await super().send(
            payload,
            properties,
            key,
            ordering_key,
            sequence_id,
            replication_clusters,
            disable_replication,
            event_timestamp,
            deliver_at,
            deliver_after,
        )

    def send_async(
        self,
        content: object,
        callback: SendCallback | None = None,
        properties: Mapping[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: object = None,
        disable_replication: bool | None = None,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> None:
        """As in AsyncProducer. Raises SchemaSerializationError at once, with a callback, too."""
        payload, key = encoded(self._producer.configuration.schema, content, partition_key)
        super().send_async(
            payload,
            callback,
            properties,
            key,
            ordering_key,
            sequence_id,
            replication_clusters,
            disable_replication,
            event_timestamp,
            deliver_at,
            deliver_after,
        )

    async def send_many(self, payloads: Sequence[object], callback: SendCallback | None = None) -> list[MessageId]:
        """As in AsyncProducer. A value that does not fit is refused before any is sent."""
        return await super().send_many(encoded_without_key(self._producer.configuration.schema, payloads), callback)


class InterceptedAsyncSchemaProducer(AsyncSchemaProducer, InterceptedAsyncProducer):
    """The interceptors get payloads."""

    async def send_many(self, payloads: Sequence[object], callback: SendCallback | None = None) -> list[MessageId]:
        """One by one, so that `send` encodes each."""
        return await InterceptedAsyncProducer.send_many(self, payloads, callback)


def producer_face(configuration: ProducerConfiguration) -> type[AsyncProducer]:
    """The class of a producer with these options."""
    if configuration.schema is None:
        return InterceptedAsyncProducer if configuration.interceptors else AsyncProducer
    return InterceptedAsyncSchemaProducer if configuration.interceptors else AsyncSchemaProducer
