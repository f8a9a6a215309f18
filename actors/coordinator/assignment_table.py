"""Which broker owns which topic: the table, and the pure decisions about placing and moving.

A *topic* here is what one broker owns as a whole: a partition, or a topic without partitions. Partitions of one topic
form a *group*; a topic without partitions is a group of one.

Decisions, in this order of importance:

1. The members of a group are spread evenly: the counts of two brokers differ by up to one (five partitions on three
   brokers: 2, 2, 1).
2. Brokers own equally many topics.
3. As little as possible moves: a broker's loss moves only what it owned, a broker's arrival only what evenness needs.

Nothing here knows about time, metadata or connections.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ...protocol.topics import group_of


class Assignment(NamedTuple):
    """Who owns a topic: `epoch` grows with every change, cluster-wide; `version` is that of the metadata record."""

    broker: str
    incarnation: str
    epoch: int
    version: int


class AssignmentTable:
    """All assignments, counted by broker and group."""

    def __init__(self) -> None:
        self._entries: dict[str, Assignment] = {}
        self._groups_by_topic: dict[str, str] = {}
        self._topics_by_broker: dict[str, dict[str, None]] = {}
        self._topics_by_group: dict[str, dict[str, None]] = {}
        self._names: list[str] | None = None  # sorted, made when asked for

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, topic: str) -> bool:
        return topic in self._entries

    def get(self, topic: str) -> Assignment | None:
        return self._entries.get(topic)

    def items(self) -> Iterable[tuple[str, Assignment]]:
        return self._entries.items()

    def topics_of(self, broker: str) -> list[str]:
        """Topics assigned to a broker, whatever its incarnation."""
        return list(self._topics_by_broker.get(broker, ()))

    def count_of(self, broker: str) -> int:
        return len(self._topics_by_broker.get(broker, ()))

    def page(self, after: str, limit: int) -> list[tuple[str, Assignment]]:
        """Assignments in order of topic names greater than `after`."""
        if self._names is None:
            self._names = sorted(self._entries)
        first = bisect_right(self._names, after)
        return [(topic, self._entries[topic]) for topic in self._names[first : first + limit]]

    def set(self, topic: str, assignment: Assignment) -> None:
        """Enter or replace."""
        names = self._names if topic in self._entries else None
        self.remove(topic)
        self._names = names
        self._entries[topic] = assignment
        group = self._groups_by_topic[topic] = group_of(topic)
        self._topics_by_broker.setdefault(assignment.broker, {})[topic] = None
        self._topics_by_group.setdefault(group, {})[topic] = None

    def remove(self, topic: str) -> Assignment | None:
        """Take out; answers what was there."""
        assignment = self._entries.pop(topic, None)
        if assignment is not None:
            self._names = None
            group = self._groups_by_topic.pop(topic)
            _drop(self._topics_by_broker, assignment.broker, topic)
            _drop(self._topics_by_group, group, topic)
        return assignment

    # -- decisions -----------------------------------------------------------------------------------------------

    def place(self, topics: Sequence[str], brokers: Sequence[str]) -> dict[str, str]:
        """A broker for each of `topics`, all of them chosen again; other topics stay where they are.

        `brokers` are those alive, at least one. Assignments to others count for nothing.
        """
        moving: dict[str, None] = dict.fromkeys(topics)
        totals = {
            broker: sum(topic not in moving for topic in self._topics_by_broker.get(broker, ())) for broker in brokers
        }
        counts_by_group: dict[str, dict[str, int]] = {}
        placed: dict[str, str] = {}
        for topic in moving:
            group = self._groups_by_topic.get(topic) or group_of(topic)
            counts = counts_by_group.get(group)
            if counts is None:
                counts = counts_by_group[group] = dict.fromkeys(brokers, 0)
                for other in self._topics_by_group.get(group, ()):
                    owner = self._entries[other].broker
                    if other not in moving and owner in counts:
                        counts[owner] += 1
            best = min((counts[broker], totals[broker], broker) for broker in brokers)[2]
            counts[best] += 1
            totals[best] += 1
            placed[topic] = best
        return placed

    def rebalance(self, brokers: Sequence[str], moves_max: int) -> dict[str, str]:
        """At most `moves_max` moves (topic → broker) towards evenness among live `brokers`; none when it is reached."""
        moves: dict[str, str] = {}
        if len(brokers) < 2:
            return moves
        owners = {topic: entry.broker for topic, entry in self._entries.items() if entry.broker in brokers}
        totals = dict.fromkeys(brokers, 0)
        counts_by_group: dict[str, dict[str, int]] = {}
        topics_by_group: dict[str, dict[str, None]] = {}
        for topic, owner in owners.items():
            group = self._groups_by_topic[topic]
            totals[owner] += 1
            counts_by_group.setdefault(group, dict.fromkeys(brokers, 0))[owner] += 1
            topics_by_group.setdefault(group, {})[topic] = None

        def move(topic: str, target: str) -> None:
            counts = counts_by_group[self._groups_by_topic[topic]]
            source = owners[topic]
            counts[source] -= 1
            counts[target] += 1
            totals[source] -= 1
            totals[target] += 1
            owners[topic] = moves[topic] = target

        for group in sorted(counts_by_group):
            counts = counts_by_group[group]
            while len(moves) < moves_max:
                # A group that fits evenly in several ways gives to the broker that has least in all.
                source = max(brokers, key=lambda broker: (counts[broker], totals[broker], broker))
                target = min(brokers, key=lambda broker: (counts[broker], totals[broker], broker))
                if counts[source] - counts[target] <= 1:
                    break
                move(min(topic for topic in topics_by_group[group] if owners[topic] == source), target)

        sorted_by_owner: dict[str, list[str]] = {broker: [] for broker in brokers}
        for topic in sorted(owners):
            if topic not in moves:
                sorted_by_owner[owners[topic]].append(topic)
        while len(moves) < moves_max:
            source = max(brokers, key=lambda broker: (totals[broker], broker))
            target = min(brokers, key=lambda broker: (totals[broker], broker))
            if totals[source] - totals[target] <= 1:
                break
            topic = next(
                (
                    topic
                    for topic in sorted_by_owner[source]
                    if topic not in moves
                    and counts_by_group[self._groups_by_topic[topic]][source]
                    > counts_by_group[self._groups_by_topic[topic]][target]
                ),
                None,
            )
            if topic is None:
                break
            move(topic, target)
        return moves


def _drop(index: dict[str, dict[str, None]], key: str, topic: str) -> None:
    topics = index[key]
    del topics[topic]
    if not topics:
        del index[key]
