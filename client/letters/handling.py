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
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from heapq import heapify, heappop, heappush
from typing import cast

from ...protocol.errors import (
    AlreadyClosed,
    InvalidConfiguration,
    InvalidMessage,
    MagnetarError,
    OperationNotSupported,
    ProducerQueueIsFull,
    SchemaSerializationError,
    TopicNotFound,
)
from ...protocol.topics import TopicName
from ..consuming.message import Message, ReceivedEntry
from ..consuming.partition_consumer import PartitionConsumer
from ..consuming.topic_consumer import TopicConsumer
from ..core.configuration import (
    ConsumerConfiguration,
    DeadLetterProducerContext,
    ProducerConfiguration,
    ProducerCustomizer,
)
from ..core.context import Core
from ..core.message_id import MessageId
from ..producing.outgoing import Outgoing, checked
from ..producing.producer_statistics import producer_stats
from ..producing.send_counts import SendFigures
from ..producing.send_outcome import SendOutcome
from ..producing.topic_producer import TopicProducer
from ..schemas.schema import EncodedKey
from ..statistics.figures import ProducerStats

logger = logging.getLogger(__name__)

REAL_TOPIC = "REAL_TOPIC"
"""The topic that the message was first published to, without partition."""
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
"""The text of its first id."""
ORIGIN_MESSAGE_ID_BEFORE = "ORIGIN_MESSAGE_IDY_TIME"
"""The same. Older Java clients wrote this name by mistake, and newer ones write both."""
REAL_SUBSCRIPTION = "REAL_SUBSCRIPTION"
RECONSUMETIMES = "RECONSUMETIMES"
"""How often the message was stored for another attempt, in decimal."""
DELAY_TIME = "DELAY_TIME"
"""Milliseconds until that attempt."""

RECONSUME_TIMES_MAX = 16
"""Attempts without a dead letter policy."""
RANDOM_NAME_LETTERS = 5


@dataclass(frozen=True)
class LetterPolicy:
    """What holds for the letters of one consumer: names of topics and producers, limits, properties. Pure.

    Names and properties are those of Pulsar's Java client. A copy keeps the message's own properties and gets those
    below, in the order of their names. What says where the message came from is set once, by the first copy.
    """

    input_topic: str | None
    """The first topic of the consumer; None for a pattern."""
    subscription: str
    consumer_name: str
    max_redeliver_count: int
    retry_topic: str | None
    """None: retry letters are off."""
    dead_letter_topic: str | None
    """None: each topic has its own, by the default name."""
    initial_subscription_name: str | None
    dead_letter_customizer: ProducerCustomizer | None
    retry_customizer: ProducerCustomizer | None

    @staticmethod
    def of(configuration: ConsumerConfiguration, random_name: Callable[[], str]) -> "LetterPolicy | None":
        """What a consumer is configured for; None without letters. Raises InvalidTopicName."""
        dead, retry_topic = configuration.dead_letter_policy, None
        if dead is None and not configuration.enable_retry:
            return None
        dead_letter_topic = dead.dead_letter_topic if dead is not None else None
        subscription = configuration.subscription_name
        first = _first(configuration)
        if configuration.enable_retry and first is not None:
            retry_topic = TopicName.parse(
                configuration.retry_letter_topic or default_retry_topic(first, subscription)
            ).full
            dead_letter_topic = dead_letter_topic or default_dead_letter_topic(first, subscription)
        if dead_letter_topic is not None:
            dead_letter_topic = TopicName.parse(dead_letter_topic).full
        return LetterPolicy(
            input_topic=first,
            subscription=subscription,
            consumer_name=configuration.consumer_name or random_name(),
            max_redeliver_count=dead.max_redeliver_count if dead is not None else RECONSUME_TIMES_MAX,
            retry_topic=retry_topic,
            dead_letter_topic=dead_letter_topic,
            initial_subscription_name=dead.initial_subscription_name if dead is not None else None,
            dead_letter_customizer=configuration.dead_letter_producer_customizer,
            retry_customizer=configuration.retry_letter_producer_customizer,
        )

    def dead_letter_topic_of(self, topic: str) -> str:
        """Where messages of a topic or partition end."""
        if self.dead_letter_topic is not None:
            return self.dead_letter_topic
        return default_dead_letter_topic(TopicName.parse(topic).partitioned_name, self.subscription)

    def dead_letter_producer(self, source: str, random_name: str) -> ProducerConfiguration:
        """How to publish the dead letters of a topic. Raises what the customizer raises, InvalidConfiguration."""
        topic = TopicName.parse(source).partitioned_name
        if topic == self.retry_topic and self.input_topic is not None:
            topic = self.input_topic
        name = f"{topic}-{self.subscription}-{self.consumer_name}-{random_name}-DLQ"
        options: dict[str, object] = {**_defaults(self.dead_letter_topic_of(topic)), "producer_name": name}
        if self.initial_subscription_name is not None:
            options["initial_subscription_name"] = self.initial_subscription_name
        default = default_dead_letter_topic(topic, self.subscription)
        return self._customized(options, self.dead_letter_customizer, default, topic)

    def retry_producer(self) -> ProducerConfiguration:
        """How to publish to the retry letter topic. Raises what the customizer raises, InvalidConfiguration."""
        topic = self.input_topic
        assert self.retry_topic is not None and topic is not None
        default = default_retry_topic(topic, self.subscription)
        return self._customized(_defaults(self.retry_topic), self.retry_customizer, default, topic)

    def _customized(
        self, options: dict[str, object], customizer: ProducerCustomizer | None, default: str, topic: str
    ) -> ProducerConfiguration:
        if customizer is not None:
            where = options["topic"]
            customizer(DeadLetterProducerContext(default, topic, self.subscription, self.consumer_name), options)
            if options.get("topic") != where:
                raise InvalidConfiguration(
                    f"the customizer of a letter producer changed its topic {where}: name the topic when you subscribe"
                )
        return ProducerConfiguration.of(options)


