"""A metadata store in memory. In the simulator it stands for the database.

The records live in a `MemoryRecords` object that outlives the store, so that a coordinator which crashed finds them
again. Every call runs to its end without awaiting: it happens at one moment.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence

from magnetar.protocol.errors import (
    BadVersion,
    KeyExists,
    MetadataError,
    MetadataUnavailable,
    ProtocolError,
    StaleEpoch,
)
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.store import (
    Guard,
    MetadataStore,
    Versioned,
    Write,
    WriteResult,
    check_key,
    check_limit,
    check_write,
    condition_failed,
    no_such_key,
    pack,
    unpack,
)


class MemoryRecords:
    """The records of one database in memory. `keys` are those of `by_key`, sorted; new records start at `floor`."""

    def __init__(self) -> None:
        self.by_key: dict[str, Versioned] = {}
        self.keys: list[str] = []
        self.floor = 0

    def store(self, key: str, record: Versioned) -> None:
        """Create or replace."""
        if key not in self.by_key:
            insort(self.keys, key)
        self.by_key[key] = record

    def remove(self, key: str) -> None:
        """Delete a record that is there."""
        self.floor = max(self.floor, self.by_key.pop(key).version + 1)
        del self.keys[bisect_left(self.keys, key)]


class MemoryMetadataStore(MetadataStore):
    """A `MetadataStore` over `records` (new ones when None). Several stores may share them."""

    def __init__(self, records: MemoryRecords | None = None) -> None:
        self.records = records if records is not None else MemoryRecords()
        self._closed = False

    async def get(self, key: str) -> Versioned | None:
        self._check_open()
        return self.records.by_key.get(key)

    async def get_many(self, keys: Sequence[str]) -> list[Versioned | None]:
        self._check_open()
        return [self.records.by_key.get(key) for key in keys]

    async def write_many(self, writes: Sequence[Write], guard: Guard | None = None) -> list[WriteResult]:
        self._check_open()
        for write in writes:
            check_write(write)
        self._check_guard(guard)
        return [self._write(write) for write in writes]

    async def allocate(self, counter: str, count: int, guard: Guard | None = None) -> int:
        self._check_open()
        if count < 1:
            raise MetadataError(f"cannot allocate {count} numbers")
        self._check_guard(guard)
        key = metadata_keys.counter(counter)
        check_key(key)
        record = self.records.by_key.get(key)
        try:
            first = int(unpack(record.value)["next"]) if record else 1
        except (KeyError, TypeError, ValueError, OverflowError, ProtocolError) as error:
            raise MetadataError(f"the counter {key} cannot be decoded: {error!r}") from error
        version = record.version + 1 if record else self.records.floor
        self.records.store(key, Versioned(pack({"next": first + count}), version))
        return first

    async def close(self) -> None:
        self._closed = True

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[tuple[str, Versioned]]:
        self._check_open()
        keys = self.records.keys
        first = bisect_right(keys, after) if after >= prefix else bisect_left(keys, prefix)
        found = [(key, self.records.by_key[key]) for key in keys[first : first + check_limit(limit)]]
        return [(key, record) for key, record in found if key.startswith(prefix)]

    def _check_open(self) -> None:
        if self._closed:
            raise MetadataUnavailable("the metadata store is closed")

    def _check_guard(self, guard: Guard | None) -> None:
        if guard is not None and not self._holds(guard):
            raise StaleEpoch(f"{guard.key} is no longer at version {guard.version}: this writer was superseded")

    def _holds(self, guard: Guard) -> bool:
        record = self.records.by_key.get(guard.key)
        return record is not None and record.version == guard.version

    def _write(self, write: Write) -> WriteResult:
        records = self.records
        key, value, expected = write.key, write.value, write.expected_version
        missing = next((one for one in write.conditions if not self._holds(one)), None)
        current = records.by_key.get(key)
        if value is None:
            if current is None:
                return no_such_key(key)
            if expected is not None and current.version != expected:
                return _bad_version(key, current.version, expected)
            if missing is not None:
                return condition_failed(key, missing)
            records.remove(key)
            return current.version
        if expected is None:
            if current is not None:
                return KeyExists(f"the metadata record {key} already exists", key=key)
            if missing is not None:
                return condition_failed(key, missing)
            records.store(key, Versioned(bytes(value), records.floor))
            return records.floor
        if current is None:
            return no_such_key(key)
        if current.version != expected:
            return _bad_version(key, current.version, expected)
        if missing is not None:
            return condition_failed(key, missing)
        records.store(key, Versioned(bytes(value), expected + 1))
        return expected + 1


def _bad_version(key: str, version: int, expected: int) -> BadVersion:
    return BadVersion(
        f"the metadata record {key} is at version {version}, not {expected}",
        key=key,
        version=version,
        expected_version=expected,
    )
