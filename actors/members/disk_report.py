"""How full a disk is, for `status`."""

import logging

from ...protocol.cluster_status import DiskReport
from ...protocol.errors import DiskFull
from ...runtime.environment import Environment

logger = logging.getLogger(__name__)


async def disk_report(env: Environment, directory: str) -> DiskReport:
    """`used`, `total` and `free` bytes of the disk that holds a directory; empty when there is none to look at."""
    if not directory:
        return {}
    try:
        usage = await env.offload.run(env.files.disk_usage, directory)
    except (OSError, DiskFull) as error:
        logger.debug("the disk usage of %s cannot be read: %s", directory, error)
        return {}
    return {"used": usage.used_bytes, "total": usage.total_bytes, "free": usage.free_bytes}
