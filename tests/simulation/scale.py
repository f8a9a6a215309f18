"""The control plane with metadata only: `python tests/simulation/scale.py --brokers 100 --topics 1000000`.

It runs what decides, stores and tells who owns what, with members that only follow. For each event it prints metadata
transactions, records, messages, bytes and processor time. Nothing of it may grow with the number of topics, except
what says so. The second table is of bookies and ledgers (`simulation/scaling/ledgers.py`).

The last line compares the death of one broker with the target. The exit status is 1 when the target is missed.
"""

import argparse
import asyncio
import math
import resource
import sys
import time
from pathlib import Path
from typing import NamedTuple, Protocol

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from magnetar.actors.coordinator.membership import Membership, Session
from magnetar.actors.coordinator.placement import SlotPlacement
from magnetar.actors.members.coordinator_link import SlotView, ViewState
from magnetar.actors.slots.contents import SlotContents
from magnetar.protocol.names import ROLE_BROKER
from magnetar.protocol.slots import SLOTS_DEFAULT
from magnetar.runtime.environment import Environment
from magnetar.storage.metadata.cluster_identity import create_cluster
from magnetar.storage.metadata.epoch_guard import take_office
from magnetar.storage.metadata.slot_rows import SlotRows
from simulation.scaling import ledgers
from simulation.scaling.counting import CountingStore

PAGE = 5000
"""Topics of its slots that one answer brings a broker."""
BROKER_DIES = "one broker dies"
REASSIGNED_MAX_S = 5.0
"""Target: the coordinator's processor time until the partitions of a dead broker have other owners."""
MESSAGES_PER_MOVED_MAX = 10.0
"""Target: messages per moved partition, of which a topic without partitions is one."""


class Costs(Protocol):
    """What the verdict asks of an event."""

    messages: float
    claimed: float
    cpu_ms: float


class Follower:
    """A broker as far as slots concern it."""

    def __init__(self, broker: str, slots: int) -> None:
        self.broker = broker
        self.view = SlotView(slots)

    def take(self, number: int, packed: bytes) -> list[int]:
        """A push. Returns the slots that are this broker's since then."""
        changed = self.view.take_changes(number, SlotRows.unpack(packed, self.view.slots))
        return [slot for slot, one in changed.entries.items() if one.owner and one.owner.broker == self.broker]


class Scale:
    """A coordinator and its brokers. `messages` and `bytes` are what the coordinator sent and was sent."""

    def __init__(self, slots: int) -> None:
        self.env = Environment.real()
        self.store = CountingStore()
        self.contents = SlotContents(slots)
        self.membership = Membership(1e9, 1.0)
        self.membership.grace_left_s = 0.0
        self.followers: dict[str, Follower] = {}
        self.messages = 0
        self.bytes = 0
        self.claimed = 0
        self.member_cpu_s = 0.0
        self.events: dict[str, Event] = {}
        self.placement: SlotPlacement

    async def start(self) -> None:
        await create_cluster(self.store, "c", 0)
        office = await take_office(self.store)
        self.placement = SlotPlacement(
            self.env, office, self.membership, self.contents.slots, self._push, self.contents.is_empty
        )
        await self.placement.start()

    async def join(self, broker: str) -> None:
        self.membership.register(Session(ROLE_BROKER, broker, "1", "h", 1, {}, None))  # type: ignore[arg-type]
        follower = Follower(broker, self.contents.slots)
        rows = self.placement.table.rows().pack()
        self._sent(2, len(rows))
        follower.view.take_listing(self.placement.number, SlotRows.unpack(rows, self.contents.slots))
        self.followers[broker] = follower
        self.placement.broker_joined()
        await self.placement.settle()

    async def lose(self, broker: str) -> None:
        session = self.membership.find(ROLE_BROKER, broker)
        assert session is not None and self.membership.end(session)
        del self.followers[broker]
        self.placement.broker_lost(broker)
        await self.placement.settle()

    async def even_out(self) -> int:
        """Move slots that hold topics, a piece at a time; each source is asked to release its slots."""
        moved = 0
        while moves := self.placement.table.rebalance(sorted(self.followers), 64):
            owners = [self.placement.table.get(slot).owner for slot in moves]
            self.placement.hold(moves)
            self._sent(2 * len(dict.fromkeys(owners)), 20 * len(moves))
            self.placement.force(moves)
            self.placement.unhold(moves)
            await self.placement.settle()
            moved += len(moves)
        return moved

    def check(self) -> None:
        """Every member has the coordinator's table."""
        for follower in self.followers.values():
            assert follower.view.state is ViewState.COMPLETE
            for slot in range(self.contents.slots):
                assert follower.view.get(slot) == self.placement.table.get(slot)

    def _push(self, number: int, rows: SlotRows) -> None:
        packed = rows.pack()
        self._sent(len(self.followers), len(packed) * len(self.followers))
        started = time.process_time()
        gained = {broker: one.take(number, packed) for broker, one in self.followers.items()}
        self.member_cpu_s += time.process_time() - started
        for slots in gained.values():
            while slots:  # the broker asks what lies in its new slots, to load it
                members, done = self.contents.page(slots, PAGE)
                self._sent(2, 100 + 40 * len(members))
                self.claimed += len(members)
                slots = slots[done:]

    def _sent(self, messages: int, size: int) -> None:
        self.messages += messages
        self.bytes += size


