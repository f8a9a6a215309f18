"""What clients learned, and the invariants that it has to satisfy. Stands outside the nodes.

A message's payload is unique: `producer:key:number`. A place is (partition topic, ledger, entry, batch index).

- I1: what was acknowledged can be read, at the place that its receipt named.
- I2: no place was given to two messages, by receipts or by deliveries.
- I3: a CLOSED ledger never changes where it ends, and ends behind every entry of it that a receipt named.
- I4: each producer's messages stand in the log in the order of sending, counted by their first occurrence.
- I7: what a subscription's consumers did not acknowledge is delivered again.
- I9: what the log's places name was not collected (seen as I1, and as missing ledgers of a chain).
"""

from collections import defaultdict
from dataclasses import dataclass, field

from magnetar.client.message_id import MessageId
from magnetar.protocol import metadata_keys
from magnetar.storage.ledger_metadata import LedgerMetadata
from magnetar.storage.metadata_store import Versioned

Place = tuple[str, int, int, int]


@dataclass
class Subscription:
    """What consumers of one subscription saw. `redelivered`: since `begin_again`."""

    acknowledged: dict[Place, None] = field(default_factory=dict)
    redelivered: dict[Place, None] = field(default_factory=dict)


class History:
    """See the module. `violations` are sentences that begin with the invariant."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.sent: dict[bytes, None] = {}
        self.acknowledged: dict[bytes, Place] = {}
        self.failed: dict[bytes, str] = {}
        self.places: dict[Place, bytes] = {}
        self.subscriptions: dict[tuple[str, str], Subscription] = defaultdict(Subscription)
        self.duplicates = 0
        self.counts: dict[str, int] = defaultdict(int)
        self._closed: dict[int, tuple[int, int]] = {}
        self._highest_acknowledged: dict[int, int] = {}

    def violated(self, sentence: str) -> None:
        if sentence not in self.violations:
            self.violations.append(sentence)

    # -- from clients ----------------------------------------------------------------------------------------------

    def was_acknowledged(self, topic: str, payload: bytes, message_id: MessageId) -> None:
        place = place_of(topic, message_id)
        if payload in self.acknowledged:
            self.violated(f"I4: {payload!r} was acknowledged twice")
        self.acknowledged[payload] = place
        self._saw(place, payload, "a receipt")
        ledger_id, entry_id = place[1], place[2]
        self._highest_acknowledged[ledger_id] = max(entry_id, self._highest_acknowledged.get(ledger_id, -1))
        if ledger_id in self._closed and entry_id > self._closed[ledger_id][0]:
            last = self._closed[ledger_id][0]
            self.violated(f"I3: {payload!r} acknowledged at {place} behind the end {last} of its closed ledger")

    def was_delivered(self, topic: str, subscription: str, payload: bytes, message_id: MessageId) -> None:
        if payload not in self.sent:
            self.violated(f"I2: {payload!r} was delivered and never sent")
        place = place_of(topic, message_id)
        self._saw(place, payload, "a delivery")
        self.subscriptions[topic, subscription].redelivered[place] = None

    def will_acknowledge(self, topic: str, subscription: str, message_id: MessageId) -> None:
        """Before a consumer acknowledges."""
        self.subscriptions[topic, subscription].acknowledged[place_of(topic, message_id)] = None

    def begin_again(self) -> None:
        """All consumers were closed; from now on everything unacknowledged has to be delivered once more."""
        for subscription in self.subscriptions.values():
            subscription.redelivered.clear()

    def missing_deliveries(self, topic: str, subscription: str, log: list[tuple[MessageId, bytes]]) -> list[Place]:
        """What a subscription still has to deliver again."""
        seen = self.subscriptions[topic, subscription]
        places = [place_of(topic, message_id) for message_id, _ in log]
        return [place for place in places if place not in seen.acknowledged and place not in seen.redelivered]

    def _saw(self, place: Place, payload: bytes, by: str) -> None:
        before = self.places.setdefault(place, payload)
        if before != payload:
            self.violated(f"I2: {place} held {before!r}, and by {by} {payload!r}")

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
            if old.state != new.state and not new.closed:
                self.counts["recoveries"] += 1
        if new.closed:
            self._closed[ledger_id] = (new.last_entry, new.length)
            highest = self._highest_acknowledged.get(ledger_id, -1)
            if highest > new.last_entry:
                self.violated(f"I3: ledger {ledger_id} was closed at {new.last_entry}, acknowledged up to {highest}")

    # -- at the end --------------------------------------------------------------------------------------------------

    def check_log(self, topic: str, log: list[tuple[MessageId, bytes]]) -> None:
        """One partition, read from the start."""
        last: MessageId | None = None
        found: dict[bytes, list[Place]] = defaultdict(list)
        highest: dict[bytes, int] = {}
        for message_id, payload in log:
            if last is not None and not last < message_id:
                self.violated(f"I4: {topic} was read out of order: {message_id} after {last}")
            last = message_id
            place = place_of(topic, message_id)
            self._saw(place, payload, "the log")
            if payload not in self.sent:
                self.violated(f"I2: phantom {payload!r} at {place}")
            producer, _, number = payload.rsplit(b":", 2)
            if payload not in found:
                if int(number) <= highest.get(producer, -1):
                    before = highest[producer]
                    self.violated(f"I4: {payload!r} first stands behind number {before} of its producer in {topic}")
                highest[producer] = int(number)
            found[payload].append(place)
        self.duplicates += len(log) - len(found)
        for payload, place in self.acknowledged.items():
            if place[0] == topic and place not in found.get(payload, ()):
                self.violated(f"I1: {payload!r}, acknowledged at {place}, is lost (found at {found.get(payload)})")
        for place, payload in self.places.items():
            if place[0] == topic and place not in found.get(payload, ()):
                self.violated(f"I1: {payload!r}, seen at {place}, is gone from the log")


def place_of(topic: str, message_id: MessageId) -> Place:
    """`topic` is the partition's own name."""
    ledger_id, entry_id, index = message_id[:3]
    return (topic, ledger_id, entry_id, index)
