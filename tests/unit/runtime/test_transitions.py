"""Tables of states: what may follow what, and what a forbidden step looks like."""

import enum
from collections.abc import Collection, Mapping

import pytest

from magnetar.actors.bookie import service as bookie_service
from magnetar.actors.broker import service as broker_service
from magnetar.actors.connections import connection as server_connection
from magnetar.actors.connections import forwarding
from magnetar.actors.coordinator import membership
from magnetar.actors.delays import buckets
from magnetar.actors.members import coordinator_link
from magnetar.actors.policies import watch
from magnetar.actors.processes import supervisor
from magnetar.actors.topics import access_modes
from magnetar.client.core import connection, liveness, registration
from magnetar.protocol.errors import MagnetarError
from magnetar.runtime.rpc import connection as rpc_connection
from magnetar.runtime.rpc import handshake
from magnetar.runtime.transitions import ForbiddenTransition, check_transition
from magnetar.storage.bookie import journal, journal_files, segment
from magnetar.storage.ledger import bookie_client, lost_bookies, recovery_state, writer_state
from magnetar.storage.managed import chain, cursor, cursor_storage, life
from magnetar.storage.metadata import ledger_metadata

TABLES: dict[str, Mapping[enum.Enum, Collection[enum.Enum]]] = {
    "connections of the internal RPC": rpc_connection.TRANSITIONS,
    "handshakes of the internal RPC": handshake.TRANSITIONS,
    "sessions of members": membership.TRANSITIONS,
    "bookies": bookie_service.TRANSITIONS,
    "brokers": broker_service.TRANSITIONS,
    "connections of brokers": server_connection.TRANSITIONS,
    "forwarded connections": forwarding.TRANSITIONS,
    "links to the coordinator": coordinator_link.TRANSITIONS,
    "views of the slots": coordinator_link.VIEW_TRANSITIONS,
    "watches of policies": watch.TRANSITIONS,
    "supervised nodes": supervisor.TRANSITIONS,
    "segments": segment.TRANSITIONS,
    "batches of journals": journal.BATCH_TRANSITIONS,
    "journal files that are being made": journal_files.TRANSITIONS,
    "channels to bookies": bookie_client.TRANSITIONS,
    "bookies that may be lost": lost_bookies.TRANSITIONS,
    "records of ledgers": ledger_metadata.TRANSITIONS,
    "writers of ledgers": writer_state.TRANSITIONS,
    "slots of writers": writer_state.SLOT_TRANSITIONS,
    "fencing of ledgers": recovery_state.FENCING_TRANSITIONS,
    "reading of fenced ledgers": recovery_state.READING_TRANSITIONS,
    "managed ledgers": life.TRANSITIONS,
    "writers of chains": chain.TRANSITIONS,
    "writers of cursors": cursor.WRITER_TRANSITIONS,
    "storage of cursors": cursor_storage.TRANSITIONS,
    "connections of clients": connection.TRANSITIONS,
    "watches of silent brokers": liveness.TRANSITIONS,
    "registered producers and consumers": registration.TRANSITIONS,
    "buckets of delayed messages": buckets.TRANSITIONS,
    "access to topics": access_modes.TRANSITIONS,
}  # type: ignore[dict-item]


class Door(enum.Enum):
    OPEN = enum.auto()
    SHUT = enum.auto()
    LOCKED = enum.auto()
    GONE = enum.auto()


TABLE = {
    Door.OPEN: (Door.SHUT, Door.GONE),
    Door.SHUT: (Door.OPEN, Door.LOCKED, Door.GONE),
    Door.LOCKED: (Door.SHUT,),
    Door.GONE: (),
}


@pytest.mark.parametrize("name", TABLES)
def test_every_state_has_a_row_and_all_but_the_first_can_be_reached(name: str) -> None:
    table = TABLES[name]
    states = list(type(next(iter(table))))
    assert list(table) == states
    reached = [states[0]]
    for state in reached:
        reached += [following for following in table[state] if following not in reached]
    assert sorted(reached, key=states.index) == states


@pytest.mark.parametrize(
    ("name", "state", "following"),
    [
        ("bookies", "FAILED", "SERVING"),
        ("bookies", "CLOSED", "STARTING"),
        ("brokers", "CLOSED", "SERVING"),
        ("brokers", "STOPPED", "SERVING"),
        ("connections of brokers", "CLOSED", "CONNECTED"),
        ("slots of writers", "EMPTY", "FAILED"),
        ("slots of writers", "LIVE", "EMPTY"),
        ("links to the coordinator", "ENDED", "CONNECTING"),
        ("links to the coordinator", "CONNECTING", "REGISTERED"),
    ],
)
def test_a_step_that_no_owner_may_take_is_in_no_table(name: str, state: str, following: str) -> None:
    table = TABLES[name]
    states = type(next(iter(table)))
    with pytest.raises(ForbiddenTransition):
        check_transition(table, name, states[state], states[following])


def test_a_step_of_the_table_passes() -> None:
    check_transition(TABLE, "the door", Door.OPEN, Door.SHUT)
    check_transition(TABLE, "the door", Door.LOCKED, Door.SHUT)


@pytest.mark.parametrize(
    ("state", "following"),
    [(Door.OPEN, Door.LOCKED), (Door.OPEN, Door.OPEN), (Door.GONE, Door.OPEN), (Door.LOCKED, Door.GONE)],
)
def test_a_step_that_the_table_does_not_have_is_refused_by_name(state: Door, following: Door) -> None:
    message = f"the door cannot go from {state.name.lower()} to {following.name.lower()}"
    with pytest.raises(ForbiddenTransition, match=message):
        check_transition(TABLE, "the door", state, following)


def test_a_forbidden_step_is_no_error_that_callers_retry() -> None:
    assert not issubclass(ForbiddenTransition, MagnetarError)
