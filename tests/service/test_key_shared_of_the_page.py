"""Who gets a key on Key_Shared subscriptions, with each face of our client and with the official one.

The ring has 10 points for each consumer, as in the example of Pulsar's page.
"""

import time
from collections.abc import Iterator
from datetime import datetime
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from magnetar.protocol.hashing import INT31_MASK, murmur3_32
from support.clients.sides import FACES, Side, connect
from support.servers.embedded_cluster import EmbeddedCluster
from support.servers.figures import figures, until

POINTS = 10
pytestmark = pytest.mark.cluster_settings(brokers=1, key_shared_ring_points=POINTS)


@pytest.fixture(scope="module", params=FACES)
def side(request: pytest.FixtureRequest, cluster: EmbeddedCluster) -> Iterator[Side]:
    with connect(cluster.service_url, request.param) as connected:
        yield connected


@pytest.fixture(scope="module")
def splitting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    """A cluster that splits ranges of hashes, instead of consistent hashing."""
    directory: Path = tmp_path_factory.mktemp("splitting")
    with EmbeddedCluster(directory, key_shared_consistent_hashing=False) as running:
        yield running


def join(side: Side, topic: str, name: str, **options: Any) -> Any:
    return side.client.subscribe(
        topic,
        "s",
        consumer_type=side.module.ConsumerType.KeyShared,
        initial_position=side.module.InitialPosition.Earliest,
        consumer_name=name,
        **options,
    )


def publish(side: Side, topic: str, keys: Any, *, start: int = 0) -> None:
    """One message for each key, with numbers as values."""
    producer = side.client.create_producer(topic, batching_enabled=False)
    for number, key in enumerate(keys, start):
        producer.send(b"%d" % number, partition_key=key)
    producer.close()


def shown(cluster: EmbeddedCluster, topic: str) -> dict[str, dict[str, Any]]:
    """Each consumer's statistics by its name, and those of the subscription under an empty name."""
    subscription = figures(cluster, topic)["subscriptions"]["s"]
    return {"": subscription, **{one["consumerName"]: one for one in subscription["consumers"]}}


def ranges(cluster: EmbeddedCluster, topic: str) -> dict[str, list[tuple[int, int]]]:
    return {name: one["keyHashRangeArrays"] for name, one in shown(cluster, topic).items() if name}


def owners(cluster: EmbeddedCluster, topic: str) -> list[str]:
    """The consumer of each slot. The ranges of all neither overlap nor leave a slot out."""
    by_start = sorted((*one, name) for name, mine in ranges(cluster, topic).items() for one in mine)
    assert by_start[-1][1] == 65535
    assert all(left[1] + 1 == right[0] for left, right in pairwise(by_start))
    return [name for start, end, name in by_start for _ in range(start, end + 1)]


def slot_on_the_ring(key: str) -> int:
    return (murmur3_32(key.encode()) & INT31_MASK) % 65535 + 1


@pytest.mark.promise("18.3", "18.7", "18.12", "18.13", "20.1", "20.2", "20.3", "20.4", "20.5", "20.6", "20.7", "20.12")
def test_the_example_of_the_page_in_the_statistics(side: Side, cluster: EmbeddedCluster, topic: str) -> None:
    first = join(side, topic, "c1")
    publish(side, topic, "0123456789" * 2)
    held = [first.receive(10_000) for _ in range(20)]
    second = join(side, topic, "c2")
    publish(side, topic, "34789", start=20)
    until(lambda: sum(one["blockedAttempts"] for one in shown(cluster, topic)["c1"]["drainingHashes"]) == 5)
    found = shown(cluster, topic)
    assert found["c1"]["keyHashRangeArrays"] == [(2960, 5968), (22258, 43033), (49261, 54464), (55155, 61273)]
    assert found["c1"]["keyHashRanges"] == ["[2960, 5968]", "[22258, 43033]", "[49261, 54464]", "[55155, 61273]"]
    assert len(owners(cluster, topic)) == 65535
    for one in (found["c1"], found[""]):
        assert (one["drainingHashesCount"], one["drainingHashesClearedTotal"]) == (5, 0)
        assert one["drainingHashesUnackedMessages"] == 10
    assert found["c1"]["drainingHashes"] == [
        {"hash": slot, "unackMsgs": 2, "blockedAttempts": 1} for slot in (2862, 11707, 15786, 43539, 45436)
    ]
    assert (found["c2"]["drainingHashesCount"], found["c2"]["drainingHashes"]) == (0, [])
    assert (found[""]["type"], found[""]["keySharedMode"]) == ("Key_Shared", "AUTO_SPLIT")
    # A program finds from these figures why the next message of a key does not come: who holds it, and how much.
    draining = {one["hash"]: one for one in found["c1"]["drainingHashes"]}
    assert draining[slot_on_the_ring("3")]["unackMsgs"] == 2 and slot_on_the_ring("0") not in draining
    for message in held:
        if message.partition_key() == "3":
            first.acknowledge(message)
    assert side.values(second, 1) == [b"20"]
    found = shown(cluster, topic)
    assert (found["c1"]["drainingHashesCount"], found["c1"]["drainingHashesClearedTotal"]) == (4, 1)
    assert found["c1"]["drainingHashesUnackedMessages"] == sum(
        one["unackMsgs"] for one in found["c1"]["drainingHashes"]
    )  # fmt: skip


