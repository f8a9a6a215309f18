"""The metadata record of a cluster's settings: what operators chose, by the settings' outside names.

`magnetar start` reads it, applies what it was given itself, and writes the result. A default is not stored, so a later
release may change it. Names that this release does not know are kept, because a newer release may have written them.
"""

from collections.abc import Mapping
from typing import TypeGuard

from ...protocol.errors import MetadataError, ProtocolError
from ...protocol.plain_values import is_text_map
from . import keys
from .record_kinds import NAMES_NO_LEDGERS, RecordKind
from .store import MetadataStore, pack, unpack

StoredValue = bool | int | float | str


async def read_stored_settings(store: MetadataStore) -> dict[str, StoredValue] | None:
    """What is stored; None in a new cluster, and in one of an older release. Raises MetadataError."""
    record = await store.get(keys.STORED_SETTINGS)
    return None if record is None else unpack_settings(record.value)


async def write_stored_settings(store: MetadataStore, chosen: Mapping[str, StoredValue]) -> None:
    """Replace what is stored. No coordinator runs that could do so meanwhile."""
    record = await store.get(keys.STORED_SETTINGS)
    await store.put(keys.STORED_SETTINGS, pack_settings(chosen), record.version if record is not None else None)


def pack_settings(chosen: Mapping[str, StoredValue]) -> bytes:
    return pack({"settings": dict(chosen)})


def unpack_settings(value: bytes) -> dict[str, StoredValue]:
    """The inverse of `pack_settings`. Raises MetadataError."""
    try:
        record = unpack(value)
    except ProtocolError as error:
        raise MetadataError(f"the stored settings cannot be decoded: {error}") from error
    found = record.get("settings") if is_text_map(record) else None
    given = found if is_text_map(found) else {}
    values = {name: value for name, value in given.items() if _is_value(value)}
    if given is not found or len(values) < len(given):
        raise MetadataError(f"the stored settings are damaged: {record!r:.200}")
    return values


def _is_value(value: object) -> TypeGuard[StoredValue]:
    return isinstance(value, bool | int | float | str)


SETTINGS_RECORDS = RecordKind(keys.STORED_SETTINGS, unpack_settings, NAMES_NO_LEDGERS)
