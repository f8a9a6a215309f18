"""What clients learned, and the invariants that it has to satisfy. Stands outside the nodes.

A message's payload is unique: `producer:key:number`. A place is (partition topic, ledger, entry, batch index).

- I1: what was acknowledged can be read, at the place that its receipt named.
- I2: no place was given to two messages, by receipts or by deliveries.
- I3: a CLOSED ledger never changes where it ends, and ends behind every entry of it that its writer acknowledged.
- I4: each producer's messages stand in the log in the order of sending, counted by their first occurrence; a reader is
  given them so, none left out and none twice.
- I5: with deduplication each message stands in the log once, and one whose receipt says that it is a duplicate stands
  there, too. Without it, what stands there more than once was sent more than once, by the client, on connections of its
  own; nothing else doubles.
- I7: what a subscription's consumers did not acknowledge is delivered again; a cumulative acknowledgement covers only
  what was delivered before; nothing is acknowledged that was not delivered; what was acknowledged and flushed by a
  broker that closed in order does not come again.

I6 is `delivery_watch`'s, I9 `store_watch`'s and `metadata_watch`'s; these and `acknowledge_watch` also see I1, I2, I3
and I7 closer to where they break. I8 is whatever takes too long once faults have healed: the scenario's waits, and
messages that cannot be sent.
"""

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from magnetar.actors.dispatch.consumer import AttachedConsumer
from magnetar.client.core.message_id import MessageId
from magnetar.protocol.message_id import Position
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.ledger_metadata import LedgerMetadata
from magnetar.storage.metadata.store import Versioned

from ..world.loop import PROCESS

logger = logging.getLogger("magnetar.simulation")

Place = tuple[str, int, int, int]
Frame = tuple[str, str, int]
"""Partition topic, producer's name, first sequence id of the entry."""


class LogMessage(NamedTuple):
    """One message of a partition's log: `frame` is what carried it there."""

    message_id: MessageId
    payload: bytes
    frame: Frame


Log = Sequence[LogMessage]


@dataclass
class Subscription:
    """What consumers of one subscription saw and did. `redelivered`: since `begin_again`.

    `acknowledged` one by one; everything delivered up to `passed` cumulatively; below `skipped` a seek may have led
    over anything. All of it *perhaps*: an acknowledgement has no receipt.
    """

    acknowledged: dict[Place, None] = field(default_factory=dict)
    passed: Place | None = None
    skipped: Place | None = None
    delivered: dict[Place, None] = field(default_factory=dict)
    redelivered: dict[Place, None] = field(default_factory=dict)

    def owes(self, place: Place) -> bool:
        """Whether it has yet to deliver that once more."""
        if place in self.redelivered or place in self.acknowledged:
            return False
        if self.skipped is not None and place < self.skipped:
            return False
        return self.passed is None or place > self.passed or place not in self.delivered


