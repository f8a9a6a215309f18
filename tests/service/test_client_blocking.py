"""The blocking face: threads, callbacks, listeners, closing, pickling; the cores behind it have tests of their own."""

import gc
import pickle
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from magnetar.client.blocking.client import Client
from magnetar.client.blocking.consumer import Consumer
from magnetar.client.blocking.reader import Reader
from magnetar.client.consuming.message import Message
from magnetar.client.core.configuration import ConsumerType, InitialPosition
from magnetar.client.core.message_id import MessageId
from magnetar.client.core.results import Result
from magnetar.protocol.errors import (
    AlreadyClosed,
    ConnectError,
    InvalidConfiguration,
    MessageTooBig,
    OperationNotSupported,
    ProducerQueueIsFull,
    Timeout,
)
from support.fakes.broker import FakeBroker, FakeBrokerThread

TOPIC = "persistent://public/default/t"
EARLIEST = InitialPosition.Earliest


@pytest.fixture
def broker(broker_thread: FakeBrokerThread) -> FakeBroker:
    return broker_thread.broker


@pytest.fixture
def client(broker: FakeBroker) -> Iterator[Client]:
    with Client(broker.url, operation_timeout_seconds=3) as made:
        yield made


def until(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def client_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("magnetar")]


def test_there_and_back(client: Client) -> None:
    consumer = client.subscribe("t", "s")
    producer = client.create_producer("t")
    sent = producer.send(b"hello", {"a": "b"}, partition_key="k", event_timestamp=5)
    message = consumer.receive(2000)
    assert (message.data(), message.value(), message.properties()) == (b"hello", b"hello", {"a": "b"})
    assert (message.partition_key(), message.event_timestamp()) == ("k", 5)
    assert message.message_id() == sent
    consumer.acknowledge(message)
    assert producer.last_sequence_id() == 0
    assert (producer.topic(), consumer.topic()) == (TOPIC, TOPIC)
    assert consumer.subscription_name() == "s" and consumer.consumer_name() == ""
    assert producer.producer_name() == "fake-1"
    assert producer.is_connected() and consumer.is_connected()
    assert client.get_topic_partitions("t") == [TOPIC]


@pytest.mark.promise("3.5")
def test_a_sync_send_sends_the_open_batch_at_once(client: Client, broker: FakeBroker) -> None:
    producer = client.create_producer("t", batching_enabled=True, batching_max_publish_delay_ms=60_000)
    results: list[Result] = []
    for data in numbers(3):
        producer.send_async(data, lambda result, _: results.append(result))
    assert results == [] and broker.topic(TOPIC).entries == []
    assert producer.send(b"3") == MessageId(-1, 1, 0, 3)
    assert results == [Result.Ok] * 3 and len(broker.topic(TOPIC).entries) == 1
    assert producer.send(b"alone") == MessageId(-1, 1, 1, 0)


@pytest.mark.promise("3.2", "3.4")
@pytest.mark.parametrize("batching", [True, False])
def test_async_sends_call_back_in_order(client: Client, batching: bool) -> None:
    producer = client.create_producer(
        "t", batching_enabled=batching, batching_max_messages=100, block_if_queue_full=True, max_pending_messages=250
    )
    results: list[tuple[Result, MessageId]] = []
    for data in numbers(1000):
        producer.send_async(data, lambda *result: results.append(result))
    producer.flush()
    assert [result for result, _ in results] == [Result.Ok] * 1000
    ids = [message_id for _, message_id in results]
    assert ids == sorted(ids) and len(set(ids)) == 1000


