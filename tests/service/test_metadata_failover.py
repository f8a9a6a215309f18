"""PostgreSQL restarts, fails over to a standby, or serves two coordinators: what was answered stays, once."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

import magnetar
from magnetar.protocol.errors import ClusterError, MetadataUnavailable, OutcomeUnknown
from magnetar.runtime.database_url import parse_url
from magnetar.runtime.environment import Environment
from magnetar.storage.metadata import sql, sql_database
from magnetar.storage.metadata.certain_writes import put_certain
from magnetar.storage.metadata.cluster_identity import create_cluster
from magnetar.storage.metadata.epoch_guard import EpochMetadataStore, take_office
from magnetar.storage.metadata.ledger_records import renew
from magnetar.storage.metadata.sql import SqlMetadataStore
from magnetar.storage.metadata.store import Guard, Write
from support.servers import postgresql_server
from support.servers.postgresql_server import PostgresqlServer

LEDGER = "ledgers/00000000000000000001"


@pytest.fixture
async def stores(env: Environment, postgresql: PostgresqlServer) -> AsyncIterator[list[SqlMetadataStore]]:
    """Two stores on one new database with a cluster."""
    postgresql.drop_table("magnetar_metadata")
    made = [await SqlMetadataStore.open(env, postgresql.url, create=True) for _ in range(2)]
    await create_cluster(made[0], "cluster", 1)
    yield made
    for store in made:
        await store.close()


@pytest.mark.promise("30.3")
async def test_operations_wait_while_postgresql_restarts(
    stores: list[SqlMetadataStore], postgresql: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "AWAY_LIMIT_S", 60.0)  # a loaded machine restarts it slowly
    office = await take_office(stores[0])
    version = await office.put("kept", b"0", None)
    restarted = asyncio.create_task(asyncio.to_thread(restart, postgresql))
    number = 0
    while not restarted.done() or number < 20:
        number += 1
        version = await put_certain_of(office, "kept", b"%d" % number, version)
    await restarted
    assert await office.get("kept") == (b"%d" % number, version)
    await office.verify()


def restart(server: PostgresqlServer) -> None:
    server.kill()
    server.start()


async def put_certain_of(office: EpochMetadataStore, key: str, value: bytes, version: int) -> int:
    env = Environment.real()
    try:
        return await put_certain(env, office, key, value, version)
    finally:
        env.close()


async def test_operations_end_when_postgresql_stays_away(
    stores: list[SqlMetadataStore], postgresql: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "AWAY_LIMIT_S", 0.5)
    version = await stores[0].put("kept", b"before", None)
    await asyncio.to_thread(postgresql.kill)
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(60):
        outcomes = await asyncio.gather(
            stores[0].put("kept", b"down", version), stores[0].get("kept"), return_exceptions=True
        )
    assert [type(one) for one in outcomes] == [MetadataUnavailable, MetadataUnavailable]
    assert loop.time() - began > 0.4
    waiting = asyncio.create_task(stores[1].put("other", b"", None))
    await asyncio.sleep(0.1)
    await stores[1].close()
    with pytest.raises(MetadataUnavailable):
        await waiting
    await asyncio.to_thread(postgresql.start)
    assert await stores[0].get("kept") == (b"before", version)


KINDS: dict[str, Any] = {
    "create": lambda office: office.put("new", b"late", None),
    "replace": lambda office: office.put("kept", b"late", 0),
    "delete": lambda office: office.delete("kept", None),
    "many": lambda office: office.write_many([Write("kept", b"late", 0, Guard("cluster", 0)), Write("n", b"", None)]),
    "allocate": lambda office: office.allocate("ledger", 5),
    "renew": lambda office: renew(office, 1, 0),
}


@pytest.mark.promise("30.4")
@pytest.mark.parametrize("place", ["before", "inside"])
async def test_a_paused_coordinator_writes_nothing_after_its_successor(
    stores: list[SqlMetadataStore], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """It is paused before its transaction begins, or inside, behind the check of its epoch."""
    monkeypatch.setattr(sql_database, "IDLE_TIMEOUT_MS", 300)
    old, new = stores
    await old.put("kept", b"", None)
    await old.put(LEDGER, b"", None)
    for kind, write in KINDS.items():
        await reconnect(old)
        first = await take_office(old)
        if place == "before":
            second = await take_office(new)
            with pytest.raises(MetadataUnavailable, match="superseded"):
                await write(first)
        else:
            second = await inside(old, new, write(first))
        assert first.superseded or place == "inside"
        records = await second.list("", limit=100)
        assert [key for key, record in records if record.value == b"late" or key in ("new", "n")] == [], kind
        assert await second.get(LEDGER) == (b"", 0)
        assert await second.get("counters/ledger") is None
        with pytest.raises(MetadataUnavailable, match="superseded"):
            await first.put("kept", b"late", 0)


async def reconnect(store: SqlMetadataStore) -> None:
    """A new connection, with the time-outs of now."""
    await store._lane.run(store._database._discard)
    engine = store._database._engine
    assert engine is not None
    store._database._engine = sql_database.make_engine(store._database._url)
    engine.dispose()


async def inside(old: SqlMetadataStore, new: SqlMetadataStore, write: Any) -> EpochMetadataStore:
    """Pause a transaction in front of its COMMIT until another coordinator is active; let it go on then."""
    paused, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def pause(_: object) -> None:
        loop.call_soon_threadsafe(paused.set)
        go_on.wait(30)

    event.listen(old._database._engine, "commit", pause)
    writing = asyncio.create_task(write)
    await paused.wait()
    try:
        second = await take_office(new)
    finally:
        go_on.set()
        with pytest.raises((OutcomeUnknown, MetadataUnavailable)):
            await writing
        event.remove(old._database._engine, "commit", pause)
    return second


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[PostgresqlServer, PostgresqlServer]]:
    """A primary that waits for its standby, and that standby."""
    reason = postgresql_server.reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    primary = PostgresqlServer("synchronous_standby_names=*", "wal_level=replica", "max_wal_senders=4")
    standby = PostgresqlServer("hot_standby=on", standby_of=primary)
    try:
        primary.start()
        standby.start()
        yield primary, standby
        standby.resume()
    finally:
        primary.remove()
        standby.remove()


async def until_reached(office: EpochMetadataStore) -> None:
    """The store gave up while the standby took over; it finds it with one of its next tries."""
    while True:
        with contextlib.suppress(MetadataUnavailable):
            await office.get("kept")
            return


def url_of(*servers: PostgresqlServer) -> str:
    hosts = ",".join(server.directory for server in servers)
    return f"postgresql://magnetar@/postgres?host={hosts}&port=5432,5432"


@pytest.mark.promise("30.3")
async def test_a_standby_that_takes_over_has_every_change_that_was_answered(
    env: Environment, pair: tuple[PostgresqlServer, PostgresqlServer]
) -> None:
    primary, standby = pair
    store = await SqlMetadataStore.open(env, url_of(standby, primary), create=True)
    assert not store.failover_loses_changes
    await create_cluster(store, "cluster", 1)
    office = await take_office(store)
    version = await office.put("kept", b"0", None)

    standby.pause()  # nothing may be answered that the standby does not have
    writing = asyncio.create_task(office.put("kept", b"alone", version))
    await asyncio.to_thread(primary.cancel_waiting_commit)
    with pytest.raises(OutcomeUnknown, match="not replicated"):
        await writing
    reading = asyncio.create_task(office.get("kept"))
    await asyncio.to_thread(primary.wait_for_waiting_commit)
    assert not reading.done()
    standby.resume()
    async with asyncio.timeout(20):
        assert await reading == (b"alone", version + 1)
        version = await put_certain(env, office, "kept", b"again", version + 1)

    answered = {b"%d" % number: await office.put(f"answered/{number}", b"", None) for number in range(50)}
    await asyncio.to_thread(primary.kill)
    waiting = asyncio.create_task(put_certain(env, office, "kept", b"behind", version))
    await asyncio.to_thread(standby.promote)
    with contextlib.suppress(MetadataUnavailable):  # it may have waited long enough
        await waiting
    async with asyncio.timeout(20):
        await until_reached(office)
    assert len(await office.list("answered/")) == len(answered)
    found = await office.get("kept")
    assert found is not None and found.value in (b"again", b"behind")
    await office.verify()
    await office.put("on the other", b"", None)
    await store.close()


@pytest.mark.promise("30.3")
def test_a_start_with_several_hosts_wants_a_synchronous_standby(postgresql: PostgresqlServer, tmp_path: Path) -> None:
    url = url_of(postgresql, postgresql)
    postgresql.drop_table("magnetar_metadata")
    options: dict[str, Any] = {"embedded": True, "data_dir": tmp_path, "port": 0, "admin_port": 0, "metadata": url}
    with pytest.raises(ClusterError, match="synchronous_standby_names"):
        magnetar.start(**options)
    with magnetar.start(**options, settings={"allowAsynchronousMetadataStandbys": True}) as cluster:
        with cluster.client() as client, client.create_producer("t") as producer:
            producer.send(b"x")
    postgresql.drop_table("magnetar_metadata")


@pytest.mark.parametrize(
    ("given", "host", "port"),
    [
        ("postgresql://u:p@a:1,b:2/d", "a,b", "1,2"),
        ("postgresql://u@a,b/d", "a,b", "5432,5432"),
        ("postgresql://u@[::1]:1,b/d?sslmode=require", "::1,b", "1,5432"),
        ("postgresql://u@/d?host=a,b&port=1,2", "a,b", "1,2"),
    ],
)
def test_a_url_names_several_hosts_as_for_libpq(given: str, host: str, port: str) -> None:
    parsed = parse_url(given)
    assert (parsed.query["host"], parsed.query["port"]) == (host, port)
    assert parsed.query["target_session_attrs"] == "read-write"
    assert parsed.database == "d" and parsed.username == "u"
