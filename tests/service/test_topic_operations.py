"""What an administrator does with the messages of a topic, as both clients and the admin HTTP see it."""

import contextlib
import itertools
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pulsar
import pytest

import magnetar
from magnetar.cluster.handle import Cluster

WAIT_MS = 10_000
_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {"managedLedgerMaxEntriesPerLedger": 4, "managedLedgerMinLedgerRolloverTimeMinutes": 0}
    directory = tmp_path_factory.mktemp("cluster")
    with magnetar.start(embedded=True, data_dir=directory, port=0, admin_port=0, settings=settings) as running:
        yield running


@pytest.fixture(params=[magnetar, pulsar], ids=["ours", "official"])
def client(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Any]:
    options = {"logger": pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)} if request.param is pulsar else {}
    made = request.param.Client(cluster.service_url, operation_timeout_seconds=20, **options)
    yield made
    with contextlib.suppress(pulsar.AlreadyClosed):  # the official one, when a producer of it has failed
        made.close()


@pytest.fixture
def topic() -> str:
    return f"operated-{next(_numbers)}"


def ask(cluster: Cluster, method: str, path: str, body: object = None) -> tuple[int, Any, dict[str, str]]:
    """Status, body and Pulsar's headers of a request about a topic of public/default."""
    url = f"{cluster.admin_url}/admin/v2/persistent/public/default/{path}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            text, headers = answer.read(), answer.headers
            json_body = headers.get_content_type() == "application/json"
            found = json.loads(text) if text and json_body else text
            return answer.status, found, {name: value for name, value in headers.items() if name.startswith("X-Pul")}
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["reason"], {}


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def backlog(cluster: Cluster, topic: str, subscription: str) -> int:
    return ask(cluster, "GET", f"{topic}/stats")[1]["subscriptions"][subscription]["msgBacklog"]


@pytest.mark.promise("32.10")
def test_nobody_publishes_to_a_terminated_topic_and_its_messages_stay(
    cluster: Cluster, client: Any, topic: str
) -> None:
    module = magnetar if isinstance(client, magnetar.Client) else pulsar
    consumer = client.subscribe(topic, "s", initial_position=module.InitialPosition.Earliest)
    producer = client.create_producer(topic, batching_enabled=False)
    last = [producer.send(b"%d" % number) for number in range(6)][-1]
    status, end, _ = ask(cluster, "POST", f"{topic}/terminate")
    assert (status, end["ledgerId"], end["entryId"]) == (200, last.ledger_id(), last.entry_id())
    with pytest.raises(module.TopicTerminated):
        producer.send(b"late")
    for number in range(6):
        message = consumer.receive(WAIT_MS)
        assert message.data() == b"%d" % number
        consumer.acknowledge(message)
    until(lambda: backlog(cluster, topic, "s") == 0)
    if module is magnetar:
        until(consumer.has_reached_end_of_topic)
    for _ in range(2):
        with pytest.raises(module.TopicTerminated):
            client.create_producer(topic)
        assert ask(cluster, "POST", f"{topic}/terminate")[1] == end
        assert ask(cluster, "GET", f"{topic}/internalStats")[1]["state"] == "Terminated"
        assert ask(cluster, "PUT", f"{topic}/unload")[0] == 204


@pytest.mark.promise("32.10")
def test_every_receipt_of_a_topic_that_ends_meanwhile_is_for_a_stored_message(
    cluster: Cluster, client: Any, topic: str
) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    stored: list[Any] = []
    failed = threading.Event()

    def sent(result: Any, message_id: Any) -> None:
        if result.name == "Ok":
            stored.append((message_id.ledger_id(), message_id.entry_id()))
        else:
            failed.set()

    publishing = True

    def publish() -> None:
        while publishing and not failed.is_set():
            try:
                producer.send_async(b"x", sent)
            except Exception:
                return
            time.sleep(0.0005)

    thread = threading.Thread(target=publish)
    thread.start()
    until(lambda: len(stored) > 20)
    end = ask(cluster, "POST", f"{topic}/terminate")[1]
    assert failed.wait(20)
    publishing = False
    thread.join()
    assert stored == sorted(set(stored)) and max(stored) <= (end["ledgerId"], end["entryId"])


