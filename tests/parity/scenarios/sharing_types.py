"""Failover and Key_Shared: who is active, who gets a key, who is refused, and what the statistics say."""

from collections.abc import Mapping
from typing import Any

import pulsar

from magnetar.protocol.pulsar_pb2 import (
    BaseCommand,
    CommandCloseConsumer,
    CommandFlow,
    CommandSubscribe,
    IntRange,
    KeySharedMeta,
    KeySharedMode,
)

from ..peer import Peer
from ..registry import scenario
from ..stage import Stage

EARLIEST = pulsar.InitialPosition.Earliest
FAILOVER, KEY_SHARED = pulsar.ConsumerType.Failover, pulsar.ConsumerType.KeyShared
KEYS = [f"key-{number}" for number in range(12)]


def _consumer(stage: Stage, label: str, name: str, kind: Any, **options: Any) -> Any:
    topic = options.pop("topic", None) or stage.topic()
    client = stage.client()
    return stage.step(
        label,
        client.subscribe,
        topic,
        "s",
        consumer_type=kind,
        consumer_name=name,
        initial_position=EARLIEST,
        **options,
    )


def _send(stage: Stage, keys: list[str], **options: Any) -> None:
    producer = stage.client().create_producer(stage.topic(), producer_name=f"p{len(keys)}-{keys[0]}")
    for number, key in enumerate(keys):
        producer.send(b"%d" % number, partition_key=key, **options)
    producer.close()


def _by_name(consumers: Mapping[str, Any], count: int) -> dict[str, list[tuple[str, str]]]:
    """(key, value) of so many messages, by the consumer that got them; each is acknowledged."""
    found: dict[str, list[tuple[str, str]]] = {name: [] for name in consumers}
    for _ in range(200):
        for name, consumer in consumers.items():
            try:
                message = consumer.receive(100)
            except pulsar.Timeout:
                continue
            found[name].append((message.partition_key(), message.data().decode()))
            consumer.acknowledge(message)
        if sum(map(len, found.values())) >= count:
            break
    return found


def _sticky(*ranges: tuple[int, int]) -> pulsar.ConsumerKeySharedPolicy:
    return pulsar.ConsumerKeySharedPolicy(pulsar.KeySharedMode.Sticky, False, list(ranges))


def _subscribe(stage: Stage, label: str, peer: Peer, number: int, kind: int, **fields: Any) -> Any:
    command = CommandSubscribe(
        topic=stage.topic(), subscription="s", subType=kind, consumer_id=number, consumer_name=f"c{number}", **fields
    )
    return stage.ask(label, peer, command)


@scenario(promises=("17.3", "17.10"))
def failover_goes_to_the_next_consumer_behind_what_is_acknowledged(stage: Stage) -> None:
    """The active consumer acknowledges some messages and leaves; the one that stood by gets the others."""
    first = _consumer(stage, "the first", "a", FAILOVER)
    _send(stage, ["k"] * 4)
    got = stage.receive("what the first gets", first, 4)
    second = _consumer(stage, "the second", "b", FAILOVER)
    stage.nothing("what the second gets meanwhile", second)
    first.acknowledge(got[0])
    stage.step("the first closes", first.close)
    stage.receive("what the second gets", second, 3)


@scenario(promises=("17.2",))
def failover_divides_partitions_by_the_order_of_names(stage: Stage) -> None:
    """Three consumers of a topic with three partitions have one each."""
    stage.admin("PUT", "/admin/v2/persistent/{ns}/topic/partitions", 3)
    for name in ("a", "b", "c"):
        _consumer(stage, name, name, FAILOVER)
    for partition in range(3):
        stage.until(
            lambda number=partition: (
                len(stage.stats(f"topic-partition-{number}")["subscriptions"]["s"]["consumers"]) == 3
            )
        )
        found = stage.stats(f"topic-partition-{partition}")["subscriptions"]["s"]
        stage.note(f"the active consumer of partition {partition}", found["activeConsumerName"])


