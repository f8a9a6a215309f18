"""The metadata store: small versioned records, every change a compare-and-set.

What it guarantees, whatever lies beneath (memory, SQLite, PostgreSQL, or the coordinator over RPC):

- A record is bytes and a version, one more with each update. Every write names the version it replaces, so of two
  writers with the same knowledge exactly one wins, and the other gets BadVersion.
- A key never has the same version twice, not even when its record is deleted and created again. New records start at
  the store's *floor*, a durable number that each deletion raises above the version it deleted. So a writer that was
  paused during a deletion cannot mistake the new record for the one it knew. (0 in a store where nothing was deleted;
  nobody may rely on it.)
- A write that returned is durable (memory: as durable as the process).
- `allocate` gives out each number of a counter at most once, ever; a crash burns what was not used.
- A write that raised OutcomeUnknown may have been executed; any other error says that it was not. A caller that gets
  OutcomeUnknown reads the record before it decides.
- Writes may be guarded: they then happen only while another record has a given version, tested in the same transaction.
  The coordinator guards its writes by its epoch, so that one which was superseded during a pause cannot change
  anything.

Keys are those of `storage.metadata.keys`, ordered by code point. What the records mean is their owners' business.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple, Protocol

from ...protocol.errors import ConditionFailed, MagnetarError, MetadataError, NoSuchKey
from ...runtime.rpc.messages import pack as pack
from ...runtime.rpc.messages import unpack as unpack

KEY_SIZE_MAX_BYTES = 2500
"""PostgreSQL refuses to index longer ones (2,704 bytes), so no store takes them."""

VALUE_SIZE_MAX_BYTES = 16 << 20

LIST_LIMIT_MAX = 10_000
"""Records of one `list` at most; callers page with `after`."""


class Versioned(NamedTuple):
    """A record as it was at some moment."""

    value: bytes
    version: int


class Guard(NamedTuple):
    """A condition on another record, tested in the transaction of the writes it guards."""

    key: str
    version: int


class Write(NamedTuple):
    """One change.

    `value` None deletes: `expected_version` None takes whatever version is there. Otherwise None creates (the key must
    not exist) and a number replaces exactly that version. A write that `needs` another record at a version fails with
    ConditionFailed when that record has another version; so does one that `also` needs a second record. An error of the
    key itself goes first.
    """

    key: str
    value: bytes | None
    expected_version: int | None
    needs: Guard | None = None
    also: Guard | None = None

    @property
    def conditions(self) -> tuple[Guard, ...]:
        """On other records."""
        return tuple(one for one in (self.needs, self.also) if one is not None)


WriteResult = int | MagnetarError
"""The new version (for a delete the version that was deleted), or why this one change did not happen."""


class MetadataStore(Protocol):
    """Versioned records under ordered keys. All methods may raise MetadataUnavailable (nothing was executed).

    Stores inherit `put` and `delete`.
    """

    async def get(self, key: str) -> Versioned | None:
        """The record, or None."""
        ...

    async def get_many(self, keys: Sequence[str]) -> list[Versioned | None]:
        """The records of several keys, in their order."""
        ...

    async def put(self, key: str, value: bytes, expected_version: int | None) -> int:
        """Create (None) or replace a record and return its new version.

        Raises KeyExists, BadVersion, NoSuchKey (an update of nothing), OutcomeUnknown.
        """
        return one_result(await self.write_many([Write(key, value, expected_version)]))

    async def delete(self, key: str, expected_version: int | None) -> None:
        """Delete a record, of whatever version when None. Raises NoSuchKey, BadVersion, OutcomeUnknown."""
        one_result(await self.write_many([Write(key, None, expected_version)]))

    async def write_many(self, writes: Sequence[Write], guard: Guard | None = None) -> list[WriteResult]:
        """Carry out independent changes in one transaction; each succeeds or fails on its own.

        Raises StaleEpoch when the guard does not hold (nothing was changed), OutcomeUnknown.
        """
        ...

    async def allocate(self, counter: str, count: int, guard: Guard | None = None) -> int:
        """Reserve `count` consecutive numbers, which are never given out again, and return the first. Numbers start at
        1.

        Raises StaleEpoch when the guard does not hold, OutcomeUnknown (the numbers are then burned: ask again).
        """
        ...

    async def close(self) -> None:
        """Let go of the store. Further calls raise MetadataUnavailable."""
        ...

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[tuple[str, Versioned]]:
        """Up to `limit` records whose key begins with `prefix` and is greater than `after`, ordered by key."""
        ...


async def list_pages(
    store: MetadataStore, prefix: str, *, page: int = 1000
) -> AsyncGenerator[Sequence[tuple[str, Versioned]], None]:
    """Every record below `prefix`, a page at a time. Not one moment's picture."""
    after = ""
    while True:
        records = await store.list(prefix, after=after, limit=page)
        yield records
        if len(records) < page:
            return
        after = records[-1][0]


async def list_all(store: MetadataStore, prefix: str, *, page: int = 1000) -> list[tuple[str, Versioned]]:
    """What `list_pages` gives, as one list; meant for prefixes of bounded size."""
    return [record async for records in list_pages(store, prefix, page=page) for record in records]


def one_result(results: list[WriteResult]) -> int:
    """The result of a single write: its version, or its error raised."""
    (result,) = results
    if isinstance(result, MagnetarError):
        raise result
    return result


def check_write(write: Write) -> None:
    """Raise MetadataError for a key or value that no store takes."""
    check_key(write.key)
    if write.value is not None and len(write.value) > VALUE_SIZE_MAX_BYTES:
        raise MetadataError(
            f"the metadata record {write.key} has {len(write.value)} bytes, which is above the limit of "
            f"{VALUE_SIZE_MAX_BYTES}"
        )


def check_key(key: str) -> None:
    """Raise MetadataError for a key that no store takes: empty, too long, or with characters that UTF-8 lacks."""
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise MetadataError("a metadata key holds a lone surrogate") from None
    if not 0 < size <= KEY_SIZE_MAX_BYTES or "\0" in key:
        raise MetadataError(
            f"a metadata key of {size} bytes is impossible: it must have 1 to {KEY_SIZE_MAX_BYTES} bytes and no NUL"
        )


def check_limit(limit: int) -> int:
    """`limit` brought into the allowed range."""
    return max(1, min(limit, LIST_LIMIT_MAX))


def first_key_after_prefix(prefix: str) -> str | None:
    """The least string greater than every string that begins with `prefix`; None when there is none."""
    for index in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[index])
        if code < 0x10FFFF:
            following = 0xE000 if code == 0xD7FF else code + 1  # UTF-8 has no surrogates
            return prefix[:index] + chr(following)
    return None


def condition_failed(key: str, needs: Guard) -> ConditionFailed:
    """The error for a write whose `needs` does not hold."""
    return ConditionFailed(
        f"{key} was not written: {needs.key} is no longer at version {needs.version}", key=key, needs=needs.key
    )


def no_such_key(key: str) -> NoSuchKey:
    """The error for a record that is not there."""
    return NoSuchKey(f"the metadata record {key} does not exist", key=key)
