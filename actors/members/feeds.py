"""Copies of what the coordinator knows, as a member's link keeps them up to date."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from .contracts_namespaces import NamespacePolicies
from .contracts_topics import TopicChange


class PolicyFeed(Protocol):
    """A member's copy of the policies of all namespaces; see `actors.policies.watch`."""

    def listing_began(self) -> None: ...
    def take(self, rows: Sequence[NamespacePolicies]) -> None:
        """Raises ProtocolError for malformed ones."""
        ...

    def listing_ended(self) -> None: ...


class TopicFeed(Protocol):
    """A broker's copy of the topics of the namespaces that its clients watch; see `topic_watch`."""

    def registered(self) -> None:
        """The member has registered: whatever it had asked to be told over an earlier connection is forgotten."""
        ...

    def take(self, namespace: str, number: int, changes: Sequence[TopicChange]) -> None: ...


class Feeds(NamedTuple):
    """The copies that a member keeps."""

    policies: PolicyFeed | None = None
    topics: TopicFeed | None = None


NO_FEEDS = Feeds()
