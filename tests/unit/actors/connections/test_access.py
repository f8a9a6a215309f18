"""CONNECT with a credential, its renewal, and what each command needs: over a socket, as clients see it."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from magnetar.actors.connections import connection as connection_module
from magnetar.actors.connections.connection import AUTH_REFRESH
from magnetar.actors.security.credentials import Credential, Peer
from magnetar.protocol.errors import AuthenticationError
from magnetar.protocol.frames import FIELD_OF_TYPE
from magnetar.protocol.pulsar_pb2 import (
    AuthData,
    BaseCommand,
    CommandAuthResponse,
    CommandConnect,
    CommandGetOrCreateSchema,
    CommandGetSchema,
    CommandGetTopicsOfNamespace,
    CommandLookupTopic,
    CommandPartitionedTopicMetadata,
    CommandPing,
    CommandProducer,
    CommandSubscribe,
    CommandWatchTopicList,
    FeatureFlags,
    Schema,
    ServerError,
)
from magnetar.runtime.environment import Environment
from magnetar.runtime.logs import AUDIT_LOGGER
from magnetar.runtime.settings.declarations import Settings
from support.clients.wire_peer import WirePeer, entry
from support.servers.broker_bench import TOPIC, BrokerFront, broker_front, until

NAMESPACE = "public/default"


class Told:
    """Believes what it is told: a role, and perhaps how many milliseconds that holds."""

    method = "told"

    def __init__(self, env: Environment, settings: Settings) -> None:
        self._env = env

    async def start(self) -> None:
        pass

    async def authenticate(self, data: bytes, peer: Peer) -> Credential:
        role, _, lasts_ms = data.decode().partition(":")
        if role == "slow":
            await asyncio.sleep(60)
        if role == "wrong" or lasts_ms == "0":
            raise AuthenticationError("this is wrong")
        return Credential(role, self._env.clock.now_ms() + int(lasts_ms) if lasts_ms else None)


PEERS: dict[BrokerFront, list[WirePeer]] = {}


async def opened(front: BrokerFront) -> WirePeer:
    """A peer that has said nothing yet. It is closed with the front."""
    peer = await front.peer(connect=False)
    PEERS[front].append(peer)
    return peer


@contextlib.asynccontextmanager
async def guarded(**changes: Any) -> AsyncIterator[BrokerFront]:
    """A front that asks for credentials and permissions."""
    given = {
        "authentication_enabled": True,
        "authentication_providers": f"{__name__}:Told",
        "authorization_enabled": True,
        "super_user_roles": "root",
        "authentication_refresh_check_s": 1,
    }
    async with broker_front(**{**given, **changes}) as front:
        made: list[WirePeer] = []
        PEERS[front] = made
        try:
            yield front
        finally:
            for peer in PEERS.pop(front):
                await peer.close()


def grant(front: BrokerFront, version: int, **roles: list[str]) -> None:
    front.topics.policies.take([(NAMESPACE, version, {"auth_policies": {"namespace_auth": roles}})])


async def connected(front: BrokerFront, data: str, *, renews: bool = True) -> WirePeer:
    peer = await opened(front)
    flags = FeatureFlags(supports_auth_refresh=renews)
    peer.send(
        CommandConnect(
            client_version="x",
            protocol_version=21,
            auth_method_name="told",
            auth_data=data.encode(),
            feature_flags=flags,
        )
    )
    await peer.expect(BaseCommand.CONNECTED, protocol_version=21)
    return peer


async def refused(front: BrokerFront, command: CommandConnect) -> tuple[int, str]:
    peer = await opened(front)
    peer.send(command)
    error = await peer.expect(BaseCommand.ERROR)
    await asyncio.wait_for(peer.ended.wait(), 5)
    return error.error, error.message


async def test_a_wrong_credential_is_answered_and_the_connection_ends() -> None:
    async with guarded() as front:
        wrong = CommandConnect(client_version="x", auth_method_name="told", auth_data=b"wrong")
        assert await refused(front, wrong) == (ServerError.AuthenticationError, "this is wrong")
        code, text = await refused(front, CommandConnect(client_version="x"))
        assert code == ServerError.AuthenticationError and "no credential" in text
        named = CommandConnect(client_version="x", auth_method_name="told", auth_data=b"a", original_principal="root")
        assert (await refused(front, named))[0] == ServerError.AuthorizationError
        await until(lambda: not front.connections)


async def test_nothing_is_taken_before_it_is_known_who_the_client_is() -> None:
    async with guarded() as front:
        peer = await opened(front)
        peer.send(CommandConnect(client_version="x", auth_method_name="told", auth_data=b"slow"))
        peer.send(CommandLookupTopic(topic=TOPIC, request_id=1))
        await asyncio.wait_for(peer.ended.wait(), 5)
        assert not peer.received


async def test_a_stranger_has_little_room_and_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "STRANGER_MAX_S", 0.2)
    async with guarded() as front:
        peer = await opened(front)
        peer.write((1 << 20).to_bytes(4) + bytes(100))
        await asyncio.wait_for(peer.ended.wait(), 5)
        silent = await opened(front)
        await asyncio.wait_for(silent.ended.wait(), 5)
        known = await connected(front, "root")
        await asyncio.sleep(0.4)
        known.send(CommandPing())
        await known.expect(BaseCommand.PONG)
        await known.producer(TOPIC, 1)
        known.send_entry(entry(bytes(1 << 20), sequence_id=0), 0)
        await known.expect(BaseCommand.SEND_RECEIPT)


async def test_a_client_that_is_not_authenticated_in_time_is_sent_away() -> None:
    async with guarded() as front:
        peer = await opened(front)
        peer.send(CommandConnect(client_version="x", auth_method_name="told", auth_data=b"slow"))
        await until(lambda: len(front.connections) == 1)
        for _ in range(2):
            for connection in list(front.connections):
                connection.tick()
        await asyncio.wait_for(peer.ended.wait(), 5)


async def test_a_credential_that_is_over_is_renewed() -> None:
    async with guarded() as front:
        peer = await connected(front, "root:100")
        for data in ("root:100", "root"):
            asked = await peer.expect(BaseCommand.AUTH_CHALLENGE)
            assert (asked.challenge.auth_method_name, asked.challenge.auth_data) == ("told", AUTH_REFRESH)
            peer.send(CommandAuthResponse(response=AuthData(auth_method_name="told", auth_data=data.encode())))
        peer.send(CommandPing())
        await peer.expect(BaseCommand.PONG)


@pytest.mark.parametrize("answer", [None, "other", "wrong", "root:0"])
async def test_a_credential_that_is_not_renewed_ends_the_connection(answer: str | None) -> None:
    async with guarded() as front:
        peer = await connected(front, "root:50")
        await peer.expect(BaseCommand.AUTH_CHALLENGE)
        if answer is not None:
            peer.send(CommandAuthResponse(response=AuthData(auth_method_name="told", auth_data=answer.encode())))
        error = await peer.expect(BaseCommand.ERROR)
        assert error.error == ServerError.AuthenticationError
        await asyncio.wait_for(peer.ended.wait(), 5)


async def test_a_client_that_cannot_renew_is_sent_away_without_a_question() -> None:
    async with guarded() as front:
        peer = await connected(front, "root:50", renews=False)
        assert "cannot renew" in (await peer.expect(BaseCommand.ERROR)).message
        await asyncio.wait_for(peer.ended.wait(), 5)
        assert not [frame for frame in peer.received if frame.command.type == BaseCommand.AUTH_CHALLENGE]


async def test_an_answer_that_nobody_asked_for_is_checked_too() -> None:
    async with guarded() as front:
        peer = await connected(front, "root")
        peer.send(CommandAuthResponse(response=AuthData(auth_method_name="told", auth_data=b"root:60000")))
        peer.send(CommandPing())
        await peer.expect(BaseCommand.PONG)
        peer.send(CommandAuthResponse(response=AuthData(auth_method_name="told", auth_data=b"other")))
        await peer.expect(BaseCommand.ERROR)
    async with broker_front() as open_front:
        peer = await open_front.peer()
        peer.send(CommandAuthResponse(response=AuthData(auth_method_name="told", auth_data=b"root")))
        await asyncio.wait_for(peer.ended.wait(), 5)
        await peer.close()


COMMANDS: dict[str, tuple[Any, set[str]]] = {
    "lookupTopic": (CommandLookupTopic(topic=TOPIC), {"writer", "reader"}),
    "partitionMetadata": (CommandPartitionedTopicMetadata(topic=TOPIC), {"writer", "reader"}),
    "producer": (CommandProducer(topic=TOPIC, producer_id=1), {"writer"}),
    "producer with a subscription": (
        CommandProducer(topic=TOPIC, producer_id=1, initial_subscription_name="s"),
        set(),
    ),
    "subscribe": (
        CommandSubscribe(topic=TOPIC, subscription="s", subType=CommandSubscribe.Shared, consumer_id=1),
        {"reader"},
    ),
    "getTopicsOfNamespace": (CommandGetTopicsOfNamespace(namespace=NAMESPACE), {"writer", "reader"}),
    "watchTopicList": (
        CommandWatchTopicList(namespace=NAMESPACE, watcher_id=1, topics_pattern=".*"),
        {"writer", "reader"},
    ),
    "getSchema": (CommandGetSchema(topic=TOPIC), {"writer", "reader"}),
    "getOrCreateSchema": (
        CommandGetOrCreateSchema(topic=TOPIC, schema=Schema(name="s", schema_data=b"", type=Schema.String)),
        {"writer"},
    ),
}
"""Commands that name something, and who may say them besides those who may do everything."""
OWN = {
    "connect", "authResponse", "ping", "pong",
    "close_producer",
    "flow", "ack", "redeliverUnacknowledgedMessages", "seek", "getLastMessageId", "unsubscribe", "close_consumer",
    "consumerStats",
    "watchTopicListClose",
}  # fmt: skip
"""Commands that name only what was permitted when it began, or nothing. SEND is one of them, with a path of its own."""


async def test_every_command_is_in_one_of_the_two_lists() -> None:
    """A new command needs a decision: what does it need, or why nothing?"""
    async with guarded() as front:
        await connected(front, "root")
        (connection,) = front.connections
        handled = {FIELD_OF_TYPE[kind] for kind in connection._handlers}
    assert handled == OWN | {name for name in COMMANDS if " " not in name}


ROLES = ("root", "boss", "writer", "reader", "nobody", "stranger")
CASES = [
    (role, name)
    for name, (_, users) in COMMANDS.items()
    for role in ROLES
    if name != "watchTopicList" or role not in users | {"root", "boss"}
]
"""This broker is alone, and cannot serve a topic list watcher: tests of services show that one is served."""


@pytest.mark.promise("30.31")
@pytest.mark.parametrize(("role", "name"), CASES)
async def test_a_command_needs_a_permission(role: str, name: str) -> None:
    command, users = COMMANDS[name]
    async with guarded() as front:
        grant(front, 1, writer=["produce"], reader=["consume"])
        front.topics.policies.take(
            [("public", 1, {"adminRoles": ["boss"]}), ("other", 1, {"adminRoles": ["stranger"]})]
        )
        peer = await connected(front, role)
        sent = type(command)()
        sent.CopyFrom(command)
        sent.request_id = 7
        peer.send(sent)
        peer.send(CommandPing())
        await peer.expect(BaseCommand.PONG)  # a refusal comes before it, because nothing is waited for
        refusals = [str(frame.command) for frame in peer.received if "may not" in str(frame.command)]
        assert bool(refusals) == (role not in users | {"root", "boss"})
        if refusals:
            assert "AuthorizationError" in refusals[0] and not front.topics.loaded


@pytest.mark.promise("30.31")
async def test_a_revocation_ends_producers_consumers_and_watchers_at_once() -> None:
    async with guarded() as front:
        grant(front, 1, both=["produce", "consume"], other=["produce"])
        peer, other = await connected(front, "both"), await connected(front, "other")
        await peer.producer(TOPIC, 1)
        await peer.subscribe(TOPIC, "s", 2)
        await other.producer(TOPIC, 1)
        front.topics.policies.take([("persistent://public/default/one", 1, {"compaction_threshold": 5})])
        grant(front, 2, both=["consume"], other=["produce"])
        await peer.expect(BaseCommand.CLOSE_PRODUCER, producer_id=1)
        grant(front, 3, other=["produce"])
        await peer.expect(BaseCommand.CLOSE_CONSUMER, consumer_id=2)
        other.send(CommandPing())
        await other.expect(BaseCommand.PONG)
        assert [frame for frame in other.received if frame.command.type == BaseCommand.CLOSE_PRODUCER] == []
        assert len(front.topic.publishing.producers) == 1 and not peer.ended.is_set()


@pytest.mark.parametrize("kind", ["producer", "consumer"])
async def test_a_revocation_while_a_producer_or_consumer_is_created_counts(kind: str) -> None:
    async with guarded() as front:
        grant(front, 1, both=["produce", "consume"])
        peer = await connected(front, "both")
        front.open_gate.clear()
        if kind == "producer":
            peer.send(CommandProducer(topic=TOPIC, producer_id=1, request_id=5))
        else:
            peer.send(
                CommandSubscribe(
                    topic=TOPIC, subscription="s", subType=CommandSubscribe.Shared, consumer_id=1, request_id=5
                )
            )
        await until(lambda: bool(front.opened))
        grant(front, 2)
        front.open_gate.set()
        assert (await peer.expect(BaseCommand.ERROR, request_id=5)).error == ServerError.AuthorizationError
        assert not front.topic.in_use


async def test_who_is_no_longer_an_admin_of_a_tenant_loses_his_producers() -> None:
    async with guarded() as front:
        front.topics.policies.take([("public", 1, {"adminRoles": ["boss"]})])
        peer = await connected(front, "boss")
        await peer.producer(TOPIC, 1)
        front.topics.policies.take([("public", 2, {"adminRoles": []})])
        await peer.expect(BaseCommand.CLOSE_PRODUCER, producer_id=1)


async def test_who_did_what_is_told_as_lines_of_json(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, AUDIT_LOGGER)
    async with guarded(audit_log_enabled=True) as front:
        grant(front, 1, writer=["produce"])
        peer = await connected(front, "writer")
        await peer.producer(TOPIC, 1)
        peer.send(CommandSubscribe(topic=TOPIC, subscription="s", subType=0, consumer_id=1, request_id=9))
        await peer.expect(BaseCommand.ERROR, request_id=9)
        await refused(front, CommandConnect(client_version="x", auth_method_name="told", auth_data=b"wrong"))
    lines = [json.loads(record.message) for record in caplog.records if record.name == AUDIT_LOGGER]
    told = [(line["role"], line["action"], line["target"], line["outcome"]) for line in lines]
    assert told == [
        ("writer", "connect", "", "permitted"),
        ("writer", "producer", TOPIC, "permitted"),
        ("writer", "subscribe", TOPIC, "refused"),
        ("", "connect", "", "refused"),
    ]
    assert lines[2]["reason"].startswith("writer may not consume") and lines[0]["member"] == "broker-1"
    assert lines[0]["time"].endswith("+00:00") and lines[0]["address"].startswith("/127.0.0.1:")


async def test_before_permissions_are_known_a_client_is_told_to_try_again() -> None:
    async with guarded() as front:
        front.topics.policies.begin_session()
        peer = await connected(front, "root")
        peer.send(CommandProducer(topic=TOPIC, producer_id=1, request_id=3))
        assert (await peer.expect(BaseCommand.ERROR, request_id=3)).error == ServerError.ServiceNotReady
