"""What every start does before any process runs: the directory's identity, the metadata store, the plan, a check of the
addresses that brokers would tell clients.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..actors.desired.planner import Machine, Observed, RunOn, WaitFor, check_cookies, plan
from ..actors.desired.record import DesiredState
from ..actors.processes.plan import ClusterPlan, Layout, NodePlan, is_wildcard
from ..protocol.errors import ClusterError, SettingError
from ..protocol.names import ROLE_BROKER, broker_id, port_of_broker
from ..runtime.environment import Environment
from ..runtime.settings.declarations import Settings
from ..runtime.settings.placeholders import BrokerPlace
from ..runtime.settings.text import Value
from ..runtime.settings.tls import ADMIN_PORT, BROKER_PORT
from ..storage.metadata import keys as metadata_keys
from ..storage.metadata.cluster_identity import create_cluster, read_cluster_id
from ..storage.metadata.ledger_ids import mark_restored
from ..storage.metadata.registered_bookies import registered_instances
from ..storage.metadata.store import MetadataStore
from ..storage.metadata.stored_settings import read_stored_settings, write_stored_settings
from .directory import ClusterDirectory, ClusterIdentity
from .planning import DEFAULT_BOOKIES, DEFAULT_BROKERS, check_accepted, check_size, desired_at_start, settings_at_start
from .ports import check_free, check_host, check_port, free_ports, free_range, is_loopback


def check_advertised(settings: Settings, nodes: Sequence[NodePlan]) -> None:
    """Raise SettingError for addresses that are impossible, or that would lead clients of one broker to another.

    What the environment of another node says is not known here: each broker checks its own when it starts.
    """
    if settings.advertises_what_nodes_say:
        return
    owners: dict[str, str] = {}
    for node in nodes:
        if node.role != ROLE_BROKER:
            continue
        host, port_tls = node.advertised_host or node.host, settings.port_tls_of(node.node_id)
        place = BrokerPlace(node.node_id, host, node.port, os.environ, port_tls)
        told = settings.advertised(place, tls_only=settings.broker_tls_only)
        listeners = [one for urls in told.listeners.values() for one in urls if one is not None and one.direct]
        for url in dict.fromkeys([told.url, told.url_tls, *(one.url for one in listeners)]):
            if not url:
                continue
            other = owners.setdefault(url, node.node_id)
            if other != node.node_id:
                raise SettingError(
                    f"{other} and {node.node_id} would both advertise {url}: write a placeholder such as {{number}} or "
                    "{port} into advertisedListeners or advertisedAddress, or a pulsar+proxy:// URL"
                )


BROKER_PORTS_FREE = 8
"""Ports behind that of broker-1 that are free when any port may be taken: for brokers that come later."""

if TYPE_CHECKING:
    from ..storage.metadata.sql import SqlMetadataStore


@dataclass(frozen=True)
class StartOptions:
    """What the operator asked for. Port 0 takes any free one. Without numbers, as many members run as before."""

    settings: Mapping[str, Value] = field(default_factory=dict[str, Value])
    """Those that were given, by outside name. Others stay as the cluster's record says."""
    brokers: int | None = None
    bookies: int | None = None
    host: str = "127.0.0.1"
    port: int = 6650
    admin_port: int = 8080
    metadata_url: str | None = field(default=None, repr=False)  # may hold a password
    accept_lost_disk: Sequence[str] = ()
    """Bookies that may start with an empty disk, because their disks are lost."""
    metadata_restored: bool = False
    """The metadata was restored from a backup since the cluster ran."""
    insecure: bool = False
    """Others may reach the cluster although it asks nobody who he is."""

    def check_new(self) -> None:
        """Raise SettingError or ClusterError for what no new cluster can be. Nothing is stored of it yet."""
        settings = Settings.from_dict(self.settings)
        brokers = DEFAULT_BROKERS if self.brokers is None else self.brokers
        bookies = max(DEFAULT_BOOKIES, settings.ack_quorum) if self.bookies is None else self.bookies
        check_size(brokers, bookies, settings)


