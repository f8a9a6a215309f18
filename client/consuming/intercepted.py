"""A consumer with interceptors. Consumers without them are of the plain class, and pay nothing."""

import logging
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import cast

from ...protocol.errors import MagnetarError
from ...protocol.message_id import Position
from ..core.interceptors import ConsumerInterceptor
from ..core.message_id import MessageId, TopicMessageId
from .message import Message
from .partition_consumer import PartitionConsumer
from .topic_consumer import TopicConsumer

logger = logging.getLogger(__name__)


class InterceptedConsumer(TopicConsumer):
    """See the module."""

    def show_as(self, face: object) -> None:
        """Interceptors are told `face` as the consumer, as long as the application has it."""
        self._face = weakref.ref(face)

    @property
    def face(self) -> object:
        """What the application has."""
        return self._face()

    async def open(self) -> None:
        self.receive_queue.screen = self._before_consume
        self.topics.on_made = self._watch
        await super().open()

    def acknowledge(self, message: Message | MessageId) -> None:
        self._told([message], lambda: TopicConsumer.acknowledge(self, message))

    def acknowledge_many(self, messages: Iterable[Message | MessageId]) -> None:
        all_of_them = list(messages)
        self._told(all_of_them, lambda: TopicConsumer.acknowledge_many(self, all_of_them))

    def acknowledge_cumulative(self, message: Message | MessageId) -> None:
        self._told([message], lambda: TopicConsumer.acknowledge_cumulative(self, message), cumulative=True)

    async def close(self) -> None:
        if self.listening is not None:
            await self.listening.stop()
        if not self.topics.closed:
            await super().close()
            self._each(lambda one: one.close())

    # ---- Inside ----

    def _told(
        self, messages: Sequence[Message | MessageId], acknowledge: Callable[[], None], *, cumulative: bool = False
    ) -> None:
        failure: MagnetarError | None = None
        try:
            acknowledge()
        except MagnetarError as error:
            failure = error
            raise
        finally:
            for message in messages:
                if isinstance(message, Message | MessageId):  # pyright: ignore[reportUnnecessaryIsInstance] (callers may be untyped)
                    self._tell(message.message_id() if isinstance(message, Message) else message, failure, cumulative)

    def _tell(self, message_id: MessageId, failure: MagnetarError | None, cumulative: bool) -> None:
        def tell(one: ConsumerInterceptor) -> None:
            heard = one.on_acknowledge_cumulative if cumulative else one.on_acknowledge
            heard(self.face, message_id, failure)

        self._each(tell)

    def _before_consume(self, messages: Sequence[Message]) -> Sequence[Message]:
        return [self._consumed(message) for message in messages]

    def _consumed(self, message: Message) -> Message:
        for one in self.configuration.interceptors:
            try:
                changed = one.before_consume(self.face, message)
            except Exception:  # the application's
                logger.exception("an interceptor of %s failed before a message was consumed", self.topic_text)
                continue
            if isinstance(changed, Message):
                message = changed
            else:
                logger.error("an interceptor of %s returned no message, so it is ignored", self.topic_text)
        return message

    def _watch(self, consumer: PartitionConsumer) -> None:
        def ids_of(positions: Sequence[Position]) -> list[MessageId]:
            ids = [MessageId(consumer.partition, *position) for position in positions]
            if self.topics.several:
                ids = [cast(MessageId, TopicMessageId.of(consumer.topic.full, one)) for one in ids]
            return ids

        def negative_sent(positions: Sequence[Position]) -> None:
            self._each(lambda one: one.on_negative_acks_send(self.face, ids_of(positions)))

        def timeout_sent(positions: Sequence[Position]) -> None:
            self._each(lambda one: one.on_ack_timeout_send(self.face, ids_of(positions)))

        consumer.acks.on_negative_sent = negative_sent
        consumer.acks.on_timeout_sent = timeout_sent

    def _each(self, tell: Callable[[ConsumerInterceptor], None]) -> None:
        for one in self.configuration.interceptors:
            try:
                tell(one)
            except Exception:  # the application's
                logger.exception("an interceptor of %s failed", self.topic_text)
