"""The file of a metadata backup: what comes back, and what is refused."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from magnetar.protocol.errors import BackupDamaged, ClusterError, FormatTooNew
from magnetar.runtime.files import RealFiles
from magnetar.storage.backup import backup_file
from magnetar.storage.backup.backup_file import BackupHead, MetadataRecord, check_backup, read_records, write_backup

FILES = RealFiles()
HEAD = BackupHead("cluster-1", 1_700_000_000_000, 7, "sqlite")
RECORDS = [MetadataRecord(f"key/{number:05d}", number, b"%d" % number * (number % 50)) for number in range(2500)]


@pytest.fixture
def path(tmp_path: Path) -> str:
    found = str(tmp_path / "backup")
    assert write_backup(FILES, found, HEAD, RECORDS) == len(RECORDS)
    return found


def test_a_backup_gives_back_its_head_and_its_records(path: str) -> None:
    counts: list[int] = []
    found = check_backup(FILES, path, counts.append)
    assert (found.head, found.records) == (HEAD, len(RECORDS))
    assert counts == [1000, 2000, 2500]
    assert list(read_records(FILES, found)) == RECORDS
    assert Path(path).stat().st_mode & 0o777 == 0o600


def test_an_empty_backup_and_a_large_record_come_back(tmp_path: Path) -> None:
    large = [MetadataRecord("a", 1, bytes(16 << 20)), MetadataRecord("b", 2, b"")]
    for name, records in (("none", []), ("large", large)):
        write_backup(FILES, str(tmp_path / name), HEAD, records)
        assert list(read_records(FILES, check_backup(FILES, str(tmp_path / name)))) == records


def test_a_file_is_never_replaced_and_a_failed_backup_leaves_none(tmp_path: Path, path: str) -> None:
    with pytest.raises(ClusterError, match="exists already"):
        write_backup(FILES, path, HEAD, RECORDS)

    def failing() -> Iterator[MetadataRecord]:
        yield RECORDS[0]
        raise OSError("the database went away")

    with pytest.raises(OSError, match="went away"):
        write_backup(FILES, str(tmp_path / "other"), HEAD, failing())
    assert [one.name for one in tmp_path.iterdir()] == ["backup"]


def test_a_backup_that_is_cut_anywhere_or_goes_on_is_damaged(tmp_path: Path, path: str) -> None:
    data = Path(path).read_bytes()
    cut = tmp_path / "cut"
    for size in [*range(0, len(data), 997), *range(len(data) - 200, len(data))]:
        cut.write_bytes(data[:size])
        with pytest.raises(BackupDamaged):
            check_backup(FILES, str(cut))
    cut.write_bytes(data + b"x")
    with pytest.raises(BackupDamaged, match="follows its end"):
        check_backup(FILES, str(cut))


@pytest.mark.promise("30.1")
def test_a_backup_with_any_changed_byte_is_refused(tmp_path: Path, path: str) -> None:
    data = bytearray(Path(path).read_bytes())
    changed = tmp_path / "changed"
    for place in [*range(0, 200), *range(200, len(data), 331)]:
        data[place] ^= 0x40
        changed.write_bytes(data)
        with pytest.raises((BackupDamaged, FormatTooNew)):
            check_backup(FILES, str(changed))
        data[place] ^= 0x40


def test_a_backup_without_one_of_its_blocks_is_damaged(tmp_path: Path, path: str) -> None:
    data = Path(path).read_bytes()
    ends = [8]
    while ends[-1] < len(data):
        ends.append(ends[-1] + 9 + int.from_bytes(data[ends[-1] + 1 : ends[-1] + 5], "big"))
    lacking = tmp_path / "lacking"
    assert len(ends) == 6
    for start, end in pairwise(ends):
        lacking.write_bytes(data[:start] + data[end:])
        with pytest.raises(BackupDamaged):
            check_backup(FILES, str(lacking))


def test_a_backup_of_a_later_format_is_refused_as_such(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = tmp_path / "later"
    later.write_bytes(b"MGNTRMB2" + Path(path).read_bytes()[8:])
    with pytest.raises(FormatTooNew, match="later version"):
        check_backup(FILES, str(later))
    monkeypatch.setattr(backup_file, "FORMAT", 2)
    write_backup(FILES, str(tmp_path / "two"), BackupHead("c", 0, 0, "sqlite", "9.9"), [])
    monkeypatch.setattr(backup_file, "FORMAT", 1)
    with pytest.raises(FormatTooNew, match=r"format 2, written by Magnetar 9\.9"):
        check_backup(FILES, str(tmp_path / "two"))


def test_a_file_that_changes_between_check_and_use_is_noticed(tmp_path: Path, path: str) -> None:
    found = check_backup(FILES, path)
    other = str(tmp_path / "other")
    write_backup(FILES, other, HEAD, RECORDS[1:])
    Path(other).rename(path)
    with pytest.raises(BackupDamaged, match="has changed"):
        list(read_records(FILES, found))
    with pytest.raises(ClusterError, match="no backup"):
        check_backup(FILES, str(tmp_path / "missing"))