def test_the_loop_is_woken_once_a_batch(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = client.create_producer("t", batching_enabled=True, max_pending_messages=100_000)
    wakes = 0
    wake = producer._outbox._wake

    def counting(*arguments: object) -> None:
        nonlocal wakes
        wakes += 1
        wake(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(producer._outbox, "_wake", counting)
    for _ in range(50_000):
        producer.send_async(b"x" * 10, None)
    producer.flush()
    assert wakes <= 60


def test_many_threads_share_a_producer(client: Client, broker: FakeBroker) -> None:
    producer = client.create_producer("t", batching_enabled=True, block_if_queue_full=True, max_pending_messages=50)
    results: list[Result] = []

    def work(number: int) -> None:
        for index in range(300):
            producer.send_async(b"%d:%d" % (number, index), lambda result, _: results.append(result))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    producer.flush()
    assert results == [Result.Ok] * 1200
    consumer = client.subscribe("t", "s", initial_position=EARLIEST)
    got = [consumer.receive(2000).data() for _ in range(1200)]
    for number in range(4):
        own = [int(data.split(b":")[1]) for data in got if data.startswith(b"%d:" % number)]
        assert own == list(range(300))


def test_many_threads_share_a_consumer(client: Client) -> None:
    client.create_producer("t", batching_enabled=True).send_many(numbers(3000))
    consumer = client.subscribe("t", "s", ConsumerType.Shared, initial_position=EARLIEST, receiver_queue_size=100)
    got: list[bytes] = []

    def work() -> None:
        while True:
            try:
                message = consumer.receive(300)
            except Timeout:
                return
            got.append(message.data())
            consumer.acknowledge(message)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == sorted(numbers(3000))


def test_send_many(client: Client) -> None:
    producer = client.create_producer("t", batching_enabled=True, max_pending_messages=1000)
    ids = producer.send_many(numbers(2500))
    assert len(set(ids)) == 2500 and ids == sorted(ids)
    results: list[Result] = []
    assert producer.send_many(numbers(2500), lambda result, _: results.append(result)) == []
    producer.flush()
    assert results == [Result.Ok] * 2500
    assert producer.send_many([]) == []
    assert len(producer.send_many([bytearray(b"x"), memoryview(b"y")])) == 2  # type: ignore[list-item]


def test_receive_many(client: Client) -> None:
    consumer = client.subscribe("t", "s")
    with pytest.raises(Timeout):
        consumer.receive_many(10, 20)
    client.create_producer("t", batching_enabled=True).send_many(numbers(2500))
    got: list[Message] = []
    while len(got) < 2500:
        got += consumer.receive_many(900, 2000)
    assert [message.data() for message in got] == numbers(2500)
    consumer.acknowledge_many(got)
    assert len(consumer.batch_receive()) == 0


@pytest.mark.promise("3.2", "3.4")
def test_a_full_queue(client: Client, broker: FakeBroker) -> None:
    broker.receipt_delay_s = 0.2
    producer = client.create_producer("t", max_pending_messages=2)
    results: list[Result] = []
    for _ in range(3):
        producer.send_async(b"x", lambda result, _: results.append(result))
    assert results == [Result.ProducerQueueIsFull]
    with pytest.raises(ProducerQueueIsFull):
        producer.send(b"x")
    producer.flush()
    assert results == [Result.ProducerQueueIsFull, Result.Ok, Result.Ok]


def test_a_blocked_sender_hears_of_the_end(broker: FakeBroker) -> None:
    broker.receipts_lost = 10**9
    client = Client(broker.url, operation_timeout_seconds=1)
    producer = client.create_producer("t", max_pending_messages=1, block_if_queue_full=True, send_timeout_millis=0)
    producer.send_async(b"1", None)
    outcome: list[object] = []

    def work() -> None:
        try:
            producer.send(b"2")
        except AlreadyClosed as error:
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    until(lambda: producer._outbox.waiting)
    client.close()
    thread.join(10)
    assert outcome


def test_errors_reach_the_caller(client: Client, broker: FakeBroker) -> None:
    broker.message_size_max = 1000
    producer = client.create_producer("t")
    with pytest.raises(MessageTooBig):
        producer.send(b"x" * 1001)
    results: list[Result] = []
    producer.send_async(b"x" * 1001, lambda result, _: results.append(result))
    producer.flush()
    assert results == [Result.MessageTooBig]


def test_nothing_blocks_in_a_callback(client: Client) -> None:
    producer = client.create_producer("t", max_pending_messages=1, block_if_queue_full=True)
    consumer = client.subscribe("t", "s")
    caught: list[type[BaseException]] = []
    later: list[Result] = []
    done = threading.Event()

    def callback(result: Result, message_id: MessageId) -> None:
        for blocking in (lambda: producer.send(b"x"), producer.flush, consumer.receive, client.close):
            try:
                blocking()
            except OperationNotSupported as error:
                caught.append(type(error))
        producer.send_async(b"fits", lambda result, _: later.append(result))
        producer.send_async(b"does not", lambda result, _: later.append(result))
        done.set()

    producer.send_async(b"x", callback)
    assert done.wait(5)
    assert caught == [OperationNotSupported] * 4
    producer.flush()
    assert later == [Result.ProducerQueueIsFull, Result.Ok]


# ---- Listeners ----


@pytest.mark.promise("14.5")
def test_a_listener_gets_every_message_once(client: Client) -> None:
    got: list[bytes] = []

    def listen(consumer: Consumer, message: Message) -> None:
        got.append(message.data())
        if message.data() == b"3":
            raise RuntimeError("the application's own")
        consumer.acknowledge(message)

    consumer = client.subscribe("t", "s", message_listener=listen)
    with pytest.raises(InvalidConfiguration):
        consumer.receive()
    producer = client.create_producer("t")
    for data in numbers(5):
        producer.send(data)
    until(lambda: len(got) == 5)
    consumer.pause_message_listener()
    producer.send(b"paused")
    time.sleep(0.05)
    assert len(got) == 5
    consumer.resume_message_listener()
    until(lambda: len(got) == 6)
    consumer.close()
    assert not [name for name in client_threads() if "listener" in name]


@pytest.mark.promise("14.5")
def test_a_reader_with_a_listener(client: Client) -> None:
    client.create_producer("t").send_many(numbers(5))
    got: list[bytes] = []
    reader = client.create_reader(
        "t", MessageId.earliest, reader_listener=lambda reader, message: got.append(message.data())
    )
    until(lambda: len(got) == 5)
    assert isinstance(reader, Reader) and got == numbers(5)
    with pytest.raises(InvalidConfiguration):
        reader.read_next()
    reader.close()


# ---- Readers, requests ----


def test_reading(client: Client) -> None:
    ids = client.create_producer("t", batching_enabled=True).send_many(numbers(10))
    reader = client.create_reader("t", ids[3])
    got = []
    while reader.has_message_available():
        got.append(reader.read_next(2000).data())
    assert got == numbers(10)[4:]
    with pytest.raises(Timeout):
        reader.read_next(20)
    reader.seek(MessageId.earliest)
    assert reader.read_next(2000).data() == b"0"
    assert reader.is_connected() and reader.topic() == TOPIC


def test_requests_of_a_consumer(client: Client, broker: FakeBroker) -> None:
    ids = client.create_producer("t").send_many(numbers(4))
    consumer = client.subscribe("t", "s", initial_position=EARLIEST)
    assert consumer.get_last_message_id() == ids[-1]
    assert [consumer.receive(2000).data() for _ in range(4)] == numbers(4)
    consumer.redeliver_unacknowledged_messages()
    assert [consumer.receive(2000).data() for _ in range(4)] == numbers(4)
    consumer.seek(ids[1])
    assert consumer.receive(2000).data() == b"2"
    consumer.negative_acknowledge(consumer.receive(2000))
    consumer.acknowledge_cumulative(ids[3])
    consumer.unsubscribe()
    assert broker.topic(TOPIC).subscriptions == {}
    with pytest.raises(AlreadyClosed):
        consumer.receive()


# ---- The client's life ----


def test_closing_a_client_closes_everything_and_ends_its_thread(broker: FakeBroker) -> None:
    client = Client(broker.url)
    producer = client.create_producer("t", batching_enabled=True, batching_max_publish_delay_ms=60_000)
    consumer = client.subscribe("t", "s")
    reader = client.create_reader("t", MessageId.earliest)
    producer.send_async(b"pending", None)
    client.close()
    client.close()
    assert len(broker.topic(TOPIC).entries) == 1, "what was pending has been sent"
    assert client_threads() == []
    for use in (
        lambda: producer.send(b"x"), producer.flush, consumer.receive, reader.read_next, consumer.get_last_message_id,
        lambda: client.create_producer("t"), lambda: client.get_topic_partitions("t"),
    ):  # fmt: skip
        with pytest.raises(AlreadyClosed):
            use()
    results: list[Result] = []
    producer.send_async(b"x", lambda result, _: results.append(result))
    assert results == [Result.AlreadyClosed]
    for closed in (producer, consumer, reader):
        closed.close()


def test_a_forgotten_client_leaves_no_thread(broker: FakeBroker) -> None:
    client = Client(broker.url)
    producer = client.create_producer("t")
    producer.send(b"x")
    assert client_threads()
    del client, producer
    gc.collect()
    until(lambda: client_threads() == [])


def test_shutdown_waits_for_nothing(broker: FakeBroker) -> None:
    client = Client(broker.url)
    broker.receipts_lost = 10**9
    client.create_producer("t").send_async(b"x", None)
    start = time.monotonic()
    client.shutdown()
    assert time.monotonic() - start < 5  # closing in order would wait for the send time-out, 30 s
    with pytest.raises(AlreadyClosed):
        client.create_producer("t")


def test_nobody_there() -> None:
    with Client("pulsar://127.0.0.1:1", operation_timeout_seconds=1) as client, pytest.raises(ConnectError):
        client.create_producer("t")


def test_clients_producers_consumers_and_readers_pickle(client: Client) -> None:
    consumer = client.subscribe("t", "s", ConsumerType.Shared)
    producer = client.create_producer("t", batching_enabled=True, properties={"a": "b"})
    reader = client.create_reader("t", MessageId.earliest)
    twins = [pickle.loads(pickle.dumps(made)) for made in (producer, consumer, reader)]
    assert all(twin.is_unopened for twin in twins)
    unused = pickle.loads(pickle.dumps(twins[0]))
    unused.close()
    unused._client.close()
    with pytest.raises(AttributeError):
        twins[0].nonsense  # noqa: B018
    assert twins[0].is_unopened
    try:
        twins[0].send(b"from the twin")
        assert twins[0].producer_name() != producer.producer_name()
        assert twins[2].read_next(2000).data() == b"from the twin"
        got = []
        for either in (consumer, twins[1]):
            try:
                got.append(either.receive(200).data())
            except Timeout:
                continue
        assert got == [b"from the twin"]
    finally:
        for twin in twins:
            twin._client.close()
    other = pickle.loads(pickle.dumps(client))
    assert other.configuration == client.configuration
    other.close()


def test_a_lost_connection_is_not_noticed(client: Client, broker_thread: FakeBrokerThread) -> None:
    producer = client.create_producer("t", batching_enabled=True, block_if_queue_full=True)
    consumer = client.subscribe("t", "s")
    results: list[Result] = []
    for number in range(2000):
        producer.send_async(b"%d" % number, lambda result, _: results.append(result))
        if number % 500 == 250:
            broker_thread.call(broker_thread.broker.drop_connections)
    producer.flush()
    assert results == [Result.Ok] * 2000
    seen: set[bytes] = set()
    while len(seen) < 2000:
        message = consumer.receive(2000)
        seen.add(message.data())
        consumer.acknowledge(message)
