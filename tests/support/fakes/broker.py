"""A small broker in memory, to test the client against: one process, no storage, faults on request.

It speaks the protocol over real sockets, knows topics (lists of entries in one ledger each), Exclusive and Shared
subscriptions and readers, and can refuse connections, lose receipts, refuse sends, drop
connections, redirect look-ups, corrupt entries.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from magnetar.protocol.commands import (
    BROKER_REQUEST_ID,
    encode,
    message_end,
    message_header,
    pong,
    send_error,
    send_receipt,
)
from magnetar.protocol.entries import parse_metadata
from magnetar.protocol.errors import ProtocolError
from magnetar.protocol.frames import FrameDecoder
from magnetar.protocol.message_id import position_of
from magnetar.protocol.pulsar_pb2 import (
    BaseCommand,
    CommandAck,
    CommandCloseConsumer,
    CommandCloseProducer,
    CommandConnected,
    CommandError,
    CommandGetLastMessageIdResponse,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
    CommandProducerSuccess,
    CommandSubscribe,
    CommandSuccess,
    MessageIdData,
)

EARLIEST = 2**64 - 1


@dataclass
class Topic:
    """The entries of a topic, and its subscriptions."""

    ledger_id: int
    entries: list[bytes] = field(default_factory=list)
    subscriptions: dict[str, "Subscription"] = field(default_factory=dict)

    def counts(self, entry_id: int) -> int:
        try:
            return parse_metadata(self.entries[entry_id]).num_messages_in_batch
        except ProtocolError:
            return 1  # a test stored nonsense


class Subscription:
    """Who consumes, what is acknowledged, what is next."""

    def __init__(self, topic: Topic, durable: bool, next_entry: int) -> None:
        self.topic = topic
        self.durable = durable
        self.start = next_entry
        self.next_entry = next_entry
        self.again: deque[int] = deque()
        self.acked: set[int] = set()
        self.consumers: list[Consumer] = []
        self._turn = 0

    def dispatch(self) -> None:
        while all(consumer.connection.broker.dispatching for consumer in self.consumers):
            ready = [consumer for consumer in self.consumers if consumer.permits > 0]
            if not ready:
                return
            if self.again:
                entry_id = self.again.popleft()
            elif self.next_entry < len(self.topic.entries):
                entry_id = self.next_entry
                self.next_entry += 1
            else:
                return
            if entry_id in self.acked:
                continue
            self._turn += 1
            ready[self._turn % len(ready)].deliver(entry_id)

    def mark_deleted(self) -> int:
        """The last entry of those acknowledged without a gap."""
        position = self.start - 1
        while position + 1 in self.acked:
            position += 1
        return position

    def rewind(self, consumer: "Consumer", entry_ids: list[int] | None = None) -> None:
        """Deliver again what the consumer has not acknowledged."""
        wanted = sorted(consumer.unacked if entry_ids is None else consumer.unacked & set(entry_ids))
        consumer.unacked -= set(wanted)
        self.again = deque(sorted({*self.again, *wanted}))


@dataclass(eq=False)
class Consumer:
    """One consumer of a subscription, on one connection."""

    connection: "Connection"
    consumer_id: int
    subscription: Subscription
    permits: int = 0
    epoch: int | None = None
    unacked: set[int] = field(default_factory=set)
    redeliveries: dict[int, int] = field(default_factory=dict)

    def deliver(self, entry_id: int) -> None:
        topic = self.subscription.topic
        body = topic.entries[entry_id]
        broker = self.connection.broker
        if broker.corrupt > 0:
            broker.corrupt -= 1
            body = body[:-1] + bytes([body[-1] ^ 1])
        self.permits -= topic.counts(entry_id)
        self.unacked.add(entry_id)
        count = self.redeliveries.get(entry_id, 0)
        self.redeliveries[entry_id] = count + 1
        header = message_header(
            self.consumer_id, topic.ledger_id, entry_id, -1, count, None, len(body), end=message_end(self.epoch)
        )
        self.connection.write(header, body)


class FakeBroker:
    """See the module. The fields are there to be changed by tests."""

    def __init__(self, url_of: Callable[[str], str] | None = None) -> None:
        self.topics: dict[str, Topic] = {}
        self.partitions: dict[str, int] = {}
        self.connections: list[Connection] = []
        self.log: list[tuple[str, Any]] = []
        self.connect_error: int | None = None
        self.lookup_errors: list[int] = []
        self.redirects: list[str] = []
        self.has_epochs = True
        self.dispatching = True
        """Until a redelivery is asked for: before it is heeded all that was not dispatched is on its way."""
        self.receipts_lost = 0
        self.receipt_delay_s = 0.0
        self.send_errors: list[int] = []
        self.producer_errors: list[int] = []
        self.subscribe_errors: list[int] = []
        self.message_size_max = 5 * 1024 * 1024
        self.corrupt = 0
        self.mute = False
        self.mute_sends = False
        self.store = True
        self.next_producer = 0
        self.last_sequence_id = -1
        self._url_of = url_of
        self._server: asyncio.Server | None = None
        self.stopped = False
        self.port = 0

    async def start(self, port: int = 0) -> "FakeBroker":
        loop = asyncio.get_running_loop()
        self.stopped = False
        self._server = await loop.create_server(lambda: Connection(self), "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    @property
    def url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port}"

    def url_for(self, topic: str) -> str:
        return self._url_of(topic) if self._url_of else self.url

    def topic(self, name: str) -> Topic:
        return self.topics.setdefault(name, Topic(len(self.topics) + 1))

    def drop_connections(self) -> None:
        for connection in list(self.connections):
            connection.transport.abort()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self.stopped = True
            self.drop_connections()
            await self._server.wait_closed()

    def count(self, kind: str) -> int:
        return sum(1 for name, _ in self.log if name == kind)

    def commands(self, kind: str) -> list[Any]:
        return [command for name, command in self.log if name == kind]

    async def until(self, condition: Callable[[], object], timeout_s: float = 30.0) -> None:
        """Wait, looking every millisecond, until something has happened here."""
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110 - conditions are of many kinds
                await asyncio.sleep(0.001)


class FakeBrokerThread:
    """A fake broker on a thread of its own, for tests of blocking clients. A context manager."""

    def __enter__(self) -> FakeBroker:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake-broker")
        self._thread.start()
        self.broker = asyncio.run_coroutine_threadsafe(FakeBroker().start(), self._loop).result(5)
        return self.broker

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self.broker.stop(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Call something of the broker on its thread, and wait until it is done."""

        async def run() -> None:
            function(*arguments)

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(5)


