"""What a chaos run is judged by. Pure: it knows what clients were told and what they found, nothing of the cluster.

A message is (key, sequence); each key's sequences are sent ascending, from 0. A place is `ledger:entry:index`.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Message = tuple[str, int]
Gap = tuple[float, float]
"""Begin and end of a time without an answer, in seconds of the machine's monotonic clock."""


@dataclass(frozen=True)
class Found:
    """One log or one subscription against what was acknowledged."""

    messages: int
    duplicates: int
    lost: list[Message]
    reordered: list[Message]
    """Messages whose first occurrence came behind a later one of the same key."""
    phantoms: list[Message]
    """Messages that nobody sent."""
    misplaced: list[tuple[Message, str]] = field(default_factory=list[tuple[Message, str]])
    """Messages that are not where a receipt or a delivery said: with that place."""

    @property
    def safe(self) -> bool:
        return not (self.lost or self.reordered or self.phantoms or self.misplaced)


class Delivery(NamedTuple):
    """A message as a consumer got it. `redeliveries`: how often it was delivered before, as the broker told."""

    key: str
    sequence: int
    place: str
    redeliveries: int

    @property
    def message(self) -> Message:
        return self.key, self.sequence


def compare(
    acknowledged: Mapping[str, Iterable[int]],
    sent: Mapping[str, int],
    logs: Iterable[Sequence[Message]],
    *,
    ordered: bool = True,
) -> Found:
    """Check logs (each in order of its own; a key lies in one of them) against the publisher's history.

    sent: the number of messages that were sent, by key; whatever is beyond is a phantom.
    """
    seen: set[Message] = set()
    total = 0
    reordered: list[Message] = []
    for log in logs:
        highest: dict[str, int] = {}
        for message in log:
            total += 1
            if message in seen:
                continue
            seen.add(message)
            key, sequence = message
            if sequence < highest.get(key, -1):
                reordered.append(message)
            else:
                highest[key] = sequence
    lost = sorted(
        (key, sequence) for key, told in acknowledged.items() for sequence in told if (key, sequence) not in seen
    )
    phantoms = sorted(message for message in seen if not 0 <= message[1] < sent.get(message[0], 0))
    return Found(len(seen), total - len(seen), lost, reordered if ordered else [], phantoms)


def find_misplaced(
    told: Iterable[tuple[Message, str]], places: Mapping[Message, Collection[str]]
) -> list[tuple[Message, str]]:
    """Messages that were said to lie where the log does not have them."""
    return [(message, place) for message, place in told if place not in places.get(message, ())]


def find_rewinds(deliveries: Iterable[Delivery]) -> dict[str, int]:
    """How often, by key, one consumer of a Shared subscription was given a message for the first time that comes before
    one it had been given: at most once with each new incarnation of the topic, which begins at what is stored.

    Messages that the broker itself calls redelivered do not count.
    """
    seen: set[Message] = set()
    last: dict[str, int] = {}
    rewinds: dict[str, int] = defaultdict(int)
    for delivery in deliveries:
        if delivery.redeliveries or delivery.message in seen:
            continue
        seen.add(delivery.message)
        if delivery.sequence < last.get(delivery.key, -1):
            rewinds[delivery.key] += 1
        last[delivery.key] = delivery.sequence
    return dict(rewinds)


def find_backlogs(
    backlogs: Mapping[str, Mapping[str, int]], entries: Mapping[str, int], keeper: str
) -> list[tuple[str, str, int]]:
    """Subscriptions that do not stand where they should at the end, as (topic, subscription, backlog): all have nothing
    left, but `keeper`, which never acknowledges, has every entry of the log.

    backlogs: entries by topic and subscription, as the broker counts them; entries: those in the log, by topic.
    """
    return [
        (topic, name, backlog)
        for topic, subscriptions in backlogs.items()
        for name, backlog in subscriptions.items()
        if backlog != (entries[topic] if name == keeper else 0)
    ]


def longest(gaps: Iterable[Gap]) -> float:
    """The longest of them, 0 if there is none."""
    return max((end - begin for begin, end in gaps), default=0.0)


def stall_after(gaps: Iterable[Gap], last_fault: float, next_fault: float) -> float:
    """The longest time without an answer that lies behind a fault; of one that had begun before, what lies behind it.

    What begins after `next_fault` is the next one's.
    """
    return longest((max(begin, last_fault), end) for begin, end in gaps if end > last_fault and begin < next_fault)
