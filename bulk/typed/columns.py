"""The columns that all rows of bulk reads may have, and what a decoder of payloads is told of rows."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyarrow brings no types.

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from ...protocol.message_id import Position

SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("__key", pa.string()),
        ("__topic", pa.string()),
        ("__partition", pa.int32()),
        ("__messageId", pa.binary()),
        ("__publishTime", pa.timestamp("us", tz="UTC")),
        ("__eventTime", pa.timestamp("us", tz="UTC")),
        ("__messageProperties", pa.map_(pa.string(), pa.string())),
        ("__producerName", pa.string()),
        ("__sequenceId", pa.int64()),
    ]
)

VALUE, MESSAGE_KEY = "value", "__key"
COLUMNS: tuple[str, ...] = tuple(SCHEMA.names)
METADATA_COLUMNS = tuple(name for name in COLUMNS if name != VALUE)

VALUE_PADDING = bytes(16)
"""Behind the last payload: what decodes payloads may look at a whole word that begins at their last byte."""


class EntryRows(NamedTuple):
    """What a record batch was decoded from, an item for each entry."""

    counts: Sequence[int]
    """How many rows each has."""
    positions: Sequence[Position]
    schema_versions: Sequence[bytes]
    """As the entries' metadata have them; empty for an entry without."""
