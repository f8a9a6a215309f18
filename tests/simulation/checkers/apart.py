"""I8: the copies of an entry lie on different machines while there are enough, also those that were written to one.

The check does not ask the auditor's plan. It looks for a fragment that has two copies of an entry on one machine,
while a bookie that takes copies runs on a machine that the fragment does not use at all.
"""

from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.ledger_metadata import Fragment, LedgerMetadata

from ..world.cluster import SimCluster


def copies_are_apart(cluster: SimCluster) -> bool:
    """Whether no closed ledger has copies on one machine that could be on two, at this moment."""
    if cluster.supervision is None or not cluster.coordinator.ready:
        return cluster.supervision is None
    machine_of = cluster.supervision.runs_on
    bookies = cluster.coordinator.service.office.bookies.bookies.values()
    free = {machine_of[info.id] for info in bookies if info.writable}
    prefix = metadata_keys.LEDGERS_PREFIX
    ledgers = [
        LedgerMetadata.unpack(record.value) for key, record in cluster.records.by_key.items() if key.startswith(prefix)
    ]
    return not any(
        _is_crowded(ledger, fragment, machine_of, free) for ledger in ledgers for fragment in ledger.fragments
    )


def _is_crowded(ledger: LedgerMetadata, fragment: Fragment, machine_of: dict[str, str], free: set[str]) -> bool:
    if not ledger.closed or fragment.first_entry > ledger.last_entry:
        return False
    machines = [machine_of[bookie] for bookie in fragment.bookies]
    size, quorum = len(machines), ledger.write_quorum
    write_sets = [[machines[(first + step) % size] for step in range(quorum)] for first in range(size)]
    return bool(free.difference(machines)) and any(len({*one}) < quorum for one in write_sets)
