"""I16: moves are in order. Stands beside the coordinators, where they store that a slot or a topic has another owner.

An owner with a session has released what it gives away: it has no grant for a topic in the slot when the coordinator
decides, and none when that is stored. It may still have one if the coordinator asked it to release the slot or topic,
and the request failed: an owner that does not answer holds nothing up.

A slot in which nothing lies needs no release. A topic that is created there while it moves may be granted to either.

A broker that has said that it released a slot or topic takes no grant from before that, however late one arrives. The
coordinator may have another owner by then, of which the broker has not heard.

A broker that hears late of a release keeps what it was granted since. Nobody waits for that release any longer.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any
from unittest.mock import patch

from magnetar.actors.broker.ownership import Ownership
from magnetar.actors.broker.service import BrokerService
from magnetar.actors.coordinator.placement import SlotPlacement
from magnetar.actors.members.peer_calls import MemberCalls
from magnetar.actors.topics.loaded_topics import Topics
from magnetar.actors.topics.owned_topic import OwnedTopic
from magnetar.protocol.slots import TopicGrant
from magnetar.protocol.topics import TopicName
from magnetar.storage.metadata.slot_rows import SlotEntry, SlotOwner

from ..world.loop import PROCESS
from .history import History
from .store_watch import is_dead, who

FindBroker = Callable[[SlotOwner], BrokerService | None]
Refused = tuple[object, int | str, int]
"""The process of a coordinator, a slot or topic, and the epoch of its owner, which did not answer."""
NUMBER: ContextVar[int | None] = ContextVar("number", default=None)
"""Of the release that a broker carries out."""


class ReleaseWatch:
    """See the module. `find` returns the service of a broker's incarnation, if it runs."""

    def __init__(self, history: History, find: FindBroker) -> None:
        self._history = history
        self._find = find
        self._refused: dict[Refused, None] = {}
        self._placements: dict[object, SlotPlacement] = {}
        self._released: dict[tuple[Ownership, int | str], int] = {}
        """By broker, and slot or topic: the number of the last release that it has answered."""

    def install(self, stack: ExitStack) -> None:
        """Watch until the stack is left."""
        start, write, call = SlotPlacement.start, SlotPlacement._write, MemberCalls._call
        release, revoke, take = Ownership.release, Topics.revoke, Ownership._take

        async def starting(placement: SlotPlacement) -> None:
            self._placements[PROCESS.get()] = placement
            await start(placement)

        async def writing(
            placement: SlotPlacement,
            targets: Mapping[int, str],
            topics: Mapping[str, str | None],
            brokers: Mapping[str, str],
        ) -> None:
            judged, epoch = self.to_judge(placement, targets, topics), placement.epoch
            self.judge(judged, "decides", epoch)
            await write(placement, targets, topics, brokers)
            self.judge(judged, "stores", epoch)

        async def calling(calls: MemberCalls[Any], node_id: str, method: str, /, **arguments: Any) -> object:
            try:
                return await call(calls, node_id, method, **arguments)
            except BaseException:
                if method == "release":
                    self.was_refused((*arguments["slots"], *arguments["topics"]))
                raise

        async def releasing(ownership: Ownership, *, number: int, slots: list[int], topics: list[str]) -> None:
            NUMBER.set(number)  # in this call's own task
            await release(ownership, number=number, slots=slots, topics=topics)
            self.has_released(ownership, number, (*slots, *topics))

        def revoking(topics: Topics, full_name: str) -> None:
            self.judge_release(topics.table.find(full_name), NUMBER.get())
            revoke(topics, full_name)

        def taking(ownership: Ownership, grant: TopicGrant, *, load: bool) -> bool:
            owns = take(ownership, grant, load=load)
            self.judge_grant(ownership, grant)
            return owns

        stack.enter_context(patch.object(SlotPlacement, "start", starting))
        stack.enter_context(patch.object(SlotPlacement, "_write", writing))
        stack.enter_context(patch.object(MemberCalls, "_call", calling))
        stack.enter_context(patch.object(Ownership, "release", releasing))
        stack.enter_context(patch.object(Topics, "revoke", revoking))
        stack.enter_context(patch.object(Ownership, "_take", taking))

    def was_refused(self, what: Iterable[int | str]) -> None:
        """The owner of these slots and topics did not say that it released them."""
        process = PROCESS.get()
        placement = self._placements.get(process)
        for one in what if placement is not None else ():
            entry = placement.table.get(one) if isinstance(one, int) else placement.table.entry_of(TopicName.parse(one))
            self._refused[process, one, entry.epoch] = None

    def to_judge(
        self, placement: SlotPlacement, targets: Mapping[int, str], topics: Mapping[str, str | None]
    ) -> list[tuple[int | str, SlotEntry]]:
        """What has to be released by its owner before it moves: slots with topics, and topics."""
        table = placement.table
        moving: dict[int | str, SlotEntry] = {slot: table.get(slot) for slot in targets if not placement.is_empty(slot)}
        moving |= table.exceptions_in(targets)
        moving |= {topic: table.entry_of(TopicName.parse(topic)) for topic, one in topics.items() if one is not None}
        process = PROCESS.get()
        orphaned = [slot for slot in targets if not placement.is_settled(table.get(slot))]
        excused = table.exceptions_in(orphaned)  # they end with the owner of their slot
        return [
            (what, entry)
            for what, entry in moving.items()
            if placement.is_settled(entry) and what not in excused and (process, what, entry.epoch) not in self._refused
        ]

    def judge(self, moving: Iterable[tuple[int | str, SlotEntry]], does: str, epoch: int) -> None:
        """A coordinator with this epoch decides, or has stored, that these have other owners.

        One that was superseded while it stood still may decide: its write is refused. A release that it had asked for
        ends with it.
        """
        for what, entry in moving if not is_dead() else ():
            assert entry.owner is not None
            self._history.counts["moves judged"] += does == "stores"
            service = self._find(entry.owner)
            if service is None or (does == "decides" and service.ownership.coordinator_epoch > epoch):
                continue
            table = service.topics.table
            held = table.of_slot(what) if isinstance(what, int) else [table.find(what)]
            kept = [str(one) for one in held if one and one.grant and one.grant.home_epoch == entry.epoch]
            if kept:
                self._history.violated(
                    f"I16: {who()} {does} that {what} leaves {entry.owner.broker}, which has not released {kept[:3]}"
                )

    def has_released(self, ownership: Ownership, number: int, what: Iterable[int | str]) -> None:
        """A broker has said that it released these slots and topics."""
        for one in what:
            self._released[ownership, one] = max(number, self._released.get((ownership, one), 0))

    def judge_release(self, topic: OwnedTopic | None, number: int | None) -> None:
        """A broker gives a topic up, because of the release with this number (None: for another reason)."""
        grant = topic.grant if topic is not None and not is_dead() else None
        if grant is not None and number is not None and grant.number > number:
            self._history.violated(f"I16: {who()} gives {topic} up, which was granted behind that release")

    def judge_grant(self, ownership: Ownership, grant: TopicGrant) -> None:
        """A broker was given a grant, and has taken it or not."""
        topic = ownership.topics.table.find(grant.topic)
        if topic is None or topic.grant is not grant:
            return
        releases = [self._released.get((ownership, one), 0) for one in (topic.slot, grant.topic)]
        self._history.counts["grants judged"] += any(releases)
        if grant.number < max(releases):
            self._history.violated(f"I16: {who()} takes a grant for {grant.topic} from before it released that")
