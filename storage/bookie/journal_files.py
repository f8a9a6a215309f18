"""Journal files made ahead of their use: created and reserved at once, then filled with zeros in small, paced pieces.

A sync of a range that was written before changes no metadata of the file system. Measured on ext4: 64 KiB writes sync
in 0.20 ms, and in 0.31 ms on extents that are only reserved. But zeros written at full speed delay every sync on the
same disk. 64 MiB keep it busy for a fifth of a second, and three bookies on one disk for over half a second. So a piece
is written and synced, then the disk rests, and the whole takes about half as long as the journal in use lasts.

`TRANSITIONS` has the states of a file. `hurry` ends the filling: after the piece at the disk, or at once during a
pause. The rest stays reserved.

Invariant: a file is handed over once, when no job for it is under way and none will follow. Zeros therefore never
reach a file that holds records.
"""

import asyncio
import enum
from collections.abc import Callable, Collection, Mapping
from functools import partial

from ...protocol.errors import DiskFull
from ...runtime.environment import Chance
from ...runtime.files import File, Files
from ...runtime.offload import Lane
from ...runtime.transitions import forbidden
from .records import FILE_HEADER_SIZE, encode_file_header
from .segment import Segment

FILL_PIECE_BYTES = 256 << 10
_ZEROS = bytes(FILL_PIECE_BYTES)

FIRST_SHARE_MIN = 0.25
_GOLDEN_RATIO = (5**0.5 - 1) / 2

PreparedCallback = Callable[[Segment, File | None, BaseException | None], None]


class MakingState(enum.Enum):
    """See `TRANSITIONS`."""

    CREATING = enum.auto()
    PAUSING = enum.auto()
    FILLING = enum.auto()
    READY = enum.auto()
    ENDED = enum.auto()


TRANSITIONS: Mapping[MakingState, Collection[MakingState]] = {
    MakingState.CREATING: (  # name, header and reserved size become durable, in one job on the lane
        MakingState.PAUSING,  # created, and there is time to fill it
        MakingState.READY,  # created, and it is not to be filled, or was hurried meanwhile
        MakingState.ENDED,  # the job failed
    ),
    MakingState.PAUSING: (  # nothing is written to it: the disk rests before the next piece
        MakingState.FILLING,  # the pause is over
        MakingState.READY,  # hurried
        MakingState.ENDED,  # taken
    ),
    MakingState.FILLING: (  # a piece is at the disk
        MakingState.PAUSING,  # the piece is durable, and others follow
        MakingState.READY,  # the piece is durable, and it was the last one, or the file was hurried meanwhile
        MakingState.ENDED,  # the write failed
    ),
    MakingState.READY: (MakingState.ENDED,),  # handed over, in this turn of the loop or the next one
    MakingState.ENDED: (),
}


class _Making:
    """One file that is being made."""

    __slots__ = ("file", "filled", "hurried", "pause_s", "segment", "size", "state", "timer")

    def __init__(self, segment: Segment, size: int, pause_s: float, fill: bool) -> None:
        self.state = MakingState.CREATING
        self.segment = segment
        self.size = size
        self.pause_s = pause_s
        self.hurried = not fill
        self.file: File | None = None
        self.filled = FILE_HEADER_SIZE
        self.timer: asyncio.TimerHandle | None = None
        """Of the pause; set in PAUSING only."""

    def become(self, state: MakingState) -> None:
        """Change the state. Raises ForbiddenTransition for a step that the table does not have."""
        if state not in TRANSITIONS[self.state]:
            raise forbidden(f"the making of {self.segment.name}", self.state, state)
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.state = state


