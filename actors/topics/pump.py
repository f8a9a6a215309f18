"""The loop of one subscription that reads entries and hands them to its consumers.

At most one loop runs. `wake` starts it (new entries, permits, a writable socket, a redelivery, an unblocked consumer).
It reads and distributes until there is nothing to read or no consumer that may get entries, and ends. Nothing runs
while the subscription has no dispatcher. A read that fails is tried again with a back-off; on a Shared subscription the
loop goes on without an entry that cannot be read. Where a rate allows nothing at the moment, a timer starts it again
(`actors.rates`).

Left to others: what to read and who gets it (dispatcher), who is attached (subscription).
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, cast

from ...protocol.errors import EntryCorrupt, EntryUnknown, MagnetarError, NoSuchEntry
from ...protocol.message_id import Position
from ...runtime.backoff import Backoff
from ...runtime.gone import GONE
from ..dispatch.dispatcher import Dispatcher, Entry, Limits, ReadPlan
from ..dispatch.first_deliveries import FirstDeliveries
from ..dispatch.shared import SET_ASIDE_MAX
from ..rates.dispatch import DispatchLimit
from .batch_index_acks import BatchIndexAcks

if TYPE_CHECKING:
    from .persistent import PersistentTopic

logger = logging.getLogger(__name__)

ROUNDS_BEFORE_YIELD = 4
RUN_GAP_MAX = 8  # unwanted entries that one range read may include to reach the next wanted one
READ_RETRY_INITIAL_S = 0.05
READ_RETRY_MAXIMUM_S = 5.0
PASSED_OVER_MAX = 8  # unreadable entries in a row, after which a Shared subscription pauses as the others do
RECALL_INTERVAL_S = 5.0
RECALL_ENTRIES_MIN = 4  # entries set aside that are tried again at a time; twice as many each time all can be read
UNREADABLE = (EntryCorrupt, EntryUnknown, NoSuchEntry)


class Pump:
    """See the module. The subscription sets `dispatcher`, and `index_acks` if the broker has that switched on.
    It is made when all that earlier owners of the topic may have sent is confirmed (`dispatch.first_deliveries`).
    `describe(now_s)` says how the subscription stands, for the log. `pass_markers` gets entries that nobody may get."""

    def __init__(
        self,
        host: "PersistentTopic",
        name: str,
        describe: Callable[[float], object],
        pass_markers: Callable[[list[Position]], None],
    ) -> None:
        self.dispatcher: Dispatcher | None = None
        self.index_acks: BatchIndexAcks | None = None
        self.firsts = FirstDeliveries(host.ledger.chain.last_confirmed)
        """Which deliveries are the first ones."""
        self._host = host
        self._name = name
        self._describe = describe
        self._pass_markers = pass_markers
        self._running = False
        self._stopped = False
        self._retry: asyncio.TimerHandle | None = None
        self._recall: asyncio.TimerHandle | None = None
        self._rates: tuple[DispatchLimit, ...] = ()
        self._throttled = False
        """Whether `_retry` is there because a rate allows nothing at the moment."""
        self._passed_over = 0
        self._recall_entries = RECALL_ENTRIES_MIN
        self._backoff: Backoff | None = None
        """From a read that failed to the next one that did not."""
        self._loop = asyncio.get_running_loop()

    def wake(self) -> None:
        """Something changed that may allow dispatch. Cheap, and callable from anywhere."""
        if self._running or self.dispatcher is None or self._retry is not None:
            return
        plan = self.dispatcher.next_read(self._host.ledger.chain.last_confirmed)
        if plan is not None:
            self._running = True
            self._host.spawn(self._run(self.dispatcher, plan), "dispatch")

    async def _run(self, planner: Dispatcher, planned: ReadPlan | None) -> None:
        """`planned` is the first plan, which `planner` made. A plan may get older than that while it is read."""
        rounds = 0
        counts, sent = self._host.counts, self._host.common.traffic.sent
        try:
            while (dispatcher := self.dispatcher) is not None:
                plan = planned if dispatcher is planner else None
                planned = None
                if plan is None and (plan := dispatcher.next_read(self._host.ledger.chain.last_confirmed)) is None:
                    return
                rates, reading, bytes_max = self._rates, plan, self._host.dispatch_bytes_max
                if rates:
                    if (wait_s := max([one.wait_s() for one in rates])) > 0:
                        self._throttle(wait_s)
                        return
                    reading, bytes_max = self._allowed(dispatcher, plan)
                try:
                    entries = await self._read(reading, bytes_max)
                except UNREADABLE as error:
                    if dispatcher is self.dispatcher and not self._pass_over(dispatcher, plan, error):
                        raise
                    continue
                if dispatcher is not self.dispatcher:
                    continue
                self._passed_over = 0
                if not entries and not plan.positions and plan.generation == dispatcher.generation:
                    return  # nothing behind the read position after all; the next append wakes us
                if markers := counts.markers_among(entries):
                    self._pass_markers(markers)
                now_ms = self._host.env.clock.now_ms()
                deliveries = dispatcher.distribute(plan, entries)
                for one in rates:
                    one.sent(deliveries)
                ack_set_of = None if self.index_acks is None else self.index_acks.ack_set_of
                first_behind = self.firsts.move(deliveries)
                for delivery in deliveries:
                    out = delivery.consumer.out
                    bytes_before = out.bytes
                    delivery.consumer.deliver(delivery, now_ms, ack_set_of, first_behind)
                    sent.add(delivery.messages, out.bytes - bytes_before, len(delivery.entries))
                    if counts.has_chunks:
                        out.chunks.add(sum([counts.is_chunk(one[0]) for one in delivery.entries]), 0)
                self._backoff = None
                rounds += 1
                if rounds % ROUNDS_BEFORE_YIELD == 0:
                    await asyncio.sleep(0)  # other subscriptions and sockets want their turn
        except MagnetarError as error:
            self._retry_later(error)
        finally:
            self._running = False

    async def _read(self, plan: ReadPlan, bytes_max: int) -> list[Entry]:
        ledger = self._host.ledger
        if not plan.positions:
            dispatcher = self.dispatcher
            if dispatcher is not None and dispatcher.active is not None and dispatcher.active.read_compacted:
                return await self._host.compacted_log.read(dispatcher, plan, bytes_max)
            return await ledger.read(plan.start, plan.entries_max, bytes_max)
        read = ledger.read
        found: list[Entry] = []
        wanted = dict.fromkeys(plan.positions)
        gone: list[Position] = []
        for first, last in runs(plan.positions):
            try:
                entries = await read(first, last[1] - first[1] + 1, bytes_max, upto=last)
            except UNREADABLE:
                if not found:
                    raise
                break
            reached = entries[-1][0] if entries else last
            found += [entry for entry in entries if entry[0] in wanted]
            read_now = {position for position, _ in entries}
            gone += [position for position in wanted if first <= position <= reached and position not in read_now]
            bytes_max -= sum(len(body) for _, body in entries)
            if bytes_max <= 0 or reached < last:
                break  # a read may give less than it was asked for, and what follows must not overtake the rest
        if gone and self.dispatcher is not None:
            self.dispatcher.forget(gone)  # trimmed meanwhile
        return found

    def use_limits(self, limits: Limits) -> None:
        """These hold from now on."""
        if self.dispatcher is not None:
            self.dispatcher.use_limits(limits)
            self.wake()

    def use_rates(self, rates: tuple[DispatchLimit, ...]) -> None:
        """Dispatch stays within these from now on."""
        self._rates = rates
        if self._throttled and self._retry is not None:
            self._retry.cancel()
            self._retry_now()

    def _allowed(self, dispatcher: Dispatcher, plan: ReadPlan) -> tuple[ReadPlan, int]:
        """What of a plan may be read now, and how many bytes, as far as can be told before it is read."""
        allowances = [one.allowance() for one in self._rates]
        entries_max = dispatcher.entries_for(min([messages for messages, _ in allowances]))
        bytes_max = int(max(min(self._host.dispatch_bytes_max, *[size for _, size in allowances]), 1))
        plan = plan._replace(entries_max=min(plan.entries_max, entries_max), positions=plan.positions[:entries_max])
        return plan, bytes_max

    def _throttle(self, delay_s: float) -> None:
        if not self._stopped:
            self._throttled = True
            self._retry = self._loop.call_later(delay_s, self._retry_now)

    def _pass_over(self, dispatcher: Dispatcher, plan: ReadPlan, error: MagnetarError) -> bool:
        """The first entry of a plan cannot be read. A Shared subscription goes on with the others, and tries it again
        from time to time. Returns whether it does: not when many in a row cannot be read, for then it is not the
        entries' fault."""
        if self._passed_over >= PASSED_OVER_MAX:
            return False
        if plan.positions:
            position = plan.positions[0]
        else:
            position = self._host.ledger.next_position((plan.start[0], plan.start[1] - 1))
        if position > self._host.ledger.chain.last_confirmed or not dispatcher.set_aside(plan, position):
            return False
        self._passed_over += 1
        self._recall_entries = RECALL_ENTRIES_MIN
        logger.warning("subscription %s skips entry %s, which cannot be read: %s", self._name, position, error)
        if self._recall is None and dispatcher.set_aside_size:
            self._recall = self._loop.call_later(RECALL_INTERVAL_S, self._recall_some)
        return True

    def _recall_some(self) -> None:
        """Have some of what was set aside read again.

        After an outage of the bookies much is aside that can be read again. So the number grows until a read fails.
        """
        self._recall = None
        if self.dispatcher is not None:
            count = self._recall_entries
            self._recall_entries = min(2 * count, SET_ASIDE_MAX)
            if self.dispatcher.recall(count):
                self._recall = self._loop.call_later(RECALL_INTERVAL_S, self._recall_some)
            self.wake()

    def _retry_later(self, error: MagnetarError) -> None:
        if self._backoff is None:
            self._backoff = Backoff(self._host.env.random, READ_RETRY_INITIAL_S, READ_RETRY_MAXIMUM_S)
        delay_s = self._backoff.next_delay_s()
        if not self._stopped:
            logger.warning("subscription %s could not read; the next try is in %.2f s: %s", self._name, delay_s, error)
            self._retry = self._loop.call_later(delay_s, self._retry_now)

    def _retry_now(self) -> None:
        self._retry = None
        self._throttled = False
        self._passed_over = 0
        self.wake()

    def check(self) -> None:
        """Look for dispatch that could go on but does not: that is a defect. Say so, and set it going.

        A second look comes behind what the loop has already in hand, for the news of an append may be on its way. An
        entry that is confirmed between the two has its news behind the second one, so the first one counts as well.
        """
        if self._could_go_on():
            self._loop.call_soon(self._check_again)

    def _could_go_on(self) -> bool:
        if self.dispatcher is None or self._running or self._retry is not None or self._stopped:
            return False
        if self.dispatcher.gate is not None and self.dispatcher.gate.wakes_now:
            return False
        return self.dispatcher.next_read(self._host.ledger.chain.last_confirmed) is not None

    def _check_again(self) -> None:
        if self._could_go_on():
            logger.error(
                "the dispatch of subscription %s had stalled and was started again: %s",
                self._name,
                self._describe(self._loop.time()),
            )
            self.wake()

    def stop(self) -> None:
        """End: nothing is tried again."""
        self._stopped = True
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._recall is not None:
            self._recall.cancel()
            self._recall = None

    def let_go(self) -> None:
        """The topic is closed."""
        self._host = cast("PersistentTopic", GONE)
        self._describe = self._pass_markers = GONE


def runs(positions: Iterable[Position]) -> list[tuple[Position, Position]]:
    """Ascending positions as ranges within one ledger, (first, last) inclusive; small gaps are bridged."""
    ranges: list[tuple[Position, Position]] = []
    for position in positions:
        if ranges:
            first, last = ranges[-1]
            if position[0] == last[0] and position[1] - last[1] <= RUN_GAP_MAX:
                ranges[-1] = (first, position)
                continue
        ranges.append((position, position))
    return ranges
