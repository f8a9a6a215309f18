"""How a producer stays registered: one connection after the other, the first reason of an end, withdrawn attempts."""

import asyncio
from typing import Any

import pytest

from magnetar.client.core.configuration import ClientConfiguration
from magnetar.client.core.connection import ClientConnection, ProducerEndpoint
from magnetar.client.core.registration import Registration, RegistrationKind, RegistrationState
from magnetar.protocol.commands import encode
from magnetar.protocol.errors import AlreadyClosed, ConnectionClosed, MagnetarError, TopicTerminated
from magnetar.protocol.frames import FrameDecoder
from magnetar.protocol.pulsar_pb2 import (
    CommandCloseProducer,
    CommandConnected,
    CommandError,
    CommandProducer,
    CommandProducerSuccess,
    ServerError,
)
from magnetar.protocol.topics import TopicName
from magnetar.runtime.tasks import Tasks
from magnetar.runtime.transitions import ForbiddenTransition

TOPIC = TopicName.parse("persistent://public/default/t")
KIND: RegistrationKind[ProducerEndpoint] = RegistrationKind(
    "producer",
    "registered",
    lambda connection: connection.producers,
    lambda producer_id, request_id: CommandCloseProducer(producer_id=producer_id, request_id=request_id),
)


class Wire:
    """A transport that decodes what is written."""

    def __init__(self) -> None:
        self.commands: list[Any] = []
        self.producers: asyncio.Queue[CommandProducer] = asyncio.Queue()
        self._decoder = FrameDecoder(1 << 20)

    def write(self, data: bytes) -> None:
        for command, _ in self._decoder.feed(data):
            if command.HasField("producer"):
                self.producers.put_nowait(command.producer)
            else:
                self.commands.append(command)

    def abort(self) -> None: ...
    def get_extra_info(self, name: str) -> None: ...


class Broker:
    """One ready connection, and what its broker answers by hand."""

    def __init__(self) -> None:
        self.wire = Wire()
        self.connection = ClientConnection(ClientConfiguration(), ("broker", 6650), None)
        self.connection.connection_made(self.wire)  # type: ignore[arg-type]
        self.connection.data_received(encode(CommandConnected(server_version="s")))
        self.wire.commands.clear()

    async def asked(self) -> CommandProducer:
        """The oldest PRODUCER without an answer."""
        return await self.wire.producers.get()

    async def accept(self) -> None:
        request_id = (await self.asked()).request_id
        answer = CommandProducerSuccess(request_id=request_id, producer_name="p")
        self.connection.data_received(encode(answer))

    async def refuse(self, error: int) -> None:
        request_id = (await self.asked()).request_id
        self.connection.data_received(encode(CommandError(request_id=request_id, error=error, message="no")))  # type: ignore[arg-type]

    def closed_ids(self) -> list[int]:
        """The producers that it was told to close."""
        return [one.close_producer.producer_id for one in self.wire.commands if one.HasField("close_producer")]


class Core:
    """A core whose look-up always names the same broker. It repeats an attempt until it succeeds."""

    def __init__(self) -> None:
        self.broker = Broker()
        self.tasks = Tasks()
        self.timeout_s = 5.0
        self.lookup = self
        self.last_id = 0

    async def connection(self, topic: str) -> ClientConnection:
        return self.broker.connection

    def next_id(self) -> int:
        self.last_id += 1
        return self.last_id

    async def reconnect(self, what: str, attempt: Any, wanted: Any, final: Any) -> None:
        while wanted():
            try:
                await attempt()
            except MagnetarError as error:
                if final(error):
                    raise
                await asyncio.sleep(0)


class Endpoint:
    """A producer that only registers."""

    topic = TOPIC
    awaited_sequence_id: int | None = None

    def __init__(self) -> None:
        self.core = Core()
        self.registration: Registration[ProducerEndpoint] = Registration(
            self.core,  # type: ignore[arg-type]
            TOPIC,
            KIND,
            self,
            self.register,
            self.fail,
            lambda error: isinstance(error, TopicTerminated),
        )

    async def register(self) -> None:
        await self.registration.attempt(
            lambda producer_id, request_id: CommandProducer(
                topic=TOPIC.full, producer_id=producer_id, request_id=request_id
            ),
            CommandProducerSuccess,
        )

    def fail(self, error: MagnetarError) -> None:
        self.registration.end(RegistrationState.FAILED, error)

    async def open(self) -> Broker:
        await asyncio.gather(self.register(), self.core.broker.accept())
        return self.core.broker

    def receipt(self, command: Any) -> None: ...
    def send_error(self, command: Any) -> None: ...


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_an_accepted_attempt_makes_it_ready_on_that_connection() -> None:
    endpoint = Endpoint()
    assert endpoint.registration.state is RegistrationState.CONNECTING
    broker = await endpoint.open()
    registration = endpoint.registration
    assert (registration.state, registration.connection) == (RegistrationState.READY, broker.connection)
    assert broker.connection.producers == {registration.id: endpoint}


