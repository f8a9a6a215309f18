"""The table of record kinds: for each prefix of `keys`, how its records are read and which ledgers they name.

A ledger that no record names is deleted after a while (see `actors.auditor.orphans`). The search for such ledgers walks
this table. A kind of record that is missing from it would lose its ledgers. So each prefix of `keys` has an entry, and
a kind that names no ledgers says so with `NAMES_NO_LEDGERS`. Unit tests compare the table with `keys` and with the
records that brokers may write.

`METADATA_KINDS` are the kinds whose codecs stand in this sub-room. A sub-room above declares its kinds beside their
codecs, and `actors.auditor.orphans` puts all of them together.
"""

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from ...protocol.errors import MetadataError, ProtocolError
from . import keys
from .ledger_metadata import LedgerMetadata
from .schema_record import SchemaRecord
from .slot_rows import decode_page
from .store import unpack

Kept = TypeVar("Kept")


class NamesNoLedgers(enum.Enum):
    NAMES_NO_LEDGERS = enum.auto()


NAMES_NO_LEDGERS = NamesNoLedgers.NAMES_NO_LEDGERS
"""Records of this kind keep no ledger from being deleted."""


@dataclass(frozen=True)
class RecordKind(Generic[Kept]):
    """One kind of record.

    `prefix` is the beginning of its keys, or the whole key where there is one record only. `decode` reads a record and
    raises MetadataError for anything else. `ledgers_of` gives the ledgers that a record keeps. `brokers_write` says
    that brokers write such records. The coordinator writes all others, except a bookie's own cookie.
    """

    prefix: str
    decode: Callable[[bytes], Kept]
    ledgers_of: Callable[[Kept], Iterable[int]] | NamesNoLedgers
    brokers_write: bool = False

    @property
    def names_ledgers(self) -> bool:
        """Whether records of this kind keep ledgers."""
        return self.ledgers_of is not NAMES_NO_LEDGERS

    def ledgers_named_by(self, key: str, value: bytes) -> Iterable[int]:
        """The ledgers that one record keeps. Raises MetadataError, with the key, for a record that cannot be read."""
        if isinstance(self.ledgers_of, NamesNoLedgers):
            return ()
        try:
            return self.ledgers_of(self.decode(value))
        except MetadataError as error:
            raise MetadataError(f"the metadata record {key} cannot be decoded: {error}", key=key) from error


def decode_map(value: bytes) -> Mapping[str, Any]:
    """A record without a codec of its own: a map by name. Raises MetadataError for anything else."""
    try:
        record = unpack(value)
    except ProtocolError as error:
        raise MetadataError(f"a metadata record cannot be decoded: {error}") from error
    if not isinstance(record, Mapping):
        raise MetadataError(f"a metadata record must be a map, not {type(record).__name__}")
    return cast("Mapping[str, Any]", record)


METADATA_KINDS: tuple[RecordKind[Any], ...] = (
    RecordKind(keys.CLUSTER, decode_map, NAMES_NO_LEDGERS),
    RecordKind(keys.COORDINATOR_EPOCH, decode_map, NAMES_NO_LEDGERS),
    RecordKind(keys.COORDINATOR_LEASE, decode_map, NAMES_NO_LEDGERS),
    RecordKind(keys.RESTORED_LEDGERS, decode_map, NAMES_NO_LEDGERS),  # ids that are not given out again
    RecordKind(keys.RESTORED_FROM, decode_map, NAMES_NO_LEDGERS),
    RecordKind(keys.MOVED_TO, decode_map, NAMES_NO_LEDGERS),
    RecordKind(keys.MOVED_FROM, decode_map, NAMES_NO_LEDGERS),
    RecordKind(keys.MOVED_PROBE, decode_map, NAMES_NO_LEDGERS),
    RecordKind(keys.COUNTERS_PREFIX, decode_map, NAMES_NO_LEDGERS, brokers_write=True),
    RecordKind(keys.BOOKIES_PREFIX, decode_map, NAMES_NO_LEDGERS),
    RecordKind(keys.LEDGERS_PREFIX, LedgerMetadata.unpack, NAMES_NO_LEDGERS, brokers_write=True),  # it is the ledger
    RecordKind(keys.TOPICS_PREFIX, decode_map, NAMES_NO_LEDGERS),
    RecordKind(keys.ASSIGNMENTS_PREFIX, decode_map, NAMES_NO_LEDGERS),
    RecordKind(keys.SLOTS_PREFIX, decode_page, NAMES_NO_LEDGERS),
    RecordKind(keys.TENANTS_PREFIX, decode_map, NAMES_NO_LEDGERS),
    RecordKind(keys.NAMESPACES_PREFIX, decode_map, NAMES_NO_LEDGERS),
    RecordKind(keys.TOPIC_POLICIES_PREFIX, decode_map, NAMES_NO_LEDGERS),
    RecordKind(keys.SCHEMAS_PREFIX, SchemaRecord.unpack, NAMES_NO_LEDGERS, brokers_write=True),
)
