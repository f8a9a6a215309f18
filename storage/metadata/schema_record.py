"""The metadata record of a topic's schemas: all versions with their definitions.

Pulsar stores each version as an entry of a ledger. Here the record holds them, for three reasons. One compare-and-set
adds a version, so there is no moment in which a version is listed and not stored, or stored and not listed. No ledger
has to be kept, repaired and trimmed for a few kilobytes. And a broker has what it needs after one read. The price is a
bound: `SIZE_MAX_BYTES`.

A deletion adds a version without definition. What came before it is dropped, since nobody is told of it any longer.
Numbers go on. So a version never gets another meaning as long as the record exists.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from ...protocol.errors import MetadataError, ProtocolError
from .store import pack, unpack

SIZE_MAX_BYTES = 4 << 20
"""Of one record. It travels as a whole with each read, and with each new version."""


@dataclass(frozen=True)
class StoredSchema:
    """One version. `type` is the number of Pulsar's protocol, `mark` the digest by which a definition is known again.
    `deleted` says that the schemas before it were deleted: then there is no definition."""

    version: int
    type: int
    data: bytes
    mark: bytes
    created_ms: int
    properties: Mapping[str, str] = field(default_factory=dict[str, str])
    deleted: bool = False


@dataclass(frozen=True)
class SchemaRecord:
    """See the module. Versions in ascending order."""

    versions: tuple[StoredSchema, ...] = ()

    def __post_init__(self) -> None:
        numbers = [one.version for one in self.versions]
        if numbers != sorted(dict.fromkeys(numbers)) or min(numbers, default=0) < 0:
            raise MetadataError(f"the versions of a schema are out of order: {numbers}")

    @property
    def present(self) -> tuple[StoredSchema, ...]:
        """The versions since the last deletion."""
        return tuple(one for one in self.versions if not one.deleted)

    @property
    def next_version(self) -> int:
        return self.versions[-1].version + 1 if self.versions else 0

    def with_version(self, added: StoredSchema) -> "SchemaRecord":
        """The record with one more version. A deletion drops what is before it."""
        return SchemaRecord((added,) if added.deleted else (*self.versions, added))

    def pack(self) -> bytes:
        """The record as it is stored."""
        return pack(
            {
                "versions": [
                    [one.version, one.type, one.data, one.mark, one.created_ms, dict(one.properties), one.deleted]
                    for one in self.versions
                ]
            }
        )

    @staticmethod
    def unpack(value: bytes) -> "SchemaRecord":
        """The inverse of `pack`. Raises MetadataError for anything else."""
        try:
            record = cast("Mapping[str, Any]", unpack(value))
            return SchemaRecord(tuple(_version(*one) for one in record["versions"]))
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError, ProtocolError) as error:
            raise MetadataError(f"the record of a schema cannot be decoded: {error!r}") from error


def _version(
    version: int, kind: int, data: bytes, mark: bytes, created_ms: int, properties: Mapping[str, str], deleted: bool
) -> StoredSchema:
    for number in (version, kind, created_ms):
        if type(number) is not int:
            raise TypeError(f"a whole number is expected, not {number!r:.40}")
    return StoredSchema(
        version,
        kind,
        memoryview(data).tobytes(),  # bytes() of a number would be as many zeros
        memoryview(mark).tobytes(),
        created_ms,
        {str(name): str(text) for name, text in properties.items()},
        bool(deleted),
    )