class JournalFiles:
    """See the module. `on_prepared(segment, file, error)` is called on the loop, once for each `prepare`.

    It gets the file, or DiskFull (nothing is left behind then), or another error: the disk may then be failing.
    """

    def __init__(self, files: Files, lane: Lane, on_prepared: PreparedCallback) -> None:
        self._files = files
        self._lane = lane
        self._on_prepared = on_prepared
        self._loop = asyncio.get_running_loop()
        self._making: dict[int, _Making] = {}

    def prepare(self, segment: Segment, size: int, fill_s: float) -> None:
        """Make the file of a segment, `size` bytes long, filled within about `fill_s` seconds; 0: not filled."""
        pieces = -(-size // FILL_PIECE_BYTES)
        making = self._making[segment.file_id] = _Making(segment, size, fill_s / pieces, fill_s > 0)
        self._lane.submit(create_journal_file, (self._files, segment, size), partial(self._created, making))

    def hurry(self, segment: Segment) -> None:
        """The file is needed: hand it over as soon as nothing is written to it. Never from within this call."""
        making = self._making.get(segment.file_id)
        if making is not None and not making.hurried:
            making.hurried = True
            if making.state is MakingState.PAUSING:
                making.become(MakingState.READY)
                self._loop.call_soon(self._hand_over, making)

    def hurry_all(self) -> None:
        """`hurry` every file: no work begins from now on that no caller waits for."""
        for making in list(self._making.values()):
            self.hurry(making.segment)

    def take(self, segment: Segment) -> File | None:
        """The file at once, without `on_prepared`, if it exists and nothing is being written to it."""
        making = self._making.get(segment.file_id)
        if making is None or making.state is not MakingState.PAUSING:
            return None
        making.become(MakingState.ENDED)
        del self._making[segment.file_id]
        return making.file

    def _created(self, making: _Making, file: File | None, error: BaseException | None) -> None:
        making.file = file
        self._go_on(making, error)

    def _go_on(self, making: _Making, error: BaseException | None) -> None:
        if error is not None:
            making.become(MakingState.ENDED)
            del self._making[making.segment.file_id]
            self._on_prepared(making.segment, None, error)
        elif making.hurried or making.filled >= making.size:
            making.become(MakingState.READY)
            self._hand_over(making)
        else:
            making.become(MakingState.PAUSING)
            making.timer = self._loop.call_later(making.pause_s, self._fill, making)

    def _fill(self, making: _Making) -> None:
        making.become(MakingState.FILLING)
        assert making.file is not None, "nothing is filled before `_created`"
        start = making.filled
        making.filled = min(making.size, start // FILL_PIECE_BYTES * FILL_PIECE_BYTES + FILL_PIECE_BYTES)
        arguments = (self._files, making.segment, making.file, start, making.filled)
        self._lane.submit(_fill_piece, arguments, lambda _, error: self._go_on(making, error))

    def _hand_over(self, making: _Making) -> None:
        making.become(MakingState.ENDED)
        del self._making[making.segment.file_id]
        self._on_prepared(making.segment, making.file, None)


def first_journal_share(directory: str, random: Chance) -> float:
    """How long the first journal after a start is, as a part of a full one: at least `FIRST_SHARE_MIN`.

    Numbered bookies, by the names of their directories, get shares that are far apart: multiples of the golden ratio
    are evenly spread. Others get a random one.
    """
    name = directory.rstrip("/").rpartition("/")[2]
    number = name[len(name.rstrip("0123456789")) :]
    place = int(number) * _GOLDEN_RATIO % 1 if 0 < len(number) <= 9 else random.uniform(0, 1)
    return FIRST_SHARE_MIN + (1 - FIRST_SHARE_MIN) * place


def create_journal_file(files: Files, segment: Segment, size: int, filled: int = 0) -> File:
    """Make a journal file durable: name, header, reserved size, and zeros up to the offset `filled`.

    Raises DiskFull (leaving nothing behind), OSError. Runs on a lane.
    """
    try:
        file = files.open(segment.path, create=True, preallocate=size)
        try:
            file.write_at(0, [encode_file_header(segment.file_id, segment.seed)])
            for start in range(FILE_HEADER_SIZE, filled, FILL_PIECE_BYTES):
                file.write_at(start, [memoryview(_ZEROS)[: filled - start]])
            file.sync()
            files.sync_directory(segment.directory)
        except BaseException:
            file.close()
            raise
    except DiskFull:
        if files.exists(segment.path):
            files.remove(segment.path)
        raise
    return file


def _fill_piece(files: Files, segment: Segment, file: File, start: int, end: int) -> None:
    """Durable zeros from `start` to `end`. Raises DiskFull, the file is gone then, and OSError; both close it."""
    try:
        file.write_at(start, [memoryview(_ZEROS)[: end - start]], sync=True)
    except BaseException as error:
        file.close()
        if isinstance(error, DiskFull):
            files.remove(segment.path)
        raise
