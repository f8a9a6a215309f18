"""Target: what an operator writes, or what became of it: settings files, variables, and the files of a cluster's
directory.
"""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from magnetar.cluster.directory import IDENTITY_FILE, RUN_FILE, ClusterDirectory
from magnetar.protocol.errors import ClusterError, SettingError
from magnetar.runtime.settings.declarations import ENVIRONMENT_PREFIX, Settings

from .mutation import make_odd, mutate
from .target import Target, Wrong, quietly

_NAMES = list(Settings().to_dict())
_TEXTS = """0 1 2 3 -1 007 1_000 1e3 nan inf -inf 0x10 true false TRUE yes partitioned non-partitioned
18446744073709551616 ٣ 1. .5 1e999 ' ' # =""".split()
_IDENTITY = {
    "format": 1,
    "cluster_id": "0123456789abcdef",
    "secret": "00" * 32,
    "created_ms": 1_700_000_000_000,
    "metadata_url": "sqlite:////d/coordinator/metadata.db",
    "state": "ready",
}
_directory = tempfile.TemporaryDirectory(prefix="magnetar-fuzz-")


def _write(name: str, data: bytes) -> Path:
    path = Path(_directory.name) / name
    path.write_bytes(data)
    return path


def take_settings(data: bytes) -> None:
    """Settings that come out can be written down, and mean the same then; wherever they were read from."""
    path = _write("settings", data)
    settings: Any = quietly(Settings.load, str(path), {}, allowed=(SettingError,))
    if settings is not None and Settings.from_dict(settings.to_dict()) != settings:
        raise Wrong("settings are not what they were")
    pairs: dict[str, str] = {}
    for line in data.decode("utf-8", "replace").splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and not line.strip().startswith("#"):
            pairs[name.strip()] = value
    given: Any = quietly(Settings.load, None, {}, pairs, allowed=(SettingError,))
    known = {ENVIRONMENT_PREFIX + name: value for name, value in pairs.items()}
    quietly(Settings.load, None, known, allowed=(SettingError,))
    if settings is not None and given != settings:
        raise Wrong("the same settings mean something else on the command line")


def make_settings(random: Random) -> bytes:
    lines = []
    defaults = Settings().to_dict()
    for _ in range(random.randrange(6)):
        name = random.choice(_NAMES)
        value = str(defaults[name]) if random.random() < 0.5 else random.choice(_TEXTS)
        name = name[:-1] if random.random() < 0.05 else name
        lines.append(random.choice(["{}={}", "{} = {}", "{}={} ", "# {}={}", "{}"]).format(name, value))
    data = random.choice(["\n", "\n", "\r\n"]).join(lines).encode()
    return mutate(data, random) if random.random() < 0.3 else data


def take_identity(data: bytes) -> None:
    """Who a cluster is, or ClusterError; an identity that is used can be stored."""
    path = _write(IDENTITY_FILE, data)
    identity: Any = quietly(ClusterDirectory(path.parent).load_identity, allowed=(ClusterError,))
    if identity is None:
        return
    kinds = [type(value) for value in vars(identity).values()]
    if kinds != [str, bytes, int, str, str] or identity.state not in ("new", "ready") or not identity.cluster_id:
        raise Wrong(f"a cluster is {identity}")
    directory = ClusterDirectory(path.parent)
    directory.save_identity(identity)
    if directory.load_identity() != identity:
        raise Wrong("an identity is not what it was")


def make_identity(random: Random) -> bytes:
    record = dict(_IDENTITY)
    if random.random() < 0.7:
        make_odd(record, random)
    data = json.dumps(record, default=lambda value: value.hex()).encode()
    return mutate(data, random) if random.random() < 0.4 else data


def take_run(data: bytes) -> None:
    path = _write(RUN_FILE, data)
    run: Any = quietly(ClusterDirectory(path.parent).load_run, allowed=(ClusterError,))
    if run is not None and not isinstance(run, dict):
        raise Wrong(f"{run!r} is running")


_KINDS: list[tuple[Callable[[Random], bytes], Callable[[bytes], None]]] = [
    (make_settings, take_settings),
    (make_identity, take_identity),
    (make_identity, take_run),
]


def make(random: Random) -> bytes:
    which = random.choice((0, 0, 1, 2))
    return bytes([which]) + _KINDS[which][0](random)


def take(data: bytes) -> None:
    if data:
        _KINDS[data[0] % len(_KINDS)][1](data[1:])


TARGETS = [Target("settings", make, take)]
