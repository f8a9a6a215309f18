"""Bugs of our own choosing, for the mutation gate: what a careless change could bring into this project."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, cast
from unittest.mock import patch

from magnetar.actors.coordinator.member_lists import url_of
from magnetar.actors.coordinator.office import TopicWatchers
from magnetar.actors.coordinator.owner_methods import PlacementMethods
from magnetar.actors.coordinator.topic_registry import TopicFacts, TopicRegistry
from magnetar.actors.dispatch.consumer import AttachedConsumer
from magnetar.actors.dispatch.failover import FailoverDispatcher
from magnetar.actors.dispatch.key_shared import Holding, SlotHoldings, WaitingEntries
from magnetar.actors.keeping.inactivity import Inactivity
from magnetar.actors.members.topic_lookup import Lookups
from magnetar.actors.members.topic_watch import TopicWatch
from magnetar.actors.topics import persistent
from magnetar.actors.topics.access_modes import AccessRequest, TopicAccess
from magnetar.actors.topics.non_persistent import PassingSubscription
from magnetar.actors.topics.topic import SubscriptionStart
from magnetar.client.consuming.message import Message, ReceivedEntry
from magnetar.client.consuming.partition_consumer import ChunkReceiver, PartitionConsumer
from magnetar.client.core.message_id import MessageId
from magnetar.client.letters.handling import Letters
from magnetar.protocol.errors import MagnetarError, OutcomeUnknown, StaleEpoch
from magnetar.protocol.message_id import Position
from magnetar.protocol.pulsar_pb2 import MessageMetadata
from magnetar.protocol.topics import TopicName
from magnetar.runtime.files import File
from magnetar.storage.bookie import journal as group_commit
from magnetar.storage.bookie.journal_files import JournalFiles, MakingState
from magnetar.storage.bookie.segment import Segment
from magnetar.storage.bookie.segment_reader import RangeRead, SegmentReader
from magnetar.storage.ledger.recovery import LedgerRecovery
from magnetar.storage.ledger.writer import LedgerWriter
from magnetar.storage.ledger.writer_state import LedgerWriterState, SlotState
from magnetar.storage.managed.acknowledged import EntryRanges
from magnetar.storage.managed.cursor import Cursor
from magnetar.storage.managed.cursor_state import CursorState, Whole
from magnetar.storage.managed.cursor_storage import CursorStorage, StorageState
from magnetar.storage.managed.record import ManagedLedgerRecord, OwnedRecord, TopicEpoch
from magnetar.storage.metadata.ledger_ids import LedgerIds
from magnetar.storage.metadata.ledger_metadata import LedgerMetadata

from .mutant import Denying, Mutant, replace


def _retire(stack: ExitStack) -> None:
    def check(inactivity: Any) -> bool:
        topic = inactivity._topic
        return topic.policies.inactive_topic_policies.delete and topic.is_open and not topic.in_use

    replace(stack, Inactivity, "check", check)


def _answer_before_the_sync(stack: ExitStack) -> None:
    def write(file: File, offset: int, parts: list[bytes], sync: bool) -> None:
        if sync:
            file.sync()
        file.write_at(offset, [b"".join(parts)])

    replace(stack, group_commit, "_write", write)


def _fill_journals_in_use(stack: ExitStack) -> None:
    """Checksums tell what the zeros destroyed, so that no bookie denies it: its ledgers can never be recovered."""
    waiting = JournalFiles.hurry

    def hurry(self: JournalFiles, segment: Segment) -> None:
        making = self._making.get(segment.file_id)
        if making is None or making.timer is None:
            waiting(self, segment)
            return
        file = self.take(segment)
        rest = JournalFiles(self._files, self._lane, lambda segment, file, error: None)
        rest._making[segment.file_id] = making
        making.state = MakingState.PAUSING  # as if it had not been taken
        rest._fill(making)
        self._loop.call_soon(self._on_prepared, segment, file, None)

    replace(stack, JournalFiles, "hurry", hurry)


def _store_cursors_ahead(stack: ExitStack) -> None:
    def ahead(mark: Position, ranges: list[tuple[int, EntryRanges]]) -> Position:
        return max(mark, *((ledger_id, last) for ledger_id, one in ranges for _, last in one)) if ranges else mark

    packing = Whole.pack

    def packed(self: Whole) -> bytes:
        return packing(self._replace(mark=ahead(self.mark, self.ranges), ranges=[]))

    replace(stack, Whole, "pack", packed)
    replace(stack, CursorState, "take_changes", lambda self: None)


def _accept_a_stale_epoch(stack: ExitStack) -> None:
    change = OwnedRecord.change

    async def changing(self: Any, *arguments: Any, **options: Any) -> ManagedLedgerRecord:
        try:
            return await change(self, *arguments, **options)
        except StaleEpoch:
            found = await self._store.get(self._key)
            if found is None:
                raise
            self._version = found.version
            return await change(self, *arguments, **options)

    replace(stack, OwnedRecord, "change", changing)


def _trim_before_cursors_move(stack: ExitStack) -> None:
    mark = property(lambda self: self._state.mark_delete, lambda self, position: None)
    replace(stack, Cursor, "durable_mark_delete", mark, create=True)


def _keep_replaced_acknowledgements(stack: ExitStack) -> None:
    def take_away(self: LedgerWriterState, slot: int, state: SlotState) -> None:
        self.slots[slot] = state
        self.tenures[slot] += 1
        self._slots_changed()

    replace(stack, LedgerWriterState, "_take_away", take_away)


def _take_silence_for_denial(stack: ExitStack) -> None:
    take = LedgerRecovery._take

    def taking(self: Any, reading: Any, *rest: Any) -> int:
        return take(self, Denying(reading), *rest)  # type: ignore[arg-type]

    replace(stack, LedgerRecovery, "_take", taking)


def _close_at_the_last_entry_sent(stack: ExitStack) -> None:
    close = LedgerWriter.close

    async def closing(self: LedgerWriter) -> LedgerMetadata:
        self._state.lac = self._state.last_added
        return await close(self)

    replace(stack, LedgerWriter, "close", closing)


def _pass_over_entries(stack: ExitStack) -> None:
    choose = SegmentReader._choose

    def choosing(self: SegmentReader, request: RangeRead, candidates: Any) -> tuple[list[int], int]:
        chosen, following = choose(self, request, candidates)
        if following <= request.last:  # the next one that a segment gave: others may have given less than they have
            following = min((entry_id for entry_id in candidates if entry_id >= following), default=following)
        return chosen, following

    replace(stack, SegmentReader, "_choose", choosing)


def _start_readers_one_entry_late(stack: ExitStack) -> None:
    start_position = persistent.start_position

    async def starting(view: Any, start: SubscriptionStart, *, durable: bool, now_ms: int) -> Position:
        found = await start_position(view, start, durable=durable, now_ms=now_ms)
        given = start.start_message_id
        if durable or given is None or given.batch_index >= 0 or given.position != found:
            return found
        return cast(Position, view.resolve((found[0], found[1] + 1)))

    replace(stack, persistent, "start_position", starting)


def _acknowledge_what_was_not_opened(stack: ExitStack) -> None:
    """The original's clients acknowledge, that is delete, what they cannot open."""
    opening = PartitionConsumer.open_entry

    def open_entry(self: Any, entry: Any) -> Sequence[Any]:
        try:
            return opening(self, entry)
        except MagnetarError:
            self._core.handover.wake(self.acks.acknowledge, MessageId(-1, *entry.position))
            return []

    replace(stack, PartitionConsumer, "open_entry", open_entry)


