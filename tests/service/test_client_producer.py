"""The producer against a broker with faults: order, receipts, resends, time-outs, limits, routing."""

import asyncio

import pytest

from magnetar.client.aio.client import AsyncClient
from magnetar.client.consuming.message import ReceivedEntry
from magnetar.client.core.configuration import BatchingType, CompressionType, PartitionsRoutingMode
from magnetar.client.core.message_id import MessageId
from magnetar.client.core.results import Result
from magnetar.protocol.entries import parse_entry
from magnetar.protocol.errors import (
    AlreadyClosed,
    ConnectError,
    InvalidMessage,
    MagnetarError,
    MessageTooBig,
    NotAllowedError,
    ProducerBusy,
    ProducerFenced,
    ProducerQueueIsFull,
    Timeout,
    TopicNotFound,
    TopicTerminated,
)
from support.fakes.broker import FakeBroker

TOPIC = "persistent://public/default/t"


def stored(broker: FakeBroker, topic: str = TOPIC) -> list[bytes]:
    """Every message of a topic, in order."""
    found: list[bytes] = []
    for entry_id, data in enumerate(broker.topic(topic).entries):
        entry = ReceivedEntry(topic, -1, 1, entry_id, *parse_entry(data))
        found += [message.data() for message in entry.open(1 << 24)]
    return found


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@pytest.mark.promise("3.5")
async def test_sends_of_one_moment_share_a_batch_and_nobody_waits_for_the_delay(
    broker: FakeBroker, client: AsyncClient
) -> None:
    producer = await client.create_producer("t", batching_max_publish_delay_ms=60_000)
    ids = await asyncio.gather(*[producer.send(data) for data in numbers(5)])
    assert ids == [MessageId(-1, 1, 0, index) for index in range(5)]
    assert await producer.send(b"later") == MessageId(-1, 1, 1, 0)
    assert stored(broker) == [*numbers(5), b"later"]
    assert producer.last_sequence_id() == 5


@pytest.mark.promise("2.10", "11.1")
async def test_async_sends_wait_for_the_delay_or_a_full_batch(broker: FakeBroker, client: AsyncClient) -> None:
    producer = await client.create_producer("t", batching_max_publish_delay_ms=30, batching_max_messages=4)
    results: list[tuple[Result, MessageId]] = []
    for data in numbers(6):
        producer.send_async(data, lambda *result: results.append(result))
    await broker.until(lambda: len(results) == 4)
    assert len(broker.topic(TOPIC).entries) == 1
    await broker.until(lambda: len(results) == 6)
    assert {result for result, _ in results} == {Result.Ok}
    assert [one.text for _, one in results] == ["1:0:-1:0", "1:0:-1:1", "1:0:-1:2", "1:0:-1:3", "1:1:-1:0", "1:1:-1:1"]


async def test_flush_waits_for_everything_and_shows_the_first_failure(broker: FakeBroker, client: AsyncClient) -> None:
    producer = await client.create_producer("t", batching_max_publish_delay_ms=60_000)
    await producer.flush()
    for data in numbers(3):
        producer.send_async(data)
    await producer.flush()
    assert stored(broker) == numbers(3)
    broker.send_errors = [22]
    producer.send_async(b"refused")
    with pytest.raises(NotAllowedError):
        await producer.flush()


async def test_a_producer_that_stops_on_failure_ends_with_the_first_one(
    broker: FakeBroker, client: AsyncClient
) -> None:
    producer = await client.create_producer("t", stop_on_failure=True, batching_max_publish_delay_ms=60_000)
    await producer.send(b"stored")
    broker.send_errors = [22]
    results: list[Result] = []
    for data in numbers(3):
        producer.send_async(data, lambda result, _: results.append(result))
    with pytest.raises(NotAllowedError):
        await producer.flush()
    for send in (producer.send(b"later"), producer.flush()):
        with pytest.raises(NotAllowedError):
            await send
    assert results == [Result.NotAllowedError] * 3 and stored(broker) == [b"stored"]
    await producer.close()
    assert broker.count("CLOSE_PRODUCER") == 1


