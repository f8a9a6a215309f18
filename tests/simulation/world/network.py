"""The network between named hosts: byte streams in memory, with latency, partitions and resets from the seed.

A connection is two pipes. A pipe keeps bytes in order and hands them over after a latency, sometimes cut in two. It
holds them back while its hosts are partitioned, as TCP's retransmission would. Its last item is an end: in good order
(`close`) or a reset. A reset in mid-stream lets a random part of what is under way arrive, in each direction on its
own: so a request may be carried out and its answer be lost.

A host is named by its process; what is sent to a paused process waits in its socket.
"""

import asyncio
from collections import deque
from contextvars import Context, copy_context
from math import inf
from random import Random
from typing import Any

from .disturbances import SETTLING_S, Disturbances
from .loop import PROCESS, Arrival, Owner, SimLoop

SOCKET_BUFFER_BYTES = 256 * 1024
RESET = "reset"
END = "end"


class Network:
    """All listeners and connections. `partition` and `heal` take names of hosts.

    Each write draws its own latency, to which `slow_s` adds seconds by host: order holds within a direction of a
    connection, and nowhere else. Nothing is delivered twice or out of order inside one, because TCP does neither.
    """

    def __init__(self, loop: SimLoop, random: Random) -> None:
        self.random = random
        self.latency_s = 0.0004
        self.slow_s: dict[str, float] = {}
        """Set by `slow_down`."""
        self.disturbances = Disturbances()
        self.connections: dict[int, Connection] = {}
        self.bytes_sent = 0
        self._loop = loop
        self._listeners: dict[tuple[str, int], SimServer] = {}
        self.cuts: dict[tuple[str, str], int] = {}
        """(source, target) → by how many partitions; never 0."""
        self._ports = 40_000
        self._numbers = 0
        loop.network = self

    # -- for the loop --------------------------------------------------------------------------------------------

    def listen(self, factory: Any, host: str, port: int) -> "SimServer":
        """Raises OSError when the address is taken."""
        if not port:
            self._ports += 1
            port = self._ports
        before = self._listeners.get((host, port))
        if before is not None and before.owner is not None and before.owner.alive:
            raise OSError(98, f"{host}:{port} is in use")
        server = SimServer(self, factory, (host, port))
        self._listeners[host, port] = server
        return server

    def unlisten(self, server: "SimServer") -> None:
        if self._listeners.get(server.address) is server:
            del self._listeners[server.address]

    async def connect(self, factory: Any, host: str, port: int) -> tuple["Transport", Any]:
        """Raises ConnectionRefusedError; hangs while the hosts are partitioned."""
        owner = PROCESS.get()
        source = owner.name if owner is not None else "outside"
        await self._loop.passing(self.latency(source, host))
        while self.is_cut(source, host) or self.is_cut(host, source):  # noqa: ASYNC110  # SYN is sent again
            await asyncio.sleep(0.5)
        server = self._listeners.get((host, port))
        await self._loop.passing(self.latency(host, source))
        if server is None or server.owner is None or not server.owner.alive or server.closed:
            raise ConnectionRefusedError(111, f"nobody listens on {host}:{port}")
        if owner is not None and not owner.alive:
            raise ConnectionAbortedError(103, "this process has ended")
        self._numbers += 1
        connection = Connection(self, self._numbers, owner, source, server)
        self.connections[self._numbers] = connection
        protocol = factory()
        transport = connection.ends[0]
        transport.begin(protocol)
        connection.accept(server)
        return transport, protocol

    def latency(self, source: str, target: str) -> float:
        """Seconds for one way; mostly short, now and then long."""
        random = self.random.random
        seconds = self.latency_s * (0.5 + random())
        if random() < 0.02:
            seconds += random() * 0.05
        slow_s = self.slow_s
        if slow_s:
            seconds += slow_s.get(source, 0.0) * random() + slow_s.get(target, 0.0) * random()
        return seconds

    # -- faults --------------------------------------------------------------------------------------------------

    def is_cut(self, source: str, target: str) -> bool:
        return bool(self.cuts) and (source, target) in self.cuts

    def partition(self, source: str, target: str) -> None:
        """Nothing gets from `source` to `target` any longer. Counted: as many `heal`s undo it."""
        self.cuts[source, target] = self.cuts.get((source, target), 0) + 1
        self.disturbances.begin((source, target))

    def heal(self, source: str, target: str) -> None:
        self.cuts[source, target] -= 1
        self.disturbances.end((source, target), self._loop.now)
        if not self.cuts[source, target]:
            del self.cuts[source, target]
            for connection in list(self.connections.values()):
                for end in connection.ends:
                    if (end.host, end.peer.host) == (source, target):
                        end.pump()

    def reset(self, connection: "Connection", kept: float | None = None) -> None:
        """Break a connection in mid-stream. Of what is under way this fraction still arrives, drawn unless said."""
        self.disturbances.until(connection.number, inf)
        for end in connection.ends:
            end.cut_off(self.random.choice((0.0, 1.0, self.random.random())) if kept is None else kept)
        for end in connection.ends:
            end.send_mark(RESET)

    def hold(self, connection: "Connection", seconds: float, sender: str | None = None) -> None:
        """What is written to a connection from now on arrives after so many seconds at the earliest, in both
        directions, as after a lost packet. With `sender` only what this host writes. Other connections, also of the
        same hosts, go on: what is sent later there arrives earlier.
        """
        self.disturbances.until(connection.number, self._loop.now + seconds + SETTLING_S)
        for end in connection.ends:
            if sender is None or end.host == sender:
                end.hold_until(self._loop.now + seconds)

    def slow_down(self, host: str, seconds: float) -> None:
        """A host's packets take up to so much longer, until `speed_up`. It replaces what was said before."""
        before_s = self.slow_s.get(host)
        if before_s is None:
            self.disturbances.begin(host)
        else:
            self.disturbances.until(host, self._loop.now + 2 * before_s + SETTLING_S)
        self.slow_s[host] = seconds

    def speed_up(self, host: str) -> None:
        """What is under way may still come late."""
        seconds = self.slow_s.pop(host, None)
        if seconds is not None:
            self.disturbances.end(host, self._loop.now, 2 * seconds + SETTLING_S)

    def process_ended(self, owner: Owner) -> None:
        """The kernel closes a dead process's sockets; part of what it had written still leaves."""
        self.disturbances.until(owner.name, self._loop.now + SETTLING_S)
        for connection in list(self.connections.values()):
            for end in connection.ends:
                if end.owner is owner:
                    end.cut_off(self.random.choice((1.0, self.random.random())))
                    end.detached = True
                    end.send_mark(RESET)
        for address, server in list(self._listeners.items()):
            if server.owner is owner:
                del self._listeners[address]


