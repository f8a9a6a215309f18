"""What the coordinator offers about the topics of a namespace: a list, and news of what changes. A part of
`CoordinatorContract`.
"""

from dataclasses import dataclass
from typing import NamedTuple

from ...runtime.rpc.contract import Contract, method
from .permissions import ADMIN, BROKER

Point = str | int | list[int]
"""A place in a topic: "earliest", "latest", `[ledger, entry]`, or milliseconds since the epoch (publish time)."""


class TopicRecord(NamedTuple):
    """A topic by its full name, and how many partitions it has, 0: plain."""

    topic: str
    partitions: int


class TopicChange(NamedTuple):
    """A topic that was created or got more partitions. `partitions` None: it was deleted."""

    topic: str
    partitions: int | None


@dataclass(frozen=True)
class TopicPage:
    """A part of a namespace's persistent topics, and whether more follow.

    `number` is that of the last change that is in it. Changes with a greater number came later.
    """

    number: int
    items: list[TopicRecord]
    more: bool


class TopicListContract(Contract):
    """See the module."""

    @method(ADMIN)
    async def topic_properties(self, *, topic: str) -> dict[str, str]:
        """What an administrator has noted of a topic. Raises TopicNotFound."""
        ...

    @method(ADMIN)
    async def change_topic_properties(
        self, *, topic: str, put: dict[str, str], remove: list[str] | None = None
    ) -> None:
        """Add properties, and remove some. Raises TopicNotFound, NotAllowedError, InvalidConfiguration (too much)."""
        ...

    @method(BROKER | ADMIN)
    async def topic_records(self, *, namespace: str, after: str = "", limit: int = 1000) -> list[TopicRecord]:
        """A page of a namespace's topics, behind the name `after`. Raises TopicNotFound."""
        ...

    @method(BROKER)
    async def watch_topics(self, *, namespace: str, after: str = "") -> TopicPage:
        """Tell this connection of topics that are created and deleted in a namespace, from now on.

        Answers a page of the persistent topics behind the name `after`; none for a missing namespace.
        """
        ...

    @method(BROKER)
    async def unwatch_topics(self, *, namespace: str) -> None:
        """Tell this connection nothing more about the topics of a namespace."""
        ...
