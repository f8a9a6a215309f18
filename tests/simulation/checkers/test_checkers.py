"""The checkers find what they are there for: each is shown a history, a record or a live object that must not be."""

import asyncio
from contextlib import ExitStack
from random import Random
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from magnetar.client.core.message_id import MessageId
from magnetar.protocol.errors import AlreadyClosed
from magnetar.storage.bookie.held_ledgers import HeldLedger
from magnetar.storage.ledger.writer_state import LedgerWriterState
from magnetar.storage.managed.chain import LedgerChain, LedgerInfo
from magnetar.storage.managed.cursor_state import CursorState
from magnetar.storage.managed.cursor_storage import CursorRecord
from magnetar.storage.managed.record import ManagedLedgerRecord
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.ledger_metadata import Fragment, LedgerMetadata
from magnetar.storage.metadata.slot_rows import SlotEntry, SlotOwner, SlotPage, SlotRows
from magnetar.storage.metadata.store import Versioned
from simulation.checkers.history import History, LogMessage, Place
from simulation.checkers.metadata_watch import MetadataWatch
from simulation.checkers.store_watch import StoreWatch, missing_copies
from simulation.checkers.validate_storage import validate_chain, validate_cursor_state, validate_writer_state
from simulation.checkers.validation import Invalid, Validation
from simulation.scenarios.cluster import simulate
from simulation.workloads.foreign_reading import CPP, GO, ForeignReading, Where, before, dropped
from simulation.workloads.reading import Reading
from simulation.world.cluster import SimCluster, draw_settings
from simulation.world.loop import SimLoop
from support.files.faulty_files import FaultyFiles
from support.stores.memory_store import MemoryRecords

Reader = TypeVar("Reader", Reading, ForeignReading)

TOPIC = "persistent://public/default/t"
LEDGER = LedgerMetadata(7, 3, 3, 2, (Fragment(0, ("a", "b", "c")),))


def at(entry: int) -> MessageId:
    return MessageId(-1, 1, entry, -1, 0)


def place(entry: int) -> Place:
    return (TOPIC, 1, entry, -1)


def log_of(*payloads: bytes) -> list[LogMessage]:
    return [LogMessage(at(entry), payload, (TOPIC, "p", entry)) for entry, payload in enumerate(payloads)]


def sent(*payloads: bytes) -> History:
    """A history in which these were sent, each once, in frames of their own."""
    history = History()
    for number, payload in enumerate(payloads):
        history.sent[payload] = None
        history.frames[TOPIC, "p", number] = 1
    return history


def broken(history: History) -> list[str]:
    return [violation.partition(":")[0] for violation in history.violations]


# -- what clients see --------------------------------------------------------------------------------------------------


def test_a_good_log_breaks_nothing() -> None:
    history = sent(b"p:k:0", b"p:k:1")
    history.was_acknowledged(TOPIC, b"p:k:0", at(0))
    history.check_log(TOPIC, log_of(b"p:k:0", b"p:k:1"))
    assert history.violations == []


@pytest.mark.parametrize(
    ("payloads", "invariant"),
    [
        ((b"p:k:0",), "I1"),  # the other one was acknowledged
        ((b"p:k:0", b"p:k:9"), "I2"),  # never sent, where another one was acknowledged
        ((b"p:k:1", b"p:k:0"), "I4"),
    ],
)
def test_a_log_that_lost_invented_or_reordered(payloads: tuple[bytes, ...], invariant: str) -> None:
    history = sent(b"p:k:0", b"p:k:1")
    if invariant != "I4":
        history.was_acknowledged(TOPIC, b"p:k:1", at(1))
    history.check_log(TOPIC, log_of(*payloads))
    assert invariant in broken(history)


