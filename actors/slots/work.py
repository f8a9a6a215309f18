"""What placement is given: the brokers that it asks about, and what it is to look at."""

from collections.abc import Iterable, Sequence
from typing import Protocol


class LiveBroker(Protocol):
    """A broker with a session."""

    @property
    def node_id(self) -> str: ...
    @property
    def incarnation(self) -> str: ...


class BrokerSessions(Protocol):
    """What placement asks about brokers."""

    @property
    def in_grace(self) -> bool:
        """Whether a missing broker may simply not have come back yet."""
        ...

    def takers(self) -> Sequence[LiveBroker]:
        """Those that slots may go to: not those that are being drained, as long as there are others."""
        ...

    def is_alive(self, role: str, node_id: str, incarnation: str) -> bool: ...
    def has_ended(self, node_id: str, incarnation: str) -> bool: ...


class SlotWork:
    """Slots and topics that are to be looked at, each once, in the order in which they were named first."""

    def __init__(self) -> None:
        self.slots: dict[int, None] = {}
        self.topics: dict[str, None] = {}

    def __bool__(self) -> bool:
        return bool(self.slots or self.topics)

    def add(self, slots: Iterable[int], topics: Iterable[str]) -> None:
        self.slots.update(dict.fromkeys(slots))
        self.topics.update(dict.fromkeys(topics))