@pytest.mark.promise("20.4", "20.11")
def test_the_example_of_the_page_to_the_digit(side: Side, cluster: EmbeddedCluster, topic: str) -> None:
    """All figures of both consumers, except `blockedAttempts`.

    Pulsar counts there how often it read a waiting message again. That depends on time: four runs on Pulsar 4.2.4 gave
    12, 17, 13, 14, 18; then 9, 11, 9, 10, 12; then 12, 16, 13, 14, 16; then 9, 12, 9, 10, 13. The page has 5, 9, 6, 6,
    9. Here a message that its slot blocks is not read again before the slot has drained, and counts once.
    """
    producer = side.client.create_producer(topic, producer_name="the-producer-in-the-page", batching_enabled=False)
    began_ms = int(time.time() * 1000)
    members = [join(side, topic, "c1", receiver_queue_size=100)]
    for number in range(20):
        producer.send(b"%04d" % number, partition_key=str(number % 10))
    until(lambda: shown(cluster, topic)["c1"]["unackedMessages"] == 20)
    members.append(join(side, topic, "c2"))
    for number in range(20, 40):
        producer.send(b"%04d" % number, partition_key=str(number % 10))
    until(lambda: sum(one["blockedAttempts"] for one in shown(cluster, topic)["c1"]["drainingHashes"]) == 10)
    found = shown(cluster, topic)
    never = "1970-01-01T00:00:00Z"
    both = {"msgRateRedeliver": 0, "messageAckRate": 0, "chunkedMessageRate": 0, "blockedConsumerOnUnackedMsgs": False}
    both |= {"drainingHashesClearedTotal": 0, "lastAckedTimestamp": 0, "lastAckedTime": never, "metadata": {}}
    slots = (2862, 11707, 15786, 43539, 45436)
    first = {
        **both,
        "bytesOutCounter": 1560,
        "msgOutCounter": 30,
        "consumerName": "c1",
        "availablePermits": 70,
        "unackedMessages": 30,
        "avgMessagesPerEntry": 1,
        "drainingHashesCount": 5,
        "drainingHashesUnackedMessages": 10,
        "drainingHashes": [{"hash": slot, "unackMsgs": 2, "blockedAttempts": 2} for slot in slots],
        "keyHashRangeArrays": [(2960, 5968), (22258, 43033), (49261, 54464), (55155, 61273)],
    }
    second = {
        **both,
        "msgRateOut": 0,
        "msgThroughputOut": 0,
        "bytesOutCounter": 0,
        "msgOutCounter": 0,
        "consumerName": "c2",
        "availablePermits": 1000,
        "unackedMessages": 0,
        "avgMessagesPerEntry": 0,
        "drainingHashesCount": 0,
        "drainingHashesUnackedMessages": 0,
        "drainingHashes": [],
        "lastConsumedTimestamp": 0,
        "lastConsumedTime": never,
        "keyHashRangeArrays": [(1, 2959), (5969, 22257), (43034, 49260), (54465, 55154), (61274, 65535)],
    }
    for wanted in (first, second):
        mine = found[str(wanted["consumerName"])]
        assert {name: mine[name] for name in wanted} == wanted
        assert mine["address"].startswith("/127.0.0.1:") and mine["clientVersion"]
        assert datetime.fromisoformat(mine["connectedSince"]).timestamp() * 1000 == pytest.approx(began_ms, abs=60_000)
        assert began_ms <= mine["lastConsumedFlowTimestamp"] <= int(time.time() * 1000)
    assert [member.consumer_name() for member in members] == ["c1", "c2"]
    last_ms = found["c1"]["lastConsumedTimestamp"]
    assert datetime.fromisoformat(found["c1"]["lastConsumedTime"]).timestamp() * 1000 == pytest.approx(last_ms, abs=1)


