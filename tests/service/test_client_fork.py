"""A process that forks with clients open: the child is told at once, and the parent goes on."""

import asyncio
import multiprocessing
import os
import pickle
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from magnetar.client.aio.client import AsyncClient
from magnetar.client.blocking.client import Client
from magnetar.client.core import discovery, forking
from magnetar.client.core.configuration import InitialPosition
from magnetar.client.core.message_id import MessageId
from magnetar.client.core.results import Result
from magnetar.protocol.errors import AlreadyClosed, ConnectError
from support.fakes.broker import FakeBroker, FakeBrokerThread

CHILD_TIMEOUT_S = 90.0
AT_ONCE_S = 20.0
"""A third of the operation timeout: a call that waits for the broker takes longer, a busy machine does not."""
OPERATION_TIMEOUT_S = 60
WAIT_MS = 30_000
EARLIEST = InitialPosition.Earliest


@pytest.fixture
def broker(broker_thread: FakeBrokerThread) -> FakeBroker:
    return broker_thread.broker


@pytest.fixture
def client(broker: FakeBroker) -> Iterator[Client]:
    with Client(broker.url, operation_timeout_seconds=OPERATION_TIMEOUT_S) as made:
        yield made


def in_child(work: Callable[[], object]) -> str:
    """What `work` returns (or raises) as text, called in a child that is forked from this thread."""
    context = multiprocessing.get_context("fork")
    there, here = context.Pipe(duplex=False)

    def run() -> None:
        try:
            here.send(str(work()))
        except BaseException:
            here.send(traceback.format_exc())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of forks in processes with threads
        child = context.Process(target=run, daemon=True)
        child.start()
    try:
        if not there.poll(CHILD_TIMEOUT_S):
            raise AssertionError("the child hangs")
        return there.recv()
    finally:
        child.kill()
        child.join()


def refusals(calls: dict[str, Callable[[], object]]) -> str:
    """The calls that did not raise what they should, empty if all did."""
    wrong: list[str] = []
    for name, call in calls.items():
        try:
            wrong.append(f"{name} returned {call()!r}")
        except AlreadyClosed as error:
            if f"belongs to the parent process {os.getppid()}, from which" not in error.message:
                wrong.append(f"{name}: {error}")
    return "; ".join(wrong)


def test_every_blocking_call_of_what_was_inherited_raises_at_once(client: Client) -> None:
    producer = client.create_producer("t", batching_enabled=True)
    sent = producer.send(b"of the parent")
    consumer = client.subscribe("t", "s", initial_position=EARLIEST)
    reader = client.create_reader("t", MessageId.earliest)
    message = consumer.receive(WAIT_MS)
    results: list[Result] = []
    calls: dict[str, Callable[[], object]] = {
        "send": lambda: producer.send(b"x"),
        "send with a key": lambda: producer.send(b"x", partition_key="k"),
        "send_many": lambda: producer.send_many([b"x"] * 3),
        "producer.flush": producer.flush,
        "receive": lambda: consumer.receive(),
        "receive_many": lambda: consumer.receive_many(5),
        "batch_receive": consumer.batch_receive,
        "acknowledge": lambda: consumer.acknowledge(message),
        "acknowledge an id": lambda: consumer.acknowledge(sent),
        "acknowledge_many": lambda: consumer.acknowledge_many([message]),
        "acknowledge_cumulative": lambda: consumer.acknowledge_cumulative(message),
        "negative_acknowledge": lambda: consumer.negative_acknowledge(message),
        "redeliver": consumer.redeliver_unacknowledged_messages,
        "seek": lambda: consumer.seek(MessageId.earliest),
        "get_last_message_id": consumer.get_last_message_id,
        "unsubscribe": consumer.unsubscribe,
        "read_next": lambda: reader.read_next(),
        "has_message_available": reader.has_message_available,
        "reader.seek": lambda: reader.seek(MessageId.earliest),
    }

    def work() -> str:
        begin = time.monotonic()
        wrong = refusals(calls)
        producer.send_async(b"x", lambda result, _: results.append(result))
        for made in (producer, consumer, reader):
            made.close()
        return f"{wrong} {[result.name for result in results]} {time.monotonic() - begin < AT_ONCE_S}"

    assert in_child(work) == " ['AlreadyClosed'] True"
    producer.send(b"still the parent")
    assert consumer.receive(WAIT_MS).data() == b"still the parent"


def test_an_inherited_client_connects_again_in_the_child(client: Client) -> None:
    producer = client.create_producer("t")
    producer.send(b"of the parent")

    def work() -> object:
        consumer = client.subscribe("t", "child", initial_position=EARLIEST)
        found = [consumer.receive(WAIT_MS).data()]
        client.create_producer("t").send(b"of the child")
        found.append(consumer.receive(WAIT_MS).data())
        client.close()
        return found

    assert in_child(work) == "[b'of the parent', b'of the child']"
    producer.send(b"again")


