"""The steps of a move of the metadata to another database; `metadata.moved_store` says which copy counts when.

Each step can be repeated after a crash, and says where the move is. `begin` finds a move that was interrupted, and goes
on with it. `copy` does nothing when the copy is there. `commit` and `cancel` exclude each other.
"""

from collections.abc import Iterator

from ...protocol.errors import BadVersion, ClusterError, NoSuchKey
from ...runtime.database_url import shown_url
from ...runtime.environment import Environment
from ...runtime.files import Files
from ...runtime.rpc.messages import pack, unpack
from ..metadata import keys as metadata_keys
from ..metadata.certain_writes import put_certain
from ..metadata.epoch_guard import raise_epoch
from ..metadata.moved_store import Move, moved_from, moved_to
from ..metadata.store import MetadataStore
from .backup_file import CountRecords, MetadataRecord
from .sql_copies import SqlSnapshot, fill, records_of_empty_or_known


async def begin(env: Environment, old: MetadataStore, new_url: str) -> Move:
    """Step 1: from here on nobody writes to the old store. Returns the move, which may be an older one to this place.

    Raises ClusterError when the records are moving to another place, or another coordinator took office just now.
    """
    found = await moved_to(old)
    if found is not None:
        move, _ = found
        if move.url != shown_url(new_url):
            raise ClusterError(
                f"the metadata {'was moved' if move.done else 'is being moved'} to {move.url}, not to "
                f"{shown_url(new_url)}" + ("" if move.done else ": finish that move, or cancel it")
            )
        return move
    if await moved_from(old) is not None:
        raise ClusterError("this copy of the metadata was never completed: find the store that it was copied from")
    office = await raise_epoch(old)
    move = Move(env.random.hex(16), shown_url(new_url))
    await put_certain(env, office, metadata_keys.MOVED_TO, move.pack(), None)
    return move


def copy(files: Files, old_url: str, new_url: str, move: Move, progress: CountRecords | None = None) -> int:
    """Step 2: all records in one transaction. Returns their number. Blocks.

    Raises ClusterError when the new store holds anything but this copy, or a copy that never counted.
    """
    count, known = records_of_empty_or_known(files, new_url, [metadata_keys.MOVED_FROM, metadata_keys.CLUSTER])
    mark = known.get(metadata_keys.MOVED_FROM)
    if mark is not None and Move.unpack(mark.value).id == move.id:
        return count - 1
    with SqlSnapshot(files, old_url) as snapshot:
        cluster = snapshot.get(metadata_keys.CLUSTER)
        leftover = known.get(metadata_keys.CLUSTER)
        if cluster is None:
            raise ClusterError(f"{snapshot.shown_url} holds no cluster's metadata")
        if mark is not None and (leftover is None or unpack(leftover.value) != unpack(cluster.value)):
            raise ClusterError(f"{move.url} holds an unfinished copy of another cluster: choose an empty database")
        copied_from = Move(move.id, shown_url(old_url))
        records = _copied(snapshot, copied_from)
        fill(files, new_url, records, snapshot.floor, progress, replaces=metadata_keys.MOVED_FROM)
        return snapshot.count - 1


def _copied(snapshot: SqlSnapshot, mark: Move) -> Iterator[MetadataRecord]:
    for record in snapshot.records():
        if record.key == metadata_keys.MOVED_TO:
            continue
        if record.key == metadata_keys.COORDINATOR_EPOCH:
            # The epoch that the mover took is used up.
            epoch = int(unpack(record.value)["epoch"]) + 1
            record = MetadataRecord(record.key, record.version + 1, pack({"epoch": epoch}))
        yield record
    yield MetadataRecord(metadata_keys.MOVED_FROM, snapshot.floor, mark.pack())


async def commit(env: Environment, old: MetadataStore, move: Move) -> None:
    """Step 3: from here on the new store counts. Raises ClusterError when the move was cancelled meanwhile."""
    found = await moved_to(old)
    if found is None or found[0].id != move.id:
        raise ClusterError("the move of the metadata was cancelled meanwhile: run it again")
    if found[0].done:
        return
    done = Move(move.id, move.url, True)
    try:
        await put_certain(env, old, metadata_keys.MOVED_TO, done.pack(), found[1])
    except (BadVersion, NoSuchKey):
        again = await moved_to(old)
        if again is None or again[0] != done:
            raise ClusterError("the move of the metadata was cancelled meanwhile: run it again") from None


async def cancel(old: MetadataStore) -> Move:
    """Take a move back that is not done: the old store counts again. Raises ClusterError when there is none."""
    found = await moved_to(old)
    if found is None:
        raise ClusterError("no move of the metadata is under way")
    move, version = found
    if move.done:
        raise ClusterError(f"the metadata has moved to {move.url}: migrate it from there if you want it back")
    try:
        await old.delete(metadata_keys.MOVED_TO, version)
    except (BadVersion, NoSuchKey):
        raise ClusterError("the move of the metadata was finished or cancelled at this moment: look again") from None
    return move