def test_what_was_sent_once_stands_there_once() -> None:
    history = sent(b"p:k:0")
    twice = [LogMessage(at(entry), b"p:k:0", (TOPIC, "p", 0)) for entry in (0, 1)]
    history.check_log(TOPIC, twice)
    assert broken(history) == ["I5"]
    history = sent(b"p:k:0")
    history.frames[TOPIC, "p", 0] = 2  # the client sent it again
    history.check_log(TOPIC, twice)
    assert history.violations == []


def test_a_closed_ledger_covers_what_was_acknowledged_and_stays() -> None:
    history, key = History(), metadata_keys.ledger(7)
    history.entry_acknowledged(7, 4)
    closed = Versioned(LEDGER.close(3, 10).pack(), 1)
    history.metadata_changed(key, Versioned(LEDGER.pack(), 0), closed)
    assert broken(history) == ["I3"]
    history = History()
    history.metadata_changed(key, Versioned(LEDGER.pack(), 0), closed)
    history.entry_acknowledged(7, 4)
    assert broken(history) == ["I3"]
    history = History()
    history.metadata_changed(key, closed, Versioned(LEDGER.close(4, 12).pack(), 2))
    assert broken(history) == ["I3"]


@pytest.mark.parametrize(("last_entry", "violations"), [(-1, []), (0, ["I3"])])
def test_after_a_restore_the_id_of_a_ledger_without_entries_may_be_given_again(
    last_entry: int, violations: list[str]
) -> None:
    history = History()
    closed = Versioned(LEDGER.close(last_entry, 0).pack(), 1)
    history.metadata_changed(metadata_keys.ledger(7), Versioned(LEDGER.pack(), 0), closed)
    history.metadata_restored()
    history.entry_acknowledged(7, 1)
    assert broken(history) == violations


def test_what_a_subscription_owes() -> None:
    log = log_of(b"p:k:0", b"p:k:1", b"p:k:2", b"p:k:3")
    history = sent(*(message.payload for message in log))

    def owed() -> list[int]:
        return [found[2] for found in history.missing_deliveries(TOPIC, "s", log)]

    for entry in (0, 2):
        history.was_delivered(TOPIC, "s", log[entry].payload, at(entry))
    history.begin_again()
    history.will_acknowledge(TOPIC, "s", at(0))
    assert owed() == [1, 2, 3]
    history.will_acknowledge_up_to(TOPIC, "s", at(2))
    assert owed() == [1, 3]  # what was passed over without having been delivered is still owed
    history.will_seek(TOPIC, "s", place(1))
    history.has_sought(TOPIC, "s")
    assert owed() == [1, 2, 3]  # back again, and what lies before may never come
    history.has_unsubscribed(TOPIC, "s")
    assert owed() == [0, 1, 2, 3]


def test_a_reader_that_leaves_out_or_repeats() -> None:
    log = log_of(b"p:k:0", b"p:k:1", b"p:k:2")
    for taken in ([place(0), place(2)], [place(1), place(1)], [place(9)], [place(2), place(3)]):
        history = History()
        history.check_reading(TOPIC, "r", taken, log)
        assert history.violations
    history = History()
    history.check_reading(TOPIC, "r", [place(1), place(2)], log)
    assert history.violations == []


def reader_of(kind: type[Reader], history: History) -> Reader:
    """A workload that reads `TOPIC` in a cluster where nothing runs."""
    loop = SimLoop()
    cluster = SimCluster(loop, Random(1), draw_settings(Random(1)), 3, 1)
    loop.close()
    reader = kind(cluster, history, Random(1), "r", TOPIC)
    reader.partition = TOPIC
    return reader


