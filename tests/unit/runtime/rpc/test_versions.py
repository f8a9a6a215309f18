"""Old and new versions of the internal RPC side by side: which one two ends use, and when they part."""

import pytest

from magnetar.protocol.errors import HandshakeRefused, ProtocolError
from magnetar.runtime.rpc import handshake
from magnetar.runtime.rpc.handshake import OURS, Handshake, RpcVersions
from magnetar.runtime.rpc.keys import Identity, RootKeys
from magnetar.runtime.rpc.messages import pack, unpack

ROOT = RootKeys(b"s" * 32)
COORDINATOR = Identity("c", "coordinator", "coordinator", "1")
BROKER = Identity("c", "broker", "broker-1", "1")
OLD, BOTH, NEW = RpcVersions(2, 2), RpcVersions(2, 3), RpcVersions(3, 4)


def ends(caller: RpcVersions, acceptor: RpcVersions) -> tuple[Handshake, Handshake]:
    ours = Handshake(BROKER, ROOT.node("broker", "broker-1"), b"i" * 16, initiator=True, versions=caller)
    keys = ROOT.node("coordinator", "coordinator")
    return ours, Handshake(COORDINATOR, keys, b"a" * 16, initiator=False, versions=acceptor)


def shake(caller: RpcVersions, acceptor: RpcVersions) -> int:
    """A whole handshake; the version that both ends then use."""
    ours, theirs = ends(caller, acceptor)
    challenge = theirs.receive(*ours.hello())
    assert challenge is not None
    proof = ours.receive(*challenge)
    assert proof is not None
    welcome = theirs.receive(*proof)
    assert welcome is not None
    ours.receive(*welcome)
    assert ours.done and theirs.done
    assert ours.version == theirs.version
    return ours.version


@pytest.mark.promise("30.6")
@pytest.mark.parametrize(
    ("caller", "acceptor", "version"),
    [(OURS, OURS, OURS.newest), (OLD, BOTH, 2), (BOTH, OLD, 2), (BOTH, BOTH, 3), (BOTH, NEW, 3), (NEW, BOTH, 3)],
)
def test_two_ends_use_the_highest_version_that_both_speak(
    caller: RpcVersions, acceptor: RpcVersions, version: int
) -> None:
    assert shake(caller, acceptor) == version


@pytest.mark.promise("30.6")
@pytest.mark.parametrize(("caller", "acceptor"), [(OLD, NEW), (NEW, OLD)])
def test_ends_without_a_common_version_part_and_name_both_ranges(caller: RpcVersions, acceptor: RpcVersions) -> None:
    ours, theirs = ends(caller, acceptor)
    ranges = rf"versions {caller.oldest} to {caller.newest} .* versions {acceptor.oldest} to {acceptor.newest}"
    with pytest.raises(HandshakeRefused, match=ranges):
        theirs.receive(*ours.hello())


def test_nobody_between_the_ends_can_lower_the_version() -> None:
    ours, theirs = ends(BOTH, BOTH)
    step, hello = ours.hello()
    changed = unpack(hello)
    changed[0] = 2
    challenge = theirs.receive(step, pack(changed))
    assert challenge is not None
    with pytest.raises(HandshakeRefused, match="does not hold the key"):
        ours.receive(*challenge)
    ours, theirs = ends(BOTH, BOTH)
    challenge = theirs.receive(*ours.hello())
    assert challenge is not None
    changed = unpack(challenge[1])
    for version, error in ((2, HandshakeRefused), (9, ProtocolError)):
        changed[3] = version
        with pytest.raises(error):
            ends(BOTH, BOTH)[0].receive(challenge[0], pack(changed))


def test_fields_of_a_later_version_are_ignored_and_a_lone_version_is_a_range() -> None:
    hello = [4, list(BROKER), b"i" * 16, 2, {"later": 1}]
    assert handshake.decode_hello(pack(hello))[2] == RpcVersions(2, 4)
    assert handshake.decode_hello(pack(hello[:3]))[2] == RpcVersions(4, 4)
    challenge = [list(BROKER), b"i" * 16, b"proof", 2, "later"]
    assert handshake.decode_challenge(pack(challenge))[3] == 2
    for versions in ((1, 2), (2, 0), ("2", 2), (2, "2"), (1 << 40, 2)):
        with pytest.raises(ProtocolError, match="bad versions"):
            handshake.decode_hello(pack([versions[0], list(BROKER), b"i" * 16, versions[1]]))


def test_a_peer_of_the_time_before_versions_is_refused_clearly() -> None:
    theirs = ends(OURS, OURS)[1]
    with pytest.raises(HandshakeRefused, match=r"speaks versions 1 to 1 .* upgrade the older one first"):
        theirs.receive(handshake.HELLO, pack([1, list(BROKER), b"i" * 16]))
