"""Backup, restore and move of a cluster's metadata, on its data directory.

A backup may be made beside a running cluster. A restore makes a new store, and never writes to one that has records. A
move may be made beside a cluster on Ray: its coordinator ends, and comes back on the new database.
"""

import asyncio
import dataclasses
import os
import secrets
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import TypeVar

from ..protocol.errors import ClusterError
from ..runtime.database_url import shown_url
from ..runtime.environment import Environment
from ..runtime.settings.declarations import Settings
from ..storage.backup import moving
from ..storage.backup.backup_file import (
    BackupHead,
    CheckedBackup,
    MetadataRecord,
    check_backup,
    read_records,
    write_backup,
)
from ..storage.backup.restoring import is_as_restored, is_restored_from, restored_floor, restored_records
from ..storage.backup.sql_copies import SqlSnapshot, fill, not_empty, records_of_empty_or_known
from ..storage.metadata import keys as metadata_keys
from ..storage.metadata.cluster_identity import cluster_id_of
from ..storage.metadata.moved_store import Move, complete_copy, moved_to
from ..storage.metadata.sql import SqlMetadataStore, open_current
from ..storage.metadata.store import Versioned
from .directory import ClusterDirectory, ClusterIdentity
from .preparing import check_standbys
from .ray_session import RaySession

T = TypeVar("T")

ShowProgress = Callable[[str, int, int | None], None]
"""Told what is being done, how many records there are so far, and of how many, if that is known."""


@dataclass(frozen=True)
class Moved:
    """What a move did. `records` is None where an earlier run had copied them.

    With `stays_bound` a cluster runs whose coordinator was started for a SQLite file. Until the next stop and start,
    Ray keeps it on its machine, and it has no deputy.
    """

    url: str
    records: int | None
    stays_bound: bool = False


def silent(what: str, done: int, of: int | None) -> None:
    """For callers that show no progress."""


def backup(data_directory: str | os.PathLike[str], file: str, progress: ShowProgress = silent) -> int:
    """Write the metadata of this moment to a file, and return the number of records. The cluster may run.

    Raises ClusterError, MetadataUnavailable, DiskFull, OSError; then there is no such file.
    """
    identity = _identity(ClusterDirectory(data_directory))
    path = os.path.abspath(file)

    async def run(env: Environment) -> int:
        url = await _current_url(env, identity)
        return await env.offload.run(_back_up, env, url, identity.cluster_id, path, progress)

    return _with_environment(run)


def restore(
    data_directory: str | os.PathLike[str], file: str, metadata_url: str | None = None, progress: ShowProgress = silent
) -> CheckedBackup:
    """Make a new metadata store of a backup. The data directory gets the cluster's identity if it has none.

    After a crash, repeat it: a store that it has filled and that no cluster has used since is taken as it is.

    Raises ClusterError if the store has other records, or if anything else is not as it must be; then nothing was
    changed.
    """
    directory = ClusterDirectory(data_directory)
    path = os.path.abspath(file)
    directory.lock()
    try:
        _refuse_running(directory, "a restore needs a stopped cluster")

        async def run(env: Environment) -> CheckedBackup:
            return await env.offload.run(_restore, env, directory, path, metadata_url, progress)

        return _with_environment(run)
    finally:
        directory.unlock()


def migrate(
    data_directory: str | os.PathLike[str],
    to: str,
    progress: ShowProgress = silent,
    settings: Settings | None = None,
) -> Moved:
    """Move the metadata to the database at `to`, a URL or `sqlite`. A move that was interrupted is finished.

    The settings say whether several hosts without a synchronous standby are taken.

    Raises ClusterError and what stores raise. Until the records of both sides say otherwise, the old store counts.
    """
    directory = ClusterDirectory(data_directory)
    directory.lock()
    try:
        identity = _identity(directory)
        new_url = directory.given_url(to)
        if new_url == directory.sqlite_url:
            _refuse_running(
                directory, "a move to SQLite needs a stopped cluster, because the coordinator may run elsewhere"
            )
        if shown_url(new_url) == shown_url(identity.metadata_url):
            raise ClusterError(f"the metadata is at {shown_url(new_url)} already")
        chosen = settings or Settings()
        moved = _with_environment(lambda env: _move(env, identity, new_url, chosen, progress))
        directory.save_identity(dataclasses.replace(identity, metadata_url=new_url))
        was_bound = identity.metadata_url == directory.sqlite_url
        return dataclasses.replace(moved, stays_bound=was_bound and _may_run(directory))
    finally:
        directory.unlock()


def cancel_migration(data_directory: str | os.PathLike[str]) -> Move:
    """Take an interrupted move back. Raises ClusterError when there is none, or when it is done."""
    directory = ClusterDirectory(data_directory)
    directory.lock()
    try:
        identity = _identity(directory)

        async def run(env: Environment) -> Move:
            old = await SqlMetadataStore.open(env, identity.metadata_url, beside=True)
            try:
                return await moving.cancel(old)
            finally:
                await old.close()

        return _with_environment(run)
    finally:
        directory.unlock()


# -- inside ------------------------------------------------------------------------------------------------------------


def _refuse_running(directory: ClusterDirectory, why: str) -> None:
    if _may_run(directory):
        raise ClusterError(f"{why}: run `magnetar stop` first")


def _may_run(directory: ClusterDirectory) -> bool:
    """Whether a cluster runs on Ray, as far as is known here: on a Ray that was joined it is taken to run."""
    run = directory.load_run()
    if run is None:
        return False
    session = RaySession.from_record(run["ray"])
    return session.kind == "joined" or any(process.alive for process in session.processes)


def _identity(directory: ClusterDirectory) -> ClusterIdentity:
    identity = directory.load_identity()
    if identity is None or identity.state != "ready":
        raise ClusterError(f"{directory.path} holds no cluster: name its data directory with --data-dir")
    return _moved_along(directory, identity)