@pytest.mark.parametrize(
    ("runs", "invariants"),
    [
        ([(None, [0, 1, 2])], []),
        ([(None, [0, 1])], ["I1"]),
        ([(None, [])], ["I1"]),  # it found the end at once
        ([(None, [0, 1, 2, 3])], ["I1"]),
        ([(None, [1, 2])], ["I4"]),
        ([(None, [0, 1]), (0, [1, 2])], []),  # only the last run has to reach the end
        ([(None, [0, 1]), (0, [1])], ["I1"]),
        ([(None, [0, 1]), (1, [])], ["I1"]),
        ([(None, [0, 1, 2]), (2, [])], []),
        ([(None, [0, 1, 2]), (0, [2])], ["I4"]),
        ([(None, [0, 1, 2]), (2, [0, 1, 2])], ["I4"]),  # nothing stands behind what it sought
    ],
)
def test_a_reader_along_the_log_finds_its_end(runs: list[tuple[int | None, list[int]]], invariants: list[str]) -> None:
    history = History()
    reader = reader_of(Reading, history)
    reader.runs = [(None if sought is None else place(sought), [place(one) for one in taken]) for sought, taken in runs]
    reader.check(log_of(b"p:k:0", b"p:k:1", b"p:k:2"))
    assert broken(history) == invariants


@pytest.mark.parametrize(
    ("failed", "invariants"),
    [([], ["I1"]), ([b"p:k:1"], ["I1"]), ([b"p:k:2"], ["I1"]), ([b"p:k:1", b"p:k:2"], [])],
)
def test_what_failed_may_be_stored_behind_the_end_that_was_found(failed: list[bytes], invariants: list[str]) -> None:
    history = History()
    history.failed.update(dict.fromkeys(failed, "Timeout"))
    log = log_of(b"p:k:0", b"p:k:1", b"p:k:2")
    reader, foreign = reader_of(Reading, history), reader_of(ForeignReading, history)
    reader.runs, foreign.taken = [(None, [place(0)])], [(1, 0, -1)]
    reader.check(log)
    assert broken(history) == invariants
    history.violations.clear()
    foreign.check(log)
    assert broken(history) == invariants


# -- what the metadata says --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("taken", "invariants"),
    [
        ([0, 1, 2, 3], []),
        ([0, 1, 1, 0, 1, 2, 3], []),  # a message may come twice
        ([0, 2, 3], ["I4"]),
        ([1, 2, 3], ["I4"]),
        ([0, 1, 0, 2, 3], []),
        ([0, 1, 0, 3], ["I4"]),
        ([0, 1], ["I1"]),
        ([0, 1, 2, 3, 9], ["I1"]),
    ],
)
def test_a_foreign_reader_may_repeat_but_not_leave_out(taken: list[int], invariants: list[str]) -> None:
    history = History()
    reader = reader_of(ForeignReading, history)
    reader.taken = [(1, entry, -1) for entry in taken]
    reader.check(log_of(b"p:k:0", b"p:k:1", b"p:k:2", b"p:k:3"))
    assert broken(history) == invariants


@pytest.mark.parametrize(
    ("kind", "start", "kept"),
    [
        (CPP, (1, 2, 0), [(1, 2, 1), (1, 3, -1), (2, 0, -1)]),
        (CPP, (1, 2, -1), [(1, 2, 0), (1, 2, 1), (1, 3, -1), (2, 0, -1)]),
        (CPP, (1, 3, -1), [(1, 2, 0), (1, 2, 1), (2, 0, -1)]),
        (GO, (1, 2, 0), [(1, 2, 1), (1, 3, -1), (2, 0, -1)]),
        (GO, (1, 3, -1), [(2, 0, -1)]),
    ],
)
def test_what_foreign_readers_take_for_read_before(kind: str, start: Where, kept: list[Where]) -> None:
    places = [(1, 2, 0), (1, 2, 1), (1, 3, -1), (2, 0, -1)]
    assert [where for where in places if not dropped(kind, start, where)] == kept
    assert [before(where) for where in places] == [(1, 2, -1), (1, 2, 0), (1, 2, -1), (2, -1, -1)]


