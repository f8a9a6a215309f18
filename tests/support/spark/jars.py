"""Jars from Maven Central, for what is tried beside Magnetar: Kafka, Spark's own sources, a connector, a client.

`jars.lock` names them: a use, `group:artifact:version`, and the SHA-256 of the file. They are kept in build/jars.
"""

import hashlib
import urllib.request
from pathlib import Path

LOCK = Path(__file__).with_name("jars.lock")
HOME = Path(__file__).resolve().parents[3] / "build" / "jars"
REPOSITORY = "https://repo1.maven.org/maven2"
TIMEOUT_S = 60.0


def jars(use: str) -> list[Path]:
    """The jars of one use, fetched if they are not there yet.

    Raises:
        RuntimeError: If the repository gave another file than the lock names.
        OSError: If the repository cannot be reached.
    """
    return [_fetched(use, *line.split()[1:]) for line in LOCK.read_text().splitlines() if line.split()[0] == use]


def _fetched(use: str, name: str, sha256: str) -> Path:
    group, artifact, version = name.split(":")
    path = HOME / use / f"{artifact}-{version}.jar"
    if path.exists():
        return path
    url = f"{REPOSITORY}/{group.replace('.', '/')}/{artifact}/{version}/{path.name}"
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        content = answer.read()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise RuntimeError(f"{url} is not the file that {LOCK.name} names")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    partial.write_bytes(content)
    partial.rename(path)
    return path