@pytest.mark.parametrize("batching", [True, False])
async def test_many_messages_with_one_call(broker: FakeBroker, client: AsyncClient, batching: bool) -> None:
    producer = await client.create_producer("t", batching_enabled=batching, max_pending_messages=70)
    ids = await producer.send_many(numbers(500))
    assert stored(broker) == numbers(500)
    assert ids == sorted(ids) and len(set(ids)) == 500
    assert await producer.send_many([]) == []
    seen: list[Result] = []
    assert await producer.send_many(numbers(10), lambda result, _: seen.append(result)) == []
    await producer.flush()
    assert seen == [Result.Ok] * 10


@pytest.mark.promise("19.9")
@pytest.mark.parametrize("compression", list(CompressionType))
async def test_everything_on_a_message(broker: FakeBroker, client: AsyncClient, compression: CompressionType) -> None:
    producer = await client.create_producer("t", producer_name="me", compression_type=compression)
    await producer.send(b"x" * 1000, {"a": "b"}, "key", "order", 17, event_timestamp=99)
    entry = ReceivedEntry("t", -1, 1, 0, *parse_entry(broker.topic(TOPIC).entries[0]))
    (message,) = entry.open(1 << 20)
    assert (message.data(), message.properties(), message.partition_key()) == (b"x" * 1000, {"a": "b"}, "key")
    assert (message.ordering_key(), message.sequence_id(), message.event_timestamp()) == ("order", 17, 99)
    assert message.producer_name() == "me"
    assert entry.metadata.partition_key == "key", "the first message's key shows on the batch"
    assert producer.last_sequence_id() == 17


async def test_what_is_not_a_message(client: AsyncClient) -> None:
    producer = await client.create_producer("t")
    for wrong in (
        {"content": "text"},
        {"content": 5},
        {"content": b"", "properties": {"a": 1}},
        {"content": b"", "partition_key": b"k"},
        {"content": b"", "partition_key": "\ud800"},
        {"content": b"", "properties": {"a": "\udfff"}},
        {"content": b"", "sequence_id": -1},
        {"content": b"", "event_timestamp": "now"},
    ):
        with pytest.raises(InvalidMessage):
            await producer.send(**wrong)  # type: ignore[arg-type]
    assert await producer.send(bytearray(b"fine"))  # type: ignore[arg-type]


@pytest.mark.promise("2.7")
async def test_sequence_ids_go_on_where_the_broker_or_the_application_says(
    broker: FakeBroker, client: AsyncClient
) -> None:
    broker.last_sequence_id = 41
    producer = await client.create_producer("t", "name")
    assert producer.last_sequence_id() == 41
    await producer.send(b"x")
    assert broker.commands("SEND")[-1].sequence_id == 42
    other = await client.create_producer("t", "other", initial_sequence_id=100)
    await other.send(b"x")
    assert broker.commands("SEND")[-1].sequence_id == 101


@pytest.mark.parametrize("batching", [True, False])
async def test_a_lost_connection_loses_and_reorders_nothing(
    broker: FakeBroker, client: AsyncClient, batching: bool
) -> None:
    producer = await client.create_producer("t", batching_enabled=batching, batching_max_messages=10)
    broker.receipts_lost = 10**9
    results: list[Result] = []
    for data in numbers(200):
        producer.send_async(data, lambda result, _: results.append(result))
    await broker.until(lambda: len(stored(broker)) == 200)
    assert not results
    broker.receipts_lost = 0
    broker.topic(TOPIC).entries.clear()
    broker.drop_connections()
    await producer.send(b"last")
    assert stored(broker) == [*numbers(200), b"last"]
    assert results == [Result.Ok] * 200
    assert broker.commands("PRODUCER")[-1].epoch == 1


async def test_what_is_published_without_a_connection_is_sent_later(broker: FakeBroker, client: AsyncClient) -> None:
    producer = await client.create_producer("t")
    port = broker.port
    await broker.stop()
    sends = [asyncio.ensure_future(producer.send(data)) for data in numbers(5)]
    await asyncio.sleep(0.05)
    assert not producer.is_connected()
    again = await FakeBroker().start(port)
    try:
        await asyncio.gather(*sends)
        assert stored(again) == numbers(5)
        assert producer.is_connected()
        await client.close()
    finally:
        await again.stop()


