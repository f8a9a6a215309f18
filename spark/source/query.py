"""What a streaming query asks of the cluster, from the process on the driver that plans its micro-batches.

**Nothing is trimmed under a query.** A plan begins with the entry that was read last. So its pin holds the ledger of
that entry, and brokers trim a topic from its beginning only. The pin stays until the next plan of the same partition.

**What is gone is noticed.** When the ledger of the last entry that was read is gone, ledgers behind it may be gone,
too. Then the plan fails, or with `failOnDataLoss=false` goes on with what is there. This can only happen while no query
runs: longer than a pin lasts, without a subscription and without a retention.

**A message in chunks may cross the border of micro-batches.** It belongs to the one that has its last chunk. So each
plan also names and pins the ledgers of `LOOK_BACK_MAX_BYTES` before its start, down to where the query began, which
offsets say. When these are gone, such a message ends the query, or is left out with `failOnDataLoss=false`.

`predefinedSubscription` names a subscription. The query moves its cursor with each commit. So nothing is trimmed
between two runs, and the backlog shows how far the query is.
"""

# pyarrow brings no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from urllib.parse import quote

from ...bulk.access import ClusterAccess, access_over_http, ask_admin, locate_over_http, topic_path
from ...bulk.arrow_decoding import TimeWindow
from ...bulk.cluster_link import ClusterLink, Pin
from ...bulk.message_table import MESSAGE_ID
from ...bulk.planner import PLAN_TIMEOUT_S, Planner
from ...bulk.range_reader import RangeReader
from ...bulk.read_plan import (
    LOOK_BACK_MAX_BYTES,
    PartitionPlan,
    ReadSplit,
    ledger_ranges,
    mean_entry_bytes,
    split_by_entries,
    split_by_size,
    start_id,
)
from ...bulk.task_reading import TaskRead
from ...bulk.typed.choice import RowShape
from ...protocol.errors import MagnetarError, NoSuchEntry, TopicNotFound
from ...protocol.message_id import EARLIEST_POSITION, WireMessageId
from ...protocol.topics import TopicName
from ...runtime.environment import Environment
from ...runtime.tasks import Tasks, together
from .columns import ReadColumns, versions_of
from .offsets import EARLIEST, Offset, Reached, place_in
from .options import ReadOptions
from .task_options import tasks_of
from .topics import topics_of
from .trigger_limits import place_of_message, place_within, shares

logger = logging.getLogger(__name__)

RENEWALS_PER_TTL = 3
HTTP_TIMEOUT_S = 30.0
IDS = RowShape((MESSAGE_ID,))
ENDS_AT_ONCE = 16
"""How many topics are asked at once where they end."""


