"""Garbage collection of a bookie: tombstones for deleted ledgers, and copies given up that no reader asks for.

Data is deleted here and nowhere else, so everything doubtful means "keep":

- the metadata must belong to our own cluster, compared before *and* after it was asked. An empty or foreign store must
  never mean "all ledgers are deleted";
- local ledgers are listed before the metadata is asked, so a ledger created meanwhile is not among them;
- each ledger is asked for by its own key, also one that the coordinator told of (`collection_scope`). Any error ends
  the round, and nothing that it found is used;
- the counter of ledger ids and the ids marked as restored are read *after* the ledgers, with one question. An unknown
  ledger is deleted only if that counter is above all ids ever known here, and its own id is not restored. Otherwise the
  metadata may be older than the ledger (see `ledger_ids`). An older state that came in before the ledgers were asked
  for is detected by its counter. If the coordinator has raised that by then, the mark that was stored before shows it;
- a ledger of which the metadata knows another one with the same id, but not the same nonce, stays in the same way;
- between the answer and the tombstone lies no await. A ledger is kept this time if, since it was listed, it got a
  recovery copy, a fence or its first entry, or the auditor asked for its entries. A collection shares this lock with
  re-replication.

A tombstone is final, since ledger ids are never used twice. Giving the space back is compaction's part.

**Copies that are given up.** A bookie that left an ensemble keeps what it was sent. It gives its entries of a ledger up
when the record is CLOSED and names it in no fragment. No client reads or recovers such a copy: a CLOSED record never
opens again, and a recovery in progress loses its compare-and-set against it. Nothing is given up of ledgers that are
OPEN or IN_RECOVERY, because their ensembles may be ahead of the record. There remains the auditor, which copies to a
bookie *before* it names that bookie in the record. So the record is first written again as it is, which gives it a new
version. Entries are deleted only if the ledger was not touched since before that:

- an auditor that read the record before has an old version, and its compare-and-set fails, whenever it comes;
- one that reads it afterwards asks what is held. If it asks before the entries are deleted, the ledger was touched and
  they stay. If it asks later, it copies all of them.

The ledger stays known, fenced and *given up* (`held_ledgers`): a writer that was paused is refused as before. Absence
has no meaning here from then on, so that no recovery of an older record, from a backup, takes it for a denial.

After the metadata was restored its records may name bookies that have given their copies up since, and not those that
were given them instead. So nothing is given up while the metadata is older than a ledger held here, or while restored
ids are not settled. Nor is a ledger given up that is older than a restore or than accepted losses.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from ...protocol.errors import BadVersion, CookieMismatch, MetadataError, NoSuchKey
from ..metadata import keys as metadata_keys
from ..metadata.cluster_identity import cluster_id_of, read_cluster_id
from ..metadata.ledger_ids import RestoredIds, counter_of
from ..metadata.ledger_metadata import LedgerMetadata
from ..metadata.store import MetadataStore, Versioned
from .collection_scope import CollectionScope
from .held_ledgers import HeldLedger
from .store import BookieStore

logger = logging.getLogger(__name__)

KEYS_PER_QUESTION_MAX = 500

Renew = Callable[[int, int], Awaitable[object]]


@dataclass(frozen=True)
class Collected:
    """What one round did."""

    ledgers_seen: int
    ledgers_deleted: int
    ledgers_given_up: int = 0
    ledgers_unknown: int = 0
    """Kept although the metadata does not know them: it is older than they are."""


@dataclass
class _LedgerVerdicts:
    """What the answers about a page of ledgers mean."""

    doomed: list[int] = field(default_factory=list[int])
    unnamed: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Ledger, and version of its record."""
    undecided: list[int] = field(default_factory=list[int])
    """Kept this time; the next round asks for them again."""
    unknown: int = 0


