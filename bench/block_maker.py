"""The actor that puts a topic's rows into Ray's object store, for the row about ready-made blocks.

Ray's workers import this file, and have the path of the benchmarks only.
"""

from typing import Any

import magnetar
from magnetar.bulk.arrow_decoding import encode_block
from magnetar.runtime.ray_calls import put


class BlockMaker:
    """RayDP finds blocks by the process that put them, so it has to live as long as they are wanted."""

    def blocks(self, topic: str, admin_url: str) -> list[Any]:
        """References to the blocks: Arrow IPC streams."""
        return [put(encode_block(batch)) for batch in magnetar.arrow_batches(topic, admin_url=admin_url)]
