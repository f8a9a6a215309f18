"""The blocking face of a producer that has a schema, interceptors, or both.

With a schema, values become payloads, and then go the way of all payloads.

Producers without a schema are of the plain class, and pay nothing.
"""

import weakref
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from ...protocol.errors import MagnetarError
from ..core.configuration import ProducerConfiguration
from ..core.message_id import MessageId
from ..core.outgoing_message import OutgoingMessage
from ..producing.interception import InterceptedCallback, Interception
from ..producing.outbox import SendCallback
from ..producing.topic_producer import TopicProducer, payload_of
from ..producing.values import encoded, encoded_without_key
from .producer import Producer

if TYPE_CHECKING:
    from .client import Client


class InterceptedProducer(Producer):
    """See Producer."""

    _told_of_the_end = False
    _SET_BY_OPENING = Producer._SET_BY_OPENING | {"_interception"}

    def __init__(self, client: "Client", producer: TopicProducer) -> None:
        super().__init__(client, producer)
        self._interception = Interception(weakref.proxy(self), producer.configuration.interceptors)

    def _open(self) -> None:
        InterceptedProducer.__init__(self, self._client, self._client.open_producer(self._configuration))

    def send(
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
        """As in Producer."""
        given = OutgoingMessage(payload_of(content), properties, partition_key, ordering_key, event_timestamp)
        message = self._interception.before_send(given)
        try:
            message_id = super().send(
                sequence_id=sequence_id,
                replication_clusters=replication_clusters,
                disable_replication=disable_replication,
                deliver_at=deliver_at,
                deliver_after=deliver_after,
                **message.fields(),  # type: ignore[arg-type]
            )
        except MagnetarError as error:
            self._interception.outcome(message, None, error)
            raise
        self._interception.outcome(message, message_id, None)
        return message_id

    def send_async(
        self,
        content: object,
        callback: SendCallback | None,
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
        """As in Producer. Without a callback, only the interceptors hear that the queue is full."""
        given = OutgoingMessage(payload_of(content), properties, partition_key, ordering_key, event_timestamp)
        message = self._interception.before_send(given)
        super().send_async(
            callback=InterceptedCallback(self._interception, message, callback),
            sequence_id=sequence_id,
            replication_clusters=replication_clusters,
            disable_replication=disable_replication,
            deliver_at=deliver_at,
            deliver_after=deliver_after,
            **message.fields(),  # type: ignore[arg-type]
        )

    def send_many(self, payloads: Sequence[object], callback: SendCallback | None = None) -> list[MessageId]:
        """As in Producer, at the cost of single messages."""
        if callback is None:
            return [self.send(payload) for payload in payloads]
        for payload in payloads:
            self.send_async(payload, callback)
        return []

    def close(self) -> None:
        """As in Producer."""
        if self.is_unopened:
            return
        super().close()
        if not self._told_of_the_end:
            self._told_of_the_end = True
            self._interception.close()


class SchemaProducer(Producer):
    """See Producer."""

    def send(
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
        """As in Producer."""
        payload, key = encoded(self._producer.configuration.schema, content, partition_key)
        return super().send(
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
        callback: SendCallback | None,
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
        """As in Producer. Raises SchemaSerializationError at once, with a callback, too."""
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

    def send_many(self, payloads: Sequence[object], callback: SendCallback | None = None) -> list[MessageId]:
        """As in Producer. A value that does not fit is refused before any is sent."""
        return super().send_many(encoded_without_key(self._producer.configuration.schema, payloads), callback)


class InterceptedSchemaProducer(SchemaProducer, InterceptedProducer):
    """The interceptors get payloads."""

    def send_many(self, payloads: Sequence[object], callback: SendCallback | None = None) -> list[MessageId]:
        """One by one, so that `send` encodes each."""
        return InterceptedProducer.send_many(self, payloads, callback)


def producer_face(configuration: ProducerConfiguration) -> type[Producer]:
    """The class of a producer with these options."""
    if configuration.schema is None:
        return InterceptedProducer if configuration.interceptors else Producer
    return InterceptedSchemaProducer if configuration.interceptors else SchemaProducer
