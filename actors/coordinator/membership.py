"""Who is alive: sessions of bookies, brokers and others at the coordinator, as a pure state machine.

A session belongs to one incarnation of one node, and to one connection. `TRANSITIONS` has its states. An incarnation
that registers again, over a new connection, gets a new session, which ends the old one.

`tick` names the sessions that were silent for `session_timeout_s`; they are to be ended. A broker's incarnation that
has ended stays ended: it must come back as a new one, because its topics were given to others. Other roles own nothing
and may come back as they are.

Time is counted, not read from a clock. `tick` adds the time since the last tick, unless it is so long that this process
itself was paused. A paused process receives no heartbeats, so no time is added and no session ends. By the next tick,
the bytes that waited in the sockets have been read.

Members give a coordinator up that leaves them without an answer for `session_timeout_s`. So a connection that is found
closed at the end of a long pause says nothing about its member, which may be reconnecting. Such a session goes on
detached, without a connection; everything else treats it as alive.

After the coordinator started, brokers that own topics are given `session_timeout_s` to register (`in_grace`). They
miss their former coordinator at about the same time. So the grace ends early when brokers have registered, and then
none for half of that time. A broker that comes later has lost its topics, and nothing else.
"""

import enum
from collections import OrderedDict
from collections.abc import Collection, Mapping

from ...protocol.cluster_status import MemberData, MemberReport
from ...protocol.errors import StaleEpoch
from ...protocol.names import ROLE_BROKER
from ...runtime.rpc.connection import RpcConnection
from ...runtime.transitions import check_transition

ENDED_REMEMBERED_MAX = 10_000


class SessionState(enum.Enum):
    """See `TRANSITIONS`."""

    NEW = enum.auto()
    ALIVE = enum.auto()
    DETACHED = enum.auto()
    ENDED = enum.auto()


TRANSITIONS: Mapping[SessionState, Collection[SessionState]] = {
    SessionState.NEW: (SessionState.ALIVE,),  # `register`
    SessionState.ALIVE: (
        SessionState.DETACHED,  # `disconnected` when this process resumes after a long pause
        SessionState.ENDED,  # `disconnected`, `end`, or the node registers again
    ),
    SessionState.DETACHED: (
        SessionState.ENDED,  # the node registers again, or has been silent for the time-out since the wake-up
    ),
    SessionState.ENDED: (),
}


class Session:
    """One registered incarnation."""

    def __init__(
        self,
        role: str,
        node_id: str,
        incarnation: str,
        host: str,
        port: int,
        data: MemberData,
        connection: RpcConnection,
    ) -> None:
        self.role = role
        self.node_id = node_id
        self.incarnation = incarnation
        self.host = host
        self.port = port
        self.data = data
        self.connection = connection
        self.report: MemberReport = {}
        self.report_bytes = b""
        self.silent_s = 0.0
        self.state = SessionState.NEW

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self.state is not SessionState.ENDED

    def become(self, state: SessionState) -> None:
        """Enter the next state. Raises ForbiddenTransition."""
        check_transition(TRANSITIONS, f"the session of {self.node_id}", self.state, state)
        self.state = state


