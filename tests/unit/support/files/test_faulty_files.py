"""The file system that the storage's tests and the simulator stand on is as bad as it says, and no worse."""

from collections.abc import Iterator

import pytest

from magnetar.protocol.errors import DiskFull
from magnetar.runtime.files import File
from support.files.faulty_files import FaultyFiles
from support.files.faulty_inode import SECTOR_SIZE

SECTORS = 8


def a_file(seed: int, size: int = 0) -> tuple[FaultyFiles, File]:
    files = FaultyFiles(seed)
    file = files.open("/d/x", create=True, preallocate=size)
    file.sync()
    files.sync_directory("/d")
    return files, file


def pattern(sectors: int = SECTORS) -> bytes:
    return b"".join(bytes([number + 1]) * SECTOR_SIZE for number in range(sectors))


def sectors_of(data: bytes) -> Iterator[bytes]:
    return (data[start : start + SECTOR_SIZE] for start in range(0, len(data), SECTOR_SIZE))


def test_a_power_loss_keeps_any_sectors_of_any_unsynced_writes():
    kept: set[tuple[bool, ...]] = set()
    torn_inside_a_sector = False
    for seed in range(200):
        files, file = a_file(seed, SECTORS * SECTOR_SIZE)
        for number in range(0, SECTORS, 2):
            file.write_at(number * SECTOR_SIZE, [pattern()[number * SECTOR_SIZE :][: 2 * SECTOR_SIZE]])
        files.crash()
        found = files.read_bytes("/d/x")
        assert len(found) == SECTORS * SECTOR_SIZE
        whole = []
        for number, sector in enumerate(sectors_of(found)):
            assert set(sector) <= {0, number + 1}
            whole.append(sector == bytes([number + 1]) * SECTOR_SIZE)
            torn_inside_a_sector |= 0 < sector.count(0) < SECTOR_SIZE
        kept.add(tuple(whole))
    assert torn_inside_a_sector
    assert any(later and not earlier for one in kept for earlier, later in zip(one[:2], one[4:6], strict=True))
    assert {(True,) * SECTORS, (False,) * SECTORS} <= kept


def test_what_was_synced_survives_every_crash():
    for seed in range(50):
        files, file = a_file(seed)
        file.write_at(0, [pattern()])
        file.sync()
        file.write_at(len(pattern()), [pattern()])
        files.crash()
        assert files.read_bytes("/d/x").startswith(pattern())


def test_a_failing_write_leaves_a_part_of_itself_behind():
    found: set[bytes] = set()
    for seed in range(100):
        files, file = a_file(seed, SECTORS * SECTOR_SIZE)
        files.fail_next("write")
        with pytest.raises(OSError, match="input/output"):
            file.write_at(0, [pattern()])
        content = file.read_at(0, 1 << 20)
        for number, sector in enumerate(sectors_of(content)):
            assert set(sector) <= {0, number + 1}
        found.add(content)
        file.write_at(0, [pattern()])
        assert file.read_at(0, 1 << 20) == pattern()
    assert len(found) > 20
    assert any(content[:SECTOR_SIZE].count(0) == SECTOR_SIZE and any(content) for content in found), "no prefix"


def test_after_a_failing_sync_a_later_one_succeeds_and_has_not_written_everything():
    outcomes: set[bool] = set()
    for seed in range(40):
        files, file = a_file(seed)
        file.write_at(0, [b"one"])
        files.fail_next("sync")
        with pytest.raises(OSError, match="input/output"):
            file.sync()
        file.sync()
        assert file.read_at(0, 10) == b"one", "the cache shows it"
        files.crash()
        outcomes.add(files.read_bytes("/d/x") == b"one")
    assert outcomes == {True, False}


def test_a_full_disk_takes_what_still_fits():
    files = FaultyFiles(1, capacity_bytes=10)
    file = files.open("/d/x", create=True)
    file.write_at(0, [b"1234"])
    with pytest.raises(DiskFull):
        file.write_at(2, [b"abcdefghijkl"])
    assert file.read_at(0, 100) == b"12abcdefgh"
    with pytest.raises(DiskFull):
        file.write_at(10, [b"x"])
    file.write_at(0, [b"12345"])
    assert file.size() == 10


def test_a_misread_bit_is_right_on_the_medium():
    files, file = a_file(3)
    file.write_at(0, [pattern()])
    files.flip_next_read("x", times=2)
    for read in (lambda: file.read_at(0, 1 << 20), lambda: files.read_bytes("/d/x")):
        wrong = int.from_bytes(read(), "big") ^ int.from_bytes(pattern(), "big")
        assert wrong.bit_count() == 1
    assert file.read_at(0, 1 << 20) == pattern()


def test_a_flipped_bit_stays():
    files, file = a_file(3, 100)
    file.write_at(0, [b"abc"])
    file.sync()
    files.flip_bit("/d/x", 1, 0)
    files.flip_bit("/d/x", 90, 7)
    files.crash()
    assert files.read_bytes("/d/x")[:3] == b"acc"
    assert files.read_bytes("/d/x")[90] == 0x80


def test_zeros_that_were_never_written_are_read_as_if_they_had_been():
    files, file = a_file(1, 3_000_000)
    file.write_at(1000, [b"x"])
    assert file.size() == 3_000_000
    assert file.read_at(990, 20) == bytes(10) + b"x" + bytes(9)
    assert file.read_at(2_999_990, 100) == bytes(10)
    assert file.read_at(3_000_000, 10) == b""
    assert files.read_bytes("/d/x") == bytes(1000) + b"x" + bytes(2_998_999)
    file.truncate(500)
    assert file.read_at(0, 10_000) == bytes(500)
    file.write_at(600, [bytes(10)])
    assert file.read_at(0, 10_000) == bytes(610)
    assert files.disk_usage("/d").used_bytes == 610


def test_who_turns_the_power_off_hears_of_it_before_the_one_who_wrote():
    files, file = a_file(1)
    events: list[str] = []
    files.on_power_off = lambda: events.append("off")
    files.power_off_after(2)
    file.write_at(0, [b"a"])
    with pytest.raises(OSError, match="power"):
        file.write_at(1, [b"b"])
    assert events == ["off"]
    assert files.power_is_off
    files.process_died()
    assert not files.power_is_off
    assert files.read_bytes("/d/x") == b"ab"
