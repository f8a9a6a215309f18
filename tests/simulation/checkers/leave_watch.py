"""I19: a client leaves a connection, and a broker ends one, only when a fault or a move hit it.

`world.disturbances` has the exact list of what counts as a fault. A move is a change of the record that says who owns
the topic, or that another broker owns it. Looked at are

- connections that a client ends of its own accord (`client.core.liveness`). A fault counts from the PING on that had
  no answer. Where another broker said that the topic moved, a move counts that is not older than `MOVE_S`;
- connections that a broker ends because the client did not answer a PING. A fault counts from two keep-alive intervals
  before, as long as the broker heard nothing.

What ends for another reason is not looked at: the process ends, the other end is gone, the application closes.
"""

from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from magnetar.actors.connections.connection import ServerConnection
from magnetar.client.core.connection import ClientConnection, ConsumerEndpoint, ProducerEndpoint
from magnetar.client.core.liveness import Liveness
from magnetar.protocol.errors import ConnectionClosed, MagnetarError
from magnetar.protocol.slots import slot_of
from magnetar.protocol.topics import TopicName
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.slot_rows import SlotEntry, SlotRows, decode_page
from magnetar.storage.metadata.store import Versioned

from ..world.cluster import SLOTS, SimCluster
from ..world.loop import PROCESS
from .history import History
from .store_watch import is_dead

MOVE_S = 10.0
"""A question may take so long, and its answer may be from the moment in which it was asked."""


class LeaveWatch:
    """See the module."""

    def __init__(self, history: History, cluster: SimCluster) -> None:
        self._history = history
        self._cluster = cluster
        self._asked_at: dict[Liveness, float] = {}
        self._questions: dict[ClientConnection, TopicName] = {}
        self._moved_at: dict[int | str, float] = {}
        self._owners: dict[int | str, SlotEntry] = {}
        self._is_lost: dict[ClientConnection, None] = {}

    def metadata_changed(self, key: str, before: Versioned | None, after: Versioned | None) -> None:
        """A record was written, or (None) deleted."""
        if not key.startswith(metadata_keys.SLOTS_PREFIX):
            return
        old, new = (decode_page(one.value) if one is not None else SlotRows() for one in (before, after))
        known, latest = (dict[int | str, SlotEntry]({**one.entries, **one.exceptions}) for one in (old, new))
        for what in {**known, **latest}:
            if known.get(what) != latest.get(what):
                self._moved_at[what] = self._cluster.loop.now
            self._owners.pop(what, None)
        self._owners.update(latest)

    def install(self, stack: ExitStack) -> None:
        """Watch until the stack is left."""
        ask, find_out, close = Liveness._ask, Liveness._find_out, ClientConnection.close
        lost, tick = ClientConnection.connection_lost, ServerConnection.tick

        def asking(liveness: Liveness, now: float) -> None:
            self._asked_at[liveness] = self._cluster.loop.now
            ask(liveness, now)

        async def finding_out(liveness: Liveness, number: int, endpoint: ProducerEndpoint | ConsumerEndpoint) -> None:
            connection: Any = liveness._connection
            self._questions[connection] = endpoint.topic
            try:
                await find_out(liveness, number, endpoint)
            finally:
                del self._questions[connection]

        def losing(connection: ClientConnection, exc: Exception | None) -> None:
            self._is_lost[connection] = None
            lost(connection, exc)

        def closing(connection: ClientConnection, reason: MagnetarError | None = None) -> None:
            if type(reason) is ConnectionClosed and not connection.closed and connection not in self._is_lost:
                if not is_dead():
                    self.left(connection, str(reason))
            close(connection, reason)

        def ticking(connection: ServerConnection) -> None:
            was_closed = connection.closed
            tick(connection)
            if connection.closed and not was_closed and not is_dead():
                self.ended(connection)

        for owner, name, wrapper in (
            (Liveness, "_ask", asking),
            (Liveness, "_find_out", finding_out),
            (ClientConnection, "connection_lost", losing),
            (ClientConnection, "close", closing),
            (ServerConnection, "tick", ticking),
        ):
            stack.enter_context(patch.object(owner, name, wrapper))

    def left(self, connection: ClientConnection, reason: str) -> None:
        """A client leaves a connection of its own accord."""
        self._history.counts["connections left"] += 1
        self._cluster.left[connection] = reason
        topic = self._questions.get(connection)
        if topic is not None and "belongs to" in reason:
            if not self._has_moved(topic, connection.broker[0]):
                self._history.violated(f"I19: {_here()} leaves {connection.broker[0]}: {reason}, which is not so")
            return
        since = self._asked_at.get(connection.liveness, self._cluster.loop.now)
        if not self._was_hit(_here(), connection.address[0], connection._transport, since):
            self._history.violated(f"I19: {_here()} leaves {connection.address[0]}, and nothing hit it: {reason}")

    def ended(self, connection: ServerConnection) -> None:
        """A broker ends a connection whose client was silent."""
        self._history.counts["connections ended by brokers"] += 1
        since = self._cluster.loop.now - 2 * connection.host.settings.keep_alive_interval_s
        client = connection.remote_address.removeprefix("/").rpartition(":")[0]
        if not self._was_hit(client, _here(), connection._transport, since):
            self._history.violated(f"I19: {_here()} ends the connection of {client}, and nothing hit it")

    def _was_hit(self, client: str, broker: str, transport: Any, since: float) -> bool:
        keys = (client, broker, (client, broker), (broker, client), transport._connection.number)
        return self._cluster.network.disturbances.since(since, *keys)

    def _has_moved(self, topic: TopicName, broker: str) -> bool:
        slot, recently = slot_of(topic, SLOTS), self._cluster.loop.now - MOVE_S
        if any(self._moved_at.get(what, -1.0) >= recently for what in (slot, topic.full)):
            return True
        home, own = self._owners.get(slot), self._owners.get(topic.full)
        entry = own if own is not None and (home is None or own.epoch > home.epoch) else home
        return entry is None or entry.owner is None or entry.owner.broker != broker


def _here() -> str:
    owner = PROCESS.get()
    return owner.name if owner is not None else "the simulator"
