"""What the topics of one broker have in common."""

import asyncio
from dataclasses import dataclass, field

from ..compaction.topic_compaction import RUNNING_MAX
from ..dispatch.failover import HeldTopics
from .message_counts import MessageCounts


@dataclass(frozen=True)
class CommonState:
    """One for each broker."""

    counts: MessageCounts = field(default_factory=MessageCounts)
    held_topics: HeldTopics = field(default_factory=HeldTopics)
    compactions: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(RUNNING_MAX))
    """Held by each compaction that runs."""
