"""Writing back what a recovery found: each entry, the same bytes, to an ack quorum, in order."""

import asyncio
from functools import partial

from ...protocol.bookie_wire import BookieStatus, LedgerEntry, encode_add, encode_entry_header
from ...protocol.errors import RecoveryFailed
from ...protocol.rpc_frames import STATUS_DISCONNECTED
from ...runtime.environment import Environment
from ...runtime.settings.declarations import Settings
from ..metadata.ledger_metadata import LedgerMetadata
from .bookie_client import LOOKS, OVERLOADED_RETRY_S, BookieClient
from .ensemble import replace_slots
from .writer_state import LedgerWriterState, PendingEntry, SlotState, WriterPhase

PATIENCE_MAX = 4
"""How many times the usual time-out bookies get at most, once they have been late again and again."""
LATE_ROUNDS_MAX = 6
"""So often in a row may the bookies be late before a recovery is given up."""


class WriteBack:
    """Writes recovered entries back with the recovery flag. `metadata` carries the ensemble changes, in memory only.

    It always ends: a bookie that refuses an entry gets no slot again. A bookie with a tombstone for the ledger says
    that it was deleted, which is final. A late bookie is suspect for a while. After each fruitless wait the next one is
    longer, and their number is limited. A wait counts looks (see `bookie_client.LOOKS`). Entries that are sent again to
    overloaded bookies add to their load.

    For a ledger in doubt, a bookie with a tombstone counts like one that refuses. `deleted` says that no others are
    left.
    """

    def __init__(
        self,
        env: Environment,
        client: BookieClient,
        settings: Settings,
        metadata: LedgerMetadata,
        first_entry: int,
        *,
        in_doubt: bool = False,
    ) -> None:
        self.metadata = metadata
        self.deleted = False
        self._in_doubt = in_doubt
        self._env = env
        self._client = client
        self._settings = settings
        self._state = LedgerWriterState(metadata, first_entry)
        self._refusing: dict[str, None] = {}
        self._tombstone_at = ""
        self._progress = asyncio.Event()

    @property
    def next_entry(self) -> int:
        """The first entry that was not written back."""
        return self._state.lac + 1

    def behind(self, entry_id: int) -> "WriteBack":
        """Goes on where this one is, but with a later entry."""
        self.stop()
        return WriteBack(self._env, self._client, self._settings, self.metadata, entry_id, in_doubt=self._in_doubt)

    async def write(self, entries: list[LedgerEntry]) -> None:
        """Write entries, in order, each to an ack quorum, or until `deleted`. Raises RecoveryFailed when too few
        bookies take them."""
        if self.deleted:
            return
        loop = asyncio.get_running_loop()
        state = self._state
        for entry in entries:
            pending = state.add(entry.body)
            header = encode_entry_header(
                entry.ledger_id, entry.nonce, entry.entry_id, entry.lac, entry.length, entry.body
            )
            pending.parts = encode_add(header, entry.body, recovery=True)
            for slot in state.targets(pending.entry_id):
                self._send(pending, slot)
        late = looks = 0
        look_s = self._settings.add_entry_timeout_s / LOOKS
        look_at = loop.time() + look_s
        while state.pending:
            if self._tombstone_at and not self._in_doubt:
                raise RecoveryFailed(
                    f"ledger {self.metadata.ledger_id} was deleted during its recovery: {self._tombstone_at} has a "
                    "tombstone for it"
                )
            self._change_ensemble()
            if state.end_error is not None and self._tombstone_at:
                self.deleted = True
                return
            if state.end_error is not None:
                raise RecoveryFailed(
                    f"the recovered entries of ledger {self.metadata.ledger_id} could not be written back: "
                    f"{state.end_error}"
                )
            if not state.pending:
                break
            self._progress.clear()
            lac = state.lac
            try:
                async with asyncio.timeout_at(look_at):
                    await self._progress.wait()
            except TimeoutError:
                looks += 1
                look_at = loop.time() + look_s
                if looks == LOOKS:
                    looks = 0
                    late += 1
                    if late == LATE_ROUNDS_MAX:
                        raise RecoveryFailed(
                            f"too few bookies stored the recovered entry {lac + 1} of ledger "
                            f"{self.metadata.ledger_id} in time"
                        ) from None
                    self._fail_late_slots()
            if state.lac != lac:
                late = 0
            if state.lac != lac or state.phase is WriterPhase.NEEDS_CHANGE:
                looks = 0
                look_s = self._settings.add_entry_timeout_s * min(2**late, PATIENCE_MAX) / LOOKS
                look_at = loop.time() + look_s

    def stop(self) -> None:
        """No answer counts from now on."""
        self._state.end()

    def _send(self, entry: PendingEntry, slot: int) -> None:
        self._client.add(
            self._state.ensemble[slot], entry.parts, partial(self._answered, entry, slot, self._state.tenures[slot])
        )

    def _answered(self, entry: PendingEntry, slot: int, tenure: int, status: int, payload: bytes) -> None:
        if status == BookieStatus.OK:
            self._state.added(entry.entry_id, slot, tenure)
        elif status == BookieStatus.OVERLOADED:
            asyncio.get_running_loop().call_later(OVERLOADED_RETRY_S, self._send_again, entry, slot, tenure)
            return
        else:
            bookie = self._state.ensemble[slot]
            if not self._state.slot_failed(slot, tenure):
                return
            if status == BookieStatus.NO_SUCH_LEDGER:
                self._tombstone_at = bookie
                self._refusing[bookie] = None
            elif status != STATUS_DISCONNECTED:
                self._refusing[bookie] = None
        self._progress.set()

    def _send_again(self, entry: PendingEntry, slot: int, tenure: int) -> None:
        state = self._state
        if state.tenures[slot] == tenure and state.phase is not WriterPhase.ENDED:
            self._send(entry, slot)

    def _fail_late_slots(self) -> None:
        """The first pending entry waits for too long: bookies that have not stored it are replaced."""
        state = self._state
        first = state.pending.get(state.lac + 1)
        if first is not None:
            for slot in state.targets(first.entry_id):
                if not first.acks >> slot & 1:
                    bookie, tenure = state.ensemble[slot], state.tenures[slot]
                    state.slot_failed(slot, tenure)
                    self._client.report_slow(bookie)

    def _change_ensemble(self) -> None:
        state = self._state
        if state.phase is not WriterPhase.NEEDS_CHANGE:
            return
        slots = state.begin_change()
        taken = [*self.metadata.last_fragment.bookies, *self._refusing]
        replaced = replace_slots(
            self._env.random,
            state.ensemble,
            slots,
            self._client.usable(),
            taken,
            self.metadata.write_quorum,
            self._client.directory.place_of,
        )
        if not replaced:
            state.abandon_change(slots)
            return
        ensemble = list(state.ensemble)
        for slot, bookie in replaced.items():
            ensemble[slot] = bookie
        self.metadata = self.metadata.with_ensemble(state.change_start, tuple(ensemble))
        unreplaced = [slot for slot in slots if state.slots[slot] is SlotState.FAILED and slot not in replaced]
        resend, _ = state.commit_change(self.metadata, replaced, unreplaced)
        for entry, slot in resend:
            self._send(entry, slot)
