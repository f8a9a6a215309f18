"""Publish stage: each message of a producer name is stored once, however often its client sends it.

A message is known by its producer's name and its sequence id, in ascending order. Of a batch the highest id counts. Of
a message in chunks only the last chunk is judged: a message whose last chunk is not stored is not complete. Of each
name two ids are known:

- *pushed*: the highest of an entry that went to the ledger, whatever became of it.
- *persisted*: the highest of an entry that lies in the ledger. It is at most the pushed one.

An entry with an id up to *persisted* is a duplicate. One above that and up to *pushed* is perhaps stored: nobody knows
yet. Any other is new.

`TRANSITIONS` has the states. The stage is in its place in OPENING, REPLAYING and ON. Only in ON it judges. Before that
producers wait to attach, and an entry is refused with an error after which its client sends it again. So nothing is
stored unjudged once the policy holds.

A *snapshot* is one change of the cursor `pulsar.dedup`: its place, and as its properties the ids of everything up to
that place. The cursor keeps later entries from being trimmed. A topic that is loaded takes the snapshot, and reads the
entries behind it. A crash between two snapshots costs such a reading, and nothing else.

A failed append may be stored after all: the recovery of its ledger tells. So a failure leads back to REPLAYING. There
everything under way gets its outcome, the ledger is settled, and the entries behind the last known one are read. Only
then the pushed ids go back to the persisted ones. Done earlier, the next attempt could store a message twice. Never
done, it would be refused for ever.

An entry may be lost: no bookie that should have it has an intact copy. A replay asks for it `LOST_TRIES` times, and
then goes on behind it. A message of that entry is stored again if its producer sends it again, as nobody can read the
first one. An entry that may exist on a bookie that is away is waited for: to pass it would store a message twice. The
topic takes no messages until then. An operator can end that: start the bookie, have the cluster forget it, or switch
deduplication off for the topic.

Invariants:

- In ON, `persisted` covers every entry of the ledger up to `_known`, and `_known` is the last entry that was stored.
- A snapshot's properties are the ids of `persisted` at the moment when its place is `_known`.

Bounds: `brokerDeduplicationMaxNumberOfProducers` names in a snapshot. Names that are not connected are forgotten after
`brokerDeduplicationProducerInactivityTimeoutMinutes`, at the next snapshot.
"""

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ...protocol.entries import parse_metadata
from ...protocol.errors import (
    AlreadyClosed,
    BrokerPersistenceError,
    EntryCorrupt,
    LedgerFenced,
    MagnetarError,
    NoSuchEntry,
    NoSuchLedger,
    ProtocolError,
    ServiceUnitNotReady,
    StaleEpoch,
    SubscriptionNotFound,
)
from ...protocol.message_id import Position
from ...protocol.pulsar_pb2 import MessageMetadata
from ...protocol.topic_figures import TopicFigures
from ...runtime.backoff import Backoff
from ...runtime.gone import GONE
from ...runtime.settings.deduplication import DeduplicationSettings
from ...runtime.transitions import check_transition
from ...storage.managed.cursor import Cursor
from ...storage.managed.cursor_storage import CursorKind
from ..policies.effective import EffectivePolicies
from ..topics.feature import FeatureCursor, TopicFeature
from ..topics.producer import Publish
from ..topics.publishing import DUPLICATE, Duplicate, PublishStage, Refusal

if TYPE_CHECKING:
    from ..topics.persistent import PersistentTopic

DEDUPLICATION_CURSOR = "pulsar.dedup"

logger = logging.getLogger(__name__)

RETRY_INITIAL_S = 0.1
RETRY_MAX_S = 5.0
REPLAY_ENTRIES_MAX = 500
REPLAY_BYTES_MAX = 4 << 20
"""What one reading of a replay holds in memory."""
LOST = (NoSuchEntry, NoSuchLedger, EntryCorrupt)
"""What reading an entry raises of which no intact copy exists."""
LOST_TRIES = 6
"""They take 3 s together. The auditor may be about to copy the entry."""
BLOCKED_TRIES = 8
"""After so many failures in a row, about 15 s, the broker says how an operator can go on."""


class DeduplicationState(enum.Enum):
    """See `TRANSITIONS`. The values are Pulsar's words for statistics."""

    OFF = "Disabled"
    OPENING = "Initialized"
    REPLAYING = "Recovering"
    ON = "Enabled"
    REMOVING = "Removing"


