"""The checkers of what topics keep, delay and end with, and of their schemas, find what they are there for."""

from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.actors.dispatch.consumer import Delivery
from magnetar.client.core.message_id import MessageId
from magnetar.protocol.entries import build_entry
from magnetar.protocol.message_id import Position
from magnetar.protocol.pulsar_pb2 import MessageMetadata
from magnetar.protocol.topics import TopicName
from magnetar.storage.managed.chain import LedgerInfo
from magnetar.storage.managed.record import ManagedLedgerRecord
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.schema_record import StoredSchema
from magnetar.storage.metadata.store import Versioned
from simulation.checkers.delay_watch import DelayWatch
from simulation.checkers.history import History
from simulation.checkers.keep_watch import KeepWatch, Kept
from simulation.checkers.number_watch import NumberWatch
from simulation.checkers.schema_watch import SchemaWatch
from simulation.checkers.termination_watch import TerminationWatch

PATH = "persistent/public/default/t"
KEY = metadata_keys.managed_ledger(PATH)
NOW_MS = 1_000_000


def broken(history: History) -> list[str]:
    return [violation.partition(":")[0] for violation in history.violations]


def entry(**fields: Any) -> bytes:
    return build_entry(MessageMetadata(producer_name="p", sequence_id=0, **{"publish_time": 1, **fields}), b"x" * 100)


# -- numbers -----------------------------------------------------------------------------------------------------------


def at(position: int) -> MessageId:
    return MessageId(-1, 1, position)


def test_a_number_stands_at_one_place_however_often_it_is_given() -> None:
    history = History()
    watch = NumberWatch(history, "t")
    for number, position in ((0, 0), (1, 1), (0, 0), (1, 1), (2, 2)):
        watch.was_given("t", number, at(position))
    assert history.violations == []
    watch.was_given("t", 1, at(3))
    assert broken(history)[0] == "I5"


def test_a_number_that_stands_behind_a_later_one() -> None:
    history = History()
    watch = NumberWatch(history, "t")
    watch.was_given("t", 2, at(0))
    watch.was_given("t", 1, at(1))
    assert broken(history) == ["I4"]


@pytest.mark.parametrize(("ledger_id", "invariant"), [(1, "I1"), (-1, "I5")])
def test_a_number_with_a_receipt_that_is_given_to_nobody(ledger_id: int, invariant: str) -> None:
    history = History()
    watch = NumberWatch(history, "t")
    watch.has_receipt(0, MessageId(-1, ledger_id, 0 if ledger_id > 0 else -1))
    watch.check_nothing_missing()
    assert broken(history) == [invariant]
    assert (watch.confirmed, watch.highest) == (1, 0)


# -- delivery times ----------------------------------------------------------------------------------------------------


class Topic:
    """Of a subscription."""


@pytest.mark.parametrize(
    ("at_ms", "strict", "acknowledged", "violations"),
    [
        (0, True, True, []),
        (NOW_MS, True, False, []),
        (NOW_MS + 1, True, False, ["I12"]),
        (NOW_MS + 50, False, False, []),
        (NOW_MS + 51, False, False, ["I12"]),
        (NOW_MS, True, True, ["I12"]),
    ],
)
def test_what_goes_out_before_its_time(at_ms: int, strict: bool, acknowledged: bool, violations: list[str]) -> None:
    history = History()
    host: Any = Topic()
    host.settings = SimpleNamespace(delayed_delivery_strict=strict)
    host.policies = SimpleNamespace(delayed_delivery=SimpleNamespace(active=True, tick_ms=50))
    host.name = SimpleNamespace(full="t")
    cursor = SimpleNamespace(is_acknowledged=lambda position: acknowledged)
    subscription: Any = SimpleNamespace(host=host, cursor=cursor)
    consumer: Any = None
    sent = entry(deliver_at_time=at_ms) if at_ms else entry()
    DelayWatch(history, "s").goes_out(subscription, Delivery(consumer, [((1, 0), sent, 1, 0)], 1), NOW_MS)
    assert broken(history) == violations


# -- what is given up --------------------------------------------------------------------------------------------------


def clock(now_ms: int) -> Any:
    return SimpleNamespace(now_ms=lambda: now_ms)


def keeping(kept: Kept, *arrived_ms: int, broker: Any = None) -> tuple[History, KeepWatch]:
    """A topic of one subscription with entries that came then. Their publish times say nothing."""
    history = History()
    times = iter([*arrived_ms])
    watch = KeepWatch(history, "t", kept, lambda: next(times, NOW_MS))
    watch.subscribed(PATH, "s")
    for number, time_ms in enumerate(arrived_ms):
        sent = entry(publish_time=number + 1)
        watch.arrives(sent, broker or clock(time_ms), "first load")
        watch.holds(PATH, (1, number), sent)
    return history, watch


@pytest.mark.parametrize(
    ("ttl_s", "apart", "violations"), [(1, False, []), (2, False, ["I7"]), (0, False, ["I7"]), (2, True, [])]
)
def test_what_expires_is_old_enough(ttl_s: int, apart: bool, violations: list[str]) -> None:
    broker = clock(NOW_MS - 1_500)
    history, watch = keeping(Kept(ttl_s=ttl_s), NOW_MS - 1_500, broker=broker)
    broker.now_ms = lambda: NOW_MS
    watch.expired(PATH, [(1, 0)], broker, "second load" if apart else "first load")
    assert broken(history) == violations