def test_unused_faces_of_a_pickle_open_in_the_child(client: Client) -> None:
    producer = pickle.loads(pickle.dumps(client.create_producer("t")))
    assert in_child(lambda: producer.send(b"x").entry_id()) == "0"


def test_closing_in_the_child_leaves_the_parent_alone(client: Client) -> None:
    producer, consumer = client.create_producer("t"), client.subscribe("t", "s")

    def work() -> str:
        client.close()
        client.shutdown()
        return "closed"

    assert in_child(work) == "closed"
    producer.send(b"x")
    assert consumer.receive(WAIT_MS).data() == b"x"


def test_a_fork_while_other_threads_hold_locks(client: Client) -> None:
    """Each lock that the child may need is held by a thread that does not exist there."""
    producer = client.create_producer("t")
    consumer = client.subscribe("t", "s")
    locks: list[Any] = [consumer._receive_queue.lock, *[outbox.lock for outbox in producer._outboxes]]
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        for lock in locks:
            lock.acquire()
        held.set()
        done.wait()
        for lock in locks:
            lock.release()

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(30)
    try:
        calls: dict[str, Callable[[], object]] = {
            "send": lambda: producer.send(b"x"),
            "send_many": lambda: producer.send_many([b"x"]),
            "receive": consumer.receive,
            "receive_many": lambda: consumer.receive_many(5),
        }
        assert in_child(lambda: refusals(calls)) == ""
    finally:
        done.set()
        holder.join()
    producer.send(b"x")
    assert consumer.receive(WAIT_MS).data() == b"x"


def test_forks_amid_traffic_never_hang(client: Client) -> None:
    """The loop's thread is anywhere when the process forks, inside its locks too."""
    producer = client.create_producer("t", batching_enabled=True, block_if_queue_full=True)
    consumer = client.subscribe("t", "s")
    stop = threading.Event()

    def publish() -> None:
        while not stop.is_set():
            producer.send_many([b"x"] * 100, lambda result, message_id: None)

    def consume() -> None:
        while not stop.is_set():
            consumer.acknowledge_many(consumer.receive_many(100, 5000))

    threads = [threading.Thread(target=work) for work in (publish, consume)]
    for thread in threads:
        thread.start()
    calls: dict[str, Callable[[], object]] = {
        "send": lambda: producer.send(b"x"),
        "receive": consumer.receive,
        "flush": producer.flush,
    }
    try:
        for _ in range(15):
            assert in_child(lambda: refusals(calls)) == ""
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_the_end_of_the_parents_connection_is_seen_while_a_child_lives(broker: FakeBroker) -> None:
    client = Client(broker.url)
    client.create_producer("t")
    context = multiprocessing.get_context("fork")
    going = context.Event()
    child = context.Process(target=going.wait, args=(90,), daemon=True)
    child.start()
    try:
        assert broker.connections
        client.shutdown()
        end = time.monotonic() + 30
        while broker.connections:
            assert time.monotonic() < end, "the child holds the connection"
            time.sleep(0.001)
    finally:
        going.set()
        child.join()


async def test_an_asyncio_client_that_was_inherited_raises(broker: FakeBroker) -> None:
    client = AsyncClient(broker.url)
    producer = await client.create_producer("t")
    consumer = await client.subscribe("t", "s")

    def run(call: Callable[[], Any]) -> Callable[[], object]:
        async def one() -> object:
            return await asyncio.wait_for(call(), 30)

        return lambda: asyncio.run(one())

    calls = {
        "send": run(lambda: producer.send(b"x")),
        "send_many": run(lambda: producer.send_many([b"x"])),
        "flush": run(producer.flush),
        "receive": run(consumer.receive),
        "receive_many": run(lambda: consumer.receive_many(5)),
        "acknowledge": run(lambda: consumer.acknowledge(MessageId(-1, 1, 1))),
        "seek": run(lambda: consumer.seek(MessageId.earliest)),
        "create_producer": run(lambda: client.create_producer("t")),
    }
    assert in_child(lambda: refusals(calls)) == ""
    assert in_child(run(client.close)) == "None"
    await producer.send(b"x")
    assert (await consumer.receive(WAIT_MS)).data() == b"x"
    await client.close()


def test_ray_is_not_asked_in_a_child_of_a_process_that_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ray:
        @staticmethod
        def is_initialized() -> bool:
            return True

    monkeypatch.setitem(sys.modules, "ray", Ray)

    def work() -> str:
        assert forking.ray_was_inherited()
        with pytest.raises(ConnectError, match="spawn"):
            discovery.find_service_url()
        return "told"

    assert in_child(work) == "told"
    assert not forking.ray_was_inherited()
