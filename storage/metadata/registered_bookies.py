"""The bookies that have a cookie in the metadata store: alive or not, they may hold copies."""

from . import keys as metadata_keys
from .store import MetadataStore, list_all


async def registered_bookies(store: MetadataStore) -> dict[str, bytes]:
    """The cookie of each bookie, packed, by its id, in the order of the ids. Raises MetadataUnavailable."""
    records = await list_all(store, metadata_keys.BOOKIES_PREFIX)
    return {metadata_keys.bookie_id_of(key): record.value for key, record in records}
