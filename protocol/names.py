"""Names that several rooms must agree on: actors, roles, versions.

Metadata, cookies and logs carry a node's id (`bookie-1`, `broker-2`). The actor's name has the product's name in front
of it, because other programs in the Ray cluster share Ray's names.
"""

RAY_NAMESPACE = "magnetar"

COORDINATOR_ID = "coordinator"
DEPUTY_ID = "deputy"
"""Stands in for a coordinator whose machine is lost."""
ADMIN_ID = "admin"

COORDINATOR_ACTOR = "magnetar-coordinator"
DEPUTY_ACTOR = "magnetar-deputy"
ADMIN_ACTOR = "magnetar-admin"

ROLE_COORDINATOR = "coordinator"
ROLE_BOOKIE = "bookie"
ROLE_BROKER = "broker"
ROLE_ADMIN = "admin"
ROLE_READER = "reader"
ROLES = (ROLE_COORDINATOR, ROLE_BOOKIE, ROLE_BROKER, ROLE_ADMIN, ROLE_READER)


VERSION = "0.1.0"
SERVER_VERSION = f"Magnetar-{VERSION}"
CLIENT_VERSION = f"Magnetar-Python-{VERSION}"

# The newest version of Pulsar's protocol that this code speaks (`ProtocolVersion.v21`).
PROTOCOL_VERSION = 21
RAY_METHOD = "ray"
"""The method of authentication of clients that find the cluster through Ray."""
METHOD_HEADER = "X-Pulsar-Auth-Method-Name"
"""The HTTP header that names a method of authentication, as in Pulsar."""


def bookie_id(number: int) -> str:
    """The id of the bookie with that number, counted from 1: `bookie-1`."""
    return f"{ROLE_BOOKIE}-{number}"


def broker_id(number: int) -> str:
    """The id of the broker with that number, counted from 1: `broker-1`."""
    return f"{ROLE_BROKER}-{number}"


READ_CREDENTIALS_PATH = "/admin/v2/read-credentials"
"""The admin's path of what a bulk reader needs."""

TLS_PORT = 6651
"""Pulsar's port for TLS. A broker without TLS there would leave clients with `pulsar+ssl://` without an answer."""


def port_of_broker(first_port: int, number: int) -> int:
    """The port of the broker with that number: one after the other from that of broker-1 on, without `TLS_PORT`."""
    port = first_port + number - 1
    return port + 1 if first_port < TLS_PORT <= port else port


def tls_port_of_broker(first_port: int, number: int) -> int:
    """The port for TLS of the broker with that number. Those behind `first_port` belong to brokers without TLS, so the
    others are 1,000 above: 6651, 7652, 7653 and so on.
    """
    return first_port if number == 1 else first_port + 999 + number


def actor_name(node_id: str) -> str:
    """The Ray actor's name of a node: `magnetar-bookie-1` for `bookie-1`."""
    return f"magnetar-{node_id}"
