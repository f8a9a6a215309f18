"""What a bookie may store, as pure decisions: the fence check of an ADD. `BookieStore` carries them out.

They are plain functions of what the bookie knows, so that the exhaustive explorer (tests/simulation/explorer) takes
the very decisions that run in production. The order of the checks is the table in `bookie`.
"""

from ...protocol.bookie_wire import BookieStatus


def refuse_unknown_ledger(recovery: int, tombstoned: bool, writable: bool, doubtful: bool) -> BookieStatus | None:
    """Why a ledger that the bookie holds nothing of takes no add, or None.

    `recovery` is the ADD's flags (0 for an ordinary add), `doubtful` whether a fence may have been lost with a disk.
    """
    if tombstoned:
        return BookieStatus.NO_SUCH_LEDGER if recovery else BookieStatus.FENCED
    if not recovery and (not writable or doubtful):
        return BookieStatus.READ_ONLY
    return None


def refuse_known_ledger(recovery: int, fenced: bool, writable: bool) -> BookieStatus | None:
    """Why a ledger that the bookie knows takes no add, or None. Recovery adds pass the fence."""
    if recovery:
        return None
    if fenced:
        return BookieStatus.FENCED
    return None if writable else BookieStatus.READ_ONLY


def judge_repeated(stored_digest: int, digest: int) -> BookieStatus:
    """The answer to an ADD of an entry that is stored already: adds are idempotent on (ledger, entry, digest)."""
    return BookieStatus.OK if stored_digest == digest else BookieStatus.CONFLICT
