"""The producer of a retry letter or dead letter topic: made when the first letter is sent.

`send` returns when the copy is stored, so that its caller acknowledges the original only then. A producer that has
failed finally (its topic was terminated, or it was fenced) is made again by the next letter.

Bound: `UNDER_WAY_MAX` copies are under way; more callers wait.
"""

import asyncio
from collections.abc import Callable, Mapping

from ...protocol.errors import AlreadyClosed, ProducerQueueIsFull
from ..consuming.message import Message
from ..core.configuration import ProducerConfiguration
from ..core.context import Core
from ..core.message_id import MessageId
from ..producing.outbox import Attributes
from ..producing.send_counts import SendFigures
from ..producing.send_outcome import SendOutcome
from ..producing.topic_producer import TopicProducer

UNDER_WAY_MAX = 500


class LetterProducer:
    """See the module. For the loop's thread."""

    def __init__(self, core: Core, configure: Callable[[], ProducerConfiguration]) -> None:
        self._core = core
        self._configure = configure
        self._producer: TopicProducer | None = None
        self._opening = asyncio.Lock()
        self._under_way = asyncio.Semaphore(UNDER_WAY_MAX)
        self._closed = False

    async def send(
        self, message: Message, properties: Mapping[str, str], deliver_at_ms: int | None = None
    ) -> MessageId:
        """Store a copy of a message. Raises why it could not be stored, or that its outcome is unknown (Timeout)."""
        async with self._under_way:
            producer = await self._open()
            done: asyncio.Future[None] = self._core.loop.create_future()

            def ended() -> None:
                if not done.done():
                    done.set_result(None)

            outcome = SendOutcome(1, ended)
            attributes = Attributes(
                properties,
                message.partition_key() or None,
                message.ordering_key() or None,
                None,
                message.event_timestamp() or None,
                message.has_null_value(),
                deliver_at_ms,
            )
            content = message.data()
            outbox = producer.choose(
                None if attributes.null_value else content,
                properties,
                attributes.partition_key,
                attributes.ordering_key,
                attributes.event_timestamp,
            )
            if not outbox.add_with(content, attributes, outcome):
                raise outbox.failure or ProducerQueueIsFull(
                    f"the producer on {producer.topic.full} has no room for another letter: the message comes again"
                )
            outbox.seal()
            await done
            if outcome.error is not None:
                raise outcome.error
            return outcome.ids[0]

    async def _open(self) -> TopicProducer:
        async with self._opening:
            if self._closed:
                raise AlreadyClosed("the consumer is closed: subscribe again")
            made = self._producer
            if made is None or all(one.outbox.failure is not None for one in made.producers):
                self._producer = None
                if made is not None:
                    await made.close()
                made = TopicProducer(self._core, self._configure())
                await made.open()
                self._producer = made
            return made

    def figures(self) -> list[SendFigures]:
        """What its producer has sent, by partition; empty before the first letter."""
        return [] if self._producer is None else [*self._producer.statistics.figures().values()]

    async def close(self) -> None:
        """Send what is under way, and leave the broker."""
        self._closed = True
        async with self._opening:
            made, self._producer = self._producer, None
        if made is not None:
            await made.close()
