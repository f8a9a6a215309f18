"""The blocking half of the SQL metadata store: one connection, groups of operations as transactions.

Everything here runs on the store's own thread. `Database.execute` executes a group in one transaction (see
`metadata.sql_transaction`). It returns one outcome per operation: its result, or the error of this operation alone. An
error that ended the whole transaction is mapped by `_failure`, which knows whether COMMIT had been sent.
"""

import logging
from typing import Any

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
from .sql_transaction import TABLE, Dialect, Get, List, Operation, Transaction

logger = logging.getLogger(__name__)

TRIES_MAX = 3
"""Tries of a group whose transaction certainly did not happen: the server was restarted, or chose it in a deadlock."""

CONNECT_TIMEOUT_S = 5
STATEMENT_TIMEOUT_MS = 10_000

_KEY = Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")  # ordered by code point, as Python does
_TABLE = Table(
    TABLE,
    MetaData(),
    Column("key", _KEY, primary_key=True),
    Column("value", LargeBinary, nullable=False),
    Column("version", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)


class Database:
    """One connection to one database, made when needed and again after it broke."""

    def __init__(self, url: URL) -> None:
        self._url = url
        self._is_sqlite = url.get_backend_name() == "sqlite"
        self._dialect = Dialect(is_sqlite=self._is_sqlite)
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
                f"{self._url.render_as_string()} holds no cluster's metadata: create a cluster with `magnetar start`"
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
                outcomes = Transaction(connection, self._dialect).run(operations)
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
