"""A running cluster as its user sees it, on Ray or embedded: where it is, a client for it, its status, its end."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from ..protocol.cluster_status import ClusterStatus

if TYPE_CHECKING:
    from ..client.blocking.client import Client


class Cluster(ABC):
    """A running cluster. As a context manager it stops the cluster at the end."""

    def __init__(self, cluster_id: str, service_urls: Sequence[str], admin_url: str) -> None:
        self.cluster_id = cluster_id
        self.service_urls = list(service_urls)
        """One URL a broker."""
        self.admin_url = admin_url

    @property
    def service_url(self) -> str:
        """One URL with all brokers, as every Pulsar client takes it: `pulsar://host:6650,host:6651`."""
        return "pulsar://" + ",".join(url.removeprefix("pulsar://") for url in self.service_urls)

    def client(self, **options: Any) -> "Client":
        """Create a client of this cluster.

        Args:
            options: Options of `magnetar.Client`.

        Returns:
            The client.

        Raises:
            InvalidConfiguration: If an option is impossible.
            OperationNotSupported: If an option asks for a feature that is not supported.
        """
        from ..client.blocking.client import Client

        return Client(self.service_url, **options)

    @abstractmethod
    def status(self) -> ClusterStatus:
        """Return what runs: actors, addresses, epochs, topics, disks.

        `magnetar status` prints it.

        Returns:
            Plain values.

        Raises:
            ClusterError: If the cluster does not answer.
        """

    @abstractmethod
    def accept_lost_ledgers(self) -> list[list[int]]:
        """Give up the ledgers that restored metadata does not know.

        Bookies delete them with their next collection. There is no way back.

        Returns:
            Ranges of their ids, as first and end (exclusive).

        Raises:
            MagnetarError: If the coordinator refuses.
        """

    @abstractmethod
    def stop(self) -> None:
        """Stop everything in good order and wait for it.

        A second call does nothing.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.cluster_id} at {self.service_url}>"
