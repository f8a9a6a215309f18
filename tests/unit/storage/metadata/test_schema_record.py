"""The record of a topic's schemas, and bytes that are none."""

import pytest

from magnetar.protocol.errors import MetadataError
from magnetar.storage.metadata.schema_record import SchemaRecord, StoredSchema
from magnetar.storage.metadata.store import pack

STORED = StoredSchema(3, 4, b"definition", b"mark", 7, {"a": "b"})


def test_a_record_is_read_as_it_was_written() -> None:
    record = SchemaRecord((STORED,))
    assert SchemaRecord.unpack(record.pack()) == record and record.next_version == 4


@pytest.mark.parametrize(
    "version",
    [
        [1e300, 4, b"", b"", 7, {}, False],
        ["3", 4, b"", b"", 7, {}, False],
        [3, 4, 1 << 40, b"", 7, {}, False],
        [-1, 4, b"", b"", 7, {}, False],
        [3, 4, b"", b"", 7, [], False],
        [3, 4, b""],
    ],
)
def test_a_record_with_a_wrong_version_is_refused(version: list[object]) -> None:
    with pytest.raises(MetadataError):
        SchemaRecord.unpack(pack({"versions": [version]}))