def _create_what_is_looked_up(stack: ExitStack) -> None:
    async def looking(self: PlacementMethods, *, topic: str) -> str:
        name = TopicName.parse(topic)
        await self._registry.check_assignable(name, self._office.namespaces.creation(name.namespace).allow)
        return url_of((await self._owner(name))[1])

    replace(stack, PlacementMethods, "lookup", looking)


def _create_for_every_subscriber(stack: ExitStack) -> None:
    claim = Lookups.claim

    async def claiming(self: Lookups, name: TopicName, create: bool) -> bool:
        return await claim(self, name, True)

    replace(stack, Lookups, "claim", claiming)


def _load_while_deleting(stack: ExitStack) -> None:
    """Owners get grants while their topic is deleted, and the mark in its record comes too late to refuse them."""
    facts = TopicRegistry.facts

    def all_facts(self: Any, topic: TopicName) -> TopicFacts | None:
        deleting, self.deleting = self.deleting, {}
        try:
            return facts(self, topic)
        finally:
            self.deleting = deleting

    async def mark(self: Any, topic: TopicName) -> None:
        self.deleting[topic.full] = None

    replace(stack, TopicRegistry, "facts", all_facts)
    replace(stack, TopicRegistry, "_check_stays", lambda self, topic: None)
    replace(stack, TopicRegistry, "mark_deleting", mark)


def _give_ids_out_again(stack: ExitStack) -> None:
    async def known(self: LedgerIds, end: int, by: str) -> None:
        self._heard = True

    replace(stack, LedgerIds, "known", known)


def _keep_topics_secret(stack: ExitStack) -> None:
    replace(stack, TopicWatchers, "_changed", lambda self, topic, before, partitions: None)


def _trust_old_lists(stack: ExitStack) -> None:
    replace(stack, TopicWatch, "registered", lambda self: None)


