"""All records of an SQL metadata store at one moment, and an empty store filled with records.

Both are one transaction. A reader sees one state, however long it reads and whatever the coordinator writes meanwhile.
SQLite keeps that state in its log, which grows until the reader ends. In PostgreSQL the transaction is REPEATABLE READ.
A store that is filled has all records or none: a crash in the middle leaves it as empty as it was.

Reading locks nothing, so it works beside a running coordinator. A SQLite store that is filled is locked by its lock
file, as by a coordinator. A PostgreSQL table is locked against every writer.
"""

import os.path
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from ...protocol.errors import ClusterError, MetadataError, MetadataUnavailable
from ...runtime.database_url import parse_url, shown_url
from ...runtime.files import Files
from ..metadata.sql import LOCK_FILE, make_private
from ..metadata.sql_database import create_table, has_table, is_sqlite, make_engine
from ..metadata.sql_transaction import FLOOR_KEY, TABLE
from .backup_file import CountRecords, MetadataRecord

PAGE_RECORDS = 1000


class SqlSnapshot:
    """One moment of a store. Use it as a context manager; the records are those of the moment of entering.

    Raises ClusterError when there is no store, SettingError, MetadataUnavailable.
    """

    def __init__(self, files: Files, url: str) -> None:
        self._url = parse_url(url)
        self.shown_url = shown_url(self._url)
        self.is_sqlite = is_sqlite(self._url)
        if self.is_sqlite and not files.exists(self._url.database or ""):
            raise ClusterError(f"the metadata store {self._url.database} does not exist on this machine")
        self._engine = make_engine(self._url, snapshot=True)
        self._connection: Connection | None = None

    def __enter__(self) -> "SqlSnapshot":
        try:
            connection = self._connection = self._engine.connect()
            connection.begin()
            if not has_table(connection):
                raise ClusterError(f"{self.shown_url} holds no cluster's metadata")
            self.count = self._number(f'SELECT count(*) FROM {TABLE} WHERE "key" <> {self._mark}', (FLOOR_KEY,))
            self.floor = self._number(f'SELECT max(version) FROM {TABLE} WHERE "key" = {self._mark}', (FLOOR_KEY,))
        except SQLAlchemyError as error:
            self.__exit__()
            raise _unavailable(self.shown_url, error) from error
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *unused: object) -> None:
        if self._connection is not None:
            self._connection.close()
        self._engine.dispose()

    @property
    def source(self) -> str:
        """The kind of database."""
        return "sqlite" if self.is_sqlite else "postgresql"

    def get(self, key: str) -> MetadataRecord | None:
        found = list(self._rows(f'WHERE "key" = {self._mark}', (key,)))
        return found[0] if found else None

    def records(self) -> Iterator[MetadataRecord]:
        """All records, ordered by key, a page in memory at a time."""
        after = FLOOR_KEY
        while True:
            page = list(
                self._rows(f'WHERE "key" > {self._mark} ORDER BY "key" LIMIT {self._mark}', (after, PAGE_RECORDS))
            )
            yield from page
            if len(page) < PAGE_RECORDS:
                return
            after = page[-1].key

    @property
    def _mark(self) -> str:
        return "?" if self.is_sqlite else "%s"

    def _number(self, statement: str, arguments: tuple[object, ...]) -> int:
        assert self._connection is not None
        return int(self._connection.exec_driver_sql(statement, arguments).scalar() or 0)

    def _rows(self, condition: str, arguments: tuple[object, ...]) -> Iterator[MetadataRecord]:
        assert self._connection is not None
        try:
            rows = self._connection.exec_driver_sql(f'SELECT "key", version, value FROM {TABLE} {condition}', arguments)
            for key, version, value in rows:
                yield MetadataRecord(key, version, bytes(value))
        except SQLAlchemyError as error:
            raise _unavailable(self.shown_url, error) from error


def records_of_empty_or_known(files: Files, url: str, keys: Iterable[str]) -> tuple[int, Mapping[str, MetadataRecord]]:
    """How many records a store has, and those with the given keys. A store that does not exist has none."""
    parsed = parse_url(url)
    if is_sqlite(parsed) and not files.exists(parsed.database or ""):
        return 0, {}
    try:
        with SqlSnapshot(files, url) as snapshot:
            found = {key: record for key in keys if (record := snapshot.get(key)) is not None}
            return snapshot.count, found
    except ClusterError:
        return 0, {}  # a database without the table


def fill(
    files: Files,
    url: str,
    records: Iterable[MetadataRecord],
    floor: int,
    progress: CountRecords | None = None,
    *,
    replaces: str | None = None,
) -> int:
    """Create the store at `url` if need be, and put the records into it, in one transaction. Returns their number.

    Raises ClusterError if it holds any record, DirectoryLocked, MetadataUnavailable. Nothing was changed then. A store
    that has a record with the key `replaces` is emptied first: such a record says that its contents never counted.
    """
    parsed = parse_url(url)
    if not is_sqlite(parsed):
        return _fill(make_engine(parsed, copies=True), shown_url(parsed), False, records, floor, progress, replaces)
    path = parsed.database or ""
    directory = os.path.dirname(path)
    files.make_directory(directory)
    lock = files.lock(os.path.join(directory, LOCK_FILE))
    try:
        make_private(files, path)
        count = _fill(make_engine(parsed), path, True, records, floor, progress, replaces)
        files.sync_directory(directory)
        return count
    finally:
        lock.release()


def _fill(
    engine: Engine,
    shown: str,
    sqlite: bool,
    records: Iterable[MetadataRecord],
    floor: int,
    progress: CountRecords | None,
    replaces: str | None,
) -> int:
    mark = "?" if sqlite else "%s"
    insert = f'INSERT INTO {TABLE} ("key", value, version) VALUES ({mark}, {mark}, {mark})'
    try:
        with engine.connect() as connection, connection.begin():
            create_table(connection)
            if not sqlite:
                connection.exec_driver_sql(f"LOCK TABLE {TABLE} IN EXCLUSIVE MODE")
            leftover = replaces is not None and _exists(connection, f'"key" = {mark}', (replaces,))
            if not leftover and _exists(connection, f'"key" <> {mark}', (FLOOR_KEY,)):
                raise not_empty(shown)
            connection.exec_driver_sql(f"DELETE FROM {TABLE}")
            connection.exec_driver_sql(insert, (FLOOR_KEY, b"", floor))
            count = 0
            rest = iter(records)
            while page := [(key, value, version) for key, version, value in islice(rest, PAGE_RECORDS)]:
                connection.exec_driver_sql(insert, page)
                count += len(page)
                if progress is not None:
                    progress(count)
        return count
    except SQLAlchemyError as error:
        raise _unavailable(shown, error) from error
    finally:
        engine.dispose()


def not_empty(shown: str) -> ClusterError:
    """The error for a database that was to be filled, and holds records."""
    return ClusterError(f"{shown} holds metadata already: nothing is overwritten. Choose an empty database")


def _exists(connection: Connection, condition: str, arguments: tuple[str]) -> bool:
    return connection.exec_driver_sql(f"SELECT 1 FROM {TABLE} WHERE {condition} LIMIT 1", arguments).first() is not None


def _unavailable(shown: str, error: SQLAlchemyError) -> MetadataError:
    text = " ".join(str(getattr(error, "orig", None) or error).split())
    return MetadataUnavailable(f"the metadata store {shown} failed: {text}")
