"""Which producers a topic admits: by name, by bound, and by access mode.

`access_modes` decides about access, in one step. This module does the rest:

1. It ends the sessions of those that lose their access, in the same step. So none of their entries is acknowledged
   after the decision. Their entries that are on their way lie in the ledger before everything of the next producer.
2. It stores the epoch of the grant.
3. Then it lets the producer in, unless that has left, or was fenced out, meanwhile.

A crash behind step 2 leaves a higher epoch that no producer has. The next grant has a higher one.

A producer that is in the way may be one whose connection is dead. So the broker asks its connection for a sign of life
before it refuses a newcomer, and sends it away if none comes. `check_holder` does the same for a newcomer that waits.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from ...protocol.errors import MagnetarError, ProducerBusy, ProducerFenced, ServiceUnitNotReady
from ...runtime.gone import GONE
from ...storage.managed.record import TopicEpoch
from .access_modes import NO_EPOCH, AccessMode, Decision, Grant, TopicAccess, stale_text
from .producer import AttachedProducer, Turn

if TYPE_CHECKING:
    from .loaded_topics import Topic

logger = logging.getLogger(__name__)


class MemoryEpoch:
    """The epoch of a topic that stores nothing."""

    def __init__(self) -> None:
        self.stored = NO_EPOCH

    async def raise_to(self, epoch: int) -> None:
        self.stored = max(self.stored, epoch)


class ProducerAdmission:
    """See the module. `check` raises what a publish stage has against a producer."""

    def __init__(
        self, host: "Topic", epochs: TopicEpoch | MemoryEpoch, check: Callable[[AttachedProducer], None]
    ) -> None:
        self.producers: dict[str, AttachedProducer] = {}
        """Those that may publish, by name."""
        self.access = TopicAccess(epochs.stored, host.name.full)
        self._host = host
        self._epochs = epochs
        self._check = check
        self._turns: dict[AttachedProducer, Turn] = {}

    @property
    def waiting(self) -> int:
        """How many producers wait for their turn."""
        return len(self._turns)

    def let_go(self) -> None:
        """The topic is closed."""
        self._host = cast("Topic", GONE)
        self._check = GONE

    # -- coming ------------------------------------------------------------------------------------------------------

    async def add(self, producer: AttachedProducer, turn: Turn) -> bool:
        """Admit a producer, now (True) or when it is its turn (False).

        Raises ProducerBusy, ProducerFenced, NotAllowedError, ServiceUnitNotReady, and what storing the epoch raises.
        """
        self._host.check_open()
        self._check(producer)
        self.access.check_epoch(producer.asks)
        in_the_way = self._in_the_way(producer)
        if in_the_way is not None and in_the_way.connection is not producer.connection:
            if not await in_the_way.connection.check_alive():
                self.disconnect(in_the_way)
            self._host.check_open()
            self._check(producer)  # the policies may have changed meanwhile
        if producer.connection.closed:
            raise ServiceUnitNotReady("the connection ended")
        if self._replaces(producer):
            return True
        if self._waits_again(producer, turn):
            return False
        return await self._ask(producer, turn)

    def _in_the_way(self, producer: AttachedProducer) -> AttachedProducer | None:
        """Who would have to be gone for the producer to be admitted."""
        incumbent = self.producers.get(producer.name)
        if incumbent is not None and producer.may_replace(incumbent):
            return None
        if producer.asks.mode in (AccessMode.SHARED, AccessMode.EXCLUSIVE):
            holder = self.access.holder
            return holder if holder is not None else incumbent
        return None

    def _replaces(self, producer: AttachedProducer) -> bool:
        """Whether the producer was here, and has come back before the broker knew that it had left."""
        incumbent = self.producers.get(producer.name)
        if incumbent is None or not producer.may_replace(incumbent) or not self.access.replace(incumbent, producer):
            return False
        producer.topic_epoch = incumbent.topic_epoch
        self._end(incumbent)
        self.producers[producer.name] = producer
        return True

    def _waits_again(self, producer: AttachedProducer, turn: Turn) -> bool:
        """The same for one that waits: it keeps its place."""
        if producer.asks.mode is not AccessMode.WAIT_FOR_EXCLUSIVE:
            return False
        for incumbent in self._turns:
            if incumbent.name == producer.name and producer.may_replace(incumbent):
                if not self.access.replace(incumbent, producer):
                    return False
                del self._turns[incumbent]
                self._turns[producer] = turn
                self._end(incumbent)
                return True
        return False

    async def _ask(self, producer: AttachedProducer, turn: Turn) -> bool:
        bound = self._host.policies.max_producers_per_topic
        if 0 < bound <= len(self.producers) and producer.asks.mode is AccessMode.SHARED:
            raise ProducerBusy(
                f"{self._host.name.full} has {bound} producers, as many as it may have: close one, or raise "
                "maxProducersPerTopic"
            )
        decision = self.access.ask(producer, producer.asks)
        for evicted in decision.evicted:
            self._end(evicted)
        self._refuse(decision)
        if decision.queued:
            self._turns[producer] = turn
            return False
        if decision.grant is not None:
            await self._store(decision.grant)
        elif producer.name in self.producers:
            self.access.left(producer)
            raise ProducerBusy(
                f"a producer named {producer.name} is connected to {self._host.name.full} already: close it, or choose "
                "another name"
            )
        self._enter(producer)
        return True

    def _enter(self, producer: AttachedProducer) -> None:
        epoch = self.access.epoch if self.access.holder_epoch is None else self.access.holder_epoch
        producer.topic_epoch = None if epoch == NO_EPOCH else epoch
        self.producers[producer.name] = producer

    async def _store(self, grant: Grant) -> None:
        """Store the epoch of a grant, so that its producer may publish. Raises why it may not."""
        if grant.epoch > self.access.epoch:
            try:
                await self._epochs.raise_to(grant.epoch)
            except (Exception, asyncio.CancelledError):
                self._go_on(self.access.failed(grant))
                raise
        if not self.access.stored(grant):
            if grant.fenced:
                raise ProducerFenced(self._fenced_text)
            raise ServiceUnitNotReady("the producer left, or the topic closed, before its access was granted")

    # -- turns -------------------------------------------------------------------------------------------------------

    def _go_on(self, decision: Decision) -> None:
        """Somebody has left."""
        self._refuse(decision)
        if decision.grant is not None:
            self._host.spawn(self._give_turn(decision.grant), "grant access")

    async def _give_turn(self, grant: Grant) -> None:
        producer = grant.session
        try:
            await self._store(grant)
        except Exception as error:
            if not isinstance(error, MagnetarError):  # a defect; the client must not wait in vain
                logger.exception("granting access to %s failed", self._host.name.full)
                error = ServiceUnitNotReady(f"internal error: {error!r}")
            self._answer(producer, error)
        else:
            self._enter(producer)
            self._answer(producer, None)

    @property
    def _fenced_text(self) -> str:
        return f"another producer took {self._host.name.full} for itself: create a new producer to try again"

    def _refuse(self, decision: Decision) -> None:
        for waiting in decision.refused:
            epoch = waiting.asks.topic_epoch
            text = self._fenced_text
            if epoch is not None:
                text = stale_text(self._host.name.full, self.access.epoch, epoch)
            self._answer(waiting, ProducerFenced(text))

    def _answer(self, producer: AttachedProducer, error: MagnetarError | None) -> None:
        turn = self._turns.pop(producer, None)
        if error is not None:
            producer.end()
        if turn is not None:
            turn(error)

    async def check_holder(self) -> None:
        """Send away a producer with exclusive access whose connection is dead."""
        holder = self.access.holder
        if holder is not None and not await holder.connection.check_alive():
            self.disconnect(holder)

    # -- going -------------------------------------------------------------------------------------------------------

    def remove(self, producer: AttachedProducer) -> None:
        """A producer has left; what it has under way is completed without it."""
        producer.end()
        self._turns.pop(producer, None)
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]
        self._go_on(self.access.left(producer))

    def disconnect(self, producer: AttachedProducer) -> None:
        """Send a producer away with CLOSE_PRODUCER; its client looks up again and resends what has no receipt."""
        self.remove(producer)
        producer.connection.producer_closed(producer)

    def disconnect_all(self) -> None:
        """Send every producer away, those that wait, too. Nobody gets a turn by that: they all come back."""
        self.access.clear()
        gone = [*self._turns, *self.producers.values()]
        self._turns.clear()
        for producer in gone:
            self.disconnect(producer)

    def _end(self, producer: AttachedProducer) -> None:
        """End the session of a producer that has no access any longer, and tell its client."""
        producer.end()
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]
        producer.connection.producer_closed(producer)
