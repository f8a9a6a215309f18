"""One suite for all metadata stores, memory, SQLite, PostgreSQL, SQLite behind the RPC; then some of them alone."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.protocol.errors import (
    BadVersion,
    ClusterError,
    ConditionFailed,
    DirectoryLocked,
    KeyExists,
    MagnetarError,
    MetadataError,
    MetadataUnavailable,
    NoSuchKey,
    OutcomeUnknown,
    SettingError,
    StaleEpoch,
)
from magnetar.runtime.environment import Environment
from magnetar.runtime.rpc.connection import Identity, RpcConnection, rpc_connect
from magnetar.runtime.rpc.contract import CALLER, handlers_of
from magnetar.runtime.rpc.keys import RootKeys
from magnetar.runtime.rpc.server import RpcServer
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.cluster_identity import create_cluster, read_cluster_id
from magnetar.storage.metadata.contract import FailedWrite, MetadataContract
from magnetar.storage.metadata.remote import MetadataMethods, RemoteMetadataStore
from magnetar.storage.metadata.sql import SqlMetadataStore, sqlite_url
from magnetar.storage.metadata.store import (
    KEY_SIZE_MAX_BYTES,
    Guard,
    MetadataStore,
    Write,
    first_key_after_prefix,
    list_all,
    one_result,
)
from support.servers import postgresql_server
from support.servers.open_rpc import OpenService
from support.stores.memory_store import MemoryMetadataStore, MemoryRecords

FRAME_SIZE_MAX = 64 << 20
KEYS = RootKeys(b"metadata test secret")


class MetadataService(OpenService, MetadataMethods):
    contract = MetadataContract

    def __init__(self, store: MetadataStore) -> None:
        super().__init__(store, None, lambda connection, keys: None)
        self.handlers = handlers_of(MetadataContract, self)


@contextlib.asynccontextmanager
async def behind_rpc(env: Environment, inner: MetadataStore) -> AsyncIterator[tuple[MetadataStore, RpcServer]]:
    identity = Identity("c", "coordinator", "coordinator", "1")
    server = RpcServer(env, identity, KEYS, MetadataService(inner), frame_size_max=FRAME_SIZE_MAX)
    host, port = await server.start("127.0.0.1")
    caller = Identity("c", "broker", "client-1", "1")
    connection = await rpc_connect(env, host, port, caller, KEYS, frame_size_max=FRAME_SIZE_MAX)
    try:
        yield RemoteMetadataStore(lambda: connection, timeout_s=5), server
    finally:
        connection.close()
        await connection.wait_closed()
        await server.close()


@contextlib.asynccontextmanager
async def opened(kind: str, env: Environment, tmp_path: Path, request: pytest.FixtureRequest):
    async with contextlib.AsyncExitStack() as stack:
        store: MetadataStore
        if kind == "memory":
            store = MemoryMetadataStore()
        elif kind == "postgresql":
            server: postgresql_server.PostgresqlServer = request.getfixturevalue("postgresql")
            store = await SqlMetadataStore.open(env, server.url, create=True)
            await asyncio.to_thread(server.empty, "magnetar_metadata")
        else:
            store = await SqlMetadataStore.open(env, sqlite_url(str(tmp_path / "m" / "metadata.sqlite")), create=True)
        stack.push_async_callback(store.close)
        if kind == "remote":
            store, _ = await stack.enter_async_context(behind_rpc(env, store))
        yield store


@pytest.fixture(params=["memory", "sqlite", "remote", "postgresql"])
async def store(request: pytest.FixtureRequest, env: Environment, tmp_path: Path) -> AsyncIterator[MetadataStore]:
    async with opened(request.param, env, tmp_path, request) as found:
        yield found


# -- what every store does -------------------------------------------------------------------------------------------


async def test_a_record_lives_through_versions(store: MetadataStore) -> None:
    assert await store.get("a/b") is None
    assert await store.put("a/b", b"\x00one", None) == 0
    assert await store.get("a/b") == (b"\x00one", 0)
    assert await store.put("a/b", b"two", 0) == 1
    assert await store.put("a/b", b"", 1) == 2
    assert await store.get_many(["x", "a/b", "a/b"]) == [None, (b"", 2), (b"", 2)]
    await store.delete("a/b", 2)
    assert await store.get("a/b") is None


async def test_a_version_never_comes_back_not_even_across_deletions(store: MetadataStore) -> None:
    """A writer that slept through a deletion has no hold on the record that came after."""
    seen: list[int] = []
    for _ in range(3):
        version = await store.put("k", b"", None)
        seen += [version, await store.put("k", b"", version)]
        await store.delete("k", None)
    results = await store.write_many([Write("k", b"", None), Write("k", None, None), Write("k", b"", None)])
    assert results[0] == results[1]
    seen += [one_result([results[0]]), one_result([results[2]])]
    assert seen == sorted(dict.fromkeys(seen))
    for old in seen[:-1]:
        with pytest.raises(BadVersion):
            await store.put("k", b"zombie", old)
        with pytest.raises(BadVersion):
            await store.delete("k", old)
        with pytest.raises(StaleEpoch):
            await store.write_many([Write("x", b"", None)], Guard("k", old))
    assert await store.get("k") == (b"", seen[-1])
    await store.delete("k", None)
    counter = metadata_keys.counter("c")
    for _ in range(2):
        assert await store.allocate("c", 1) == 1
        record = await store.get(counter)
        assert record is not None and record.version > seen[-1]
        seen.append(record.version)
        await store.delete(counter, None)
    assert await list_all(store, "") == []


async def test_compare_and_set_refuses_every_other_version(store: MetadataStore) -> None:
    with pytest.raises(NoSuchKey):
        await store.put("k", b"", 0)
    with pytest.raises(NoSuchKey):
        await store.delete("k", None)
    await store.put("k", b"v", None)
    with pytest.raises(KeyExists):
        await store.put("k", b"w", None)
    for wrong in (1, 7):
        with pytest.raises(BadVersion) as caught:
            await store.put("k", b"w", wrong)
        assert not isinstance(caught.value, KeyExists)
        assert caught.value.details["version"] == 0
        with pytest.raises(BadVersion):
            await store.delete("k", wrong)
    assert await store.get("k") == (b"v", 0)
    await store.delete("k", None)


async def test_of_many_concurrent_writers_one_wins(store: MetadataStore) -> None:
    await store.put("k", b"", None)
    outcomes = await asyncio.gather(*(store.put("k", b"%d" % n, 0) for n in range(20)), return_exceptions=True)
    assert outcomes.count(1) == 1
    assert sum(isinstance(outcome, BadVersion) for outcome in outcomes) == 19
    winner = outcomes.index(1)
    assert await store.get("k") == (b"%d" % winner, 1)


async def test_list_pages_in_order_of_keys(store: MetadataStore) -> None:
    keys = ["p", "p/", "p/a", "p/a/b", "p/b", "p/é", "p/\ufffd", "p/😀", "p0", "q/a", "P/a"]
    for key in keys:
        await store.put(key, key.encode(), None)
    expected = sorted(key for key in keys if key.startswith("p/"))
    assert [key for key, _ in await store.list("p/")] == expected
    assert [key for key, _ in await store.list("")] == sorted(keys)
    paged: list[str] = []
    while page := await store.list("p/", after=paged[-1] if paged else "", limit=2):
        assert len(page) <= 2
        paged += [key for key, _ in page]
    assert paged == expected
    assert await store.list("p/", after="p0") == []
    assert await store.list("nothing/") == []
    assert [key for key, _ in await list_all(store, "p/", page=3)] == expected
    assert (await store.list("p/", limit=1))[0][1] == (b"p/", 0)


async def test_a_page_of_big_records_is_whole(store: MetadataStore) -> None:
    value = bytes(1 << 20)
    for number in range(9):
        await store.put(f"big/{number}", value, None)
    found = await store.list("big/")
    assert [key for key, _ in found] == [f"big/{number}" for number in range(9)]
    assert all(record.value == value for _, record in found)


async def test_allocation_never_repeats(store: MetadataStore) -> None:
    assert await store.allocate("ledger", 10) == 1
    assert await store.allocate("ledger", 1) == 11
    assert await store.allocate("other", 1) == 1
    firsts = await asyncio.gather(*(store.allocate("ledger", 5) for _ in range(30)))
    assert sorted(firsts) == list(range(12, 12 + 5 * 30, 5))
    with pytest.raises(MetadataError):
        await store.allocate("ledger", 0)


async def test_many_writes_succeed_or_fail_each_on_its_own(store: MetadataStore) -> None:
    await store.put("a", b"", None)
    results = await store.write_many(
        [
            Write("a", b"1", 0),
            Write("a", b"2", 0),
            Write("b", b"", None),
            Write("c", b"", 4),
            Write("b", None, None),
            Write("d", None, 0),
        ]
    )
    assert results[0] == 1 and results[2] == 0 and results[4] == 0
    assert [type(item) for item in results if isinstance(item, MagnetarError)] == [BadVersion, NoSuchKey, NoSuchKey]
    assert await store.get_many(["a", "b"]) == [(b"1", 1), None]


async def test_a_guard_stops_a_superseded_writer(store: MetadataStore) -> None:
    await store.put("epoch", b"1", None)
    assert await store.write_many([Write("x", b"old", None)], Guard("epoch", 0)) == [0]
    await store.put("epoch", b"2", 0)
    with pytest.raises(StaleEpoch):
        await store.write_many([Write("x", b"zombie", 0), Write("y", b"zombie", None)], Guard("epoch", 0))
    with pytest.raises(StaleEpoch):
        await store.allocate("ledger", 1, Guard("epoch", 0))
    with pytest.raises(StaleEpoch):
        await store.write_many([Write("y", b"", None)], Guard("missing", 0))
    assert await store.get_many(["x", "y"]) == [(b"old", 0), None]
    assert await store.allocate("ledger", 1, Guard("epoch", 1)) == 1


async def test_a_write_may_need_another_record_at_a_version(store: MetadataStore) -> None:
    needed = await store.put("needed", b"", None)
    holds, fails, absent = Guard("needed", needed), Guard("needed", needed + 1), Guard("absent", 0)
    results = await store.write_many(
        [
            Write("a", b"", None, fails),
            Write("a", b"", None, absent),
            Write("a", b"1", None, holds),
            Write("needed", b"", needed),
            Write("b", b"", None, holds),
        ]
    )
    assert [type(item).__name__ for item in results] == [
        "ConditionFailed",
        "ConditionFailed",
        "int",
        "int",
        "ConditionFailed",
    ]
    version = one_result([results[2]])
    for write, error in (
        (Write("a", b"2", version, holds), ConditionFailed),
        (Write("a", None, version, holds), ConditionFailed),
        (Write("a", None, None, holds), ConditionFailed),
        (Write("a", b"2", version + 1, holds), BadVersion),  # what the key itself says goes first
        (Write("a", None, version + 1, holds), BadVersion),
        (Write("a", b"2", None, holds), KeyExists),
        (Write("b", b"2", 0, holds), NoSuchKey),
        (Write("b", None, None, holds), NoSuchKey),
    ):
        (result,) = await store.write_many([write])
        assert type(result) is error
    assert await store.get_many(["a", "b"]) == [(b"1", version), None]
    assert await store.write_many([Write("a", b"2", version, fails)]) == [version + 1]


async def test_impossible_keys_are_refused(store: MetadataStore) -> None:
    for key in ("", "k" * (KEY_SIZE_MAX_BYTES + 1), "nul\0", "é" * (KEY_SIZE_MAX_BYTES // 2 + 1)):
        with pytest.raises(MetadataError):
            await store.put(key, b"", None)
    longest = "é" * (KEY_SIZE_MAX_BYTES // 2)
    await store.put(longest, b"", None)
    assert [key for key, _ in await store.list(longest)] == [longest]


async def test_a_cluster_is_created_once(store: MetadataStore) -> None:
    assert await read_cluster_id(store) is None
    await create_cluster(store, "one", 5)
    await create_cluster(store, "one", 6)
    with pytest.raises(ClusterError):
        await create_cluster(store, "two", 7)
    assert await read_cluster_id(store) == "one"
    assert await store.get("namespaces/public/default") is not None


async def test_a_closed_store_answers_unavailable(store: MetadataStore) -> None:
    await store.close()
    for operation in (store.get("k"), store.put("k", b"", None), store.list("k"), store.allocate("c", 1)):
        with pytest.raises(MetadataUnavailable):
            await operation


GUARDS = st.one_of(st.none(), st.builds(Guard, st.sampled_from(["a", "b"]), st.integers(0, 2)))
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("write"),
            st.lists(
                st.builds(
                    Write,
                    st.sampled_from(["a", "b", "a/b"]),
                    st.one_of(st.none(), st.binary(max_size=3)),
                    st.one_of(st.none(), st.integers(0, 4)),
                    GUARDS,
                    GUARDS,
                ),
                max_size=4,
            ),
            st.one_of(st.none(), st.builds(Guard, st.just("a"), st.integers(0, 1))),
        ),
        st.tuples(st.just("allocate"), st.sampled_from(["n", "m"]), st.integers(1, 3)),
        st.tuples(st.just("list"), st.sampled_from(["", "a", "a/", "c"]), st.sampled_from(["", "a", "a/b"])),
        st.tuples(st.just("get"), st.lists(st.sampled_from(["a", "b", "a/b", "c"]), max_size=3)),
    ),
    max_size=25,
)


async def apply(store: MetadataStore, operation: tuple) -> object:
    try:
        match operation:
            case ("write", writes, guard):
                results = await store.write_many(writes, guard)
                return [type(item).__name__ if isinstance(item, Exception) else item for item in results]
            case ("allocate", counter, count):
                return await store.allocate(counter, count)
            case ("list", prefix, after):
                return await store.list(prefix, after=after, limit=3)
            case ("get", keys):
                return await store.get_many(keys)
            case _:
                raise AssertionError(operation)
    except MagnetarError as error:
        return type(error).__name__


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_any_history_ends_as_in_memory(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if kind == "postgresql":
        request.getfixturevalue("postgresql")

    async def run(histories_seen: list[int]) -> None:
        env = Environment.real()
        async with opened(kind, env, tmp_path / str(len(histories_seen)), request) as tested:
            model = MemoryMetadataStore()
            for operation in histories[-1]:
                assert await apply(tested, operation) == await apply(model, operation)
            assert await list_all(tested, "") == await list_all(model, "")
        env.close()

    seen: list[int] = []
    histories: list[list[tuple]] = []

    @settings(max_examples=25)
    @given(OPERATIONS)
    def check(history: list[tuple]) -> None:
        seen.append(1)
        histories.append(history)
        asyncio.run(run(seen))

    check()


def test_the_key_after_a_prefix() -> None:
    assert first_key_after_prefix("a/") == "a0"
    assert first_key_after_prefix("") is None
    assert first_key_after_prefix("a\U0010ffff") == "b"
    assert first_key_after_prefix("\ud7ff") == "\ue000"


# -- SQLite ----------------------------------------------------------------------------------------------------------


async def test_sqlite_survives_reopening_and_is_locked_while_open(env: Environment, tmp_path: Path) -> None:
    url = sqlite_url(str(tmp_path / "metadata.sqlite"))
    first = await SqlMetadataStore.open(env, url, create=True)
    await first.put("k", b"v", None)
    await first.put("gone", b"v", None)
    await first.delete("gone", 0)
    with pytest.raises(DirectoryLocked):
        await SqlMetadataStore.open(env, url)
    await first.close()
    second = await SqlMetadataStore.open(env, url)
    assert await second.get("k") == (b"v", 0)
    assert await second.put("gone", b"zombie", None) == 1
    await second.close()


async def test_a_missing_store_is_never_created_by_the_coordinator(env: Environment, tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    with pytest.raises(ClusterError):
        await SqlMetadataStore.open(env, sqlite_url(str(path)))
    assert not path.exists()
    path.touch()
    with pytest.raises(ClusterError):
        await SqlMetadataStore.open(env, sqlite_url(str(path)))
    await (await SqlMetadataStore.open(env, sqlite_url(str(path)), create=True)).close()


@pytest.mark.parametrize(
    "url", ["nonsense", "mysql://localhost/x", "sqlite://", "sqlite:///relative.db", "http://[::1"]
)
async def test_impossible_urls_are_refused(env: Environment, url: str) -> None:
    with pytest.raises(SettingError):
        await SqlMetadataStore.open(env, url, create=True)


async def test_a_damaged_file_is_an_error_not_an_empty_store(env: Environment, tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    path.write_bytes(b"this is no database" * 500)
    with pytest.raises(MagnetarError):
        await SqlMetadataStore.open(env, sqlite_url(str(path)), create=True)
    assert path.read_bytes().startswith(b"this is no database")


async def test_operations_of_one_moment_share_a_transaction(env: Environment, tmp_path: Path) -> None:
    store = await SqlMetadataStore.open(env, sqlite_url(str(tmp_path / "metadata.sqlite")), create=True)
    groups: list[int] = []
    execute = store._database.execute

    def counted(operations):
        groups.append(len(operations))
        return execute(operations)

    store._database.execute = counted  # type: ignore[method-assign]
    await asyncio.gather(*(store.put(f"k/{n}", b"", None) for n in range(100)))
    assert groups == [100]
    await store.close()


async def test_a_cancelled_caller_disturbs_nobody(env: Environment, tmp_path: Path) -> None:
    store = await SqlMetadataStore.open(env, sqlite_url(str(tmp_path / "metadata.sqlite")), create=True)
    tasks = [asyncio.create_task(store.put(f"k/{n}", b"", None)) for n in range(10)]
    await asyncio.sleep(0)
    tasks[3].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[3], asyncio.CancelledError)
    assert all(result == 0 for index, result in enumerate(results) if index != 3)
    await store.close()


# -- over the RPC ----------------------------------------------------------------------------------------------------


async def test_a_lost_answer_to_a_write_is_unknown_and_to_a_read_unavailable(env: Environment) -> None:
    records = MemoryRecords()

    class LosesAnswers(MetadataService):
        async def metadata_write_many(
            self, *, writes, guard, caller: RpcConnection = CALLER
        ) -> list[int | FailedWrite]:
            results = await super().metadata_write_many(writes=writes, guard=guard, caller=caller)
            caller.close()
            await asyncio.Event().wait()
            return results

        async def metadata_get_many(self, *, keys: list[str]):
            connection.close()
            await asyncio.Event().wait()
            return []

    identity = Identity("c", "coordinator", "coordinator", "1")
    service = LosesAnswers(MemoryMetadataStore(records))
    server = RpcServer(env, identity, KEYS, service, frame_size_max=FRAME_SIZE_MAX)
    host, port = await server.start("127.0.0.1")

    async def connect() -> RpcConnection:
        caller = Identity("c", "broker", "client-1", "1")
        return await rpc_connect(env, host, port, caller, KEYS, frame_size_max=FRAME_SIZE_MAX)

    connection = await connect()
    remote = RemoteMetadataStore(lambda: connection)
    with pytest.raises(OutcomeUnknown):
        await remote.put("k", b"", None)
    assert "k" in records.by_key
    with pytest.raises(MetadataUnavailable):
        await remote.put("l", b"", None)  # known to be gone: certainly not executed
    connection = await connect()
    with pytest.raises(MetadataUnavailable):
        await remote.get("k")
    await server.close()