@scenario(promises=("17.4", "31.4"))
def failover_takes_the_best_priority_level(stage: Stage) -> None:
    """Of a partition's consumers only those of the smallest priority level may be active."""
    stage.admin("PUT", "/admin/v2/persistent/{ns}/topic/partitions", 1)
    topic, peer = stage.found_topic("topic-partition-0"), stage.peer()
    for number, level in ((1, 2), (2, 1), (3, 1)):
        command = CommandSubscribe(
            topic=topic,
            subscription="s",
            subType=2,
            consumer_id=number,
            consumer_name=f"c{number}",
            priority_level=level,
        )
        stage.ask(f"consumer {number} of level {level}", peer, command)
        found = stage.stats("topic-partition-0")["subscriptions"]["s"]
        stage.note("the active consumer", found["activeConsumerName"])


@scenario()
def failover_tells_the_only_consumer_that_it_is_active(stage: Stage) -> None:
    """ACTIVE_CONSUMER_CHANGE to one consumer, by raw frames."""
    stage.found_topic()
    peer = stage.peer()
    _subscribe(stage, "the consumer", peer, 1, 2)
    stage.next_frame("the news", peer, BaseCommand.ACTIVE_CONSUMER_CHANGE)
    stage.settle("nothing else", peer)


@scenario(promises=("31.8",))
def failover_tells_the_one_left_that_it_is_active(stage: Stage) -> None:
    """ACTIVE_CONSUMER_CHANGE when the active consumer has left, by raw frames."""
    stage.admin("PUT", "/admin/v2/persistent/{ns}/topic/partitions", 1)
    topic, peer = stage.found_topic("topic-partition-0"), stage.peer()
    for number in (1, 2):
        command = CommandSubscribe(
            topic=topic, subscription="s", subType=2, consumer_id=number, consumer_name=f"c{number}"
        )
        stage.ask(f"consumer {number}", peer, command)
        stage.next_frame(f"news after consumer {number}", peer, BaseCommand.ACTIVE_CONSUMER_CHANGE)
    stage.settle("nothing else", peer)
    stage.ask("the first closes", peer, CommandCloseConsumer(consumer_id=1))
    stage.next_frame("news for the second", peer, BaseCommand.ACTIVE_CONSUMER_CHANGE)


@scenario(promises=("16.4",))
def another_type_than_the_connected_one_is_refused(stage: Stage) -> None:
    """Consumers of the other types, by raw frames, while a Failover consumer is connected."""
    stage.found_topic()
    peer = stage.peer()
    _subscribe(stage, "Failover", peer, 1, 2)
    for number, (name, kind) in enumerate((("Exclusive", 0), ("Shared", 1), ("Key_Shared", 3)), 2):
        _subscribe(stage, name, peer, number, kind)
    stage.ask("the first closes", peer, CommandCloseConsumer(consumer_id=1))
    _subscribe(stage, "Key_Shared again", peer, 5, 3)


@scenario(promises=("18.12",))
def keys_are_split_by_consistent_hashing(stage: Stage) -> None:
    """Which of two consumers gets which key, in which order."""
    consumers = {name: _consumer(stage, name, name, KEY_SHARED) for name in ("c1", "c2")}
    _send(stage, KEYS * 2)
    for name, got in _by_name(consumers, 24).items():
        stage.note(f"what {name} gets", [f"{key}={value}" for key, value in got])


@scenario(promises=("18.2",))
def the_ordering_key_comes_before_the_key(stage: Stage) -> None:
    """Messages of many keys and one ordering key go to one consumer."""
    consumers = {name: _consumer(stage, name, name, KEY_SHARED) for name in ("c1", "c2", "c3")}
    _send(stage, KEYS, ordering_key="one")
    for name, got in _by_name(consumers, 12).items():
        stage.note(f"how many {name} gets", len(got))


@scenario(promises=("19.1",))
def a_key_that_moves_waits_for_its_old_consumer(stage: Stage) -> None:
    """A second consumer joins while the first holds messages of all keys; then the first acknowledges them."""
    first = _consumer(stage, "the first", "c1", KEY_SHARED)
    _send(stage, KEYS)
    held = stage.receive("what the first holds", first, 12)
    second = _consumer(stage, "the second", "c2", KEY_SHARED)
    _send(stage, [*KEYS[::-1], "another"])
    stage.nothing("what the second gets of keys that drain", second)
    for message in held:
        first.acknowledge(message)
    for name, got in _by_name({"c1": first, "c2": second}, 12).items():
        stage.note(f"what {name} gets", [f"{key}={value}" for key, value in sorted(got, key=lambda one: int(one[1]))])


