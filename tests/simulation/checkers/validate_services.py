"""What has to hold in the live objects of brokers, the coordinator and clients between any two events of their process.

As in `validate_storage`: sentences for whatever does not, and nothing is changed.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any

from magnetar.actors.broker.service import BrokerService
from magnetar.actors.coordinator.service import CoordinatorService
from magnetar.actors.delays.buckets import DelayBuckets
from magnetar.actors.delays.delay_gate import Delays
from magnetar.actors.dispatch.entry_gate import EntryGate
from magnetar.actors.dispatch.failover import FailoverDispatcher
from magnetar.actors.dispatch.shared import SharedDispatcher
from magnetar.actors.dispatch.shared_chunks import ChunkedSharedDispatcher
from magnetar.actors.topics.non_persistent import NonPersistentTopic
from magnetar.actors.topics.persistent import PersistentTopic
from magnetar.actors.topics.producer import ProducerState
from magnetar.actors.topics.subscription import Subscription
from magnetar.actors.topics.subscription_members import SubscriptionState
from magnetar.client.aio.client import AsyncClient
from magnetar.client.aio.consumer import AsyncConsumer
from magnetar.client.consuming.partition_consumer import PartitionConsumer
from magnetar.client.consuming.topic_consumer import TopicConsumer
from magnetar.client.core.registration import Registration, RegistrationState
from magnetar.client.producing.chunking import Chunk
from magnetar.client.producing.partition_producer import PartitionProducer
from magnetar.client.producing.topic_producer import TopicProducer
from magnetar.protocol.errors import ServiceUnitNotReady
from magnetar.protocol.message_id import Position
from magnetar.protocol.slots import PAGES
from magnetar.protocol.topics import TopicName
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.slot_rows import SlotPage
from magnetar.storage.metadata.store import unpack
from support.stores.memory_store import MemoryRecords

from .bucket_watch import left_in
from .validate_storage import in_front_of, validate_cursor_state, validate_managed_ledger

# -- brokers -----------------------------------------------------------------------------------------------------------


def validate_broker(broker: BrokerService, records: MemoryRecords) -> Iterator[str]:
    """Loaded topics are owned, under the epoch that they were opened with; each of them is sound."""
    topics = broker.topics
    yield from topics.flaws()
    yield from broker.ownership.flaws()
    for topic in topics.table.all_granted():
        grant, entry = topic.grant, broker.ownership.entry_of(TopicName.parse(topic.full_name))
        if grant is None or grant.epoch != topic.epoch:
            yield f"{topic} is granted under epoch {topic.epoch}, by the grant {grant}"
        elif entry is None or entry.epoch != grant.home_epoch:
            yield f"{topic} is granted as {grant}, and its slot has {entry}"
    if broker.publish_budget.used_bytes < 0:
        yield f"fewer than no bytes are being published: {broker.publish_budget.used_bytes}"
    for name, topic in topics.loaded.items():
        opened = topic.ledger.epoch if isinstance(topic, PersistentTopic) else topic.epoch
        granted = topics.table.granted(name)
        if granted is None or not granted.epoch == topic.epoch == opened:
            yield f"{name} is loaded under epoch {topic.epoch}, granted as {granted and granted.epoch}"
        if isinstance(topic, PersistentTopic):
            yield from validate_topic(topic, records)
        elif isinstance(topic, NonPersistentTopic) and topic.publishing.pending:
            yield f"{name} is not persistent, and {topic.publishing.pending} publishes are under way"


def validate_topic(topic: PersistentTopic, records: MemoryRecords) -> Iterator[str]:
    name = topic.name.full
    publishing = topic.publishing
    pending = [producer.pending for producer in publishing.producers.values()]
    if min(pending, default=0) < 0 or sum(pending) > publishing.pending:
        yield f"{name}: {publishing.pending} publishes are under way, by producer {pending}"
    for key, producer in publishing.producers.items():
        if producer.name != key or producer.state is ProducerState.CLOSED:
            yield f"{name}: producer {key} is {producer.name}, {producer.state.value}"
    yield from validate_managed_ledger(topic.ledger, records)
    for subscription in topic.subscriptions.values():
        for problem in validate_subscription(subscription):
            yield f"{name}, subscription {subscription.name}: {problem}"


def validate_subscription(subscription: Subscription) -> Iterator[str]:
    """Consumers and what they hold. Of a Shared one: whatever lies in front of the read position and is not
    acknowledged is with exactly one consumer or waits in the replay set, and nothing is held of what the cursor has
    passed."""
    dispatcher, cursor = subscription.dispatcher, subscription.cursor
    if not subscription.durable:
        ledger = subscription.host.ledger
        yield from validate_cursor_state(cursor._state, ledger.chain, ledger._owned.record.highest_ledger_id)
        if dispatcher is None and not (subscription.closed or subscription._attaching or subscription._expiry):
            yield "it is not durable, nobody uses it or is about to, and nothing ends it"
    if (dispatcher is not None) != (subscription.state is SubscriptionState.TYPED):
        yield f"it is {subscription.state.value}, with a dispatcher: {dispatcher is not None}"
    if dispatcher is None:
        return
    if not dispatcher.consumers or subscription.closed:
        yield f"it has a dispatcher for {len(dispatcher.consumers)} consumers, closed: {subscription.closed}"
    for consumer in dispatcher.consumers:
        if consumer.closed:
            yield f"consumer {consumer.name} is not (or no longer) one of it"
    if not isinstance(dispatcher, SharedDispatcher):
        several = len(dispatcher.consumers) > 1 and not isinstance(dispatcher, FailoverDispatcher)
        if several or any(consumer.pending for consumer in dispatcher.consumers):
            yield f"an Exclusive subscription with {len(dispatcher.consumers)} consumers, or with pending entries"
        if dispatcher.active not in dispatcher.consumers:
            yield "its active consumer is not (or no longer) one of it"
        return
    holders: dict[Position, str] = {}
    bound = dispatcher._limits.unacked_messages_max
    chain, state = subscription.host.ledger.chain, cursor._state
    read, mark, ranges = dispatcher.read_position, state.mark_delete, state._ranges
    first = cursor.first_unacknowledged
    if passed := [position for position in dispatcher.held() if position < first]:
        yield f"of {sorted(passed)} something is held, redelivery counts included, and {first} is the first to deliver"
    for consumer in dispatcher.consumers:
        if consumer.unacked_messages != sum(consumer.pending.values()):
            yield f"{consumer.name} holds {sum(consumer.pending.values())} messages, {consumer.unacked_messages} count"
        if consumer.blocked != bool(bound) and consumer.blocked and consumer.unacked_messages <= bound // 2:
            yield f"{consumer.name} is blocked with {consumer.unacked_messages} of {bound} messages"
        for position in consumer.pending:
            if position in holders:
                yield f"{position} is with {holders[position]} and with {consumer.name}"
            holders[position] = consumer.name
            is_done = position <= mark or bool(ranges and state.is_acknowledged(position))
            unread = position >= read and not in_buckets(dispatcher.gate, (position,))
            if unread or is_done:
                yield f"{consumer.name} holds {position}, which is acknowledged or not yet read"
    replay = [*dispatcher._replay, *(one for one in dispatcher._aside if chain.contains(one))]
    if isinstance(dispatcher, ChunkedSharedDispatcher):
        replay += dispatcher._owners.parked_positions()
    delayed = held_until_their_time(dispatcher.gate) if dispatcher.gate is not None else []
    covered = in_buckets(dispatcher.gate, [*delayed, *replay])
    unread = [one for one in delayed if one >= read and one not in covered]
    if odd := [one for one in delayed if one in holders or one in replay or one in unread]:
        yield f"{odd} are held until their time, and with consumers, to be replayed or not yet read"
    if len(set(delayed)) != len(delayed):
        yield f"some of {delayed} are held twice"
    delayed = [one for one in delayed if one > mark and not (ranges and state.is_acknowledged(one))]
    if both := [position for position in replay if position in holders]:
        yield f"{both} wait for a replay, and are with consumers"
    end = in_front_of(read)
    behind = chain.count_between(mark, end)
    done = sum(
        max(0, min(last, end[1] if ledger_id == end[0] else last) - first + 1)
        for ledger_id, acknowledged in ranges.items()
        if ledger_id <= end[0]
        for first, last in acknowledged
    )
    if len(set(replay)) != len(replay):
        yield f"some of {replay} are set aside, and to be replayed too"
    # Buckets serve what they have without reading it from the topic, so it may be ahead of the read position.
    holders = {position: name for position, name in holders.items() if position < read}
    replay, delayed = ([one for one in found if one < read] for found in (replay, delayed))
    if behind - done != len(holders) + len(replay) + len(delayed):
        yield (
            f"of {behind} entries between {mark} and {read} {done} are acknowledged, "
            f"{len(holders)} with consumers, {len(replay)} to be replayed, {len(delayed)} held until their time"
        )


# -- the coordinator ---------------------------------------------------------------------------------------------------


def validate_coordinator(coordinator: CoordinatorService, records: MemoryRecords) -> Iterator[str]:
    """While it is active and has nothing to write, what it remembers of slots is what is stored."""
    try:
        office = coordinator.office
    except ServiceUnitNotReady:
        return
    if not office.active:
        return
    stored = records.by_key.get(metadata_keys.COORDINATOR_EPOCH)
    if stored is None or unpack(stored.value)["epoch"] != office.epoch:
        return  # superseded, and about to find out
    table, pages = office.placement.table, office.placement.stored_pages()
    if pages is not None:
        for number in range(PAGES):
            found = records.by_key.get(metadata_keys.slot_page(number))
            if found is None or pages.versions[number] is None:
                continue
            stored = _page(found.value, number, table.slots)
            known = table.page(number, {}, {})
            if stored.rows != known.rows or pages.versions[number] != found.version:
                yield f"page {number} of the slots is remembered as {known}, stored is {stored}"
            for one in (*known.rows.entries.values(), *known.rows.exceptions.values()):
                if one.epoch > pages.last_epoch:
                    yield f"a slot has epoch {one.epoch}, the next one is {pages.last_epoch + 1}"
    for connection, session in coordinator.sessions.sessions.items():
        if session.alive and office.membership.find(session.role, session.node_id) is not session:
            yield f"the session of {session.node_id} on {connection} is alive and not a member"


@lru_cache(maxsize=4096)
def _page(value: bytes, number: int, slots: int) -> SlotPage:
    return SlotPage.unpack(value, number, slots)


# -- clients -----------------------------------------------------------------------------------------------------------


def validate_client(client: AsyncClient) -> Iterator[str]:
    """Producers send in order and come back, consumers as well."""
    if client._core is None:
        return
    for opened in client._core.opened:
        if isinstance(opened, TopicProducer):
            for producer in opened.producers:
                yield from validate_producer(producer)
        elif isinstance(opened, TopicConsumer | AsyncConsumer):
            for consumer in opened.consumers if isinstance(opened, TopicConsumer) else ():
                yield from validate_consumer(consumer)


def validate_producer(producer: PartitionProducer) -> Iterator[str]:
    name = f"producer {producer.name} on {producer.topic.full}"
    for first, second in pairwise(producer.inflight):
        if isinstance(first, Chunk) and first.chunks is second.chunks:
            continue
        if not first.first_sequence_id <= first.last_sequence_id < second.first_sequence_id:
            yield (
                f"{name}: {first.first_sequence_id}…{first.last_sequence_id} is under way before "
                f"{second.first_sequence_id}…{second.last_sequence_id}"
            )
    if any(not (batch.callbacks or isinstance(batch, Chunk)) or not batch.entry for batch in producer.inflight):
        yield f"{name}: an empty batch is under way"
    if producer.registration.failure is not None and producer.inflight:
        yield f"{name} has failed, and {len(producer.inflight)} entries wait for an answer"
    if producer._registered:  # else it is being created
        yield from validate_registration(name, producer.registration)


def validate_registration(name: str, registration: Registration[Any]) -> Iterator[str]:
    state, connected = registration.state, registration.connection is not None
    if state is RegistrationState.READY and registration._ready_waiters:
        yield f"{name} is connected, and somebody waits for that"
    if state is RegistrationState.CONNECTING and not registration._reconnecting:
        yield f"{name} is not connected, and does nothing about it"
    if connected != (state is RegistrationState.READY) and state not in (
        RegistrationState.FAILED,
        RegistrationState.CLOSED,
    ):
        yield f"{name} is {state.name}, and {'has' if connected else 'has no'} connection"
    if (registration.failure is not None) != (state in (RegistrationState.FAILED, RegistrationState.CLOSED)):
        yield f"{name} is {state.name} for the reason {registration.failure!r}"


def validate_consumer(consumer: PartitionConsumer) -> Iterator[str]:
    name = f"consumer {consumer.name} on {consumer.topic.full}"
    yield from validate_registration(name, consumer.registration)
    acks = consumer.acks._state
    passed = acks._cumulative
    if passed is not None and any(position <= passed for position in (*acks._complete, *acks._missing)):
        yield f"{name} keeps acknowledgements up to {passed}, which is acknowledged as a whole"


def held_until_their_time(gate: EntryGate) -> list[Position]:
    """The entries that a gate of delayed delivery holds, in memory and in buckets."""
    assert isinstance(gate, Delays)
    index = gate._entries
    held = [position for _, position, _ in index._young]
    for _, _, run in index._runs:
        held += zip(run.ledgers[run.head :], run.entries[run.head :], strict=True)
    if isinstance(gate._spill, DelayBuckets):
        held += left_in(gate._spill)
    return held


def in_buckets(gate: EntryGate | None, positions: Iterable[Position]) -> set[Position]:
    """Those of the positions that need not be read from the topic, since buckets have them, or had."""
    if isinstance(gate, Delays) and isinstance(gate._spill, DelayBuckets):
        return set(gate._spill.covered(list(positions)))
    return set()