@pytest.mark.promise("18.6")
def test_a_consumer_that_comes_or_goes_moves_only_its_own_slots(
    side: Side, cluster: EmbeddedCluster, topic: str
) -> None:
    members = {name: join(side, topic, name) for name in ("c1", "c2")}
    before = owners(cluster, topic)
    members["c3"] = join(side, topic, "c3")
    with_third = owners(cluster, topic)
    assert {new for old, new in zip(before, with_third, strict=True) if old != new} == {"c3"}
    members.pop("c1").close()
    after = owners(cluster, topic)
    assert {old for old, new in zip(with_third, after, strict=True) if old != new} == {"c1"}
    assert set(after) == {"c2", "c3"}


def colliding() -> tuple[str, int]:
    """A name that has a point of the ring in common with the name `first`, and that point."""
    own = set(points("first"))
    for number in count():
        for point in points(f"second-{number}"):
            if point in own:
                return f"second-{number}", point
    raise AssertionError


def points(name: str) -> list[int]:
    """Where the page puts the first consumer of a name: name, NUL, 0, NUL, number of the point."""
    return [slot_on_the_ring(f"{name}\0{0}\0{number}") for number in range(POINTS)]


@pytest.mark.promise("18.14")
def test_the_first_on_a_point_holds_it_and_the_next_takes_it_over(
    side: Side, cluster: EmbeddedCluster, topic: str
) -> None:
    other, point = colliding()
    first = join(side, topic, "first")
    members = [join(side, topic, name) for name in (other, "third")]
    assert owners(cluster, topic)[point - 1] == "first"
    first.close()
    assert owners(cluster, topic)[point - 1] == other
    assert [name for name in ("first", other, "third") if name in owners(cluster, topic)] == [other, "third"]
    for member in members:
        member.close()


@pytest.mark.promise("18.3", "18.4", "18.5", "18.8", "18.9", "18.10", "18.11")
def test_ranges_split_and_join_as_on_the_page(side: Side, splitting: EmbeddedCluster, topic: str) -> None:
    def order() -> str:
        by_start = sorted((mine[0], name) for name, mine in ranges(splitting, topic).items())
        return " ".join(name for _, name in by_start)

    with connect(splitting.service_url, side.face) as here:
        members, steps = {}, []
        for name in ("C1", "C2", "C3", "C4"):
            members[name] = join(here, topic, name)
            steps.append(order())
        assert steps == ["C1", "C2 C1", "C3 C2 C1", "C3 C2 C4 C1"]
        assert len(owners(splitting, topic)) == 65536 and owners(splitting, topic)[0] == "C3"
        assert ranges(splitting, topic)["C3"] == [(0, 16383)]
        publish(here, topic, ["Order-3459134"])  # slot 6067
        assert here.values(members["C3"], 1, acknowledge=True) == [b"0"]
        members.pop("C4").close()
        assert order() == "C3 C2 C1" and ranges(splitting, topic)["C1"] == [(32768, 65535)]
        members.pop("C1").close()
        assert order() == "C3 C2" and ranges(splitting, topic)["C2"] == [(16384, 65535)]


@pytest.mark.promise("18.15")
def test_sticky_keys_that_nobody_takes_wait(side: Side, cluster: EmbeddedCluster, topic: str) -> None:
    def sticky(start: int, end: int) -> Any:
        module = side.module
        return module.ConsumerKeySharedPolicy(module.KeySharedMode.Sticky, False, [(start, end)])

    low = join(side, topic, "low", key_shared_policy=sticky(0, 32767))
    keys = [str(number) for number in range(20)]
    publish(side, topic, keys)
    expected = [b"%s" % key.encode() for key in keys if murmur3_32(key.encode()) % 65536 < 32768]
    assert [message.data() for message in side.what_comes(low)] == expected and 0 < len(expected) < 20
    high = join(side, topic, "high", key_shared_policy=sticky(32768, 65535))
    rest = [key.encode() for key in keys if key.encode() not in expected]
    assert side.values(high, len(rest), acknowledge=True) == rest


