"""Options of producers and of single messages: delivery times, interceptors, the client's memory limit."""

import asyncio
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from magnetar.client.aio.client import AsyncClient
from magnetar.client.blocking.client import Client
from magnetar.client.core.configuration import BatchingType, ProducerAccessMode
from magnetar.client.core.interceptors import ProducerInterceptor
from magnetar.client.core.message_id import MessageId
from magnetar.client.core.outgoing_message import OutgoingMessage
from magnetar.client.core.results import Result
from magnetar.protocol.entries import parse_entry
from magnetar.protocol.errors import (
    InvalidConfiguration,
    InvalidMessage,
    MagnetarError,
    MemoryBufferIsFull,
    NotAllowedError,
)
from support.fakes.broker import FakeBroker, FakeBrokerThread

TOPIC = "persistent://public/default/t"


@pytest.mark.promise("11.4", "28.1")
async def test_a_message_with_a_delivery_time_travels_alone(client: AsyncClient, broker: FakeBroker):
    producer = await client.create_producer("t", batching_enabled=True, batching_max_publish_delay_ms=10_000)
    producer.send_async(b"1")
    producer.send_async(b"2")
    producer.send_async(b"later", deliver_at=1_700_000_000_000, properties={"a": "b"})
    producer.send_async(b"3")
    before_ms = time.time() * 1000
    await producer.send(b"soon", deliver_after=timedelta(seconds=60))
    entries = [parse_entry(entry) for entry in broker.topic(TOPIC).entries]
    shown = [(metadata.num_messages_in_batch, metadata.HasField("deliver_at_time")) for metadata, _ in entries]
    assert shown == [(2, False), (1, True), (1, False), (1, True)]
    later, soon = entries[1], entries[3]
    assert (later[0].deliver_at_time, bytes(later[1]), later[0].properties[0].key) == (1_700_000_000_000, b"later", "a")
    assert not later[0].HasField("num_messages_in_batch")
    assert before_ms + 59_000 < soon[0].deliver_at_time < before_ms + 120_000
    assert [metadata.sequence_id for metadata, _ in entries] == [0, 2, 3, 4]


@pytest.mark.promise("28.1")
@pytest.mark.parametrize("options", [{"deliver_at": -1}, {"deliver_at": "soon"}, {"deliver_after": 5}])
async def test_an_impossible_delivery_time_is_refused(client: AsyncClient, options: dict[str, Any]):
    producer = await client.create_producer("t")
    with pytest.raises(InvalidMessage, match=next(iter(options))):
        await producer.send(b"x", **options)


@pytest.mark.promise("31.14")
async def test_a_memory_limit_holds_for_all_producers_of_the_client(broker: FakeBroker):
    async with AsyncClient(broker.url, memory_limit_bytes=10_000) as client:
        first, second = [await client.create_producer(name, batching_enabled=False) for name in ("a", "b")]
        broker.mute_sends = True
        results: list[Result] = []
        for _ in range(10):
            first.send_async(b"x" * 1_000, lambda result, _: results.append(result))
        second.send_async(b"y" * 1_000)
        with pytest.raises(MemoryBufferIsFull, match="10000 bytes"):
            await second.send(b"y" * 1_000)
        first.send_async(b"x", lambda result, _: results.append(result))
        assert results == [Result.MemoryBufferIsFull]
        broker.mute_sends = False
        broker.drop_connections()
        await first.flush()
        await second.flush()
        assert results[1:] == [Result.Ok] * 10
        await second.send(b"room again")
        memory = client._running_core().memory
        assert memory is not None and memory.used_bytes == 0


@pytest.mark.promise("31.14")
def test_a_blocking_client_has_a_memory_limit_too(broker_thread: FakeBrokerThread):
    broker = broker_thread.broker
    with Client(broker.url, memory_limit_bytes=5_000) as client:
        failing = client.create_producer("a")
        waiting = client.create_producer("b", block_if_queue_full=True)
        broker.mute_sends = True
        results: list[Result] = []
        for _ in range(6):
            failing.send_async(b"x" * 1_000, lambda result, _: results.append(result))
        assert results == [Result.MemoryBufferIsFull]
        with pytest.raises(MemoryBufferIsFull, match="5000 bytes"):
            failing.send(b"x" * 1_000)
        sending = threading.Thread(target=lambda: results.append(Result.Ok if waiting.send(b"y" * 1_000) else None))
        sending.start()
        sending.join(0.1)
        assert sending.is_alive()
        broker.mute_sends = False
        broker_thread.call(broker.drop_connections)
        sending.join(10)
        failing.flush()
        assert results == [Result.MemoryBufferIsFull, *[Result.Ok] * 6]


@pytest.mark.promise("31.14")
@pytest.mark.parametrize("batching_type", [BatchingType.Default, BatchingType.KeyBased])
@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize("partitions", [0, 3])
async def test_a_producer_that_may_wait_sends_more_than_the_memory_limit(
    broker: FakeBroker, batching: bool, batching_type: BatchingType, partitions: int
):
    broker.partitions[TOPIC] = partitions
    async with AsyncClient(broker.url, memory_limit_bytes=5_000) as client:
        producer = await client.create_producer(
            "t",
            batching_enabled=batching,
            batching_type=batching_type,
            batching_max_allowed_size_in_bytes=1_000,
            block_if_queue_full=True,
        )
        ids = await producer.send_many([b"%0100d" % number for number in range(300)])
        assert len(set(ids)) == 300
        await asyncio.gather(*[producer.send(b"k" * 900, partition_key=f"{number % 5}") for number in range(30)])
        memory = client._running_core().memory
        assert memory is not None and memory.used_bytes == 0