def test_ledgers_that_are_named_and_gone() -> None:
    history, records = History(), MemoryRecords()
    watch = MetadataWatch(history, records)
    ledger, chain, cursor = metadata_keys.ledger(7), metadata_keys.managed_ledger("x"), metadata_keys.cursor("x", "s")
    named = Versioned(ManagedLedgerRecord(2, (LedgerInfo(7, 0),), (), 7).pack(), 0)
    watch.changed(chain, None, named)
    assert broken(history) == ["I9"]  # it is not there
    history.violations.clear()
    records.store(ledger, Versioned(LEDGER.pack(), 0))
    watch.changed(chain, named, named)
    assert history.violations == []
    records.remove(ledger)
    watch.changed(ledger, Versioned(LEDGER.pack(), 0), None)
    assert broken(history) == ["I9"]  # the chain names it
    history.violations.clear()
    watch.changed(chain, named, Versioned(ManagedLedgerRecord(2, (), (), 7).pack(), 1))
    assert broken(history) == ["I9"]  # forgotten, and not to be deleted
    history.violations.clear()
    watch.changed(chain, named, Versioned(ManagedLedgerRecord(1, (), (7,), 7).pack(), 1))
    assert broken(history) == ["I2"]  # an earlier owner
    history.violations.clear()
    before = Versioned(CursorRecord(3, None, b"").pack(), 0)
    watch.changed(cursor, before, Versioned(CursorRecord(2, None, b"").pack(), 1))
    assert broken(history) == ["I2"]


def test_a_slot_has_another_owner_under_an_epoch_that_was() -> None:
    history = History()
    watch, key = MetadataWatch(history, MemoryRecords()), metadata_keys.slot_page(0)
    for owner, epoch in (("b", 3), ("b", 3), ("c", 4), ("b", 4)):
        assert history.violations == []
        page = SlotPage(0, 64, SlotRows({0: SlotEntry(SlotOwner(owner, "1"), epoch)}))
        watch.changed(key, None, Versioned(page.pack(), 0))
    assert broken(history) == ["I2"]


def test_a_topic_that_was_moved_alone_has_another_owner_under_an_epoch_that_was() -> None:
    history = History()
    watch, key = MetadataWatch(history, MemoryRecords()), metadata_keys.slot_page(0)
    for owner, epoch in (("b", 3), ("c", 4), ("b", 3)):
        assert history.violations == []
        rows = SlotRows({}, {"persistent://public/default/t": SlotEntry(SlotOwner(owner, "1"), epoch)})
        watch.changed(key, None, Versioned(SlotPage(0, 64, rows).pack(), 0))
    assert broken(history) == ["I2"]


# -- what bookies hold -------------------------------------------------------------------------------------------------


def test_a_bookie_that_takes_what_it_must_not() -> None:
    history, records = History(), MemoryRecords()
    watch, state = StoreWatch(history, records), HeldLedger(7, 0)
    watch._accepts(state, 0, 11, recovery=False)
    watch._accepts(state, 0, 11, recovery=True)
    assert history.violations == []
    watch._accepts(state, 0, 12, recovery=True)
    assert broken(history) == ["I2"]
    state.fenced = True
    watch._accepts(state, 1, 13, recovery=False)
    assert broken(history) == ["I2", "I2"]
    watch._tombstones([7])
    assert broken(history) == ["I2", "I2"]
    records.store(metadata_keys.ledger(7), Versioned(LEDGER.pack(), 0))
    watch._tombstones([7])
    assert broken(history)[2:] == ["I9"]
    StoreWatch(history, records, deleted={7: None})._tombstones([7])  # it was created again, too late
    assert broken(history)[2:] == ["I9"]


async def test_copies_are_counted_where_the_record_says() -> None:
    def store(*held: tuple[int, int]) -> Any:
        async def held_ranges(ledger_id: int, nonce: int, first: int, last: int, intact_only: bool) -> Any:
            return list(held), last + 1

        return SimpleNamespace(entries=SimpleNamespace(ledgers={7: None}), held_ranges=held_ranges)

    closed = LEDGER.close(3, 10)
    whole: dict[str, Any] = {"a": store((0, 3)), "b": store((0, 3)), "c": store()}
    assert await missing_copies([closed, LEDGER], whole, ()) == []
    torn = whole | {"b": store((0, 1), (3, 3))}
    assert [sentence[:2] for sentence in await missing_copies([closed], torn, ())] == ["I9"]
    assert await missing_copies([closed], torn, ("b",)) == []  # its disk was harmed
    alone = {"c": store((0, 3))}
    assert await missing_copies([closed], alone, ("a",)) == []
    assert len(await missing_copies([closed], {"a": store((0, 2))}, ("a", "b"))) == 1  # never none


