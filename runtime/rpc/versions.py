"""Versions of the internal RPC: how an old and a new version of Magnetar work side by side during an upgrade.

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

from typing import NamedTuple

from ...protocol.errors import HandshakeRefused


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
