"""The auditor with real bookies: what was missed while a bookie was away, thin ledgers, lost bookies, wiped disks."""

import asyncio
import contextlib
import dataclasses
import shutil
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.actors.auditor import service as auditor_module
from magnetar.actors.bookie import copying
from magnetar.actors.bookie.service import BookieService
from magnetar.actors.members.coordinator_link import CoordinatorClient
from magnetar.protocol.errors import CookieMismatch, LedgerFenced
from magnetar.runtime.rpc.connection import Identity
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.bookie import entry_reads
from magnetar.storage.bookie.segment_reader import RangeRead, RangeResult, SegmentReader
from magnetar.storage.ledger.bookie_client import BookieClient
from magnetar.storage.ledger.ledgers import Ledgers
from magnetar.storage.ledger.writer import LedgerWriter
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.ledger_metadata import LedgerMetadata
from support.servers.coordination import CLUSTER, FAST, KEYS, Coordination, coordination, eventually
from support.stores.bookie_kit import held_ranges

SETTINGS = dataclasses.replace(FAST, lost_bookie_grace_s=3600.0, segment_size_bytes=1 << 20, add_entry_timeout_s=1.0)


class Bookies:
    """Bookies with disks below a directory, and the ledger side of one broker."""

    def __init__(self, cluster: Coordination, directory: Path, settings: Settings) -> None:
        self.cluster = cluster
        self.directory = directory
        self.settings = settings
        self.running: dict[int, BookieService] = {}
        self.machines: dict[int, str] = {}
        identity = Identity(CLUSTER, "broker", "writer", "1")
        self.coordinator = CoordinatorClient(cluster.env, identity, KEYS, settings, cluster.locate)
        self.client = BookieClient(cluster.env, identity, KEYS, settings, self.coordinator.bookies)
        self.ledgers = Ledgers(cluster.env, self.coordinator.metadata, self.client, settings)

    async def start(self, *numbers: int, accept_lost_disk: bool = False) -> None:
        for number in numbers:
            bookie = BookieService(
                self.cluster.env,
                str(self.directory / f"bookie-{number}"),
                f"bookie-{number}",
                CLUSTER,
                KEYS,
                self.settings,
                "127.0.0.1",
                0,
                self.cluster.locate,
                accept_lost_disk=accept_lost_disk,
            )
            if number in self.machines:
                bookie.place = {"node": self.machines[number]}
            await bookie.start()
            self.running[number] = bookie
        await eventually(lambda: len(self.coordinator.bookies.bookies) == len(self.running))

    async def stop(self, number: int) -> None:
        await self.running.pop(number).close()
        await eventually(lambda: len(self.coordinator.bookies.bookies) == len(self.running))

    async def append(self, writer: LedgerWriter, count: int) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        left = count

        def added(*outcome: object) -> None:
            nonlocal left
            left -= 1
            if not left and not done.done():
                done.set_result(None)

        for number in range(count):
            writer.add(b"%06d" % number * 20, added)
        await asyncio.wait_for(done, 10)

    async def ledger_that_lacks_copies(self) -> LedgerWriter:
        """A closed ledger of 20 entries on bookies 1 to 3. Bookie 3 was stopped after the tenth."""
        await self.start(1, 2, 3)
        writer = await self.ledgers.create()
        await self.append(writer, 10)
        await self.stop(3)
        await self.append(writer, 10)
        await writer.close()
        return writer

    async def metadata_of(self, ledger_id: int) -> LedgerMetadata:
        record = await self.cluster.store.get(metadata_keys.ledger(ledger_id))
        assert record is not None
        return LedgerMetadata.unpack(record.value)

    async def held(self, number: int, ledger_id: int, last: int) -> list[tuple[int, int]]:
        nonce = (await self.metadata_of(ledger_id)).nonce
        return await held_ranges(self.running[number].store, ledger_id, nonce, 0, last, intact_only=True)

    async def whole(self, timeout_s: float = 15.0) -> None:
        """Wait for a round that began from now on and found nothing amiss; one may be under way."""
        auditor = self.cluster.coordinator.office.auditor
        for _ in range(2):
            rounds = auditor.status()["rounds"]
            auditor.wake()
            await eventually(lambda: auditor.status()["rounds"] > rounds, timeout_s)  # noqa: B023
        await eventually(lambda: auditor.status()["whole"], timeout_s)

    async def closed_and_whole(self) -> None:
        """Wake the auditor until it has found no open ledger, and nothing amiss."""
        auditor = self.cluster.coordinator.office.auditor

        def found() -> bool:
            auditor.wake()
            return auditor.status()["whole"] and not auditor.status()["open_ledgers"]

        await eventually(found, 15.0)

    async def close(self) -> None:
        await self.client.close()
        await self.coordinator.close()
        for bookie in self.running.values():
            await bookie.close()


