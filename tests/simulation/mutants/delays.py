"""Bugs of our own choosing in delayed delivery."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from magnetar.actors.delays import buckets
from magnetar.actors.delays.bucket import Covered
from magnetar.actors.delays.buckets import Bucket
from magnetar.actors.delays.delay_gate import Delays
from magnetar.actors.dispatch.consumer import AttachedConsumer
from magnetar.actors.dispatch.dispatcher import Entry, ReadPlan
from magnetar.actors.dispatch.shared import SharedDispatcher
from magnetar.protocol.message_id import Position
from magnetar.storage.managed.acknowledged import EntryRanges
from magnetar.storage.managed.cursor import Cursor

from .mutant import Mutant, replace


def _never_be_strict(stack: ExitStack) -> None:
    due_upto_ms = Delays._due_upto_ms

    def due_upto(self: Any) -> int:
        early_ms = self._host.policies.delayed_delivery.tick_ms if self._host.settings.delayed_delivery_strict else 0
        return due_upto_ms(self) + early_ms

    replace(stack, Delays, "_due_upto_ms", due_upto)


def _forget_what_is_held(stack: ExitStack) -> None:
    """The next dispatcher reads on where the last one was, and not from the first entry that is not acknowledged."""
    initialize, remove = SharedDispatcher.__init__, SharedDispatcher.remove

    def initializing(self: Any, cursor: Any, *others: Any) -> None:
        initialize(self, cursor, *others)
        self.read_position = max(self.read_position, cursor.__dict__.pop("reads_on_at", self.read_position))

    def removing(self: Any, consumer: AttachedConsumer) -> None:
        reads_on_at = self.read_position if self.gate is not None and self.gate.holds else None
        remove(self, consumer)
        if reads_on_at is not None and not self.consumers:
            self._cursor.reads_on_at = reads_on_at

    replace(stack, SharedDispatcher, "__init__", initializing)
    replace(stack, SharedDispatcher, "remove", removing)


def _recall_past_the_gate(stack: ExitStack) -> None:
    """What is read again counts as one that has passed the gate, also when it could not be read the first time."""
    hidden = SharedDispatcher._hidden

    def hiding(self: Any, plan: ReadPlan, entries: list[Entry]) -> Mapping[Position, int] | None:
        return None if plan.positions else hidden(self, plan, entries)

    replace(stack, SharedDispatcher, "_hidden", hiding)


def _leave_a_segment_behind(stack: ExitStack) -> None:
    """A bucket counts as read back when its last segment is still to come."""
    replace(stack, Bucket, "empty", property(lambda self: self.next >= max(1, len(self.segments) - 1)))


def _cover_one_more(stack: ExitStack) -> None:
    """A bucket says that it covers the position behind each of its ranges, too."""
    bridged = buckets.bridged

    async def joined(cursor: Cursor, covered: Covered) -> Covered:
        wider: Covered = {}
        for ledger_id, ranges in (await bridged(cursor, covered)).items():
            wider[ledger_id] = EntryRanges()
            for first, last in ranges:
                wider[ledger_id].add(first, last + 1)
        return wider

    replace(stack, buckets, "bridged", joined)


def _let_due_ones_wait(stack: ExitStack) -> None:
    """An entry is due one tick before its timer fires, so dispatch is not told of it."""

    def held_upto(self: Any) -> int:
        upto_ms: int = self._due_upto_ms()
        return upto_ms

    replace(stack, Delays, "_held_upto_ms", held_upto)


DELAYS = (
    Mutant("too early", "strict delivery times are kept as loosely as others", "I12", _never_be_strict, "delaying"),
    Mutant(
        "forgotten delays",
        "what was held when the last consumer left is not read again",
        "I7",
        _forget_what_is_held,
        "delaying",
    ),
    Mutant(
        "early recall",
        "a delayed message that could not be read at first goes out when it is read again",
        "I12",
        _recall_past_the_gate,
        "delaying",
    ),
    Mutant(
        "segment left behind",
        "a bucket of delayed messages is removed before its last segment is read back",
        "I7",
        _leave_a_segment_behind,
        "delaying",
    ),
    Mutant(
        "wide cover",
        "a bucket of delayed messages covers a position behind its entries that is not acknowledged",
        "I7",
        _cover_one_more,
        "delaying",
    ),
    Mutant(
        "two times",
        "a delayed entry counts as due before the time for which its timer is set",
        "I8",
        _let_due_ones_wait,
        "delaying",
    ),
)