_S = DeduplicationState
TRANSITIONS: Mapping[DeduplicationState, Collection[DeduplicationState]] = {
    _S.OFF: (_S.OPENING, _S.REMOVING),  # the policy holds; a topic without it is loaded, and still has the cursor
    _S.OPENING: (_S.REPLAYING, _S.REMOVING),  # the cursor is there; the policy no longer holds
    _S.REPLAYING: (_S.ON, _S.REMOVING),  # the ids of all entries are known
    _S.ON: (_S.REPLAYING, _S.REMOVING),  # an append failed
    _S.REMOVING: (_S.OFF,),  # the cursor is deleted
}
IN_PLACE = (_S.OPENING, _S.REPLAYING, _S.ON)
ON = _S.ON
ENDS = (StaleEpoch, LedgerFenced, AlreadyClosed)
"""The topic ends here with them."""


NONE = -1
"""The id before the first one."""


class Verdict(enum.Enum):
    """What an entry is."""

    NEW = enum.auto()
    DUPLICATE = enum.auto()
    UNKNOWN = enum.auto()


class SequenceIds:
    """The ids of all names. Pure."""

    def __init__(self) -> None:
        self.persisted: dict[str, int] = {}
        self._pushed: dict[str, int] = {}
        self._seen_ms: dict[str, int] = {}
        """When each name was last found in use."""

    def push(self, name: str, sequence_id: int) -> Verdict:
        """Judge an entry. A new one counts as pushed from now on."""
        if sequence_id > self._pushed.get(name, NONE):
            self._pushed[name] = sequence_id
            return Verdict.NEW
        return Verdict.DUPLICATE if sequence_id <= self.persisted.get(name, NONE) else Verdict.UNKNOWN

    def last_pushed(self, name: str) -> int:
        """The highest id pushed, −1 for none."""
        return self._pushed.get(name, NONE)

    def forget_pushed(self) -> None:
        """Everything pushed has its outcome, and what is not persisted is not stored. Called any earlier, an entry that
        is stored late would be stored again with the next attempt."""
        self._pushed = dict(self.persisted)

    # -- snapshots -------------------------------------------------------------------------------------------------

    def restore(self, properties: Mapping[str, str]) -> None:
        """Begin with a snapshot. What is no number, nobody here has written: it is left out."""
        found = {name: int(text) for name, text in properties.items() if text.isdecimal()}
        self.persisted = found
        self._seen_ms = {}
        self.forget_pushed()

    def snapshot(self, names_max: int, connected: Collection[str]) -> dict[str, str]:
        """The persisted ids, of those in use last if there are more than `names_max`."""
        names: list[str] = list(self.persisted)
        if len(names) > names_max:
            names.sort(key=lambda name: (name not in connected, -self._seen_ms.get(name, 0)))
            del names[names_max:]
        return {name: str(self.persisted[name]) for name in names}

    def forget_unused(self, connected: Collection[str], now_ms: int, after_ms: int) -> None:
        """Forget names that are not connected, and were not for so long."""
        seen = self._seen_ms
        for name in list(self.persisted):
            if name in connected:
                seen[name] = now_ms
            elif now_ms - seen.setdefault(name, now_ms) > after_ms and self._pushed.get(name) == self.persisted[name]:
                del self.persisted[name], self._pushed[name], seen[name]


NEW = Verdict.NEW


STEADY = (_S.OFF, _S.ON)