class Recorder(ProducerInterceptor):
    """Marks each message, and remembers what became of it."""

    def __init__(self, mark: bytes) -> None:
        self.mark = mark
        self.outcomes: list[tuple[bytes, bool, str]] = []
        self.closed = 0

    def before_send(self, producer: object, message: OutgoingMessage) -> OutgoingMessage:
        return message.changed(content=message.data() + self.mark, properties={**message.properties(), "by": "us"})

    def on_send_acknowledgement(
        self, producer: object, message: OutgoingMessage, message_id: MessageId | None, error: MagnetarError | None
    ) -> None:
        self.outcomes.append((message.data(), message_id is not None, type(error).__name__))

    def close(self) -> None:
        self.closed += 1


class Broken(ProducerInterceptor):
    """Raises wherever it can, and returns nothing."""

    def before_send(self, producer: object, message: OutgoingMessage) -> OutgoingMessage:
        if message.data().startswith(b"none"):
            return None  # type: ignore[return-value]
        raise ValueError("broken")

    def on_send_acknowledgement(
        self, producer: object, message: OutgoingMessage, message_id: MessageId | None, error: MagnetarError | None
    ) -> None:
        raise ValueError("broken")

    def close(self) -> None:
        raise ValueError("broken")


@pytest.mark.promise("31.16")
async def test_interceptors_change_messages_and_hear_of_their_outcome(client: AsyncClient, broker: FakeBroker):
    first, second = Recorder(b"+1"), Recorder(b"+2")
    producer = await client.create_producer("t", batching_enabled=False, interceptors=[first, Broken(), second])
    await producer.send(b"a", properties={"own": "x"})
    results: list[Result] = []
    producer.send_async(b"none", lambda result, _: results.append(result))
    await producer.send_many([b"b", b"c"])
    entries = [parse_entry(entry) for entry in broker.topic(TOPIC).entries]
    sent = [b"a+1+2", b"none+1+2", b"b+1+2", b"c+1+2"]
    assert [bytes(payload) for _, payload in entries] == sent
    assert [(one.key, one.value) for one in entries[0][0].properties] == [("own", "x"), ("by", "us")]
    assert results == [Result.Ok]
    assert first.outcomes == second.outcomes == [(payload, True, "NoneType") for payload in sent]
    broker.send_errors = [NotAllowedError.server_error]
    with pytest.raises(NotAllowedError):
        await producer.send(b"bad")
    assert first.outcomes[-1] == (b"bad+1+2", False, "NotAllowedError")
    await producer.close()
    await producer.close()
    assert (first.closed, second.closed) == (1, 1)


@pytest.mark.promise("31.16")
def test_a_blocking_producer_has_interceptors_too(broker_thread: FakeBrokerThread):
    with Client(broker_thread.broker.url) as client:
        recorder = Recorder(b"!")
        producer = client.create_producer("t", interceptors=[recorder, Broken()])
        producer.send(b"a")
        done = threading.Event()
        producer.send_async(b"b", lambda *_: done.set())
        producer.flush()
        assert done.wait(5) and len(producer.send_many([b"c", b"d"])) == 2
        assert recorder.outcomes == [(b"%c!" % letter, True, "NoneType") for letter in b"abcd"]
        producer.close()
        producer.close()
        assert recorder.closed == 1
        with pytest.raises(InvalidConfiguration, match="ProducerInterceptors"):
            client.create_producer("t", interceptors=[object()])


@pytest.mark.promise("31.15")
@pytest.mark.parametrize("initial", [None, 41])
async def test_a_lazy_partition_gets_its_producer_with_its_first_message(broker: FakeBroker, initial: int | None):
    broker.partitions[TOPIC] = 3
    async with AsyncClient(broker.url) as client:
        producer = await client.create_producer(
            "t", batching_enabled=False, lazy_start_partitioned_producers=True, initial_sequence_id=initial
        )
        assert broker.count("PRODUCER") == 1 and producer.is_connected() and producer.producer_name()
        await producer.send(b"first")
        for number in range(6):
            producer.send_async(b"%d" % number)
        await producer.flush()
        assert broker.count("PRODUCER") == 3 and producer.is_connected()
        for partition in range(3):
            entries = [parse_entry(entry)[0] for entry in broker.topic(f"{TOPIC}-partition-{partition}").entries]
            first = 0 if initial is None else initial + 1
            assert [one.sequence_id for one in entries] == list(range(first, first + len(entries)))
            assert len(entries) >= 2 and all(one.producer_name for one in entries)


@pytest.mark.promise("31.15")
async def test_a_lazy_partition_that_cannot_begin_fails_its_messages(broker: FakeBroker):
    broker.partitions[TOPIC] = 2
    async with AsyncClient(broker.url) as client:
        producer = await client.create_producer(
            "t", batching_enabled=False, lazy_start_partitioned_producers=True, send_timeout_millis=300
        )
        broker.producer_errors = [NotAllowedError.server_error]
        outcomes = await asyncio.gather(producer.send(b"a"), producer.send(b"b"), return_exceptions=True)
        assert sorted(type(one).__name__ for one in outcomes) == ["MessageId", "NotAllowedError"]


@pytest.mark.promise("31.15")
@pytest.mark.parametrize("options", [{"access_mode": ProducerAccessMode.Exclusive}, {"producer_name": "chosen"}])
async def test_some_producers_are_never_lazy(broker: FakeBroker, options: dict[str, Any]):
    broker.partitions[TOPIC] = 3
    async with AsyncClient(broker.url) as client:
        await client.create_producer("t", lazy_start_partitioned_producers=True, **options)
        assert broker.count("PRODUCER") == 3