SIZE = len(entry())


@pytest.mark.parametrize(
    ("quota_bytes", "evicts", "count", "violations"),
    [
        (8 * SIZE, True, 3, []),
        (8 * SIZE, False, 3, ["I7"]),  # producers are to be held
        (30 * SIZE, True, 3, ["I7"]),  # there is room
        (8 * SIZE, True, 10, ["I7"]),  # too many
    ],
)
def test_what_is_evicted_is_too_much(quota_bytes: int, evicts: bool, count: int, violations: list[str]) -> None:
    history, watch = keeping(Kept(quota_bytes=quota_bytes, evicts=evicts), *[1] * 10)
    watch.evicted(PATH, count, 10 - count)
    assert broken(history) == violations


def test_what_was_there_before_a_subscription_at_the_end_is_not_missing() -> None:
    history, watch = keeping(Kept(), 1)
    watch.subscribed(PATH, "later", at_end=True)
    watch.done(PATH, "s", [(1, 0)])
    watch.trimmed(PATH, 1)
    assert broken(history) == []


def chain(*ledger_ids: int, end: Position | None = None) -> Versioned:
    ledgers = tuple(LedgerInfo(ledger_id, 1, 2, 20, True) for ledger_id in ledger_ids)
    return Versioned(ManagedLedgerRecord(1, ledgers, terminated=end).pack(), 1)


@pytest.mark.parametrize(
    ("done", "arrived_ms", "violations"),
    [(2, 1, []), (1, 1, ["I9"]), (2, NOW_MS - 59_000, ["I9"]), (2, NOW_MS - 61_000, [])],
)
def test_a_ledger_that_is_trimmed_is_needed_no_more(done: int, arrived_ms: int, violations: list[str]) -> None:
    history, watch = keeping(Kept(retention_s=64), arrived_ms, arrived_ms)
    watch.done(PATH, "s", [(1, number) for number in range(done)])
    watch.metadata_changed(KEY, chain(1, 2), chain(2))
    assert broken(history) == violations


# -- terminated topics -------------------------------------------------------------------------------------------------


def test_an_end_that_is_stored_and_stays_breaks_nothing() -> None:
    history = History()
    watch = TerminationWatch(history)
    watch.has_receipt(PATH, (1, 3))
    watch.metadata_changed(KEY, chain(1), chain(1, end=(1, 3)))
    watch.was_told(PATH, (1, 3))
    watch.was_told(PATH, (1, 3))
    assert history.violations == []


@pytest.mark.parametrize(
    ("stored", "told", "receipt"),
    [
        ([None], (1, 3), (1, 0)),  # told before it is stored
        ([(1, 3), (1, 4)], (1, 4), (1, 0)),
        ([(1, 3), None], (1, 3), (1, 0)),
        ([(1, 3)], (1, 3), (1, 4)),
    ],
)
def test_an_end_that_moves(stored: list[Position | None], told: Position, receipt: Position) -> None:
    history = History()
    watch = TerminationWatch(history)
    for end in stored:
        watch.metadata_changed(KEY, chain(1), chain(1, end=end))
    watch.was_told(PATH, told)
    watch.has_receipt(PATH, receipt)
    assert set(broken(history)) == {"I13"}


# -- schemas -----------------------------------------------------------------------------------------------------------


def schemas(*rows: tuple[int, bytes]) -> tuple[StoredSchema, ...]:
    return tuple(StoredSchema(version, 2, data, b"", 1, deleted=not data) for version, data in rows)


@pytest.mark.parametrize(
    ("records", "violations"),
    [
        ([[(0, b"a")], [(0, b"a"), (1, b"b")]], []),
        ([[(0, b"a")], [(1, b"")], [(1, b""), (2, b"a")]], []),  # deleted, and there again
        ([[(0, b"a")], [(0, b"b")]], ["I14"]),
        ([[(0, b"a")], [(0, b"a"), (2, b"b")]], ["I14"]),
        ([[(0, b"a"), (1, b"b")], [(0, b"a")]], ["I14"]),
        ([[(0, b"a"), (1, b"a")]], ["I14"]),
    ],
)
def test_versions_keep_their_meaning(records: list[list[tuple[int, bytes]]], violations: list[str]) -> None:
    history = History()
    watch = SchemaWatch(history, TopicName.parse("t"))
    for rows in records:
        watch.is_now(schemas(*rows))
    assert broken(history)[:1] == violations


@pytest.mark.parametrize(
    ("version", "definition", "violations"), [(b"", b"a", ["I14"]), (bytes(8), b"a", []), (bytes(8), b"b", ["I14"])]
)
def test_a_message_has_the_version_of_its_schema(version: bytes, definition: bytes, violations: list[str]) -> None:
    history = History()
    watch = SchemaWatch(history, TopicName.parse("t"))
    watch.is_now(schemas((0, b"a")))
    watch.check_message(version, definition, "it")
    assert broken(history) == violations