async def collect_garbage(
    store: BookieStore,
    metadata: MetadataStore,
    renew: Renew,
    cluster_id: str,
    bookie_id: str,
    *,
    scope: CollectionScope | None = None,
    changed: Iterable[int] | None = None,
) -> Collected:
    """One round. `renew(ledger id, version)` writes a record again as it is (`ledger_records.renew`).

    Without `changed` it asks for all ledgers, else for these and what `scope` holds in doubt.

    Raises CookieMismatch (the metadata is of another cluster), MetadataError and what the RPC raises, DiskFull,
    StorageFailed; tombstones written until then stay.
    """
    ledgers = store.entries.ledgers
    scope = scope or CollectionScope()
    local = scope.choose(ledgers, changed)
    deleted = given_up = unknown = 0
    for start in range(0, len(local), KEYS_PER_QUESTION_MAX):
        asked = local[start : start + KEYS_PER_QUESTION_MAX]
        await _check_cluster(metadata, cluster_id)
        answers = await metadata.get_many([metadata_keys.ledger(ledger_id) for ledger_id in asked])
        if len(answers) != len(asked):
            raise MetadataError(f"the metadata store gave {len(answers)} answers for {len(asked)} ledgers")
        counter, restored = await _read_bounds(metadata, cluster_id)
        held = dict(zip(asked, answers, strict=True))
        verdicts = _judge(ledgers, held, counter, restored, store.entries.ledgers_end, bookie_id)
        unknown += verdicts.unknown
        if verdicts.doomed:
            logger.info("%s: writing tombstones for %d deleted ledgers", store.entries.directory, len(verdicts.doomed))
            await store.add_tombstones(verdicts.doomed)
            deleted += len(verdicts.doomed)
        for record in verdicts.unnamed:
            gone = await _give_up(store, renew, *record)
            given_up += gone
            if not gone:
                verdicts.undecided.append(record[0])
        scope.decided(asked, verdicts.undecided)
    if unknown:
        logger.error(
            "%s keeps %d ledgers that the metadata does not know, although they are not older than it. The metadata "
            "was "
            "restored from an older backup. Restore a newer backup, or run `magnetar accept-lost-ledgers` to give "
            "them up",
            store.entries.directory,
            unknown,
        )
    return Collected(len(local), deleted, given_up, unknown)


def _judge(
    ledgers: dict[int, HeldLedger],
    answers: dict[int, Versioned | None],
    counter: int,
    restored: RestoredIds,
    ledgers_end: int,
    bookie_id: str,
) -> _LedgerVerdicts:
    found = _LedgerVerdicts()
    newer_here = ledgers_end > counter
    for ledger_id, answer in answers.items():
        state = ledgers.get(ledger_id)
        if state is None:
            continue
        if state.touched:
            found.undecided.append(ledger_id)
            continue
        if answer is None:
            if newer_here or ledger_id in restored:
                found.unknown += 1
                found.undecided.append(ledger_id)
            else:
                found.doomed.append(ledger_id)
        elif state.record_version != answer.version:
            metadata = LedgerMetadata.unpack(answer.value)
            if metadata.nonce != state.nonce:
                if ledger_id < restored.accepted_end:
                    found.doomed.append(ledger_id)
                else:
                    found.unknown += 1
                    found.undecided.append(ledger_id)
            elif metadata.closed and bookie_id not in metadata.bookies:
                settled_end = max(restored.accepted_end, restored.doubtful_end)
                if state.segments and not (newer_here or restored.ranges) and ledger_id >= settled_end:
                    found.unnamed.append((ledger_id, answer.version))
                elif state.segments:
                    found.undecided.append(ledger_id)
            elif metadata.closed:
                state.record_version = answer.version  # it stays as it is until the record changes
    return found


async def _give_up(store: BookieStore, renew: Renew, ledger_id: int, version: int) -> bool:
    """Drop the entries of a closed ledger that names this bookie no longer, unless it is in use."""
    try:
        await renew(ledger_id, version)
    except (BadVersion, NoSuchKey) as error:
        logger.debug("ledger %d is in use: %s", ledger_id, error)
        return False
    state = store.entries.ledgers.get(ledger_id)
    if state is None or state.touched or not store.entries.give_up(state):
        return False
    logger.info(
        "%s: ledger %d is stored on other bookies now, so its entries here are deleted",
        store.entries.directory,
        ledger_id,
    )
    return True


async def _check_cluster(metadata: MetadataStore, cluster_id: str) -> None:
    _compare(await read_cluster_id(metadata), cluster_id)


async def _read_bounds(metadata: MetadataStore, cluster_id: str) -> tuple[int, RestoredIds]:
    """The counter of ledger ids and the restored ids of one moment, and the cluster's id again."""
    keys = [
        metadata_keys.CLUSTER,
        metadata_keys.counter(metadata_keys.LEDGER_COUNTER),
        metadata_keys.RESTORED_LEDGERS,
    ]
    answers = await metadata.get_many(keys)
    if len(answers) != len(keys):
        raise MetadataError(f"the metadata store gave {len(answers)} answers for {len(keys)} records")
    cluster, counter, restored = answers
    _compare(cluster_id_of(cluster), cluster_id)
    return counter_of(counter), RestoredIds.unpack(restored)


def _compare(found: str | None, cluster_id: str) -> None:
    if found != cluster_id:
        raise CookieMismatch(
            f"the metadata belongs to cluster {found}, but this bookie to {cluster_id}: nothing is deleted"
        )