@dataclass(frozen=True)
class Prepared:
    """A plan, the members that cannot run now with the reason, and what the operator should be told."""

    plan: ClusterPlan
    waiting: Mapping[str, str]
    told: Sequence[str]


async def prepare(
    env: Environment, directory: ClusterDirectory, options: StartOptions, machines: Sequence[Machine]
) -> Prepared:
    """Create or check the identity and the metadata store, store what should run, and lay out the cluster.

    The caller holds the directory's lock. Raises ClusterError, SettingError, NotAllowedError, MetadataUnavailable.
    """
    check_early(directory, options)  # the cheapest refusals first, before anything is written
    layout = _choose_ports(options, str(directory.path))
    elsewhere = [f"{machine.address}:{bookie}" for machine in machines[1:] for bookie in _directories(machine)]
    identity = directory.establish_identity(options.metadata_url, elsewhere)
    store, url = await _open(env, directory, identity, options)
    try:
        settings, chosen, told = settings_at_start(await read_stored_settings(store), options.settings)
        check_reachable(options, settings)
        check_standbys(store, settings)
        await _check_or_create_cluster(store, directory, identity)
        if url != identity.metadata_url:
            identity = dataclasses.replace(identity, metadata_url=url)
            directory.save_identity(identity)
        if options.metadata_restored:
            await mark_restored(env, store)
        registered = await registered_instances(store)
        check_accepted(options.accept_lost_disk, list(registered))
        check_cookies(identity.cluster_id, machines, registered)
        desired, changes = await _store_desired(store, options, settings, machines, registered)
        await write_stored_settings(store, chosen)
    finally:
        await store.close()
    lost_instances = {bookie: registered[bookie] for bookie in options.accept_lost_disk}
    layout = dataclasses.replace(layout, lost_instances=lost_instances)
    observed = Observed(machines, registered=registered, lost_instances=lost_instances)
    targets = plan(identity.cluster_id, desired, observed)
    members = [layout.member(one, target.machine) for one, target in targets.items() if isinstance(target, RunOn)]
    check_advertised(settings, members)
    _check_tls_ports(settings, layout, members)
    found = ClusterPlan(
        identity.cluster_id,
        identity.secret,
        settings,
        identity.metadata_url,
        layout,
        tuple(machines),
        tuple(members),
    )
    waiting = {one: target.reason for one, target in targets.items() if isinstance(target, WaitFor)}
    return Prepared(found, waiting, [*told, *changes])


def check_early(directory: ClusterDirectory, options: StartOptions) -> None:
    """Refuse what cannot be, before Ray is started. What is stored of an older cluster is read later."""
    check_host(options.host)
    check_port(options.port, "--port")
    check_port(options.admin_port, "--admin-port")
    is_new = directory.load_identity() is None
    if is_new:
        check_reachable(options, Settings.from_dict(options.settings))
    brokers = options.brokers or (DEFAULT_BROKERS if is_new else 1)
    if options.port:
        check_port(options.port + brokers - 1, f"--port of broker-{brokers}")
    if options.metadata_url is not None:
        directory.given_url(options.metadata_url)
    if is_new:
        options.check_new()


def check_reachable(options: StartOptions, settings: Settings) -> None:
    """Raise ClusterError where strangers could reach a cluster that asks nobody who he is."""
    bound = [part.partition("://")[2].rpartition(":")[0] for part in settings.bind_addresses.split(",") if part.strip()]
    hosts = [options.host, *(host.strip("[]") for host in bound)]
    open_to = [host for host in hosts if not is_loopback(host)]
    if options.insecure or settings.asks_who_calls or not open_to:
        return
    raise ClusterError(
        f"on {open_to[0]} others reach this cluster, and it asks nobody who he is: all of them could read, write and "
        "delete every topic. Set authenticationEnabled=true, or pass --insecure if a "
        "firewall or a network policy keeps strangers away"
    )


