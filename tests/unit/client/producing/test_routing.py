"""Choice of partitions: by key as Java's clients do, keyless by mode, custom by function."""

import pytest

from magnetar.client.core.configuration import HashingScheme, PartitionsRoutingMode, ProducerConfiguration
from magnetar.client.core.outgoing_message import OutgoingMessage
from magnetar.client.producing.topic_producer import Router, make_router
from magnetar.protocol.errors import InvalidMessage
from magnetar.runtime.environment import SeededChance

KEYLESS = OutgoingMessage(b"x", None, None, None, None)


def keyed(key: str) -> OutgoingMessage:
    return OutgoingMessage(b"x", {"a": "b"}, key, None, 5)


def router(partitions: int, seed: int = 1, **options: object) -> Router:
    configuration = ProducerConfiguration("t", **options)  # type: ignore[arg-type]
    return make_router(configuration, SeededChance(seed), partitions)


@pytest.mark.promise("23.5", "23.6")
def test_round_robin_turns_at_the_delay_boundary_only() -> None:
    chosen = router(3, batching_enabled=True)
    first = chosen.choose(KEYLESS)
    assert [chosen.choose(KEYLESS) for _ in range(5)] == [first] * 5
    chosen.turn()
    assert chosen.choose(KEYLESS) == chosen.current == (first + 1) % 3


def test_round_robin_turns_when_the_batch_whose_turn_it_is_is_full() -> None:
    chosen = router(3, batching_enabled=True)
    first = chosen.current
    chosen.turn_from((first + 1) % 3)
    assert chosen.current == first, "a keyed message filled a batch elsewhere"
    chosen.turn_from(first)
    assert chosen.current == (first + 1) % 3


def test_round_robin_without_batching_turns_with_every_message() -> None:
    chosen = router(3, batching_enabled=False)
    assert chosen.current == -1
    first = chosen.choose(KEYLESS)
    assert [chosen.choose(KEYLESS) for _ in range(3)] == [(first + step) % 3 for step in (1, 2, 3)]


@pytest.mark.promise("23.7")
def test_single_partition_is_drawn_at_random_and_kept() -> None:
    drawn = set()
    for seed in range(40):
        chosen = router(4, seed, message_routing_mode=PartitionsRoutingMode.UseSinglePartition)
        first = chosen.choose(KEYLESS)
        chosen.turn()
        assert chosen.choose(KEYLESS) == first
        drawn.add(first)
    assert drawn == {0, 1, 2, 3}


@pytest.mark.promise("23.8", "23.12")
@pytest.mark.parametrize(
    "mode", [PartitionsRoutingMode.UseSinglePartition, PartitionsRoutingMode.RoundRobinDistribution]
)
def test_a_key_decides_by_its_hash(mode: PartitionsRoutingMode) -> None:
    java = router(1000, message_routing_mode=mode, batching_enabled=True)
    assert java.choose(keyed("keykeykeykeykey1")) == 434058482 % 1000
    assert java.choose(keyed("keykeykey2")) == 42978643 % 1000
    murmur = router(1000, message_routing_mode=mode, hashing_scheme=HashingScheme.Murmur3_32Hash)
    assert murmur.choose(keyed("key1")) == 462881061 % 1000
    assert murmur.choose(keyed("Order-3459134")) == 964695987 % 1000


@pytest.mark.promise("23.9")
def test_a_custom_router_decides_alone_and_is_checked() -> None:
    chosen = router(
        4,
        message_routing_mode=PartitionsRoutingMode.CustomPartition,
        message_router=lambda message, partitions: len(message.partition_key()) + partitions - 4,
    )
    assert chosen.choose(keyed("ab")) == 2
    assert chosen.choose(KEYLESS) == 0
    with pytest.raises(InvalidMessage, match="partition 5 of 4"):
        chosen.choose(keyed("abcde"))
