"""The bookies that have a cookie in the metadata store: alive or not, they may hold copies."""

from ...protocol.errors import MetadataError
from ...protocol.plain_values import is_text_map
from . import keys as metadata_keys
from .store import MetadataStore, list_all, unpack


async def registered_bookies(store: MetadataStore) -> dict[str, bytes]:
    """The cookie of each bookie, packed, by its id, in the order of the ids. Raises MetadataUnavailable."""
    records = await list_all(store, metadata_keys.BOOKIES_PREFIX)
    return {metadata_keys.bookie_id_of(key): record.value for key, record in records}


async def registered_instances(store: MetadataStore) -> dict[str, str]:
    """The life of the disk in each cookie, by bookie. Raises MetadataUnavailable, MetadataError."""
    found: dict[str, str] = {}
    for bookie, value in (await registered_bookies(store)).items():
        cookie = unpack(value)
        if not is_text_map(cookie):
            raise MetadataError(f"the cookie of {bookie} in the metadata is no map")
        found[bookie] = str(cookie.get("instance", ""))
    return found