class Connection(asyncio.Protocol):
    """One client's connection."""

    transport: asyncio.Transport

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.decoder = FrameDecoder(64 * 1024 * 1024)
        self.producers: dict[int, tuple[str, str]] = {}
        self.consumers: dict[int, tuple[str, Consumer]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.broker.connections.append(self)
        if self.broker.stopped:  # it was accepted while the listening socket was closed
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.broker.connections.remove(self)
        for consumer_id in list(self.consumers):
            self._leave(consumer_id)

    def data_received(self, data: bytes) -> None:
        for command, entry in self.decoder.feed(data):
            kind = BaseCommand.Type.Name(command.type)
            inner = next(value for field, value in command.ListFields() if field.name != "type")
            self.broker.log.append((kind, inner))
            if not self.broker.mute:
                getattr(self, f"on_{kind.lower()}")(inner, entry)

    def write(self, *parts: bytes) -> None:
        self.transport.write(b"".join(parts))

    def success(self, request_id: int) -> None:
        self.write(encode(CommandSuccess(request_id=request_id)))

    def error(self, request_id: int, code: int) -> None:
        text = f"the test wants error {code}"
        self.write(encode(CommandError(request_id=request_id, error=code, message=text)))  # type: ignore[arg-type]

    def on_connect(self, command: Any, _: Any) -> None:
        if self.broker.connect_error is not None:
            self.error(BROKER_REQUEST_ID, self.broker.connect_error)
            self.transport.close()
            return
        answer = CommandConnected(server_version="fake", protocol_version=21)
        answer.max_message_size = self.broker.message_size_max
        self.write(encode(answer))

    def on_ping(self, command: Any, _: Any) -> None:
        self.write(pong())

    def on_pong(self, command: Any, _: Any) -> None:
        """Nothing to do."""

    def on_partitioned_metadata(self, command: Any, _: Any) -> None:
        answer = CommandPartitionedTopicMetadataResponse(request_id=command.request_id)
        answer.response = CommandPartitionedTopicMetadataResponse.Success
        answer.partitions = self.broker.partitions.get(command.topic, 0)
        self.write(encode(answer))

    def on_lookup(self, command: Any, _: Any) -> None:
        answer = CommandLookupTopicResponse(request_id=command.request_id)
        if self.broker.lookup_errors:
            answer.response = CommandLookupTopicResponse.Failed
            answer.error = self.broker.lookup_errors.pop(0)  # type: ignore[assignment]
            answer.message = "the test wants the look-up to fail"
        elif self.broker.redirects:
            answer.response = CommandLookupTopicResponse.Redirect
            answer.brokerServiceUrl = self.broker.redirects.pop(0)
            answer.authoritative = True
        else:
            answer.response = CommandLookupTopicResponse.Connect
            answer.brokerServiceUrl = self.broker.url_for(command.topic)
        self.write(encode(answer))

    # ---- Producers ----

    def on_producer(self, command: Any, _: Any) -> None:
        if self.broker.producer_errors:
            self.error(command.request_id, self.broker.producer_errors.pop(0))
            return
        name = command.producer_name
        if not name:
            self.broker.next_producer += 1
            name = f"fake-{self.broker.next_producer}"
        self.producers[command.producer_id] = (command.topic, name)
        self.broker.topic(command.topic)
        answer = CommandProducerSuccess(request_id=command.request_id, producer_name=name)
        answer.last_sequence_id = self.broker.last_sequence_id
        self.write(encode(answer))

    def on_send(self, command: Any, entry: bytes) -> None:
        if command.producer_id not in self.producers:
            return
        broker = self.broker
        if broker.mute_sends:
            return
        if broker.send_errors:
            code = broker.send_errors.pop(0)
            self.write(send_error(command.producer_id, command.sequence_id, code, "the test wants it"))
            return
        topic = broker.topic(self.producers[command.producer_id][0])
        if broker.store:
            topic.entries.append(entry)
        else:
            topic.entries[:] = [b""]
        if broker.receipts_lost > 0:
            broker.receipts_lost -= 1
            return
        where = (topic.ledger_id, len(topic.entries) - 1)
        receipt = send_receipt(command.producer_id, command.sequence_id, command.highest_sequence_id, *where)
        if broker.receipt_delay_s:
            asyncio.get_running_loop().call_later(broker.receipt_delay_s, self.write, receipt)
        else:
            self.write(receipt)
        if broker.store:
            for subscription in topic.subscriptions.values():
                subscription.dispatch()

    def on_close_producer(self, command: Any, _: Any) -> None:
        self.producers.pop(command.producer_id, None)
        self.success(command.request_id)

    def close_producers(self) -> None:
        """Tell the client that its producers are gone."""
        for producer_id in list(self.producers):
            del self.producers[producer_id]
            self.write(encode(CommandCloseProducer(producer_id=producer_id, request_id=0)))

    # ---- Consumers ----

    def on_subscribe(self, command: Any, _: Any) -> None:
        if self.broker.subscribe_errors:
            self.error(command.request_id, self.broker.subscribe_errors.pop(0))
            return
        topic = self.broker.topic(command.topic)
        subscription = topic.subscriptions.get(command.subscription)
        if subscription is None:
            if not command.durable:
                start = self._start(topic, command.start_message_id)
            else:
                start = 0 if command.initialPosition == CommandSubscribe.Earliest else len(topic.entries)
            subscription = Subscription(topic, command.durable, start)
            topic.subscriptions[command.subscription] = subscription
        if subscription.consumers and command.subType == CommandSubscribe.Exclusive:
            self.error(command.request_id, 5)
            return
        consumer = Consumer(self, command.consumer_id, subscription)
        if self.broker.has_epochs and command.HasField("consumer_epoch"):
            consumer.epoch = command.consumer_epoch
        subscription.consumers.append(consumer)
        self.consumers[command.consumer_id] = (command.subscription, consumer)
        self.success(command.request_id)

    def _start(self, topic: Topic, place: MessageIdData) -> int:
        ledger_id, entry_id = position_of(place)
        if ledger_id < topic.ledger_id:
            return 0
        if ledger_id > topic.ledger_id:
            return len(topic.entries)
        return max(entry_id, 0)

    def on_flow(self, command: Any, _: Any) -> None:
        found = self.consumers.get(command.consumer_id)
        if found is not None:
            found[1].permits += command.messagePermits
            found[1].subscription.dispatch()

    def on_ack(self, command: Any, _: Any) -> None:
        _, consumer = self.consumers[command.consumer_id]
        for place in command.message_id:
            entry_id = position_of(place)[1]
            if command.ack_type == CommandAck.Cumulative:
                done = set(range(entry_id + 1))
            else:
                done = {entry_id}
            consumer.subscription.acked |= done
            consumer.unacked -= done

    def on_redeliver_unacknowledged_messages(self, command: Any, _: Any) -> None:
        _, consumer = self.consumers[command.consumer_id]
        if not self.broker.dispatching:
            self.broker.dispatching = True
            consumer.subscription.dispatch()
        if self.broker.has_epochs and command.HasField("consumer_epoch"):
            consumer.epoch = command.consumer_epoch
        ids = [position_of(place)[1] for place in command.message_ids]
        consumer.subscription.rewind(consumer, ids or None)
        consumer.subscription.dispatch()

    def on_seek(self, command: Any, _: Any) -> None:
        _, consumer = self.consumers[command.consumer_id]
        subscription = consumer.subscription
        topic = subscription.topic
        if command.HasField("message_id"):
            ledger_id, entry_id = position_of(command.message_id)
            earlier, later = ledger_id < topic.ledger_id, ledger_id > topic.ledger_id
            target = 0 if earlier else len(topic.entries) if later else entry_id
        else:
            times = [parse_metadata(entry).publish_time for entry in topic.entries]
            target = sum(1 for time in times if time < command.message_publish_time)
        subscription.start = subscription.next_entry = target
        subscription.acked.clear()
        subscription.again.clear()
        for other in list(subscription.consumers):
            other.unacked.clear()
            other.permits = 0
        for other in list(subscription.consumers):
            other.connection.close_consumer(other.consumer_id)
        self.success(command.request_id)

    def close_consumer(self, consumer_id: int) -> None:
        """Tell the client that its consumer is gone."""
        self._leave(consumer_id)
        self.write(encode(CommandCloseConsumer(consumer_id=consumer_id, request_id=0)))

    def on_get_last_message_id(self, command: Any, _: Any) -> None:
        _, consumer = self.consumers[command.consumer_id]
        topic = consumer.subscription.topic
        last = MessageIdData(ledgerId=EARLIEST, entryId=EARLIEST)
        if topic.entries:
            last = MessageIdData(ledgerId=topic.ledger_id, entryId=len(topic.entries) - 1)
            metadata = parse_metadata(topic.entries[-1])
            if metadata.HasField("num_messages_in_batch"):
                last.batch_index = metadata.num_messages_in_batch - 1
        entry_id = consumer.subscription.mark_deleted()
        done = MessageIdData(ledgerId=topic.ledger_id, entryId=entry_id % 2**64)
        answer = CommandGetLastMessageIdResponse(request_id=command.request_id, last_message_id=last)
        answer.consumer_mark_delete_position.CopyFrom(done)
        self.write(encode(answer))

    def on_unsubscribe(self, command: Any, _: Any) -> None:
        name, consumer = self.consumers[command.consumer_id]
        self._leave(command.consumer_id)
        for topic in self.broker.topics.values():
            if topic.subscriptions.get(name) is consumer.subscription:
                del topic.subscriptions[name]
        self.success(command.request_id)

    def on_close_consumer(self, command: Any, _: Any) -> None:
        self._leave(command.consumer_id)
        self.success(command.request_id)

    def _leave(self, consumer_id: int) -> None:
        found = self.consumers.pop(consumer_id, None)
        if found is None:
            return
        name, consumer = found
        subscription = consumer.subscription
        subscription.consumers.remove(consumer)
        subscription.rewind(consumer)
        if not subscription.durable:
            # A seek closes a reader's consumer and its subscription survives that; a lost connection ends it.
            if self.transport.is_closing():
                subscription.topic.subscriptions.pop(name, None)
        subscription.dispatch()