def default_retry_topic(topic: str, subscription: str) -> str:
    """`<topic>-<subscription>-RETRY`."""
    return f"{topic}-{subscription}-RETRY"


def default_dead_letter_topic(topic: str, subscription: str) -> str:
    """`<topic>-<subscription>-DLQ`."""
    return f"{topic}-{subscription}-DLQ"


def letter_properties(message: Message, subscription: str, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The properties of a copy: the message's own, where it came from, and `more`."""
    message_id = message.message_id()
    origin = {
        REAL_TOPIC: TopicName.parse(message.topic_name()).partitioned_name,
        ORIGIN_MESSAGE_ID_BEFORE: message_id.text,
        ORIGIN_MESSAGE_ID: message_id.text,
        REAL_SUBSCRIPTION: subscription,
    }
    return dict(sorted({**origin, **message.properties(), **(more or {})}.items()))


def reconsume_times(properties: Mapping[str, str]) -> int:
    """How often a message was stored for another attempt, as its properties say; 0 if that is no number."""
    text = properties.get(RECONSUMETIMES, "0")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


def _first(configuration: ConsumerConfiguration) -> str | None:
    topic = configuration.topic
    if isinstance(topic, re.Pattern):
        return None
    return TopicName.parse(topic if isinstance(topic, str) else topic[0]).partitioned_name


def _defaults(topic: str) -> dict[str, object]:
    return {"topic": topic, "batching_enabled": False, "chunking_enabled": True, "block_if_queue_full": False}


TIMER_MAX_S = 3600.0
"""The clock is asked at least so often."""


class HeldBack:
    """Retry copies that came before they are due.

    A copy carries the time from which it may be delivered. A broker with delayed delivery keeps it until then. One
    without sends it at once, so the consumer keeps it here. It is not acknowledged meanwhile: when this process dies,
    another consumer gets it. It counts as queued, so `receiver_queue_size` bounds how many are held. While that many
    wait, the copies behind them wait, too.

    The wall clock decides what is due. It is asked again when a timer ends, so a clock that was set back delays, and
    does not lose.

    For the loop's thread.
    """

    def __init__(self, core: Core, release: Callable[[ReceivedEntry], None]) -> None:
        self._core = core
        self._release = release
        self._held: list[tuple[int, int, ReceivedEntry]] = []
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None

    def takes(self, entry: ReceivedEntry) -> bool:
        """Keep an entry if it is not due."""
        due_ms = entry.metadata.deliver_at_time
        if due_ms <= self._core.environment.clock.now_ms():
            return False
        self._count += 1
        heappush(self._held, (due_ms, self._count, entry))
        if self._held[0][1] == self._count:
            self._set_timer()
        return True

    def queued(self, source: object) -> int:
        """How many messages of `source` are held."""
        return sum(entry.permits for _, _, entry in self._held if entry.source is source)

    def discard(self, source: object) -> int:
        """Drop what is held of `source`: it comes again. Returns how many messages that were."""
        dropped = self.queued(source)
        if dropped:
            self._held = [held for held in self._held if held[2].source is not source]
            heapify(self._held)
        return dropped

    def close(self) -> None:
        """Release nothing more."""
        self._held.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._held:
            left_s = (self._held[0][0] - self._core.environment.clock.now_ms()) / 1000
            self._timer = self._core.loop.call_later(min(max(left_s, 0.001), TIMER_MAX_S), self._due)

    def _due(self) -> None:
        now_ms = self._core.environment.clock.now_ms()
        while self._held and self._held[0][0] <= now_ms:
            self._release(heappop(self._held)[2])
        self._set_timer()


UNDER_WAY_MAX = 500
VERSIONS_MAX = 100


class LetterProducer:
    """The producer of a retry letter or dead letter topic: made when the first letter is sent.

    `send` returns when the copy is stored, so that its caller acknowledges the original only then. A producer that has
    failed finally (its topic was terminated, or it was fenced) is made again by the next letter.

    A copy keeps the schema that its original was written with. The client registers that definition in the letter
    topic, and the copy names the version that it has there. Versions count by topic, so the number may be another one.
    A copy of a message whose definition was deleted names no version. When the letter topic refuses the definition,
    nothing is stored.

    Bounds: `UNDER_WAY_MAX` copies are under way; more callers wait. `VERSIONS_MAX` versions are kept.

    For the loop's thread.
    """

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
            letter = Outgoing(
                None if message.has_null_value() else message.data(),
                properties,
                _key_of(message),
                message.ordering_key() or None,
                None,
                message.event_timestamp() or None,
                deliver_at_ms,
                version,
            )
            outbox = producer.choose(letter)
            if not outbox.add_with(letter, outcome):
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


async def open_consumer(core: Core, configuration: ConsumerConfiguration) -> TopicConsumer:
    """A subscribed consumer, with letters if it is configured for them. Raises the first refusal."""
    policy = LetterPolicy.of(configuration, lambda: random_name(core))
    if policy is None:
        consumer = TopicConsumer(core, configuration)
    else:
        also = () if policy.retry_topic is None else (policy.retry_topic,)
        consumer = TopicConsumer(core, configuration, also=also)
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
        checked(b"", copied)
        if times > self.policy.max_redeliver_count:
            await self._dead_letter_producer(message.topic_name()).send(message, copied)
        else:
            if self._retry is None:
                self._retry = LetterProducer(self._core, self.policy.retry_producer)
            now_ms = self._core.environment.clock.now_ms()
            await self._retry.send(message, copied, now_ms + delay_ms if delay_ms else None)
        source.acks.acknowledge(message)

    # ---- Dead letters ----

    async def give_up(self, message: Message, properties: Mapping[str, str] | None = None) -> None:
        """Store a copy in the dead letter topic, then acknowledge the message, however often it was delivered.

        The copy gets `properties` beside those of the message.
        Raises why the copy could not be stored. Then the message is not acknowledged.
        """
        source = self._consumer.topics.source_of(message)  # refuses what belongs elsewhere before anything is stored
        copied = letter_properties(message, self.policy.subscription, properties)
        await self._dead_letter_producer(message.topic_name()).send(message, copied)
        source.acks.acknowledge(message)

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
