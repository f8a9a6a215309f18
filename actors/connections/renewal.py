"""How a connection's credential is renewed: AUTH_CHALLENGE and AUTH_RESPONSE, as in Pulsar from protocol version 14 on.

`TRANSITIONS` has the states. Invariants:

- A connection outlives its credential by the time that `authenticationRefreshCheckSeconds` gives its client, and by a
  minute if the clock is set meanwhile. Producers and consumers go on meanwhile.
- A renewed credential has the same role, because producers and consumers were admitted by it.
- A client that did not say in CONNECT that it can renew credentials is sent away when its credential is over.
- One answer is checked at a time.
"""

import asyncio
import enum
from collections.abc import Callable, Collection, Mapping

from ...protocol.errors import AuthenticationError, ProtocolError
from ...runtime.environment import Clock
from ...runtime.transitions import check_transition
from ..security.credentials import Credential

LOOK_MAX_S = 60.0
"""The wall clock may be set, so it is looked at once a minute at least."""


class RenewalState(enum.Enum):
    """See `TRANSITIONS`."""

    HOLDING = enum.auto()
    ASKED = enum.auto()
    CHECKING = enum.auto()
    ENDED = enum.auto()


_S = RenewalState
TRANSITIONS: Mapping[RenewalState, Collection[RenewalState]] = {
    _S.HOLDING: (
        _S.ASKED,  # the credential is over, and the client can renew it
        _S.CHECKING,  # the client renews it by itself
        _S.ENDED,  # it is over, and the client cannot; or the connection has ended
    ),
    _S.ASKED: (
        _S.CHECKING,  # AUTH_RESPONSE has come
        _S.ENDED,  # it has not, in time; or the connection has ended
    ),
    _S.CHECKING: (
        _S.HOLDING,  # the new credential holds, and has the same role
        _S.ENDED,  # it does not; or the connection has ended
    ),
    _S.ENDED: (),
}


class Renewal:
    """See the module. `ask` sends AUTH_CHALLENGE; `end` ends the connection for the reason that it is given."""

    def __init__(
        self,
        clock: Clock,
        credential: Credential,
        answer_s: float,
        *,
        can_renew: bool,
        ask: Callable[[], None],
        end: Callable[[AuthenticationError], None],
    ) -> None:
        self.state = RenewalState.HOLDING
        self._clock = clock
        self._credential = credential
        self._answer_s = answer_s
        self._can_renew = can_renew
        self._ask = ask
        self._end = end
        self._timer: asyncio.TimerHandle | None = None
        self._look()

    @property
    def role(self) -> str:
        """Which role every credential of the connection has."""
        return self._credential.role

    def answered(self) -> None:
        """AUTH_RESPONSE has come. Raises ProtocolError while another one is being checked."""
        if self.state is RenewalState.CHECKING:
            raise ProtocolError("the client sent AUTH_RESPONSE before the one before it was checked")
        self._become(RenewalState.CHECKING)
        self._wait(None)

    def renewed(self, credential: Credential) -> None:
        """The answer holds. Raises AuthenticationError for another role, and for one that is over already."""
        if self.state is not RenewalState.CHECKING:
            return
        if credential.role != self.role:
            raise AuthenticationError(f"the new credential is that of {credential.role}, and not that of {self.role}")
        if credential.expires_at_ms is not None and credential.expires_at_ms <= self._clock.now_ms():
            raise AuthenticationError("the new credential is over already")
        self._credential = credential
        self._become(RenewalState.HOLDING)
        self._look()

    def close(self) -> None:
        """The connection has ended."""
        if self.state is not RenewalState.ENDED:
            self._become(RenewalState.ENDED)
            self._wait(None)

    def _look(self) -> None:
        """Ask for another credential if this one is over; else look again when it will be."""
        self._timer = None
        end_ms = self._credential.expires_at_ms
        if end_ms is None:
            return
        left_s = (end_ms - self._clock.now_ms()) / 1000
        if left_s > 0:
            self._wait(min(left_s, LOOK_MAX_S), self._look)
        elif not self._can_renew:
            self._end(AuthenticationError("the credential is over, and the client cannot renew it: connect again"))
        else:
            self._become(RenewalState.ASKED)
            self._wait(self._answer_s, self._give_up)
            self._ask()

    def _give_up(self) -> None:
        self._timer = None
        self._end(AuthenticationError(f"the credential is over, and was not renewed within {self._answer_s:g} s"))

    def _wait(self, seconds: float | None, then: Callable[[], None] | None = None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None or then is None else asyncio.get_running_loop().call_later(seconds, then)

    def _become(self, state: RenewalState) -> None:
        check_transition(TRANSITIONS, "the credential of a connection", self.state, state)
        self.state = state