class Connection:
    """The two ends: 0 asked for it, 1 accepted it."""

    def __init__(self, network: Network, number: int, owner: Owner | None, source: str, server: "SimServer") -> None:
        self.number = number
        name = (source, 50_000 + number % 15_000)
        first = Transport(network, self, owner, copy_context(), name, server.address)
        second = Transport(network, self, server.owner, server.context.copy(), server.address, name)
        first.peer, second.peer = second, first
        self.ends = (first, second)

    def accept(self, server: "SimServer") -> None:
        """The other side hears of it when its loop turns to its sockets."""
        end = self.ends[1]
        end.deliver(self._accepted, server)

    def _accepted(self, server: "SimServer") -> None:
        end = self.ends[1]
        if server.closed:
            end.abort()
            return
        end.begin(server.factory())


class SimServer:
    """What `create_server` returns."""

    def __init__(self, network: Network, factory: Any, address: tuple[str, int]) -> None:
        self.factory = factory
        self.address = address
        self.owner = PROCESS.get()
        self.context = copy_context()
        self.closed = False
        self._network = network

    @property
    def sockets(self) -> "list[SimServer]":
        return [self]

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def close(self) -> None:
        self.closed = True
        self._network.unlisten(self)

    async def wait_closed(self) -> None:
        await asyncio.sleep(0)


