"""A file system in memory that behaves as badly as a real one may, on request and from a seed.

- `crash()`: power loss. Names not synced with their directory, and all open handles, are gone. Of the unsynced writes
  a random prefix survives, the next one torn at a byte or missing whole sectors; or any sectors of any of them do.
- `process_died()`: the machine goes on; what was written stays in its cache, not synced, for the next process to see.
- `power_off_after(n)`: the n-th change from now on, and every operation after it, fails until `crash()` (or
  `process_died()`); `on_power_off` is called at that moment, in the thread that made the change.
- `fail_next`: errors of a device. A failing write leaves a part of itself behind. After a failing sync some of what it
  should have written never gets to the medium, although the cache shows it, and later syncs succeed.
- `flip_bit`, `flip_next_read`: corruption on the medium, and on the way from it.
- `capacity_bytes`: a full disk. The write that fills it leaves behind what still fitted.

It implements `magnetar.runtime.files.Files` and may be used from several threads.
"""

import errno
import threading
from collections.abc import Callable, Sequence
from random import Random

from magnetar.protocol.byte_stream import Buffer
from magnetar.protocol.errors import DirectoryLocked, DiskFull
from magnetar.runtime.files import DiskUsage, File, FileLock

from .faulty_inode import Content, Inode


class PowerLost(OSError):
    """The machine is off."""


class FaultyFiles:
    """See the module. `steps` counts changes, for `power_off_after`."""

    def __init__(self, seed: int = 0, capacity_bytes: int = 1 << 40) -> None:
        self.capacity_bytes = capacity_bytes
        self.steps = 0
        self.syncs = 0
        self.usage: DiskUsage | None = None
        self.on_power_off: Callable[[], None] = _nothing
        self._random = Random(seed)
        self._mutex = threading.RLock()
        self._names: dict[str, Inode] = {}
        self._durable_names: dict[str, Inode] = {}
        self._name_changes: list[tuple[str, str, str]] = []
        self._directories: set[str] = set()
        self._locks: set[str] = set()
        self._power_off_at: int | None = None
        self._power_is_off = False
        self._failures: dict[tuple[str, str], int] = {}
        self._flips: dict[str, int] = {}
        self._generation = 0

    # -- faults ------------------------------------------------------------------------------------------------

    def power_off_after(self, changes: int) -> None:
        """The `changes`-th change from now takes place, is not synced, and fails; nothing works after it."""
        self._power_off_at = self.steps + changes

    @property
    def power_is_off(self) -> bool:
        return self._power_is_off

    def crash(self) -> None:
        """Lose what was not durable; then the power is back."""
        with self._mutex:
            kept = self._random.randint(0, len(self._name_changes))
            for change in self._name_changes[:kept]:
                _change_name(self._durable_names, self._names_of_inodes(), *change)
            self._name_changes.clear()
            self._names = dict(self._durable_names)
            for inode in {id(inode): inode for inode in self._names.values()}.values():
                inode.crash(self._random)
            self._failures.clear()
            self._flips.clear()
            self.process_died()

    def process_died(self) -> None:
        """Open handles and locks are gone; what was written is still to be seen, and durable only if it was synced."""
        with self._mutex:
            self._power_off_at, self._power_is_off = None, False
            self.on_power_off = _nothing
            self._locks.clear()
            self._generation += 1

    def flip_bit(self, path: str, byte: int, bit: int = 0) -> None:
        """Corrupt a stored byte."""
        inode = self._names[path]
        for content in (inode.current, inode.durable):
            content.flip(byte, bit)

    def flip_next_read(self, path_part: str = "", times: int = 1) -> None:
        """The next `times` reads of something from a path containing `path_part` see one bit wrong; the medium has it
        right.
        """
        self._flips[path_part] = times

    def fail_next(self, operation: str, path_part: str = "", times: int = 1) -> None:
        """The next `times` calls of `write`, `sync`, `read` or `open` on a path containing `path_part` raise EIO."""
        self._failures[operation, path_part] = times

    def calm(self) -> None:
        """What was to fail later does not; what has happened stays."""
        with self._mutex:
            self._failures.clear()
            self._flips.clear()
            if not self._power_is_off:
                self._power_off_at, self.on_power_off = None, _nothing

    # -- Files ---------------------------------------------------------------------------------------------------

    def make_directory(self, path: str) -> None:
        with self._mutex:
            self._check("mkdir", path)
            self._directories.add(path)

    def list(self, path: str) -> "list[str]":
        with self._mutex:
            self._check("list", path)
            return sorted(name[len(path) + 1 :] for name in self._names if name.rpartition("/")[0] == path)

    def exists(self, path: str) -> bool:
        with self._mutex:
            self._check("exists", path)
            return path in self._names or path in self._directories

    def open(self, path: str, *, create: bool = False, preallocate: int = 0) -> File:
        with self._mutex:
            self._check("open", path)
            inode = self._names.get(path)
            if inode is None:
                if not create:
                    raise FileNotFoundError(errno.ENOENT, "no such file", path)
                inode = Inode()
                self._names[path] = inode
                self._name_changes.append(("add", path, path))
                self._changed()
            if preallocate > inode.current.size:
                self._reserve(preallocate - inode.current.size, path)
                inode.resize(preallocate)
                self._changed()
            return _FaultyFile(self, path, inode, self._generation)

    def rename(self, old: str, new: str) -> None:
        with self._mutex:
            self._check("rename", old)
            self._names[new] = self._names.pop(old)
            self._name_changes.append(("rename", old, new))
            self._changed()

    def remove(self, path: str) -> None:
        with self._mutex:
            self._check("remove", path)
            if path not in self._names:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            del self._names[path]
            self._name_changes.append(("remove", path, path))
            self._changed()

    def sync_directory(self, path: str) -> None:
        with self._mutex:
            self._check("sync", path)
            self._changed()
            self._durable_names = dict(self._names)
            self._name_changes.clear()

    def read_bytes(self, path: str) -> bytes:
        with self._mutex:
            self._check("read", path)
            if path not in self._names:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            content = self._names[path].current
            return self._read(path, content, 0, content.size)

    def write_atomic(self, path: str, data: bytes) -> None:
        file = self.open(path + ".tmp", create=True)
        file.truncate(0)
        file.write_at(0, [data])
        file.sync()
        file.close()
        self.rename(path + ".tmp", path)
        self.sync_directory(path.rpartition("/")[0])

    def disk_usage(self, path: str) -> DiskUsage:
        with self._mutex:
            self._check("usage", path)
            used = self._used_bytes()
            return self.usage or DiskUsage(used, self.capacity_bytes, max(0, self.capacity_bytes - used))

    def lock(self, path: str) -> FileLock:
        with self._mutex:
            self._check("lock", path)
            if path in self._locks:
                raise DirectoryLocked(f"{path} is locked")
            self._locks.add(path)
            return _FaultyLock(self._locks, path)

    # -- inside --------------------------------------------------------------------------------------------------

    def _used_bytes(self) -> int:
        return sum(inode.current.size for inode in self._names.values())

    def _read(self, path: str, content: Content, start: int, stop: int) -> bytes:
        data = content.read(start, stop)
        if self._flips and data:
            for part, times in list(self._flips.items()):
                if part in path and times > 0:
                    self._flips[part] = times - 1
                    at, bit = self._random.randrange(len(data)), self._random.randrange(8)
                    data = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
        return data

    def _reserve(self, size: int, path: str) -> None:
        if self._used_bytes() + size > self.capacity_bytes:
            raise DiskFull(f"no space left for {path}")

    def _changed(self) -> None:
        self.steps += 1
        if self._power_off_at is not None and self.steps >= self._power_off_at:
            self._power_is_off = True
            self.on_power_off()
            raise PowerLost(errno.EIO, "the power went off")

    def _check(self, operation: str, path: str) -> None:
        if self._power_is_off:
            raise PowerLost(errno.EIO, "the power is off", path)
        if not self._failures:
            return
        for (failing, part), times in list(self._failures.items()):
            if failing == operation and part in path and times > 0:
                self._failures[failing, part] = times - 1
                raise OSError(errno.EIO, "input/output error", path)

    def _names_of_inodes(self) -> dict[str, Inode]:
        """Every inode that some name leads or led to; a lost creation's inode is simply not there."""
        return {**self._durable_names, **self._names}


