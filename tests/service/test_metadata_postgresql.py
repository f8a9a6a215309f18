"""The metadata store in PostgreSQL: two writers at once, crashes, connections that break."""

import asyncio
import contextlib

import pytest

from magnetar.protocol.errors import ClusterError, MetadataUnavailable, NoSuchKey, OutcomeUnknown, StaleEpoch
from magnetar.runtime.environment import Environment
from magnetar.storage.backup.sql_copies import SqlSnapshot
from magnetar.storage.metadata.sql import SqlMetadataStore
from magnetar.storage.metadata.store import Guard, Write
from support.servers import postgresql_server


async def test_postgresql_needs_start_to_create_the_table(
    env: Environment, postgresql: postgresql_server.PostgresqlServer
) -> None:
    import psycopg

    with psycopg.connect(postgresql.url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS magnetar_metadata")
    with pytest.raises(ClusterError):
        await SqlMetadataStore.open(env, postgresql.url)
    await (await SqlMetadataStore.open(env, postgresql.url, create=True)).close()
    await (await SqlMetadataStore.open(env, postgresql.url)).close()


async def test_two_postgresql_stores_cannot_both_win(
    env: Environment, postgresql: postgresql_server.PostgresqlServer
) -> None:
    old = await SqlMetadataStore.open(env, postgresql.url, create=True)
    new = await SqlMetadataStore.open(env, postgresql.url)
    await asyncio.to_thread(postgresql.empty, "magnetar_metadata")
    await old.put("epoch", b"", None)
    await old.put("k", b"", None)
    version = 0
    for _ in range(30):
        outcomes = await asyncio.gather(
            old.put("k", b"old", version), new.put("k", b"new", version), return_exceptions=True
        )
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["BadVersion", "int"]
        version += 1
    firsts = await asyncio.gather(*(store.allocate("c", 2) for store in (old, new) for _ in range(20)))
    assert sorted(firsts) == list(range(1, 81, 2))
    seen: dict[int, None] = {}
    for _ in range(20):  # one deletes while the other waits to create
        created = await old.put("again", b"", None)
        _, outcome = await asyncio.gather(
            old.delete("again", None), new.put("again", b"", None), return_exceptions=True
        )
        for one in (created, outcome):
            if isinstance(one, int):
                assert one not in seen
                seen[one] = None
        with contextlib.suppress(NoSuchKey):
            await new.delete("again", None)
    await new.put("epoch", b"", 0)
    with pytest.raises(StaleEpoch):
        await old.write_many([Write("k", b"zombie", version)], Guard("epoch", 0))
    await old.close()
    await new.close()


async def test_a_postgresql_crash_is_unavailable_and_then_over(
    env: Environment, postgresql: postgresql_server.PostgresqlServer
) -> None:
    store = await SqlMetadataStore.open(env, postgresql.url, create=True)
    with contextlib.suppress(NoSuchKey):
        await store.delete("crash", None)
    version = await store.put("crash", b"before", None)
    await asyncio.to_thread(postgresql.kill)
    with pytest.raises(MetadataUnavailable):
        await store.put("crash", b"down", version)
    await asyncio.to_thread(postgresql.start)
    assert await store.get("crash") == (b"before", version)
    assert await store.put("crash", b"after", version) == version + 1
    await store.close()


async def test_a_connection_lost_during_commit_leaves_the_outcome_open(
    env: Environment, postgresql: postgresql_server.PostgresqlServer
) -> None:
    import psycopg
    from sqlalchemy import event

    store = await SqlMetadataStore.open(env, postgresql.url, create=True)
    with contextlib.suppress(NoSuchKey):
        await store.delete("lost", None)

    def cut(connection) -> None:
        driver = connection.connection.dbapi_connection
        with psycopg.connect(postgresql.url, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", (driver.info.backend_pid,))

    event.listen(store._database._engine, "commit", cut)
    outcomes = await asyncio.gather(store.put("lost", b"", None), store.get("lost"), return_exceptions=True)
    assert isinstance(outcomes[0], OutcomeUnknown)
    assert isinstance(outcomes[1], MetadataUnavailable)
    event.remove(store._database._engine, "commit", cut)
    assert await store.get("lost") is None
    await store.close()


async def test_a_snapshot_changes_nothing(env: Environment, postgresql: postgresql_server.PostgresqlServer) -> None:
    await (await SqlMetadataStore.open(env, postgresql.url, create=True)).close()
    with SqlSnapshot(env.files, postgresql.url) as snapshot, pytest.raises(MetadataUnavailable, match="read-only"):
        list(snapshot._rows("WHERE false; DELETE FROM magnetar_metadata", ()))
