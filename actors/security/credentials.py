"""What a client shows, and what that says about it."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

DATA_MAX_BYTES = 64 << 10
"""Of a credential. Tokens have a few hundred bytes."""


class Peer(NamedTuple):
    """The other end of a connection."""

    address: str
    certificate: Mapping[str, object] | None = None
    """The client's certificate, which TLS has verified, as `ssl.SSLSocket.getpeercert` gives it."""
    has_left: Callable[[], bool] = lambda: False
    """Whether nobody waits for the answer any longer."""


class Credential(NamedTuple):
    """Who somebody is, and until when that is proven."""

    role: str
    expires_at_ms: int | None = None
    """Milliseconds since the Unix epoch. None: it does not end."""


class Principal(NamedTuple):
    """In whose name something is done."""

    role: str
    """Empty where nobody is asked who he is."""
    original_role: str = ""
    """Where `role` is a proxy's: that of its client."""

    def __str__(self) -> str:
        return f"{self.original_role} through {self.role}" if self.original_role else self.role


NOBODY = Principal("")
"""Of a cluster that does not ask."""
