"""Deduplication on a cluster whose metadata was restored from an older copy, with bookies that are newer."""

import asyncio
import sqlite3
from pathlib import Path

import magnetar
from magnetar.actors.deduplication.topic_deduplication import DEDUPLICATION_CURSOR
from magnetar.protocol.message_id import Position
from magnetar.runtime.environment import Environment
from magnetar.storage.managed.cursor import Cursor
from magnetar.storage.metadata.ledger_ids import mark_restored
from magnetar.storage.metadata.sql import SqlMetadataStore
from support.servers.embedded_cluster import EmbeddedCluster
from support.servers.figures import loaded, until

SETTINGS = {
    "deduplication_enabled": True,
    "deduplication_entries_interval": 1,
    "cursor_flush_interval_s": 0.01,
    "ledger_entries_max": 4,
    "ledger_rollover_min_minutes": 0,
}
"""Each entry makes a snapshot, and four of them a ledger."""
TOPIC = "persistent://public/default/numbered"


def ids_of(cluster: EmbeddedCluster) -> Cursor:
    """The cursor that has the sequence ids."""
    return loaded(cluster, TOPIC).ledger.cursors[DEDUPLICATION_CURSOR]


def publish(cluster: EmbeddedCluster, numbers: range) -> None:
    """Each number is its message's sequence id, and has its receipt."""
    with magnetar.Client(cluster.service_url) as client:
        producer = client.create_producer(TOPIC, producer_name="source", batching_enabled=False)
        for number in numbers:
            producer.send(b"%d" % number, sequence_id=number)


def until_durable(cluster: EmbeddedCluster) -> Position:
    """Wait until bookies have a snapshot of all that is stored; returns its place."""
    last = loaded(cluster, TOPIC).ledger.last_confirmed
    until(lambda: ids_of(cluster).durable_mark_delete == last)
    return last


def copy(source: Path, target: Path) -> None:
    with sqlite3.connect(source) as read, sqlite3.connect(target) as written:
        read.backup(written)
    read.close()
    written.close()


async def restore(file: Path) -> None:
    env = Environment.real()
    store = await SqlMetadataStore.open(env, f"sqlite:///{file}")
    await mark_restored(env, store)
    await store.close()
    env.close()


def test_a_message_is_confirmed_only_where_the_restored_topic_has_it(tmp_path: Path) -> None:
    file, older = tmp_path / "metadata.sqlite", tmp_path / "older.sqlite"
    with EmbeddedCluster(tmp_path, **SETTINGS) as cluster:
        with magnetar.Client(cluster.service_url) as client:
            client.subscribe(TOPIC, "keeper").close()
        publish(cluster, range(10))
        before = until_durable(cluster)
        ledger = ids_of(cluster).details(0)[0]
        copy(file, older)
        publish(cluster, range(10, 20))
        assert until_durable(cluster)[0] > before[0], "in ledgers that the older metadata does not know"
        assert ids_of(cluster).details(0)[0] == ledger != -1, "their ids are in a ledger that it knows"
    for name in ("metadata.sqlite-wal", "metadata.sqlite-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    older.replace(file)
    asyncio.run(restore(file))
    with EmbeddedCluster(tmp_path, **SETTINGS) as cluster:
        publish(cluster, range(20))
        with magnetar.Client(cluster.service_url) as client:
            reader = client.create_reader(TOPIC, magnetar.MessageId.earliest)
            stored = []
            while reader.has_message_available():
                stored.append(int(reader.read_next(10_000).data()))
        assert stored == list(range(20))
