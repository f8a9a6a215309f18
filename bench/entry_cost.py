"""What one unbatched entry costs in processor time, beside what its system calls cost a bare program.

Ours: all services of the cluster together. A client publishes 100-byte messages one at a time; each is an entry, stored
by three bookies. The bare program: a process hands the same bytes on to three others (asyncio on uvloop, as in the
services). Each of these writes them into a file filled beforehand, syncs and answers. The first process answers when
all three have answered. Both are asked in turn, so that neighbours in time see the same machine.

    python bench/entry_cost.py write FILE | echo PORT PORT PORT     a process of the bare program; prints its port
"""

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop
from measurement import measurement, payload
from processes import cpu_seconds, service_processes
from rows import Report, median_of_pairs, ratio

MESSAGE_SIZE = 100
ENTRY_BYTES = 181
"""What a broker sends to a bookie for such a message: frame, ledger header, Pulsar's metadata, payload."""
ROUNDS = 7
ROUND_S = 1.0
WARM_UP = 200
FILE_BYTES = 64 << 20
TARGET = 3.0


def run(cluster: Any, directory: Path, report: Report) -> None:
    """The row. `directory` is on the disk of the bookies."""
    ours: list[float] = []
    bare: list[float] = []
    services = service_processes(cluster.status())
    with (
        cluster.client() as client,
        tempfile.TemporaryDirectory(dir=directory) as scratch,
        BareProgram(Path(scratch)) as program,
    ):
        producer = client.create_producer("bench-entry-cost", batching_enabled=False)
        data = payload(MESSAGE_SIZE)
        for ask in (lambda: producer.send(data), program.ask):
            for _ in range(WARM_UP):
                ask()
        for _ in range(ROUNDS):
            bare.append(cost_us(program.ask, program.processes))
            ours.append(cost_us(lambda: producer.send(data), list(services.values())))
        producer.close()
    figure, samples = median_of_pairs(ours, bare)
    report.limits["bare_echo_to_three_synced_writers_cpu_us"] = sorted(bare)[len(bare) // 2]
    report.raw.append(
        measurement(
            "1-topic-1-partition-100b-unbatched-one-at-a-time",
            message_size=MESSAGE_SIZE,
            servicesCpuUs=ours,
            bareCpuUs=bare,
        )
    )
    note = f"{sorted(ours)[len(ours) // 2]:.0f} µs over {sorted(bare)[len(bare) // 2]:.0f} µs"
    report.rows.append(ratio("CPU per unbatched entry", figure, TARGET, better="lower", samples=samples, note=note))


def cost_us(ask: Callable[[], object], processes: list[int]) -> float:
    """Microseconds of processor time of some processes for each `ask`, over a round."""
    before = sum(map(cpu_seconds, processes))
    end = time.perf_counter() + ROUND_S
    count = 0
    while time.perf_counter() < end:
        ask()
        count += 1
    return (sum(map(cpu_seconds, processes)) - before) / count * 1e6


class BareProgram:
    """The four processes, and a socket to the first."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._running: list[subprocess.Popen[str]] = []
        self._data = os.urandom(ENTRY_BYTES)

    def __enter__(self) -> "BareProgram":
        try:
            ports = [self._start("write", str(self._scratch / f"bare-{number}")) for number in range(3)]
            port = self._start("echo", *map(str, ports))
            self._socket = socket.create_connection(("127.0.0.1", port))
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            process.terminate()
            process.wait()

    @property
    def processes(self) -> list[int]:
        """Their ids."""
        return [process.pid for process in self._running]

    def ask(self) -> None:
        """Have one entry stored."""
        self._socket.sendall(self._data)
        missing = ENTRY_BYTES
        while missing:
            received = self._socket.recv(missing)
            if not received:
                raise RuntimeError("the bare program has ended")
            missing -= len(received)

    def _start(self, *arguments: str) -> int:
        process = subprocess.Popen([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True)
        self._running.append(process)
        assert process.stdout is not None
        return int(process.stdout.readline())


class Writer(asyncio.Protocol):
    """Writes what comes, syncs, and sends it back."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._offset = 0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        os.pwrite(self._descriptor, data, self._offset)
        os.fdatasync(self._descriptor)
        self._offset = (self._offset + len(data)) % (FILE_BYTES - (1 << 20))
        self._transport.write(data)


class Echo(asyncio.Protocol):
    """Hands what comes on to all writers, and back when all have answered. One entry is under way at a time."""

    def __init__(self, writers: "list[Link]") -> None:
        self._writers = writers
        self._data = b""
        self._missing = 0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        for writer in self._writers:
            writer.echo = self

    def data_received(self, data: bytes) -> None:
        self._data = data
        self._missing = len(data) * len(self._writers)
        for writer in self._writers:
            writer.transport.write(data)

    def answered(self, size: int) -> None:
        self._missing -= size
        if not self._missing:
            self._transport.write(self._data)


class Link(asyncio.Protocol):
    """The echo's connection to one writer."""

    echo: Echo
    transport: Any

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.echo.answered(len(data))


async def serve(role: str, arguments: list[str]) -> None:
    """One process of the bare program, until it is terminated."""
    loop = asyncio.get_running_loop()
    make: Callable[[], asyncio.Protocol]
    if role == "write":
        descriptor = os.open(arguments[0], os.O_RDWR | os.O_CREAT, 0o600)
        for offset in range(0, FILE_BYTES, 1 << 20):
            os.pwrite(descriptor, bytes(1 << 20), offset)
        os.fsync(descriptor)
        make = lambda: Writer(descriptor)  # noqa: E731
    else:
        writers = [(await loop.create_connection(Link, "127.0.0.1", int(port)))[1] for port in arguments]
        make = lambda: Echo(writers)  # noqa: E731
    server = await loop.create_server(make, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], sys.argv[2:]))