def _keep_the_epoch(stack: ExitStack) -> None:
    choose = TopicAccess._choose

    def choosing(self: Any, session: Any, returning: int | None) -> Any:
        return choose(self, session, max(self._highest, 0) if returning is None else returning)

    replace(stack, TopicAccess, "_choose", choosing)


def _let_deposed_leaders_in(stack: ExitStack) -> None:
    ask = TopicAccess.ask

    def asking(self: Any, session: Any, request: AccessRequest) -> Any:
        return ask(self, session, AccessRequest(request.mode, request.producer_epoch))

    replace(stack, TopicAccess, "check_epoch", lambda self, request: None)
    replace(stack, TopicAccess, "ask", asking)


def _forget_the_epoch(stack: ExitStack) -> None:
    async def forgetting(self: Any, epoch: int) -> None:
        return None

    replace(stack, TopicEpoch, "raise_to", forgetting)


def _forget_draining_slots(stack: ExitStack) -> None:
    def take(self: SlotHoldings, slot: int, consumer: AttachedConsumer) -> None:
        self.by_slot.setdefault(slot, Holding(consumer)).entries += 1

    replace(stack, SlotHoldings, "take", take)
    replace(stack, SlotHoldings, "blocks", lambda self, slot, consumer: False)
    replace(stack, SlotHoldings, "is_draining", lambda self, slot: False)


def _announce_twice(stack: ExitStack) -> None:
    once = FailoverDispatcher.take_announcements

    def twice(self: FailoverDispatcher) -> list[tuple[AttachedConsumer, bool]]:
        announcements = once(self)
        return announcements + announcements

    replace(stack, FailoverDispatcher, "take_announcements", twice)


def _overtake_waiting_entries(stack: ExitStack) -> None:
    replace(stack, WaitingEntries, "has_slot", lambda self, slot: False)


def _acknowledge_chunks_early(stack: ExitStack) -> None:
    arriving = ChunkReceiver.arrive

    def arrive(self: ChunkReceiver, chunk: ReceivedEntry) -> ReceivedEntry | None:
        message = arriving(self, chunk)
        if message is None:
            acks: Any = self._acks
            acks.acknowledge(MessageId(-1, *chunk.position))
        return message

    replace(stack, ChunkReceiver, "arrive", arrive)


def _lose_batch_indexes(stack: ExitStack) -> None:
    packing = Whole.pack
    replace(stack, Whole, "pack", lambda self: packing(self._replace(batches={})))
    replace(stack, CursorState, "take_changes", lambda self: None)


def _forget_the_doubt(stack: ExitStack) -> None:
    """As it was once: a certain failure settles the doubt of an earlier try as well."""
    switch = CursorStorage._switch_ledger

    async def switching(self: CursorStorage, state: bytes) -> None:
        try:
            await switch(self, state)
        except MagnetarError as error:
            if self.state is StorageState.IN_DOUBT and not isinstance(error, OutcomeUnknown):
                self._become(StorageState.NO_LEDGER if self.ledger_writer is None else StorageState.LEDGER)
            raise

    replace(stack, CursorStorage, "_switch_ledger", switching)


def _acknowledge_before_the_copy(stack: ExitStack) -> None:
    reconsume = Letters.reconsume_later

    async def reconsuming(self: Letters, message: Message, *others: Any) -> None:
        self._consumer.topics.source_of(message).acks.acknowledge(message)
        await reconsume(self, message, *others)

    replace(stack, Letters, "reconsume_later", reconsuming)


def _acknowledge_before_the_dead_letter(stack: ExitStack) -> None:
    move = Letters._move

    def moving(self: Letters, entry: ReceivedEntry) -> None:
        source: Any = entry.source
        source.acks.acknowledge_many(entry.open(self._core.configuration.decompressed_size_max_bytes))
        move(self, entry)

    replace(stack, Letters, "_move", moving)


def _keep_for_later(stack: ExitStack) -> None:
    """What no consumer has permits for waits until one has."""
    hand_on, wake = PassingSubscription.hand_on, PassingSubscription.wake

    def handing_on(self: Any, entry: bytes, messages: int, metadata: MessageMetadata, now_ms: int) -> None:
        consumer = self.dispatcher.receiver(metadata) if self.dispatcher is not None else None
        if consumer is not None and not consumer.able:
            self.__dict__.setdefault("kept", []).append((entry, messages, metadata, now_ms))
        hand_on(self, entry, messages, metadata, now_ms)

    def waking(self: Any) -> None:
        kept, self.kept = self.__dict__.get("kept", []), []
        for entry in kept:
            hand_on(self, *entry)
        wake(self)

    replace(stack, PassingSubscription, "hand_on", handing_on)
    replace(stack, PassingSubscription, "wake", waking)


