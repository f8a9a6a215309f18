"""Roles on the internal RPC: who may ask for which data operation, and who may write which records.

Who may call which method is declared beside the method, in the contracts. No role can call what is not declared. A
reader (a bulk read in a Ray task or in Spark) finds topics, learns where they end, pins and reads them. It creates,
changes and deletes nothing.
"""

from collections.abc import Mapping, Sequence

from ...protocol.bookie_wire import BookieOp
from ...protocol.errors import AuthorizationError
from ...protocol.names import ROLE_ADMIN, ROLE_BOOKIE, ROLE_BROKER, ROLE_COORDINATOR, ROLE_READER
from ...runtime.rpc.connection import RpcConnection
from ...runtime.rpc.contract import Roles
from ...runtime.rpc.keys import Identity
from ...storage.metadata import keys as metadata_keys

ADMIN: Roles = frozenset({ROLE_ADMIN})
BROKER: Roles = frozenset({ROLE_BROKER})
COORDINATOR: Roles = frozenset({ROLE_COORDINATOR})
READER: Roles = frozenset({ROLE_READER})
BOOKIE: Roles = frozenset({ROLE_BOOKIE})
MEMBERS: Roles = frozenset({ROLE_BROKER, ROLE_BOOKIE, ROLE_ADMIN})
ENTRIES: Roles = BROKER | COORDINATOR
"""Brokers write and recover ledgers; so does the coordinator's auditor. A bookie only reads, to copy what it lacks."""

OP_HEARTBEAT = 1

BOOKIE_OPERATIONS: Mapping[int, Roles] = {
    BookieOp.ADD: ENTRIES,
    BookieOp.READ: ENTRIES | READER | BOOKIE,
    BookieOp.FENCE: ENTRIES,
    BookieOp.READ_LAC: ENTRIES | READER,
}

COORDINATOR_OPERATIONS: Mapping[int, Roles] = {OP_HEARTBEAT: MEMBERS}

BROKER_RECORDS = (
    metadata_keys.LEDGERS_PREFIX,
    metadata_keys.MANAGED_PREFIX,
    metadata_keys.CURSORS_PREFIX,
    metadata_keys.PINS_PREFIX,
    metadata_keys.COUNTERS_PREFIX,
    metadata_keys.SCHEMAS_PREFIX,
)
"""Beginnings of the keys that a broker writes: what its topics are stored in. All else is the coordinator's."""


def check_writable(peer: Identity, keys: Sequence[str]) -> None:
    """Raise AuthorizationError unless all records are such as `peer` writes.

    A bookie writes its own cookie, and takes numbers of the counter of ledgers.
    """
    if peer.role == ROLE_BROKER:
        foreign = [key for key in keys if not key.startswith(BROKER_RECORDS)]
    elif peer.role == ROLE_BOOKIE:
        own = (metadata_keys.bookie(peer.node_id), metadata_keys.counter(metadata_keys.LEDGER_COUNTER))
        foreign = [key for key in keys if key not in own]
    else:
        foreign = list(keys)
    if foreign:
        raise AuthorizationError(f"{peer.role} {peer.node_id} may not write the metadata record {foreign[0]!r:.200}")


def check_topic_creation(caller: RpcConnection, create: bool | None) -> None:
    """Raise AuthorizationError for a reader that might create the topic that it asks for."""
    if create is not False and caller.peer.role == ROLE_READER:
        raise AuthorizationError(f"{caller.peer.node_id} may not create topics: a reader must call with create=False")
