"""TLS certificates as credentials: the role is the common name of the client's certificate (Pulsar's method `tls`)."""

from collections.abc import Iterable
from typing import cast

from ...protocol.errors import AuthenticationError
from ...runtime.environment import Environment
from ...runtime.settings.declarations import Settings
from .credentials import Credential, Peer


class CertificateProvider:
    """See the module. TLS has verified the certificate before anything of the client is read."""

    method = "tls"

    def __init__(self, env: Environment, settings: Settings) -> None:
        pass

    async def start(self) -> None:
        """Nothing has to be read."""

    async def authenticate(self, data: bytes, peer: Peer) -> Credential:
        """Raises AuthenticationError for a connection without a verified certificate, or one without a name."""
        if not peer.certificate:
            raise AuthenticationError(
                "the client showed no certificate: connect with pulsar+ssl:// and give one that this cluster trusts"
            )
        subject = cast("Iterable[Iterable[tuple[str, str]]]", peer.certificate.get("subject", ()))
        names = [value for part in subject for name, value in part if name == "commonName"]
        if len(names) != 1 or not names[0]:
            raise AuthenticationError("the client's certificate has no common name, which would be its role")
        return Credential(names[0])
