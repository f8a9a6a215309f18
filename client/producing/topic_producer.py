"""The producer of a whole topic: one `PartitionProducer` for each partition, and the choice between them.

An unpartitioned topic is the case of one. The delay timer is common to all partitions. At each boundary the open
batches leave and the router turns to another partition. The router also turns when a batch is full. All partitions
share the bound on pending messages (`pending_pool`).

Which partition a message goes to.

Keyless messages of a round-robin producer stay on one partition until its batch is full or the batching delay has
passed. The official C++ and Python clients do the same. Without batching, every message goes to the next partition. A
key always decides by its hash, a custom router decides alone.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial

from ...protocol.errors import AlreadyClosed, CryptoError, InvalidConfiguration, InvalidMessage, MagnetarError
from ...protocol.hashing import java_string_hash, murmur3_32
from ...protocol.topics import PERSISTENT, TopicName
from ...runtime.environment import Chance
from ...runtime.tasks import together
from ..core.configuration import (
    BatchingType,
    HashingScheme,
    PartitionsRoutingMode,
    ProducerAccessMode,
    ProducerConfiguration,
)
from ..core.context import Core
from ..core.forking import inherited_error
from ..core.options import refuse
from ..core.outgoing_message import OutgoingMessage
from ..core.pending_pool import PendingPool
from ..crypto.encryption import RENEWAL_RETRY_S, RENEWAL_S, MessageEncryptor
from ..crypto.keys import ProducerCryptoFailureAction
from ..schemas.automatic import AutoProduceBytesSchema, ProducedBytes
from .interception import Interception
from .outbox import Outbox, SendCallback, outbox_type
from .outgoing import Outgoing, checked, delivery_time_ms, payload_of, payloads_of, seen_of
from .partition_producer import PartitionProducer
from .producer_statistics import ProducerStatistics
from .values import encoded, encoded_without_key

logger = logging.getLogger(__name__)


class Router:
    """Chooses partitions for one producer."""

    current = -1
    """Partition of keyless messages at this moment; −1 if every message has to be asked for."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions

    def choose(self, message: OutgoingMessage) -> int:
        """The partition of a message. May be called from any thread."""
        raise NotImplementedError

    def grow(self, partitions: int) -> None:
        """There are more partitions."""
        self._partitions = partitions

    def turn(self) -> None:
        """A batching delay has passed: a router that takes turns goes on with the next partition."""

    def turn_from(self, partition: int) -> None:
        """The batch of a partition is full, or it has no room: go on with the next one if it is this one's turn."""


def hash_function(scheme: HashingScheme) -> Callable[[str], int]:
    """The hash of a key, non-negative, as Java's clients compute it."""
    if scheme is HashingScheme.Murmur3_32Hash:
        return lambda key: murmur3_32(key.encode()) & 0x7FFFFFFF
    return java_string_hash


class RoundRobin(Router):
    """Partitions in turn for keyless messages, from a random start; without batching `every_message` turns."""

    def __init__(self, random: Chance, partitions: int, hash_of: Callable[[str], int], every_message: bool) -> None:
        super().__init__(partitions)
        self._hash = hash_of
        self._next = random.randrange(partitions)
        self._every_message = every_message
        self.current = -1 if every_message else self._next

    def choose(self, message: OutgoingMessage) -> int:
        key = message.partition_key()
        if key:
            return self._hash(key) % self._partitions
        if self._every_message:
            chosen = self._next
            self._next = (chosen + 1) % self._partitions
            return chosen
        return self.current

    def turn(self) -> None:
        if not self._every_message:
            self.current = (self.current + 1) % self._partitions

    def turn_from(self, partition: int) -> None:
        if self.current == partition:
            self.turn()


