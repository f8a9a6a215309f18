"""The contracts, and who may call what: complete, and with nothing for readers that changes anything."""

import pytest

from magnetar.actors.bookie.service import BookieService
from magnetar.actors.broker.methods import BrokerRpc
from magnetar.actors.coordinator.service import CoordinatorService
from magnetar.actors.members import permissions
from magnetar.actors.members.coordinator_link import CoordinatorPushes
from magnetar.protocol.errors import AuthorizationError
from magnetar.protocol.names import ROLES
from magnetar.runtime.rpc.connection import RpcService
from magnetar.runtime.rpc.contract import Contract
from magnetar.runtime.rpc.keys import CALLS, Identity
from magnetar.storage.metadata import keys as metadata_keys

SERVICES = {"coordinator": CoordinatorService, "broker": BrokerRpc, "bookie": BookieService}
FOR_READERS = {
    "coordinator": {"hello", "bookies", "brokers", "assign", "partitions"},
    "broker": {"last_message_id", "plan_read", "prolong_pin", "schemas", "unpin"},
    "bookie": set[str](),
}


def all_roles(service: type[RpcService]) -> list[frozenset[str]]:
    return [*(method.roles for method in service.contract.methods.values()), *service.operation_roles.values()]


def handling(part: type[Contract], method: str) -> list[type]:
    """The classes of services that have a handler of a method."""
    below = [one for name in part.__subclasses__() for one in (name, *name.__subclasses__())]
    return [one for one in {*below} if one.__module__.startswith("magnetar.") and method in vars(one)]


@pytest.mark.parametrize("service", [*SERVICES.values(), CoordinatorPushes])
def test_each_method_is_declared_once_and_one_class_handles_it(service: type[RpcService]) -> None:
    assert service.contract.methods
    for name in service.contract.methods:
        (part,) = [one for one in service.contract.__mro__ if name in vars(one)]
        assert issubclass(part, Contract)
        (handler,) = handling(part, name)
        assert getattr(handler, name).__doc__ is None, f"{handler.__name__}.{name} says again what its contract says"


@pytest.mark.parametrize("service", [*SERVICES.values(), CoordinatorPushes])
def test_every_method_and_operation_names_known_roles(service: type[RpcService]) -> None:
    for roles in all_roles(service):
        assert roles
        assert roles <= set(ROLES)


@pytest.mark.parametrize("role", SERVICES)
def test_who_may_call_has_the_key_to_connect(role: str) -> None:
    service = SERVICES[role]
    for roles in all_roles(service):
        assert all(role in CALLS[caller] for caller in roles)


@pytest.mark.parametrize("role", SERVICES)
def test_readers_may_call_what_is_listed_here_and_no_more(role: str) -> None:
    open_to_readers = {name for name, method in SERVICES[role].contract.methods.items() if "reader" in method.roles}
    assert open_to_readers == FOR_READERS[role]


@pytest.mark.parametrize(
    ("role", "key", "allowed"),
    [
        ("broker", metadata_keys.ledger(7), True),
        ("broker", metadata_keys.CLUSTER, False),
        ("broker", metadata_keys.COORDINATOR_EPOCH, False),
        ("broker", metadata_keys.bookie("bookie-1"), False),
        ("broker", metadata_keys.ASSIGNMENTS_PREFIX + "persistent/public/default/t", False),
        ("bookie", metadata_keys.bookie("bookie-1"), True),
        ("bookie", metadata_keys.bookie("bookie-2"), False),
        ("bookie", metadata_keys.ledger(7), False),
        ("bookie", metadata_keys.counter(metadata_keys.LEDGER_COUNTER), True),
        ("admin", metadata_keys.ledger(7), False),
        ("reader", metadata_keys.pin("persistent/public/default/t", "pin"), False),
    ],
)
def test_members_write_their_own_records_only(role: str, key: str, allowed: bool) -> None:
    peer = Identity("c", role, f"{role}-1", "1")
    if allowed:
        permissions.check_writable(peer, [key])
    else:
        with pytest.raises(AuthorizationError, match=f"{role}-1 may not write"):
            permissions.check_writable(peer, [metadata_keys.counter(metadata_keys.LEDGER_COUNTER), key])
