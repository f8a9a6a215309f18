"""`magnetar.start` and `magnetar.connect`."""

import os
from collections.abc import Mapping, Sequence

from .directory import default_data_directory
from .handle import Cluster


def start(
    *,
    brokers: int = 2,
    bookies: int = 3,
    data_dir: str | os.PathLike[str] | None = None,
    host: str = "127.0.0.1",
    port: int = 6650,
    admin_port: int = 8080,
    ensemble: str | None = None,
    settings: Mapping[str, object] | None = None,
    config: str | None = None,
    metadata: str | None = None,
    accept_lost_disk: Sequence[str] = (),
    embedded: bool = False,
    detach: bool = False,
) -> Cluster:
    """Start a cluster and wait until it runs. What lies in `data_dir` comes back; an empty one becomes a new cluster.

    brokers, bookies: how many to run; bookies whose data is there all run.
    data_dir: where everything lies, on every node; by default $MAGNETAR_DATA_DIR or ~/.local/share/magnetar.
    host: the address to bind to; a wildcard (0.0.0.0) uses all nodes of Ray, anything else only this one.
    port, admin_port: of the first broker (the i-th of a node listens on port + i) and of the admin HTTP; 0 = any free.
    ensemble: `ensemble/write quorum/ack quorum`, 3/3/2 by default.
    settings: by the names of `magnetar settings`; config: a file of `name=value` lines.
    metadata: the URL of a PostgreSQL database instead of the SQLite file in `data_dir`.
    accept_lost_disk: bookies whose disks will not come back, such as `bookie-2`: they begin anew, empty, and their data
        is copied from the others.
    embedded: all services in this process, without Ray.
    detach: start a Ray that outlives this process, where none is joined.

    Joins the Ray that this process is connected to, else the one at RAY_ADDRESS, else starts one that ends with this
    process. Raises ClusterError and SettingError with what to do about it.
    """
    from .planning import load_settings
    from .preparing import StartOptions

    chosen = load_settings(ensemble, config, settings)
    options = StartOptions(chosen, brokers, bookies, host, port, admin_port, metadata, tuple(accept_lost_disk))
    directory = data_dir if data_dir is not None else default_data_directory()
    if embedded:
        from .embedded import start_embedded

        return start_embedded(directory, options)
    from .ray_cluster import start_on_ray

    return start_on_ray(directory, options, detach=detach)


def connect(data_dir: str | os.PathLike[str] | None = None) -> Cluster:
    """The cluster that runs: on the Ray that this process has joined, else on the one that `data_dir` was started on,
    else on the one at RAY_ADDRESS. Raises ClusterError when there is none.
    """
    from .ray_cluster import find_on_ray

    return find_on_ray(data_dir if data_dir is not None else default_data_directory())
