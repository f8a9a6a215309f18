"""Certificates for trying TLS out: a CA, and certificates that it vouches for.

The key of the CA makes certificates that every client trusts. So the CA is for tests, and for clusters whose operator
keeps that key away. An organization with a CA of its own uses that. All keys are elliptic (P-256), which every client
knows and which cost a broker least. Only the user can read them. What exists is never overwritten: a CA that is there
already makes further certificates.
"""

import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ..protocol.errors import ClusterError
from ..protocol.names import TLS_PORT
from ..runtime.files import make_private_directory, open_private
from ..runtime.settings.tls import ADMIN_PORT, BROKER_PORT, CERTIFICATE, KEY, TRUST

CA_NAME = "Magnetar test CA"
SETTINGS_NAME = "magnetar.conf"
ADMIN_PORT_DEFAULT = 8443
"""Pulsar's port of the admin for TLS."""
CA_DAYS = 3650
BACKDATED = timedelta(minutes=5)
"""Clocks of other machines may be behind."""


@dataclass(frozen=True)
class Pair:
    """The files of a certificate and of its key."""

    certificate: Path
    key: Path


@dataclass(frozen=True)
class CertificateFiles:
    """What was written; the CA's pair may have been there before."""

    ca: Pair
    server: Pair
    client: Pair
    settings: Path
    """A file of settings with which brokers and the admin use them."""
    ca_is_new: bool


def create(directory: Path, hosts: Sequence[str], client: str, days: int) -> CertificateFiles:
    """Write a CA, a certificate for brokers and admin under the names `hosts`, and one for a client named `client`.

    Raises ClusterError for files that exist, and for what is no host name.
    """
    ca, server, user = (
        Pair(directory / f"{name}.cert.pem", directory / f"{name}.key.pem") for name in ("ca", "server", "client")
    )
    settings = directory / SETTINGS_NAME
    written = [path for pair in (server, user) for path in (pair.certificate, pair.key)]
    there = [str(path) for path in (*written, settings) if path.exists()]
    if there:
        raise ClusterError(f"{', '.join(there)} exist already: remove them, or choose another directory")
    names = [_name(host) for host in dict.fromkeys(hosts)]
    make_private_directory(str(directory))
    is_new = not ca.certificate.exists()
    if is_new:
        key = ec.generate_private_key(ec.SECP256R1())
        _write(ca, _certificate(CA_NAME, key, None, CA_DAYS, _of_a_ca(key)), key)
    issuer = _read(ca)
    for pair, name, purpose, alternatives in [
        (server, hosts[0], [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH], names),
        (user, client, [ExtendedKeyUsageOID.CLIENT_AUTH], []),
    ]:
        key = ec.generate_private_key(ec.SECP256R1())
        extensions: list[tuple[x509.ExtensionType, bool]] = [
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (x509.ExtendedKeyUsage(purpose), False),
        ]
        if alternatives:
            extensions.append((x509.SubjectAlternativeName(alternatives), False))
        _write(pair, _certificate(name, key, issuer, days, extensions), key)
    values = {
        BROKER_PORT: TLS_PORT,
        ADMIN_PORT: ADMIN_PORT_DEFAULT,
        CERTIFICATE: server.certificate,
        KEY: server.key,
        TRUST: ca.certificate,
    }
    _write_new(settings, "".join(f"{name}={value}\n" for name, value in values.items()).encode())
    return CertificateFiles(ca, server, user, settings, is_new)


_Issuer = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: _Issuer | None,
    days: int,
    extensions: Sequence[tuple[x509.ExtensionType, bool]],
) -> x509.Certificate:
    """A certificate for a key; one without an issuer signs itself. Each extension says whether it is critical."""
    try:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    except ValueError as error:
        raise ClusterError(f"{name[:80]!r} cannot be the name of a certificate: {error}") from None
    parent = subject if issuer is None else issuer[0].subject
    signing_key = key if issuer is None else issuer[1]
    begins = datetime.now(UTC) - BACKDATED
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(parent)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(begins + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), critical=False)
    )
    for extension, critical in extensions:
        made = made.add_extension(extension, critical=critical)
    return made.sign(signing_key, hashes.SHA256())


def _of_a_ca(key: ec.EllipticCurvePrivateKey) -> list[tuple[x509.ExtensionType, bool]]:
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    return [(x509.BasicConstraints(ca=True, path_length=0), True), (usage, True)]


def _name(host: str) -> x509.GeneralName:
    """A host as certificates have it."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except (ValueError, TypeError) as error:
        raise ClusterError(f"--host: {host[:80]!r} is no host name: {error}") from None


def _write(pair: Pair, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    plain = serialization.NoEncryption()
    text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    _write_new(pair.key, text)
    _write_new(pair.certificate, certificate.public_bytes(serialization.Encoding.PEM))


def _write_new(path: Path, data: bytes) -> None:
    """Write a file that only the user reads. Raises ClusterError if it exists."""
    try:
        with os.fdopen(open_private(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC), "wb") as file:
            file.write(data)
    except FileExistsError:
        raise ClusterError(f"{path} exists already: remove it, or choose another directory") from None


def _read(pair: Pair) -> _Issuer:
    """The CA of a directory. Raises ClusterError for files that hold none."""
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
        key = serialization.load_pem_private_key(pair.key.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise ClusterError(
            f"the CA {pair.certificate} with the key {pair.key} cannot be read ({error}): choose another directory"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ClusterError(f"{pair.key} is not the key of the CA {pair.certificate}: choose another directory")
    return certificate, key
