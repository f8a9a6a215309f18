"""Keys of the internal RPC: what one process holds makes it nobody else."""

import pickle

import pytest

from magnetar.protocol.errors import HandshakeRefused, ProtocolError
from magnetar.protocol.names import ROLES
from magnetar.runtime.rpc.handshake import CHALLENGE, PROOF, WELCOME, Handshake, HandshakeState
from magnetar.runtime.rpc.keys import CALLS, Identity, Keys, RootKeys
from magnetar.runtime.transitions import ForbiddenTransition

ROOT = RootKeys(b"s" * 32)
COORDINATOR = Identity("c", "coordinator", "coordinator", "1")
BOOKIE = Identity("c", "bookie", "bookie-1", "1")
BROKER = Identity("c", "broker", "broker-1", "1")
READER = Identity("c", "reader", "reader-7", "1")
PAIRS = [
    *((caller, COORDINATOR) for caller in (BROKER, BOOKIE, READER)),
    *((caller, BROKER) for caller in (COORDINATOR, READER)),
    *((caller, BOOKIE) for caller in (COORDINATOR, BROKER, READER)),
]


def shake(caller: Identity, caller_keys: Keys, acceptor: Identity, acceptor_keys: Keys) -> tuple[Handshake, Handshake]:
    """A whole handshake. Raises HandshakeRefused from whichever end refuses."""
    ours = Handshake(caller, caller_keys, b"i" * 16, initiator=True)
    theirs = Handshake(acceptor, acceptor_keys, b"a" * 16, initiator=False)
    answer = theirs.receive(*ours.hello())
    while answer is not None:
        step, payload = answer
        answer = (ours if step not in (PROOF,) else theirs).receive(step, payload)
    return ours, theirs


def keys_of(identity: Identity) -> Keys:
    return ROOT.reader() if identity.role == "reader" else ROOT.node(identity.role, identity.node_id)


@pytest.mark.parametrize(
    ("caller", "acceptor"),
    PAIRS,
    ids=lambda identity: identity.role,
)
def test_nodes_with_their_own_keys_know_each_other(caller: Identity, acceptor: Identity) -> None:
    ours, theirs = shake(caller, keys_of(caller), acceptor, keys_of(acceptor))
    assert ours.done
    assert theirs.done
    assert (ours.peer, theirs.peer) == (acceptor, caller)


@pytest.mark.parametrize(
    ("holder", "claimed"),
    [
        (BROKER, BROKER._replace(node_id="broker-2")),
        (BOOKIE, BOOKIE._replace(node_id="bookie-2")),
        (BOOKIE, BROKER),
        (READER, BROKER),
        (READER, Identity("c", "admin", "admin", "1")),
        (READER, COORDINATOR),
        (BROKER, Identity("c", "admin", "admin", "1")),
    ],
    ids=lambda identity: identity.node_id,
)
def test_a_nodes_keys_do_not_prove_another_node_to_the_coordinator(holder: Identity, claimed: Identity) -> None:
    with pytest.raises(HandshakeRefused):
        shake(claimed, keys_of(holder), COORDINATOR, keys_of(COORDINATOR))


def test_a_caller_does_not_believe_an_acceptor_of_another_role() -> None:
    """A broker's process that listens on a port where a bookie is looked for."""
    with pytest.raises(HandshakeRefused):
        shake(BROKER, keys_of(BROKER), BOOKIE, keys_of(BROKER))
    with pytest.raises(HandshakeRefused):
        shake(BOOKIE, keys_of(BOOKIE), COORDINATOR, keys_of(BOOKIE))


def test_a_role_connects_only_to_the_roles_that_it_has_keys_for() -> None:
    admin = Identity("c", "admin", "admin", "1")
    with pytest.raises(HandshakeRefused, match="no key for a node of role 'bookie'"):
        shake(admin, keys_of(admin), BOOKIE, keys_of(BOOKIE))


def test_another_clusters_secret_is_refused_by_both_ends() -> None:
    other = RootKeys(b"x" * 32)
    with pytest.raises(HandshakeRefused):
        shake(BROKER, other.node("broker", "broker-1"), BOOKIE, keys_of(BOOKIE))
    theirs = Handshake(BOOKIE, keys_of(BOOKIE), b"a" * 16, initiator=False)
    answer = theirs.receive(*Handshake(BROKER, other.node("broker", "broker-1"), b"i" * 16, initiator=True).hello())
    assert answer is not None
    assert answer[0] == CHALLENGE
    with pytest.raises(HandshakeRefused):
        theirs.receive(PROOF, b"p" * 32)


def test_keys_pickle_and_are_not_shown() -> None:
    keys = ROOT.node("broker", "broker-1")
    again = pickle.loads(pickle.dumps(keys))
    assert again == keys
    shown = repr(keys)
    assert shown == "NodeKeys(role='broker', node_id='broker-1')"
    assert "magnetar.runtime.rpc.keys.RootKeys object" in repr(ROOT)


def test_no_two_nodes_have_a_key_in_common() -> None:
    nodes = [ROOT.node(role, name) for role in ROLES for name in ("one", "two") if role != "reader"] + [ROOT.reader()]
    calling = [key for node in nodes for key in node.calling_keys.values()]
    assert len(set(calling)) == len(calling)
    assert not set(calling) & {node.accepting_key for node in nodes}
    assert all(set(node.calling_keys) == set(CALLS[node.role]) for node in nodes)


def test_each_end_of_a_handshake_goes_through_its_states_and_no_step_twice() -> None:
    ours = Handshake(BROKER, keys_of(BROKER), b"i" * 16, initiator=True)
    theirs = Handshake(BOOKIE, keys_of(BOOKIE), b"a" * 16, initiator=False)
    hello = ours.hello()
    challenge = theirs.receive(*hello)
    assert challenge is not None and theirs.state is HandshakeState.CHALLENGED and not theirs.authenticated
    with pytest.raises(ProtocolError, match="out of order"):
        theirs.receive(*hello)
    with pytest.raises(ProtocolError, match="out of order"):
        ours.receive(WELCOME, b"")
    proof = ours.receive(*challenge)
    assert proof is not None and ours.state is HandshakeState.AUTHENTICATED and not ours.done
    with pytest.raises(ProtocolError, match="out of order"):
        ours.receive(*challenge)
    welcome = theirs.receive(*proof)
    assert welcome is not None and theirs.done
    assert ours.receive(*welcome) is None and ours.done
    for step, end in ((PROOF, theirs), (WELCOME, ours)):
        with pytest.raises(ProtocolError, match="out of order"):
            end.receive(step, proof[1])


def test_a_handshake_cannot_be_done_before_the_peer_is_proven() -> None:
    ours = Handshake(BROKER, keys_of(BROKER), b"i" * 16, initiator=True)
    with pytest.raises(ForbiddenTransition, match="the handshake of broker-1 cannot go from begun to done"):
        ours._become(HandshakeState.DONE)
