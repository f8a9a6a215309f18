"""All kinds of metadata records, from every sub-room that declares some."""

from typing import Any

from ...storage.managed.cursor_record import CURSOR_RECORDS
from ...storage.managed.pins import PIN_RECORDS
from ...storage.managed.record import CHAIN_RECORDS
from ...storage.metadata.record_kinds import METADATA_KINDS, RecordKind
from ...storage.metadata.stored_settings import SETTINGS_RECORDS
from ..desired.record import DESIRED_RECORDS

RECORD_KINDS: tuple[RecordKind[Any], ...] = (
    CHAIN_RECORDS,
    CURSOR_RECORDS,
    PIN_RECORDS,
    DESIRED_RECORDS,
    SETTINGS_RECORDS,
    *METADATA_KINDS,
)
"""Each prefix of `storage.metadata.keys` once."""