class Membership:
    """All sessions. Invariant: at most one session is alive for a node."""

    def __init__(self, session_timeout_s: float, tick_interval_s: float) -> None:
        self.grace_left_s = session_timeout_s
        self._session_timeout_s = session_timeout_s
        self._pause_s = tick_interval_s * 2
        # Well below the patience of members, and far above what a busy machine delays a tick by.
        self._long_pause_s = session_timeout_s / 2
        self.draining: frozenset[str] = frozenset()
        """Brokers and bookies that get nothing new, because they shall end."""
        self._sessions: dict[tuple[str, str], Session] = {}
        self._ended: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._launches: dict[tuple[str, str], int] = {}
        """The latest start of each node that has registered: as many as there were nodes."""
        self._last_tick: float | None = None
        self._waking_up = False
        self._latest_broker_s: float | None = None
        """How long ago a broker registered last, while in grace."""

    @property
    def in_grace(self) -> bool:
        """Whether the coordinator is so young that a missing broker may simply not have come back yet."""
        return self.grace_left_s > 0

    def of_role(self, role: str) -> list[Session]:
        """Live sessions of a role, ordered by node id."""
        found = [session for session in self._sessions.values() if session.role == role]
        return sorted(found, key=lambda session: session.node_id)

    def takers(self) -> list[Session]:
        """Live brokers that take topics, ordered by node id: those that are not draining, or all if there is none."""
        found = self.of_role(ROLE_BROKER)
        return [session for session in found if session.node_id not in self.draining] or found

    def is_draining(self, node_id: str) -> bool:
        return node_id in self.draining

    def all(self) -> list[Session]:
        return list(self._sessions.values())

    def find(self, role: str, node_id: str) -> Session | None:
        return self._sessions.get((role, node_id))

    def is_alive(self, role: str, node_id: str, incarnation: str) -> bool:
        session = self._sessions.get((role, node_id))
        return session is not None and session.incarnation == incarnation

    def has_ended(self, node_id: str, incarnation: str) -> bool:
        """Whether this broker incarnation is known to be over: it ended, or the node lives on as another one."""
        if (node_id, incarnation) in self._ended:
            return True
        session = self._sessions.get((ROLE_BROKER, node_id))
        return session is not None and session.incarnation != incarnation

    def register(self, session: Session) -> Session | None:
        """Begin a session; answers the live one of the same node that it replaces and ends.

        Raises StaleEpoch for an incarnation of a broker that has ended. It does so, too, for a process that is left
        over, because one of a later launch has registered. Ray leaves one over when it takes its node for lost.
        """
        if session.role == ROLE_BROKER and (session.node_id, session.incarnation) in self._ended:
            raise StaleEpoch(f"the session of {session.node_id} has ended, and other brokers own its topics")
        key = (session.role, session.node_id)
        launch = session.data.get("launch", 0)
        if launch < self._launches.get(key, 0):
            raise StaleEpoch(f"{session.node_id} was started again since, so this process is left over")
        self._launches[key] = launch
        replaced = self._sessions.pop(key, None)
        if replaced is not None:
            replaced.become(SessionState.ENDED)
            if replaced.incarnation != session.incarnation:
                self._remember_ended(replaced)
        session.become(SessionState.ALIVE)
        self._sessions[key] = session
        if session.role == ROLE_BROKER:
            self._latest_broker_s = 0.0
        return replaced

    def heard(self, session: Session) -> None:
        """The node said something."""
        session.silent_s = 0.0

    def disconnected(self, session: Session, now_s: float) -> bool:
        """Its connection closed. Answers whether that ended the session: no if it was over, or is detached now."""
        if session.alive and self._is_waking_up(now_s):
            session.silent_s = 0.0
            session.become(SessionState.DETACHED)
            return False
        return self.end(session)

    def end(self, session: Session) -> bool:
        """End a session; answers whether it was still alive."""
        if not session.alive:
            return False
        session.become(SessionState.ENDED)
        del self._sessions[(session.role, session.node_id)]
        self._remember_ended(session)
        return True

    def tick(self, now_s: float) -> list[Session]:
        """Count the time that passed and answer the sessions that were silent for too long; they are not ended yet."""
        last, self._last_tick = self._last_tick, now_s
        if last is None:
            return []
        elapsed_s = now_s - last
        self._waking_up = elapsed_s > self._long_pause_s
        if elapsed_s > self._pause_s:
            return []
        self._count_grace(elapsed_s)
        silent: list[Session] = []
        for session in self._sessions.values():
            session.silent_s += elapsed_s
            if session.silent_s >= self._session_timeout_s:
                silent.append(session)
        return silent

    def _count_grace(self, elapsed_s: float) -> None:
        if not self.in_grace:
            return
        self.grace_left_s = max(0.0, self.grace_left_s - elapsed_s)
        if self._latest_broker_s is not None:
            self._latest_broker_s += elapsed_s
            if self._latest_broker_s >= self._session_timeout_s / 2:
                self.grace_left_s = 0.0

    def _is_waking_up(self, now_s: float) -> bool:
        """Whether sockets are read that were not read for long: the late tick is yet to come, or has just been."""
        late = self._last_tick is not None and now_s - self._last_tick > self._long_pause_s
        return late or self._waking_up

    def _remember_ended(self, session: Session) -> None:
        if session.role != ROLE_BROKER:
            return
        self._ended[(session.node_id, session.incarnation)] = None
        if len(self._ended) > ENDED_REMEMBERED_MAX:
            self._ended.popitem(last=False)
