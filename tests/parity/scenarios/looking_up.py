"""Lookups, partition metadata and lists of topics: by raw frames and by the admin HTTP."""

from typing import Any

from magnetar.protocol.pulsar_pb2 import (
    CommandConnect,
    CommandGetTopicsOfNamespace,
    CommandLookupTopic,
    CommandPartitionedTopicMetadata,
    CommandProducer,
)

from ..registry import NO_CREATION, scenario
from ..stage import Stage


def _bad_names(stage: Stage) -> list[tuple[str, str]]:
    return [
        ("an empty name", ""),
        ("a domain that does not exist", f"strange://{stage.namespace}/t"),
        ("too many parts", f"persistent://{stage.namespace}/a/b/c"),
        ("too few parts", "persistent://parity/t"),
        ("a namespace that does not exist", "persistent://parity/none-such/t"),
        ("a tenant that does not exist", "persistent://none-such/none/t"),
        ("a short name", "short"),
    ]


@scenario()
def lookups_answer_or_refuse(stage: Stage) -> None:
    """LOOKUP of topics that are there, that are not yet, and that cannot be."""
    peer = stage.peer()
    stage.ask("a topic that is not yet", peer, CommandLookupTopic(topic=stage.topic(), authoritative=False))
    stage.admin("PUT", "/admin/v2/persistent/{ns}/made")
    stage.ask("one that is there", peer, CommandLookupTopic(topic=stage.topic("made"), authoritative=False))
    for label, name in _bad_names(stage):
        stage.ask(label, peer, CommandLookupTopic(topic=name, authoritative=False))
    listener = CommandLookupTopic(topic=stage.topic(), authoritative=False, advertised_listener_name="none")
    stage.ask("a listener that does not exist", peer, listener)


@scenario()
def partition_metadata_answers_or_refuses(stage: Stage) -> None:
    """PARTITIONED_METADATA of plain, partitioned, missing and impossible topics."""
    peer = stage.peer()
    stage.admin("PUT", "/admin/v2/persistent/{ns}/plain")
    stage.admin("PUT", "/admin/v2/persistent/{ns}/parts/partitions", 3)
    for label, name in [("plain", "plain"), ("partitioned", "parts"), ("a partition", "parts-partition-1")]:
        stage.ask(label, peer, CommandPartitionedTopicMetadata(topic=stage.topic(name)))
    stage.ask("missing", peer, CommandPartitionedTopicMetadata(topic=stage.topic("missing")))
    for label, name in _bad_names(stage):
        stage.ask(label, peer, CommandPartitionedTopicMetadata(topic=name))
    quiet = CommandPartitionedTopicMetadata(topic=stage.topic("other"), metadata_auto_creation_enabled=False)
    stage.ask("missing, and not to be created", peer, quiet)


@scenario(NO_CREATION)
def partition_metadata_without_automatic_creation(stage: Stage) -> None:
    """Missing topics, by frames and by the admin."""
    peer = stage.peer()
    stage.ask("missing", peer, CommandPartitionedTopicMetadata(topic=stage.topic()))
    stage.ask("lookup of a missing one", peer, CommandLookupTopic(topic=stage.topic(), authoritative=False))
    path = "/admin/v2/persistent/{ns}/topic/partitions"
    stage.http("by the admin", "GET", path)
    stage.http("by the admin, as a client asks", "GET", path + "?checkAllowAutoCreation=true")


@scenario()
def lists_of_topics_name_them_by_mode(stage: Stage) -> None:
    """GET_TOPICS_OF_NAMESPACE with each mode, of empty and missing namespaces."""
    peer = stage.peer()
    mode = CommandGetTopicsOfNamespace
    stage.ask("empty", peer, CommandGetTopicsOfNamespace(namespace=stage.namespace))
    stage.admin("PUT", "/admin/v2/persistent/{ns}/parts/partitions", 1)
    stage.ask("persistent", peer, CommandGetTopicsOfNamespace(namespace=stage.namespace, mode=mode.PERSISTENT))
    stage.ask("non-persistent", peer, CommandGetTopicsOfNamespace(namespace=stage.namespace, mode=mode.NON_PERSISTENT))
    stage.ask("all", peer, CommandGetTopicsOfNamespace(namespace=stage.namespace, mode=mode.ALL))
    stage.ask("a missing namespace", peer, CommandGetTopicsOfNamespace(namespace="parity/none-such"))
    stage.ask("an impossible namespace", peer, CommandGetTopicsOfNamespace(namespace="a/b/c/d"))


@scenario()
def a_connection_begins_with_connect(stage: Stage) -> None:
    """What a broker says to a connection that begins otherwise, or twice."""
    early = stage.peer(connect=False)
    early.send(CommandProducer(topic=stage.topic(), producer_id=1, request_id=1))
    stage.ends("a command before CONNECT", early)
    plain = stage.peer(connect=False)
    plain.send(CommandConnect(client_version="parity", protocol_version=21))
    stage.next_frame("CONNECT", plain)
    plain.send(CommandConnect(client_version="parity", protocol_version=21))
    stage.ends("CONNECT again", plain)
    old = stage.peer(connect=False)
    old.send(CommandConnect(client_version="old", protocol_version=1))
    stage.next_frame("an old protocol", old)
    large = stage.peer()
    large.write((20 << 20).to_bytes(4, "big") + bytes(1000))
    stage.ends("a frame that is too large", large)
    broken = stage.peer()
    broken.write((100).to_bytes(4, "big") + (50).to_bytes(4, "big") + b"\xff" * 96)
    stage.ends("a command that is no command", broken)


@scenario()
def lookups_by_the_admin(stage: Stage) -> None:
    """The HTTP lookup of topics that are there, that are not, and that cannot be."""
    fields: dict[str, Any] = {"only": [".brokerUrl", ".nativeUrl"]}
    stage.http("a topic that is not yet", "GET", "/lookup/v2/topic/persistent/{ns}/topic", **fields)
    stage.http("a namespace that does not exist", "GET", "/lookup/v2/topic/persistent/parity/none-such/t", **fields)
    stage.http("a tenant that does not exist", "GET", "/lookup/v2/topic/persistent/none-such/none/t", **fields)
    stage.http("a domain that does not exist", "GET", "/lookup/v2/topic/strange/{ns}/t", **fields)