# -- live objects ------------------------------------------------------------------------------------------------------


def test_cursors_that_are_not_sound() -> None:
    chain = LedgerChain([LedgerInfo(1, 0, entries=10)])
    state = CursorState(chain, (1, 2))
    state.acknowledge([(1, 5), (1, 6)])
    assert list(validate_cursor_state(state, chain)) == []
    state.mark_delete = (1, 4)
    assert "could go on" in "".join(validate_cursor_state(state, chain))
    state.mark_delete = (1, 6)
    assert "not beyond the mark" in "".join(validate_cursor_state(state, chain))
    state.mark_delete = (1, 2)
    state._ranges[1]._firsts, state._ranges[1]._lasts = [5, 6], [5, 6]
    assert "touch" in "".join(validate_cursor_state(state, chain))
    state._ranges.clear()
    state.mark_delete = (1, 11)
    assert "beyond the end" in "".join(validate_cursor_state(state, chain))
    chain._ids = [2]
    assert "out of order" in "".join(validate_chain(chain))


def test_writers_that_are_not_sound() -> None:
    state = LedgerWriterState(LEDGER)
    for _ in range(3):
        state.add(b"x")
    state.added(0, 0, 0)
    assert list(validate_writer_state(state)) == []
    state.pending[0].acks = 0b11
    assert "not acknowledged" in "".join(validate_writer_state(state))
    state.pending[0].acks = 0b1000
    assert "counts answers" in "".join(validate_writer_state(state))
    del state.pending[0]
    assert "wait behind LAC" in "".join(validate_writer_state(state))


class Bookie:
    """A bookie whose store may not be open."""

    opened: Any = None

    @property
    def store(self) -> Any:
        if self.opened is None:
            raise AlreadyClosed("it is not running")
        return self.opened


def test_a_problem_ends_the_run_at_its_event() -> None:
    validation = Validation(Random(0), MemoryRecords(), every=3)
    process: Any = SimpleNamespace(name="bookie-1", after_event=None)
    bookie = Bookie()
    validation.watch(process, "bookie", bookie)
    for _ in range(3):
        process.after_event()
    bookie.opened = SimpleNamespace()  # nothing that a bookie is
    process.after_event()
    process.after_event()
    with pytest.raises(AttributeError):
        process.after_event()
    assert issubclass(Invalid, AssertionError)


# -- the whole ---------------------------------------------------------------------------------------------------------


def test_looking_changes_nothing() -> None:
    outcomes = [simulate(4, validate_every=every) for every in (0, 1)]
    assert [outcome.violations for outcome in outcomes] == [[], []]
    assert outcomes[0].unseed == outcomes[1].unseed


def test_an_empty_disk_that_nobody_accepted_serves_nothing() -> None:
    loop, random = SimLoop(), Random(1)
    asyncio.set_event_loop(loop)
    cluster = SimCluster(loop, random, draw_settings(random), 3, 1)
    node = cluster.bookies[0]

    async def wipe() -> list[bool]:
        await cluster.start()
        seen = [node.ready]
        own = node.disk
        for disk in (FaultyFiles(2), own):
            cluster.stop(node)
            node.disk = disk
            cluster.begin(node)
            await asyncio.sleep(5.0)
            seen.append(node.ready)
        await cluster.close()
        return seen

    with ExitStack() as stack:
        stack.callback(loop.close)
        stack.callback(asyncio.set_event_loop, None)
        assert loop.run_until_complete(loop.create_task(wipe())) == [True, False, True]
