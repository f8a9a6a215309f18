"""Pairs of RSA keys in files, for tests of encryption."""

from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa


def write_key_files(directory: Path, prefix: str = "") -> tuple[str, str]:
    """Make a pair of keys. Returns the paths of the public and of the private one."""
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private_path, public_path = directory / f"{prefix}private.pem", directory / f"{prefix}public.pem"
    private_path.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    public_path.write_bytes(
        private.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return str(public_path), str(private_path)
