"""What a process is doing, in a file of its node that outlives it.

The file has a head (size of the body, and its CRC-32), and a body (JSON). A head of zeros says that nothing is being
done. The page cache keeps what a killed process wrote. A node that is gone keeps no note. What cannot be read says
nothing.

The process holds a lock of its note while it lives. The kernel gives the lock back when the process ends, however that
happens. Children of the process do not inherit it. So who gets the lock knows that the process is gone.
"""

import fcntl
import json
import logging
import os
import stat
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)

_HEAD = struct.Struct(">II")
NOTE_SIZE_MAX_BYTES = 4 << 20
"""More than the places of 50,000 messages."""
LEFT_NOTES_MAX = 1_000
"""Notes that are taken at once."""

_own_paths: set[Path] = set()
"""Notes that this process has open. It must not open one again: closing a file gives all its locks of it back."""
_paths_lock = threading.Lock()


class ProcessNote:
    """The note of this process. Where the disk refuses it, the process goes on without one."""

    def __init__(self, path: Path, without: str) -> None:
        """`without` says in the log what cannot be known when there is no note."""
        self.path = path
        self._without = without
        self._file: int | None = None
        try:
            with _paths_lock:
                self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
                _own_paths.add(path)
            fcntl.lockf(self._file, fcntl.LOCK_EX)
            self.clear()  # an empty file is one whose process has not locked it yet
        except OSError as error:
            self._gone(error)

    def write(self, value: object) -> None:
        """It is doing this now. `value` is of JSON."""
        body = json.dumps(value).encode()
        self._put(_HEAD.pack(len(body), zlib.crc32(body)) + body)

    def clear(self) -> None:
        """It is doing nothing now."""
        self._put(_HEAD.pack(0, 0))

    def _put(self, content: bytes) -> None:
        if self._file is not None:
            try:
                os.pwrite(self._file, content, 0)
            except OSError as error:
                self._gone(error)

    def close(self) -> None:
        """Remove the note."""
        if self._file is not None:
            file, self._file = self._file, None
            self.path.unlink(missing_ok=True)
            os.close(file)
            _own_paths.discard(self.path)

    def _gone(self, error: OSError) -> None:
        logger.warning("%s: %s", self._without, error)
        with suppress(OSError):
            self.close()


class LeftNote:
    """The note of a process that is gone. This process holds its lock until `close`."""

    def __init__(self, path: Path, file: int) -> None:
        self.path = path
        self._file = file

    def value(self) -> object:
        """What the process was doing. None if it was doing nothing, and where the note is not whole."""
        return read_note_value(os.pread(self._file, NOTE_SIZE_MAX_BYTES, 0))

    def remove(self) -> None:
        """Nobody finds it from now on."""
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        os.close(self._file)
        _own_paths.discard(self.path)


def left_notes(directory: Path, prefix: str) -> Iterator[LeftNote]:
    """The notes in a directory whose names begin so, and whose processes are gone. The caller closes each."""
    found = 0
    for path in sorted(directory.glob(f"{prefix}*")):
        if found == LEFT_NOTES_MAX:
            return
        with _paths_lock:
            note = None if path in _own_paths else _left(path)
        if note is not None:
            found += 1
            yield note


def _left(path: Path) -> LeftNote | None:
    """The note, unless its process lives, or it is not a file of this user."""
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:  # another process has just removed it, or it is somebody else's
        logger.debug("%s is not taken: %s", path, error)
        return None
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = os.fstat(file)
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_size and found.st_nlink:
            _own_paths.add(path)
            return LeftNote(path, file)
    except OSError as error:  # its process lives
        logger.debug("%s is not taken: %s", path, error)
    os.close(file)
    return None


def read_note_value(content: bytes) -> object:
    """What a note says; None if it says nothing, or is not whole."""
    if len(content) < _HEAD.size:
        return None
    size, checksum = _HEAD.unpack_from(content)
    body = content[_HEAD.size : _HEAD.size + size]
    if not size or len(body) != size or zlib.crc32(body) != checksum:
        return None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
