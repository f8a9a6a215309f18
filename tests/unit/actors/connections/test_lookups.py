"""What a broker answers before a client has a producer or consumer: lookups, schemas, topics of other brokers."""

import pytest

from magnetar.protocol.pulsar_pb2 import (
    CommandGetTopicsOfNamespace,
    CommandLookupTopic,
    CommandPartitionedTopicMetadata,
    Schema,
    ServerError,
)
from support.servers.broker_bench import TOPIC, broker_front

STRING = Schema(name="String", schema_data=b"", type=Schema.String)
BYTES = Schema(name="Bytes", schema_data=b"", type=Schema.NoSchema)
"""As the Go client names it."""


@pytest.mark.promise("22.3")
async def test_lookups_answer_connect_or_failed():
    async with broker_front() as front:
        peer = await front.peer()
        found = await peer.request(CommandLookupTopic(topic="t", request_id=0))
        assert (found.response, found.brokerServiceUrl) == (1, f"pulsar://127.0.0.1:{front.port}")
        missing = await peer.request(CommandLookupTopic(topic="missing", request_id=0))
        assert (missing.response, missing.error) == (2, ServerError.TopicNotFound)
        wrong = await peer.request(CommandLookupTopic(topic="a/b", request_id=0))
        assert (wrong.response, wrong.error) == (2, ServerError.InvalidTopicName)
        parted = await peer.request(CommandPartitionedTopicMetadata(topic="parted", request_id=0))
        assert (parted.response, parted.partitions) == (0, 4)
        failed = await peer.request(CommandPartitionedTopicMetadata(topic="missing", request_id=0))
        assert (failed.response, failed.error) == (1, ServerError.TopicNotFound)
        listed = await peer.request(CommandGetTopicsOfNamespace(namespace="public/default", request_id=0))
        assert list(listed.topics) == [TOPIC] and listed.changed and not listed.filtered
        await peer.close()


async def test_a_lookup_answers_the_address_of_the_listener_that_it_names():
    async with broker_front() as front:
        peer = await front.peer()
        here = f"pulsar://127.0.0.1:{front.port}"
        for name, url, proxied in [
            ("outside", "pulsar://broker-1.example.com:6651", False),
            (" outside ", "pulsar://broker-1.example.com:6651", False),
            ("web", here, True),
            ("", here, False),
            ("  ", here, False),
        ]:
            found = await peer.request(CommandLookupTopic(topic="t", request_id=0, advertised_listener_name=name))
            assert (found.response, found.brokerServiceUrl, found.proxy_through_service_url) == (1, url, proxied), name
        await peer.close()


@pytest.mark.parametrize("name", ["inside", "OUTSIDE", "outside,web", "\x00", "listener " * 1000, "наружу"])
async def test_a_lookup_for_an_unknown_listener_is_refused_as_pulsar_does(name: str):
    async with broker_front() as front:
        peer = await front.peer()
        refused = await peer.request(CommandLookupTopic(topic="t", request_id=0, advertised_listener_name=name))
        assert (refused.response, refused.error) == (2, ServerError.ServiceNotReady)
        assert refused.message == (f"the broker do not have {name.strip()[:100]} listener")
        await peer.close()


async def test_a_client_of_a_topic_elsewhere_is_sent_away_at_once():
    async with broker_front() as front:
        peer = await front.peer()
        front.lookups.grant = lambda name: False
        for answer in (await peer.producer("elsewhere"), await peer.subscribe("elsewhere", "s")):
            assert answer.error == ServerError.ServiceNotReady
        assert front.lookups.claimed == [("persistent://public/default/elsewhere", True)] * 2
        await peer.close()


async def test_a_topic_that_is_claimed_is_served():
    async with broker_front() as front:
        peer = await front.peer()
        name = "persistent://public/default/new"

        def grant(topic):
            front.topics.assign(topic.full, 2, load=False)
            return True

        front.lookups.grant = grant
        assert (await peer.producer(name)).producer_ready
        assert list(front.topics.loaded) == [name]
        await peer.close()


async def test_subscribing_to_a_missing_topic_without_force_is_topic_not_found():
    async with broker_front() as front:
        peer = await front.peer()
        refused = await peer.subscribe("missing", "s", force_topic_creation=False)
        assert refused.error == ServerError.TopicNotFound
        assert front.lookups.claimed == [("persistent://public/default/missing", False)]
        assert not front.opened
        await peer.close()