class Deduplication(TopicFeature, PublishStage):
    """See the module. The feature is its own stage: changes of policies do not make a new one."""

    name = "deduplication"
    settings = DeduplicationSettings
    policies = ("deduplication_enabled", "deduplication_snapshot_interval_seconds")
    duties = ("deduplication_enabled",)
    cursors = (FeatureCursor(DEDUPLICATION_CURSOR, CursorKind.DEDUPLICATION),)
    persistent_only = True
    renews_producers = True

    def __init__(self, host: "PersistentTopic") -> None:
        self.state = _S.OFF
        self.ids = SequenceIds()
        self._host = host
        self._cursor: Cursor | None = None
        self._known: Position = (-1, -1)
        """The ids of all entries up to this one are known."""
        self._new_entries = 0
        """Stored since the last snapshot."""
        self._timer: asyncio.TimerHandle | None = None
        self._works = False
        self._closed = False
        self._lost_tries = 0
        """How often this replay met an entry that is lost."""
        self._lost_entries = 0
        """Entries that it has passed because they are lost."""
        self._in_doubt = False
        """Whether the ledger has to be settled before it tells what was stored."""
        self._ready: asyncio.Event | None = None
        """Set when producers may attach; None while none of them has to wait."""

    @property
    def in_place(self) -> bool:
        """Whether entries pass this stage."""
        return self.state in IN_PLACE

    # -- the policy ------------------------------------------------------------------------------------------------

    def opened(self) -> None:
        self._use_policies()

    def policies_changed(self, before: EffectivePolicies) -> None:
        self._use_policies()

    def stage(self) -> PublishStage | None:
        return self if self.in_place else None

    @property
    def has_duties(self) -> bool:
        return self.state not in STEADY

    def figures(self, topic: TopicFigures) -> TopicFigures:
        return replace(topic, deduplication=self.state.value)

    def _use_policies(self) -> None:
        if self._host.policies.deduplication_enabled:
            if self.state is _S.OFF:
                self._in_doubt = self._host.publishing.pending > 0
                self._become(_S.OPENING)
        elif self.in_place or (self.state is _S.OFF and self._stored_cursor() is not None):
            self._become(_S.REMOVING)
        self._work()

    def _stored_cursor(self) -> Cursor | None:
        found = self._host.ledger.cursors.get(DEDUPLICATION_CURSOR)
        return found if found is not None and found.kind is CursorKind.DEDUPLICATION else None

    # -- entries ---------------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        return self._ready is None

    async def ready(self) -> None:
        """Wait until entries are judged, or deduplication is switched off."""
        if self._ready is not None:
            await self._ready.wait()

    def last_sequence_id(self, name: str) -> int | None:
        """The highest sequence id that a producer of that name has pushed, −1 for none. None: it is not known now, for
        an entry of that name is under way."""
        last = self.ids.last_pushed(name)
        return last if self.state is ON and last == self.ids.persisted.get(name, -1) else None

    def admit(self, publish: Publish, metadata: MessageMetadata) -> Refusal | Duplicate | None:
        if self.state is not ON:
            return Refusal(ServiceUnitNotReady(f"{self._host.name.full} recovers its sequence ids: send it again"))
        if not _is_numbered(metadata):
            publish.judged_id = -1
            return None
        name = publish.producer.name
        publish.judged_id = max(publish.sequence_id, publish.highest_sequence_id)
        verdict = self.ids.push(name, publish.judged_id)
        if verdict is NEW:
            return None
        if verdict is Verdict.DUPLICATE:
            return DUPLICATE
        return Refusal(
            BrokerPersistenceError(
                f"message {publish.judged_id} of producer {name} is under way to {self._host.name.full}, and may be "
                "stored or not: send it again"
            )
        )

    def stored(self, publish: Publish, position: Position) -> None:
        self._known = position
        if publish.judged_id >= 0:
            self.ids.persisted[publish.producer.name] = publish.judged_id
        self._count(1)

    def _count(self, entries: int) -> None:
        """So many more entries are stored than the last snapshot knows."""
        self._new_entries += entries
        if self._new_entries >= self._host.settings.deduplication_entries_interval:
            self.take_snapshot()
        elif self._timer is None and self._new_entries and not self._closed:
            interval_s = self._host.policies.deduplication_snapshot_interval_seconds
            if interval_s:
                self._timer = asyncio.get_running_loop().call_later(interval_s, self.take_snapshot)

    def failed(self, publish: Publish, error: BaseException) -> None:
        self._in_doubt = True
        if self.state is ON and not self._closed:
            self._become(_S.REPLAYING)
            self._work()

    # -- snapshots -------------------------------------------------------------------------------------------------

    def take_snapshot(self) -> None:
        """Store what is known with the cursor's next write."""
        self._stop_timer()
        if self.state is not ON or self._cursor is None or not self._new_entries:
            return
        self._new_entries = 0
        settings, connected = self._host.settings, self._host.publishing.producers
        after_ms = settings.deduplication_producer_inactivity_timeout_minutes * 60_000
        self.ids.forget_unused(connected, self._host.env.clock.now_ms(), after_ms)
        properties = self.ids.snapshot(settings.deduplication_producers_max, connected)
        self._cursor.take_snapshot(self._known, properties)
        self._host.cursor_moved()

    def closing(self) -> None:
        self.take_snapshot()
        self._closed = True
        self._let_in()

    def let_go(self) -> None:
        self._host = cast("PersistentTopic", GONE)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- from state to state ---------------------------------------------------------------------------------------

    def _become(self, state: DeduplicationState) -> None:
        check_transition(TRANSITIONS, f"deduplication of {self._host.name.full}", self.state, state)
        self.state = state
        if state not in (_S.OPENING, _S.REPLAYING):
            self._let_in()
        elif self._ready is None:
            self._ready = asyncio.Event()

    def _let_in(self) -> None:
        if self._ready is not None:
            self._ready.set()
            self._ready = None

    def _work(self) -> None:
        if not self._works and self._next_step() is not None:
            self._works = True
            self._host.spawn(self._take_steps(), "deduplication")

    async def _take_steps(self) -> None:
        backoff = Backoff(self._host.env.random, RETRY_INITIAL_S, RETRY_MAX_S)
        failures = 0
        try:
            while (step := self._next_step()) is not None:
                try:
                    await step()
                except ENDS:
                    return
                except MagnetarError as error:
                    delay_s = backoff.next_delay_s()
                    failures += 1
                    if failures % BLOCKED_TRIES == 0 and self.in_place:
                        logger.error(
                            "%s takes no messages until deduplication can go on behind entry %s. Start the missing "
                            "bookies. If they will not come back, switch deduplication off for this topic",
                            self._host.name.full,
                            self._known,
                        )
                    logger.warning(
                        "deduplication of %s (%s) goes on in %.1f s: %s",
                        self._host.name.full,
                        self.state.value,
                        delay_s,
                        error,
                    )
                    await asyncio.sleep(delay_s)
        finally:
            self._works = False

    def _next_step(self) -> Callable[[], Awaitable[None]] | None:
        if self.state is _S.OPENING:
            return self._open
        if self.state is _S.REPLAYING:
            return self._replay
        return self._remove if self.state is _S.REMOVING else None

    async def _open(self) -> None:
        cursor = await self._host.ledger.open_cursor(DEDUPLICATION_CURSOR, kind=CursorKind.DEDUPLICATION)
        if self.state is _S.OPENING:
            self._cursor, self._known = cursor, cursor.mark_delete_position
            self.ids.restore(cursor.properties)
            self._become(_S.REPLAYING)

    async def _replay(self) -> None:
        publishing, ledger = self._host.publishing, self._host.ledger
        while publishing.pending:
            await publishing.drained()
        if self._in_doubt:
            await ledger.settle()
        # From here on nothing is appended until the state is ON.
        while (first := ledger.next_position(self._known)) <= (last := ledger.last_confirmed):
            try:
                entries = await ledger.read(first, REPLAY_ENTRIES_MAX, REPLAY_BYTES_MAX, last)
                if not entries:
                    raise NoSuchEntry(f"entry {first} of {self._host.name.full} cannot be read")
            except LOST as error:
                self._pass_lost(first, error)
                continue
            if self.state is not _S.REPLAYING:
                return
            for position, body in entries:
                self._note(position, body)
        if self.state is _S.REPLAYING:
            if self._lost_entries:
                logger.error(
                    "%d entries of %s in front of %s are lost: their messages are stored again if they are sent again",
                    self._lost_entries,
                    self._host.name.full,
                    ledger.next_position(self._known),
                )
            self.ids.forget_pushed()
            self._in_doubt, self._lost_tries, self._lost_entries = False, 0, 0
            self._become(_S.ON)
            self._count(0)

    def _pass_lost(self, position: Position, error: MagnetarError) -> None:
        """Go on behind an entry that is lost. Raises the error as long as it is to be tried again."""
        self._lost_tries += 1
        if self._lost_tries < LOST_TRIES or self.state is not _S.REPLAYING:
            raise error
        self._lost_entries += 1
        self._known = position

    def _note(self, position: Position, body: bytes) -> None:
        """An entry is in the ledger."""
        self._known = position
        self._new_entries += 1
        try:
            metadata = parse_metadata(body)
        except ProtocolError:  # brokers check what they store, but the bytes may be of another program
            logger.warning("entry %s of %s has no readable metadata", position, self._host.name.full)
            return
        if _is_numbered(metadata):
            self.ids.persisted[metadata.producer_name] = max(metadata.sequence_id, metadata.highest_sequence_id)

    async def _remove(self) -> None:
        self._cursor = None
        self._stop_timer()
        if self._stored_cursor() is not None:
            try:
                await self._host.ledger.delete_cursor(DEDUPLICATION_CURSOR, CursorKind.DEDUPLICATION)
            except SubscriptionNotFound:
                logger.info("the cursor %s of %s is gone already", DEDUPLICATION_CURSOR, self._host.name.full)
        self.ids, self._new_entries = SequenceIds(), 0
        self._become(_S.OFF)
        self._host.cursor_moved()
        if self._host.policies.deduplication_enabled:  # again, meanwhile
            self._use_policies()
            self._host.renew_stages()


def _is_numbered(metadata: MessageMetadata) -> bool:
    """Whether an entry completes messages."""
    return metadata.num_chunks_from_msg <= 1 or metadata.chunk_id == metadata.num_chunks_from_msg - 1
