"""A cluster whose metadata is to be reached at another URL than before: `magnetar start --metadata NEW-URL`.

Two databases may hold this cluster: after a move, or because one is a copy of the other. Then an older copy must not be
taken by mistake. A new URL is taken only if one of these holds:

1. It differs from the old one in nothing but the password, or how the connection is encrypted.
2. The old database says that its records were moved to the new URL, and that the move is done (see `moved_store`).
3. Both URLs lead to the same database: a random value that is written through the new one is read through the old one.
4. The old database does not answer, or does not hold this cluster any longer. The operator passes
   `--metadata-restored`, and the start treats the new one as metadata from a backup.

In each case the new database must hold this cluster, and take a coordinator. One that was moved away is refused, and so
is a copy that was never completed. Two databases that both answer and both count are always refused.
"""

import asyncio
import contextlib
from collections.abc import Mapping

from ..protocol.errors import BadVersion, ClusterError, MetadataUnavailable, NoSuchKey
from ..runtime.database_url import is_same_place, shown_url
from ..runtime.environment import Environment
from ..storage.backup.backup_file import MetadataRecord
from ..storage.backup.sql_copies import records_of_empty_or_known
from ..storage.metadata import keys as metadata_keys
from ..storage.metadata.cluster_identity import cluster_id_of
from ..storage.metadata.moved_store import Move, check_counts, complete_copy, unfinished
from ..storage.metadata.sql import SqlMetadataStore, open_current
from ..storage.metadata.store import Versioned, pack
from .directory import ClusterIdentity

PROBE_READS = 10
PROBE_READ_EVERY_S = 0.2
"""A standby at the old URL gets the value a moment later."""
MOVES_MAX = 20
"""Moves in a row that are followed. More than an operator makes."""

_KEYS = (metadata_keys.CLUSTER, metadata_keys.MOVED_TO, metadata_keys.MOVED_PROBE)


async def open_at_new_address(
    env: Environment, identity: ClusterIdentity, new_url: str, *, restored: bool
) -> tuple[SqlMetadataStore, str]:
    """The store that counts, and its URL; see the module. `restored`: the operator says it may be an older copy.

    Raises ClusterError for a database that is not to be taken, and what opening a store raises.
    """
    if is_same_place(identity.metadata_url, new_url):
        return await open_current(env, new_url)
    found = _cluster_in(await _read(env, new_url))
    if found != identity.cluster_id:
        raise ClusterError(
            f"{shown_url(new_url)} holds {f'cluster {found}' if found else 'no cluster'}, and this is cluster "
            f"{identity.cluster_id} with its metadata at {shown_url(identity.metadata_url)}. To move the metadata, run "
            "`magnetar metadata migrate --to URL`. To start as before, leave --metadata out"
        )
    store = await SqlMetadataStore.open(env, new_url)
    try:
        await _check_is_current(env, store, identity, new_url, restored)
    except BaseException:
        await store.close()
        raise
    return store, new_url


async def _check_is_current(
    env: Environment, store: SqlMetadataStore, identity: ClusterIdentity, new_url: str, restored: bool
) -> None:
    old_url = identity.metadata_url
    for _ in range(MOVES_MAX):
        try:
            known = await _read(env, old_url)
        except MetadataUnavailable as error:
            await check_counts(store)
            if not restored:
                raise _unproven(f"{shown_url(old_url)} does not answer ({error})", new_url) from error
            return
        to = known.get(metadata_keys.MOVED_TO)
        if to is None:
            break
        move = Move.unpack(to.value)
        if not move.done:
            raise unfinished(move)
        if move.url == shown_url(new_url):
            await complete_copy(store, move.id)
            await check_counts(store)
            return
        old_url = move.url
    else:
        raise ClusterError(f"the records of moves of the metadata lead from {shown_url(old_url)} in a circle")
    await check_counts(store)
    if _cluster_in(known) != identity.cluster_id:
        if not restored:
            raise _unproven(f"{shown_url(old_url)} does not hold this cluster any longer", new_url)
    elif not await _is_same_database(env, store, old_url):
        raise ClusterError(
            f"the metadata of this cluster is at {shown_url(old_url)}, and {shown_url(new_url)} is a copy of it: only "
            "one may count. Leave --metadata out, or move the metadata with `magnetar metadata migrate` to an empty "
            "database"
        )


async def _is_same_database(env: Environment, store: SqlMetadataStore, old_url: str) -> bool:
    """Whether a random value that is written to the store can be read at the old URL."""
    value = pack({"value": env.random.hex(16)})
    leftover = await store.get(metadata_keys.MOVED_PROBE)
    version = await store.put(metadata_keys.MOVED_PROBE, value, None if leftover is None else leftover.version)
    try:
        for _ in range(PROBE_READS):
            found = (await _read(env, old_url)).get(metadata_keys.MOVED_PROBE)
            if found is not None and found.value == value:
                return True
            await asyncio.sleep(PROBE_READ_EVERY_S)
        return False
    finally:
        with contextlib.suppress(NoSuchKey, BadVersion):
            await store.delete(metadata_keys.MOVED_PROBE, version)


async def _read(env: Environment, url: str) -> Mapping[str, MetadataRecord]:
    """Records of a database, none where there is no store. It may be a standby, and a coordinator may be active."""
    _, known = await env.offload.run(records_of_empty_or_known, env.files, url, _KEYS)
    return known


def _cluster_in(known: Mapping[str, MetadataRecord]) -> str | None:
    record = known.get(metadata_keys.CLUSTER)
    return cluster_id_of(None if record is None else Versioned(record.value, record.version))


def _unproven(why: str, new_url: str) -> ClusterError:
    return ClusterError(
        f"{why}, so nothing shows that {shown_url(new_url)} is not an older copy of it. Start while both can "
        "be reached. If the old one is gone, pass --metadata-restored, which is safe with an older copy"
    )