class Event:
    """Prints what happened within the `with` block."""

    def __init__(self, scale: Scale, what: str) -> None:
        self._scale, self._what = scale, what
        scale.events[what] = self

    def _figures(self) -> list[float]:
        one = self._scale
        return [
            one.store.transactions,
            one.store.written,
            one.messages,
            one.bytes / 1e3,
            one.claimed,
            (time.process_time() - one.member_cpu_s) * 1e3,
        ]

    def __enter__(self) -> "Event":
        self._before = self._figures()
        return self

    def __exit__(self, *error: object) -> None:
        found = [now - before for now, before in zip(self._figures(), self._before, strict=True)]
        self.transactions, self.records, self.messages, self.kilobytes, self.claimed, self.cpu_ms = found
        per = f"{self.messages / self.claimed:8.3f}" if self.claimed else "       -"
        print(
            f"{self._what:42} {self.transactions:6.0f} {self.records:7.0f} {self.messages:8.0f} {per} "
            f"{self.kilobytes:9.0f} {self.claimed:8.0f} {self.cpu_ms:9.1f}",
            flush=True,
        )


async def measure(brokers: int, topics: int, partitions: int, slots: int) -> "dict[str, Event]":
    """Print what each event costs, and return it."""
    scale = Scale(slots)
    await scale.start()
    print(
        f"{brokers} brokers, {topics} topics of {partitions or 'no'} partitions, {slots} slots\n"
        f"{'event':42} {'trans.':>6} {'records':>7} {'messages':>8} {'per part.':>8} {'kB sent':>9} {'parts':>8} "
        f"{'CPU ms':>9}"
    )
    names = [f"broker-{number:03}" for number in range(brokers)]
    with Event(scale, "all brokers join an empty cluster"):
        for name in names:
            await scale.join(name)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with Event(scale, "all topics enter the index"):
        for number in range(topics):
            scale.contents.change(f"persistent://public/default/topic-{number:07}", None, partitions)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    print(f"  the index, names included: {grown / topics:.0f} bytes a topic")
    with Event(scale, BROKER_DIES):
        await scale.lose(names[brokers // 2])
    with Event(scale, "a broker joins, slots with topics wait"):
        await scale.join("broker-new")
    with Event(scale, "slots are evened out, 64 at a time"):
        await scale.even_out()
    with Event(scale, "ten brokers die at once"):
        for name in names[:10]:
            session = scale.membership.find(ROLE_BROKER, name)
            assert session is not None and scale.membership.end(session)
            del scale.followers[name]
            scale.placement.broker_lost(name)
        await scale.placement.settle()
    scale.check()
    await scale.placement.close()
    scale.env.close()
    return scale.events


class Verdict(NamedTuple):
    """How the death of one broker compares with the target."""

    met: bool
    text: str


def verdict(costs: Costs) -> Verdict:
    """Compare what the death of one broker cost with the target. A death that moves nothing shows nothing: missed."""
    seconds, moved = costs.cpu_ms / 1e3, round(costs.claimed)
    messages = costs.messages / moved if moved else math.inf
    met = seconds <= REASSIGNED_MAX_S and messages <= MESSAGES_PER_MOVED_MAX
    return Verdict(
        met,
        f"{'met' if met else 'MISSED'}: {BROKER_DIES}, {moved} partitions move: {seconds:.3f} s of coordinator time "
        f"(target: {REASSIGNED_MAX_S:g} s at most), {messages:.3f} messages per moved partition "
        f"(target: {MESSAGES_PER_MOVED_MAX:g} at most)",
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brokers", type=int, default=100)
    parser.add_argument("--bookies", type=int, default=100)
    parser.add_argument("--topics", type=int, default=1_000_000)
    parser.add_argument("--partitions", type=int, default=0)
    parser.add_argument("--slots", type=int, default=SLOTS_DEFAULT)
    asked = parser.parse_args()
    events = asyncio.run(measure(asked.brokers, asked.topics, asked.partitions, asked.slots))
    asyncio.run(ledgers.measure(asked.bookies, asked.topics))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"  memory of this process, records included: {peak / 2**20:.1f} GiB")
    found = verdict(events[BROKER_DIES])
    print(found.text)
    return 0 if found.met else 1


if __name__ == "__main__":
    sys.exit(main())
