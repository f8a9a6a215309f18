"""A cluster's data directory: who the cluster is, and who works on it now.

    DIR/cluster.json                 identity: cluster id, secret, whether the metadata store was created (mode 0600)
    DIR/run.json                     what `start` started: Ray's address and processes, addresses to connect to (0600)
    DIR/ray-auth-token               the token of a Ray that `start` starts (0600)
    DIR/lock                         held while `start` or `stop` are at work; an embedded cluster holds it for life
    DIR/coordinator/metadata.db      the metadata store, unless it is PostgreSQL
    DIR/bookie-<n>/                  one bookie's data, with its cookie

The identity is created once, on a wholly fresh directory. A directory that holds data but no identity, or an identity
whose metadata store is gone, is refused. Starting with an empty store would lose every topic, and bookies might delete
all their ledgers.
"""

import dataclasses
import json
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, cast

from ..actors.processes.plan import IDENTITY_FILE
from ..protocol.errors import ClusterError, DirectoryLocked
from ..protocol.plain_values import is_text_map
from ..runtime.data_directory import RUN_FILE
from ..runtime.data_directory import default_data_directory as default_data_directory
from ..runtime.files import FileLock, RealFiles, make_private_directory

LOCK_FILE = "lock"
METADATA_FILE = "coordinator/metadata.db"
SQLITE = "sqlite"
"""In place of a URL: the SQLite file of the data directory."""
FORMAT = 1


@dataclass(frozen=True)
class ClusterIdentity:
    """Who a cluster is. `state` is `new` until its metadata store holds the cluster's record, then `ready`."""

    cluster_id: str
    secret: bytes = field(repr=False)
    created_ms: int
    metadata_url: str = field(repr=False)  # may hold a password
    state: Literal["new", "ready"] = "new"


def _is_whole(identity: ClusterIdentity) -> bool:
    """An unknown `state` would pass for one that needs no metadata store, an empty secret would let any process in."""
    return (
        type(identity.cluster_id) is str
        and bool(identity.cluster_id)
        and len(identity.secret) > 0
        and type(identity.created_ms) is int
        and type(identity.metadata_url) is str
        and identity.state in ("new", "ready")
    )


class SessionRecord(TypedDict):
    """The Ray under a cluster, and (process id, start time) of what carries it."""

    kind: Literal["joined", "local", "detached"]
    address: str
    temporary_directory: str
    processes: list[list[int]]
    token_file: NotRequired[str]


class RunRecord(TypedDict):
    """What the last `start` started."""

    cluster_id: str
    ray: SessionRecord