@pytest.mark.promise("19.4")
def test_what_is_redelivered_at_once_keeps_its_consumer(side: Side, topic: str) -> None:
    members = [join(side, topic, name) for name in ("c1", "c2")]
    publish(side, topic, "0123456789" * 2)  # 10 for each consumer
    first = [[message for message in (member.receive(10_000) for _ in range(10))] for member in members]
    for member in members:
        member.redeliver_unacknowledged_messages()
    for member, mine in zip(members, first, strict=True):
        again = [member.receive(10_000) for _ in range(10)]
        assert sorted(one.data() for one in again) == sorted(one.data() for one in mine)
        assert {one.redelivery_count() for one in again} == {1}


@pytest.mark.promise("19.2", "19.3")
def test_keys_of_a_consumer_that_left_come_to_the_next_from_their_first_message(side: Side, topic: str) -> None:
    leaving = join(side, topic, "c1")
    publish(side, topic, "0123456789")
    assert len(side.values(leaving, 10)) == 10
    staying = join(side, topic, "c2")
    publish(side, topic, "0123456789", start=10)
    assert len(side.values(leaving, 5)) == 5, "keys that stayed"
    leaving.close()
    got = [staying.receive(10_000) for _ in range(20)]
    for key in "0123456789":
        mine = [int(message.data()) for message in got if message.partition_key() == key]
        assert mine == [int(key), int(key) + 10]


@pytest.mark.promise("19.6", "19.7", "19.8")
def test_a_batch_by_key_has_one_key_and_no_more_messages_than_allowed(side: Side, topic: str) -> None:
    consumer = join(side, topic, "c1")
    producer = side.client.create_producer(
        topic,
        batching_enabled=True,
        batching_type=side.module.BatchingType.KeyBased,
        batching_max_messages=5,
        batching_max_publish_delay_ms=5_000,
    )
    for number in range(30):
        options = {"partition_key": f"k{number % 3}"} if number % 3 else {}
        producer.send_async(b"%d" % number, lambda *_: None, **options)
    producer.flush()
    entries: dict[tuple[int, int], list[Any]] = {}
    for _ in range(30):
        message = consumer.receive(10_000)
        place = message.message_id()
        entries.setdefault((place.ledger_id(), place.entry_id()), []).append(message)
    assert all(len({message.partition_key() for message in batch}) == 1 for batch in entries.values())
    assert len(entries) == 18, "five messages are sent together, with an entry for each of three keys"
    keyless = [len(batch) for batch in entries.values() if not batch[0].partition_key()]
    assert sum(keyless) == 10 and max(keyless) == 2, "messages without a key share a batch"


@pytest.mark.promise("19.9")
def test_an_ordinary_batch_goes_whole_to_the_consumer_of_its_first_key(side: Side, topic: str) -> None:
    members = {name: join(side, topic, name) for name in ("c1", "c2")}
    for first, name in (("0", "c1"), ("3", "c2")):
        producer = side.client.create_producer(
            topic, batching_enabled=True, batching_max_messages=10, batching_max_publish_delay_ms=5_000
        )
        for key in [first, *"012345678"]:
            producer.send_async(b"x", lambda *_: None, partition_key=key)
        producer.flush()
        got = [members[name].receive(10_000) for _ in range(10)]
        assert [message.partition_key() for message in got] == [first, *"012345678"]


@pytest.mark.promise("23.4")
def test_key_shared_works_on_partitions(side: Side, cluster: EmbeddedCluster, topic: str) -> None:
    cluster.run(cluster.coordinator_call("create_topic", topic=topic, partitions=3))
    members = [join(side, topic, name) for name in ("c1", "c2")]
    publish(side, topic, [f"key-{number % 20}" for number in range(60)])
    got = [side.what_comes(member) for member in members]
    keys = [{message.partition_key() for message in mine} for mine in got]
    assert sum(map(len, got)) == 60 and all(keys) and not keys[0] & keys[1]
    for mine in got:
        for key in {message.partition_key() for message in mine}:
            numbers = [int(message.data()) for message in mine if message.partition_key() == key]
            assert numbers == sorted(numbers)