@contextlib.asynccontextmanager
async def bookies_in(directory: Path, settings: Settings = SETTINGS) -> AsyncIterator[Bookies]:
    async with coordination(settings) as cluster:
        bookies = Bookies(cluster, directory, settings)
        await bookies.coordinator.start(5)
        await bookies.coordinator.register("127.0.0.1", 1, {})
        try:
            yield bookies
        finally:
            await bookies.close()


@pytest.fixture(autouse=True)
def no_first_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditor_module, "FIRST_ROUND_DELAY_S", 0.05)
    monkeypatch.setattr(auditor_module, "CHANGE_DELAY_S", 0.05)


@pytest.mark.promise("30.10")
async def test_what_a_bookie_missed_is_copied_when_it_returns(tmp_path: Path) -> None:
    async with bookies_in(tmp_path) as bookies:
        await bookies.start(1, 2, 3)
        writer = await bookies.ledgers.create()
        await bookies.append(writer, 50)
        await bookies.stop(3)
        await bookies.append(writer, 150)  # goes on with two of three
        await writer.close()
        other = await bookies.ledgers.create()  # an open one is left alone
        ledger = writer.metadata.ledger_id
        await bookies.start(3)
        assert await bookies.held(3, ledger, 199) != [(0, 199)]
        await bookies.whole()
        assert await bookies.held(3, ledger, 199) == [(0, 199)]
        assert (await bookies.metadata_of(ledger)).fragments == writer.metadata.fragments
        reader = await bookies.ledgers.open(ledger)
        await bookies.stop(1)
        await bookies.stop(2)
        entries = await reader.read_all(0, 199)  # from the returned one alone
        assert [entry.entry_id for entry in entries] == list(range(200))
        assert entries[77].lac >= 0 and bytes(entries[49].body) == b"000049" * 20
        status = bookies.cluster.coordinator.office.auditor.status()
        assert status["copied_entries_total"] >= 150 and status["open_ledgers"] == 1
        await other.abandon()


async def test_a_cluster_that_stops_is_not_checked_any_longer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with bookies_in(tmp_path) as bookies:
        await bookies.ledger_that_lacks_copies()
        auditor = bookies.cluster.coordinator.office.auditor
        await asyncio.wait_for(auditor.look_again(), 15)
        await bookies.cluster.coordinator.cluster_stops()
        for number in list(bookies.running):
            await bookies.stop(number)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(auditor.look_again(), 0.5)
    assert [record.getMessage() for record in caplog.records if "the auditor could not" in record.getMessage()] == []


async def test_a_thin_ledger_gets_its_third_copy(tmp_path: Path) -> None:
    async with bookies_in(tmp_path) as bookies:
        await bookies.start(1, 2)
        writer = await bookies.ledgers.create()
        assert writer.metadata.under_replicated
        await bookies.append(writer, 30)
        await writer.close()
        empty = await bookies.ledgers.create()
        await empty.close()
        ledger = writer.metadata.ledger_id
        await bookies.start(3)
        await bookies.whole()
        for ledger_id in (ledger, empty.metadata.ledger_id):
            metadata = await bookies.metadata_of(ledger_id)
            assert not metadata.under_replicated
            assert (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum) == (3, 3, 2)
        assert await bookies.held(3, ledger, 29) == [(0, 29)]


@pytest.mark.promise("30.10")
async def test_the_ledgers_of_a_lost_bookie_go_to_a_spare(tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, lost_bookie_grace_s=0.3)
    async with bookies_in(tmp_path, settings) as bookies:
        await bookies.start(1, 2, 3)
        writer = await bookies.ledgers.create()
        await bookies.append(writer, 40)
        await writer.close()
        ledger = writer.metadata.ledger_id
        await bookies.start(4)
        await bookies.whole()
        await bookies.stop(2)
        await asyncio.sleep(0.4)
        bookies.cluster.coordinator.office.auditor.wake()
        await bookies.whole()
        metadata = await bookies.metadata_of(ledger)
        assert sorted(metadata.fragments[0].bookies) == ["bookie-1", "bookie-3", "bookie-4"]
        assert await bookies.held(4, ledger, 39) == [(0, 39)]


