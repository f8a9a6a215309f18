"""The way of a published entry: which sub-rooms it enters between the broker's socket and the bookie's journal.

A client publishes through a real broker to a real bookie, over real sockets. The test looks at the Python call stack
twice. The first time is when the broker hands the entry to the connection to the bookie. The second time is when the
bookie's journal accepts the record. Each stack reaches down to the `data_received` of a socket, so no callback of the
loop lies in between. The entry is the second one of its topic, because the first one waits for the topic's ledger. The
two stacks, one behind the other, are the way:

    actors.connections  frames of clients
    actors.topics       what the owner of a topic does with a publish
    storage.managed     the topic's chain of ledgers
    storage.ledger      one ledger, its writer and the channels to bookies
    (the socket)
    actors.bookie       requests to a bookie
    storage.bookie      the store, and its journal

How it is counted: a sub-room counts when the entry goes into it, that is, when a function of it stands on the stack. A
call that returns before the entry goes on does not count, such as a question about a limit, or a counter. The
receipt's way back does not count either. `protocol` and `runtime` lie below every room and do not count: the RPC
connection stands at both ends of the socket.
"""

import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import magnetar
from magnetar.client.blocking.client import Client
from magnetar.runtime.rpc.connection import RpcConnection
from magnetar.storage.bookie.journal import Journal
from support.servers.embedded_cluster import EmbeddedCluster

ROOT = Path(magnetar.__file__).resolve().parent
ROOMS_MAX = 8
BELOW = ("protocol", "runtime")
WAY = ["actors.connections", "actors.topics", "storage.managed", "storage.ledger", "actors.bookie", "storage.bookie"]


def rooms_on_the_stack(frame: FrameType | None) -> tuple[str, list[str]]:
    """The outermost function of ours, and the sub-rooms from it down to `frame`, each once per visit."""
    rooms: list[str] = []
    functions: list[str] = []
    while frame is not None:
        file = Path(frame.f_code.co_filename).resolve()
        if file.is_relative_to(ROOT) and not file.is_relative_to(ROOT / "tests"):
            rooms.append(".".join(file.relative_to(ROOT).parent.parts))
            functions.append(frame.f_code.co_name)
        frame = frame.f_back
    return functions[-1], [room for room, _ in groupby(one for one in reversed(rooms) if not one.startswith(BELOW))]


def test_an_entry_enters_at_most_8_rooms_from_socket_to_journal_none_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = b"the one that is followed"
    ways: list[tuple[str, list[str]]] = []

    def follow(owner: type, name: str, carries: Callable[[Any], bool]) -> None:
        """Note the stack when an argument of the call has the marker in it."""
        original = getattr(owner, name)

        def followed(self: Any, *arguments: Any, **named: Any) -> Any:
            if any(carries(one) for one in arguments):
                ways.append(rooms_on_the_stack(sys._getframe(1)))
            return original(self, *arguments, **named)

        monkeypatch.setattr(owner, name, followed)

    follow(RpcConnection, "request", lambda one: isinstance(one, list | tuple) and any(marker in part for part in one))
    follow(Journal, "append_entry", lambda one: isinstance(one, bytes | memoryview) and marker in bytes(one))
    alone = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1, "allow_single_copy_acks": True}
    with EmbeddedCluster(tmp_path, brokers=1, bookies=1, **alone) as cluster, Client(cluster.service_url) as client:
        producer = client.create_producer("way")
        producer.send(b"the first one, which waits until the topic has a ledger and a connection to the bookie")
        producer.send(marker)
    (begins, to_bookie), (begins_again, to_journal) = ways
    assert (begins, begins_again) == ("data_received", "data_received"), "the way does not begin at a socket"
    way = to_bookie + to_journal
    assert way == WAY, "the way has changed: see the module, and docs/design/architecture.md"
    assert len(way) <= ROOMS_MAX
    assert len(set(way)) == len(way)