async def test_a_broker_that_gives_the_topic_away(broker: FakeBroker, client: AsyncClient) -> None:
    producer = await client.create_producer("t")
    await producer.send(b"1")
    broker.producer_errors = [6, 16, 0]
    for connection in broker.connections:
        connection.close_producers()
    await producer.send(b"2")
    assert stored(broker) == [b"1", b"2"]
    assert len(broker.connections) == 1, "the connection stays"
    assert broker.count("PRODUCER") == 5


async def test_a_passing_refusal_starts_over_in_order(broker: FakeBroker, client: AsyncClient) -> None:
    producer = await client.create_producer("t", batching_enabled=False)
    broker.send_errors = [6]
    await asyncio.gather(*[producer.send(data) for data in numbers(20)])
    everything = stored(broker)
    assert everything[-20:] == numbers(20), "whatever was stored before, the whole follows in order"


async def test_beginning_anew_gets_slower_while_nothing_can_be_stored(broker: FakeBroker, client: AsyncClient) -> None:
    producer = await client.create_producer("t")
    broker.send_errors = [6] * 6
    loop = asyncio.get_running_loop()
    begin = loop.time()
    await producer.send(b"at last")
    assert loop.time() - begin > 0.8 * sum(0.01 * 2**tries for tries in range(6)), "no pauses, or none that grow"
    begin = loop.time()
    broker.send_errors = [6]
    await producer.send(b"a receipt ends the growing")
    assert producer._producer.producers[0]._refusals is None and loop.time() - begin < 5


@pytest.mark.parametrize(("code", "error"), [(22, NotAllowedError), (9, MagnetarError)])
async def test_a_final_refusal_fails_its_message_only(
    broker: FakeBroker, client: AsyncClient, code: int, error: type[Exception]
) -> None:
    producer = await client.create_producer("t", batching_enabled=False)
    broker.send_errors = [code]
    outcomes = await asyncio.gather(*[producer.send(data) for data in numbers(3)], return_exceptions=True)
    assert isinstance(outcomes[0], error)
    assert [isinstance(outcome, MessageId) for outcome in outcomes[1:]] == [True, True]


@pytest.mark.parametrize(("code", "error"), [(15, TopicTerminated), (25, ProducerFenced)])
async def test_the_end_of_a_producer(
    broker: FakeBroker, client: AsyncClient, code: int, error: type[Exception]
) -> None:
    producer = await client.create_producer("t", batching_enabled=False)
    broker.send_errors = [code]
    outcomes = await asyncio.gather(*[producer.send(data) for data in numbers(3)], return_exceptions=True)
    assert all(isinstance(outcome, error) for outcome in outcomes)
    with pytest.raises(error):
        await producer.send(b"more")
    results: list[Result] = []
    producer.send_async(b"more", lambda result, _: results.append(result))
    assert results == [Result[error.__name__]]


async def test_a_final_refusal_while_reconnecting_fails_what_is_pending(
    broker: FakeBroker, client: AsyncClient
) -> None:
    producer = await client.create_producer("t")
    broker.producer_errors = [25]
    broker.receipts_lost = 10**9
    send = asyncio.ensure_future(producer.send(b"x"))
    await broker.until(lambda: broker.count("SEND"))
    broker.drop_connections()
    with pytest.raises(ProducerFenced):
        await send


@pytest.mark.promise("3.1")
async def test_no_receipt_in_time_fails_the_message_and_what_comes_after_goes_on(
    broker: FakeBroker, client: AsyncClient
) -> None:
    producer = await client.create_producer("t", batching_enabled=False, send_timeout_millis=150)
    broker.receipts_lost = 2
    loop = asyncio.get_running_loop()
    start = loop.time()
    lost = await asyncio.gather(producer.send(b"1"), producer.send(b"2"), return_exceptions=True)
    assert all(isinstance(outcome, Timeout) for outcome in lost)
    assert "may have been stored" in str(lost[0])
    assert 0.14 < loop.time() - start < 1
    assert await producer.send(b"3")


async def test_a_receipt_out_of_order_means_that_something_was_lost(broker: FakeBroker, client: AsyncClient) -> None:
    producer = await client.create_producer("t", batching_enabled=False)
    broker.receipts_lost = 1
    await asyncio.gather(*[producer.send(data) for data in numbers(3)])
    assert broker.count("CONNECT") == 2
    assert stored(broker)[-3:] == numbers(3)


