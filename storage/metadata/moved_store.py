"""Which of two databases holds the cluster's metadata, while it moves from one to the other and afterwards.

`magnetar metadata migrate` copies the records. Two records say which copy counts: `moved/to` in the old store, and
`moved/from` in the new one. At each moment at most one of the two stores takes a coordinator:

| old store | new store | which counts |
| --- | --- | --- |
| no record | empty | the old one |
| moving | empty | none; the move is finished, or cancelled, by the operator |
| moving | the records, and `moved/from` | none; the same |
| moved | the records, and `moved/from` | the new one; who finds it through the old one removes `moved/from` |
| moved | the records | the new one; the old one only says where |

1. The mover takes office in the old store: its epoch ends the coordinator that is active there. With this epoch as its
   guard, it writes `moved/to` as *moving*. If another coordinator takes office in between, this write fails.
2. It copies all records of one moment. Nobody can write now, so these are all there will ever be.
3. It turns *moving* into *moved*, by compare-and-set. To cancel is to delete the record, by compare-and-set, while it
   says *moving*. So only one of the two can happen.

`take_office` looks for either record after it has raised the epoch. A coordinator that finds one does not begin.
Because `moved/to` is written under the epoch of the mover, no coordinator takes office before it and writes after it.

The URL in `moved/to` has no password, because others may read the old database. A process that follows it needs the
password in `cluster.json`, or where libpq looks: PGPASSWORD, or the file ~/.pgpass.
"""

import contextlib
from dataclasses import dataclass

from ...protocol.errors import ClusterError, MetadataError, NoSuchKey, ProtocolError, SettingError
from ...protocol.plain_values import is_text_map
from ...runtime.database_url import masked, shown_url
from . import keys as metadata_keys
from .store import MetadataStore, Versioned, pack, unpack


@dataclass(frozen=True)
class Move:
    """A record of either side. `url` is that of the other side, without its password; `done` is of `moved/to`."""

    id: str
    url: str
    done: bool = False

    def pack(self) -> bytes:
        return pack({"id": self.id, "url": self.url, "done": self.done})

    @staticmethod
    def unpack(value: bytes) -> "Move":
        """Raises MetadataError."""
        try:
            fields = unpack(value)
        except ProtocolError as error:
            raise MetadataError(f"the record of a move of the metadata cannot be decoded: {error}") from error
        if is_text_map(fields):
            move_id, url, done = map(fields.get, ("id", "url", "done"))
            if isinstance(move_id, str) and isinstance(url, str) and isinstance(done, bool):
                return Move(move_id, _without_password(url), done)
        raise MetadataError("the record of a move of the metadata lacks a field, or one is of another kind")


async def moved_to(store: MetadataStore) -> tuple[Move, int] | None:
    """Where a store's records are moving, or have moved, with the version of that record."""
    return _read(await store.get(metadata_keys.MOVED_TO))


async def moved_from(store: MetadataStore) -> tuple[Move, int] | None:
    """Which store the records were copied from, while it is not sure here that they count."""
    return _read(await store.get(metadata_keys.MOVED_FROM))


async def check_counts(store: MetadataStore) -> None:
    """Raises ClusterError for a store that takes no coordinator."""
    to, copied = map(_read, await store.get_many([metadata_keys.MOVED_TO, metadata_keys.MOVED_FROM]))
    if to is not None:
        move, _ = to
        if move.done:
            raise ClusterError(f"the metadata was moved to {move.url}: nothing may be written to this copy")
        raise unfinished(move)
    if copied is not None:
        raise ClusterError(
            f"this copy of the metadata was never completed, and {copied[0].url} may still count: run `magnetar "
            "metadata migrate` again"
        )


def unfinished(move: Move) -> ClusterError:
    """The error for a store whose move was neither finished nor cancelled."""
    return ClusterError(
        f"a move of the metadata to {move.url} is under way, or was interrupted: `magnetar metadata migrate --to URL` "
        "finishes it, `magnetar metadata migrate --cancel` takes it back"
    )


async def complete_copy(store: MetadataStore, move_id: str) -> None:
    """The old store said that this copy counts. Raises ClusterError for a store that is not this move's copy."""
    copied = await moved_from(store)
    if copied is None:
        return
    move, version = copied
    if move.id != move_id:
        raise ClusterError(
            f"the metadata was moved, but what is there now was copied by another move, from {move.url}: find the "
            "right database"
        )
    with contextlib.suppress(NoSuchKey):
        await store.delete(metadata_keys.MOVED_FROM, version)


def _without_password(url: str) -> str:
    """Records of the first versions of Magnetar hold the password."""
    try:
        return shown_url(url)
    except SettingError:
        return masked(url)


def _read(record: Versioned | None) -> tuple[Move, int] | None:
    return None if record is None else (Move.unpack(record.value), record.version)