async def test_an_open_ledger_of_a_lost_bookie_that_nobody_closes_is_recovered(tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, lost_bookie_grace_s=0.2)
    async with bookies_in(tmp_path, settings) as bookies:
        await bookies.start(1, 2, 3)
        writer = await bookies.ledgers.create()
        await bookies.append(writer, 40)
        ledger = writer.ledger_id
        await bookies.start(4)
        await bookies.stop(2)
        await bookies.closed_and_whole()
        metadata = await bookies.metadata_of(ledger)
        assert metadata.closed and metadata.last_entry == 39
        assert sorted(metadata.bookies) == ["bookie-1", "bookie-3", "bookie-4"]
        assert await bookies.held(4, ledger, 39) == [(0, 39)]
        late: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        writer.add(b"late", lambda position, error: late.set_result(error))
        assert isinstance(await asyncio.wait_for(late, 10), LedgerFenced)


async def test_a_spare_may_be_one_that_an_open_ledger_names_elsewhere(tmp_path: Path) -> None:
    """Found by seed 40035: the writer had replaced the lost bookie by the last one that there was, then died."""
    settings = dataclasses.replace(SETTINGS, lost_bookie_grace_s=0.2)
    async with bookies_in(tmp_path, settings) as bookies:
        await bookies.start(1, 2, 3)
        writer = await bookies.ledgers.create()
        await bookies.append(writer, 10)
        await bookies.start(4)
        await bookies.stop(2)
        await bookies.append(writer, 10)
        assert len((await bookies.metadata_of(writer.ledger_id)).fragments) == 2
        await bookies.closed_and_whole()
        metadata = await bookies.metadata_of(writer.ledger_id)
        assert metadata.closed and metadata.last_entry == 19
        names = ["bookie-1", "bookie-3", "bookie-4"]
        assert [sorted(fragment.bookies) for fragment in metadata.fragments] == [names, names]
        assert await bookies.held(4, writer.ledger_id, 19) == [(0, 19)]


async def test_copies_on_one_machine_move_apart_when_a_third_machine_comes(tmp_path: Path) -> None:
    machines = {1: "one", 2: "one", 3: "two", 4: "two", 5: "three"}
    async with bookies_in(tmp_path, SETTINGS) as bookies:
        bookies.machines = machines
        await bookies.start(1, 2, 3)
        writer = await bookies.ledgers.create()
        await bookies.append(writer, 10)
        await writer.close()
        ledger_id = writer.metadata.ledger_id
        auditor = bookies.cluster.coordinator.office.auditor
        await eventually(lambda: auditor.status()["crowded"] == 1)
        await bookies.start(4)
        await bookies.whole()
        assert sorted((await bookies.metadata_of(ledger_id)).bookies) == ["bookie-1", "bookie-2", "bookie-3"]
        await bookies.start(5)
        await eventually(lambda: auditor.status()["crowded"] == 0)
        moved = (await bookies.metadata_of(ledger_id)).bookies
        assert sorted(machines[int(bookie.removeprefix("bookie-"))] for bookie in moved) == ["one", "three", "two"]
        assert await bookies.held(5, ledger_id, 9) == [(0, 9)]
        await bookies.whole()


async def test_without_a_spare_nothing_changes(tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, lost_bookie_grace_s=0.1)
    async with bookies_in(tmp_path, settings) as bookies:
        await bookies.start(1, 2, 3)
        writer = await bookies.ledgers.create()
        await bookies.append(writer, 10)
        await writer.close()
        await bookies.stop(2)
        await asyncio.sleep(0.5)
        auditor = bookies.cluster.coordinator.office.auditor
        rounds = auditor.status()["rounds"]
        auditor.wake()
        await eventually(lambda: auditor.status()["rounds"] > rounds)
        assert auditor.status()["incomplete"] == 1 and not auditor.status()["whole"]
        assert auditor.status()["lost_bookies"] == ["bookie-2"]
        assert (await bookies.metadata_of(writer.metadata.ledger_id)).fragments == writer.metadata.fragments
        await bookies.start(2)
        await bookies.whole()