async def test_a_late_receipt_is_ignored(broker: FakeBroker, client: AsyncClient) -> None:
    producer = await client.create_producer("t", batching_enabled=False, send_timeout_millis=60)
    broker.receipt_delay_s = 0.12
    with pytest.raises(Timeout):
        await producer.send(b"slow")
    broker.receipt_delay_s = 0
    await asyncio.sleep(0.1)
    await producer.send(b"fast")
    assert broker.count("CONNECT") == 1


@pytest.mark.promise("3.3", "3.4")
async def test_a_full_queue_fails_or_waits(broker: FakeBroker, client: AsyncClient) -> None:
    broker.receipt_delay_s = 0.05
    failing = await client.create_producer("t", max_pending_messages=2)
    sends = [asyncio.ensure_future(failing.send(data)) for data in numbers(2)]
    await asyncio.sleep(0)
    with pytest.raises(ProducerQueueIsFull):
        await failing.send(b"x")
    results: list[Result] = []
    failing.send_async(b"x", lambda result, _: results.append(result))
    assert results == [Result.ProducerQueueIsFull]
    with pytest.raises(ProducerQueueIsFull):
        failing.send_async(b"x")
    await asyncio.gather(*sends)
    waiting = await client.create_producer("t", max_pending_messages=2, block_if_queue_full=True)
    await asyncio.gather(*[waiting.send(data) for data in numbers(7)])
    assert stored(broker) == [*numbers(2), *numbers(7)]


@pytest.mark.promise("2.16")
async def test_too_large_a_message_is_refused_and_others_pass(broker: FakeBroker, client: AsyncClient) -> None:
    broker.message_size_max = 10_000
    producer = await client.create_producer("t")
    with pytest.raises(MessageTooBig):
        await producer.send(b"x" * 10_000)
    await asyncio.gather(*[producer.send(b"x" * 3_000) for _ in range(10)])
    assert max(len(entry) for entry in broker.topic(TOPIC).entries) <= 10_000 + 14
    compressing = await client.create_producer("t", compression_type=CompressionType.ZSTD)
    await compressing.send(b"x" * 50_000)


async def test_closing_sends_what_is_pending_and_refuses_more(broker: FakeBroker, client: AsyncClient) -> None:
    producer = await client.create_producer("t", batching_max_publish_delay_ms=60_000)
    for data in numbers(5):
        producer.send_async(data)
    await producer.close()
    await producer.close()
    assert stored(broker) == numbers(5)
    assert broker.count("CLOSE_PRODUCER") == 1
    with pytest.raises(AlreadyClosed):
        await producer.send(b"x")


