"""The contents of one file on a disk that may lose what was not synced: what its users see, and what would survive.

`current` is the page cache; `durable` is the medium; `unsynced` lists, in order, what turns the one into the other.
"""

from random import Random

SECTOR_SIZE = 512
_ZEROS = bytes(1024 * 1024)

Operation = tuple[str, int, bytes]
"""("write", offset, bytes) or ("resize", size, b"")."""


class Content:
    """Bytes, of which a tail of zeros takes no memory: a preallocated file costs what was written to it."""

    __slots__ = ("_written", "size")

    def __init__(self) -> None:
        self._written = bytearray()
        self.size = 0

    def copy(self) -> "Content":
        made = Content()
        made._written, made.size = self._written[:], self.size
        return made

    def read(self, start: int, stop: int) -> bytes:
        """Fewer bytes only at the end of the file."""
        stop = min(stop, self.size)
        found = self._written[start:stop]
        missing = stop - start - len(found)
        if missing <= 0:
            return bytes(found)
        zeros = memoryview(_ZEROS)[:missing] if missing <= len(_ZEROS) else bytes(missing)
        return b"".join((found, zeros))

    def write(self, offset: int, data: bytes) -> None:
        stop = offset + len(data)
        self.size = max(self.size, stop)
        known = len(self._written)
        if offset >= known and _ZEROS.startswith(data):
            return
        if offset > known:
            self._written.extend(bytes(offset - known))
        self._written[offset:stop] = data

    def resize(self, size: int) -> None:
        del self._written[size:]
        self.size = size

    def flip(self, byte: int, bit: int) -> None:
        if byte < self.size:
            self.write(byte, bytes([self.read(byte, byte + 1)[0] ^ 1 << bit]))

    def apply(self, operation: Operation) -> None:
        kind, at, data = operation
        if kind == "write":
            self.write(at, data)
        else:
            self.resize(at)


class Inode:
    """See the module."""

    def __init__(self) -> None:
        self.current = Content()
        self.durable = Content()
        self.unsynced: list[Operation] = []

    def write(self, offset: int, data: bytes) -> None:
        self.current.write(offset, data)
        self.unsynced.append(("write", offset, data))

    def resize(self, size: int) -> None:
        self.current.resize(size)
        self.unsynced.append(("resize", size, b""))

    def sync(self) -> None:
        for operation in self.unsynced:
            self.durable.apply(operation)
        self.unsynced.clear()

    def sync_range(self, start: int, end: int) -> None:
        """Make one range durable, and the sizes set before; other bytes may stay in the cache alone."""
        left: list[Operation] = []
        for operation in self.unsynced:
            kind, at, data = operation
            if kind == "resize" or (at < end and start < at + len(data)):
                self.durable.apply(operation)
            else:
                left.append(operation)
        self.unsynced = left

    def write_torn(self, offset: int, data: bytes, random: Random) -> None:
        """Write only a part: a prefix, or some of the sectors."""
        for at, part in _torn(offset, data, random):
            self.write(at, part)

    def fail_sync(self, random: Random) -> None:
        """As Linux does: the pages count as clean although some never got to the medium, and no later sync writes
        them. Readers see them until the cache is gone.
        """
        missed = [kind == "write" and random.random() < 0.5 for kind, _, _ in self.unsynced]
        self.unsynced = [operation for operation, lost in zip(self.unsynced, missed, strict=True) if not lost]

    def crash(self, random: Random) -> None:
        """Only a part of what is not synced survives: what was issued before some moment, or whatever sectors the disk
        happened to have written, in no order.
        """
        survivors = _a_prefix(self.unsynced, random) if random.random() < 0.5 else _any_sectors(self.unsynced, random)
        for operation in survivors:
            self.durable.apply(operation)
        self.current = self.durable.copy()
        self.unsynced = []


def _a_prefix(unsynced: list[Operation], random: Random) -> list[Operation]:
    """The first few operations, and a part of the next."""
    kept = random.randint(0, len(unsynced))
    survivors = unsynced[:kept]
    if kept < len(unsynced) and unsynced[kept][0] == "write":
        _, offset, data = unsynced[kept]
        survivors += [("write", at, part) for at, part in _torn(offset, data, random)]
    return survivors


def _any_sectors(unsynced: list[Operation], random: Random) -> list[Operation]:
    """Sizes change in order (a file system journals them), up to some moment; sectors of any write may be there."""
    resizes = sum(kind == "resize" for kind, _, _ in unsynced)
    resizes_kept = random.randint(0, resizes)
    share = random.choice((0.1, 0.5, 0.9))
    survivors: list[Operation] = []
    for operation in unsynced:
        kind, offset, data = operation
        if kind == "write":
            survivors += [("write", at, part) for at, part in _some_sectors(offset, data, share, random)]
        elif resizes_kept:
            resizes_kept -= 1
            survivors.append(operation)
    return survivors


def _torn(offset: int, data: bytes, random: Random) -> list[tuple[int, bytes]]:
    if random.random() < 0.5:
        return [(offset, data[: random.randint(0, len(data))])]
    return _some_sectors(offset, data, 0.5, random)


def _some_sectors(offset: int, data: bytes, share: float, random: Random) -> list[tuple[int, bytes]]:
    """The parts of a write that fall into the sectors that the disk wrote, each with probability `share`."""
    parts: list[tuple[int, bytes]] = []
    start, end = offset, offset + len(data)
    while start < end:
        stop = min(end, (start // SECTOR_SIZE + 1) * SECTOR_SIZE)
        if random.random() < share:
            parts.append((start, data[start - offset : stop - offset]))
        start = stop
    return parts