class SinglePartition(Router):
    """One partition, drawn at random when the producer is made, for all its keyless messages."""

    def __init__(self, random: Chance, partitions: int, hash_of: Callable[[str], int]) -> None:
        super().__init__(partitions)
        self._hash = hash_of
        self.current = random.randrange(partitions)

    def choose(self, message: OutgoingMessage) -> int:
        key = message.partition_key()
        return self._hash(key) % self._partitions if key else self.current


class Custom(Router):
    """The application's own function of message and number of partitions."""

    def __init__(self, partitions: int, route: Callable[[OutgoingMessage, int], int]) -> None:
        super().__init__(partitions)
        self._route = route

    def choose(self, message: OutgoingMessage) -> int:
        chosen = int(self._route(message, self._partitions))
        if not 0 <= chosen < self._partitions:
            raise InvalidMessage(
                f"the message router returned partition {chosen} of {self._partitions}, which does not exist"
            )
        return chosen


def make_router(configuration: ProducerConfiguration, random: Chance, partitions: int) -> Router:
    """The router that `configuration` asks for. A `message_router` is used whatever the mode says."""
    if configuration.message_router is not None:
        return Custom(partitions, configuration.message_router)
    hash_of = hash_function(configuration.hashing_scheme)
    if configuration.message_routing_mode is PartitionsRoutingMode.UseSinglePartition:
        return SinglePartition(random, partitions, hash_of)
    return RoundRobin(random, partitions, hash_of, every_message=not configuration.batching_enabled)