@scenario(promises=("18.13",))
def statistics_of_key_shared_consumers(stage: Stage) -> None:
    """Ranges of two consumers, and the hashes that drain."""
    first = _consumer(stage, "the first", "c1", KEY_SHARED)
    _send(stage, KEYS)
    stage.receive("what the first holds", first, 12)
    _consumer(stage, "the second", "c2", KEY_SHARED)
    fields = [
        "keyHashRangeArrays",
        "drainingHashesCount",
        "drainingHashesUnackedMessages",
        "drainingHashesClearedTotal",
    ]
    found = stage.stats()["subscriptions"]["s"]
    for consumer in found["consumers"]:
        for field in fields:
            stage.note(f"{field} of {consumer['consumerName']}", [str(consumer[field])])
        slots = [[one["hash"], one["unackMsgs"], one["blockedAttempts"]] for one in consumer["drainingHashes"]]
        stage.note(f"what drains at {consumer['consumerName']}", [str(slot) for slot in sorted(slots)])
    shown = ("type", "keySharedMode", "allowOutOfOrderDelivery", "drainingHashesCount")
    stage.note("the subscription", [f"{field}={found[field]}" for field in shown])


@scenario(promises=("18.1",))
def a_negative_acknowledgement_on_key_shared_brings_back_one_message(stage: Stage) -> None:
    """The same consumer gets it again, with a redelivery count."""
    consumer = _consumer(stage, "the consumer", "c1", KEY_SHARED, negative_ack_redelivery_delay_ms=100)
    _send(stage, ["a", "b", "a"])
    got = stage.receive("first", consumer, 3)
    consumer.negative_acknowledge(got[1])
    stage.receive("again", consumer, 1)
    stage.nothing("nothing else", consumer)


@scenario(promises=("18.16",))
def sticky_ranges_decide_who_gets_a_key(stage: Stage) -> None:
    """Two consumers with ranges; a third one's overlap."""
    low = _consumer(stage, "low", "low", KEY_SHARED, key_shared_policy=_sticky((0, 32767)))
    high = _consumer(stage, "high", "high", KEY_SHARED, key_shared_policy=_sticky((32768, 65535)))
    _consumer(stage, "an overlap", "overlap", KEY_SHARED, key_shared_policy=_sticky((100, 200)))
    _send(stage, KEYS)
    for name, got in _by_name({"low": low, "high": high}, 12).items():
        stage.note(f"what {name} gets", [f"{key}={value}" for key, value in got])


@scenario(promises=("18.17",))
def impossible_sticky_ranges_are_refused(stage: Stage) -> None:
    """By raw frames, as clients check most of it themselves."""
    stage.found_topic()
    peer = stage.peer()
    wrong = {"none": [], "the end first": [(5, 1)], "two that overlap": [(0, 10), (10, 20)]}
    for number, (label, ranges) in enumerate(wrong.items(), 1):
        _subscribe(stage, label, peer, number, 3, keySharedMeta=_meta(ranges))
    _subscribe(stage, "a good one", peer, 10, 3, keySharedMeta=_meta([(0, 100)]))
    _subscribe(stage, "one that overlaps with it", peer, 11, 3, keySharedMeta=_meta([(100, 200)]))


@scenario()
def another_key_shared_mode_is_refused(stage: Stage) -> None:
    """Sticky and out-of-order consumers while an ordinary one is connected."""
    stage.found_topic()
    peer = stage.peer()
    _subscribe(stage, "split", peer, 1, 3)
    _subscribe(stage, "sticky", peer, 2, 3, keySharedMeta=_meta([(0, 100)]))
    out_of_order = KeySharedMeta(keySharedMode=KeySharedMode.AUTO_SPLIT, allowOutOfOrderDelivery=True)
    _subscribe(stage, "out of order", peer, 3, 3, keySharedMeta=out_of_order)
    peer.send(CommandFlow(consumer_id=1, messagePermits=10))
    stage.settle("nothing else", peer)


def _meta(ranges: list[tuple[int, int]]) -> KeySharedMeta:
    return KeySharedMeta(
        keySharedMode=KeySharedMode.STICKY, hashRanges=[IntRange(start=start, end=end) for start, end in ranges]
    )
