"""What a chaos run is judged by. Pure: it knows what clients were told and what they found, nothing of the cluster.

A message is (key, sequence); each key's sequences are sent ascending, from 0.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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

    @property
    def safe(self) -> bool:
        return not (self.lost or self.reordered or self.phantoms)


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


def longest(gaps: Iterable[Gap]) -> float:
    """The longest of them, 0 if there is none."""
    return max((end - begin for begin, end in gaps), default=0.0)


def stall_after(gaps: Iterable[Gap], last_fault: float, next_fault: float) -> float:
    """The longest time without an answer that lies behind a fault; of one that had begun before, what lies behind it.

    What begins after `next_fault` is the next one's.
    """
    return longest((max(begin, last_fault), end) for begin, end in gaps if end > last_fault and begin < next_fault)