async def _open(
    env: Environment, directory: ClusterDirectory, identity: ClusterIdentity, options: StartOptions
) -> tuple["SqlMetadataStore", str]:
    """The metadata store, and its URL."""
    # Slow to import, and `status` and `stop` do without.
    from ..storage.metadata.sql import SqlMetadataStore, open_current
    from .new_address import open_at_new_address

    if identity.state == "new":
        return await SqlMetadataStore.open(env, identity.metadata_url, create=True), identity.metadata_url
    given = directory.given_url(options.metadata_url) if options.metadata_url is not None else identity.metadata_url
    if given == identity.metadata_url:
        return await open_current(env, given)
    return await open_at_new_address(env, identity, given, restored=options.metadata_restored)


async def _store_desired(
    store: MetadataStore,
    options: StartOptions,
    settings: Settings,
    machines: Sequence[Machine],
    registered: Mapping[str, str],
) -> tuple[DesiredState, list[str]]:
    """What runs from now on, stored. No coordinator runs that could change it meanwhile."""
    stored = await store.get(metadata_keys.DESIRED_STATE)
    before = DesiredState.unpack(stored.value) if stored is not None else None
    bookies = dict.fromkeys([*registered, *(bookie for machine in machines for bookie in _directories(machine))])
    desired, told = desired_at_start(before, list(bookies), options.brokers, options.bookies, settings)
    if desired != before:
        version = stored.version if stored is not None else None
        await store.put(metadata_keys.DESIRED_STATE, desired.pack(), version)
    return desired, told


def _directories(machine: Machine) -> list[str]:
    """The bookies that have data on a machine, or may have: the machine could not be looked at."""
    return [*machine.cookies, *machine.unread]


def _choose_ports(options: StartOptions, data_directory: str) -> Layout:
    """Ports of brokers, admin and coordinator. Raises ClusterError for one that is taken on this machine.

    Any free port means a fixed one from here on, so that a restarted process is found where its predecessor was.
    """
    probe_host = options.host
    free_host = "127.0.0.1" if is_wildcard(probe_host) else probe_host
    brokers = options.brokers or 1
    port = options.port or free_range(free_host, max(brokers, BROKER_PORTS_FREE))
    ports = [port_of_broker(port, number + 1) for number in range(brokers)]
    taken = range(port, port + 1 + max(brokers, BROKER_PORTS_FREE))
    spare = [one for one in free_ports(free_host, len(taken) + 2) if one not in taken]
    admin_port = options.admin_port or spare[0]
    for number, one in enumerate(ports, 1):
        check_free(probe_host, one, broker_id(number), "--port")
    check_free(probe_host, admin_port, "the admin HTTP", "--admin-port")
    if admin_port in ports:
        raise ClusterError(
            f"a broker and the admin HTTP were both given port {admin_port}: choose another --admin-port"
        )
    return Layout(options.host, port, admin_port, spare[1], data_directory)


def _check_tls_ports(settings: Settings, layout: Layout, members: Sequence[NodePlan]) -> None:
    """Raise ClusterError for a port for TLS that is taken on this machine, or that a process has without TLS."""
    brokers = [node for node in members if node.role == ROLE_BROKER and settings.broker_port_tls]
    named = [(settings.port_tls_of(node.node_id), node.node_id, BROKER_PORT, node.host) for node in brokers]
    if settings.admin_port_tls:
        named.append((settings.admin_port_tls, "the admin HTTP", ADMIN_PORT, layout.host))
    taken = {node.port: node.node_id for node in members if node.port}
    for port, purpose, setting, host in named:
        other = taken.setdefault(port, purpose)
        if other != purpose:
            raise ClusterError(f"{other} and {purpose} were both given port {port}: choose another {setting}")
        check_free(host, port, f"{purpose} with TLS", f"--set {setting}=PORT")


def check_standbys(store: "SqlMetadataStore", settings: Settings) -> None:
    """Raises ClusterError where a failover would lose changes, unless a setting allows that."""
    if store.failover_loses_changes and not settings.allow_asynchronous_metadata_standbys:
        raise ClusterError(
            "the metadata's URL names several hosts, but no standby is synchronous. A failover would lose changes: set "
            "synchronous_standby_names in PostgreSQL, or pass --set allowAsynchronousMetadataStandbys=true"
        )


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
