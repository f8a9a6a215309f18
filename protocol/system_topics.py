"""Names of system topics: topics that belong to the cluster. Users cannot create them, and lists leave them out.

As in Pulsar's documentation: `__change_events` and `__transaction_buffer_snapshot` in any namespace,
`…__transaction_pending_ack` beside any topic, `transaction_coordinator_assign…`, `__transaction_log_…` and
`resource-usage` in `pulsar/system`, and `heartbeat` in a namespace `pulsar/<host>:<port>` for each broker.
"""

from .topics import NON_PERSISTENT, PERSISTENT, TopicName

SYSTEM_TENANT = "pulsar"
SYSTEM_NAMESPACE = f"{SYSTEM_TENANT}/system"
HEARTBEAT = "heartbeat"

TRANSACTION_COORDINATORS = f"persistent://{SYSTEM_NAMESPACE}/transaction_coordinator_assign"
"""By looking this topic up, clients find the coordinators of transactions. It is never stored."""

_ANYWHERE = frozenset(
    {
        "__change_events",
        "__transaction_buffer_snapshot",
        "__transaction_buffer_snapshot_segments",
        "__transaction_buffer_snapshot_indexes",
    }
)
_ENDING = "__transaction_pending_ack"
_IN_SYSTEM_NAMESPACE = {
    PERSISTENT: ("transaction_coordinator_assign", "__transaction_log_"),
    NON_PERSISTENT: ("resource-usage",),
}
"""Beginnings of names, by domain."""


def is_system_topic(full_name: str) -> bool:
    """Whether a topic or partition, by its full name, is one of the cluster's own."""
    domain, _, rest = full_name.partition("://")
    tenant, _, rest = rest.partition("/")
    namespace, _, local = rest.partition("/")
    whole, suffix, number = local.rpartition("-partition-")
    if suffix and number.isdigit():
        local = whole
    if local in _ANYWHERE or local.endswith(_ENDING):
        return True
    if tenant != SYSTEM_TENANT:
        return False
    if namespace == "system":
        return local.startswith(_IN_SYSTEM_NAMESPACE.get(domain, ()))
    return local == HEARTBEAT and ":" in namespace


def heartbeat_topic(address: str) -> TopicName:
    """The topic that the health check of a broker writes and reads. `address` is `host:port`; raises
    InvalidTopicName."""
    return TopicName.of(SYSTEM_TENANT, address, HEARTBEAT)
