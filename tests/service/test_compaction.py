"""Compaction as clients see it: the official client and both faces of ours, on a cluster in this process."""

import itertools
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

import magnetar
from magnetar import ConsumerType, InitialPosition, MessageId, NotAllowedError
from magnetar.cluster.handle import Cluster

EARLIEST = InitialPosition.Earliest
WAIT_MS = 10_000
_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory: Path = tmp_path_factory.mktemp("cluster")
    settings = {
        "managedLedgerMaxEntriesPerLedger": 4,
        "managedLedgerMinLedgerRolloverTimeMinutes": 0,
        "brokerServiceCompactionMonitorIntervalInSeconds": 0.1,
    }
    with magnetar.start(embedded=True, data_dir=directory, port=0, admin_port=0, settings=settings) as running:
        yield running


@pytest.fixture
def client(cluster: Cluster) -> Iterator[magnetar.Client]:
    with magnetar.Client(cluster.service_url, operation_timeout_seconds=20) as made:
        yield made


@pytest.fixture
def official(cluster: Cluster) -> Iterator[pulsar.Client]:
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    made = pulsar.Client(cluster.service_url, operation_timeout_seconds=20, logger=logger)
    yield made
    made.close()


@pytest.fixture
def topic() -> str:
    return f"compacted-{next(_numbers)}"


