"""What the users of ledgers and topics learned, and the invariants that it has to satisfy. Stands outside the nodes.

A place is (ledger, entry). Every body is unique and says which ledger's writer, or which owner of a topic, wrote it,
and as its how many-th entry.

- I1: what was acknowledged can be read at its place; what a cursor's `flush` stored is still acknowledged.
- I2: no place is acknowledged to two writers, nor ever holds two bodies; nothing stands there that was never written.
- I3: a CLOSED record keeps where it ends, and covers every acknowledged entry; the states only go forward.
- I4: an owner's entries stand in its topic in the order of appending, each once; a later owner's stand behind them.
- I7: no cursor is opened past an entry that was not acknowledged at it.
- I9: no topic trims an entry that some cursor's stored state has not passed, or that its retention covers.

What bookies store and what the metadata says is watched from beside them by `StoreWatch` and `MetadataWatch`.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from magnetar.storage.managed.cursor import Cursor
from magnetar.storage.managed.record import ManagedLedgerRecord
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.storage.metadata.store import Versioned

Place = tuple[int, int]

_ORDER = (LedgerState.OPEN, LedgerState.IN_RECOVERY, LedgerState.CLOSED)


@dataclass
class CursorHistory:
    """What consumers did at one durable cursor. Each acknowledgement with the epoch of the owner that took it."""

    acknowledged: dict[Place, int] = field(default_factory=dict)
    stored: dict[Place, int] = field(default_factory=dict)
    """Acknowledgements that a successful `flush` covered."""
    skipped: tuple[Place, int] = ((-1, -1), 0)
    """A seek forward passed everything before this place, seen or not; with the epoch."""
    sought: list[Place] = field(default_factory=list)
    """Where seeks went to. One that meets a trim may end in front of what that took."""

    def may_pass(self, place: Place) -> bool:
        return place in self.acknowledged or place < self.skipped[0]

    def will_seek(self, place: Place, epoch: int) -> None:
        """The owner of that epoch begins to set the cursor to `place`: it may take place, or not."""
        for other in [one for one, by in self.stored.items() if one >= place and by <= epoch]:
            del self.stored[other]
        self.skipped = max(self.skipped, (place, epoch))
        self.sought.append(place)

    def has_sought(self, place: Place, epoch: int) -> None:
        """It took place, durably: what lies behind is not acknowledged any longer."""
        if self.skipped[0] > place and self.skipped[1] <= epoch:
            self.skipped = (place, epoch)
        for known in (self.acknowledged, self.stored):
            for other in [one for one, by in known.items() if one >= place and by <= epoch]:
                del known[other]


@dataclass
class TopicHistory:
    """A topic: which of its places hold what, which of its ledgers left it in good order."""

    acknowledged: dict[Place, bytes] = field(default_factory=dict)
    seen: dict[Place, bytes] = field(default_factory=dict)
    """Acknowledged, or read."""
    trimmed: dict[int, None] = field(default_factory=dict)
    """Ledgers that left its chain when every cursor had passed them."""
    cursors: dict[str, CursorHistory] = field(default_factory=lambda: defaultdict(CursorHistory))
    retained_for_ever: bool = False
    """Whether retention covers all that it holds."""


class LedgerHistory:
    """See the module. `violations` are sentences that begin with the invariant."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.counts: dict[str, int] = defaultdict(int)
        self.written: dict[bytes, None] = {}
        self.protected: dict[int, None] = {}
        self.acknowledged: dict[Place, bytes] = {}
        self.places: dict[Place, bytes] = {}
        self.used: dict[int, None] = {}
        """Ledgers that were written for themselves, not for a topic or a cursor."""
        self.deleted: dict[int, None] = {}
        """Ledgers that their user asked to delete, or left without a name: nothing of them has to be readable."""
        self.unnamed_go = False
        """Whether ledgers in `used`, which nothing names, are soon deleted by the auditor."""
        self.topics: dict[str, TopicHistory] = defaultdict(TopicHistory)
        self._closed: dict[int, int] = {}
        self._highest: dict[int, int] = {}
        self._records: dict[int, LedgerMetadata] = {}
        self._gone: dict[int, None] = {}

    def violated(self, sentence: str) -> None:
        if sentence not in self.violations:
            self.violations.append(sentence)

    # -- entries -----------------------------------------------------------------------------------------------------

    def was_acknowledged(self, place: Place, body: bytes) -> None:
        """A writer was told that its entry is safe at `place`."""
        self.counts["acknowledged"] += 1
        before = self.acknowledged.setdefault(place, body)
        if before != body:
            self.violated(f"I2: {place} was acknowledged for {before[:40]!r} and for {body[:40]!r}")
        self._saw(place, body, "an acknowledgement")
        self.entry_acknowledged(*place)

    def entry_acknowledged(self, ledger_id: int, entry_id: int) -> None:
        """Some writer, of a cursor too, acknowledged its entries up to this one."""
        self._highest[ledger_id] = max(entry_id, self._highest.get(ledger_id, -1))
        end = self._closed.get(ledger_id)
        if end is not None and entry_id > end:
            self.violated(f"I3: {(ledger_id, entry_id)} was acknowledged behind the end {end} of its closed ledger")

    def was_read(self, place: Place, body: bytes) -> None:
        if body not in self.written:
            self.violated(f"I2: {place} holds {body[:40]!r}, which nobody wrote")
        self._saw(place, body, "a read")

    def _saw(self, place: Place, body: bytes, by: str) -> None:
        before = self.places.setdefault(place, body)
        if before != body:
            self.violated(f"I2: {place} held {before[:40]!r}, and by {by} {body[:40]!r}")

    def check_ledger(self, ledger_id: int, bodies: dict[int, bytes]) -> None:
        """All of a closed ledger was read."""
        for entry_id, body in bodies.items():
            self.was_read((ledger_id, entry_id), body)
        if ledger_id in self.deleted:
            return
        for (ledger, entry_id), body in self.acknowledged.items():
            if ledger == ledger_id and entry_id not in bodies:
                self.violated(f"I1: {body[:40]!r}, acknowledged at {(ledger, entry_id)}, is lost")

    # -- topics ------------------------------------------------------------------------------------------------------

    def was_appended(self, topic: str, place: Place, body: bytes) -> None:
        self.was_acknowledged(place, body)
        self.topics[topic].acknowledged[place] = self.topics[topic].seen[place] = body

    def was_delivered(self, topic: str, place: Place, body: bytes) -> None:
        self.was_read(place, body)
        self.topics[topic].seen[place] = body

    def check_cursor(self, topic: str, cursor: Cursor, epoch: int) -> None:
        """An owner with this epoch has just opened the topic.

        What later owners acknowledged it need not have: it may have stood still since it read the cursor.
        """
        known = self.topics[topic]
        history = known.cursors[cursor.name]
        for place in known.seen:
            if place[0] in known.trimmed:
                continue
            if cursor.is_acknowledged(place) and not history.may_pass(place):
                mark = cursor.mark_delete_position
                self.violated(f"I7: {cursor.name} of {topic} passes {place}, which nobody acknowledged (mark {mark})")
            elif history.stored.get(place, epoch + 1) <= epoch and not cursor.is_acknowledged(place):
                self.violated(f"I1: {cursor.name} of {topic} has lost its stored acknowledgement of {place}")
        for ledger_id in known.trimmed:
            last = max((entry for ledger, entry in known.seen if ledger == ledger_id), default=-1)
            mark = cursor.mark_delete_position
            if last >= 0 and mark < (ledger_id, last) and (mark[0], mark[1] + 1) not in history.sought:
                self.violated(f"I9: ledger {ledger_id} was trimmed, and {cursor.name} of {topic} is stored at {mark}")

    def check_log(self, topic: str, log: Iterable[tuple[Place, bytes]]) -> None:
        """All that a topic holds was read, in order."""
        known = self.topics[topic]
        found: dict[Place, bytes] = {}
        last = (-1, -1)
        for place, body in log:
            self.was_delivered(topic, place, body)
            owner, _, number = body.rsplit(b":", 2)
            order = (int(owner.rpartition(b"#")[2]), int(number))
            if order <= last:
                self.violated(f"I4: number {order[1]} of owner {order[0]} stands behind {last} at {place} of {topic}")
            last = order
            found[place] = body
        for place, body in known.acknowledged.items():
            if place[0] not in known.trimmed and found.get(place) != body:
                self.violated(f"I1: {body[:40]!r}, acknowledged at {place} of {topic}, is lost")

    # -- metadata ----------------------------------------------------------------------------------------------------

    def metadata_changed(self, key: str, before: Versioned | None, after: Versioned | None) -> None:
        if key.startswith(metadata_keys.LEDGERS_PREFIX):
            self._ledger_changed(metadata_keys.ledger_id_of(key), after)
        elif key.startswith(metadata_keys.MANAGED_PREFIX) and before is not None and after is not None:
            self._chain_changed(key.removeprefix(metadata_keys.MANAGED_PREFIX), before.value, after.value)

    def _ledger_changed(self, ledger_id: int, after: Versioned | None) -> None:
        old = self._records.pop(ledger_id, None)
        if after is None:
            self.counts["ledgers deleted"] += 1
            self._gone[ledger_id] = None
            if self.unnamed_go:
                self.deleted[ledger_id] = None
            return
        if (
            ledger_id in self._gone
        ):  # a create whose answer was lost landed after all, when its ledger was deleted again
            return
        new = self._records[ledger_id] = LedgerMetadata.unpack(after.value)
        if old is not None:
            if _ORDER.index(new.state) < _ORDER.index(old.state):
                self.violated(f"I3: ledger {ledger_id} went from {old.state} back to {new.state}")
            if old.closed and (new.last_entry, new.length) != (old.last_entry, old.length):
                self.violated(f"I3: closed ledger {ledger_id} changed from {old} to {new}")
            if old.fragments != new.fragments:
                self.counts["re-replications" if old.closed else "ensemble changes"] += 1
            if old.state is not new.state and new.state is LedgerState.IN_RECOVERY:
                self.counts["recoveries"] += 1
        if new.closed:
            self._closed[ledger_id] = new.last_entry
            highest = self._highest.get(ledger_id, -1)
            if highest > new.last_entry:
                self.violated(f"I3: ledger {ledger_id} was closed at {new.last_entry}, acknowledged up to {highest}")

    def _chain_changed(self, topic: str, before: bytes, after: bytes) -> None:
        known = self.topics.get(topic)
        if known is None:
            return
        kept = {info.ledger_id for info in ManagedLedgerRecord.unpack(after).ledgers}
        for info in ManagedLedgerRecord.unpack(before).ledgers:
            if info.ledger_id not in kept:
                self.counts["ledgers trimmed"] += 1
                if known.retained_for_ever and info.entries:
                    self.violated(f"I9: {topic} trimmed ledger {info.ledger_id}, which its retention covers")
                unpassed = list(self._unpassed(known, info.ledger_id))
                if not unpassed:
                    known.trimmed[info.ledger_id] = None
                for place, name in unpassed:
                    self.violated(f"I9: {topic} trimmed {place}, which is not acknowledged at {name}")

    def _unpassed(self, known: TopicHistory, ledger_id: int) -> Iterator[tuple[Place, str]]:
        for name, cursor in known.cursors.items():
            for place in known.seen:
                if place[0] == ledger_id and not cursor.may_pass(place):
                    yield place, name

    @property
    def open_ledgers(self) -> list[int]:
        """Ledgers whose record says that they are not closed."""
        return [ledger_id for ledger_id, metadata in self._records.items() if not metadata.closed]

    @property
    def ledgers(self) -> list[LedgerMetadata]:
        """The records of all that there are."""
        return list(self._records.values())
