"""The coordinator's lease: a record that it renews all the time, and that its deputy looks at.

The coordinator renews it every RENEWED_EVERY_S, guarded by its epoch like all its writes. The deputy reads it as often.
When LAPSED_READS reads in a row have found the same version, the lease has lapsed, and the deputy takes office.

A read that fails begins the count again: while the database is away, neither of the two can work. So does a pause of
the deputy, since reads are counted and no clock is asked. The database alone decides. So a deputy that is cut off from
the coordinator, while both reach the database, does nothing.

Safety does not depend on it: two that take themselves for the coordinator are told apart by the epoch. A lease that is
found lapsed too soon costs a needless change of coordinators.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from ...protocol.errors import MetadataError
from ...storage.metadata import keys as metadata_keys
from ...storage.metadata.store import MetadataStore, pack

if TYPE_CHECKING:
    from ..coordinator.office import Office

logger = logging.getLogger(__name__)

RENEWED_EVERY_S = 0.5
LAPSED_READS = 4


class LapseWatch:
    """Counts reads that found the same version. Pure."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._unchanged = 0

    def read(self, version: int | None) -> bool:
        """The lease has this version now, None: nobody ever renewed it. Returns whether it has lapsed."""
        self._unchanged = self._unchanged + 1 if version == self._version else 0
        self._version = version
        return self._unchanged >= LAPSED_READS

    def failed(self) -> None:
        """The lease could not be read."""
        self._unchanged = -1  # the next read tells nothing of the time before


async def renew_lease(office: "Office") -> None:
    """Renew the lease for as long as the office is active. What fails is tried again with the next renewal."""
    version: int | None = None
    known = False
    while office.active:
        try:
            if not known:
                found = await office.store.get(metadata_keys.COORDINATOR_LEASE)
                version, known = found.version if found is not None else None, True
            value = pack({"epoch": office.epoch})
            version = await office.store.put(metadata_keys.COORDINATOR_LEASE, value, version)
        except MetadataError as error:
            logger.debug("the lease was not renewed: %s", error)
            known = False
        await asyncio.sleep(RENEWED_EVERY_S)


async def wait_lapsed(store: MetadataStore) -> None:
    """Return when the lease has lapsed. A store that cannot be read is waited for."""
    watch = LapseWatch()
    while True:
        try:
            found = await store.get(metadata_keys.COORDINATOR_LEASE)
        except MetadataError as error:
            logger.debug("the lease could not be read: %s", error)
            watch.failed()
        else:
            if watch.read(found.version if found is not None else None):
                return
        await asyncio.sleep(RENEWED_EVERY_S)
