"""What the topics of one broker have in common."""

from dataclasses import dataclass, field

from ..dispatch.failover import HeldTopics
from .message_counts import MessageCounts


@dataclass(frozen=True)
class CommonState:
    """One for each broker."""

    counts: MessageCounts = field(default_factory=MessageCounts)
    held_topics: HeldTopics = field(default_factory=HeldTopics)
