"""Publishing on one topic: its producers, and their entries on the way into the ledger.

An entry goes through the stages of the topic in order, then into the ledger. The ledger's answer goes to the stages and
then to the producer. A plain topic has no stages. A stage sees each entry at two points:

- `admit`, before the append. The first stage that returns a Refusal ends it: nothing is appended, and `failed` is
  called on the stages before it. The producer's session ends with SEND_ERROR behind the receipts of the earlier
  entries. The first that returns DUPLICATE ends it, too, but the producer gets a receipt in its turn.
- `stored` or `failed`, exactly once for each entry that the stage admitted, in the order of appends, and before the
  producer is answered.

Guarantees: receipts of one producer come in the order of its entries and without gaps. If an entry failed, no later
entry of the same session is acknowledged to that session, even if it was stored.

Left to others: which producers are admitted (`admission`), the topic's state (`topic`), storing (managed ledger), and
each stage's decision (one file per stage). The topic is told of a failure, and when nothing is pending.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

from ...protocol.commands import send_error, send_receipt
from ...protocol.entries import is_marker
from ...protocol.errors import (
    BrokerPersistenceError,
    MagnetarError,
    NoSuchEntry,
    NotAllowedError,
    ServiceUnitNotReady,
    ends_topic,
    server_error_code,
)
from ...protocol.message_id import Position
from ...protocol.pulsar_pb2 import MessageMetadata
from ...runtime.gone import GONE
from ...runtime.meter import Meter
from ...storage.managed.managed_ledger import ManagedLedger
from ...storage.managed.record import TopicEpoch
from .access_modes import NO_EPOCH
from .admission import MemoryEpoch, ProducerAdmission
from .producer import AttachedProducer, ProducerState, Publish, Turn
from .topic import TopicState
from .traffic import Traffic

if TYPE_CHECKING:
    from .loaded_topics import Topic
    from .non_persistent import Relay

OPEN = TopicState.OPEN
PRODUCER_OPEN, PRODUCER_REFUSED = ProducerState.OPEN, ProducerState.REFUSED


@dataclass(frozen=True, slots=True)
class Refusal:
    """An entry must not be stored: its producer gets this error, and its session ends."""

    error: MagnetarError


class Duplicate:
    """An entry is stored already: its producer gets a receipt without a place, behind those of earlier entries."""


DUPLICATE = Duplicate()
NO_POSITION: Position = (-1, -1)
"""What the receipt of a duplicate names, as in Pulsar."""


class PublishStage:
    """One condition on what a topic stores. Nothing here may block, wait or raise, but for `check_producer`, which may
    raise, and `ready`, which may wait."""

    renews_producers: ClassVar[bool] = False
    """Whether producers have to attach again when the stage comes into place."""

    @property
    def is_ready(self) -> bool:
        """Whether entries can be admitted. Before that no producer attaches."""
        return True

    async def ready(self) -> None:
        """Wait until entries can be admitted."""

    def last_sequence_id(self, name: str) -> int | None:
        """The highest sequence id that is known of a producer's name, −1 for none. None: it cannot be told now."""
        return -1

    def check_producer(self, producer: AttachedProducer) -> None:
        """A producer wants to attach. Raises the MagnetarError that PRODUCER is answered with."""

    def admit(self, publish: Publish, metadata: MessageMetadata) -> Refusal | Duplicate | None:
        """An entry arrived. None lets it pass."""

    def stored(self, publish: Publish, position: Position) -> None:
        """An entry that this stage admitted is durable."""

    def failed(self, publish: Publish, error: BaseException) -> None:
        """An entry that this stage admitted was not stored, or a later stage refused it."""

    def ended(self) -> None:
        """The topic does not have this stage any longer, or is closed. Entries that are on their way still come back
        to it."""


class StagedPublish(Publish):
    """An entry of a topic that has stages: they get the ledger's answer first. `behind` are the duplicates that came
    after it, and have not had their receipts."""

    __slots__ = ("behind", "stages")

    stages: tuple[PublishStage, ...]
    behind: "list[StagedPublish] | None"

    def completed(self, position: Position | None, error: BaseException | None) -> None:
        for stage in self.stages:
            if position is not None:
                stage.stored(self, position)
            else:
                stage.failed(self, error if error is not None else NoSuchEntry("an append without position"))
        super().completed(position, error)
        if self.behind is not None:
            for duplicate in self.behind:
                self.producer.publishing.publish_repeated(duplicate)


