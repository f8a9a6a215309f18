"""Data directories that older versions wrote: today's version starts on each and finds every message in it."""

import contextlib
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pulsar
import pytest

import magnetar
from magnetar import ConsumerType, MessageId
from magnetar.cluster.handle import Cluster
from magnetar.protocol.errors import FormatTooNew
from magnetar.storage.metadata import cluster_identity
from support.servers.admin_calls import AdminCalls
from tools import make_old_directory as maker

FILES = sorted(maker.DIRECTORY.glob("*.tar.xz"))


class Old(NamedTuple):
    """A started old directory, and what its version found in it."""

    cluster: Cluster
    facts: dict[str, Any]


@pytest.fixture(scope="module", params=FILES, ids=lambda file: file.name.partition(".")[0])
def old(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Old]:
    file: Path = request.param
    directory = tmp_path_factory.mktemp("old")
    with tarfile.open(file) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # the first releases of 3.11 have none
        archive.extractall(directory)
    facts = json.loads((directory / maker.FACTS).read_text())
    with maker.start(directory / "data") as cluster:
        yield Old(cluster, facts)


@pytest.fixture
def client(old: Old) -> Iterator[magnetar.Client]:
    with magnetar.Client(old.cluster.service_url, operation_timeout_seconds=20) as made:
        yield made


def test_there_are_old_directories_and_each_is_small() -> None:
    assert FILES
    assert [file.name for file in FILES if file.stat().st_size > 200_000] == []


@pytest.mark.promise("30.5")
def test_a_later_version_of_the_metadata_is_refused_and_nothing_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as later:
        later.setattr(cluster_identity, "METADATA_FORMAT", 3)
        magnetar.start(embedded=True, data_dir=tmp_path, port=0, admin_port=0).stop()
    file = tmp_path / "coordinator" / "metadata.db"
    before = file.read_bytes()
    with pytest.raises(FormatTooNew, match="has format 3, and this version of Magnetar reads format 2"):
        magnetar.start(embedded=True, data_dir=tmp_path, port=0, admin_port=0)
    assert file.read_bytes() == before


def test_an_old_directory_keeps_its_cluster_and_what_its_admin_shows(old: Old) -> None:
    assert old.cluster.cluster_id == old.facts["cluster_id"]
    admin = AdminCalls(old.cluster.admin_url)
    assert {path: admin.ask("GET", path) for path in old.facts["admin"]} == old.facts["admin"]


@pytest.mark.promise("30.5")
def test_every_message_of_an_old_directory_has_its_place_and_contents(old: Old, client: magnetar.Client) -> None:
    for topic, messages in old.facts["messages"].items():
        assert maker.read_topic(client, topic) == messages, topic
    assert [message[1] for message in maker.read_topic(client, maker.TRIMMED)] == old.facts["trimmed"]


def test_a_compacted_topic_of_an_old_directory_reads_the_same(old: Old, client: magnetar.Client) -> None:
    assert maker.read_topic(client, maker.COMPACTED, is_read_compacted=True) == old.facts["compacted"]


@pytest.mark.promise("30.5")
def test_subscriptions_of_an_old_directory_lack_what_they_lacked(old: Old, client: magnetar.Client) -> None:
    for topic, name, kind, lacking in old.facts["waiting"]:
        found = maker.waiting(client, topic, name, getattr(ConsumerType, kind), len(lacking))
        assert found == lacking, (topic, name)


def test_delayed_messages_of_an_old_directory_come_when_they_are_due(old: Old, client: magnetar.Client) -> None:
    due = old.facts["delayed"]
    assert maker.waiting(client, maker.DELAYED, "later", ConsumerType.Shared, len(due)) == due


def test_an_old_producer_goes_on_behind_its_last_sequence_id(old: Old, client: magnetar.Client) -> None:
    producer = client.create_producer(maker.ONCE, producer_name="teller", send_timeout_millis=0)
    assert producer.last_sequence_id() == 120
    producer.send(b"sent before", sequence_id=120)
    producer.send(b"new", sequence_id=130)
    producer.close()
    values = [maker.text_of(value) for value in (b"once 12", b"new")]
    assert [message[1] for message in maker.read_topic(client, maker.ONCE)][-2:] == values


def test_schemas_of_an_old_directory_decode_their_messages(old: Old, client: magnetar.Client) -> None:
    reader = client.create_reader(maker.ORDERS, MessageId.earliest, schema=magnetar.JsonSchema(maker.LaterOrder))
    found = [reader.read_next(maker.WAIT_MS).value() for _ in range(5)]
    assert [one.count for one in found] == [0, 1, 2, 0, 1]
    notes = client.create_reader(maker.NOTES, MessageId.earliest, schema=magnetar.AvroSchema(maker.Order))
    assert [notes.read_next(maker.WAIT_MS).value().count for _ in range(4)] == [0, 1, 2, 3]


def test_old_topics_take_new_messages_except_the_terminated_one(old: Old, client: magnetar.Client) -> None:
    for topic in (maker.PLAIN, maker.BATCHED, maker.FLIGHTS, maker.COMPACTED, maker.TRIMMED):
        with client.create_producer(topic) as producer:
            producer.send(b"new")
    with pytest.raises(magnetar.TopicTerminated):
        client.create_producer(maker.TERMINATED)
    with contextlib.closing(
        pulsar.Client(old.cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    ) as official:
        reader = official.create_reader(maker.PLAIN, pulsar.MessageId.earliest)
        count = len(old.facts["messages"][maker.PLAIN])
        values = [reader.read_next(maker.WAIT_MS).data() for _ in range(count + 1)]
        assert [maker.text_of(value) for value in values[:-1]] == [one[1] for one in old.facts["messages"][maker.PLAIN]]
        assert values[-1] == b"new"