def _hand_on_without_permits(stack: ExitStack) -> None:
    able = property(lambda self: not self.blocked and not self.closed and self.connection.writable)
    hand_on = PassingSubscription.hand_on

    def handing_on(self: PassingSubscription, *arguments: Any) -> None:
        with patch.object(AttachedConsumer, "able", able):
            hand_on(self, *arguments)

    replace(stack, PassingSubscription, "hand_on", handing_on)


OWN = (
    Mutant(
        "early letter",
        "a message is acknowledged before its copy is stored",
        "I1",
        _acknowledge_before_the_copy,
        "cluster",
    ),
    Mutant(
        "early dead letter",
        "a message is acknowledged before it is a dead letter",
        "I1",
        _acknowledge_before_the_dead_letter,
        "cluster",
    ),
    Mutant("kept for later", "a non-persistent message waits for permits", "I11", _keep_for_later, "cluster"),
    Mutant(
        "unpermitted",
        "a non-persistent message goes to a consumer without permits",
        "I11",
        _hand_on_without_permits,
        "cluster",
    ),
    Mutant(
        "early chunk",
        "a chunk is acknowledged before its message was handed over",
        "I7",
        _acknowledge_chunks_early,
        "cluster",
    ),
    Mutant(
        "lost indexes", "a cursor is stored without its batches' open messages", "I7", _lose_batch_indexes, "cluster"
    ),
    Mutant(
        "draining",
        "a key goes to its new consumer while its old one holds messages of it",
        "I6",
        _forget_draining_slots,
        "cluster",
    ),
    Mutant(
        "secret topics", "the coordinator does not tell of new and deleted topics", "I8", _keep_topics_secret, "cluster"
    ),
    Mutant(
        "old list", "a broker that has registered again does not list watched topics", "I8", _trust_old_lists, "cluster"
    ),
    Mutant("told twice", "the active consumer is announced twice", "I6", _announce_twice, "cluster"),
    Mutant(
        "overtaking",
        "a message of a key is sent while an earlier one waits for redelivery",
        "I6",
        _overtake_waiting_entries,
        "cluster",
    ),
    Mutant("ack before fsync", "a bookie answers when an entry is written, not synced", "I1", _answer_before_the_sync),
    Mutant("late zeros", "a journal that takes entries is still filled with zeros", "I8", _fill_journals_in_use),
    Mutant("cursor ahead", "a cursor is stored without its holes", "I7", _store_cursors_ahead),
    Mutant("stale epoch", "a superseded owner writes its chain over the next one's", "I2", _accept_a_stale_epoch),
    Mutant("early trim", "ledgers are trimmed before the cursors' places are stored", "I9", _trim_before_cursors_move),
    Mutant("old slot", "acknowledgements of a replaced bookie still count", "I1", _keep_replaced_acknowledgements),
    Mutant("silence", "recovery takes a time-out for a denial", "I1", _take_silence_for_denial),
    Mutant("last sent", "a writer closes its ledger at the last entry sent", "I1", _close_at_the_last_entry_sent),
    Mutant("late mark", "a partition loads while its topic is deleted", "I2", _load_while_deleting, "cluster"),
    Mutant("READ denies", "a READ passes over entries that it did not examine", "I3", _pass_over_entries),
    Mutant(
        "late reader",
        "a reader whose start id has no batch index begins behind that entry",
        "I4",
        _start_readers_one_entry_late,
        "cluster",
    ),
    Mutant(
        "not opened",
        "a consumer acknowledges what it could not open",
        "I7",
        _acknowledge_what_was_not_opened,
        "cluster",
    ),
    Mutant(
        "lookup creates", "a lookup creates the topic that it asks for", "I10", _create_what_is_looked_up, "cluster"
    ),
    Mutant(
        "always forced", "a subscriber creates its topic, forced or not", "I10", _create_for_every_subscriber, "cluster"
    ),
    Mutant("id again", "a restored counter gives ledger ids out twice", "I2", _give_ids_out_again, "cluster"),
    Mutant("same epoch", "exclusive access is granted without a higher epoch", "I2", _keep_the_epoch, "cluster"),
    Mutant("deposed leader", "a producer that was deposed comes back", "I2", _let_deposed_leaders_in, "cluster"),
    Mutant("settled doubt", "a failed snapshot settles the doubt about a cursor's record", "I1", _forget_the_doubt),
    Mutant("forgotten epoch", "the topic epoch is not stored", "I2", _forget_the_epoch, "cluster"),
    Mutant("no client", "a topic without clients is deleted in spite of its subscriptions", "I1", _retire, "cluster"),
)
