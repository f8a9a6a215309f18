"""The blocking half of the SQL metadata store: one connection, groups of operations as transactions.

Everything here runs on the store's own thread. `Database.execute` executes a group in one transaction (see
`metadata.sql_transaction`). It returns one outcome per operation: its result, or the error of this operation alone. An
error that ended the whole transaction is mapped by `_failure`, which knows whether COMMIT had been sent.

**Replicas of PostgreSQL.** With a synchronous standby, COMMIT waits until the standby has the change, however long that
takes. When an administrator ends the wait, the server answers with success and a warning. The change is there then, but
a failover would lose it. So a warning during COMMIT makes the outcome unknown. What the database shows from then on may
be such a change. So it counts only behind a COMMIT that did wait. For that the next transaction writes a row, also if
it only reads: the standby gets changes in their order. The first transaction of each new connection does the same,
because the server may have crashed while a COMMIT waited.

A transaction that is idle for `IDLE_TIMEOUT_MS` is ended by the server. A coordinator that is paused in the middle of
one would otherwise keep the next coordinator out, by its locks.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import BigInteger, Column, LargeBinary, MetaData, Table, Text, event, inspect
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import URL, Connection, Engine, create_engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from ...protocol.errors import (
    ClusterError,
    DiskFull,
    MagnetarError,
    MetadataError,
    MetadataUnavailable,
    OutcomeUnknown,
    StorageFailed,
)
from ...runtime.database_url import shown_url
from .sql_transaction import FLOOR_KEY, TABLE, Dialect, Get, List, Operation, Transaction

if TYPE_CHECKING:
    import psycopg

logger = logging.getLogger(__name__)

TRIES_MAX = 3
"""Tries of a group whose transaction certainly did not happen: the server was restarted, or chose it in a deadlock."""

CONNECT_TIMEOUT_S = 5
STATEMENT_TIMEOUT_MS = 10_000
LOCK_TIMEOUT_MS = 5_000
IDLE_TIMEOUT_MS = 3_000
"""Less than the lock time-out, so that who waits for the locks of a paused coordinator gets them."""
COPY_IDLE_TIMEOUT_MS = 120_000

_STANDBYS = (
    "SELECT current_setting('synchronous_standby_names'), (SELECT count(*) FROM pg_stat_replication), "
    "current_setting('fsync')"
)
_KEY = Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")  # ordered by code point, as Python does
_TABLE = Table(
    TABLE,
    MetaData(),
    Column("key", _KEY, primary_key=True),
    Column("value", LargeBinary, nullable=False),
    Column("version", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)


def is_sqlite(url: URL) -> bool:
    """Whether a URL names a SQLite file; else it names a PostgreSQL database."""
    return url.get_backend_name() == "sqlite"


def create_table(connection: Connection) -> None:
    """Create the table of records if it is not there."""
    _TABLE.create(connection, checkfirst=True)


def has_table(connection: Connection) -> bool:
    """Whether the database has the table of records."""
    return inspect(connection).has_table(_TABLE.name)


class NotReached(Exception):
    """The database cannot be reached, or ended the transaction before COMMIT: nothing was executed. `failure` is what
    callers get when it stays so."""

    def __init__(self, failure: MagnetarError) -> None:
        super().__init__(failure.message)
        self.failure = failure


def make_engine(url: URL, *, snapshot: bool = False, copies: bool = False) -> Engine:
    """What makes connections. With `snapshot` a transaction reads one moment, changes nothing and locks nothing.

    `copies` is for a transaction that is as long as a whole store.
    """
    if is_sqlite(url):
        # No implicit transactions of the driver: BEGIN is ours, below.
        engine = create_engine(url, poolclass=NullPool, connect_args={"isolation_level": None, "timeout": 5})
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_deferred if snapshot else _begin_immediate)
        return engine
    options = {
        "statement_timeout": STATEMENT_TIMEOUT_MS,
        "lock_timeout": LOCK_TIMEOUT_MS,
        "idle_in_transaction_session_timeout": COPY_IDLE_TIMEOUT_MS if snapshot or copies else IDLE_TIMEOUT_MS,
        "synchronous_commit": "on",
    }
    return create_engine(
        url,
        poolclass=NullPool,
        isolation_level="REPEATABLE READ" if snapshot else "READ COMMITTED",
        # Not default_transaction_read_only: libpq would find no host of a list that can be written to.
        execution_options={"postgresql_readonly": True} if snapshot else {},
        connect_args={
            "connect_timeout": CONNECT_TIMEOUT_S,
            "tcp_user_timeout": LOCK_TIMEOUT_MS,
            "keepalives_idle": LOCK_TIMEOUT_MS // 1000,
            "keepalives_interval": 1,
            "keepalives_count": 3,
            "options": " ".join(f"-c {name}={value}" for name, value in options.items()),
            "application_name": "magnetar-backup" if snapshot else "magnetar-coordinator",
        },
    )


class Database:
    """One connection to one database, made when needed and again after it broke."""

    def __init__(self, url: URL) -> None:
        self._url = url
        self._is_sqlite = is_sqlite(url)
        self._dialect = Dialect(is_sqlite=self._is_sqlite)
        self._engine: Engine | None = None
        self._connection: Connection | None = None
        self._warnings: list[str] = []
        """Of the server, since the last COMMIT was sent."""
        self._must_write = False
        """Whether what the database shows may be lost in a failover, until the next COMMIT has waited."""
        self.several_hosts = "," in str(url.query.get("host", ""))
        self.asynchronous = False
        """Whether PostgreSQL waits for no standby, as it was when it was opened."""

    def open(self, create: bool) -> None:
        """Connect; create the table if told to. Raises ClusterError when it is missing, MetadataUnavailable."""
        self._engine = make_engine(self._url)
        try:
            connection = self._connect()
            if create:
                with connection.begin():
                    create_table(connection)
            with connection.begin():
                found = has_table(connection)
                if not self._is_sqlite:
                    self._look_at_standbys(connection)
        except SQLAlchemyError as error:
            self._discard()
            raise self._failure(error, committing=False) from error
        if not found:
            self.close()
            raise ClusterError(
                f"{shown_url(self._url)} holds no cluster's metadata: restore the metadata store "
                "from a backup with `magnetar metadata restore`, or choose an empty --data-dir"
            )

    def close(self) -> None:
        """Let go of the connection."""
        self._discard()
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    def execute(self, operations: list[Operation]) -> list[object]:
        """One transaction; one outcome for each operation (a result or an error).

        Raises NotReached when PostgreSQL is away, and the same group may be tried again.
        """
        for attempt in range(1, TRIES_MAX + 1):
            committing = False
            try:
                connection = self._connect()
                transaction = connection.begin()
                outcomes = Transaction(connection, self._dialect).run(operations)
                if self._must_write:
                    connection.exec_driver_sql(self._dialect.insert_if_absent, (FLOOR_KEY, b"", 0))
                    connection.exec_driver_sql(self._dialect.touch, (FLOOR_KEY,))
                committing = True
                self._warnings.clear()
                transaction.commit()
                self._must_write = bool(self._warnings)
                if self._warnings:
                    return _all_unknown(operations, OutcomeUnknown(f"a commit was not replicated: {self._warnings[0]}"))
                return outcomes
            except SQLAlchemyError as error:
                self._discard()
                if not committing and attempt < TRIES_MAX and _is_worth_another_try(error):
                    continue
                failure = self._failure(error, committing=committing)
                if isinstance(failure, MetadataUnavailable) and not self._is_sqlite:
                    raise NotReached(failure) from error
                logger.warning("a metadata transaction failed: %s", failure)
                return _all_unknown(operations, failure)
            except BaseException:
                self._discard()  # else the transaction, and its locks, would stay open
                raise
        raise AssertionError("unreachable: the last try returns")

    # -- the connection ------------------------------------------------------------------------------------------

    def _connect(self) -> Connection:
        if self._engine is None:
            raise MetadataUnavailable("the metadata store is closed")
        if self._connection is None:
            connection = self._connection = self._engine.connect()
            if not self._is_sqlite:
                driver = cast("psycopg.Connection[object]", connection.connection.dbapi_connection)
                driver.add_notice_handler(self._notice)
                self._must_write = True
        return self._connection

    def _notice(self, diagnostic: "psycopg.errors.Diagnostic") -> None:
        if diagnostic.severity_nonlocalized == "WARNING":
            self._warnings.append(diagnostic.message_primary or "a warning without a text")

    def _look_at_standbys(self, connection: Connection) -> None:
        row = connection.exec_driver_sql(_STANDBYS).one()
        synchronous, standbys, fsync = str(row[0]), int(row[1]), str(row[2])
        self.asynchronous = not synchronous.strip()
        if self.asynchronous and standbys:
            logger.warning(
                "PostgreSQL has %d standbys, and none is synchronous: a failover may lose acknowledged changes of the "
                "metadata. Set synchronous_standby_names",
                standbys,
            )
        if fsync != "on":
            logger.warning("PostgreSQL runs with fsync=%s: a power failure may destroy the metadata", fsync)

    def _discard(self) -> None:
        """Close the connection, which rolls back; whatever is wrong with it, it is not used again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except SQLAlchemyError as error:
                logger.debug("a broken connection to the metadata database could not be closed: %s", error)

    def _failure(self, error: SQLAlchemyError, *, committing: bool) -> MagnetarError:
        """What an error that ended a transaction means to callers."""
        text = " ".join(str(getattr(error, "orig", None) or error).split())
        if self._is_sqlite and "full" in text:
            return DiskFull(f"the disk of the metadata store is full: {text}")  # SQLite has rolled back
        if committing:
            return OutcomeUnknown(f"the metadata store failed during a commit: {text}")
        if self._is_sqlite and ("I/O" in text or "malformed" in text or "readonly" in text):
            return StorageFailed(f"the metadata store cannot be written: {text}")
        if isinstance(error, DBAPIError) and (error.connection_invalidated or _is_operational(error)):
            return MetadataUnavailable(f"the metadata store cannot be reached: {text}")
        return MetadataError(f"the metadata store refused the operation: {text}")


def _all_unknown(operations: Sequence[Operation], failure: MagnetarError) -> list[object]:
    """Of a transaction that failed. Reads in front of an unknown outcome saw nothing that is known to be true."""
    unavailable = MetadataUnavailable(failure.message)
    return [
        unavailable if isinstance(failure, OutcomeUnknown) and isinstance(operation, Get | List) else failure
        for operation in operations
    ]


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


def _begin_deferred(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")  # the first read chooses the moment
