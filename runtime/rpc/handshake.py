"""Who is at the other end: the mutual handshake of the internal RPC, without a socket.

Metadata names nodes by id, ports get reused, and any process may connect. So both ends first say which cluster, role,
node and incarnation they are, and prove that they hold the matching key; see `rpc.keys`. Four messages, each a NOTIFY
frame whose code is the step:

    initiator                                   acceptor
    HELLO   versions, identity, nonce →
                                     ←          CHALLENGE  identity, nonce, HMAC over all of both, version to use
    PROOF   HMAC over the same       →
                                     ←          WELCOME   (or REFUSED with a reason, then close)

The two HMACs differ by a label, so that neither can be reflected; the nonces are fresh, so that neither can be
replayed. `versions` says which version of the protocol the two use.

`TRANSITIONS` has the states of either end. A message out of this order raises ProtocolError.

Versions of the internal RPC: how an old and a new version of Magnetar work side by side during an upgrade.

Each end says in the handshake which versions it speaks, from `oldest` to `newest`. Both use the highest that the two
have in common, `Handshake.version`. Without a common one the acceptor refuses, and names both ranges. The range of
the initiator and the version in use are part of the proofs, so nobody between the two ends can lower the version.

What may change without a new version, because the older end bears it:

- a new method: an older server answers with a typed error, so the caller goes on without it;
- a new argument with a default, sent only when it is needed: an older server refuses an argument that it does not know;
- a new key in a dataclass that travels, with a default: an older end ignores it;
- a new field at the end of HELLO and CHALLENGE: an older end ignores it.

Everything else is a new version: raise `NEWEST`, and do the older thing where `Handshake.version` is lower. Raise
`OLDEST` only in a later release. A cluster can skip no release between the two.

Version 1 had no range and no rule. It is not spoken here.
"""

import enum
import hashlib
import hmac
from collections.abc import Collection, Mapping
from typing import NamedTuple

from ...protocol.errors import HandshakeRefused, ProtocolError
from ...protocol.plain_values import is_list
from ..transitions import check_transition
from .keys import Identity, Keys
from .messages import pack, unpack


class RpcVersions(NamedTuple):
    """What one end speaks, both ends of the range included."""

    oldest: int
    newest: int

    def common(self, theirs: "RpcVersions") -> int:
        """The version that both ends use. Raises HandshakeRefused when there is none."""
        version = min(self.newest, theirs.newest)
        if version < max(self.oldest, theirs.oldest):
            raise HandshakeRefused(
                f"the peer speaks versions {theirs.oldest} to {theirs.newest} of the internal protocol, and this "
                f"process versions {self.oldest} to {self.newest}: upgrade the older one first, one release at a time"
            )
        return version


OLDEST = 2
NEWEST = 2
OURS = RpcVersions(OLDEST, NEWEST)


HELLO, CHALLENGE, PROOF, WELCOME, REFUSED = 1, 2, 3, 4, 5
NONCE_SIZE_BYTES = 16


class HandshakeState(enum.Enum):
    """See `TRANSITIONS`."""

    BEGUN = enum.auto()
    CHALLENGED = enum.auto()
    AUTHENTICATED = enum.auto()
    DONE = enum.auto()


_S = HandshakeState
TRANSITIONS: Mapping[HandshakeState, Collection[HandshakeState]] = {
    _S.BEGUN: (
        _S.CHALLENGED,  # an acceptor: HELLO came, CHALLENGE is sent
        _S.AUTHENTICATED,  # an initiator: the acceptor's proof holds, PROOF is sent
    ),
    _S.CHALLENGED: (_S.DONE,),  # the initiator's proof holds, WELCOME is sent
    _S.AUTHENTICATED: (_S.DONE,),  # WELCOME came
    _S.DONE: (),
}