async def test_a_lost_connection_is_replaced_by_one_task_that_uses_a_new_id() -> None:
    endpoint = Endpoint()
    old = await endpoint.open()
    first_id = endpoint.registration.id
    endpoint.core.broker = Broker()
    old.connection.close()
    assert endpoint.registration.state is RegistrationState.CONNECTING
    assert endpoint.registration.connection is None
    endpoint.registration.reconnect()
    assert len(endpoint.core.tasks) == 1
    await endpoint.core.broker.accept()
    await settle()
    assert endpoint.registration.state is RegistrationState.READY
    assert endpoint.registration.id != first_id
    assert len(endpoint.core.tasks) == 0


async def test_the_end_of_an_earlier_connection_changes_nothing() -> None:
    endpoint = Endpoint()
    await endpoint.open()
    endpoint.registration.lost(Broker().connection)
    assert endpoint.registration.state is RegistrationState.READY


async def test_a_final_refusal_of_the_next_attempt_fails_it() -> None:
    endpoint = Endpoint()
    broker = await endpoint.open()
    endpoint.registration.lost(broker.connection)
    await broker.refuse(ServerError.TopicTerminatedError)
    await settle()
    assert endpoint.registration.state is RegistrationState.FAILED
    with pytest.raises(TopicTerminated):
        endpoint.registration.check()


async def test_a_refusal_that_its_owner_does_not_call_final_is_tried_again() -> None:
    endpoint = Endpoint()
    broker = await endpoint.open()
    endpoint.registration.lost(broker.connection)
    await broker.refuse(ServerError.TopicNotFound)
    await settle()
    assert endpoint.registration.state is RegistrationState.CONNECTING
    endpoint.registration.check()


async def test_the_first_reason_of_an_end_stays() -> None:
    endpoint = Endpoint()
    first, second = AlreadyClosed("first"), AlreadyClosed("second")
    assert endpoint.registration.end(RegistrationState.CLOSED, first) is first
    assert endpoint.registration.end(RegistrationState.FAILED, second) is first
    assert endpoint.registration.state is RegistrationState.CLOSED
    endpoint.registration.reconnect()
    assert len(endpoint.core.tasks) == 0


async def test_an_attempt_that_is_closed_meanwhile_is_withdrawn_at_the_broker() -> None:
    endpoint = Endpoint()
    attempt = asyncio.ensure_future(endpoint.register())
    await settle()
    endpoint.registration.end(RegistrationState.CLOSED, AlreadyClosed("closed"))
    broker = endpoint.core.broker
    await broker.accept()
    with pytest.raises(AlreadyClosed, match="closed"):
        await attempt
    assert broker.closed_ids() == [1] and not broker.connection.producers


async def test_an_attempt_without_an_answer_is_withdrawn_at_the_broker() -> None:
    endpoint = Endpoint()
    endpoint.core.timeout_s = 0.0
    with pytest.raises(TimeoutError):
        await endpoint.register()
    assert endpoint.core.broker.closed_ids() == [1]
    assert endpoint.registration.state is RegistrationState.CONNECTING


async def test_an_attempt_whose_broker_closes_the_producer_before_it_answers_fails() -> None:
    endpoint = Endpoint()
    attempt = asyncio.ensure_future(endpoint.register())
    await settle()
    endpoint.core.broker.connection.producers.clear()
    await endpoint.core.broker.accept()
    with pytest.raises(ConnectionClosed, match="ended while the producer registered"):
        await attempt


async def test_a_second_attempt_while_it_is_ready_is_a_forbidden_step() -> None:
    endpoint = Endpoint()
    await endpoint.open()
    with pytest.raises(ForbiddenTransition, match="the producer on persistent://public/default/t cannot go from ready"):
        await asyncio.gather(endpoint.register(), endpoint.core.broker.accept())


async def test_a_failed_one_is_still_closed_on_its_connection() -> None:
    endpoint = Endpoint()
    broker = await endpoint.open()
    endpoint.fail(TopicTerminated("terminated"))
    connection = endpoint.registration.let_go()
    assert connection is broker.connection and not connection.producers
    endpoint.registration.leave_at_once(connection)
    assert broker.closed_ids() == [endpoint.registration.id]
    assert endpoint.registration.state is RegistrationState.FAILED


async def test_in_the_child_of_a_fork_it_is_closed_and_holds_no_connection() -> None:
    endpoint = Endpoint()
    await endpoint.open()
    endpoint.registration.inherited(AlreadyClosed("the child of a fork"))
    assert endpoint.registration.state is RegistrationState.CLOSED
    assert endpoint.registration.connection is None
    with pytest.raises(AlreadyClosed, match="the child of a fork"):
        endpoint.registration.check()
