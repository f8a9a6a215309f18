"""What a broker checks of its topics now and then, and what a topic offers to be checked."""

import enum
from collections.abc import Awaitable, Callable

from ...protocol.topics import TopicName
from .inactivity import Inactivity

Work = Callable[[], Awaitable[None]]


class Check(enum.Enum):
    """What is checked."""

    EXPIRY = "expiry of messages"
    QUOTAS = "backlog quotas"
    SUBSCRIPTIONS = "expiry of subscriptions"
    INACTIVITY = "inactivity"


class TopicChecks:
    """The checks of one topic. A topic that stores nothing has no others than this."""

    def __init__(self, name: TopicName, inactivity: Inactivity) -> None:
        self.name = name
        self.inactivity = inactivity

    def work(self, check: Check) -> Work | None:
        """What a check has to do, None for nothing. Cheap. Inactivity is not asked here."""
        return None

    async def is_inactive(self) -> bool:
        """Whether the topic may be deleted now. Raises what looking at stored records raises."""
        return self.inactivity.check()
