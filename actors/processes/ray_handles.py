"""What the actors of a cluster offer to those that hold their handles: methods of `ray_actors`, as Ray calls them."""

from typing import Protocol, TypedDict

from ...protocol.cluster_status import DesiredView, RestartView, SupervisedView
from ...runtime.ray_calls import RemoteMethod


class ClientInformation(TypedDict):
    """What a client needs to know. `service_urls` are those of all brokers."""

    service_urls: list[str]
    admin_url: str
    cluster_id: str
    data_directory: str


class MemberHandle(Protocol):
    """A `MemberActor`."""

    @property
    def start(self) -> RemoteMethod[[], tuple[str, int]]: ...
    @property
    def process_id(self) -> RemoteMethod[[], int]: ...
    @property
    def ray_node_id(self) -> RemoteMethod[[], str]: ...
    @property
    def wait_ended(self) -> RemoteMethod[[], str]: ...
    @property
    def close(self) -> RemoteMethod[[], None]: ...


class DeputyHandle(Protocol):
    """A `DeputyActor`."""

    @property
    def address(self) -> RemoteMethod[[], tuple[str, int]]: ...
    @property
    def ray_node_id(self) -> RemoteMethod[[], str]: ...


class CoordinatorHandle(Protocol):
    """A `CoordinatorActor`."""

    @property
    def address(self) -> RemoteMethod[[], tuple[str, int]]: ...
    @property
    def wait_ready(self) -> RemoteMethod[[float], dict[str, str]]: ...
    @property
    def client_information(self) -> RemoteMethod[[], ClientInformation]: ...
    @property
    def status(self) -> RemoteMethod[[], SupervisedView]: ...
    @property
    def scale(self) -> RemoteMethod[[int | None, int | None], DesiredView]: ...
    @property
    def drain(self) -> RemoteMethod[[str], DesiredView]: ...
    @property
    def undrain(self) -> RemoteMethod[[str], DesiredView]: ...
    @property
    def restart_member(self) -> RemoteMethod[[str], RestartView]: ...
    @property
    def restart_coordinator(self) -> RemoteMethod[[], None]: ...
    @property
    def wait_settled(self) -> RemoteMethod[[str], None]: ...
    @property
    def accept_lost_ledgers(self) -> RemoteMethod[[], list[list[int]]]: ...
    @property
    def stop_cluster(self) -> RemoteMethod[[], None]: ...
    @property
    def wait_ended(self) -> RemoteMethod[[], str]: ...
