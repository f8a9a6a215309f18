"""Names, properties and limits of letters, without a socket."""

import re

import pytest

from magnetar.client.consuming.message import Message, ReceivedEntry
from magnetar.client.core.configuration import (
    ConsumerConfiguration,
    ConsumerDeadLetterPolicy,
    ConsumerType,
    DeadLetterProducerContext,
)
from magnetar.client.letters.handling import LetterPolicy, letter_properties, reconsume_times
from magnetar.protocol.errors import InvalidConfiguration, InvalidTopicName
from magnetar.protocol.pulsar_pb2 import KeyValue, MessageMetadata

FULL = "persistent://public/default/my-topic"


def policy(**options: object) -> LetterPolicy:
    arguments: dict[str, object] = {
        "topic": "my-topic", "subscription_name": "sub", "consumer_type": ConsumerType.Shared, **options,
    }  # fmt: skip
    found = LetterPolicy.of(ConsumerConfiguration(**arguments), lambda: "abcde")  # type: ignore[arg-type]
    assert found is not None
    return found


def message(topic: str, **properties: str) -> Message:
    metadata = MessageMetadata(properties=[KeyValue(key=key, value=value) for key, value in properties.items()])
    return Message((ReceivedEntry(topic, -1, 1, 0, metadata, b"x"), -1, b"x", metadata))


@pytest.mark.promise("8.7", "8.15", "8.16", "9.2", "9.4", "9.6", "9.12")
def test_names_of_topics_and_of_the_dead_letter_producer() -> None:
    found = policy(enable_retry=True, dead_letter_policy=ConsumerDeadLetterPolicy(3), consumer_name="c")
    assert found.retry_topic == f"{FULL}-sub-RETRY" and found.dead_letter_topic_of(FULL) == f"{FULL}-sub-DLQ"
    dead = found.dead_letter_producer(f"{FULL}-partition-3", "x1y2z")
    assert dead.producer_name == f"{FULL}-sub-c-x1y2z-DLQ" and dead.topic == f"{FULL}-sub-DLQ"
    assert found.dead_letter_producer(f"{FULL}-sub-RETRY", "x").producer_name == f"{FULL}-sub-c-x-DLQ"
    retry = found.retry_producer()
    assert retry.topic == f"{FULL}-sub-RETRY" and retry.producer_name is None
    assert not dead.batching_enabled and not retry.batching_enabled
    assert dead.chunking_enabled and retry.chunking_enabled


@pytest.mark.promise("9.3")
def test_own_names_and_defaults() -> None:
    own = policy(
        enable_retry=True,
        retry_letter_topic="again",
        dead_letter_policy=ConsumerDeadLetterPolicy(3, "public/default/dead", "keeper"),
    )
    assert own.retry_topic == "persistent://public/default/again"
    assert own.dead_letter_topic_of(FULL) == "persistent://public/default/dead"
    assert own.dead_letter_producer(FULL, "x").initial_subscription_name == "keeper"
    assert own.consumer_name == "abcde"
    assert policy(enable_retry=True).max_redeliver_count == 16
    several = policy(topic=["a", "b"], dead_letter_policy=ConsumerDeadLetterPolicy(1))
    name = "persistent://public/default/b"
    assert several.dead_letter_topic_of(f"{name}-partition-1") == f"{name}-sub-DLQ"
    pattern = policy(topic=re.compile("public/default/.*"), dead_letter_policy=ConsumerDeadLetterPolicy(1))
    assert pattern.dead_letter_topic_of(name) == f"{name}-sub-DLQ"


@pytest.mark.promise("8.14", "9.5")
def test_customizers_change_options_but_not_the_topic() -> None:
    seen: list[DeadLetterProducerContext] = []

    def customize(context: DeadLetterProducerContext, options: dict[str, object]) -> None:
        seen.append(context)
        options.update(batching_enabled=True, chunking_enabled=False)

    found = policy(
        enable_retry=True,
        consumer_name="c",
        dead_letter_policy=ConsumerDeadLetterPolicy(2, "dead"),
        dead_letter_producer_customizer=customize,
        retry_letter_producer_customizer=customize,
    )
    assert found.dead_letter_producer(FULL, "x").batching_enabled and found.retry_producer().batching_enabled
    assert seen == [
        DeadLetterProducerContext(f"{FULL}-sub-DLQ", FULL, "sub", "c"),
        DeadLetterProducerContext(f"{FULL}-sub-RETRY", FULL, "sub", "c"),
    ]
    moved = policy(
        dead_letter_policy=ConsumerDeadLetterPolicy(2),
        dead_letter_producer_customizer=lambda _, options: options.update(topic="elsewhere"),
    )
    with pytest.raises(InvalidConfiguration, match="changed its topic"):
        moved.dead_letter_producer(FULL, "x")


@pytest.mark.promise("8.10", "8.11")
def test_properties_of_a_copy_keep_what_was_first() -> None:
    first = letter_properties(message(f"{FULL}-partition-2", mine="1"), "sub", {"more": "2"})
    assert first == {
        "ORIGIN_MESSAGE_ID": "1:0:-1", "ORIGIN_MESSAGE_IDY_TIME": "1:0:-1", "REAL_SUBSCRIPTION": "sub",
        "REAL_TOPIC": FULL, "mine": "1", "more": "2",
    }  # fmt: skip
    again = letter_properties(message(f"{FULL}-sub-RETRY", **first), "other")
    assert again == first and list(again) == sorted(again)


@pytest.mark.parametrize(("text", "times"), [("0", 0), ("7", 7), ("", 0), ("x", 0), ("-1", 0), ("٣", 0), ("9" * 30, 0)])
def test_a_count_that_is_no_number_counts_as_none(text: str, times: int) -> None:
    assert reconsume_times({"RECONSUMETIMES": text}) == times
    assert reconsume_times({}) == 0


@pytest.mark.promise("8.12", "9.11")
@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"consumer_type": ConsumerType.Exclusive, "dead_letter_policy": ConsumerDeadLetterPolicy(1)}, "Exclusive"),
        ({"consumer_type": ConsumerType.Failover, "dead_letter_policy": ConsumerDeadLetterPolicy(1)}, "Failover"),
        ({"consumer_type": ConsumerType.Exclusive, "enable_retry": True}, "Exclusive"),
        ({"consumer_type": ConsumerType.Failover, "enable_retry": True}, "Failover"),
        ({"consumer_type": ConsumerType.KeyShared, "enable_retry": True}, "KeyShared"),
        ({"dead_letter_policy": 3}, "must be a ConsumerDeadLetterPolicy"),
        ({"retry_letter_topic": "x"}, "without enable_retry"),
        ({"enable_retry": True, "topic": re.compile("x.*")}, "no retry letter topic"),
    ],
)
def test_combinations_that_are_refused(options: dict[str, object], match: str) -> None:
    with pytest.raises(InvalidConfiguration, match=match):
        policy(**options)


@pytest.mark.parametrize("count", [0, -1, None, True, "3", 1.5])
def test_a_redeliver_count_is_a_positive_number(count: object) -> None:
    with pytest.raises(InvalidConfiguration, match="must be greater than 0"):
        ConsumerDeadLetterPolicy(count)  # type: ignore[arg-type]


def test_a_name_that_is_no_topic_is_refused_when_subscribing() -> None:
    with pytest.raises(InvalidTopicName):
        policy(dead_letter_policy=ConsumerDeadLetterPolicy(1, "a/b"))
    with pytest.raises(InvalidTopicName):
        policy(enable_retry=True, retry_letter_topic="x://y")
