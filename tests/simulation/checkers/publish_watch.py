"""How often clients send each entry: whatever stands in a log more often than that was doubled by somebody else."""

from contextlib import ExitStack
from unittest.mock import patch

from magnetar.client.producing.outbox import Batch
from magnetar.client.producing.partition_producer import PartitionProducer

from .history import History


def install(history: History, stack: ExitStack) -> None:
    """Count the frames of all producers until the stack is left."""
    header = PartitionProducer._header

    def counting(producer: PartitionProducer, batch: Batch) -> bytes:
        history.frames[producer.topic.full, producer.name, batch.first_sequence_id] += 1
        return header(producer, batch)

    stack.enter_context(patch.object(PartitionProducer, "_header", counting))