@pytest.mark.promise("32.10")
def test_a_truncated_topic_has_no_backlog_and_gives_its_ledgers_back(cluster: Cluster, client: Any, topic: str) -> None:
    for name in ("a", "b"):
        client.subscribe(topic, name).close()
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(10):
        producer.send(b"%d" % number)
    assert backlog(cluster, topic, "a") == backlog(cluster, topic, "b") == 10
    assert ask(cluster, "DELETE", f"{topic}/truncate")[0] == 204
    assert backlog(cluster, topic, "a") == backlog(cluster, topic, "b") == 0
    until(lambda: len(ask(cluster, "GET", f"{topic}/internalStats")[1]["ledgers"]) == 1)
    producer.send(b"next")
    assert client.subscribe(topic, "a").receive(WAIT_MS).data() == b"next"


@pytest.mark.promise("32.10")
def test_skipped_messages_do_not_come_and_the_place_survives_an_unload(
    cluster: Cluster, client: Any, topic: str
) -> None:
    client.subscribe(topic, "s").close()
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(6):
        producer.send(b"%d" % number)
    assert ask(cluster, "POST", f"{topic}/subscription/s/skip/2")[0] == 204
    assert ask(cluster, "PUT", f"{topic}/unload")[0] == 204
    consumer = client.subscribe(topic, "s")
    assert consumer.receive(WAIT_MS).data() == b"2"
    assert ask(cluster, "POST", f"{topic}/subscription/s/skip/100")[0] == 204
    assert backlog(cluster, topic, "s") == 0
    for path in ("none/skip/1", "none/skip_all"):
        assert ask(cluster, "POST", f"{topic}/subscription/{path}")[0] == 404
    assert ask(cluster, "POST", f"{topic}/subscription/s/skip/-1")[0] == 400


@pytest.mark.promise("32.10")
def test_single_messages_are_shown_with_pulsars_headers(cluster: Cluster, client: Any, topic: str) -> None:
    client.subscribe(topic, "s").close()
    module = magnetar if isinstance(client, magnetar.Client) else pulsar
    producer = client.create_producer(
        topic, producer_name=f"p-{topic}", batching_enabled=False, compression_type=module.CompressionType.LZ4
    )
    ids = [
        producer.send(b"message %d" % number, {"a": "b"}, partition_key="k", event_timestamp=5) for number in range(3)
    ]
    first = f"{ids[0].ledger_id()}:{ids[0].entry_id()}"
    wanted = {"X-Pulsar-Message-ID": first, "X-Pulsar-producer-name": f"p-{topic}", "X-Pulsar-partition-key": "k"}
    wanted |= {"X-Pulsar-PROPERTY": '{"a":"b"}', "X-Pulsar-event-time": "1970-01-01T00:00:00.005Z"}
    wanted |= {"X-Pulsar-compression": "LZ4", "X-Pulsar-sequence-id": "0", "X-Pulsar-uncompressed-size": "9"}
    path = f"ledger/{ids[0].ledger_id()}/entry/{ids[0].entry_id()}"
    for where in ("subscription/s/position/1", "examinemessage?initialPosition=earliest&messagePosition=1", path):
        status, body, headers = ask(cluster, "GET", f"{topic}/{where}")
        assert (status, body) == (200, b"message 0"), where
        assert wanted.items() <= headers.items()
    assert ask(cluster, "GET", f"{topic}/examinemessage")[1] == b"message 2"
    assert ask(cluster, "GET", f"{topic}/examinemessage?messagePosition=2&initialPosition=latest")[1] == b"message 1"
    ask(cluster, "POST", f"{topic}/subscription/s/skip/1")
    assert ask(cluster, "GET", f"{topic}/subscription/s/position/2")[1] == b"message 2"
    assert ask(cluster, "GET", f"{topic}/subscription/s/position/3")[0] == 404
    assert ask(cluster, "GET", f"{topic}/ledger/{ids[0].ledger_id()}/entry/99")[0] == 404
    assert ask(cluster, "GET", f"{topic}/ledger/999999/entry/0")[0] == 404
    found = ask(cluster, "GET", f"{topic}/messageid/1")[1]
    assert (found["ledgerId"], found["entryId"]) == (ids[0].ledger_id(), ids[0].entry_id())
    for wrong in ("subscription/s/position/0", "subscription/s/position/x", "messageid/x", "ledger/x/entry/0"):
        assert 400 <= ask(cluster, "GET", f"{topic}/{wrong}")[0] < 500
