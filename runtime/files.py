"""Files and directories as services see them: positioned writes, explicit syncs, atomic replacement, locks for life.

Every call blocks, so services make them through `Offload`. The simulator's version forgets what was not synced, so
nothing here may promise durability that only the page cache gives. A new name is durable after `sync_directory`. Bytes
are durable after `File.sync` or a synced `File.write_at`.

Files hold messages and secrets, so only their owner may read them. Independent of the umask, every file that is made
here has mode 0600, every directory 0700. Opening an older file that others may read takes that right away.
"""

import errno
import fcntl
import os
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ..protocol.byte_stream import Buffer
from ..protocol.errors import DirectoryLocked, DiskFull

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700

_IOV_MAX = 1024
"""Linux's bound on the pieces of one pwritev."""
_RWF_DSYNC: int = getattr(os, "RWF_DSYNC", 0)
_NOT_SUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class DiskUsage(NamedTuple):
    """Sizes of the file system that holds a path, in bytes. `free_bytes` is what this user may still take."""

    used_bytes: int
    total_bytes: int
    free_bytes: int

    @property
    def used_fraction(self) -> float:
        taken = self.used_bytes + self.free_bytes
        return self.used_bytes / taken if taken else 1.0


class File(Protocol):
    """An open file. Offsets and lengths are in bytes."""

    def write_at(self, offset: int, parts: Sequence[Buffer], *, sync: bool = False) -> None:
        """Write all parts one behind the other. With `sync` these bytes, and what is needed to find them, are durable
        afterwards; other bytes of the file need not be. Raises DiskFull, OSError; some of it may then have been
        written, and after an error of a `sync` the state of the file is unknown.
        """
        ...

    def read_at(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""
        ...

    def sync(self) -> None:
        """Make what was written durable (fdatasync). After an error the state of the file is unknown."""
        ...

    def truncate(self, size: int) -> None: ...
    def size(self) -> int: ...
    def close(self) -> None: ...


class FileLock(Protocol):
    """A lock on a path, held until released or until the process ends, however it ends."""

    def release(self) -> None: ...


class Files(Protocol):
    """A file system."""

    def make_directory(self, path: str) -> None:
        """Create it and its parents; no error when it exists. Only the owner may enter a directory made here."""
        ...

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        ...

    def exists(self, path: str) -> bool: ...

    def open(self, path: str, *, create: bool = False, preallocate: int = 0) -> File:
        """Open for reading and writing. `preallocate` reserves that many bytes, so that a sync need not write
        metadata.
        """
        ...

    def rename(self, old: str, new: str) -> None: ...
    def remove(self, path: str) -> None: ...
    def sync_directory(self, path: str) -> None: ...
    def read_bytes(self, path: str) -> bytes: ...

    def write_atomic(self, path: str, data: bytes) -> None:
        """Replace the file as a whole, durably: afterwards a crash shows the old bytes or the new, never a mixture."""
        ...

    def disk_usage(self, path: str) -> DiskUsage: ...

    def lock(self, path: str) -> FileLock:
        """Take the lock file at `path`. Raises DirectoryLocked when another process holds it."""
        ...


class RealFile:
    """A file descriptor.

    A synced write is one system call where the kernel offers it. pwritev2 with RWF_DSYNC does for one write what
    O_DSYNC does for all writes of a descriptor (pwritev2(2), open(2)): a write, and an fdatasync of its range before it
    returns. Where it is refused, fdatasync follows the write.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._sync_flag = _RWF_DSYNC

    def write_at(self, offset: int, parts: Sequence[Buffer], *, sync: bool = False) -> None:
        pending: list[memoryview] = []
        for part in parts:
            if len(view := memoryview(part)):
                pending.append(view.cast("B"))
        try:
            flag = self._sync_flag if sync else 0
            while pending:
                try:
                    written = os.pwritev(self._descriptor, pending[:_IOV_MAX], offset, flag)
                except OSError as error:
                    if not flag or error.errno not in _NOT_SUPPORTED:
                        raise
                    self._sync_flag = flag = 0
                    continue
                offset += written
                whole = 0
                while whole < len(pending) and written >= len(pending[whole]):
                    written -= len(pending[whole])
                    whole += 1
                del pending[:whole]
                if written:
                    pending[0] = pending[0][written:]
            if sync and not flag:
                os.fdatasync(self._descriptor)
        except OSError as error:
            raise _translate(error) from error

    def read_at(self, offset: int, length: int) -> bytes:
        data = os.pread(self._descriptor, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]
        got = len(data)
        while got < length and (data := os.pread(self._descriptor, length - got, offset + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class RealLock:
    """An flock on an open descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class RealFiles:
    """The operating system's files."""

    def make_directory(self, path: str) -> None:
        make_private_directory(path)

    def list(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def open(self, path: str, *, create: bool = False, preallocate: int = 0) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            descriptor = open_private(path, flags)
            if preallocate:
                try:
                    os.posix_fallocate(descriptor, 0, preallocate)
                except OSError:
                    os.close(descriptor)
                    raise
        except OSError as error:
            raise _translate(error) from error
        return RealFile(descriptor)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def remove(self, path: str) -> None:
        os.remove(path)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read_bytes(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def write_atomic(self, path: str, data: bytes) -> None:
        temporary = path + ".tmp"
        try:
            with open(temporary, "wb", opener=open_private) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _translate(error) from error
        os.rename(temporary, path)
        self.sync_directory(os.path.dirname(path) or ".")

    def disk_usage(self, path: str) -> DiskUsage:
        stat = os.statvfs(path)
        total = stat.f_blocks * stat.f_frsize
        return DiskUsage(total - stat.f_bfree * stat.f_frsize, total, stat.f_bavail * stat.f_frsize)

    def lock(self, path: str) -> FileLock:
        descriptor = open_private(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise DirectoryLocked(
                f"{path} is locked by another running process: stop that process, or use another directory"
            ) from error
        return RealLock(descriptor)


def open_private(path: str, flags: int) -> int:
    """A descriptor of a file that only its owner may read and write. A new file has that mode; an older file of this
    user gets it. Raises OSError.
    """
    descriptor = os.open(path, flags, FILE_MODE)
    try:
        found = os.fstat(descriptor)
        if found.st_mode & 0o777 & ~FILE_MODE and found.st_uid == os.geteuid():
            os.fchmod(descriptor, FILE_MODE)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def make_private_directory(path: str) -> None:
    """Create a directory and its parents, each with mode 0700; what is there stays as it is. Raises OSError."""
    parent = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(parent):
        make_private_directory(parent)
    try:
        os.mkdir(path, DIRECTORY_MODE)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def _translate(error: OSError) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(
            f"the disk has no space left for {error.filename or 'a file'}: free space, then writing resumes by itself"
        )
    return error
