"""What is stored of a topic before anybody opens it: its subscriptions, which begin at the topic's first entry.

A partition that comes with a growth gets these records while no client knows it and no broker has a grant for it. The
cursors are stored first, then the chain record. An owner looks for cursors only where a chain record is. So it finds
all of them or, before the chain record is stored, none.
"""

from collections.abc import Mapping, Sequence

from ...protocol.errors import ConditionFailed, KeyExists, MagnetarError, NoSuchKey
from ...protocol.message_id import EARLIEST_POSITION
from ..metadata import keys as metadata_keys
from ..metadata.store import Guard, MetadataStore, Versioned, Write
from .chain import LedgerChain
from .cursor_state import CursorState, read_back
from .cursor_storage import CursorKind, CursorRecord
from .record import ManagedLedgerRecord

WRITES_PER_TRANSACTION = 250


def subscription_properties(value: bytes) -> Mapping[str, str] | None:
    """The properties of the subscription with this cursor record. None where they lie in the cursor's ledger."""
    record = CursorRecord.unpack(value)
    if record.ledger_id is not None or record.state is None:
        return None
    return read_back(record.state, []).properties


def is_subscription(value: bytes) -> bool:
    """Whether a cursor record is that of a subscription. Raises MetadataError for another record."""
    return CursorRecord.unpack(value).kind is CursorKind.SUBSCRIPTION


async def store_beginnings(
    store: MetadataStore,
    topics: Mapping[str, Mapping[str, Versioned]],
    subscriptions: Mapping[str, Mapping[str, str]],
    epoch: int,
    created_ms: int,
    needs: Guard,
) -> None:
    """Store `subscriptions` (name → properties) and a chain record of topics that nobody has opened, by their paths.

    `topics` says which cursors each has from an earlier try: those that are no longer wanted are deleted. All of it is
    written only while `needs` holds. It can be repeated after any error. Raises ConditionFailed (`needs` does not
    hold), MetadataUnavailable, OutcomeUnknown.
    """
    chain = LedgerChain([])
    writes: list[Write] = []
    for path, stored in topics.items():
        for name, record in stored.items():
            if name not in subscriptions:
                writes.append(Write(metadata_keys.cursor(path, name), None, record.version, needs))
        for name, properties in subscriptions.items():
            if name not in stored:
                state = CursorState(chain, EARLIEST_POSITION, properties)
                value = CursorRecord(epoch, None, state.pack()).pack()
                writes.append(Write(metadata_keys.cursor(path, name), value, None, needs))
        begun = ManagedLedgerRecord(epoch, created_ms=created_ms).pack()
        writes.append(Write(metadata_keys.managed_ledger(path), begun, None, needs))
    for first in range(0, len(writes), WRITES_PER_TRANSACTION):
        await _write_all(store, writes[first : first + WRITES_PER_TRANSACTION])


async def _write_all(store: MetadataStore, writes: Sequence[Write]) -> None:
    """Carry out a group. What an earlier try has stored or deleted is no error."""
    results = await store.write_many(writes)
    for error in results:
        if isinstance(error, ConditionFailed):
            raise error
        if isinstance(error, MagnetarError) and not isinstance(error, KeyExists | NoSuchKey):
            raise error
