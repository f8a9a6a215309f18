"""The command `magnetar`: start, status, scale, drain, restart, stop, accept-lost-ledgers, settings, and those of the
sub-rooms.

An operator's mistake prints one line and exits with status 1, never with a traceback.
"""

import json
import logging
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout, suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console

from ..protocol.errors import ClusterError
from ..protocol.names import VERSION
from ..runtime.logs import log_to_stderr
from ..runtime.tls_contexts import CERTIFICATE_VARIABLE, KEY_VARIABLE, TRUST_VARIABLE, ClientTls
from .admin.tree import admin
from .certificates_command import certificates_app
from .data_directory_option import DataDirectory
from .directory import default_data_directory
from .load.consume import consume as consume_load
from .load.produce import produce as produce_load
from .metadata_command import metadata_app
from .settings_command import settings as list_settings
from .terminal.addresses import Finder, RunningCluster
from .terminal.consume import consume
from .terminal.credentials import GivenCredential
from .terminal.failures import clear_errors
from .terminal.produce import produce
from .tokens_command import tokens_app

if TYPE_CHECKING:
    from ..protocol.cluster_status import DesiredView
    from .handle import Cluster
    from .ray_cluster import RayCluster

app = typer.Typer(
    name="magnetar",
    help="Apache Pulsar's messaging system on Ray.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},  # sub-commands inherit it
    rich_markup_mode=None,  # the tables of rich cut names of options at 80 columns
)
console = Console()
app.command()(produce)
app.command()(consume)
app.command("settings")(list_settings)
perf = typer.Typer(
    help="Measure rates and latencies, as `pulsar-perf` does.", no_args_is_help=True, rich_markup_mode=None
)
perf.command("produce")(produce_load)
perf.command("consume")(consume_load)
app.add_typer(perf, name="perf")
app.add_typer(admin, name="admin")
app.add_typer(metadata_app, name="metadata")
app.add_typer(tokens_app, name="tokens")
app.add_typer(certificates_app, name="certificates")


INSECURE = (
    "This cluster asks nobody who he is. Everybody who reaches {host} can read, write and delete every topic: keep "
    "strangers away, or set authenticationEnabled=true."
)
AcceptLostDisk = Annotated[
    list[str] | None,
    typer.Option(
        metavar="BOOKIE",
        help="A bookie, such as bookie-2, whose disk is lost. It starts again with an empty disk, and the auditor "
        "copies its entries from other bookies. Repeat the option for more bookies.",
    ),
]
MetadataRestored = Annotated[
    bool,
    typer.Option(
        "--metadata-restored",
        help="Pass it once, on the first start after a restore of the metadata from a backup. Recovery then asks "
        "all bookies for the end of each ledger that was open in the backup.",
    ),
]
Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Bind to an address that others reach although the cluster asks nobody who he is."),
]
WaitOption = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Wait until those that drain have ended, and new ones run.")
]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(VERSION)
        raise typer.Exit


TokenFile = Annotated[
    str | None,
    typer.Option(
        "--token-file",
        envvar="MAGNETAR_TOKEN_FILE",
        metavar="FILE",
        help="A file with a token, for clusters that ask who calls. It is read again at each connection.",
    ),
]
AuthPlugin = Annotated[
    str | None,
    typer.Option(
        "--auth-plugin",
        envvar="MAGNETAR_AUTH_PLUGIN",
        metavar="NAME",
        help="How to prove who calls: token, basic, tls, or the class of Pulsar's client.",
    ),
]
AuthParams = Annotated[
    str | None,
    typer.Option(
        "--auth-params",
        envvar="MAGNETAR_AUTH_PARAMS",
        metavar="TEXT",
        help="Its parameters, as Pulsar's tools take them. Others see a command line: better pass --token-file.",
    ),
]


