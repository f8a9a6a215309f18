"""`LedgerRecovery` as a shadow of the explorer's first recoverer. See `shadow`."""

import asyncio
from typing import Any
from unittest.mock import patch

from magnetar.protocol.errors import RecoveryFailed
from magnetar.storage.ledger import recovery as ledger_recovery
from magnetar.storage.ledger.writer_state import WriterPhase

from .nodes import LEDGER, freeze_metadata, freeze_writer_state, thaw_metadata
from .recoverer import CLAIMING, CLOSING, DONE, FAILED, FENCING, IDLE, READING, WRITING
from .shadow import Reply, Shadow, settle
from .system import State, System


class RecovererShadow(Shadow):
    """The coroutine runs after each event, but not before failed bookies are to be replaced."""

    client = 1

    def __init__(self, system: System) -> None:
        super().__init__(system)
        records: Any = self.records
        bookies: Any = self.bookies
        self.recovery = ledger_recovery.LedgerRecovery(self.env, records, bookies, self.settings, LEDGER)
        self._write_back: Any = None

    async def hear(self, bookie: int, reply: Reply, after: State) -> None:
        self.bookies.tell(bookie, reply)
        core, _ = self.node(after)
        if not (core[0] == WRITING and core[4][0][0] == WriterPhase.NEEDS_CHANGE.value):
            await self._run()

    async def happen(self, event: str) -> None:
        if event == "reads the record":
            self.task = asyncio.create_task(self.recovery.run())
        elif event == "cas arrives":
            (proposal,) = self.records.waiting()
            self.records.arrive(proposal)
            self.records.answer(proposal)
        else:
            assert event == "replaces a bookie"
        await self._run()

    async def _run(self) -> None:
        make = ledger_recovery.WriteBack

        def keep(*arguments: Any, **options: Any) -> Any:
            self._write_back = make(*arguments, **options)
            return self._write_back

        with patch.object(ledger_recovery, "WriteBack", keep):
            await settle()

    def difference(self, state: State) -> str:
        core, infos = self.node(state)
        phase, kept = core[0], core[4]
        if phase == IDLE:
            return ""
        assert self.task is not None
        over = self.task.done()
        if over != (phase in (DONE, FAILED)):
            return f"is {'over' if over else 'not over'}, the node {phase}"
        if phase == DONE:
            result = self.task.result()
            return "" if result.closed and result.last_entry == kept else f"ended with {result}, the node with {kept}"
        if phase == FAILED:
            return "" if isinstance(self.task.exception(), RecoveryFailed) else f"ended with {self.task.exception()!r}"
        if phase in (FENCING, READING):
            return self.different_requests(state) or self.different_proposal(None)
        if phase == CLAIMING:
            base = thaw_metadata((core[2], tuple(info[0] for info in infos)))
            return self.different_proposal(freeze_metadata(base.in_recovery(), self.system.bookies))
        own = core[3], tuple(info[1] for info in infos)
        if phase == CLOSING:
            return self.different_proposal(own)
        mine = freeze_writer_state(self._write_back._state, self.system.bookies)
        if mine != (kept[0], tuple(info[2] for info in infos)):
            return f"writes back {mine}, the node {kept[0]} {infos}"
        metadata = freeze_metadata(self._write_back.metadata, self.system.bookies)
        if metadata != own:
            return f"writes back to {metadata}, the node to {own}"
        return self.different_requests(state)
