"""The blocking half of the SQL metadata store: one connection, groups of operations as transactions.

Everything here runs on the store's own thread. `Database.execute` carries out a group in one transaction and returns
one outcome for each operation: its result, or the error of this operation alone. An error that ended the whole
transaction is mapped by `_failure`, which knows whether COMMIT had been sent.

The floor, at which the versions of new records start, is the version of a row with the empty key, which no caller can
ask for. Whoever creates or deletes a record first takes the lock of this row (PostgreSQL) and so waits for every other
transaction that does, else a record could be created from a floor older than the deletion before it.
"""

import logging
from typing import Any, NamedTuple, cast

from sqlalchemy import BigInteger, Column, LargeBinary, MetaData, Table, Text, event, inspect, select
from sqlalchemy import delete as sql_delete
from sqlalchemy import update as sql_update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, Connection, Engine, create_engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from ..protocol.errors import (
    BadVersion,
    ClusterError,
    DiskFull,
    KeyExists,
    MagnetarError,
    MetadataError,
    MetadataUnavailable,
    OutcomeUnknown,
    StaleEpoch,
    StorageFailed,
)
from .metadata_store import (
    Guard,
    Versioned,
    Write,
    WriteResult,
    condition_failed,
    first_key_after_prefix,
    no_such_key,
    pack,
    unpack,
)

logger = logging.getLogger(__name__)

TRIES_MAX = 3
"""Tries of a group whose transaction certainly did not happen: the server was restarted, or chose it in a deadlock."""

CONNECT_TIMEOUT_S = 5
STATEMENT_TIMEOUT_MS = 10_000
ALLOCATE_TRIES_MAX = 100
FLOOR_KEY = ""

