"""What a consumer does with messages that the application could not handle.

*Dead letters.* The broker says with each message how often it was delivered before. A message that comes more often
than `max_redeliver_count` allows goes to the dead letter topic, and not to the application. Why it came again does not
matter: a negative acknowledgement, an acknowledgement time-out, or a consumer that died.

*Retry letters.* `reconsume_later` stores a copy in the retry letter topic, to which the same consumer is subscribed.
The copy counts the attempts. After `max_redeliver_count` of them the next copy goes to the dead letter topic.

Order of the steps: the copy is stored, its receipt comes, then the original is acknowledged. When a step fails or the
process dies, the original is not acknowledged, and the message comes again. So a message may be there twice, and is
never lost. A dead letter that could not be stored is negatively acknowledged, and is tried again after that delay.

Invariants: an entry in `_moving` takes its permits until it is done, so `receiver_queue_size` bounds how many move at a
time. No two moves of one entry run at the same time: what comes meanwhile is the same entry again, and is left out.
"""

import asyncio
import logging
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import cast

from ...protocol.errors import InvalidMessage, MagnetarError, OperationNotSupported
from ...protocol.topics import TopicName
from ..consuming.intercepted import InterceptedConsumer
from ..consuming.message import Message, ReceivedEntry
from ..consuming.partition_consumer import PartitionConsumer
from ..consuming.topic_consumer import TopicConsumer
from ..core.configuration import ConsumerConfiguration
from ..core.context import Core
from ..producing.producer_statistics import producer_stats
from ..producing.topic_producer import check_attributes
from ..statistics.figures import ProducerStats
from .held_back import HeldBack
from .letter_producer import LetterProducer
from .policy import (
    DELAY_TIME,
    RANDOM_NAME_LETTERS,
    RECONSUMETIMES,
    LetterPolicy,
    letter_properties,
    reconsume_times,
)

logger = logging.getLogger(__name__)


async def open_consumer(core: Core, configuration: ConsumerConfiguration) -> TopicConsumer:
    """A subscribed consumer, with letters if it is configured for them. Raises the first refusal."""
    policy = LetterPolicy.of(configuration, lambda: random_name(core))
    kind = InterceptedConsumer if configuration.interceptors else TopicConsumer
    if policy is None:
        consumer = kind(core, configuration)
    else:
        also = () if policy.retry_topic is None else (policy.retry_topic,)
        consumer = kind(core, configuration, also=also)
        letters = consumer.letters = consumer.receive_queue.gate = Letters(core, consumer, policy)
        consumer.statistics.letters = letters.stats
    await consumer.open()
    return consumer


def random_name(core: Core) -> str:
    """A few characters for a name."""
    return core.environment.random.hex(RANDOM_NAME_LETTERS)[:RANDOM_NAME_LETTERS]


