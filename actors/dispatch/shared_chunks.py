"""Shared dispatch that keeps the chunks of a message together: they all go to one consumer (`chunk_owners`).

Entries that hold no chunk are dispatched as on any Shared subscription. Where chunks are among what was read, the
entries are given out one by one: a chunk to the owner of its message, everything else to the consumer whose turn it is.

States of an entry, besides those of `shared`: a *parked* one waits for its owner. It is in front of the read position,
pending at nobody, and neither in the replay set nor set aside.
"""

import sys
from collections.abc import Callable

from ...protocol.message_id import Position
from .chunk_owners import PARKED_MAX, ChunkOwners
from .consumer import AttachedConsumer, Delivered, Delivery
from .dispatcher import CursorView, Entry, Limits, ReadPlan
from .message_counts import MessageCounts
from .shared import SharedDispatcher


class ChunkedSharedDispatcher(SharedDispatcher):
    """See the module."""

    def __init__(
        self, cursor: CursorView, limits: Limits, count_of: Callable[[Position, bytes], int], counts: MessageCounts
    ) -> None:
        super().__init__(cursor, limits, count_of)
        self._counts = counts
        self._owners = ChunkOwners()

    def remove(self, consumer: AttachedConsumer) -> None:
        if consumer in self.consumers:
            self._replay.update(self._owners.leave(consumer))
            super().remove(consumer)
            if not self.consumers:
                self._owners.clear()

    def next_read(self, tail: Position) -> ReadPlan | None:
        if self._owners.parked:
            self._replay.update(self._owners.unpark())
        plan = super().next_read(tail)
        if plan is not None and not plan.positions and self._owners.parked >= PARKED_MAX:
            return None
        return plan

    def distribute(self, plan: ReadPlan, entries: list[Entry]) -> list[Delivery]:
        if plan.generation != self.generation:
            return []
        chunks = self._counts.chunks_among(entries)
        if not chunks:
            return super().distribute(plan, entries)
        hidden = self._hidden(plan, entries)
        out: dict[AttachedConsumer, list[Delivered]] = {}
        bound = self._limits.subscription_unacked_max
        room = bound - self._unacked_messages() if bound else sys.maxsize
        turn: AttachedConsumer | None = None
        left = taken = sent = 0
        for position, body in entries:
            if self._cursor.is_acknowledged(position) or (plan.positions and position not in self._replay):
                taken += 1
                continue
            if hidden and position in hidden:
                self._hold(position, hidden[position])
                taken += 1
                continue
            chunk = chunks.get(position)
            consumer = self._owners.owner_of(chunk) if chunk is not None else None
            if chunk is not None and consumer is not None and (not consumer.able or self._owners.waits_for(consumer)):
                self._owners.park(position, chunk, consumer)
                taken += 1
                continue
            if room <= 0:
                break
            if consumer is None:
                if turn is None or left <= 0 or not turn.able:
                    turn = self._take_turn()
                    left = self._limits.turn_messages_max
                if turn is None:
                    break
                consumer = turn
            if chunk is not None:
                self._owners.dispatched(position, chunk, consumer)
            count = self._count_of(position, body)
            delivered = (position, body, count, self._redeliveries.get(position, 0))
            consumer.charge([delivered], count, self._limits.unacked_messages_max)
            out.setdefault(consumer, []).append(delivered)
            left -= count
            room -= count
            taken += 1
            sent += count
        if plan.positions:
            self._replayed(entries[:taken])
        else:
            self._move_on(entries, taken)
            if taken and not out:
                self.read_position = self._cursor.next_unacknowledged(self.read_position)
        self._learn_size(sum(map(len, out.values())), sent)
        return [Delivery(consumer, given, sum([count for _, _, count, _ in given])) for consumer, given in out.items()]

    def acknowledged(self, consumer: AttachedConsumer, positions: list[Position]) -> bool:
        if self._owners.parked:
            self._owners.forget(positions)
        self._owners.released(positions)
        return super().acknowledged(consumer, positions)

    def _let_go_before(self, first: Position) -> bool:
        if self._owners.parked:
            self._owners.forget([position for position in self._owners.parked_positions() if position < first])
        return super()._let_go_before(first)

    def redeliver(self, consumer: AttachedConsumer, positions: list[Position] | None) -> None:
        wanted = consumer.pending if positions is None else positions
        self._owners.released([position for position in wanted if position in consumer.pending])
        super().redeliver(consumer, positions)

    def forget(self, positions: list[Position]) -> None:
        if self._owners.parked:
            self._owners.forget(positions)
        super().forget(positions)

    @property
    def replay_size(self) -> int:
        return super().replay_size + self._owners.parked

    def held(self) -> set[Position]:
        return super().held().union(self._owners.positions())