@app.callback()
def main_command(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version, and exit.")
    ] = False,
    trust: Annotated[
        str | None,
        typer.Option(
            "--tls-trust-certs-file-path",
            envvar=TRUST_VARIABLE,
            metavar="FILE",
            help="With pulsar+ssl:// and https://: the CAs of the cluster's certificates. By default the system's.",
        ),
    ] = None,
    certificate: Annotated[
        str | None,
        typer.Option(
            "--tls-certificate-file-path",
            envvar=CERTIFICATE_VARIABLE,
            metavar="FILE",
            help="The certificate to show, if the cluster asks for one.",
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--tls-private-key-file-path",
            envvar=KEY_VARIABLE,
            metavar="FILE",
            help="The key of that certificate.",
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--tls-allow-insecure-connection", help="Accept any certificate. Only for tests.")
    ] = False,
    host_names: Annotated[
        bool,
        typer.Option(
            "--tls-validate-hostname/--no-tls-validate-hostname",
            help="Whether the certificate must be for the host in the URL.",
        ),
    ] = True,
    token_file: TokenFile = None,
    auth_plugin: AuthPlugin = None,
    auth_params: AuthParams = None,
) -> None:
    """Apache Pulsar's messaging system on Ray."""
    if (certificate is None) != (key is None):
        raise typer.BadParameter("--tls-certificate-file-path and --tls-private-key-file-path belong together")
    if token_file and auth_params:
        raise typer.BadParameter("pass --token-file or --auth-params, not both")
    tls = ClientTls(trust or "", certificate or "", key or "", insecure, host_names)
    credential = GivenCredential(token_file or "", auth_plugin or "", auth_params or "")
    context.obj = Finder(cache(_find), _unkept, tls, credential)


def _unkept(admin_url: str, topic: str, tls: ClientTls, headers: Mapping[str, str]) -> str:
    from .admin.keeping import unkept

    return unkept(admin_url, topic, tls, headers)


def _find() -> RunningCluster:
    """The running cluster of this user's data directory. Loads Ray."""
    from .ray_cluster import find_on_ray

    return find_on_ray(default_data_directory())


@app.command()
def start(
    brokers: Annotated[
        int | None, typer.Option(help="Brokers to run. By default as many as ran last; 2 in a new cluster.")
    ] = None,
    bookies: Annotated[
        int | None,
        typer.Option(help="Bookies to run. By default as many as ran last; 3 in a new cluster."),
    ] = None,
    data_dir: DataDirectory = None,
    host: Annotated[str, typer.Option(help="Address to bind to. 0.0.0.0 uses all nodes of Ray.")] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(help="Port of the first broker; each further one takes the next, but not 6651. 0 = any free."),
    ] = 6650,
    admin_port: Annotated[int, typer.Option(help="Port of the admin HTTP. 0 = any free port.")] = 8080,
    ensemble: Annotated[
        str | None, typer.Option(metavar="E/W/A", help="Ensemble size, write quorum, ack quorum. By default 3/3/2.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="One setting; repeat the option for more. `magnetar settings` lists all.",
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A settings file: one NAME=VALUE per line.")] = None,
    metadata: Annotated[
        str | None,
        typer.Option(metavar="URL", help="PostgreSQL that keeps the metadata, instead of SQLite. Again if it changed."),
    ] = None,
    accept_lost_disk: AcceptLostDisk = None,
    metadata_restored: MetadataRestored = False,
    insecure: Insecure = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when the cluster runs, and leave it running.")
    ] = False,
) -> None:
    """Start a cluster on the Ray at RAY_ADDRESS, or on a Ray that it starts. Data in the data directory is kept."""
    from .ray_cluster import start_on_ray
    from .status_table import print_status

    log_to_stderr(logging.WARNING, "magnetar: %(message)s")
    with clear_errors():
        from .planning import parse_settings, read_settings
        from .preparing import StartOptions

        chosen = read_settings(ensemble, str(config) if config else None, parse_settings(settings or []))
        lost = tuple(accept_lost_disk or ())
        options = StartOptions(
            chosen, brokers, bookies, host, port, admin_port, metadata, lost, metadata_restored, insecure
        )
        with console.status("starting the cluster …"):
            cluster = start_on_ray(data_dir or default_data_directory(), options, detach=detach)
        print_status(console, cluster.status())
        if insecure and chosen.get("authenticationEnabled") is not True:
            console.print(INSECURE.format(host=host), style="bold red", highlight=False, soft_wrap=True)
        if detach:
            console.print(cluster.how_to_join(), highlight=False, soft_wrap=True)
            return
        console.print("Ctrl-C stops the cluster.")
        _stay(cluster)