async def test_a_wiped_disk_is_filled_again_and_leaves_limbo(tmp_path: Path) -> None:
    async with bookies_in(tmp_path) as bookies:
        await bookies.start(1, 2, 3)
        writer = await bookies.ledgers.create()
        await bookies.append(writer, 60)
        await writer.close()
        ledger = writer.metadata.ledger_id
        still_open = await bookies.ledgers.create()
        await bookies.append(still_open, 5)
        await bookies.stop(3)
        shutil.rmtree(tmp_path / "bookie-3")
        with pytest.raises(CookieMismatch):
            await bookies.start(3)
        await bookies.start(3, accept_lost_disk=True)
        assert bookies.running[3].store.limbo
        assert not bookies.coordinator.bookies.bookies["bookie-3"].writable
        await bookies.whole()
        assert await bookies.held(3, ledger, 59) == [(0, 59)]
        assert bookies.running[3].store.limbo  # an open ledger names it: it must not say "no such entry" yet
        await still_open.close()
        bookies.cluster.coordinator.office.auditor.wake()
        await eventually(lambda: not bookies.running[3].store.limbo, 10)
        assert await bookies.held(3, still_open.metadata.ledger_id, 4) == [(0, 4)]
        await eventually(lambda: bookies.coordinator.bookies.bookies["bookie-3"].writable)


async def test_a_bit_flipped_in_a_sealed_segment_is_found_and_its_entry_copied_back(tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, scrub_interval_s=0.2, scrub_bytes_per_s=1 << 30)
    async with bookies_in(tmp_path, settings) as bookies:
        await bookies.start(1, 2, 3)
        writer = await bookies.ledgers.create()
        await bookies.append(writer, 100)
        still_open = await bookies.ledgers.create()
        await bookies.append(still_open, 100)
        await writer.close()
        await bookies.whole()
        await bookies.stop(2)
        journals = [path for path in (tmp_path / "bookie-2").glob("*.journal") if path.stat().st_size > 1000]
        for path in journals:
            data = bytearray(path.read_bytes())
            for at in (data.find(b"000042" * 20), data.rfind(b"000077" * 20)):
                data[at] ^= 1
            path.write_bytes(data)
        await bookies.start(2)
        notes = bookies.running[2].store.entries.damage.notes
        await eventually(lambda: notes.repaired_total >= 2 and not notes.count, 15.0)
        assert await bookies.held(2, writer.ledger_id, 99) == [(0, 99)]
        assert await bookies.held(2, still_open.ledger_id, 99) == [(0, 99)], "open ones are not left out"
        report = (await bookies.running[2].status())["scrub"]
        assert (report.get("damaged"), report.get("found")) == (0, 2) and report.get("scrubbed_bytes", 0) > 0
        auditor = bookies.cluster.coordinator.office.auditor
        await eventually(lambda: not auditor.status()["damaged"])
        await still_open.abandon()


async def test_damage_behind_the_end_of_a_closed_ledger_is_forgotten(tmp_path: Path) -> None:
    async with bookies_in(tmp_path) as bookies:
        await bookies.start(1, 2, 3)
        writer = await bookies.ledgers.create()
        await bookies.append(writer, 10)
        await writer.close()
        damage = bookies.running[1].store.entries.damage
        damage.note(writer.ledger_id, 4)
        damage.note(writer.ledger_id, 10)
        damage.note(writer.ledger_id + 1000, 0)
        await eventually(lambda: damage.notes.page((-1, -1), 9) == [(writer.ledger_id + 1000, 0)], 15.0)
        assert damage.notes.repaired_total == 1


async def test_a_bookie_leaves_limbo_although_nobody_closes_an_open_ledger_of_it(tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, lost_bookie_grace_s=0.2)
    async with bookies_in(tmp_path, settings) as bookies:
        await bookies.start(1, 2, 3)
        writer = await bookies.ledgers.create()
        await bookies.append(writer, 40)
        assert len(writer.metadata.bookies) == 3
        await bookies.running[2].store.enter_limbo("a loss")
        await eventually(lambda: not bookies.running[2].store.limbo, 15.0)
        metadata = await bookies.metadata_of(writer.ledger_id)
        assert metadata.closed and metadata.last_entry == 39
        await writer.abandon()


