"""Deleting what a topic stores: its ledgers, its cursors, its pins, and its record at the end.

The caller has marked the topic's own record, so that no broker can open the topic. It gives this deletion an epoch
that is greater than that of every owner before. The steps:

1. read the record (none: there is nothing to delete; a later epoch in it: StaleEpoch);
2. recover every ledger of the chain that is not CLOSED: an owner that does not know that it was replaced gets no more
   acknowledgements;
3. claim the record by compare-and-set: the own epoch, an empty chain, all its ledgers (and those of its cursors and of
   compaction) in `deleting`. If it changed since 1, begin again. From here on whatever an earlier owner writes, to the
   record or beside it, fails;
4. delete the cursors and the pins, then the ledgers that `deleting` names, then the record.

A crash or an error may end it at every step. The next deletion, under a greater epoch, finds the record and repeats the
same steps. Data that is already deleted is no error. Each cursor and pin is deleted only while the record is as 3 left
it. So a deletion that was paused, while another one finished and the topic was created again, deletes nothing of the
new topic. The ids of ledgers are never used twice.
"""

import logging
from collections.abc import Sequence

from ...protocol.errors import (
    BadVersion,
    ConditionFailed,
    MagnetarError,
    MetadataError,
    NoSuchKey,
    NoSuchLedger,
    StaleEpoch,
)
from ...runtime.environment import Environment
from ...runtime.tasks import together
from ..ledger.ledgers import Ledgers
from ..metadata import keys as metadata_keys
from ..metadata.store import MetadataStore, Versioned, Write, list_all
from .cursor_storage import CursorRecord
from .record import ManagedLedgerRecord, OwnedRecord

logger = logging.getLogger(__name__)

ATTEMPTS_MAX = 20
WRITES_PER_TRANSACTION = 250


async def delete_managed_ledger(
    env: Environment, ledgers: Ledgers, metadata: MetadataStore, name: str, epoch: int
) -> None:
    """Delete everything that the topic with this path stores. See the module.

    Raises StaleEpoch, RecoveryFailed, MetadataUnavailable, OutcomeUnknown; after any of them it can be repeated under
    a greater epoch.
    """
    owned = OwnedRecord(env, metadata, name, epoch)
    for _ in range(ATTEMPTS_MAX):
        record = await owned.load()
        if not owned.stored:
            return
        await _fence(ledgers, record)
        cursors = await list_all(metadata, metadata_keys.cursors_prefix(name))
        chain = [info.ledger_id for info in record.ledgers]
        gone = dict.fromkeys((*record.deleting, *chain, *record.ledgers_beside, *_ledgers_of(cursors)))
        if await owned.claim((), deleting=tuple(gone)):
            break
    else:
        raise StaleEpoch(f"other processes keep changing the record of {name}: try again", epoch=epoch)
    gone |= await _delete_cursors(metadata, owned)
    await _delete_below(metadata, metadata_keys.pins_prefix(name), owned)
    await _write_all(metadata, [Write(metadata_keys.ledger(one), None, None) for one in gone])
    await owned.delete()


async def _fence(ledgers: Ledgers, record: ManagedLedgerRecord) -> None:
    """Recover the chain's open ledgers. One without a record has been deleted, and no writer can write to it."""

    async def recover(ledger_id: int) -> None:
        try:
            found = await ledgers.records.get(ledger_id)
            if not found.metadata.closed:
                await ledgers.recover(ledger_id, found)
        except NoSuchLedger as error:
            logger.info("ledger %d was already deleted: %s", ledger_id, error)

    await together(recover(info.ledger_id) for info in record.ledgers)


async def _delete_cursors(metadata: MetadataStore, owned: OwnedRecord) -> dict[int, None]:
    """Delete all cursors; returns the ledgers that they had in the end."""
    return dict.fromkeys(_ledgers_of(await _delete_below(metadata, metadata_keys.cursors_prefix(owned.name), owned)))


async def _delete_below(metadata: MetadataStore, prefix: str, owned: OwnedRecord) -> list[tuple[str, Versioned]]:
    """Delete all records below a prefix, each at the version that was read; returns what they were.

    An earlier owner may change a record that it knows until the moment in which that is deleted.
    """
    deleted: list[tuple[str, Versioned]] = []
    for _ in range(ATTEMPTS_MAX):
        found = await list_all(metadata, prefix)
        if not found:
            return deleted
        deleted += found
        await _write_all(metadata, [Write(key, None, record.version, owned.guard) for key, record in found])
    raise StaleEpoch(f"other processes keep changing the records {prefix}…: try again", epoch=owned.epoch)


async def _write_all(metadata: MetadataStore, writes: Sequence[Write]) -> None:
    """Carry out deletions, a group at a time. What is not there, or has changed since it was read, is no error."""
    for first in range(0, len(writes), WRITES_PER_TRANSACTION):
        for result in await metadata.write_many(writes[first : first + WRITES_PER_TRANSACTION]):
            if isinstance(result, ConditionFailed):
                raise StaleEpoch("the topic was deleted and created again in the meantime") from result
            if isinstance(result, MagnetarError) and not isinstance(result, NoSuchKey | BadVersion):
                raise result


def _ledgers_of(cursors: Sequence[tuple[str, Versioned]]) -> list[int]:
    found: list[int] = []
    for key, record in cursors:
        try:
            found += CursorRecord.unpack(record.value).ledgers
        except MetadataError as error:  # it is deleted all the same; its ledgers are collected as orphans
            logger.warning("the record of %s cannot be decoded and is deleted: %s", key, error)
    return found


async def delete_unused(ledgers: Ledgers, owned: OwnedRecord, ledger_id: int) -> None:
    """Delete a ledger that could not be added to the stored chain.

    Not when that names it after all: it was added, the answer got lost, and the next owner has it now.
    """
    try:
        if not await owned.names(ledger_id):
            await ledgers.delete(ledger_id)
    except MagnetarError as error:
        logger.info("ledger %d could not be deleted; the search for orphans deletes it later: %s", ledger_id, error)
