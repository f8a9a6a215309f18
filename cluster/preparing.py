"""What every start does before any process runs: the directory's identity, the metadata store, the plan."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from ..actors.processes.plan import ClusterPlan
from ..protocol.errors import ClusterError
from ..runtime.environment import Environment
from ..runtime.settings.declarations import Settings
from ..storage.bookie.cookie import cookie_of_record
from ..storage.metadata.cluster_identity import create_cluster, read_cluster_id
from ..storage.metadata.ledger_ids import mark_restored
from ..storage.metadata.registered_bookies import registered_bookies
from ..storage.metadata.store import MetadataStore
from .directory import ClusterDirectory, ClusterIdentity
from .planning import Machine, Wanted, check_accepted, check_size, is_wildcard, place_bookies, plan_nodes
from .ports import check_free, free_ports


@dataclass(frozen=True)
class StartOptions:
    """What the operator asked for. Port 0 takes any free one."""

    settings: Settings
    brokers: int = 2
    bookies: int = 3
    host: str = "127.0.0.1"
    port: int = 6650
    admin_port: int = 8080
    metadata_url: str | None = None
    accept_lost_disk: Sequence[str] = ()
    """Bookies that may start with an empty disk, because their disks are lost."""
    metadata_restored: bool = False
    """The metadata was restored from a backup since the cluster ran."""

    def __post_init__(self) -> None:
        check_size(self.brokers, self.bookies, self.settings)


@dataclass(frozen=True)
class Prepared:
    """A plan, and the registered bookies whose data was found nowhere."""

    plan: ClusterPlan
    lost_bookies: list[str]


async def prepare(
    env: Environment, directory: ClusterDirectory, options: StartOptions, machines: Sequence[Machine]
) -> Prepared:
    """Create or check the identity and the metadata store, and lay out the cluster.

    The caller holds the directory's lock. Raises ClusterError, SettingError, MetadataUnavailable.
    """
    from ..storage.metadata.sql import SqlMetadataStore  # slow to import, and `status` and `stop` do without

    ports = _choose_ports(options)  # the cheapest refusals first, before anything is written
    elsewhere = [f"{machine.address}:{bookie}" for machine in machines[1:] for bookie in machine.cookies]
    identity = directory.establish_identity(options.metadata_url, elsewhere)
    store = await SqlMetadataStore.open(env, identity.metadata_url, create=identity.state == "new")
    try:
        await _check_or_create_cluster(store, directory, identity)
        if options.metadata_restored:
            await mark_restored(env, store)
        cookies = await registered_bookies(store)
        registered = {bookie: cookie_of_record(packed).instance for bookie, packed in cookies.items()}
    finally:
        await store.close()
    accepted = options.accept_lost_disk
    check_accepted(accepted, list(registered))
    placed, lost = place_bookies(options.bookies, machines, list(registered), identity.cluster_id, accepted)
    wanted = Wanted(
        brokers=options.brokers,
        bookies=options.bookies,
        host=options.host,
        broker_ports=ports[: options.brokers],
        admin_port=ports[-2],
        coordinator_port=ports[-1],
        data_directory=str(directory.path),
        lost_instances={bookie: registered[bookie] for bookie in accepted},
    )
    nodes = plan_nodes(wanted, machines, placed)
    plan = ClusterPlan(
        identity.cluster_id,
        identity.secret,
        options.settings,
        identity.metadata_url,
        tuple(nodes),
        str(directory.path),
    )
    return Prepared(plan, lost)


def _choose_ports(options: StartOptions) -> list[int]:
    """One port for each broker, then admin's and the coordinator's. Raises ClusterError for one that is taken.

    Any free port means a fixed one from here on, so that a restarted process is found where its predecessor was.
    """
    probe_host = options.host
    free = free_ports("127.0.0.1" if is_wildcard(probe_host) else probe_host, options.brokers + 2)
    ports = [options.port + number if options.port else free[number] for number in range(options.brokers)]
    ports += [options.admin_port or free[-2], free[-1]]
    for number, port in enumerate(ports[: options.brokers]):
        check_free(probe_host, port, f"broker-{number + 1}", "--port")
    check_free(probe_host, ports[-2], "the admin HTTP", "--admin-port")
    if ports[-2] in ports[: options.brokers]:
        raise ClusterError(f"a broker and the admin HTTP were both given port {ports[-2]}: choose another --admin-port")
    return ports


async def _check_or_create_cluster(
    store: MetadataStore, directory: ClusterDirectory, identity: ClusterIdentity
) -> None:
    if identity.state == "new":
        await create_cluster(store, identity.cluster_id, identity.created_ms)
        directory.save_identity(dataclasses.replace(identity, state="ready"))
        return
    found = await read_cluster_id(store)
    if found != identity.cluster_id:
        raise ClusterError(
            f"{directory.path} belongs to cluster {identity.cluster_id}, but its metadata store holds "
            f"{f'cluster {found}' if found else 'no cluster'}: restore the metadata store of this cluster"
        )