class Admin:
    """The admin HTTP, about one topic."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._url = f"{cluster.admin_url}/admin/v2"
        self._topic = f"/persistent/public/default/{topic}"

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, method=method, data=data)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())["reason"]

    def topic(self, method: str, path: str, body: object = None) -> Any:
        status, answer = self.ask(method, self._topic + path, body)
        assert status < 300, answer
        return answer

    def until(self, path: str, condition: Any) -> Any:
        deadline = time.monotonic() + 20
        while not condition(found := self.topic("GET", path)):
            assert time.monotonic() < deadline, found
            time.sleep(0.02)
        return found

    def prepare(self) -> None:
        """Create the topic with its compaction cursor: without one nothing keeps what is published."""
        self.topic("PUT", "")
        assert self.topic("GET", "/compaction") == {"status": "NOT_RUN", "lastError": ""}
        self.compact()

    def compact(self) -> dict[str, Any]:
        self.topic("PUT", "/compaction")
        found = self.until("/compaction", lambda status: status["status"] != "RUNNING")
        assert found == {"status": "SUCCESS", "lastError": ""}
        return self.topic("GET", "/stats")["compaction"]


@pytest.fixture
def admin(cluster: Cluster, topic: str) -> Admin:
    return Admin(cluster, topic)


def publish(
    client: magnetar.Client, topic: str, messages: list[tuple[str | None, bytes]], *, batch: bool = False
) -> Any:
    producer = client.create_producer(topic, batching_enabled=batch, batching_max_publish_delay_ms=1000)
    ids: list[Any] = []
    for key, value in messages:
        producer.send_async(value, lambda result, message_id: ids.append(message_id), partition_key=key)
    producer.flush()
    producer.close()
    return ids


def rounds(count: int, keys: int = 3, start: int = 0) -> list[tuple[str | None, bytes]]:
    return [(f"k{number % keys}", b"%d" % number) for number in range(start, start + count)]


def read_all(reader: Any) -> list[tuple[str, bytes]]:
    found = []
    while reader.has_message_available():
        message = reader.read_next(WAIT_MS)
        found.append((message.partition_key(), message.data()))
    reader.close()
    return found


@pytest.mark.promise("2.2", "34.1")
def test_a_reader_gets_the_last_of_each_key_and_then_the_log(client, official, topic, admin):
    admin.prepare()
    ids = publish(client, topic, [*rounds(9), (None, b"keyless"), ("k0", b"")])
    figures = admin.compact()
    assert figures["lastCompactionRemovedEventCount"] == 8 and figures["lastCompactionSucceedTimestamp"] > 0
    kept = [("k1", b"7"), ("k2", b"8")]
    assert read_all(client.create_reader(topic, MessageId.earliest, is_read_compacted=True)) == kept
    assert read_all(official.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)) == kept
    publish(client, topic, [("k1", b"new"), ("k3", b"first")])
    late = [*kept, ("k1", b"new"), ("k3", b"first")]
    assert read_all(client.create_reader(topic, MessageId.earliest, is_read_compacted=True)) == late
    assert read_all(official.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)) == late
    behind = client.create_reader(topic, ids[7], is_read_compacted=True)
    assert read_all(behind) == late[1:], "ids are those of the originals"
    with pytest.raises(NotAllowedError):
        client.subscribe(topic, "__compaction")
    assert admin.topic("GET", "/subscriptions") == ["__compaction"]


def test_our_client_never_shows_what_is_compacted_out_of_a_batch(client, topic, admin):
    admin.prepare()
    ids = publish(client, topic, rounds(10), batch=True)
    assert len({(one.ledger_id(), one.entry_id()) for one in ids}) == 1
    admin.compact()
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST, is_read_compacted=True)
    got = [consumer.receive(WAIT_MS) for _ in range(3)]
    assert [(one.data(), one.message_id()) for one in got] == [(b"%d" % n, ids[n]) for n in (7, 8, 9)]
    consumer.acknowledge_cumulative(got[-1])
    publish(client, topic, [("k9", b"more")])
    assert consumer.receive(WAIT_MS).data() == b"more"
    plain = client.subscribe(topic, "plain", initial_position=EARLIEST)
    assert [plain.receive(WAIT_MS).data() for _ in range(11)] == [*(b"%d" % n for n in range(10)), b"more"]


async def test_table_views_of_all_clients_agree_with_a_dict(cluster, client, official, topic, admin):
    admin.prepare()
    messages = [*rounds(20, 4), ("k2", b"")]
    publish(client, topic, messages)
    admin.compact()
    publish(client, topic, [("k3", b"late")])
    want = {key: value for key, value in [*messages, ("k3", b"late")] if value}
    del want["k2"]
    ours = client.create_table_view(topic)
    theirs = official.create_table_view(topic)
    async with magnetar.AsyncClient(cluster.service_url) as made:
        view = await made.create_table_view(topic)
        for one in (ours, view):
            found: dict[str, bytes] = {}
            one.for_each(found.__setitem__)
            assert found == want
        assert {key: theirs.get(key) for key in want} == want and theirs.get("k2") is None
        await view.close()
    ours.close()
    theirs.close()


def test_the_threshold_compacts_by_itself_and_the_log_is_trimmed(client, topic, admin):
    admin.prepare()
    publish(client, topic, rounds(3))
    assert admin.ask("GET", "/namespaces/public/default/compactionThreshold") == (200, None)
    assert admin.ask("PUT", "/namespaces/public/default/compactionThreshold", 1)[0] == 204
    try:
        admin.until("/internalStats", lambda found: "__compaction" in found["cursors"])
        publish(client, topic, rounds(30, start=3))
        # one entry may stay in the ledger that is being written
        admin.until(
            "/internalStats", lambda found: found["numberOfEntries"] <= 4 and found["compactedLedger"]["entries"] > 0
        )
    finally:
        assert admin.ask("DELETE", "/namespaces/public/default/compactionThreshold")[0] == 204
    admin.compact()
    stored = admin.topic("GET", "/internalStats")
    assert stored["compactedLedger"]["entries"] == 3 and list(stored["cursors"]) == ["__compaction"]
    kept = [("k0", b"30"), ("k1", b"31"), ("k2", b"32")]
    assert read_all(client.create_reader(topic, MessageId.earliest, is_read_compacted=True)) == kept
    admin.topic("PUT", "/unload")
    reader = client.create_reader(topic, MessageId.earliest, is_read_compacted=True)
    assert read_all(reader) == kept, "another owner reads the same"


def test_a_durable_consumer_goes_on_where_it_was_within_the_compacted_part(client, topic, admin):
    admin.prepare()
    publish(client, topic, rounds(24, 6))
    admin.compact()
    admin.until("/internalStats", lambda found: found["numberOfEntries"] <= 4)

    def subscribe() -> magnetar.Consumer:
        return client.subscribe(
            topic, "s", consumer_type=ConsumerType.Failover, initial_position=EARLIEST, is_read_compacted=True
        )

    consumer = subscribe()
    got = [consumer.receive(WAIT_MS) for _ in range(4)]
    assert [one.data() for one in got] == [b"18", b"19", b"20", b"21"]
    consumer.acknowledge_cumulative(got[1])
    consumer.close()
    admin.topic("PUT", "/unload")
    consumer = subscribe()
    assert [consumer.receive(WAIT_MS).data() for _ in range(4)] == [b"20", b"21", b"22", b"23"]
    consumer.seek(MessageId.earliest)
    assert [consumer.receive(WAIT_MS).data() for _ in range(6)] == [b"%d" % n for n in range(18, 24)]
    consumer.seek(1)
    assert consumer.receive(WAIT_MS).data() == b"18", "a time before all is the first that is left"


def test_a_compacted_topic_of_which_nothing_is_left_has_no_message(client, official, topic, admin):
    admin.prepare()
    publish(client, topic, [("a", b"1"), ("a", b"")])
    admin.compact()
    assert read_all(client.create_reader(topic, MessageId.earliest, is_read_compacted=True)) == []
    assert read_all(official.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)) == []


def test_deleting_the_cursor_ends_compaction(client, topic, admin):
    admin.prepare()
    publish(client, topic, rounds(6))
    keeper = client.subscribe(topic, "keep", initial_position=EARLIEST)
    admin.compact()
    admin.topic("DELETE", "/subscription/__compaction")
    stored = admin.topic("GET", "/internalStats")
    assert stored["compactedLedger"]["ledgerId"] == -1 and list(stored["cursors"]) == ["keep"]
    assert len(read_all(client.create_reader(topic, MessageId.earliest, is_read_compacted=True))) == 6
    keeper.close()
    status, reason = admin.ask("DELETE", f"/persistent/public/default/{topic}/subscription/__compaction")
    assert status == 404 and "__compaction" in reason


def test_what_cannot_be_read_compacted_is_refused(client, official, admin):
    with pytest.raises(magnetar.InvalidConfiguration, match="is_read_compacted"):
        client.subscribe("t", "s", consumer_type=ConsumerType.Shared, is_read_compacted=True)
    with pytest.raises(NotAllowedError, match="only valid on persistent"):
        client.create_reader("non-persistent://public/default/n", MessageId.earliest, is_read_compacted=True)
    status, _ = admin.ask("PUT", "/non-persistent/public/default/n/compaction")
    assert status == 405
    assert admin.ask("GET", "/persistent/public/default/missing/compaction")[0] == 404
    assert admin.ask("PUT", "/persistent/public/default/missing/compaction")[0] == 404


def test_all_partitions_are_compacted_at_once(client, topic, admin):
    assert admin.ask("PUT", f"/persistent/public/default/{topic}/partitions", 2)[0] == 204
    for messages in ([], rounds(20, 5)):  # the first compaction makes the cursors
        publish(client, topic, messages)
        admin.topic("PUT", "/compaction")
        for number in range(2):
            path = f"/persistent/public/default/{topic}-partition-{number}/compaction"
            deadline = time.monotonic() + 20
            while admin.ask("GET", path)[1]["status"] != "SUCCESS":
                assert time.monotonic() < deadline
                time.sleep(0.02)
    assert admin.ask("GET", f"/persistent/public/default/{topic}/compaction")[0] == 404
    reader = client.create_reader(topic, MessageId.earliest, is_read_compacted=True)
    assert sorted(read_all(reader)) == [(f"k{n % 5}", b"%d" % n) for n in (15, 16, 17, 18, 19)]
