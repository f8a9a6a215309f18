"""What a process proves itself with on the internal RPC: keys derived from the cluster's secret, one per role and node.

    accepting key of a role             A(R)      = HMAC(secret, "accept", R)
    calling key of a node for a role    C(N → R)  = HMAC(A(R), "call", role of N, id of N)

A process that accepts connections holds the accepting key of its own role, and can so check every caller. A process
that calls holds its own calling keys, and can derive no others from them. So the coordinator can verify a node's
identity: the keys of a bookie or a reader do not let it pose as a broker. Only who holds the secret can make keys:
`start`, which stores it, and the coordinator, which launches the others.

A limit: all nodes of a role share its accepting key. The keys of one bookie let a thief pose to other bookies as any
caller, and to callers as another bookie. They do not work at the coordinator, so the thief can neither register nor
write metadata.

Readers come and go under any name, so they share one set of keys, which the coordinator and the admin give out.

Brokers and the admin also hold the client key, HMAC(secret, "clients"). It signs the tokens that the coordinator gives
to clients which find the cluster through Ray.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypedDict

from ...protocol.errors import HandshakeRefused
from ...protocol.names import ROLE_ADMIN, ROLE_BOOKIE, ROLE_BROKER, ROLE_COORDINATOR, ROLE_READER
from .messages import pack

CALLS: Mapping[str, tuple[str, ...]] = {
    ROLE_COORDINATOR: (ROLE_BROKER, ROLE_BOOKIE),
    ROLE_BROKER: (ROLE_COORDINATOR, ROLE_BOOKIE),
    ROLE_BOOKIE: (ROLE_COORDINATOR, ROLE_BOOKIE),
    ROLE_ADMIN: (ROLE_COORDINATOR, ROLE_BROKER),
    ROLE_READER: (ROLE_COORDINATOR, ROLE_BROKER, ROLE_BOOKIE),
}
"""Role → the roles that it connects to."""
ACCEPTING = (ROLE_COORDINATOR, ROLE_BROKER, ROLE_BOOKIE)
CHECKING_CLIENTS = (ROLE_BROKER, ROLE_ADMIN)


class Identity(NamedTuple):
    """A process of a cluster. `incarnation` changes with each start, so that a restarted node is told from its past
    self.
    """

    cluster_id: str
    role: str
    node_id: str
    incarnation: str


class Keys(Protocol):
    """What one process can prove, and what it can check."""

    def calling(self, ours: Identity, acceptor_role: str) -> bytes:
        """The key by which `ours` and an acceptor of that role prove themselves to each other.

        Raises HandshakeRefused if this process has none.
        """
        ...

    def accepting(self, ours: Identity, caller: Identity) -> bytes:
        """The same key as the acceptor `ours` derives it for `caller`. Raises HandshakeRefused if it cannot."""
        ...

    def reader(self) -> "NodeKeys":
        """The keys for a process that may read in bulk. Raises HandshakeRefused if this process gives out none."""
        ...

    @property
    def client_key(self) -> bytes:
        """The key of clients' tokens; empty if this process checks none."""
        ...


@dataclass(frozen=True)
class NodeKeys:
    """The keys of one node. Pickles; never shown."""

    role: str
    node_id: str
    accepting_key: bytes = field(repr=False)
    """Empty for a role that accepts no connections."""
    calling_keys: Mapping[str, bytes] = field(repr=False)
    """Role of the acceptor → key."""
    reader_keys: Mapping[str, bytes] = field(default_factory=dict[str, bytes], repr=False)
    """Calling keys of bulk readers, for a process that gives them out."""
    client_key: bytes = field(default=b"", repr=False)
    """See `Keys`."""

    def calling(self, ours: Identity, acceptor_role: str) -> bytes:
        key = self.calling_keys.get(acceptor_role)
        if key is None:
            raise HandshakeRefused(f"{ours.role} {ours.node_id} has no key for a node of role {acceptor_role!r:.40}")
        return key

    def accepting(self, ours: Identity, caller: Identity) -> bytes:
        if not self.accepting_key:
            raise HandshakeRefused(f"{ours.role} {ours.node_id} accepts no connections")
        return _calling_key(self.accepting_key, caller.role, caller.node_id)

    def reader(self) -> "NodeKeys":
        if not self.reader_keys:
            raise HandshakeRefused(f"{self.role} {self.node_id} gives out no keys for bulk reads")
        return NodeKeys(ROLE_READER, "", b"", self.reader_keys)


class ReadCredentials(TypedDict):
    """What a bulk reader is handed: its keys, and where the coordinator takes calls (host, port)."""

    cluster_id: str
    keys: NodeKeys
    coordinator: tuple[str, int]


class RootKeys:
    """The keys of every node, made from the cluster's secret."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def node(self, role: str, node_id: str) -> NodeKeys:
        """What the process of one node is handed."""
        accepting_key = self._accepting_key(role) if role in ACCEPTING else b""
        handed_on = self._calls(ROLE_READER, "") if role == ROLE_ADMIN else {}
        client_key = self.client_key if role in CHECKING_CLIENTS else b""
        return NodeKeys(role, node_id, accepting_key, self._calls(role, node_id), handed_on, client_key)

    @property
    def client_key(self) -> bytes:
        return _derive(self._secret, "clients")

    def _calls(self, role: str, node_id: str) -> dict[str, bytes]:
        return {called: _calling_key(self._accepting_key(called), role, node_id) for called in CALLS.get(role, ())}

    def reader(self) -> NodeKeys:
        return self.node(ROLE_READER, "")

    def calling(self, ours: Identity, acceptor_role: str) -> bytes:
        return _calling_key(self._accepting_key(acceptor_role), ours.role, ours.node_id)

    def accepting(self, ours: Identity, caller: Identity) -> bytes:
        return _calling_key(self._accepting_key(ours.role), caller.role, caller.node_id)

    def _accepting_key(self, role: str) -> bytes:
        return _derive(self._secret, "accept", role)


def _calling_key(accepting_key: bytes, role: str, node_id: str) -> bytes:
    return _derive(accepting_key, "call", role, "" if role == ROLE_READER else node_id)


def _derive(key: bytes, *labels: str) -> bytes:
    return hmac.new(key, pack(["magnetar-rpc-1", *labels]), hashlib.sha256).digest()
