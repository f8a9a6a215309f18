"""Copies of what the coordinator knows, as a member's link keeps them up to date."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ...protocol.topics import TopicName
from ...storage.metadata.slot_rows import SlotRows
from .contracts_coordinator import NamespacePolicies, Owner

if TYPE_CHECKING:
    from .topic_watch import TopicWatch

TOPICS_MAX = 100_000


class PolicyFeed(Protocol):
    """A member's copy of the policies of all namespaces; see `actors.policies.watch`."""

    def listing_began(self) -> None: ...
    def take(self, rows: Sequence[NamespacePolicies]) -> None:
        """Raises ProtocolError for malformed ones."""
        ...

    def listing_ended(self) -> None: ...


class Owning(Protocol):
    """What a broker owns, as it follows from the slots; see `actors.broker.ownership`."""

    def owns(self, name: TopicName) -> bool:
        """Whether clients of a topic may be sent here."""
        ...

    async def claimed(self, found: Owner) -> bool:
        """The coordinator has said who owns a topic. Returns whether this broker has it now."""
        ...

    def registered(self) -> None:
        """The member has registered, perhaps at another coordinator than before."""
        ...

    def slots_changed(self, changed: SlotRows) -> None:
        """These entries of the member's view of the slots are new."""
        ...


class Feeds(NamedTuple):
    """The copies that a member keeps."""

    policies: PolicyFeed | None = None
    topics: "TopicWatch | None" = None
    owned: Owning | None = None


NO_FEEDS = Feeds()


class KnownTopics:
    """How many partitions topics have, as far as a member has asked: a bounded memory. Pushes change what is in it, and
    a new registration empties it. Names are those of whole topics, in full; a plain topic has 0 partitions."""

    def __init__(self) -> None:
        self._partitions: OrderedDict[str, int] = OrderedDict()

    def get(self, topic: str) -> int | None:
        """None: it is not known whether it exists."""
        return self._partitions.get(topic)

    def know(self, topic: str, partitions: int) -> None:
        """The coordinator said that the topic exists. The one that was not asked for longest is forgotten."""
        self._partitions[topic] = partitions
        self._partitions.move_to_end(topic)
        if len(self._partitions) > TOPICS_MAX:
            self._partitions.popitem(last=False)

    def changed(self, topic: str, partitions: int) -> None:
        """The topic has so many partitions now, or (−1) is gone, or about to be deleted."""
        if partitions < 0:
            self._partitions.pop(topic, None)
        elif topic in self._partitions:
            self._partitions[topic] = partitions

    def clear(self) -> None:
        self._partitions.clear()
