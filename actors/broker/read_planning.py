"""Planning a bulk read of one topic: where it begins and ends, which ledgers hold it, and a pin that keeps them.

Nothing is read but what finding a publish time takes, and nothing is fenced: publishing goes on. Who reads then goes to
the bookies directly.
"""

from collections.abc import Callable, Iterable

from ...protocol.errors import InvalidConfiguration
from ...protocol.message_id import EARLIEST_POSITION, LATEST_POSITION, Position
from ...storage.ledger.bookie_directory import BookieInfo
from ..members.contracts_broker import Place, PlannedRead, Point
from ..topics.persistent import PersistentTopic
from ..topics.topic import SubscriptionStart


async def plan_read(
    topic: PersistentTopic,
    start: Point,
    end: Point,
    ttl_s: float,
    bookies: Callable[[], Iterable[BookieInfo]],
    *,
    compacted: bool = False,
    before_bytes: int = 0,
) -> PlannedRead:
    """Plan the read, and pin what it needs. `bookies` are those that are listed once the pin is there.

    As `start`, a time means the first message published then or later; as `end`, the last one before it. Times count
    per entry and as the producers' clocks tell them: who needs exactness filters the messages. With `compacted` the
    plan begins with the compacted ledger, if the topic has one. A time says nothing of where the read begins in it.
    `before_bytes` adds ledgers before the start, for messages in chunks that begin there.

    Raises InvalidConfiguration for something that is no place, StaleEpoch, MetadataUnavailable.
    """
    first = await topic.ledger.find_by_publish_time(start) if isinstance(start, int) else position_of_point(start)
    if isinstance(end, int):
        behind = await topic.ledger.find_by_publish_time(end)
        last = (behind[0], behind[1] - 1)
    else:
        last = position_of_point(end)
    compacted_from = None
    if compacted:
        compacted_from = EARLIEST_POSITION if isinstance(start, int) else first
    plan = await topic.ledger.plan(first, last, ttl_s, compacted_from=compacted_from, before_bytes=before_bytes)
    return PlannedRead(
        first=Place(*plan.first),
        last=Place(*plan.last),
        ledgers=[ledger.pack() for ledger in plan.ledgers],
        pin=plan.pin,
        partition=topic.name.partition,
        epoch=topic.epoch,
        bookies=list(bookies()),
        compacted=None if plan.compacted is None else plan.compacted.pack(),
        open_entry_bytes=plan.open_entry_bytes,
    )


def position_of_point(place: str | list[int]) -> Position:
    """Raises InvalidConfiguration for what is none: a cursor may be put there, and stored."""
    if place == "earliest":
        return EARLIEST_POSITION
    if place == "latest":
        return LATEST_POSITION
    if (
        isinstance(place, list)
        and len(place) == 2
        and all(type(part) is int and -1 <= part < 1 << 63 for part in place)
    ):
        return (place[0], place[1])
    raise InvalidConfiguration(f"{place!r} is not a position in a topic")


def point_of_start(start: SubscriptionStart, now_ms: int) -> Point:
    """The place where a subscription begins, as other members take it."""
    if start.position is not None:
        known: dict[Position, Point] = {EARLIEST_POSITION: "earliest", LATEST_POSITION: "latest"}
        return known.get(start.position, list(start.position))
    if start.publish_time_ms is not None:
        return start.publish_time_ms
    if start.rollback_s > 0:
        return now_ms - start.rollback_s * 1000
    return "earliest" if start.earliest else "latest"