class History:
    """See the module. `violations` are sentences that begin with the invariant."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.sent: dict[bytes, None] = {}
        self.protected: dict[int, None] = {}
        """Ledgers that no bookie may delete although the metadata, which was restored, may not know them."""
        self.acknowledged: dict[bytes, Place] = {}
        self.failed: dict[bytes, str] = {}
        self.places: dict[Place, bytes] = {}
        self.frames: dict[Frame, int] = defaultdict(int)
        """How often clients have sent each."""
        self.subscriptions: dict[tuple[str, str], Subscription] = defaultdict(Subscription)
        self.given_up: dict[tuple[str, str, Position], None] = {}
        """Partition topic, subscription, entry: acknowledged by an application that was not handed it."""
        self.passing: dict[AttachedConsumer, None] = {}
        """Consumers of non-persistent topics, which `passing_watch` looks at."""
        self.duplicates = 0
        self.deduplicates = False
        """Whether all topics do."""
        self.repeated: dict[bytes, str] = {}
        """Messages that were acknowledged as duplicates, and where they were sent to."""
        self.counts: dict[str, int] = defaultdict(int)
        self._closed: dict[int, tuple[int, int]] = {}
        self._leaders: dict[tuple[str, int], str] = {}
        self._highest_acknowledged: dict[int, int] = {}

    def violated(self, sentence: str) -> None:
        if sentence not in self.violations:
            self.violations.append(sentence)
            owner = PROCESS.get()
            logger.warning("VIOLATION, found in %s: %s", owner.name if owner is not None else "the whole", sentence)

    # -- from publishers -------------------------------------------------------------------------------------------

    def was_acknowledged(self, topic: str, payload: bytes, message_id: MessageId) -> None:
        place = place_of(topic, message_id)
        if payload in self.acknowledged or payload in self.repeated:
            self.violated(f"I4: {show(payload)} was acknowledged twice")
        if place[1] < 0:
            self.repeated[payload] = topic
            self.counts["duplicates refused"] += 1
            if not self.deduplicates:
                self.violated(f"I5: {show(payload)} was called a duplicate without deduplication")
            return
        self.acknowledged[payload] = place
        self._saw(place, payload, "a receipt")
        self.entry_acknowledged(place[1], place[2])

    def entry_acknowledged(self, ledger_id: int, entry_id: int) -> None:
        """A writer acknowledged everything up to this entry."""
        self._highest_acknowledged[ledger_id] = max(entry_id, self._highest_acknowledged.get(ledger_id, -1))
        if ledger_id in self._closed and entry_id > self._closed[ledger_id][0]:
            last = self._closed[ledger_id][0]
            self.violated(f"I3: entry {(ledger_id, entry_id)} acknowledged behind the end {last} of its closed ledger")

    def highest_acknowledged(self, ledger_id: int) -> int:
        """The last entry of a ledger that a writer acknowledged, −1 if there is none."""
        return self._highest_acknowledged.get(ledger_id, -1)

    # -- from consumers --------------------------------------------------------------------------------------------

    def was_delivered(self, topic: str, subscription: str, payload: bytes, message_id: MessageId) -> None:
        if payload not in self.sent:
            self.violated(f"I2: {show(payload)} was delivered and never sent")
        place = place_of(topic, message_id)
        self._saw(place, payload, "a delivery")
        seen = self.subscriptions[topic, subscription]
        seen.redelivered[place] = None
        seen.delivered[place] = None

    def will_acknowledge(self, topic: str, subscription: str, message_id: MessageId) -> None:
        """Before a consumer acknowledges."""
        self.subscriptions[topic, subscription].acknowledged[place_of(topic, message_id)] = None

    def will_acknowledge_up_to(self, topic: str, subscription: str, message_id: MessageId) -> None:
        """Before an Exclusive consumer acknowledges cumulatively."""
        seen, place = self.subscriptions[topic, subscription], place_of(topic, message_id)
        seen.passed = place if seen.passed is None else max(seen.passed, place)

    def will_seek(self, topic: str, subscription: str, place: Place) -> None:
        """Before a subscription is moved: what lies before the place may never come."""
        seen = self.subscriptions[topic, subscription]
        seen.skipped = place if seen.skipped is None else max(seen.skipped, place)

    def has_sought(self, topic: str, subscription: str) -> None:
        """An Exclusive subscription has been moved, for certain: from there on nothing counts as acknowledged."""
        seen = self.subscriptions[topic, subscription]
        seen.acknowledged.clear()
        seen.passed = None

    def has_unsubscribed(self, topic: str, subscription: str) -> None:
        """The subscription was deleted, for certain; one of the same name begins at the start."""
        self.subscriptions[topic, subscription] = Subscription()

    def begin_again(self, subscription: str | None = None) -> None:
        """All consumers (of a subscription) were closed; from now on everything unacknowledged has to be delivered once
        more."""
        for (_, name), seen in self.subscriptions.items():
            if subscription in (None, name):
                seen.redelivered.clear()

    def missing_deliveries(self, topic: str, subscription: str, log: Log) -> list[Place]:
        """What a subscription still has to deliver again."""
        seen = self.subscriptions[topic, subscription]
        return [place for message in log if seen.owes(place := place_of(topic, message.message_id))]

    def owes(self, subscription: str, place: Place) -> bool:
        """Whether a subscription still has to deliver one of those."""
        return self.subscriptions[place[0], subscription].owes(place)

    def _saw(self, place: Place, payload: bytes, by: str) -> None:
        before = self.places.setdefault(place, payload)
        if before != payload:
            self.violated(f"I2: {place} held {show(before)}, and by {by} {show(payload)}")

    def has_been_elected(self, topic: str, epoch: int, leader: str) -> None:
        """A producer has exclusive access."""
        other = self._leaders.setdefault((topic, epoch), leader)
        if other != leader:
            self.violated(f"I2: epoch {epoch} of {topic} was granted to {leader}, and before to {other}")
        self.counts["leaders"] += 1

    # -- from the metadata -------------------------------------------------------------------------------------------

    def metadata_changed(self, key: str, before: Versioned | None, after: Versioned | None) -> None:
        if not key.startswith(metadata_keys.LEDGERS_PREFIX):
            return
        ledger_id = metadata_keys.ledger_id_of(key)
        if after is None:
            self.counts["ledgers deleted"] += 1
            return
        new = LedgerMetadata.unpack(after.value)
        if before is not None:
            old = LedgerMetadata.unpack(before.value)
            if old.closed and (not new.closed or (new.last_entry, new.length) != (old.last_entry, old.length)):
                self.violated(f"I3: closed ledger {ledger_id} changed from {old} to {new}")
            if old.fragments != new.fragments and not new.closed:
                self.counts["ensemble changes"] += 1
            if old.fragments != new.fragments and old.closed:
                self.counts["copied again"] += 1
            if old.state != new.state and not new.closed:
                self.counts["recoveries"] += 1
        if new.closed:
            self._closed[ledger_id] = (new.last_entry, new.length)
            highest = self._highest_acknowledged.get(ledger_id, -1)
            if highest > new.last_entry:
                self.violated(f"I3: ledger {ledger_id} was closed at {new.last_entry}, acknowledged up to {highest}")

    def metadata_restored(self) -> None:
        """Older metadata is back. No bookie knows the id of a ledger that never had an entry: it may be given again."""
        self._closed = {ledger_id: end for ledger_id, end in self._closed.items() if end[0] >= 0}

    # -- at the end --------------------------------------------------------------------------------------------------

    def check_log(self, topic: str, log: Log) -> None:
        """One partition, read from the start."""
        last: MessageId | None = None
        found: dict[bytes, list[Place]] = defaultdict(list)
        highest: dict[bytes, int] = {}
        copies: dict[Frame, dict[tuple[int, int], None]] = defaultdict(dict)
        for message_id, payload, frame in log:
            if last is not None and not last < message_id:
                self.violated(f"I4: {topic} was read out of order: {message_id} after {last}")
            last = message_id
            place = place_of(topic, message_id)
            self._saw(place, payload, "the log")
            copies[frame][place[1], place[2]] = None
            if payload not in self.sent:
                self.violated(f"I2: phantom {show(payload)} at {place}")
            producer, _, number = payload.rsplit(b":", 2)
            if payload not in found:
                if int(number) <= highest.get(producer, -1):
                    before = highest[producer]
                    self.violated(f"I4: {show(payload)} first stands behind number {before} of its producer in {topic}")
                highest[producer] = int(number)
            found[payload].append(place)
        self.duplicates += len(log) - len(found)
        for payload, places in found.items():
            if self.deduplicates and len(places) > 1:
                self.violated(f"I5: {show(payload)} stands in {topic} at {places}")
        for payload, where in self.repeated.items():
            if where == topic and payload not in found:
                self.violated(f"I5: {show(payload)}, called a duplicate, is not in {topic}")
        for frame, entries in copies.items():
            if len(entries) > self.frames[frame]:
                self.violated(f"I5: {frame} was sent {self.frames[frame]} times and stands at {list(entries)}")
        for payload, place in self.acknowledged.items():
            if place[0] == topic and place not in found.get(payload, ()):
                self.violated(f"I1: {show(payload)}, acknowledged at {place}, is lost (found at {found.get(payload)})")
        for place, payload in self.places.items():
            if place[0] == topic and place not in found.get(payload, ()):
                self.violated(f"I1: {show(payload)}, seen at {place}, is gone from the log")

    def check_leaders(self, topic: str, log: Log) -> None:
        """Where leaders published in turn: none of them stands behind a later one."""
        leaders: dict[bytes, int] = {}
        for _, payload, _ in log:
            leader = payload.rsplit(b":", 2)[0]
            place = leaders.setdefault(leader, len(leaders))
            if place != len(leaders) - 1:
                self.violated(f"I2: {show(payload)} stands in {topic} behind a message of a later leader")
                return

    def check_reading(self, topic: str, reader: str, taken: list[Place], log: Log) -> None:
        """What one reader was given of a partition, compared with the log: a part of it without a gap."""
        if not taken:
            return
        places = [place_of(topic, message.message_id) for message in log]
        if taken[0] not in places:
            self.violated(f"I1: {reader} was given {taken[0]}, which is not in the log")
            return
        first = places.index(taken[0])
        for place, expected in zip(taken, places[first : first + len(taken)], strict=False):
            if place != expected:
                self.violated(f"I4: {reader} was given {place} where {expected} stands in the log")
                return
        if len(taken) > len(places) - first:
            self.violated(f"I1: {reader} was given {taken[len(places) - first]}, which is not in the log")

    def check_end(self, reader: str, behind: object, left: Log) -> None:
        """What stands in the log behind the last message of a reader that found the end, once the system was quiet.

        A publish that failed for its client may be stored after the reader has asked for the end.
        """
        missing = [message for message in left if message.payload not in self.failed]
        if missing:
            first = missing[0]
            self.violated(
                f"I1: {reader} found the end behind {behind}, {len(missing)} are left, "
                f"the first is {show(first.payload)} at {first.message_id}"
            )


def place_of(topic: str, message_id: MessageId) -> Place:
    """`topic` is the partition's own name."""
    ledger_id, entry_id, index = message_id[:3]
    return (topic, ledger_id, entry_id, index)


def show(payload: bytes) -> str:
    """A payload without its padding."""
    return repr(payload.lstrip(b"."))
