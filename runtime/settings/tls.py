"""TLS on the ports for clients and on the admin's: which ports, which files, which versions.

The certificate, its key and the certificates that are trusted are files on each node. See `runtime.tls_contexts` for
when they are read. Only TLS 1.2 and 1.3 exist here.
"""

from dataclasses import dataclass

from ...protocol.errors import SettingError
from ...protocol.names import tls_port_of_broker
from ..tls_contexts import VERSIONS, ServerTls, openssl_ciphers
from .placeholders import number_of
from .text import setting

CERTIFICATE = "tlsCertificateFilePath"
KEY = "tlsKeyFilePath"
TRUST = "tlsTrustCertsFilePath"
INSECURE = "tlsAllowInsecureConnection"
REQUIRED = "tlsRequireTrustedClientCertOnConnect"
BROKER_PORT = "brokerServicePortTls"
BROKER_ONLY = "brokerServiceTlsOnly"
ADMIN_PORT = "webServicePortTls"
ADMIN_ONLY = "webServiceTlsOnly"
_PORT_MAX = 60_000
"""Brokers with higher numbers have ports above it."""


@dataclass(frozen=True)
class TlsSettings:
    """See the module."""

    broker_port_tls: int = setting(
        BROKER_PORT,
        0,
        "Port of broker-1 for TLS (pulsar+ssl://), beside its own; Pulsar's is 6651. The port of broker-n is 999 + n "
        "above it: 7652 for broker-2, 7653 for broker-3. 0 = none.",
        within=(0, _PORT_MAX),
        original="none; 0 means the same",
    )
    broker_tls_only: bool = setting(
        BROKER_ONLY,
        False,
        "Whether the brokers' own ports (--port) speak TLS, so that no client connects without it. In Pulsar an empty "
        "brokerServicePort says so.",
        origin="magnetar",
    )
    admin_port_tls: int = setting(
        ADMIN_PORT,
        0,
        "Port of the admin for TLS (https://), beside its own; Pulsar's is 8443. 0 = none.",
        within=(0, 65_535),
        original="none; 0 means the same",
    )
    admin_tls_only: bool = setting(
        ADMIN_ONLY,
        False,
        "Whether the admin's own port (--admin-port) speaks TLS.",
        origin="magnetar",
    )
    tls_certificate_path: str = setting(
        CERTIFICATE, "", "File with the certificate of brokers and the admin, and those between it and the CA, in PEM."
    )
    tls_key_path: str = setting(KEY, "", "File with the key of tlsCertificateFilePath, in PEM and without a password.")
    tls_trust_path: str = setting(
        TRUST,
        "",
        "File with the CAs whose certificates clients may show, in PEM. Without it clients are asked for none.",
    )
    tls_insecure: bool = setting(
        INSECURE,
        False,
        "With true brokers and the admin ask clients for no certificate, whatever tlsTrustCertsFilePath says. In "
        "Pulsar they take any.",
    )
    tls_client_required: bool = setting(
        REQUIRED,
        False,
        "Whether clients must show a certificate of tlsTrustCertsFilePath. If not, they may show one; a wrong one is "
        "refused.",
    )
    tls_protocols: str = setting(
        "tlsProtocols", "", "The versions of TLS, separated by commas: TLSv1.3, TLSv1.2. By default both."
    )
    tls_ciphers: str = setting(
        "tlsCiphers",
        "",
        "The cipher suites for TLS 1.2, separated by commas, as TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 or by OpenSSL's "
        "names. By default OpenSSL's secure ones. Those of TLS 1.3 are always allowed.",
    )
    tls_refresh_s: int = setting(
        "tlsCertRefreshCheckDurationSec",
        300,
        "The certificate, its key and the trusted ones are looked at so often. New connections get what has changed; 0 "
        "= every second.",
        within=(0, 86_400),
    )

    def check_tls(self, *, bound: bool, forwards: bool) -> None:
        """Raise SettingError for what no broker could use. `bound`: bindAddresses has an address with TLS; `forwards`:
        a listener forwards.
        """
        self._versions()
        if self.tls_ciphers:
            try:
                openssl_ciphers(self.tls_ciphers)
            except ValueError as error:
                raise SettingError(f"tlsCiphers {error}") from None
        if self.broker_tls_only and self.broker_port_tls:
            raise SettingError(f"with {BROKER_ONLY}=true the brokers' own ports speak TLS: take {BROKER_PORT} away")
        if self.admin_tls_only and self.admin_port_tls:
            raise SettingError(f"with {ADMIN_ONLY}=true the admin's own port speaks TLS: take {ADMIN_PORT} away")
        wanted = {
            BROKER_PORT: bool(self.broker_port_tls),
            BROKER_ONLY: self.broker_tls_only,
            ADMIN_PORT: bool(self.admin_port_tls),
            ADMIN_ONLY: self.admin_tls_only,
            "bindAddresses with pulsar+ssl://": bound,
        }
        for name in (name for name, is_wanted in wanted.items() if is_wanted):
            if not self.tls_certificate_path or not self.tls_key_path:
                raise SettingError(
                    f"{name} needs a certificate: set {CERTIFICATE} and {KEY}. `magnetar certificates create` makes "
                    "some for tests"
                )
        if self.tls_client_required and self.tls_insecure:
            raise SettingError(f"{REQUIRED} asks clients for a certificate, and {INSECURE} takes any: set one of them")
        if self.tls_client_required and not self.tls_trust_path:
            raise SettingError(f"{REQUIRED} needs {TRUST}: the CAs of the clients' certificates")
        if forwards and self.broker_tls_only and self.tls_client_required:
            raise SettingError(
                f"a listener forwards, but with {BROKER_ONLY} and {REQUIRED} brokers take no forwarded connection, for "
                f"it has no certificate: use {BROKER_PORT} in place of {BROKER_ONLY}"
            )

    def server_tls(self) -> ServerTls:
        """What brokers and the admin make their contexts from."""
        return ServerTls(
            certificate=self.tls_certificate_path,
            key=self.tls_key_path,
            trust="" if self.tls_insecure else self.tls_trust_path,
            client_required=self.tls_client_required,
            versions=self._versions(),
            ciphers=self.tls_ciphers,
            refresh_s=float(self.tls_refresh_s or 1),
        )

    def port_tls_of(self, broker: str) -> int:
        """The port for TLS of a broker, beside its own; 0 without. Raises SettingError for an id without a number."""
        first = self.broker_port_tls
        return tls_port_of_broker(first, number_of(broker)) if first else 0

    def _versions(self) -> tuple[str, ...]:
        found = tuple(part.strip() for part in self.tls_protocols.split(",") if part.strip())
        for one in found:
            if one not in VERSIONS:
                raise SettingError(f"tlsProtocols has {one[:40]!r}: choose from {', '.join(VERSIONS)}, which are safe")
        return found or tuple(VERSIONS)
