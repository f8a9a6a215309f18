"""`LedgerWriter` as a shadow of the explorer's writer. See `shadow`."""

import asyncio
from typing import Any

from magnetar.protocol.errors import LedgerFenced, MagnetarError
from magnetar.storage.ledger.writer import LedgerWriter
from magnetar.storage.ledger.writer_state import WriterPhase
from magnetar.storage.metadata.ledger_records import LedgerRecord

from .nodes import first_record, freeze_writer_state
from .shadow import Proposal, Reply, Shadow, settle
from .system import State, System


class WriterShadow(Shadow):
    """The coroutines run when an ensemble change begins, at a close, and when the store answers; not in between."""

    client = 0

    def __init__(self, system: System) -> None:
        super().__init__(system)
        records: Any = self.records
        bookies: Any = self.bookies
        self.acknowledged = -1
        self._given_up: Proposal | None = None
        record = LedgerRecord(self.records.metadata, self.records.version)
        assert record.metadata == first_record()
        self.writer = LedgerWriter(self.env, records, bookies, self.settings, record)

    async def hear(self, bookie: int, reply: Reply, after: State) -> None:
        self.bookies.tell(bookie, reply)
        self.writer._confirm_acknowledged()  # as at the end of the loop's turn, which would also begin a change

    async def happen(self, event: str) -> None:
        waiting = self.records.waiting()
        if event == "add":
            self.writer.add(b"x", self._acknowledged)
        elif event == "begin change":
            await settle()
        elif event == "close":
            self._give_up(waiting)
            self.task = asyncio.create_task(self.writer.close())
            await settle()
        elif event == "cas arrives":
            self.records.arrive(waiting[0])
            if self.task is not None:
                self.records.answer(waiting[0])
                await settle()
        elif event == "cas answered":
            self.records.answer(waiting[0])
            await settle()
        elif event == "cas times out":
            self._give_up(waiting)
            self.records.time_out(waiting[0])
            await settle()
        else:
            assert event == "late cas arrives"
            assert self._given_up is not None
            self.records.arrive(self._given_up)
            assert self._given_up.landed

    def _give_up(self, waiting: list[Proposal]) -> None:
        for proposal in waiting:
            if not proposal.arrived and proposal.version == self.records.version:
                self._given_up = proposal

    def _acknowledged(self, position: tuple[int, int] | None, error: MagnetarError | None) -> None:
        if position is not None:
            assert position[1] == self.acknowledged + 1
            self.acknowledged = position[1]

    def difference(self, state: State) -> str:
        core, infos = self.node(state)
        machine = self.writer._state
        self.ahead = (core[0][0], machine.phase) == (WriterPhase.NEEDS_CHANGE.value, WriterPhase.CHANGING)
        if self.ahead:  # slots that failed during a change: the next one begins in the same breath
            return ""
        mine = freeze_writer_state(machine, self.system.bookies)
        if mine != (core[0], tuple(info[0] for info in infos)):
            return f"is {mine}, the node {core[0]} {infos}"
        if self.acknowledged != core[0][1]:
            return f"acknowledged {self.acknowledged}, the node {core[0][1]}"
        if machine.phase is not WriterPhase.ENDED:
            return self.different_requests(state) or self._different_change(core, infos)
        return self._different_end(state, core, infos)

    def _different_change(self, core: Any, infos: list[Any]) -> str:
        return self.different_proposal((core[5], tuple(info[3] for info in infos)) if core[4] else None)

    def _different_end(self, state: State, core: Any, infos: list[Any]) -> str:
        if self.task is None:
            return ""
        if core[4]:
            return self._different_change(core, infos)
        if not self.task.done():
            return "is still closing, the node not"
        error = self.task.exception()
        closed = self.records.metadata.closed and not isinstance(error, LedgerFenced)
        return "" if closed or isinstance(error, LedgerFenced) else f"ended with {error!r} at {self.stored(state)}"

    async def stop(self) -> None:
        await super().stop()
        await self.writer.abandon()