async def test_failing_callbacks_do_not_hurt_others(
    broker: FakeBroker, client: AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    producer = await client.create_producer("t")
    seen: list[int] = []

    def callback(result: Result, message_id: MessageId) -> None:
        seen.append(message_id.batch_index())
        if message_id.batch_index() == 1:
            raise RuntimeError("the application's own")

    for data in numbers(4):
        producer.send_async(data, callback)
    await producer.flush()
    assert seen == [0, 1, 2, 3]
    assert "a send callback failed" in caplog.text


# ---- Creation ----


async def test_refusals_at_creation(broker: FakeBroker, client: AsyncClient) -> None:
    broker.lookup_errors = [6, 1]
    broker.producer_errors = [6]
    await client.create_producer("t")
    broker.lookup_errors = [11]
    with pytest.raises(TopicNotFound):
        await client.create_producer("t")
    broker.producer_errors = [16]
    with pytest.raises(ProducerBusy):
        await client.create_producer("t")


async def test_passing_refusals_end_with_the_operations_time(broker: FakeBroker) -> None:
    broker.lookup_errors = [6] * 1000
    async with AsyncClient(broker.url, operation_timeout_seconds=1) as client:
        with pytest.raises(Timeout, match="the test wants"):
            await client.create_producer("t")


async def test_nobody_there() -> None:
    async with AsyncClient("pulsar://127.0.0.1:1", operation_timeout_seconds=1) as client:
        with pytest.raises(ConnectError):
            await client.create_producer("t")


async def test_several_hosts_of_which_one_lives(broker: FakeBroker) -> None:
    async with AsyncClient(f"pulsar://127.0.0.1:1,127.0.0.1:{broker.port},127.0.0.1:2") as client:
        producers = [await client.create_producer("t") for _ in range(5)]
        for producer in producers:
            await producer.send(b"x")


async def test_lookups_follow_redirects(broker: FakeBroker) -> None:
    first = await FakeBroker().start()
    first.redirects = [broker.url] * 2
    try:
        async with AsyncClient(first.url) as client:
            producer = await client.create_producer("t")
            await producer.send(b"x")
            assert stored(broker) == [b"x"]
            assert broker.commands("LOOKUP")[-1].authoritative
    finally:
        await first.stop()


async def test_endless_redirects_end(broker: FakeBroker) -> None:
    broker.redirects = [broker.url] * 10_000
    async with AsyncClient(broker.url) as client:
        with pytest.raises(MagnetarError, match="redirected"):
            await client.create_producer("t")


async def test_a_cancelled_creation_leaves_no_producer(broker: FakeBroker, client: AsyncClient) -> None:
    await client.create_producer("t")
    broker.mute = True
    task = asyncio.ensure_future(client.create_producer("u"))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    broker.mute = False


# ---- Partitioned topics ----


async def test_keys_choose_partitions_and_keep_their_order(broker: FakeBroker, client: AsyncClient) -> None:
    broker.partitions[TOPIC] = 3
    producer = await client.create_producer("t")
    keys = [f"key-{number % 10}" for number in range(100)]
    ids = await asyncio.gather(*[producer.send(b"%d" % n, partition_key=key) for n, key in enumerate(keys)])
    by_key: dict[str, set[int]] = {}
    for key, message_id in zip(keys, ids, strict=True):
        by_key.setdefault(key, set()).add(message_id.partition())
    assert all(len(partitions) == 1 for partitions in by_key.values())
    for partition in range(3):
        content = [int(data) for data in stored(broker, f"{TOPIC}-partition-{partition}")]
        for key in range(10):
            own = [number for number in content if number % 10 == key]
            assert own == sorted(own)
    assert await client.get_topic_partitions("t") == [f"{TOPIC}-partition-{index}" for index in range(3)]
    assert await client.get_topic_partitions("u") == ["persistent://public/default/u"]


@pytest.mark.promise("23.9")
async def test_a_custom_router(broker: FakeBroker, client: AsyncClient) -> None:
    broker.partitions[TOPIC] = 3
    producer = await client.create_producer(
        "t",
        message_routing_mode=PartitionsRoutingMode.CustomPartition,
        message_router=lambda message, partitions: int(message.properties()["to"]) % partitions,
    )
    ids = [await producer.send(b"x", {"to": str(wanted)}) for wanted in (0, 4, 2)]
    assert [message_id.partition() for message_id in ids] == [0, 1, 2]


@pytest.mark.promise("19.6")
async def test_one_key_in_each_batch(broker: FakeBroker, client: AsyncClient) -> None:
    producer = await client.create_producer("t", batching_type=BatchingType.KeyBased)
    ids = await asyncio.gather(*[producer.send(b"%d" % n, partition_key=f"k{n % 3}") for n in range(9)])
    assert sorted(set(message_id.entry_id() for message_id in ids)) == [0, 1, 2]
    assert stored(broker) == [b"0", b"3", b"6", b"1", b"4", b"7", b"2", b"5", b"8"]


async def test_a_partition_that_refuses_leaves_nothing_open(broker: FakeBroker, client: AsyncClient) -> None:
    broker.partitions[TOPIC] = 4
    broker.producer_errors = [16]
    with pytest.raises(ProducerBusy):
        await client.create_producer("t")
    await broker.until(lambda: not any(connection.producers for connection in broker.connections))


# ---- A broker that falls silent ----


async def test_a_silent_broker_is_given_up_while_receipts_are_due(broker: FakeBroker) -> None:
    other = await FakeBroker().start()
    broker._url_of = lambda topic: broker.url if not broker.mute else other.url
    other._url_of = broker.url_for
    try:
        url = f"pulsar://127.0.0.1:{broker.port},127.0.0.1:{other.port}"
        async with AsyncClient(url, keep_alive_interval_s=0.1) as client:
            producer = await client.create_producer("t")
            await producer.send(b"1")
            broker.mute = True
            await asyncio.wait_for(producer.send(b"2"), 5)
            assert stored(other)[-1:] == [b"2"]
            assert broker.count("PING") >= 1
    finally:
        await other.stop()
