"""`magnetar.start` and `magnetar.connect`."""

import os
from collections.abc import Mapping, Sequence

from .directory import default_data_directory
from .handle import Cluster


def start(
    *,
    brokers: int | None = None,
    bookies: int | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    host: str = "127.0.0.1",
    port: int = 6650,
    admin_port: int = 8080,
    ensemble: str | None = None,
    settings: Mapping[str, object] | None = None,
    config: str | None = None,
    metadata: str | None = None,
    accept_lost_disk: Sequence[str] = (),
    metadata_restored: bool = False,
    insecure: bool = False,
    embedded: bool = False,
    detach: bool = False,
) -> Cluster:
    """Start a cluster and wait until it runs.

    What lies in `data_dir` comes back. An empty directory becomes a new cluster. It runs on the Ray of this process,
    else on the one at RAY_ADDRESS, else on a new one that ends with this process.

    Args:
        brokers: Number of brokers. By default as many as ran last; 2 in a new cluster.
        bookies: Number of bookies. By default as many as ran last; 3 in a new cluster. With fewer than that, those with
            the highest numbers drain.
        data_dir: Where everything lies, on every node. By default $MAGNETAR_DATA_DIR or ~/.local/share/magnetar.
        host: Address to bind to. 0.0.0.0 uses all nodes of Ray, anything else only this one.
        port: Port of broker-1; broker-2 listens on the next one, and so on. 6651, Pulsar's port for TLS, is left
            out. 0 takes any free ones.
        admin_port: Port of the admin HTTP. 0 takes any free one.
        ensemble: `ensemble/write quorum/ack quorum`, 3/3/2 by default.
        settings: Settings by the names that `magnetar settings` lists. The cluster remembers them: others stay as they
            were at the last start.
        config: A file of `name=value` lines.
        metadata: URL of a PostgreSQL database, in place of the SQLite file in `data_dir`. The directory keeps it. Pass
            another one when the address or the password of the same database has changed.
        accept_lost_disk: Bookies whose disks will not come back, such as `bookie-2`. They begin empty, and their data
            is copied from the others.
        metadata_restored: Say once after each restore of the metadata from a backup. All bookies are then asked for the
            end of each ledger that was open in it.
        insecure: Bind to an address that others reach although the cluster asks nobody who he is. A firewall, or a
            network policy, has to keep strangers away.
        embedded: Run all services in this process, without Ray.
        detach: Start a Ray that outlives this process, if there is none to join.

    Returns:
        The running cluster.

    Raises:
        ClusterError: If the cluster cannot be started; the message says what to do.
        SettingError: If a setting is unknown or impossible.
    """
    from .planning import read_settings
    from .preparing import StartOptions

    chosen = read_settings(ensemble, config, settings)
    lost = tuple(accept_lost_disk)
    options = StartOptions(
        chosen, brokers, bookies, host, port, admin_port, metadata, lost, metadata_restored, insecure
    )
    directory = data_dir if data_dir is not None else default_data_directory()
    if embedded:
        from .embedded import start_embedded

        return start_embedded(directory, options)
    from .ray_cluster import start_on_ray

    return start_on_ray(directory, options, detach=detach)


def connect(data_dir: str | os.PathLike[str] | None = None) -> Cluster:
    """Find the cluster that runs.

    It looks on the Ray that this process has joined, else on one that Magnetar started for `data_dir`, else on the one
    at RAY_ADDRESS, else on the one that `data_dir` was started on.

    Args:
        data_dir: Directory of the cluster. By default $MAGNETAR_DATA_DIR or ~/.local/share/magnetar.

    Returns:
        The running cluster.

    Raises:
        ClusterError: If there is none.
    """
    from .ray_cluster import find_on_ray

    return find_on_ray(data_dir if data_dir is not None else default_data_directory())
