"""What the coordinator tells a member over the member's link.

Each push carries the coordinator's epoch. One of a coordinator that was superseded ends the connection.
"""

from typing import Protocol

from ...protocol.errors import ProtocolError, StaleEpoch
from ...runtime.rpc.connection import RpcConnection, RpcService
from ...storage.ledger.bookie_directory import BookieInfo
from .contracts_coordinator import BrokerInfo, MemberContract
from .contracts_namespaces import NamespacePolicies
from .contracts_topics import TopicChange
from .feeds import Feeds, KnownTopics


class PushedTo(Protocol):
    """What the pushes of one coordinator change: a member's link."""

    epoch: int
    feeds: Feeds
    known_topics: KnownTopics

    def take_bookies(self, bookies: list[BookieInfo]) -> None: ...
    def take_brokers(self, brokers: list[BrokerInfo]) -> None: ...
    def take_slots(self, number: int, rows: bytes) -> None:
        """Raises ProtocolError for malformed ones."""
        ...


class CoordinatorPushes(RpcService):
    """See the module. `client` is the link that the pushes come over."""

    contract = MemberContract

    def __init__(self, client: PushedTo) -> None:
        self._client = client

    def _current(self, connection: RpcConnection, epoch: int) -> bool:
        if epoch >= self._client.epoch:
            return True
        connection.close(StaleEpoch(f"the coordinator sent a push with epoch {epoch} after epoch {self._client.epoch}"))
        return False

    async def rpc_bookies_changed(self, connection: RpcConnection, epoch: int, bookies: list[BookieInfo]) -> None:
        if self._current(connection, epoch):
            self._client.take_bookies(bookies)

    async def rpc_brokers_changed(self, connection: RpcConnection, epoch: int, brokers: list[BrokerInfo]) -> None:
        if self._current(connection, epoch):
            self._client.take_brokers(brokers)

    async def rpc_slots_changed(self, connection: RpcConnection, epoch: int, number: int, rows: bytes) -> None:
        if self._current(connection, epoch):
            try:
                self._client.take_slots(number, rows)
            except ProtocolError as error:  # without this change the member needs the whole listing again
                connection.close(error)

    async def rpc_policies_changed(
        self, connection: RpcConnection, epoch: int, changes: list[NamespacePolicies]
    ) -> None:
        if self._current(connection, epoch):
            try:
                if self._client.feeds.policies is not None:
                    self._client.feeds.policies.take(changes)
            except ProtocolError as error:  # without this change the member needs the whole listing again
                connection.close(error)

    async def rpc_partitions_changed(self, connection: RpcConnection, epoch: int, topic: str, partitions: int) -> None:
        if self._current(connection, epoch):
            self._client.known_topics.changed(topic, partitions)

    async def rpc_topics_changed(
        self, connection: RpcConnection, epoch: int, namespace: str, number: int, changes: list[TopicChange]
    ) -> None:
        if self._current(connection, epoch) and self._client.feeds.topics is not None:
            self._client.feeds.topics.take(namespace, number, changes)
