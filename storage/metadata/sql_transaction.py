"""One group of metadata operations as one SQL transaction: what it reads first, what each operation then does, what it
writes at the end.

A statement for each record of each operation would cost more than the database's own work. So the group reads the
versions of all records that it is about to change or to compare with few statements. It executes its operations in
their order on what it read. Then it writes the outcome with one statement for all deleted records, and one for all new
or changed ones. Later operations of a group see what earlier ones changed.

That is exact, because what was read cannot change until the transaction ends. SQLite has one writer at a time. On
PostgreSQL the records that are to be changed are locked, as are (shared) those that are compared. A group that creates
or deletes records holds the lock of the *floor* from the first statement on. So no record is created between the read
and the write.

The versions of new records start at the floor. It is the version of a row with the empty key, which no caller can ask
for. Each deletion raises it above the version that it deleted.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple, cast

from sqlalchemy.engine import Connection

from ...protocol.errors import BadVersion, KeyExists, MagnetarError, MetadataError, ProtocolError, StaleEpoch
from .store import (
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

TABLE = "magnetar_metadata"
FLOOR_KEY = ""
KEYS_PER_STATEMENT = 512
ROWS_PER_STATEMENT = 256
STATEMENT_SIZE_BYTES = 8 << 20


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


class Dialect:
    """The statements of one backend."""

    def __init__(self, *, is_sqlite: bool) -> None:
        self._mark = mark = "?" if is_sqlite else "%s"
        self.for_update = "" if is_sqlite else " FOR UPDATE"
        self.for_share = "" if is_sqlite else " FOR SHARE"
        self.needs_floor_row = not is_sqlite
        self.insert_if_absent = f"{self._insert(1)} NOTHING"
        self.touch = f'UPDATE {TABLE} SET version = version WHERE "key" = {mark}'
        self._versions = f'SELECT "key", version FROM {TABLE} WHERE "key" IN '
        self._rows = f'SELECT "key", version, value FROM {TABLE} WHERE "key" IN '
        page = f'ORDER BY "key" LIMIT {mark}'
        self.page = f'SELECT "key", value, version FROM {TABLE} WHERE "key" >= {mark} AND "key" < {mark} {page}'
        self.last_page = f'SELECT "key", value, version FROM {TABLE} WHERE "key" >= {mark} {page}'

    def _insert(self, rows: int) -> str:
        row = f"({self._mark}, {self._mark}, {self._mark})"
        values = ", ".join([row] * rows)
        return f'INSERT INTO {TABLE} ("key", value, version) VALUES {values} ON CONFLICT ("key") DO'

    def upsert(self, rows: int) -> str:
        """Create or replace so many records."""
        return f"{self._insert(rows)} UPDATE SET value = excluded.value, version = excluded.version"

    def delete(self, marks: int) -> str:
        """Delete the records with one of so many keys."""
        return f'DELETE FROM {TABLE} WHERE "key" IN ({", ".join([self._mark] * marks)})'

    def select(self, marks: int, *, values: bool, lock: str) -> str:
        """The records with one of so many keys, in the order of keys, so that locks are taken in that order."""
        start = self._rows if values else self._versions
        return f'{start}({", ".join([self._mark] * marks)}) ORDER BY "key"{lock}'


class Transaction:
    """See the module. Call `run` once, between the begin and the commit of the connection's owner."""

    def __init__(self, connection: Connection, dialect: Dialect) -> None:
        self._connection = connection
        self._dialect = dialect
        self._versions: dict[str, int] = {}
        """Records that are there, as far as they were read or written here."""
        self._values: dict[str, bytes] = {}
        self._floor = 0
        self._changed: dict[str, None] = {}

    def run(self, operations: Sequence[Operation]) -> list[object]:
        """Carry out a group; one outcome for each operation (a result or an error)."""
        self._read_first(operations)
        outcomes = [self._carry_out(operation) for operation in operations]
        self._write_changes()
        return outcomes

    # -- what is read first ------------------------------------------------------------------------------------------

    def _read_first(self, operations: Sequence[Operation]) -> None:
        read: dict[str, None] = {}
        counters: dict[str, None] = {}
        written: dict[str, None] = {}
        compared: dict[str, None] = {}
        needs_floor = False
        for operation in operations:
            if isinstance(operation, Get):
                read.update(dict.fromkeys(operation.keys))
                continue
            if isinstance(operation, List):
                continue
            if operation.guard is not None:
                compared[operation.guard.key] = None
            if isinstance(operation, Allocate):
                counters[operation.key] = None
                needs_floor = True
                continue
            for write in operation.writes:
                written[write.key] = None
                compared.update((one.key, None) for one in write.conditions)
                needs_floor = needs_floor or write.value is None or write.expected_version is None
        if needs_floor:
            self._lock_floor()
        self._read(written, values=False, lock=self._dialect.for_update)
        self._read(counters, values=True, lock=self._dialect.for_update)
        self._read([key for key in compared if key not in written], values=False, lock=self._dialect.for_share)
        self._read(read, values=True, lock="")

    def _read(self, keys: Iterable[str], *, values: bool, lock: str) -> None:
        wanted = sorted(keys)
        for first in range(0, len(wanted), KEYS_PER_STATEMENT):
            some = wanted[first : first + KEYS_PER_STATEMENT]
            marks = 1 << (len(some) - 1).bit_length()  # few different statements, which drivers prepare once
            some += some[-1:] * (marks - len(some))
            statement = self._dialect.select(marks, values=values, lock=lock)
            for row in self._connection.exec_driver_sql(statement, tuple(some)):
                self._versions[row[0]] = row[1]
                if values:
                    self._values[row[0]] = bytes(row[2])

    def _lock_floor(self) -> None:
        self._read((FLOOR_KEY,), values=False, lock=self._dialect.for_update)
        if FLOOR_KEY not in self._versions and self._dialect.needs_floor_row:
            self._connection.exec_driver_sql(self._dialect.insert_if_absent, (FLOOR_KEY, b"", 0))
            self._read((FLOOR_KEY,), values=False, lock=self._dialect.for_update)
        self._floor = self._versions.pop(FLOOR_KEY, 0)

    # -- operations --------------------------------------------------------------------------------------------------

    def _carry_out(self, operation: Operation) -> object:
        if isinstance(operation, Get):
            return [self._record(key) for key in operation.keys]
        if isinstance(operation, List):
            return self._list(operation)
        guard = operation.guard
        if guard is not None and not self._holds(guard):
            return StaleEpoch(f"{guard.key} is no longer at version {guard.version}: this writer was superseded")
        if isinstance(operation, WriteMany):
            return [self._write(write) for write in operation.writes]
        return self._allocate(operation)

    def _record(self, key: str) -> Versioned | None:
        version = self._versions.get(key)
        return None if version is None else Versioned(self._values[key], version)

    def _list(self, operation: List) -> list[tuple[str, Versioned]]:
        prefix, after, limit = operation
        if any(key.startswith(prefix) for key in self._changed):
            self._write_changes()
        # The least string behind `after` is `after` with the least character, which no key contains, appended.
        first = after + "\x01" if after >= prefix else prefix
        end = first_key_after_prefix(prefix)
        if end is None:
            rows = self._connection.exec_driver_sql(self._dialect.last_page, (first, limit))
        else:
            rows = self._connection.exec_driver_sql(self._dialect.page, (first, end, limit))
        return [(key, Versioned(bytes(value), version)) for key, value, version in rows]

    def _holds(self, guard: Guard) -> bool:
        return self._versions.get(guard.key) == guard.version

    def _write(self, write: Write) -> WriteResult:
        key, value = write.key, write.value
        version = self._versions.get(key)
        refusal = _refusal(write, version)
        if refusal is not None:
            return refusal
        for condition in write.conditions:
            if not self._holds(condition):
                return condition_failed(key, condition)
        if value is not None:
            return self._store(key, bytes(value), self._floor if version is None else version + 1)
        deleted = cast(int, version)
        del self._versions[key]
        self._values.pop(key, None)
        self._changed[key] = None
        if deleted >= self._floor:
            self._floor = deleted + 1
            self._changed[FLOOR_KEY] = None
        return deleted

    def _store(self, key: str, value: bytes, version: int) -> int:
        self._versions[key] = version
        self._values[key] = value
        self._changed[key] = None
        return version

    def _allocate(self, operation: Allocate) -> int | MetadataError:
        key, count, _ = operation
        record = self._record(key)
        try:
            first = int(unpack(record.value)["next"]) if record is not None else 1
        except (KeyError, TypeError, ValueError, OverflowError, ProtocolError) as error:
            return MetadataError(f"the counter {key} cannot be decoded: {error!r}")  # of this operation alone
        self._store(key, pack({"next": first + count}), self._floor if record is None else record.version + 1)
        return first

    # -- the end -----------------------------------------------------------------------------------------------------

    def _write_changes(self) -> None:
        changed, self._changed = self._changed, {}
        upserts: list[tuple[str, bytes, int]] = []
        deletions: list[str] = []
        for key in changed:
            version = self._versions.get(key)
            if key == FLOOR_KEY:
                upserts.append((FLOOR_KEY, b"", self._floor))
            elif version is None:
                deletions.append(key)
            else:
                upserts.append((key, self._values[key], version))
        # Never a list of rows for one statement: psycopg pipelines that. The last message of a pipeline switches off
        # the time-out that ends the transaction of a paused coordinator.
        for first in range(0, len(deletions), KEYS_PER_STATEMENT):
            some = deletions[first : first + KEYS_PER_STATEMENT]
            self._connection.exec_driver_sql(self._dialect.delete(len(some)), tuple(some))
        for rows in _in_statements(upserts):
            self._connection.exec_driver_sql(self._dialect.upsert(len(rows)), tuple(chain.from_iterable(rows)))


def _in_statements(rows: list[tuple[str, bytes, int]]) -> Iterator[list[tuple[str, bytes, int]]]:
    """Rows for one statement each: not too many, and not too many bytes."""
    some: list[tuple[str, bytes, int]] = []
    size = 0
    for row in rows:
        size += len(row[1])
        if some and (len(some) >= ROWS_PER_STATEMENT or size > STATEMENT_SIZE_BYTES):
            yield some
            some, size = [], len(row[1])
        some.append(row)
    if some:
        yield some


def _refusal(write: Write, version: int | None) -> MagnetarError | None:
    """What the record itself, at `version` or not there, says against a write."""
    key, value, expected = write.key, write.value, write.expected_version
    if value is not None and expected is None:
        return None if version is None else KeyExists(f"the metadata record {key} already exists", key=key)
    if version is None:
        return no_such_key(key)
    if expected is None or expected == version:
        return None
    return BadVersion(
        f"the metadata record {key} is at version {version}, not {expected}",
        key=key,
        version=version,
        expected_version=expected,
    )
