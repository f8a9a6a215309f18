"""The producer of a retry letter or dead letter topic: made when the first letter is sent.

`send` returns when the copy is stored, so that its caller acknowledges the original only then. A producer that has
failed finally (its topic was terminated, or it was fenced) is made again by the next letter.

A copy keeps the schema that its original was written with. The client registers that definition in the letter topic,
and the copy names the version that it has there. Versions count by topic, so the number may be another one. A copy of
a message whose definition was deleted names no version. When the letter topic refuses the definition, nothing is
stored.

Bounds: `UNDER_WAY_MAX` copies are under way; more callers wait. `VERSIONS_MAX` versions are kept.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from ...protocol.errors import AlreadyClosed, ProducerQueueIsFull, SchemaSerializationError, TopicNotFound
from ..consuming.message import Message
from ..core.configuration import ProducerConfiguration
from ..core.context import Core
from ..core.message_id import MessageId
from ..producing.attributes import Attributes
from ..producing.send_counts import SendFigures
from ..producing.send_outcome import SendOutcome
from ..producing.topic_producer import TopicProducer
from ..schemas.schema import EncodedKey

logger = logging.getLogger(__name__)

UNDER_WAY_MAX = 500
VERSIONS_MAX = 100


class LetterProducer:
    """See the module. For the loop's thread."""

    def __init__(self, core: Core, configure: Callable[[], ProducerConfiguration]) -> None:
        self._core = core
        self._configure = configure
        self._producer: TopicProducer | None = None
        self._opening = asyncio.Lock()
        self._under_way = asyncio.Semaphore(UNDER_WAY_MAX)
        self._versions: dict[tuple[str, bytes], bytes] = {}
        """By topic and version of the original: the version in the letter topic."""
        self._closed = False

    async def send(
        self, message: Message, properties: Mapping[str, str], deliver_at_ms: int | None = None
    ) -> MessageId:
        """Store a copy of a message. Raises why it could not be stored, or that its outcome is unknown (Timeout)."""
        async with self._under_way:
            producer = await self._open()
            version = await self._version_of(message, producer)
            done: asyncio.Future[None] = self._core.loop.create_future()

            def ended() -> None:
                if not done.done():
                    done.set_result(None)

            outcome = SendOutcome(1, ended)
            attributes = Attributes(
                properties,
                _key_of(message),
                message.ordering_key() or None,
                None,
                message.event_timestamp() or None,
                message.has_null_value(),
                deliver_at_ms,
                version,
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

    async def _version_of(self, message: Message, producer: TopicProducer) -> bytes:
        """The letter topic's version of the schema that a message was written with; empty without one."""
        version = message.schema_version()
        if not version:
            return b""
        key = (message.topic_name(), version)
        found = self._versions.get(key)
        if found is not None:
            return found
        try:
            schema = await self._core.schemas.get(*key)
        except (TopicNotFound, SchemaSerializationError) as error:
            logger.warning("a letter of %s names no schema version: %s", key[0], error)
            return b""
        found = await self._core.lookup.version_of_schema(producer.producers[0].topic.full, schema)
        while len(self._versions) >= VERSIONS_MAX:
            self._versions.pop(next(iter(self._versions)))
        self._versions[key] = found
        return found

    async def _open(self) -> TopicProducer:
        async with self._opening:
            if self._closed:
                raise AlreadyClosed("the consumer is closed: subscribe again")
            made = self._producer
            if made is None or all(one.outbox.failure is not None for one in made.producers):
                self._producer = None
                self._versions.clear()  # the letter topic may have been deleted meanwhile
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


def _key_of(message: Message) -> str | None:
    """The key for the copy, which says whether it stands for bytes."""
    key, single = message.partition_key() or None, message[3]
    return EncodedKey(key) if key is not None and single is not None and single.partition_key_b64_encoded else key