class Publishing:
    """See the module. `remember(position, messages)` keeps the message count of what was stored, for dispatch. Without
    `epochs` the topic epoch lives as long as this object. `traffic` is the one of the broker."""

    def __init__(
        self,
        host: "Topic",
        log: "ManagedLedger | Relay",
        remember: Callable[[Position, int], None],
        *,
        stages: tuple[PublishStage, ...],
        epochs: TopicEpoch | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        self.topic = host.name
        self._admission = ProducerAdmission(host, epochs or MemoryEpoch(), self.check)
        self.producers = self._admission.producers
        self.pending = 0
        self._loop = asyncio.get_running_loop()
        self.published = Meter(self._loop.time())
        self._traffic = traffic or Traffic()
        self._host = host
        self._log = log
        self.has_chunks = False
        """Whether a chunk of a larger message was published since the topic was loaded."""
        self._remember = remember
        self._stages = stages
        self.obstacles: list[Callable[[AttachedProducer], None]] = []
        """What else may keep producers away: called for each that comes, and raises what it is refused with."""
        self.on_left: Callable[[], None] = lambda: None
        """Called when a producer has left."""
        self._partition = host.name.partition
        self._drained: asyncio.Event | None = None
        """Made for the first caller that waits."""

    def use_stages(self, stages: tuple[PublishStage, ...]) -> None:
        """Entries that arrive from now on, and new producers, meet these stages. Entries that are on their way keep
        those that admitted them."""
        before, self._stages = self._stages, stages
        for stage in before:
            if stage not in stages:
                stage.ended()

    @property
    def stages(self) -> tuple[PublishStage, ...]:
        """What entries that arrive now meet."""
        return self._stages

    # -- producers -----------------------------------------------------------------------------------------------

    def check(self, producer: AttachedProducer) -> None:
        """Raise what a stage has against a producer."""
        for stage in self._stages:
            stage.check_producer(producer)
        for check in self.obstacles:
            check(producer)

    @property
    def is_ready(self) -> bool:
        """Whether producers may be added now."""
        return all(stage.is_ready for stage in self._stages)

    async def ready(self) -> None:
        """Wait until producers may be added."""
        for stage in self._stages:
            await stage.ready()

    async def add_producer(self, producer: AttachedProducer, turn: Turn) -> bool:
        """See `ProducerAdmission.add`."""
        return await self._admission.add(producer, turn)

    async def check_holder(self) -> None:
        """See `ProducerAdmission.check_holder`."""
        await self._admission.check_holder()

    def remove_producer(self, producer: AttachedProducer) -> None:
        """A producer left; what it has under way is completed without it."""
        self._admission.remove(producer)
        self.on_left()

    def let_go(self) -> None:
        """The topic is closed."""
        self._host = cast("Topic", GONE)
        self._admission.let_go()
        self.obstacles.clear()

    def disconnect(self, producer: AttachedProducer) -> None:
        """See `ProducerAdmission.disconnect`."""
        self._admission.disconnect(producer)
        self.on_left()

    def disconnect_all(self) -> None:
        """Send every producer away with CLOSE_PRODUCER; its client looks up again and resends what has no receipt."""
        self._admission.disconnect_all()

    @property
    def in_use(self) -> bool:
        """Whether a producer is connected, or waits for exclusive access."""
        return bool(self.producers or self.waiting_producers)

    @property
    def waiting_producers(self) -> int:
        """How many producers wait for exclusive access."""
        return self._admission.waiting

    @property
    def topic_epoch(self) -> int | None:
        """Of the last grant of exclusive access, None if there was none."""
        epoch = self._admission.access.epoch
        return None if epoch == NO_EPOCH else epoch

    def last_sequence_id(self, name: str) -> int:
        """What PRODUCER_SUCCESS says: the highest sequence id that is known of a producer's name, −1 for none. Raises
        ServiceUnitNotReady when it cannot be told now."""
        found = -1
        for stage in self._stages:
            known = stage.last_sequence_id(name)
            if known is None:
                raise ServiceUnitNotReady(f"messages of {name} are under way to {self._host.name.full}: try again")
            found = max(found, known)
        return found

    # -- entries -------------------------------------------------------------------------------------------------

    def publish(
        self,
        producer: AttachedProducer,
        sequence_id: int,
        highest_sequence_id: int,
        messages: int,
        entry: bytes,
        metadata: MessageMetadata,
    ) -> None:
        """Store an entry whose form was checked. The receipt goes out when it is durable.

        Nothing is answered while the topic is not open or after a failure: the producer is being sent away and its
        client resends.
        """
        if self._host.state is not OPEN or producer.state is not PRODUCER_OPEN:
            return
        size = len(entry)
        if self._stages:
            publish = StagedPublish(producer, sequence_id, highest_sequence_id, messages, size)
            publish.stages, publish.behind = self._stages, None
            if not self._admit(publish, metadata):
                return
            producer.last = publish
        else:
            publish = Publish(producer, sequence_id, highest_sequence_id, messages, size)
        if metadata.num_chunks_from_msg > 1:
            publish.is_chunk = True
        elif metadata.deliver_at_time or is_marker(metadata):
            publish.is_parsed_later = True
        producer.pending += 1
        self.pending += 1
        if self._traffic.timed is None:
            self._traffic.time(publish, self._loop.time())
        producer.connection.publish_began(size)
        try:
            self._log.append(entry, publish.completed)
        except MagnetarError as error:
            publish.completed(None, error)

    def _admit(self, publish: StagedPublish, metadata: MessageMetadata) -> bool:
        for index, stage in enumerate(self._stages):
            answer = stage.admit(publish, metadata)
            if answer is None:
                continue
            is_refused = isinstance(answer, Refusal)
            error = answer.error if isinstance(answer, Refusal) else NotAllowedError("the message is stored already")
            for earlier in self._stages[:index]:
                earlier.failed(publish, error)
            if is_refused:
                self.refuse(publish.producer, publish.sequence_id, error)
            else:
                self._repeat(publish)
            return False
        return True

    def _repeat(self, publish: StagedPublish) -> None:
        """Answer a duplicate, at once if no earlier entry of its producer is under way."""
        producer = publish.producer
        producer.connection.publish_began(publish.size_bytes)
        producer.pending += 1
        self.pending += 1
        last = producer.last
        if producer.pending > 1 and isinstance(last, StagedPublish):
            if last.behind is None:
                last.behind = []
            last.behind.append(publish)
        else:
            self.publish_repeated(publish)

    def publish_repeated(self, publish: Publish) -> None:
        """It is the turn of a duplicate's receipt."""
        self._send_receipt(publish, NO_POSITION)
        self._ended(publish)

    def refuse(self, producer: AttachedProducer, sequence_id: int, error: MagnetarError) -> None:
        """Answer an entry that cannot be stored with SEND_ERROR, behind the receipts of those before it, and end the
        session, so that no later entry overtakes it.
        """
        if producer.state is ProducerState.OPEN:
            producer.refuse(sequence_id, error)
            if not producer.pending:
                self._finish_refusal(producer)

    def _finish_refusal(self, producer: AttachedProducer) -> None:
        if producer.refusal is not None and producer.state is not ProducerState.CLOSED:
            sequence_id, error = producer.refusal
            producer.connection.write(
                send_error(producer.producer_id, sequence_id, server_error_code(error), str(error))
            )
            self._admission.disconnect(producer)

    def publish_completed(self, publish: Publish, position: Position | None, error: BaseException | None) -> None:
        """The ledger's answer to one append, in the order of appends."""
        producer = publish.producer
        if position is None:
            self._not_stored(publish, error if error is not None else NoSuchEntry("an append without position"))
        else:
            if publish.is_chunk:
                producer.chunks.add(1, publish.size_bytes)
                self.has_chunks = True
            elif not publish.is_parsed_later:
                self._remember(position, publish.messages)
            producer.published.add(publish.messages, publish.size_bytes)
            self.published.add(publish.messages, publish.size_bytes)
            self._traffic.published.add(publish.messages, publish.size_bytes)
            self._send_receipt(publish, position)
        self._ended(publish)

    def _send_receipt(self, publish: Publish, position: Position) -> None:
        producer = publish.producer
        session = producer.state
        if session is PRODUCER_OPEN or session is PRODUCER_REFUSED:
            producer.connection.write(
                send_receipt(
                    producer.producer_id,
                    publish.sequence_id,
                    publish.highest_sequence_id,
                    position[0],
                    position[1],
                    self._partition,
                )
            )

    def _ended(self, publish: Publish) -> None:
        """An entry has had its answer."""
        if publish is self._traffic.timed:
            self._traffic.timed_ended(self._loop.time())
        producer = publish.producer
        producer.connection.publish_ended(publish.size_bytes)
        producer.publish_ended()
        if not producer.pending and producer.refusal is not None:
            self._finish_refusal(producer)
        self.pending -= 1
        if self.pending == 0:
            if self._drained is not None:
                self._drained.set()
            if self._host.state is not OPEN:
                self._host.nothing_pending()

    def _not_stored(self, publish: Publish, error: BaseException) -> None:
        producer = publish.producer
        if producer.state in (ProducerState.OPEN, ProducerState.REFUSED):
            if not ends_topic(error):
                # As in Pulsar: the cause goes out before the producer is sent away, so that its client can tell it.
                code = server_error_code(BrokerPersistenceError(str(error)))
                producer.connection.write(send_error(producer.producer_id, publish.sequence_id, code, str(error)))
            producer.fail()
        self._host.publish_failed(error)

    async def drained(self) -> None:
        """Wait until no publish is under way."""
        if self.pending:
            if self._drained is None:
                self._drained = asyncio.Event()
            self._drained.clear()
            await self._drained.wait()