class Query:
    """Use on one loop; `open` first, and `close` at the end."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._env = Environment.real(threads_max=1)
        self._locate = locate_over_http(options.admin_url)
        self._pins: dict[str, Pin] = {}
        """The pin of the latest plan of each partition."""
        self._planned: dict[str, tuple[Reached, Reached, PartitionPlan]] = {}
        """The latest plan of each partition, with the places between which it lies."""
        self._committed: dict[str, str] = {}
        """Where the cursors of the subscription are."""
        self._tasks = Tasks()
        start = options.starting
        self._window = TimeWindow(start_ms=start) if isinstance(start, int) else TimeWindow()

    async def open(self) -> None:
        """Find the cluster. Raises what `access_over_http` raises."""
        self.access: ClusterAccess = await access_over_http(self._options.admin_url)
        self._link = ClusterLink(self._env, self.access, self._locate)
        self._reader = RangeReader(self._env, self.access)
        self._tasks.spawn(self._prolong(), "prolong-pins")

    async def close(self) -> None:
        """Let go of what is pinned, and end the connections."""
        await self._tasks.close()
        await self._link.unpin(list(self._pins.values()))
        await self._link.close()
        await self._reader.close()
        self._env.close()

    async def _prolong(self) -> None:
        while True:
            await asyncio.sleep(self._options.pin_ttl_s / RENEWALS_PER_TTL)
            await self._link.prolong(list(self._pins.values()), self._options.pin_ttl_s)

    @property
    def pins(self) -> tuple[Pin, ...]:
        """What the tasks of the planned micro-batch have to prolong."""
        return tuple(self._pins.values())

    # -- offsets -------------------------------------------------------------------------------------------------

    async def first(self) -> dict[str, str]:
        """Where the query begins, as its options say. Makes the subscription that it moves."""
        given, ends = self._options.starting, await self.ends()
        found: dict[str, str] = {}
        for topic, end in ends.items():
            start = given
            if isinstance(given, Mapping):
                start = given.get(topic, given.get(TopicName.parse(topic).without_partition().full, "earliest"))
            if start == "latest":
                place = end
            elif isinstance(start, bytes):
                place = Reached.before(start_id(start))
            else:  # a time is found by the window of each plan
                place = EARLIEST
            since = place
            if place == EARLIEST:
                since = await self._link.patiently(
                    partial(self._before_all, topic), PLAN_TIMEOUT_S, f"the look for the beginning of {topic}"
                )
            place = place._replace(since=(since.ledger, since.entry))
            found[topic] = str(place)
            await self._subscribe(topic, place)
        return found

    async def first_or_cursor(self) -> dict[str, str]:
        """Behind the cursor of the subscription; where it has none, as `first`."""
        found = await self.first()
        for topic in found:
            mark = await self._mark(topic)
            if mark is not None:
                found[topic] = mark
        return found

    async def following(self, start: Offset, ends: dict[str, Reached]) -> dict[str, str]:
        """Where the next micro-batch ends, within the limits of the options. Raises what `plan` raises."""
        # A partition that is behind its offset, as one that was deleted, keeps the offset.
        ahead = {topic: end for topic, end in ends.items() if end.order > place_in(start, topic).order}
        limited = await self._limited(start, ahead)
        return {**start, **self.as_offset(self._with_splits(limited, await self.plan(start, limited)), start)}

    def as_offset(self, ends: Mapping[str, Reached], start: Offset) -> dict[str, str]:
        """Places as an offset behind another one."""
        return {topic: str(end._replace(since=place_in(start, topic).since)) for topic, end in ends.items()}

    async def ends(self) -> dict[str, Reached]:
        """The last message of each partition that there is now."""
        asking = asyncio.Semaphore(ENDS_AT_ONCE)

        async def ends_of(topic: str) -> dict[str, Reached]:
            try:
                async with asking:
                    return await self._link.patiently(
                        partial(self._ends_of, topic), PLAN_TIMEOUT_S, f"the look for the end of {topic}"
                    )
            except TopicNotFound:
                if self._options.pattern is None:
                    raise
                return {}  # it was deleted since the topics were listed

        found = await together([ends_of(topic) for topic in await topics_of(self._options)])
        return {topic: end for ends in found for topic, end in ends.items()}

    async def _ends_of(self, topic: str) -> dict[str, Reached]:
        partitions = await (await self._link.coordinator()).partitions(topic=topic, create=False)
        name, found = TopicName.parse(topic), dict[str, Reached]()
        for full in [name.partition_name(index) for index in range(partitions)] or [topic]:
            last = await (await self._link.owner(full)).last_message_id(topic=full)
            found[full] = Reached(last.ledger, last.entry)
        return found

    async def _before_all(self, topic: str) -> Reached:
        """The place before the first entry that a partition has now."""
        owner, begin = await self._link.owner(topic), [*EARLIEST_POSITION]
        plan = await owner.plan_read(topic=topic, start="earliest", end=begin, ttl_s=self._options.pin_ttl_s)
        return Reached(plan.first.ledger, plan.first.entry - 1)

    # -- plans ---------------------------------------------------------------------------------------------------

    async def plan(self, start: Offset, end: Mapping[str, Reached]) -> list[PartitionPlan]:
        """Plan and pin what lies between two offsets. Raises NoSuchEntry when something of it may be gone."""
        return [
            await self._plan(topic, begin, last)
            for topic, last in end.items()
            if last.order > (begin := place_in(start, topic)).order
        ]

    async def _limited(self, start: Offset, ends: dict[str, Reached]) -> dict[str, Reached]:
        plans = await self.plan(start, ends)
        size_bytes, messages = self._options.trigger_bytes, self._options.trigger_messages
        found = dict(ends)
        if size_bytes is not None:
            for plan, share in zip(plans, shares(plans, size_bytes), strict=True):
                found[plan.topic] = _nearer(found[plan.topic], place_within(plan, share))
        if messages is not None:
            for plan, share in zip(plans, shares(plans, messages), strict=True):
                found[plan.topic] = _nearer(found[plan.topic], await place_of_message(plan, share, self._read_ids))
        return found

    def _with_splits(self, ends: Mapping[str, Reached], plans: Sequence[PartitionPlan]) -> dict[str, Reached]:
        """The ends of planned partitions, with how many entries a task reads up to them."""
        entries = sum(part.entries for plan in plans for part in ledger_ranges(plan))
        most = max(entries // self._options.partitions_min, 1)
        return {
            plan.topic: ends[plan.topic]._replace(
                split_entries=max(min(self._options.split_bytes // mean_entry_bytes(plan), most), 1)
            )
            for plan in plans
        }

    async def tasks(self, start: Offset, end: Offset, columns: ReadColumns) -> list[TaskRead]:
        """Spark's tasks of a micro-batch. Raises what `plan` and asking for schemas raise."""
        ends = {topic: Reached.parse(text) for topic, text in end.items()}
        plans = await self.plan(start, ends)
        if all(ends[plan.topic].split_entries for plan in plans):
            splits = [part for plan in plans for part in split_by_entries(plan, ends[plan.topic].split_entries)]
        else:  # of a checkpoint from before offsets said it
            splits = split_by_size(plans, self._options.split_bytes, self._options.partitions_min)
        return tasks_of(self._options, self.access, splits, self.pins, await self._shapes(columns, plans))

    async def entries_left(self, end: Offset, ends: Mapping[str, Reached]) -> int:
        """How many entries lie behind an offset, up to these places. Raises what `plan` raises."""
        entries = 0
        for topic, last in ends.items():
            place = place_in(end, topic)
            if last.order <= place.order:
                continue
            planned = self._planned.get(topic)
            if planned is not None and planned[0].order <= place.order and last.order <= planned[1].order:
                plan = planned[2]
            else:  # a micro-batch that is run again is planned up to its end only
                plan = await self._plan(topic, place, last)
            bounds = plan.bounds._replace(first=place.following, last=last.message_id)
            entries += sum(part.entries for part in ledger_ranges(replace(plan, bounds=bounds)))
        return entries

    async def _plan(self, topic: str, begin: Reached, last: Reached) -> PartitionPlan:
        planned = self._planned.get(topic)
        # A limited micro-batch is planned up to the end of the topic first, and then up to its limit.
        if planned is None or planned[0] != begin or planned[1].order < last.order:
            self._planned[topic] = planned = begin, last, await self._plan_anew(topic, begin, last)
        plan = planned[2]
        return replace(
            plan,
            bounds=plan.bounds._replace(first=begin.following, last=last.message_id),
            chunks_from=begin.first_wanted,
            loss_is_ignored=not self._options.fail_on_data_loss,
        )

    async def _plan_anew(self, topic: str, begin: Reached, last: Reached) -> PartitionPlan:
        known = WireMessageId(begin.ledger, max(begin.entry, 0)) if begin.ledger >= 0 else "earliest"
        ttl_s = self._options.pin_ttl_s
        async with Planner(
            self._env, self.access, topic, timeout_s=PLAN_TIMEOUT_S, pin_ttl_s=ttl_s, locate=self._locate
        ) as planner:
            end_id = WireMessageId(last.ledger, last.entry)
            (plan,) = await planner.plan(known, end_id, window=self._window, before_bytes=LOOK_BACK_MAX_BYTES)
            pins = planner.detach()
        await self._repin(topic, pins)
        if begin.entry >= 0 and plan.first[0] > begin.ledger:  # of an empty ledger nothing was read, as of none
            self._report_loss(topic, begin, plan)
        return plan

    async def _read_ids(self, part: ReadSplit) -> list[bytes]:
        reading = self._reader.read_patiently(part, self._link.bookies, IDS, PLAN_TIMEOUT_S)
        return [found async for batch in reading for found in batch.column(MESSAGE_ID).to_pylist()]

    async def _shapes(self, columns: ReadColumns, plans: Sequence[PartitionPlan]) -> dict[str, RowShape]:
        """The rows of planned partitions, by their names. The plan was first, so no version of its messages lacks."""
        found: dict[str, RowShape] = {}
        for plan in plans:
            base = TopicName.parse(plan.topic).without_partition().full
            if base not in found:
                found[base] = columns.shape([] if columns.reader is None else await versions_of(self._link, base))
            found[plan.topic] = found[base]
        return found

    def _report_loss(self, topic: str, begin: Reached, plan: PartitionPlan) -> None:
        first = f"{plan.first[0]}:{plan.first[1]}"
        text = f"{topic} was read up to {begin}, and begins at {first} now: messages between them may be gone"
        if self._options.fail_on_data_loss:
            raise NoSuchEntry(
                f"{text}. Keep what a query has not read, with predefinedSubscription or a retention; "
                "failOnDataLoss=false goes on with what is there"
            )
        logger.warning("%s", text)

    async def _repin(self, topic: str, pins: list[Pin]) -> None:
        if pins:
            before, self._pins[topic] = self._pins.get(topic), pins[0]
            if before is not None:
                await self._link.unpin([before])

    # -- the subscription ----------------------------------------------------------------------------------------

    async def _subscribe(self, topic: str, place: Reached) -> None:
        """Make the subscription, unless it is there."""
        if self._options.subscription is not None:
            await self._send("PUT", topic, "", place, accepted=(409,))

    async def commit(self, end: Offset) -> None:
        """Move the cursor of the subscription behind what is read. A failure is logged: the next commit moves it on."""
        if self._options.subscription is None:
            return
        for topic, text in end.items():
            place = Reached.parse(text)
            if place.ledger < 0 or self._committed.get(topic) == text:
                continue
            try:
                await self._send("POST", topic, "/resetcursor", place)
            except MagnetarError as error:
                logger.warning("the subscription of the query was not moved: %s", error)
            else:
                self._committed[topic] = text

    async def _mark(self, topic: str) -> str | None:
        """How far the subscription has acknowledged a partition; None if it has no such cursor."""
        path = topic_path(topic, "/internalStats")
        answer = json.loads(await ask_admin(self._options.admin_url, path, timeout_s=HTTP_TIMEOUT_S))
        try:
            mark = answer["cursors"][self._options.subscription]["markDeletePosition"]
        except (KeyError, TypeError):
            return None
        return str(Reached.parse(str(mark)))

    async def _send(self, method: str, topic: str, action: str, place: Reached, accepted: tuple[int, ...] = ()) -> None:
        assert self._options.subscription is not None
        body = {"ledgerId": place.ledger, "entryId": place.entry, "partitionIndex": TopicName.parse(topic).partition}
        if action:  # an entry of which a part is left stays in the backlog
            body["isExcluded"] = place.batch_index < 0
        what = f"/subscription/{quote(self._options.subscription, safe='')}{action}"
        path = topic_path(topic, what)
        url = self._options.admin_url
        await ask_admin(url, path, method, body, accepted=accepted, timeout_s=HTTP_TIMEOUT_S)


def _nearer(end: Reached, place: Reached | None) -> Reached:
    return end if place is None else min(end, place, key=lambda one: one.order)
