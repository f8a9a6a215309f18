"""The interceptors of one consumer, called one after the other.

What an interceptor raises is logged, and the others are called all the same. A message that an interceptor does not
return stays as it was. A consumer without interceptors has no object of this class.
"""

import logging
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import cast

from ...protocol.errors import MagnetarError
from ...protocol.message_id import Position
from ..core.interceptors import ConsumerInterceptor
from ..core.message_id import MessageId, TopicMessageId
from .message import Message
from .partition_consumer import PartitionConsumer

logger = logging.getLogger(__name__)


class ConsumerInterception:
    def __init__(
        self, interceptors: Sequence[ConsumerInterceptor], several_topics: bool, describe: Callable[[], str]
    ) -> None:
        """`describe` says for the log which consumer it is."""
        self._interceptors = interceptors
        self._several_topics = several_topics
        self._describe = describe
        self._face: Callable[[], object] = lambda: None

    def show_as(self, face: object) -> None:
        """Interceptors are told `face` as the consumer, as long as the application has it."""
        self._face = weakref.ref(face)

    @contextmanager
    def tells(
        self, messages: Sequence[Message | MessageId], *, cumulative: bool = False
    ) -> Generator[None, None, None]:
        """Within, these messages are acknowledged. Interceptors hear of each then, with the error if there was one."""
        failure: MagnetarError | None = None
        try:
            yield
        except MagnetarError as error:
            failure = error
            raise
        finally:
            for message in messages:
                if isinstance(message, Message | MessageId):  # pyright: ignore[reportUnnecessaryIsInstance] (callers may be untyped)
                    self._tell(message.message_id() if isinstance(message, Message) else message, failure, cumulative)

    def before_consume(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages as the interceptors want them."""
        return [self._consumed(message) for message in messages]

    def watch(self, consumer: PartitionConsumer) -> None:
        """Have a partition's consumer tell which redeliveries it asks for."""

        def ids_of(positions: Sequence[Position]) -> list[MessageId]:
            ids = [MessageId(consumer.partition, *position) for position in positions]
            if self._several_topics:
                ids = [cast(MessageId, TopicMessageId.of(consumer.topic.full, one)) for one in ids]
            return ids

        def negative_sent(positions: Sequence[Position]) -> None:
            self._each(lambda one: one.on_negative_acks_send(self._face(), ids_of(positions)))

        def timeout_sent(positions: Sequence[Position]) -> None:
            self._each(lambda one: one.on_ack_timeout_send(self._face(), ids_of(positions)))

        consumer.acks.on_negative_sent = negative_sent
        consumer.acks.on_timeout_sent = timeout_sent

    def close(self) -> None:
        """The consumer is closed."""
        self._each(lambda one: one.close())

    # ---- Inside ----

    def _tell(self, message_id: MessageId, failure: MagnetarError | None, cumulative: bool) -> None:
        def tell(one: ConsumerInterceptor) -> None:
            heard = one.on_acknowledge_cumulative if cumulative else one.on_acknowledge
            heard(self._face(), message_id, failure)

        self._each(tell)

    def _consumed(self, message: Message) -> Message:
        for one in self._interceptors:
            try:
                changed = one.before_consume(self._face(), message)
            except Exception:  # the application's
                logger.exception("an interceptor of %s failed before a message was consumed", self._describe())
                continue
            if isinstance(changed, Message):  # pyright: ignore[reportUnnecessaryIsInstance] (callers may be untyped)
                message = changed
            else:
                logger.error("an interceptor of %s returned no message, so it is ignored", self._describe())
        return message

    def _each(self, tell: Callable[[ConsumerInterceptor], None]) -> None:
        for one in self._interceptors:
            try:
                tell(one)
            except Exception:  # the application's
                logger.exception("an interceptor of %s failed", self._describe())