_KEY = Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")  # ordered by code point, as Python does
_TABLE = Table(
    "magnetar_metadata",
    MetaData(),
    Column("key", _KEY, primary_key=True),
    Column("value", LargeBinary, nullable=False),
    Column("version", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
_COLUMNS = _TABLE.c


class Get(NamedTuple):
    keys: tuple[str, ...]


class List(NamedTuple):
    prefix: str
    after: str
    limit: int


class WriteMany(NamedTuple):
    writes: tuple[Write, ...]
    guard: Guard | None


class Allocate(NamedTuple):
    key: str
    numbers: int
    guard: Guard | None


Operation = Get | List | WriteMany | Allocate


class Database:
    """One connection to one database, made when needed and made anew after it broke."""

    def __init__(self, url: URL) -> None:
        self._url = url
        self._is_sqlite = url.get_backend_name() == "sqlite"
        self._insert = sqlite.insert if self._is_sqlite else postgresql.insert
        self._engine: Engine | None = None
        self._connection: Connection | None = None

    def open(self, create: bool) -> None:
        """Connect; create the table if told to. Raises ClusterError when it is missing, MetadataUnavailable."""
        self._engine = self._make_engine()
        try:
            connection = self._connect()
            if create:
                with connection.begin():
                    _TABLE.create(connection, checkfirst=True)
            with connection.begin():
                found = inspect(connection).has_table(_TABLE.name)
        except SQLAlchemyError as error:
            self._discard()
            raise self._failure(error, committing=False) from error
        if not found:
            self.close()
            raise ClusterError(
                f"{self._url.render_as_string()} holds no cluster's metadata (only `magnetar start` creates it)"
            )

    def close(self) -> None:
        """Let go of the connection."""
        self._discard()
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    def execute(self, operations: list[Operation]) -> list[object]:
        """One transaction; one outcome for each operation (a result or an error)."""
        for attempt in range(1, TRIES_MAX + 1):
            committing = False
            try:
                connection = self._connect()
                transaction = connection.begin()
                outcomes = [self._carry_out(connection, operation) for operation in operations]
                committing = True
                transaction.commit()
                return outcomes
            except SQLAlchemyError as error:
                self._discard()
                if not committing and attempt < TRIES_MAX and _is_worth_another_try(error):
                    continue
                failure = self._failure(error, committing=committing)
                logger.warning("a metadata transaction failed: %s", failure)
                # Reads in front of an unknown outcome saw nothing that is known to be true.
                unavailable = MetadataUnavailable(failure.message)
                return [
                    unavailable
                    if isinstance(failure, OutcomeUnknown) and isinstance(operation, Get | List)
                    else failure
                    for operation in operations
                ]
        raise AssertionError("unreachable: the last try returns")

    # -- one operation -------------------------------------------------------------------------------------------

    def _carry_out(self, connection: Connection, operation: Operation) -> object:
        if isinstance(operation, Get):
            return self._get(connection, operation.keys)
        if isinstance(operation, List):
            return self._list(connection, operation)
        if operation.guard is not None and (stale := self._test_guard(connection, operation.guard)) is not None:
            return stale
        if isinstance(operation, WriteMany):
            return [self._write(connection, write) for write in operation.writes]
        return self._allocate(connection, operation)

    def _get(self, connection: Connection, keys: tuple[str, ...]) -> list[Versioned | None]:
        found: dict[str, Versioned] = {}
        for first in range(0, len(keys), 500):  # SQLite bounds the number of parameters
            wanted = keys[first : first + 500]
            condition = _COLUMNS.key == wanted[0] if len(wanted) == 1 else _COLUMNS.key.in_(wanted)
            rows = connection.execute(select(_COLUMNS.key, _COLUMNS.value, _COLUMNS.version).where(condition))
            for key, value, version in rows:
                found[key] = Versioned(bytes(value), version)
        return [found.get(key) for key in keys]

    def _list(self, connection: Connection, operation: List) -> list[tuple[str, Versioned]]:
        prefix, after, limit = operation
        statement = select(_COLUMNS.key, _COLUMNS.value, _COLUMNS.version)
        statement = statement.where(_COLUMNS.key > after if after >= prefix else _COLUMNS.key >= prefix)
        end = first_key_after_prefix(prefix)
        if end is not None:
            statement = statement.where(_COLUMNS.key < end)
        rows = connection.execute(statement.order_by(_COLUMNS.key).limit(limit))
        return [(key, Versioned(bytes(value), version)) for key, value, version in rows]

    def _version(self, connection: Connection, key: str) -> int | None:
        return connection.execute(select(_COLUMNS.version).where(_COLUMNS.key == key)).scalar()

    def _holds(self, connection: Connection, guard: Guard) -> bool:
        # FOR SHARE (PostgreSQL): nobody changes the guard before this transaction has ended.
        statement = select(_COLUMNS.version).where(_COLUMNS.key == guard.key).with_for_update(read=True)
        return connection.execute(statement).scalar() == guard.version

    def _test_guard(self, connection: Connection, guard: Guard) -> StaleEpoch | None:
        if self._holds(connection, guard):
            return None
        return StaleEpoch(f"{guard.key} is no longer at version {guard.version}: this writer was superseded")

    def _write(self, connection: Connection, write: Write) -> WriteResult:
        key, value, expected, needs = write
        if needs is not None and not self._holds(connection, needs):
            return self._refusal_of(connection, write) or condition_failed(key, needs)
        if value is None:
            statement = sql_delete(_TABLE).where(_COLUMNS.key == key)
            if expected is not None:
                statement = statement.where(_COLUMNS.version == expected)
            floor = self._lock_floor(connection)
            row = connection.execute(statement.returning(_COLUMNS.version)).first()
            if row is None:
                return self._refusal(connection, key, expected)
            deleted = cast(int, row[0])
            if deleted >= floor:
                raised = sql_update(_TABLE).where(_COLUMNS.key == FLOOR_KEY).values(version=deleted + 1)
                connection.execute(raised)
            return deleted
        if expected is None:
            version = self._try_insert(connection, key, value)
            if version is not None:
                return version
            return _key_exists(key)
        if self._try_update(connection, key, value, expected):
            return expected + 1
        return self._refusal(connection, key, expected)

    def _lock_floor(self, connection: Connection) -> int:
        statement = select(_COLUMNS.version).where(_COLUMNS.key == FLOOR_KEY).with_for_update()
        floor = connection.execute(statement).scalar()
        if floor is None:
            first = self._insert(_TABLE).values(key=FLOOR_KEY, value=b"", version=0)
            connection.execute(first.on_conflict_do_nothing())
            floor = connection.execute(statement).scalar_one()
        return cast(int, floor)

    def _try_insert(self, connection: Connection, key: str, value: bytes) -> int | None:
        version = self._lock_floor(connection)
        statement = self._insert(_TABLE).values(key=key, value=value, version=version).on_conflict_do_nothing()
        return cast("int | None", connection.execute(statement.returning(_COLUMNS.version)).scalar())

    def _try_update(self, connection: Connection, key: str, value: bytes, expected: int) -> bool:
        statement = sql_update(_TABLE).where(_COLUMNS.key == key, _COLUMNS.version == expected)
        return connection.execute(statement.values(value=value, version=expected + 1)).rowcount == 1

    def _refusal_of(self, connection: Connection, write: Write) -> MagnetarError | None:
        """What the key itself says against a write, if anything."""
        version = self._version(connection, write.key)
        if write.value is not None and write.expected_version is None:
            return None if version is None else _key_exists(write.key)
        if version is not None and write.expected_version in (None, version):
            return None
        return self._refusal(connection, write.key, write.expected_version)

    def _refusal(self, connection: Connection, key: str, expected: int | None) -> MagnetarError:
        version = self._version(connection, key)
        if version is None:
            return no_such_key(key)
        return BadVersion(
            f"the metadata record {key} is at version {version}, not {expected}",
            key=key,
            version=version,
            expected_version=expected,
        )

    def _allocate(self, connection: Connection, operation: Allocate) -> int | MagnetarError:
        key, count, _ = operation
        for _ in range(ALLOCATE_TRIES_MAX):
            record = self._get(connection, (key,))[0]
            first = int(unpack(record.value)["next"]) if record is not None else 1
            value = pack({"next": first + count})
            if record is None:
                if self._try_insert(connection, key, value) is not None:
                    return first
            elif self._try_update(connection, key, value, record.version):
                return first
        return MetadataUnavailable(f"{key} is too much in demand")

    # -- the connection ------------------------------------------------------------------------------------------

    def _make_engine(self) -> Engine:
        if self._is_sqlite:
            # No implicit transactions of the driver: BEGIN is ours, below.
            engine = create_engine(self._url, poolclass=NullPool, connect_args={"isolation_level": None, "timeout": 5})
            event.listen(engine, "connect", _prepare_sqlite)
            event.listen(engine, "begin", _begin_immediate)
            return engine
        options = f"-c statement_timeout={STATEMENT_TIMEOUT_MS} -c lock_timeout={STATEMENT_TIMEOUT_MS // 2}"
        return create_engine(
            self._url,
            poolclass=NullPool,
            isolation_level="READ COMMITTED",
            connect_args={
                "connect_timeout": CONNECT_TIMEOUT_S,
                "tcp_user_timeout": STATEMENT_TIMEOUT_MS,
                "options": options + " -c synchronous_commit=on",
                "application_name": "magnetar-coordinator",
            },
        )

    def _connect(self) -> Connection:
        if self._engine is None:
            raise MetadataUnavailable("the metadata store is closed")
        if self._connection is None:
            self._connection = self._engine.connect()
        return self._connection

    def _discard(self) -> None:
        """Close the connection, which rolls back; whatever is wrong with it, it is not used again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except SQLAlchemyError as error:
                logger.debug("closing a broken metadata connection: %s", error)

    def _failure(self, error: SQLAlchemyError, *, committing: bool) -> MagnetarError:
        """What an error that ended a transaction means to callers."""
        text = " ".join(str(getattr(error, "orig", None) or error).split())
        if self._is_sqlite and "full" in text:
            return DiskFull(f"the metadata store has no room: {text}")  # SQLite has rolled back
        if committing:
            return OutcomeUnknown(f"the metadata store failed during a commit: {text}")
        if self._is_sqlite and ("I/O" in text or "malformed" in text or "readonly" in text):
            return StorageFailed(f"the metadata store cannot be written: {text}")
        if isinstance(error, DBAPIError) and (error.connection_invalidated or _is_operational(error)):
            return MetadataUnavailable(f"the metadata store cannot be reached: {text}")
        return MetadataError(f"the metadata store refused: {text}")


def _key_exists(key: str) -> KeyExists:
    return KeyExists(f"the metadata record {key} exists already", key=key)


def _is_operational(error: DBAPIError) -> bool:
    return type(error).__name__ in ("OperationalError", "InterfaceError", "InternalError")


def _is_worth_another_try(error: SQLAlchemyError) -> bool:
    if not isinstance(error, DBAPIError):
        return False
    state = getattr(error.orig, "sqlstate", None)
    return error.connection_invalidated or state in ("40001", "40P01", "57P01", "57P02")


def _prepare_sqlite(connection: Any, record: object) -> None:
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "temp_store=MEMORY"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")