class Transport(asyncio.Transport):
    """One end, and the pipe from it to its peer."""

    peer: "Transport"

    def __init__(
        self,
        network: Network,
        connection: Connection,
        owner: Owner | None,
        context: Context,
        local: tuple[str, int],
        remote: tuple[str, int],
    ) -> None:
        super().__init__()
        self.owner = owner
        self.host = local[0]
        self.detached = False
        self.lost = False
        self._network = network
        self._loop = network._loop
        self._connection = connection
        self._context = context
        self._names = {"sockname": local, "peername": remote}
        self._protocol: Any = None
        self._closing = False
        self._high, self._low = 64 * 1024, 16 * 1024
        self._writing_paused = False
        self._reading_paused = False
        self._under_way: deque[bytes | str] = deque()
        """What has been written and not been taken by the peer's protocol."""
        self._arrived = 0
        """How many of these are at the peer's socket."""
        self._due = 0
        """How many more would be there without a partition."""
        self._last: Arrival | None = None
        """The last arrival that is scheduled."""
        self._held_until = 0.0
        self._bytes_under_way = 0
        self._ended = False

    def __hash__(self) -> int:
        return self._connection.number

    # -- asyncio.Transport ---------------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._names.get(name, default)

    def get_protocol(self) -> Any:
        return self._protocol

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def is_closing(self) -> bool:
        return self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return max(0, self._bytes_under_way - SOCKET_BUFFER_BYTES)

    def is_reading(self) -> bool:
        return not self._reading_paused

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        if self._reading_paused:
            self._reading_paused = False
            self.deliver(self.peer._hand_over)

    def can_write_eof(self) -> bool:
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or self.detached or not len(data):
            return
        network = self._network
        data = bytes(data)
        self._bytes_under_way += len(data)
        network.bytes_sent += len(data)
        if len(data) > 1 and network.random.random() < 0.1:
            middle = network.random.randrange(1, len(data))
            self._send(data[:middle])
            self._send(data[middle:])
        else:
            self._send(data)
        if self._bytes_under_way - SOCKET_BUFFER_BYTES > self._high and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self.send_mark(END)
            self._loop.call_soon(self._lose, None, context=self._context)

    def abort(self) -> None:
        if not self._closing:
            self._closing = True
            self.send_mark(RESET)
            self._loop.call_soon(self._lose, None, context=self._context)

    # -- the pipe to the peer --------------------------------------------------------------------------------------

    def begin(self, protocol: Any) -> None:
        """The connection stands."""
        self._protocol = protocol
        if self.lost:
            return
        protocol.connection_made(self)
        self.peer._hand_over()

    def deliver(self, callback: Any, *arguments: Any) -> None:
        """Run something in this end's process, as its loop would after looking at its sockets."""
        self._loop.deliver(self._context, callback, *arguments)

    def send_mark(self, mark: str) -> None:
        """The end of the stream."""
        if not self._ended:
            self._ended = True
            self._send(mark)

    def cut_off(self, kept: float) -> None:
        """Forget a part of what has not arrived: only the fraction `kept` of its bytes will, and nothing after it."""
        flying = [self._under_way.pop() for _ in range(len(self._under_way) - self._arrived)]
        flying.reverse()
        budget = int(sum(len(item) for item in flying if isinstance(item, bytes)) * kept)
        self._ended = True
        count = len(flying)
        for item in flying:
            if isinstance(item, str):
                continue
            self._under_way.append(item[:budget])
            budget = max(0, budget - len(item))
            count -= 1
        self._under_way.extend([b""] * count)  # their arrivals are scheduled already
        self._ended = False

    def hold_until(self, moment: float) -> None:
        """Nothing written from now on arrives before."""
        self._held_until = max(self._held_until, moment)

    def pump(self) -> None:
        """Look again at what the partition held back."""
        self._schedule(self._loop.now + self._network.latency(self.host, self.peer.host), 0)

    def _send(self, item: bytes | str) -> None:
        self._under_way.append(item)
        moment = max(self._held_until, self._loop.now + self._network.latency(self.host, self.peer.host))
        last = self._last
        if last is not None and last.moment >= moment:
            last.count += 1  # what overtook it waits for it
        else:
            self._last = self._schedule(moment, 1)

    def _schedule(self, moment: float, count: int) -> Arrival:
        arrival = Arrival(self, count, self.peer._context, self._hand_over, moment)
        self._loop.send(arrival)
        return arrival

    def arrives(self, arrival: Arrival) -> bool:
        """More items are at the peer's socket, or would be without the partition. Of no process: the kernel's work."""
        if arrival is self._last:
            self._last = None
        self._due += arrival.count
        if self._network.is_cut(self.host, self.peer.host):
            return False
        self._arrived, self._due = min(self._arrived + self._due, len(self._under_way)), 0
        return self._arrived > 0

    def _hand_over(self) -> None:
        """In the peer's process: give its protocol what has arrived."""
        peer = self.peer
        while self._arrived and peer._protocol is not None and not peer._reading_paused and not peer.lost:
            self._arrived -= 1
            item = self._under_way.popleft()
            if isinstance(item, str):
                if item == END:
                    peer._protocol.eof_received()
                    peer._closing = True
                    peer._lose(None)
                else:
                    peer._closing = True
                    peer._lose(ConnectionResetError(104, "connection reset by peer"))
                return
            if item:
                parts = [item]
                while self._arrived and isinstance(self._under_way[0], bytes):
                    self._arrived -= 1
                    parts.append(self._under_way.popleft())
                data = parts[0] if len(parts) == 1 else b"".join(parts)
                self._bytes_under_way -= len(data)
                if not peer._closing:
                    peer._protocol.data_received(data)
                if self._writing_paused and not self.lost and self.get_write_buffer_size() <= self._low:
                    self.deliver(self._resume_writing)
        if peer._protocol is None and self._arrived and isinstance(self._under_way[0], str):
            peer.lost = True

    def _resume_writing(self) -> None:
        if self._writing_paused and not self.lost:
            self._writing_paused = False
            self._protocol.resume_writing()

    def _lose(self, error: Exception | None) -> None:
        if self.lost:
            return
        self.lost = True
        if not self._ended:
            self.send_mark(RESET if error else END)
        if all(end.lost or end.detached for end in self._connection.ends):
            self._network.connections.pop(self._connection.number, None)
        if self._protocol is not None:
            self._protocol.connection_lost(error)