def _moved_along(directory: ClusterDirectory, identity: ClusterIdentity) -> ClusterIdentity:
    """SQLite lies in the data directory, also after that was moved or copied."""
    if identity.metadata_url.startswith("sqlite:"):
        return dataclasses.replace(identity, metadata_url=directory.sqlite_url)
    return identity


async def _current_url(env: Environment, identity: ClusterIdentity) -> str:
    """Where the metadata is. A move that is under way, or that `cluster.json` does not know of yet, is an error."""
    store, url = await open_current(env, identity.metadata_url, beside=True)
    await store.close()
    return url


def _back_up(env: Environment, url: str, cluster_id: str, file: str, progress: ShowProgress) -> int:
    with SqlSnapshot(env.files, url) as snapshot:
        record = snapshot.get(metadata_keys.CLUSTER)
        found = cluster_id_of(None if record is None else Versioned(record.value, record.version))
        if found != cluster_id:
            raise ClusterError(f"the metadata store belongs to cluster {found}, not to {cluster_id}")
        if snapshot.get(metadata_keys.MOVED_TO) or snapshot.get(metadata_keys.MOVED_FROM):
            raise ClusterError("the metadata is being moved to another database: make the backup afterwards")
        head = BackupHead(cluster_id, env.clock.now_ms(), snapshot.floor, snapshot.source)
        count = snapshot.count
        return write_backup(
            env.files, file, head, snapshot.records(), lambda done: progress("writing records", done, count)
        )


def _restore(
    env: Environment, directory: ClusterDirectory, file: str, metadata_url: str | None, progress: ShowProgress
) -> CheckedBackup:
    found = check_backup(env.files, file, lambda done: progress("checking the backup", done, None))
    identity = directory.load_identity()
    if identity is not None:
        identity = _moved_along(directory, identity)
    cluster_id = found.head.cluster_id
    if identity is not None and identity.cluster_id != cluster_id:
        raise ClusterError(
            f"{directory.path} belongs to cluster {identity.cluster_id}, and the backup to cluster {cluster_id}: "
            "choose the backup of this cluster, or another --data-dir"
        )
    if metadata_url is not None:
        url = directory.given_url(metadata_url)
    else:
        url = identity.metadata_url if identity is not None else directory.sqlite_url
    if identity is not None and shown_url(url) != shown_url(identity.metadata_url):
        if records_of_empty_or_known(env.files, identity.metadata_url, ())[0]:
            raise ClusterError(
                f"the metadata of this cluster is at {shown_url(identity.metadata_url)} and is not empty: two copies "
                "would count. Use `magnetar metadata migrate`, or remove that one first"
            )
    count, known = records_of_empty_or_known(
        env.files, url, [metadata_keys.RESTORED_FROM, metadata_keys.COORDINATOR_EPOCH]
    )
    if count:
        _check_restored(shown_url(url), found, known)
    else:
        now_ms = env.clock.now_ms()
        records = restored_records(found, read_records(env.files, found), now_ms)
        total, floor = found.records, restored_floor(found, now_ms)
        fill(env.files, url, records, floor, lambda done: progress("restoring records", done, total))
    if identity is None:
        secret = secrets.token_bytes(32)
        identity = ClusterIdentity(cluster_id, secret, found.head.created_ms, url, "ready")
    directory.save_identity(dataclasses.replace(identity, metadata_url=url, state="ready"))
    return found


def _check_restored(url: str, backup: CheckedBackup, known: Mapping[str, MetadataRecord]) -> None:
    """Raise ClusterError unless the store is just what an earlier restore of this backup has made of it."""
    note = known.get(metadata_keys.RESTORED_FROM)
    if note is None or not is_restored_from(backup, note):
        why = f"{url} holds metadata already"
    elif not is_as_restored(note, known.get(metadata_keys.COORDINATOR_EPOCH)):
        why = f"{url} was restored from this backup before, and a cluster has run on it since"
    else:
        return
    raise ClusterError(f"{why}, and nothing is overwritten: move it away, or choose an empty database with --metadata")


async def _move(
    env: Environment, identity: ClusterIdentity, new_url: str, settings: Settings, progress: ShowProgress
) -> Moved:
    def copied(done: int) -> None:
        progress("copying records", done, None)

    old = await SqlMetadataStore.open(env, identity.metadata_url, beside=True)
    records = None
    try:
        if await moved_to(old) is None:
            await _check_target(env, new_url, settings)
        move = await moving.begin(env, old, new_url)
        if not move.done:
            records = await env.offload.run(moving.copy, env.files, identity.metadata_url, new_url, move, copied)
            await moving.commit(env, old, move)
    finally:
        await old.close()
    new = await SqlMetadataStore.open(env, new_url, beside=True)
    try:
        await complete_copy(new, move.id)
    finally:
        await new.close()
    return Moved(shown_url(new_url), records)


async def _check_target(env: Environment, new_url: str, settings: Settings) -> None:
    """Raise an error for a database that cannot be moved to, while the coordinator is still active on the old one."""
    if not new_url.startswith("sqlite:"):
        store = await SqlMetadataStore.open(env, new_url, create=True)
        try:
            check_standbys(store, settings)
        finally:
            await store.close()
    count, known = await env.offload.run(records_of_empty_or_known, env.files, new_url, [metadata_keys.MOVED_FROM])
    if count and metadata_keys.MOVED_FROM not in known:
        raise not_empty(shown_url(new_url))


def _with_environment(run: Callable[[Environment], Coroutine[object, object, T]]) -> T:
    env = Environment.real(threads_max=1)
    try:
        return asyncio.run(run(env))
    finally:
        env.close()