class ClusterDirectory:
    """Reads and writes what lies directly in a data directory. Everything here blocks, briefly."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser().absolute()
        self._files = RealFiles()
        self._lock: FileLock | None = None

    @property
    def sqlite_url(self) -> str:
        """The URL of the metadata store inside this directory."""
        from ..storage.metadata.sql import sqlite_url  # heavy, and only needed where the store is opened

        return sqlite_url(str(self.path / METADATA_FILE))

    def given_url(self, given: str) -> str:
        """The URL of a metadata store that an operator gave, or the one that `SQLITE` stands for.

        Raises SettingError for what is no URL, and ClusterError for a SQLite file outside of this directory.
        """
        from ..runtime.database_url import parse_url  # heavy

        url = self.sqlite_url if given == SQLITE else given
        if parse_url(url).get_backend_name() == "sqlite" and url != self.sqlite_url:
            raise ClusterError(f"SQLite lies in the data directory: write `{SQLITE}` in place of the URL")
        return url

    def lock(self) -> None:
        """Take the directory for this process. Raises ClusterError when another process works on it."""
        self.check_is_directory()
        try:
            make_private_directory(str(self.path))
            self._lock = self._files.lock(str(self.path / LOCK_FILE))
        except DirectoryLocked as error:
            raise ClusterError(
                f"{self.path} is in use by another Magnetar process: stop that process, or choose another --data-dir"
            ) from error
        except OSError as error:
            raise ClusterError(
                f"cannot write to the data directory {self.path} ({error.strerror}): make it this user's, or choose "
                "another --data-dir"
            ) from error

    def check_is_directory(self) -> None:
        """Raise ClusterError if a file is in its place."""
        for path in (self.path, *self.path.parents):
            if path.exists() and not path.is_dir():
                raise ClusterError(f"--data-dir: {path} is no directory: choose another data directory")

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # -- identity ----------------------------------------------------------------------------------------------

    def load_identity(self) -> ClusterIdentity | None:
        """The cluster's identity, None if the directory has none. Raises ClusterError when it cannot be read."""
        record = self._read(IDENTITY_FILE)
        if record is None:
            return None
        if record.get("format") != FORMAT:
            raise ClusterError(
                f"{self.path / IDENTITY_FILE} has format {record.get('format')}, but this version of Magnetar reads "
                f"format {FORMAT}: use the version that wrote it"
            )
        try:
            identity = ClusterIdentity(
                cluster_id=record["cluster_id"],
                secret=bytes.fromhex(record["secret"]),
                created_ms=record["created_ms"],
                metadata_url=record["metadata_url"],
                state=record["state"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ClusterError(
                f"{self.path / IDENTITY_FILE} is damaged ({error!r}): restore it from a backup"
            ) from error
        if not _is_whole(identity):
            raise ClusterError(
                f"{self.path / IDENTITY_FILE} is damaged (a value is missing or impossible): restore it from a backup"
            )
        return identity

    def establish_identity(self, metadata_url: str | None, cookies_elsewhere: list[str]) -> ClusterIdentity:
        """The identity of this directory's cluster; a wholly fresh directory gets a new one.

        `metadata_url` is what the operator gave. As long as no store of this cluster was completed, another one takes
        the place of the stored one. Later it does not: `new_address` decides.

        `cookies_elsewhere` names the bookie cookies found on other nodes. Raises ClusterError if there is data without
        an identity, or an identity without its metadata store, and SettingError if the URL is none.
        """
        if metadata_url is not None:
            metadata_url = self.given_url(metadata_url)  # before anything is written
        identity = self.load_identity()
        cookies = [str(found) for found in sorted(self.path.glob("bookie-*/cookie"))] + cookies_elsewhere
        store = self.path / METADATA_FILE
        if identity is None:
            leftovers = [*cookies, *([str(store)] if store.exists() else [])]
            if leftovers:
                raise ClusterError(
                    f"{self.path} has no {IDENTITY_FILE}, but it holds data of a cluster: {', '.join(leftovers)}. "
                    "Restore that file from a backup, or choose an empty --data-dir. If `magnetar metadata restore` "
                    "was interrupted here, repeat it"
                )
            return self._new_identity(metadata_url or self.sqlite_url)
        if identity.metadata_url.startswith("sqlite:"):
            # The directory may have been moved as a whole; its store moves along.
            identity = dataclasses.replace(identity, metadata_url=self.sqlite_url)
            if identity.state == "ready" and metadata_url in (None, self.sqlite_url) and not store.exists():
                raise ClusterError(
                    f"the metadata store {store} of cluster {identity.cluster_id} is missing: restore it from a "
                    "backup. An empty store would lose every topic"
                )
        if identity.state == "new" and cookies:
            raise ClusterError(
                f"the metadata store of {self.path} was never completed, but bookies have cookies ({cookies}): choose "
                "an empty --data-dir"
            )
        if identity.state == "new" and metadata_url is not None and metadata_url != identity.metadata_url:
            return self._corrected_identity(identity, metadata_url)
        return identity

    def _corrected_identity(self, identity: ClusterIdentity, metadata_url: str) -> ClusterIdentity:
        """The identity of a cluster whose store was never completed, with another URL for the store."""
        from ..runtime.database_url import is_same_place

        if not is_same_place(metadata_url, identity.metadata_url):
            return self._new_identity(metadata_url)  # the store that was named before may hold this cluster's id
        identity = dataclasses.replace(identity, metadata_url=metadata_url)
        self.save_identity(identity)
        return identity

    def _new_identity(self, metadata_url: str) -> ClusterIdentity:
        identity = ClusterIdentity(
            cluster_id=secrets.token_hex(8),
            secret=secrets.token_bytes(32),
            created_ms=time.time_ns() // 1_000_000,
            metadata_url=metadata_url,
        )
        self.save_identity(identity)
        return identity

    def save_identity(self, identity: ClusterIdentity) -> None:
        self._write(
            IDENTITY_FILE,
            {
                "format": FORMAT,
                "cluster_id": identity.cluster_id,
                "secret": identity.secret.hex(),
                "created_ms": identity.created_ms,
                "metadata_url": identity.metadata_url,
                "state": identity.state,
            },
        )

    # -- what runs ---------------------------------------------------------------------------------------------

    def load_run(self) -> RunRecord | None:
        """What the last `start` wrote down, None after a clean `stop`."""
        return cast("RunRecord | None", self._read(RUN_FILE))

    def save_run(self, run: RunRecord) -> None:
        self._write(RUN_FILE, run)

    def clear_run(self) -> None:
        (self.path / RUN_FILE).unlink(missing_ok=True)

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self.path / name
        self.check_is_directory()
        try:
            record = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise ClusterError(f"cannot read {path} ({error}): check that the file belongs to this user") from error
        if not is_text_map(record):
            raise ClusterError(f"{path} is damaged (it holds no JSON object): restore it from a backup")
        return record

    def _write(self, name: str, record: Mapping[str, object]) -> None:
        """Replace the file durably; never readable by others, not even for a moment, because of the secret."""
        path = self.path / name
        make_private_directory(str(path.parent))
        temporary = path.with_name(name + ".tmp")
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(record, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        self._files.sync_directory(str(self.path))
