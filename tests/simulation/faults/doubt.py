"""Doubt about the records of cursors: `CursorDoubt`.

While it lasts, cursors are written all the time, and one that has a ledger often wants another one, as after a bookie
has come back. The first try mostly ends with an unknown outcome: the database does not say in time what became of the
record. What follows mostly fails before that: a new ledger takes no first entry, since the disks are full. So a cursor
meets in one run what needs half a minute without the database otherwise: its record may name another ledger than the
one that it has.
"""

import asyncio
import contextlib
from contextlib import ExitStack
from contextvars import ContextVar
from random import Random
from typing import Any
from unittest.mock import patch

from magnetar.protocol.errors import MagnetarError, NotEnoughBookies, OutcomeUnknown
from magnetar.storage.ledger.writer import LedgerWriter
from magnetar.storage.managed import cursor, cursor_storage
from magnetar.storage.managed.cursor import CursorWriter, CursorWriterState
from magnetar.storage.managed.cursor_storage import CursorStorage, StorageState

from ..world.loop import PROCESS
from ..world.process import Process

WRITE_PAUSE_S = 0.1
ENDED = (CursorWriterState.FENCED, CursorWriterState.CLOSED)


class CursorDoubt:
    """See the module. `begin` and `end` may be nested."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._depth = 0
        self._writers: dict[CursorWriter, Process] = {}
        self._chances: ContextVar[tuple[float, float]] = ContextVar("chances", default=(0.0, 0.0))
        """Of the switch that this task makes: that the first entry fails, and that the outcome is unknown."""
        self._writing: asyncio.Task[None] | None = None

    def install(self, stack: ExitStack) -> None:
        """Be able to make cursors doubt, until the stack is left."""
        switch, write = CursorStorage._switch_ledger, CursorWriter._write
        put, append = cursor_storage.put_certain, cursor_storage.append
        should_move: Any = LedgerWriter.should_move
        chances = self._chances

        async def writing(writer: CursorWriter, storage: CursorStorage) -> None:
            process = PROCESS.get()
            assert process is not None
            self._writers[writer] = process
            await write(writer, storage)

        async def switching(storage: CursorStorage, state: bytes) -> None:
            if not self._depth or storage.ledger_writer is None:
                await switch(storage, state)
                return
            again = storage.state is StorageState.IN_DOUBT
            before = chances.set((0.7, 0.3) if again else (0.1, 0.8))
            try:
                await switch(storage, state)
            finally:
                chances.reset(before)

        async def appending(*arguments: Any) -> int:
            if self._random.random() < chances.get()[0]:
                raise NotEnoughBookies("the disks of all bookies are full")
            return await append(*arguments)

        async def putting(*arguments: Any, **options: Any) -> int:
            if self._random.random() >= chances.get()[1]:
                return await put(*arguments, **options)
            if self._random.random() < 0.6:
                await put(*arguments, **options)
            raise OutcomeUnknown("the database did not say in time what became of the record")

        def moving(writer: LedgerWriter) -> bool:
            return (self._depth > 0 and self._random.random() < 0.3) or should_move.fget(writer)

        for owner, name, wrapper in (
            (CursorWriter, "_write", writing),
            (CursorStorage, "_switch_ledger", switching),
            (cursor_storage, "append", appending),
            (cursor_storage, "put_certain", putting),
            (LedgerWriter, "should_move", property(moving)),
            (cursor, "RETRY_DELAY_MIN_S", WRITE_PAUSE_S),
        ):
            stack.enter_context(patch.object(owner, name, wrapper))

    def begin(self) -> None:
        self._depth += 1
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_on(), name="write cursors")

    def end(self) -> None:
        self._depth -= 1
        if not self._depth and self._writing is not None:
            self._writing.cancel()
            self._writing = None

    async def _write_on(self) -> None:
        while True:
            await asyncio.sleep(self._random.random() * WRITE_PAUSE_S)
            for writer, process in list(self._writers.items()):
                if not process.alive or writer.state in ENDED:
                    del self._writers[writer]
                elif not process.paused:
                    process.spawn(_write(writer), "write a cursor")


async def _write(writer: CursorWriter) -> None:
    if writer.state not in ENDED:
        writer.moved()
        with contextlib.suppress(MagnetarError):
            await writer.flush()
