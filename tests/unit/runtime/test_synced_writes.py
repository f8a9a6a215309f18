"""A synced write: one system call where the kernel has it, a write and an fdatasync elsewhere, durable either way."""

import errno
import os

import pytest

from magnetar.protocol.errors import DiskFull
from magnetar.runtime.files import RealFiles
from support.files.faulty_files import FaultyFiles, PowerLost

PARTS = [b"one", b"", b"two", b"three"]
WHOLE = b"".join(PARTS)


class Calls:
    """Stands in for two of the operating system's calls: what was called, in order; some of it refused or cut short."""

    def __init__(self, monkeypatch, *, refuse_flags=0, bytes_max=1 << 20, sync_error=0):
        self.made = []
        pwritev = os.pwritev

        def write(descriptor, buffers, offset, flags=0):
            self.made.append(("pwritev", flags))
            if flags and refuse_flags:
                raise OSError(refuse_flags, "no")
            if flags and sync_error:
                raise OSError(sync_error, "no")
            whole = b"".join(buffers)[:bytes_max]
            return pwritev(descriptor, [whole], offset, flags)

        monkeypatch.setattr(os, "pwritev", write)
        fdatasync = os.fdatasync

        def sync(descriptor):
            self.made.append(("fdatasync", 0))
            fdatasync(descriptor)

        monkeypatch.setattr(os, "fdatasync", sync)


@pytest.fixture
def file(tmp_path):
    file = RealFiles().open(str(tmp_path / "f"), create=True, preallocate=4096)
    yield file
    file.close()


@pytest.mark.skipif(not hasattr(os, "RWF_DSYNC"), reason="this system has no synced writes")
def test_a_synced_write_is_one_system_call(file, monkeypatch):
    calls = Calls(monkeypatch)
    file.write_at(5, PARTS, sync=True)
    assert calls.made == [("pwritev", os.RWF_DSYNC)]
    assert file.read_at(5, len(WHOLE)) == WHOLE


@pytest.mark.skipif(not hasattr(os, "RWF_DSYNC"), reason="this system has no synced writes")
def test_each_part_of_a_write_that_was_cut_short_is_synced(file, monkeypatch):
    calls = Calls(monkeypatch, bytes_max=4)
    file.write_at(5, PARTS, sync=True)
    assert calls.made == [("pwritev", os.RWF_DSYNC)] * 3
    assert file.read_at(5, len(WHOLE)) == WHOLE


@pytest.mark.parametrize("refusal", [errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL])
def test_where_synced_writes_are_refused_fdatasync_follows_each_write(file, monkeypatch, refusal):
    if not hasattr(os, "RWF_DSYNC"):
        pytest.skip("this system has no synced writes")
    calls = Calls(monkeypatch, refuse_flags=refusal)
    file.write_at(0, PARTS, sync=True)
    file.write_at(20, PARTS, sync=True)
    assert calls.made == [("pwritev", os.RWF_DSYNC), *[("pwritev", 0), ("fdatasync", 0)] * 2], "it asks once"
    assert file.read_at(0, len(WHOLE)) == file.read_at(20, len(WHOLE)) == WHOLE


def test_a_write_without_sync_syncs_nothing(file, monkeypatch):
    calls = Calls(monkeypatch)
    file.write_at(0, PARTS)
    assert calls.made == [("pwritev", 0)]


@pytest.mark.skipif(not hasattr(os, "RWF_DSYNC"), reason="this system has no synced writes")
@pytest.mark.parametrize(("number", "error"), [(errno.EIO, OSError), (errno.ENOSPC, DiskFull)])
def test_a_failed_synced_write_is_told_and_not_tried_again(file, monkeypatch, number, error):
    calls = Calls(monkeypatch, sync_error=number)
    with pytest.raises(error):
        file.write_at(0, PARTS, sync=True)
    assert calls.made == [("pwritev", os.RWF_DSYNC)]


# -- the disk in memory ------------------------------------------------------------------------------------------------


def disk(seed):
    files = FaultyFiles(seed)
    file = files.open("/d/x", create=True, preallocate=100)
    file.sync()
    files.sync_directory("/d")
    return files, file


def test_a_synced_write_outlives_a_power_loss_and_takes_nothing_else_along():
    others = set()
    for seed in range(40):
        files, file = disk(seed)
        file.write_at(50, [b"other"])
        file.write_at(0, [b"synced"], sync=True)
        files.crash()
        content = files.read_bytes("/d/x")
        assert content[:6] == b"synced" and len(content) == 100
        others.add(content[50:55])
    assert {b"other", bytes(5)} <= others, "it is no sync of the whole file"


def test_power_lost_amid_a_synced_write_leaves_any_part_of_it():
    found = set()
    for seed in range(200):
        files, file = disk(seed)
        files.power_off_after(1 + seed % 2)  # behind the write, or amid the sync
        with pytest.raises(PowerLost):
            file.write_at(0, [b"abcdef"], sync=True)
        files.crash()
        content = files.read_bytes("/d/x")[:6].rstrip(b"\0")
        assert b"abcdef".startswith(content)
        found.add(content)
    assert {b"", b"abcdef"} < found


@pytest.mark.parametrize("failing", ["write", "sync"])
def test_a_synced_write_that_fails_may_have_left_a_part_of_itself(failing):
    found = set()
    for seed in range(100):
        files, file = disk(seed)
        files.fail_next(failing)
        with pytest.raises(OSError, match="input/output"):
            file.write_at(0, [b"abcdef"], sync=True)
        file.sync()
        files.crash()
        found.add(files.read_bytes("/d/x")[:6])
    assert bytes(6) in found and len(found) > 1


def test_what_was_written_before_over_the_same_bytes_does_not_come_back():
    for seed in range(40):
        files, file = disk(seed)
        file.write_at(0, [b"older and longer"])
        file.write_at(0, [b"newer"], sync=True)
        files.crash()
        assert files.read_bytes("/d/x")[:5] == b"newer"
