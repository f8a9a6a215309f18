"""`magnetar certificates`: what is needed to try TLS out."""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..protocol.errors import ClusterError
from .terminal.failures import clear_errors

console = Console()
certificates_app = typer.Typer(
    help="Make certificates for brokers, the admin and clients.", no_args_is_help=True, rich_markup_mode=None
)

DAYS_MAX = 3650


@certificates_app.callback()
def group() -> None:
    """Make certificates for brokers, the admin and clients."""


@certificates_app.command()
def create(
    directory: Annotated[Path, typer.Argument(help="Where the files go. A CA that is there makes further ones.")],
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="A name or IP address under which clients reach brokers or the admin. May be repeated. By default "
            "localhost, 127.0.0.1 and ::1."
        ),
    ] = None,
    client: Annotated[str, typer.Option(metavar="NAME", help="The name of the client, which is its role.")] = "client",
    days: Annotated[int, typer.Option(help="How long the certificates last; the CA lasts ten years.")] = 365,
) -> None:
    """Write a CA, a certificate for brokers and the admin, and one for a client."""
    from .certificates import create as make  # slow to import

    with clear_errors():
        if not 0 < days <= DAYS_MAX:
            raise ClusterError(f"--days: {days} is not between 1 and {DAYS_MAX}")
        directory = directory.expanduser().absolute()
        found = make(directory, host or ["localhost", "127.0.0.1", "::1"], client, days)
        first = (host or ["localhost"])[0]
        authority = f"[{first}]" if ":" in first else first
        ca, server, user = found.ca, found.server, found.client
        print(
            f"The {'new ' if found.ca_is_new else ''}CA is {ca.certificate}. Keep its key secret: {ca.key}\n"
            f"Brokers and the admin show {server.certificate}, a client may show {user.certificate}.\n"
            f"{found.settings} has the settings for them.\n\n"
            "Start a cluster that speaks TLS, too:\n\n"
            f"  magnetar start --detach --config {shlex.quote(str(found.settings))}\n\n"
            "Add --set tlsRequireTrustedClientCertOnConnect=true, and clients must show a certificate.\n\n"
            "Tell commands of the certificates, in this shell:\n\n"
            f"  export MAGNETAR_TLS_TRUST_CERTS_FILE_PATH={shlex.quote(str(ca.certificate))}\n"
            f"  export MAGNETAR_TLS_CERTIFICATE_FILE_PATH={shlex.quote(str(user.certificate))}\n"
            f"  export MAGNETAR_TLS_PRIVATE_KEY_FILE_PATH={shlex.quote(str(user.key))}\n\n"
            "Publish with TLS, and ask the admin:\n\n"
            f"  magnetar produce my-topic -m hello --url pulsar+ssl://{authority}:6651\n"
            f"  magnetar admin topics list public/default --admin-url https://{authority}:8443"
        )
