"""The metadata record of a topic's schema: where each version is stored.

As in Pulsar, a version is an entry of a ledger. One record per topic lists all versions with the hash of each. So a
schema that was registered before is found without reading ledgers. A ledger that the record lists is kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from ...protocol.errors import MetadataError, ProtocolError
from .store import pack, unpack


class SchemaVersion(NamedTuple):
    """One version: its number, the entry that holds it, and the hash of its definition."""

    version: int
    ledger_id: int
    entry_id: int
    hash: bytes


@dataclass(frozen=True)
class SchemaRecord:
    """See the module. Versions in ascending order."""

    versions: tuple[SchemaVersion, ...] = ()

    def __post_init__(self) -> None:
        numbers = [one.version for one in self.versions]
        if numbers != sorted(dict.fromkeys(numbers)):
            raise MetadataError(f"the versions of a schema are out of order: {numbers}")
        for version, ledger_id, entry_id, _ in self.versions:
            if min(version, ledger_id, entry_id) < 0:
                raise MetadataError(f"version {version} of a schema cannot be stored at {ledger_id}:{entry_id}")

    @property
    def ledger_ids(self) -> tuple[int, ...]:
        """The ledgers that hold the versions, each once."""
        return tuple(dict.fromkeys(one.ledger_id for one in self.versions))

    def pack(self) -> bytes:
        """The record as it is stored."""
        return pack({"versions": [list(one) for one in self.versions]})

    @staticmethod
    def unpack(value: bytes) -> "SchemaRecord":
        """The inverse of `pack`. Raises MetadataError for anything else."""
        try:
            record = cast("Mapping[str, Any]", unpack(value))
            return SchemaRecord(
                tuple(
                    # bytes() of a number would be as many zeros
                    SchemaVersion(int(version), int(ledger_id), int(entry_id), memoryview(digest).tobytes())
                    for version, ledger_id, entry_id, digest in record["versions"]
                )
            )
        except (KeyError, TypeError, ValueError, OverflowError, ProtocolError) as error:
            raise MetadataError(f"the record of a schema cannot be decoded: {error!r}") from error
