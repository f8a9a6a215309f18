"""Planning a bulk read of one topic: where it begins and ends, which ledgers hold it, and a pin that keeps them.

Nothing is read but what finding a publish time takes, and nothing is fenced: publishing goes on. Who reads then goes to
the bookies directly.
"""

from typing import Any

from ...protocol.errors import InvalidConfiguration
from ...protocol.message_id import EARLIEST_POSITION, LATEST_POSITION, Position
from ..topics.persistent import PersistentTopic

Point = str | int | list[int]
"""A place in a topic: "earliest", "latest", `[ledger, entry]`, or milliseconds since the epoch (publish time)."""


async def plan_read(topic: PersistentTopic, start: Point, end: Point, ttl_s: float) -> dict[str, Any]:
    """The plan as plain values: `first` and `last` ([ledger, entry], inclusive; first > last: nothing), `ledgers`
    (packed LedgerMetadata, in order), `pin` (None when there is nothing to keep), `partition`, `epoch`.

    As `start`, a time means the first message published then or later; as `end`, the last one before it. Times count
    per entry and as the producers' clocks tell them: who needs exactness filters the messages. Raises
    InvalidConfiguration for something that is no place, StaleEpoch, MetadataUnavailable.
    """
    first = await topic.ledger.find_by_publish_time(start) if isinstance(start, int) else position_of_point(start)
    if isinstance(end, int):
        behind = await topic.ledger.find_by_publish_time(end)
        last = (behind[0], behind[1] - 1)
    else:
        last = position_of_point(end)
    plan = await topic.ledger.plan(first, last, ttl_s)
    return {
        "first": list(plan.first),
        "last": list(plan.last),
        "ledgers": [ledger.pack() for ledger in plan.ledgers],
        "pin": plan.pin,
        "partition": topic.name.partition,
        "epoch": topic.epoch,
    }


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
    raise InvalidConfiguration(f"not a place in a topic: {place!r}")
