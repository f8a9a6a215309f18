"""`read_topic`: what a topic holds between two points as a Ray dataset.

`read_topic` asks the topic's owners where it ends, and plans. Ray Data's tasks read when the dataset is executed, and
each execution reads the same rows. The plan's ledgers are pinned, and the process that planned prolongs the pins until
Python has forgotten the dataset. Then they last for `pin_ttl_s` more.
"""

# Ray and pyarrow bring no types.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

import weakref
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from ray.data import read_datasource
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from ..bulk.decryption import read_keys
from ..bulk.planned_read import AskedRead, plan_read
from ..bulk.planner import PIN_TTL_S, PLAN_TIMEOUT_S
from ..bulk.read_plan import TASK_SIZE_BYTES, PointsInTopic, ReadSplit, entry_size_bytes
from ..bulk.task_reading import TaskRead, read_split
from ..client.crypto.keys import ConsumerCryptoFailureAction, CryptoKeyReader
from ..protocol.errors import InvalidConfiguration

if TYPE_CHECKING:
    from ray.data import Dataset


CHEAPEST_COLUMN = "__publishTime"


class TopicDatasource(Datasource):
    """The planned rows of a topic. For `ray.data.read_datasource`; `read_topic` is the shorter way.

    Ray Data pickles it to the actor of `streaming_split`. The process that has planned prolongs the pins, and tasks do
    that read.
    """

    def __init__(self, asked: AskedRead, max_bytes_per_split: int = TASK_SIZE_BYTES) -> None:
        """Plan. Raises what `read_topic` raises."""
        super().__init__()
        if max_bytes_per_split < 1:
            raise InvalidConfiguration("max_bytes_per_split must be 1 or more")
        self._projection_map = None
        self._size_bytes = max_bytes_per_split
        self._planned, pins = plan_read(asked)
        self._pinned = _Pinned()
        weakref.finalize(self._pinned, pins.forget).atexit = False

    def get_name(self) -> str:
        return "Topic"

    def supports_projection_pushdown(self) -> bool:
        return True

    def apply_projection(self, projection_map: dict[str, str] | None) -> Datasource:
        planned = self._planned.shape.columns
        for name in projection_map or ():
            if name not in planned:
                raise InvalidConfiguration(f"the dataset has no column {name!r}: choose from {', '.join(planned)}")
        return super().apply_projection(projection_map)

    def estimate_inmemory_data_size(self) -> int:
        return sum(_size_bytes(task.split) for task in self._planned.tasks(self._size_bytes, 1))

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        # Without columns Ray Data counts rows: the cheapest column has them, and a table without columns would not.
        columns = [CHEAPEST_COLUMN] if self._get_data_columns() == [] else self._get_data_columns()
        schema = self._planned.shape_of(columns).schema
        reads = [
            (partial(_blocks, task), BlockMetadata(None, _size_bytes(task.split), None, None))
            for task in self._planned.tasks(self._size_bytes, parallelism, columns)
        ]
        if not reads:  # a dataset without blocks has no schema
            reads = [(partial(_no_rows, schema), BlockMetadata(0, 0, None, None))]
        return [ReadTask(read, metadata, schema, per_task_row_limit) for read, metadata in reads]


class _Pinned:
    """Lives as long as the datasource and the copies that Ray Data makes of it in this process."""


def _size_bytes(split: ReadSplit) -> int:
    return sum(part.entries * entry_size_bytes(part.ledger) for part in split.ranges)


def _blocks(task: TaskRead) -> Iterator[pa.Table]:
    """Runs in a worker of Ray."""
    empty = True
    for batch in read_split(task):
        empty = False
        yield pa.Table.from_batches([batch])
    if empty:
        yield from _no_rows(task.shape.schema)


def _no_rows(schema: pa.Schema) -> list[pa.Table]:
    return [schema.empty_table()]


def read_topic(
    topic: str,
    start: PointsInTopic = "earliest",
    end: PointsInTopic = "latest",
    *,
    columns: Sequence[str] | None = None,
    schema: str | int | None = None,
    is_read_compacted: bool = False,
    admin_url: str | None = None,
    crypto_key_reader: CryptoKeyReader | None = None,
    crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
    max_bytes_per_split: int = TASK_SIZE_BYTES,
    plan_timeout_s: float = PLAN_TIMEOUT_S,
    pin_ttl_s: float = PIN_TTL_S,
    override_num_blocks: int | None = None,
    concurrency: int | None = None,
    ray_remote_args: dict[str, Any] | None = None,
) -> "Dataset":
    """Plan what a topic holds between two points as a Ray dataset.

    Nothing is read before the dataset is executed. Each execution reads the same rows from the bookies. Reading moves
    no cursor.

    Args:
        topic: Any form of a persistent topic's name. A partitioned topic is read with all its partitions, in order
            within each. One partition is read by its own name (`…-partition-3`).
        start: `"earliest"`, `"latest"`, a message id or a time, both inclusive. A mapping gives one for each partition.
        end: The same, with a message id inclusive and a time exclusive. `"latest"` means the moment of the call.
        columns: The columns, in this order. What nobody asks for is not decoded. None: those that the dataset's
            operations need.
        schema: None or `"bytes"` gives the payload in the column `value`. `"auto"` gives the columns of the topic's
            newest schema, if it has one. A number gives those of that version. Messages of other versions are resolved
            to it.
        is_read_compacted: Read only the last message of each key of what is compacted, and everything after it.
        admin_url: `http://host:port` of the cluster's admin HTTP. None finds the cluster through Ray.
        crypto_key_reader: What gives the private keys for encrypted messages. It travels to the tasks. The file of a
            `CryptoKeyReader` is read here.
        crypto_failure_action: What becomes of a message that cannot be decrypted. FAIL ends the execution with an
            error, DISCARD leaves it out, CONSUME gives the bytes as they are, a batch as one row.
        max_bytes_per_split: About how many bytes of the topic one task reads.
        plan_timeout_s: Seconds to look for the topic's brokers while some of them fail over.
        pin_ttl_s: Seconds after which planned ledgers may be trimmed if this process crashes, or forgets the dataset.
            Keep the dataset while the parts of its `streaming_split` are in use.
        override_num_blocks: As in `ray.data.read_datasource`: number of tasks at least.
        concurrency: As there: the maximum number of tasks that run at a time.
        ray_remote_args: As there: options of the tasks.

    Returns:
        A dataset with one row per message.

    Raises:
        NotAllowedError: If the topic is non-persistent, or its schema cannot become columns.
        TopicNotFound: If the topic does not exist.
        InvalidTopicName: If `topic` is no topic name.
        InvalidConfiguration: If the bounds, a column, the schema or the URL are impossible, or a private key cannot be
            read.
        IncompatibleSchema: If a version of the schema cannot be read as the one of the columns.
        ClusterError: If there is no cluster.
        ConnectError: If nothing answers at `admin_url`.
        ServiceUnitNotReady: If the topic's owner cannot be asked in time.
        CoordinatorUnavailable: If the coordinator cannot be asked in time.
    """
    keys = read_keys(crypto_key_reader, crypto_failure_action).portable()
    asked = AskedRead(topic, start, end, columns, schema, is_read_compacted, keys, admin_url, plan_timeout_s, pin_ttl_s)
    return read_datasource(
        TopicDatasource(asked, max_bytes_per_split),
        override_num_blocks=override_num_blocks,
        concurrency=concurrency,
        ray_remote_args=ray_remote_args,
    )
