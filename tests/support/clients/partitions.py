"""Partitioned topics, made over the admin HTTP."""

import json
import urllib.request

from magnetar.cluster.handle import Cluster


def create_partitioned(cluster: Cluster, topic: str, partitions: int) -> None:
    """Create a partitioned topic in public/default."""
    request = urllib.request.Request(
        f"{cluster.admin_url}/admin/v2/persistent/public/default/{topic}/partitions",
        data=json.dumps(partitions).encode(),
        headers={"Content-Type": "application/json"},
        method="PUT",
    )
    with urllib.request.urlopen(request, timeout=20):
        pass