class KeyRenewal:
    """The data key of a producer that encrypts: loaded before the producer opens, renewed while it lives.

    Key readers may take their time (files, services), so they run on a thread. A renewal that fails is tried again
    after `RENEWAL_RETRY_S`; until then the former key stays in use.

    For the loop.
    """

    def __init__(self, core: Core, encryptor: MessageEncryptor, topic: str) -> None:
        self._core = core
        self._encryptor = encryptor
        self._topic = topic
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def load(self, *, required: bool) -> None:
        """Make the first key. Raises CryptoError if it is `required` and cannot be made."""
        try:
            await self._core.environment.offload.run(self._encryptor.renew)
        except CryptoError as error:
            if required:
                raise
            logger.warning("the producer on %s sends unencrypted messages: %s", self._topic, error)
            self._again(RENEWAL_RETRY_S)
        else:
            self._again(RENEWAL_S)

    def close(self) -> None:
        """Renew no more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _again(self, delay_s: float) -> None:
        if not self._closed:
            self._timer = self._core.loop.call_later(delay_s, self._start)

    def _start(self) -> None:
        if not self._core.tasks.closed:
            self._core.tasks.spawn(self._renew(), f"renew the data key of a producer on {self._topic}")

    async def _renew(self) -> None:
        try:
            await self._core.environment.offload.run(self._encryptor.renew)
        except CryptoError as error:
            logger.warning("the producer on %s keeps its data key: %s", self._topic, error)
            self._again(RENEWAL_RETRY_S)
        else:
            self._again(RENEWAL_S)


class PartitionGrowth:
    """How a producer notices partitions that are added to its topic: it asks every `partitions_update_interval_s`.

    A round that fails is made good for by the next one. The task ends with the producer.

    `grow` is called with a number of partitions that is greater than `count` was.
    """

    def __init__(self, core: Core, topic: str, count: int, grow: Callable[[int], Awaitable[None]]) -> None:
        self._core = core
        self._topic = topic
        self._count = count
        self._grow = grow
        period_s = core.configuration.partitions_update_interval_s
        self._task: asyncio.Task[None] | None = None
        if period_s:
            self._task = core.tasks.spawn(self._watch(period_s), f"partitions of {topic}"[:200])

    def stop(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()

    async def _watch(self, period_s: float) -> None:
        while True:
            await asyncio.sleep(period_s)
            try:
                count = await self._core.lookup.partitions(self._topic, create=False)
                if count > self._count:
                    await self._grow(count)
                    self._count = count
            except (MagnetarError, TimeoutError) as error:
                logger.warning("the partitions of %s could not be looked up or joined: %s", self._topic, error)


BATCHES_PENDING_MIN = 2
"""A partition may have at least so many full batches pending: one is under way while the next one fills."""


class TopicProducer:
    """See the module. `choose` may be called from any thread, the rest from the loop's."""

    def __init__(self, core: Core, configuration: ProducerConfiguration) -> None:
        self.configuration = configuration
        self.topic = TopicName.parse(configuration.topic)
        if configuration.chunking_enabled and self.topic.domain != PERSISTENT:
            raise InvalidConfiguration(
                f"chunking_enabled is set, but {self.topic.full} is not persistent: only persistent topics take chunks"
            )
        self.producers: list[PartitionProducer] = []
        self.router: Router | None = None
        """None for an unpartitioned topic."""
        self.interception: Interception | None = None
        """The face sets it: interceptors are told of the face that they belong to."""
        self.statistics = ProducerStatistics(core, self)
        self._core = core
        self._ticking: dict[PartitionProducer, None] = {}
        self._delay_s = configuration.batching_max_publish_delay_ms / 1000
        self._closed = False
        self._make_partition: Callable[[int], PartitionProducer] | None = None
        self._growth: PartitionGrowth | None = None
        self._keys: KeyRenewal | None = None
        self._encryptor: MessageEncryptor | None = None
        if configuration.encryption_keys and configuration.crypto_key_reader is not None:
            self._encryptor = MessageEncryptor(
                configuration.encryption_keys, configuration.crypto_key_reader, core.environment.random
            )
            self._keys = KeyRenewal(core, self._encryptor, self.topic.full)

    async def open(self) -> None:
        """Find the partitions and register with their brokers. Raises the first refusal; nothing is left open then."""
        core, topic = self._core, self.topic
        if isinstance(self.configuration.schema, AutoProduceBytesSchema):
            learnt = ProducedBytes(await core.schemas.latest(topic.full))
            self.configuration = replace(self.configuration, schema=learnt)
        configuration = self.configuration
        if self._keys is not None:
            required = configuration.crypto_failure_action is ProducerCryptoFailureAction.FAIL
            await self._keys.load(required=required)
        count = await core.lookup.partitions(topic.full, create=core.configuration.allow_auto_topic_creation)
        if count:
            self.router = make_router(configuration, core.environment.random, count)
            total = configuration.max_pending_messages_across_partitions
            share = max(1, total // count)
            if configuration.batching_enabled:
                share = max(share, BATCHES_PENDING_MIN * configuration.batching_max_messages)
            limit = min(configuration.max_pending_messages, share, total)
            pool = PendingPool(core.handover, total, count)
            self.producers = [self._make(topic.partition_topic(index), limit, pool) for index in range(count)]
            for index, producer in enumerate(self.producers):
                producer.outbox.on_full = partial(self.router.turn_from, index)
            self._make_partition = lambda index: self._make(topic.partition_topic(index), limit, pool)
        else:
            self.producers = [self._make(topic, configuration.max_pending_messages, None)]
        core.enter(self)  # a client that closes ends a producer that waits for access, too
        try:
            await together([producer.open() for producer in self._to_open()])
        except GeneratorExit:  # the loop has ended, and nothing can be awaited
            raise
        except BaseException:
            self._core.opened.pop(self, None)
            for producer in self.producers:
                producer.abandon(AlreadyClosed("the producer could not be created"))
                await producer.close()
            self._end_tasks()
            raise
        if count:
            self._growth = PartitionGrowth(core, topic.full, count, self._grow)

    async def _grow(self, count: int) -> None:
        """Register with the brokers of partitions that were added, then let the router choose them, too."""
        router, make = self.router, self._make_partition
        assert router is not None and make is not None
        added = [make(index) for index in range(len(self.producers), count)]
        try:
            await together([producer.open() for producer in added])
            if self._closed:
                raise AlreadyClosed("the producer is closed: create a new one")
        except BaseException:
            for producer in added:
                producer.abandon(AlreadyClosed("the partition was not joined"))
                await producer.close()
            raise
        for producer in added:
            producer.outbox.on_full = partial(router.turn_from, len(self.producers))
            self.producers.append(producer)
        router.grow(count)  # only now: other threads choose at any time

    def _to_open(self) -> list[PartitionProducer]:
        """All partitions; of lazy ones the first that is used, so that a refusal comes at once.

        As in Pulsar only Shared producers are lazy. A chosen name is that of a producer that may have published before:
        unless its sequence ids are given, the broker has to say where they go on.
        """
        configuration = self.configuration
        numbered = configuration.producer_name is None or configuration.initial_sequence_id is not None
        shared = configuration.access_mode is ProducerAccessMode.Shared
        if self.router is None or not (configuration.lazy_start_partitioned_producers and numbered and shared):
            return self.producers
        return [self.producers[max(self.router.current, 0)]]

    def _make(self, topic: TopicName, limit: int, pool: PendingPool | None) -> PartitionProducer:
        keyed = self.configuration.batching_type is BatchingType.KeyBased
        make_outbox = outbox_type(self._core.memory, keyed=keyed)
        producer = PartitionProducer(self._core, topic, self.configuration, limit, make_outbox, pool, self._encryptor)
        producer.on_open_batch = self._start_ticking
        return producer

    # ---- Choice ----

    def outgoing(
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
    ) -> bytes | Outgoing:
        """What is sent of what an application gave, after the producer's schema and interceptors.

        The parameters of all calls that send are declared here. `make reference` writes them to the two faces.

        Args:
            content: The payload as bytes, or a value of the producer's schema; None is a null value.
            properties: Properties of the message.
            partition_key: Key that chooses the partition.
            ordering_key: Key for KeyShared consumers, instead of `partition_key`.
            sequence_id: Number of the message; by default one more than the last.
            replication_clusters: Not supported. Leave it out.
            disable_replication: Not supported. Leave it out.
            event_timestamp: Time of the event, in ms since the epoch.
            deliver_at: Time before which it is not to be delivered, in ms since the epoch. See `deliver_after`.
            deliver_after: Delay of its delivery, a timedelta. Shared and KeyShared consumers get it then.

        Raises:
            InvalidMessage: If the message cannot be sent as it is.
            SchemaSerializationError: If the value does not fit the schema.
            OperationNotSupported: If an option asks for a feature that is not supported.
        """
        if replication_clusters or disable_replication:
            refuse("send", replication_clusters=replication_clusters, disable_replication=disable_replication)
        deliver_at_ms = None
        if deliver_at or deliver_after:
            deliver_at_ms = delivery_time_ms(deliver_at, deliver_after, self._core.environment.clock.now_ms())
        if self.configuration.schema is not None:
            content, partition_key = encoded(self.configuration.schema, content, partition_key)
        payload = content if type(content) is bytes else payload_of(content)
        if self.interception is None:
            return checked(
                payload, properties, partition_key, ordering_key, sequence_id, event_timestamp, deliver_at_ms
            )
        given = OutgoingMessage(payload, properties, partition_key, ordering_key, event_timestamp)
        return self.interception.message(given, sequence_id, deliver_at_ms)

    def choose(self, message: bytes | Outgoing) -> Outbox:
        """The outbox of the partition that a message goes to."""
        router = self.router
        if router is None:
            return self.producers[0].outbox
        if router.current >= 0 and (isinstance(message, bytes) or not message.partition_key):
            return self.producers[router.current].outbox
        return self.producers[router.choose(seen_of(message))].outbox

    def plain(self, values: Sequence[object]) -> list[bytes]:
        """Payloads of messages that carry nothing else, in a list of their own. Raises as `outgoing`."""
        return payloads_of(encoded_without_key(self.configuration.schema, values))

    def extend(self, contents: Sequence[bytes], start: int, callback: SendCallback) -> tuple[int, Outbox]:
        """Queue plain messages from `contents[start:]` on: how many were accepted, and the outbox that was full then.

        They go to the partition whose turn it is, up to a full batch. If the router chooses per message, each goes to
        its own partition. A partition that has no room is passed over.
        """
        router = self.router
        if router is None:
            outbox = self.producers[0].outbox
            return outbox.extend(contents, start, callback), outbox
        if router.current >= 0:
            for _ in self.producers:
                current = router.current
                outbox = self.producers[current].outbox
                accepted = outbox.extend(contents, start, callback, one_batch=True)
                if accepted or outbox.failure is not None:
                    return accepted, outbox
                router.turn_from(current)
            return 0, self.producers[router.current].outbox
        outbox = self.producers[0].outbox
        for index in range(start, len(contents)):
            outbox = self.choose(contents[index])
            if not outbox.add(contents[index], callback):
                return index - start, outbox
        return len(contents) - start, outbox

    # ---- Delay ----

    def _start_ticking(self, producer: PartitionProducer) -> None:
        if not self._ticking:
            self._core.loop.call_later(self._delay_s, self._tick)
        self._ticking[producer] = None

    def _tick(self) -> None:
        for producer in list(self._ticking):
            if producer.outbox.tick():
                producer.pump()
            else:
                del self._ticking[producer]
        if self.router is not None:
            self.router.turn()
        if self._ticking:
            self._core.loop.call_later(self._delay_s, self._tick)

    def seal(self) -> None:
        """Let all open batches go now."""
        for producer in self.producers:
            producer.outbox.seal()

    # ---- The whole ----

    @property
    def producer_name(self) -> str:
        """The name that the broker knows; all partitions share a configured one."""
        return next((producer.name for producer in self.producers if producer.name), "")

    @property
    def failure(self) -> MagnetarError | None:
        """Why nothing can be published any longer; None as long as one partition takes messages."""
        failures = [producer.outbox.failure for producer in self.producers]
        return None if None in failures else failures[0]

    @property
    def last_sequence_id(self) -> int:
        """The highest sequence id that has its receipt, −1 if none."""
        return max(producer.last_sequence_id for producer in self.producers)

    @property
    def is_connected(self) -> bool:
        """Whether all partitions that are in use are connected."""
        return all(producer.is_connected for producer in self.producers if producer.started)

    def refusal(self, outbox: Outbox) -> MagnetarError:
        """Why `outbox` does not accept a message, for a caller that does not wait. It counts as a failure."""
        with outbox.lock:
            outbox.refused += 1
        return outbox.failure or outbox.full_error()

    async def flush(self) -> None:
        """Until everything sent so far is stored. Raises the first failure."""
        outcomes = await asyncio.gather(*[producer.flush() for producer in self.producers], return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    def end_interval(self, now_s: float) -> None:
        """An interval of the statistics has ended, and the next one begins."""
        self.statistics.end_interval(now_s)

    async def close(self) -> None:
        """Send what is pending, then leave the brokers. May be called twice."""
        if not self._closed:
            self._closed = True
            self._end_tasks()
            self._core.opened.pop(self, None)
            await asyncio.gather(*[producer.close() for producer in self.producers])

    def _end_tasks(self) -> None:
        if self._growth is not None:
            self._growth.stop()
        if self._keys is not None:
            self._keys.close()

    def inherited(self) -> None:
        """See `forking`."""
        self._closed = True
        for producer in self.producers:
            producer.inherited(inherited_error("producer"))

    def abandon(self, reason: MagnetarError) -> None:
        """Fail everything, at once."""
        self._closed = True
        self._end_tasks()
        self._core.opened.pop(self, None)
        for producer in self.producers:
            producer.abandon(reason)
