"""Holds back the auditor's long reads: the walk through all ledgers, and the search for ledgers that no record names.

Both read all records of a kind, page by page. After each page the reader waits until the rate allows more. All readers
share one rate, `RECORDS_PER_S_MAX`. So the coordinator's loop and its metadata have time for others between two pages.
"""

import asyncio

RECORDS_PER_S_MAX = 2000


class ReadPace:
    """See the module."""

    def __init__(self) -> None:
        self._free_at = 0.0

    async def keep(self, records: int) -> None:
        """Wait as long as `records`, which were read just now, and those that others read, have to take."""
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now) + records / RECORDS_PER_S_MAX
        await asyncio.sleep(self._free_at - now)
