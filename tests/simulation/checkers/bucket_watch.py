"""What is in the buckets of delayed messages: a broker knows only their tables, until it reads them back.

`install` notes the entries of each ledger that a cursor names. `left_in` says which of them a bucket still has.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from magnetar.actors.delays.bucket import decode_segment
from magnetar.actors.delays.buckets import BucketsState, DelayBuckets
from magnetar.protocol.message_id import Position
from magnetar.storage.managed import cursor_storage

from .history import History

_bodies: dict[int, Sequence[bytes]] = {}
"""By ledger. Ids are unique within a run, and each run begins with none."""


def install(stack: ExitStack, history: History) -> None:
    """Watch until the stack is left."""
    add_all, add = cursor_storage.add_all, DelayBuckets._add
    _bodies.clear()

    async def adding(writer: Any, bodies: Sequence[bytes], *others: Any) -> None:
        _bodies[writer.ledger_id] = bodies
        await add_all(writer, bodies, *others)

    def counting(self: DelayBuckets, bucket: Any) -> None:
        again = self.state is BucketsState.LOADING
        history.counts["buckets of delayed messages " + ("loaded" if again else "stored")] += 1
        add(self, bucket)

    stack.enter_context(patch.object(cursor_storage, "add_all", adding))
    stack.enter_context(patch.object(DelayBuckets, "_add", counting))


def left_in(buckets: DelayBuckets) -> list[Position]:
    """The entries that buckets have and memory has not."""
    found: list[Position] = []
    for bucket in buckets._buckets.values():
        skip = bucket.skip
        for number in range(bucket.next, len(bucket.segments)):
            run = decode_segment(_bodies[bucket.ledger_id][number], bucket.segments[number])
            found += list(zip(run.ledgers, run.entries, strict=True))[skip:]
            skip = 0
    return found