def _nothing() -> None:
    """Nobody wants to know."""


def _change_name(names: dict[str, Inode], inodes: dict[str, Inode], kind: str, old: str, new: str) -> None:
    if kind == "add":
        if old in inodes:
            names[old] = inodes[old]
    elif kind == "remove":
        names.pop(old, None)
    else:
        inode = names.pop(old, None) or inodes.get(new)
        if inode is not None:
            names[new] = inode


class _FaultyFile:
    def __init__(self, files: FaultyFiles, path: str, inode: Inode, generation: int) -> None:
        self._files = files
        self._path = path
        self._inode = inode
        self._generation = generation
        self._closed = False

    def write_at(self, offset: int, parts: Sequence[Buffer], *, sync: bool = False) -> None:
        """A synced write is a write and a sync of its range: power may fail in between, and either may fail."""
        data = b"".join(parts)
        with self._files._mutex:
            self._write(offset, data)
            if sync:
                self._sync(lambda: self._inode.sync_range(offset, offset + len(data)))

    def _write(self, offset: int, data: bytes) -> None:
        files, inode = self._files, self._inode
        with files._mutex:
            try:
                self._check("write")
            except PowerLost:
                raise
            except OSError:
                if self._is_open():
                    inode.write_torn(offset, data, files._random)
                raise
            growth = offset + len(data) - inode.current.size
            if growth > 0:
                try:
                    files._reserve(growth, self._path)
                except DiskFull:
                    fitting = len(data) - growth + max(0, files.capacity_bytes - files._used_bytes())
                    if fitting > 0:
                        inode.write(offset, data[:fitting])
                    raise
            inode.write(offset, data)
            files._changed()

    def read_at(self, offset: int, length: int) -> bytes:
        with self._files._mutex:
            self._check("read")
            return self._files._read(self._path, self._inode.current, offset, offset + length)

    def sync(self) -> None:
        self._sync(self._inode.sync)

    def _sync(self, make_durable: Callable[[], None]) -> None:
        files = self._files
        with files._mutex:
            try:
                self._check("sync")
            except PowerLost:
                raise
            except OSError:
                if self._is_open():
                    self._inode.fail_sync(files._random)
                raise
            files._changed()
            files.syncs += 1
            make_durable()

    def truncate(self, size: int) -> None:
        with self._files._mutex:
            self._check("write")
            self._inode.resize(size)
            self._files._changed()

    def size(self) -> int:
        with self._files._mutex:
            self._check("stat")
            return self._inode.current.size

    def close(self) -> None:
        self._closed = True

    def _is_open(self) -> bool:
        return not self._closed and self._generation == self._files._generation

    def _check(self, operation: str) -> None:
        if not self._is_open():
            raise OSError(errno.EBADF, "the file is closed", self._path)
        self._files._check(operation, self._path)


class _FaultyLock:
    def __init__(self, locks: set[str], path: str) -> None:
        self._locks = locks
        self._path = path

    def release(self) -> None:
        self._locks.discard(self._path)