class Handshake:
    """One end of a handshake. Each message to send is a step and its payload."""

    def __init__(
        self,
        ours: Identity,
        keys: Keys,
        nonce: bytes,
        *,
        initiator: bool,
        expected_node_id: str | None = None,
        versions: RpcVersions = OURS,
    ) -> None:
        self.version = 0
        """Of the protocol, that both ends use; known once `authenticated`."""
        self.ours = ours
        self.nonce = nonce
        self.peer = Identity("", "", "", "")
        """Who the other end says it is; proven once `authenticated`."""
        self.state = HandshakeState.BEGUN
        self._versions = versions
        self._keys = keys
        self._initiator = initiator
        self._expected_node_id = expected_node_id
        self._expected_proof = b""

    @property
    def authenticated(self) -> bool:
        """Whether the peer has proven who it is."""
        return self.state in (HandshakeState.AUTHENTICATED, HandshakeState.DONE)

    @property
    def done(self) -> bool:
        """Whether the peer knows, too, who this end is."""
        return self.state is HandshakeState.DONE

    def hello(self) -> tuple[int, bytes]:
        """What the initiator begins with."""
        return HELLO, encode_hello(self.ours, self.nonce, self._versions)

    def receive(self, step: int, payload: bytes) -> tuple[int, bytes] | None:
        """Take a message of the other end and return the answer to it, if there is one.

        Raises HandshakeRefused when the other end is not who it should be, ProtocolError when it makes no sense.
        """
        if self._initiator:
            if step == CHALLENGE and self.state is HandshakeState.BEGUN:
                return self._prove(payload)
            if step == WELCOME and self.state is HandshakeState.AUTHENTICATED:
                self._become(HandshakeState.DONE)
                return None
            if step == REFUSED:
                raise HandshakeRefused(payload.decode("utf-8", "replace"))
        elif step == HELLO and self.state is HandshakeState.BEGUN:
            return self._challenge(payload)
        elif step == PROOF and self.state is HandshakeState.CHALLENGED:
            check_peer(self.ours, self.peer, payload, self._expected_proof)
            self._become(HandshakeState.DONE)
            return WELCOME, b""
        raise ProtocolError("malformed handshake: a step came out of order")

    def _become(self, state: HandshakeState) -> None:
        check_transition(TRANSITIONS, f"the handshake of {self.ours.node_id}", self.state, state)
        self.state = state

    def _challenge(self, payload: bytes) -> tuple[int, bytes]:
        self.peer, nonce, theirs = decode_hello(payload)
        self.version = self._versions.common(theirs)
        key = self._keys.accepting(self.ours, self.peer)
        terms = (self.peer, nonce, self.ours, self.nonce, (theirs.oldest, theirs.newest, self.version))
        self._expected_proof = prove(key, "initiator", *terms)
        self._become(HandshakeState.CHALLENGED)
        proof = prove(key, "acceptor", *terms)
        return CHALLENGE, encode_challenge(self.ours, self.nonce, proof, self.version)

    def _prove(self, payload: bytes) -> tuple[int, bytes]:
        peer, nonce, proof, version = decode_challenge(payload)
        if not self._versions.oldest <= version <= self._versions.newest:
            raise ProtocolError(f"malformed handshake: version {version} was not offered")
        key = self._keys.calling(self.ours, peer.role)
        terms = (self.ours, self.nonce, peer, nonce, (self._versions.oldest, self._versions.newest, version))
        check_peer(self.ours, peer, proof, prove(key, "acceptor", *terms), self._expected_node_id)
        self.peer, self.version = peer, version
        self._become(HandshakeState.AUTHENTICATED)
        return PROOF, prove(key, "initiator", *terms)


def encode_hello(identity: Identity, nonce: bytes, versions: RpcVersions = OURS) -> bytes:
    return pack([versions.newest, list(identity), nonce, versions.oldest])


def decode_hello(payload: bytes) -> tuple[Identity, bytes, RpcVersions]:
    """Raises ProtocolError. A HELLO without its last field is of a peer that speaks one version only."""
    newest, fields, nonce, *more = _unpack(payload, 3)
    oldest = more[0] if more else newest
    if not isinstance(newest, int) or not isinstance(oldest, int) or not 0 < oldest <= newest < 1 << 31:
        raise ProtocolError("malformed handshake: bad versions")
    return _identity(fields), _nonce(nonce), RpcVersions(oldest, newest)


def encode_challenge(identity: Identity, nonce: bytes, proof: bytes, version: int = OURS.newest) -> bytes:
    return pack([list(identity), nonce, proof, version])


def decode_challenge(payload: bytes) -> tuple[Identity, bytes, bytes, int]:
    fields, nonce, proof, version, *_ = _unpack(payload, 4)
    if not isinstance(proof, bytes):
        raise ProtocolError("malformed handshake: the proof is not bytes")
    if not isinstance(version, int):
        raise ProtocolError("malformed handshake: the version is not a number")
    return _identity(fields), _nonce(nonce), proof, version


def prove(
    key: bytes,
    label: str,
    initiator: Identity,
    initiator_nonce: bytes,
    acceptor: Identity,
    acceptor_nonce: bytes,
    versions: tuple[int, int, int] = (OURS.oldest, OURS.newest, OURS.newest),
) -> bytes:
    """The HMAC-SHA256 that `label` ("initiator" or "acceptor") owes to the other end.

    `versions` are the oldest and newest of the initiator, and the one in use.
    """
    text = pack([label, list(initiator), initiator_nonce, list(acceptor), acceptor_nonce, list(versions)])
    return hmac.new(key, text, hashlib.sha256).digest()


def check_peer(
    ours: Identity, theirs: Identity, proof: bytes, expected_proof: bytes, expected_node_id: str | None = None
) -> None:
    """Raises HandshakeRefused unless the proof holds and the peer is of our cluster (and is the expected node)."""
    if theirs.cluster_id != ours.cluster_id:
        raise HandshakeRefused(
            f"{theirs.node_id} belongs to cluster {theirs.cluster_id}, and this process to {ours.cluster_id}"
        )
    if not hmac.compare_digest(proof, expected_proof):
        raise HandshakeRefused(
            f"{theirs.role} {theirs.node_id} does not hold the key of that node: its key comes from another cluster's "
            "secret, or belongs to another node"
        )
    if expected_node_id is not None and theirs.node_id != expected_node_id:
        raise HandshakeRefused(f"{theirs.role} {theirs.node_id} answered at the address of {expected_node_id}")


def _unpack(payload: bytes, fields: int) -> list[object]:
    """So many fields, and perhaps some of a later version behind them."""
    try:
        value = unpack(payload)
    except ProtocolError as error:
        raise ProtocolError(f"malformed handshake: {error}") from error
    if not is_list(value) or len(value) < fields:
        raise ProtocolError("malformed handshake: wrong number of fields")
    return value


def _identity(fields: object) -> Identity:
    texts = [field for field in fields if isinstance(field, str)] if is_list(fields) and len(fields) == 4 else []
    if len(texts) != 4:
        raise ProtocolError("malformed handshake: the identity is not four strings")
    return Identity(*texts)


def _nonce(nonce: object) -> bytes:
    if not isinstance(nonce, bytes) or len(nonce) != NONCE_SIZE_BYTES:
        raise ProtocolError("malformed handshake: bad nonce")
    return nonce
