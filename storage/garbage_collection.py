"""Garbage collection of a bookie: put tombstones on ledgers that the metadata no longer knows.

Data is deleted here and nowhere else, so everything doubtful means "keep":

- the metadata must be of our own cluster, compared before *and* after it was asked: an empty or foreign store must
  never pass for "all ledgers are deleted";
- local ledgers are listed before the metadata is asked, so a ledger created meanwhile is not among them;
- each ledger is asked for by its own key; any error ends the round, nothing it found is used;
- between the answer and the tombstone lies no await. A ledger that got a recovery copy, a fence or its first entry
  since it was listed is kept this time: that is the lock a collection shares with re-replication.

A tombstone is final, since ledger ids are never used twice. Giving the space back is compaction's part.
"""

import logging
from dataclasses import dataclass

from ..protocol import metadata_keys
from ..protocol.errors import CookieMismatch, MetadataError
from .bookie import BookieStore
from .cluster_identity import read_cluster_id
from .metadata_store import MetadataStore

logger = logging.getLogger(__name__)

KEYS_PER_QUESTION_MAX = 500


@dataclass(frozen=True)
class Collected:
    """What one round did."""

    ledgers_seen: int
    ledgers_deleted: int


async def collect_garbage(store: BookieStore, metadata: MetadataStore, cluster_id: str) -> Collected:
    """One round. Raises CookieMismatch (the metadata is of another cluster), MetadataError and what the RPC raises,
    DiskFull, StorageFailed; ledgers buried until then stay buried."""
    ledgers = store.entries.ledgers
    local = sorted(ledgers)
    for ledger_id in local:
        ledgers[ledger_id].touched = False
    deleted = 0
    for start in range(0, len(local), KEYS_PER_QUESTION_MAX):
        asked = local[start : start + KEYS_PER_QUESTION_MAX]
        await _check_cluster(metadata, cluster_id)
        answers = await metadata.get_many([metadata_keys.ledger(ledger_id) for ledger_id in asked])
        if len(answers) != len(asked):
            raise MetadataError(f"asked for {len(asked)} ledgers, got {len(answers)} answers")
        await _check_cluster(metadata, cluster_id)
        doomed: list[int] = []
        for ledger_id, answer in zip(asked, answers, strict=True):
            state = ledgers.get(ledger_id)
            if answer is None and state is not None and not state.touched:
                doomed.append(ledger_id)
        if doomed:
            logger.info("%s: burying %d deleted ledgers", store.entries.directory, len(doomed))
            await store.bury(doomed)
            deleted += len(doomed)
    return Collected(len(local), deleted)


async def _check_cluster(metadata: MetadataStore, cluster_id: str) -> None:
    found = await read_cluster_id(metadata)
    if found != cluster_id:
        raise CookieMismatch(f"the metadata is of cluster {found}, this bookie of {cluster_id}: nothing is collected")
