"""Bugs of our own choosing in how topics are terminated."""

from contextlib import ExitStack
from dataclasses import replace as changed
from typing import Any

from magnetar.actors.topics.publishing import Publishing
from magnetar.actors.topics.topic import TopicState
from magnetar.protocol.message_id import Position
from magnetar.storage.managed.life import Termination
from magnetar.storage.managed.record import ManagedLedgerRecord

from .mutant import Mutant, replace


def _store_no_end(stack: ExitStack) -> None:
    """The topic ends where it is loaded. The next broker that loads it takes messages again."""

    async def terminating(self: Any) -> Position:
        self._writer.refuse_appends()
        await self._writer.recover_chain()
        end: Position = self._chain.last_confirmed
        return end

    replace(stack, Termination, "terminate", terminating)


def _end_before_what_is_under_way(stack: ExitStack) -> None:
    drained, terminate = Publishing.drained, Termination.terminate

    async def draining(self: Any) -> None:
        if self._host.state is not TopicState.TERMINATING:
            await drained(self)

    async def terminating(self: Any) -> Position:
        self.seen = self._chain.last_confirmed
        return await terminate(self)

    def ended(self: Any, record: ManagedLedgerRecord) -> ManagedLedgerRecord:
        return changed(record, ledgers=self._chain.as_known(record.ledgers), terminated=self.seen)

    replace(stack, Publishing, "drained", draining)
    replace(stack, Termination, "terminate", terminating)
    replace(stack, Termination, "_ended", ended)


TERMINATION = (
    Mutant("forgotten end", "the end of a terminated topic is not stored", "I13", _store_no_end, "terminating"),
    Mutant(
        "early end", "a topic ends in front of what is under way", "I13", _end_before_what_is_under_way, "terminating"
    ),
)
