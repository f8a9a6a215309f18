"""Certificates of a test CA, also expired ones, ones for other hosts, and ones of no CA that anybody trusts."""

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOSTS = ("127.0.0.1", "127.0.0.2", "localhost")


@dataclass(frozen=True)
class PemPair:
    """A certificate and its key as files."""

    certificate: str
    key: str

    @property
    def serial(self) -> int:
        return x509.load_pem_x509_certificate(Path(self.certificate).read_bytes()).serial_number

    def replace_by(self, other: "PemPair") -> None:
        """Write another pair over this one, the key first."""
        for ours, theirs in ((self.key, other.key), (self.certificate, other.certificate)):
            write(ours, read(theirs))


def read(path: str) -> bytes:
    """What a file holds. A name of its own, because tests on a loop may wait for a file for once."""
    return Path(path).read_bytes()


def write(path: str, data: bytes) -> None:
    """Write a file over."""
    Path(path).write_bytes(data)


class TestAuthority:
    """A CA in a directory."""

    __test__ = False

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._builder(self._name, self._key, 10).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.path = str(directory / f"{name}.pem")
        Path(self.path).write_bytes(_pem(made.sign(self._key, hashes.SHA256())))

    def issue(self, name: str, hosts: tuple[str, ...] = HOSTS, *, days: int = 10) -> PemPair:
        """A pair of files; with negative `days` the certificate expired so long ago."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = [x509.DNSName(host) if host[0].isalpha() else x509.IPAddress(_ip(host)) for host in hosts]
        made = self._builder(subject, key, days)
        if names:
            made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        pair = PemPair(str(self._directory / f"{name}.cert.pem"), str(self._directory / f"{name}.key.pem"))
        Path(pair.certificate).write_bytes(_pem(made.sign(self._key, hashes.SHA256())))
        Path(pair.key).write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return pair

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=30))
            .not_valid_after(now + timedelta(days=days))
        )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(host)