async def test_a_ledger_that_takes_longer_to_verify_than_a_question_ends_limbo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bookie answers in parts; else each round would begin again, beside the verifying that nobody waits for."""
    read_range = SegmentReader.read_range

    def slowly(reader: SegmentReader, request: RangeRead) -> RangeResult:
        threading.Event().wait(0.01)
        return read_range(reader, request)

    monkeypatch.setattr(SegmentReader, "read_range", slowly)
    monkeypatch.setattr(entry_reads, "VERIFY_BYTES", 1)  # one entry for each read
    monkeypatch.setattr(entry_reads, "VERIFY_S", 0.1)
    monkeypatch.setattr(copying, "COPY_S", 0.1)
    async with bookies_in(tmp_path) as bookies:
        await bookies.start(1, 2, 3)
        writer = await bookies.ledgers.create()
        await bookies.append(writer, 150)
        await writer.close()
        await bookies.whole()  # the third copies may be a moment late
        auditor = bookies.cluster.coordinator.office.auditor
        copied = auditor.status()["copied_entries_total"]
        ledger = writer.ledger_id, writer.metadata.nonce
        ranges, following = await bookies.running[2].store.held_ranges(*ledger, 0, 149, True)
        assert 0 < following < 100 and ranges == [(0, following - 1)]
        await bookies.running[2].store.enter_limbo("a loss")
        await eventually(lambda: not bookies.running[2].store.limbo, 30.0)
        assert auditor.status()["copied_entries_total"] == copied


async def test_a_record_that_cannot_be_decoded_keeps_limbo_and_stops_no_repair(tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, lost_bookie_grace_s=0.2)
    async with bookies_in(tmp_path, settings) as bookies:
        writer = await bookies.ledger_that_lacks_copies()
        damaged = metadata_keys.ledger(writer.ledger_id + 1)
        await bookies.coordinator.metadata.put(damaged, b"\xc1", None)
        await bookies.running[2].store.enter_limbo("a loss")
        await bookies.start(3)
        auditor = bookies.cluster.coordinator.office.auditor
        await eventually(lambda: auditor.status()["copied_entries_total"] >= 10, 15.0)
        assert await bookies.held(3, writer.ledger_id, 19) == [(0, 19)]
        assert f"ledger {writer.ledger_id + 1}" in auditor.status()["last_failure"]
        for _ in range(2):
            assert not await auditor.look_again()
        assert bookies.running[2].store.limbo, "the record might name it"
        await bookies.coordinator.metadata.delete(damaged, None)
        await eventually(lambda: not bookies.running[2].store.limbo, 15.0)
        await bookies.whole()


@pytest.mark.parametrize("malformed", ["ledgers/-", "ledgers/x", "ledgers/99999999999999999999"])
async def test_a_malformed_key_of_a_ledger_keeps_limbo_and_stops_no_repair(tmp_path: Path, malformed: str) -> None:
    async with bookies_in(tmp_path) as bookies:
        writer = await bookies.ledger_that_lacks_copies()
        record = (await bookies.metadata_of(writer.ledger_id)).pack()
        await bookies.coordinator.metadata.put(malformed, record, None)
        # The next coordinator knows no ledger before it has walked through all records.
        await bookies.cluster.coordinator.close()
        await bookies.cluster.start_coordinator()
        await bookies.start(3)
        await bookies.running[2].store.enter_limbo("a loss")
        auditor = bookies.cluster.coordinator.office.auditor
        await eventually(lambda: auditor.status()["copied_entries_total"] >= 10, 15.0)
        assert await bookies.held(3, writer.ledger_id, 19) == [(0, 19)]
        await eventually(lambda: bookies.running[2].store.limbo and "bookie-2" in auditor.status()["limbo"])
        for _ in range(2):
            assert not await auditor.look_again()
        assert auditor.status()["incomplete"] == 1
        assert f"the record with the key {malformed}" in auditor.status()["last_failure"]
        assert bookies.running[2].store.limbo, "the record may have lost its key, and may name it"
        await bookies.coordinator.metadata.delete(malformed, None)
        await eventually(lambda: not bookies.running[2].store.limbo, 15.0)
        await bookies.whole()