@app.command()
def status(
    data_dir: DataDirectory = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show the running cluster: actors, addresses, epochs, topics, disks."""
    from .ray_cluster import find_on_ray
    from .status_table import print_status

    printed = sys.stdout
    # Ray prints news of its nodes at any time, and they are no JSON.
    with clear_errors(), redirect_stdout(sys.stderr if as_json else printed):
        found = find_on_ray(data_dir or default_data_directory()).status()
        if as_json:
            print(json.dumps(found, indent=2, sort_keys=True, default=str), file=printed)
        else:
            print_status(console, found)


@app.command()
def scale(
    brokers: Annotated[int | None, typer.Option(help="Brokers to run.")] = None,
    bookies: Annotated[int | None, typer.Option(help="Bookies to run.")] = None,
    wait: WaitOption = True,
    data_dir: DataDirectory = None,
) -> None:
    """Change how many brokers and bookies run. With fewer, those with the highest numbers drain, then end."""
    from .draining import change_members

    def change(cluster: "Cluster") -> "DesiredView":
        if brokers is None and bookies is None:
            raise ClusterError("nothing was asked for: pass --brokers, --bookies, or both")
        return cluster.scale(brokers=brokers, bookies=bookies)

    change_members(console, data_dir or default_data_directory(), change, wait=wait)


@app.command()
def drain(
    member: Annotated[str, typer.Argument(help="A broker or bookie, such as broker-3.")],
    wait: WaitOption = True,
    data_dir: DataDirectory = None,
) -> None:
    """Move the topics of a broker, or the ledgers of a bookie, to others. Then it ends."""
    from .draining import change_members

    change_members(console, data_dir or default_data_directory(), lambda cluster: cluster.drain(member), wait=wait)


@app.command()
def undrain(
    member: Annotated[str, typer.Argument(help="A broker or bookie that drains, such as broker-3.")],
    data_dir: DataDirectory = None,
) -> None:
    """Have a broker or bookie that drains stay after all."""
    from .draining import change_members

    change_members(console, data_dir or default_data_directory(), lambda cluster: cluster.undrain(member), wait=False)


@app.command()
def restart(
    processes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PROCESS]...", help="Such as bookie-2 or coordinator. By default all."),
    ] = None,
    data_dir: DataDirectory = None,
) -> None:
    """Restart processes one after the other while clients go on: bookies, brokers, the admin, then the coordinator."""
    from .draining import restart_processes

    restart_processes(console, data_dir or default_data_directory(), processes or [])


@app.command()
def leave(
    wait: Annotated[float, typer.Option(help="Seconds to wait until brokers have moved.")] = 45.0,
    data_dir: DataDirectory = None,
) -> None:
    """Empty the Ray node that this command runs on, because the node is about to end. Bookies stay until it does."""
    from .draining import leave_node
    from .ray_cluster import find_on_ray

    with clear_errors():
        left = leave_node(find_on_ray(data_dir or default_data_directory()), wait)
        if left:
            raise ClusterError(f"{', '.join(left)} still run here after {wait:g} s: the node can end all the same")
        console.print("this node has no brokers any longer, and its bookies get no new ledgers", highlight=False)


@app.command()
def stop(data_dir: DataDirectory = None) -> None:
    """Stop the running cluster. Ray stops too if `start` started it; any other Ray keeps running."""
    from .ray_cluster import stop_on_ray

    with clear_errors():
        with console.status("stopping the cluster …") as spinner:
            done = stop_on_ray(data_dir or default_data_directory(), spinner.update)
        console.print(done, highlight=False, soft_wrap=True)


@app.command()
def accept_lost_ledgers(data_dir: DataDirectory = None) -> None:
    """Give up the ledgers that restored metadata does not know. Bookies then delete them. This cannot be undone."""
    from .ray_cluster import find_on_ray

    with clear_errors():
        ranges = find_on_ray(data_dir or default_data_directory()).accept_lost_ledgers()
        ids = ", ".join(f"{first} to {end - 1}" for first, end in ranges) or "none"
        console.print(f"given up: ledgers with ids {ids}", highlight=False, soft_wrap=True)


@app.command()
def version() -> None:
    """Print the version."""
    print(VERSION)


def _stay(cluster: "RayCluster") -> None:
    """Wait for Ctrl-C, SIGTERM, or for another process to stop the cluster; then stop it cleanly."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        cluster.wait_stopped()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave half a cluster behind
        console.print("stopping the cluster …")
    cluster.stop()


def main() -> NoReturn:
    """The entry point."""
    try:
        app()
    except KeyboardInterrupt:
        _exit(130)
    except SystemExit as ended:
        _exit(ended.code)
    _exit(0)


def _exit(code: str | int | None) -> NoReturn:
    """End the process. A process that used Ray ends at once: Ray's own exit handler waits over a second for nothing."""
    ray = sys.modules.get("ray")
    if ray is None or not isinstance(code, int | None):
        sys.exit(code)
    ray.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the reader of the pipe is gone
            stream.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    main()