class Letters:
    """See the module. For the loop's thread."""

    def __init__(self, core: Core, consumer: TopicConsumer, policy: LetterPolicy) -> None:
        self.policy = policy
        self._core = core
        self._consumer = consumer
        self._dead: dict[str, LetterProducer] = {}
        """By dead letter topic."""
        self._retry: LetterProducer | None = None
        self._held = HeldBack(core, consumer.receive_queue.admit)
        self._moving: dict[tuple[object, tuple[int, int]], asyncio.Task[None]] = {}
        self._dead_letters_wanted = consumer.configuration.dead_letter_policy is not None

    # ---- The gate of the receive queue ----

    def takes(self, entry: ReceivedEntry) -> bool:
        """Whether an entry that came is not for the application, or not yet."""
        if entry.failure is not None:
            return False
        if entry.redelivery_count > self.policy.max_redeliver_count and self._dead_letters_wanted:
            self._move(entry)
            return True
        if self.policy.retry_topic is None or not entry.metadata.deliver_at_time:
            return False
        return TopicName.parse(entry.topic).partitioned_name == self.policy.retry_topic and self._held.takes(entry)

    def queued(self, source: object) -> int:
        """How many messages of `source` take permits here."""
        return self._held.queued(source)

    def discard(self, source: object) -> int:
        """Drop what waits of `source`; returns how many messages that were."""
        return self._held.discard(source)

    # ---- Retry letters ----

    async def reconsume_later(
        self, message: Message, delay: timedelta | int, properties: Mapping[str, str] | None
    ) -> None:
        """Store a copy for another attempt, then acknowledge the message.

        Raises OperationNotSupported without `enable_retry`, InvalidMessage, and why the copy could not be stored. Then
        the message is not acknowledged.
        """
        if self.policy.retry_topic is None:
            raise retry_is_off()
        if not isinstance(message, Message):  # pyright: ignore[reportUnnecessaryIsInstance] (callers may be untyped)
            raise InvalidMessage(f"reconsume_later takes a Message, not {type(message).__name__}")
        delay_ms = max(0, _milliseconds(delay))
        source = self._consumer.topics.source_of(message)  # refuses what belongs elsewhere before anything is stored
        copied = letter_properties(message, self.policy.subscription, properties)
        times = reconsume_times(copied) + 1
        copied = dict(sorted({**copied, RECONSUMETIMES: str(times), DELAY_TIME: str(delay_ms)}.items()))
        check_attributes(b"", copied, None, None, None, None)
        if times > self.policy.max_redeliver_count:
            await self._dead_letter_producer(message.topic_name()).send(message, copied)
        else:
            if self._retry is None:
                self._retry = LetterProducer(self._core, self.policy.retry_producer)
            now_ms = self._core.environment.clock.now_ms()
            await self._retry.send(message, copied, now_ms + delay_ms if delay_ms else None)
        source.acks.acknowledge(message)

    # ---- Dead letters ----

    def _dead_letter_producer(self, source: str) -> LetterProducer:
        topic = self.policy.dead_letter_topic_of(source)
        producer = self._dead.get(topic)
        if producer is None:
            configure = partial(self.policy.dead_letter_producer, source, random_name(self._core))
            producer = self._dead[topic] = LetterProducer(self._core, configure)
        return producer

    def _move(self, entry: ReceivedEntry) -> None:
        """Move an entry to the dead letter topic."""
        key = (entry.source, entry.position)
        if key in self._moving:
            _free(entry)
            return
        task = self._core.tasks.spawn(self._move_all_of(entry), f"dead letters of {entry.topic}"[:200])
        self._moving[key] = task
        task.add_done_callback(lambda _: self._moving.pop(key, None))

    async def _move_all_of(self, entry: ReceivedEntry) -> None:
        messages: list[Message] | None = None
        try:
            if entry.is_large:
                size_max = self._core.configuration.decompressed_size_max_bytes
                await self._core.environment.offload.run(entry.prepare, size_max)
            messages = [*entry.open(self._core.configuration.decompressed_size_max_bytes)]
        except MagnetarError:
            self._consumer.receive_queue.admit(entry)  # cannot be opened: the application is told, as always
            return
        try:
            producer = self._dead_letter_producer(entry.topic)
            subscription = self.policy.subscription
            for outcome in await asyncio.gather(
                *[producer.send(message, letter_properties(message, subscription)) for message in messages],
                return_exceptions=True,
            ):
                if isinstance(outcome, BaseException):
                    raise outcome
            cast(PartitionConsumer, entry.source).acks.acknowledge_many(messages)
        except Exception as error:  # of any kind, a customizer's too: the message must come again
            logger.warning(
                "message %s of %s could not be stored in %s, and comes again: %s",
                messages[0].message_id().text,
                entry.topic,
                self.policy.dead_letter_topic_of(entry.topic),
                error,
            )
            if not self._consumer.topics.closed:
                for message in messages:
                    self._consumer.negative_acknowledge(message)
        finally:
            _free(entry)

    def stats(self) -> tuple[ProducerStats | None, ProducerStats | None]:
        """Of the producers of dead letters and of retry letters; None before the first letter."""
        dead = [one for producer in [*self._dead.values()] for one in producer.figures()]
        retry = [] if self._retry is None else self._retry.figures()
        return producer_stats(dead) if dead else None, producer_stats(retry) if retry else None

    async def close(self) -> None:
        """Finish the moves that are under way (up to the operation time-out), and close the producers."""
        self._held.close()
        if self._moving:
            await asyncio.wait(list(self._moving.values()), timeout=self._core.timeout_s)
        producers = [*self._dead.values(), *([self._retry] if self._retry is not None else [])]
        await asyncio.gather(*[producer.close() for producer in producers])


def retry_is_off() -> OperationNotSupported:
    """Why `reconsume_later` is refused."""
    return OperationNotSupported("this consumer has no retry letter topic: subscribe with enable_retry=True")


def _free(entry: ReceivedEntry) -> None:
    """Give the permits of an entry back, if it still takes them."""
    source = cast(PartitionConsumer, entry.source)
    if entry.generation == source.generation:
        source.leave_out(entry.permits)


def _milliseconds(delay: timedelta | int) -> int:
    if isinstance(delay, timedelta):
        return int(delay / timedelta(milliseconds=1))
    if isinstance(delay, bool) or not isinstance(delay, int):  # pyright: ignore[reportUnnecessaryIsInstance] (callers may be untyped)
        raise InvalidMessage(f"a delay must be a timedelta or an integer of milliseconds, not {delay!r}")
    return delay
