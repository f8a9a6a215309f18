"""`to_arrow`, `to_pandas` and `arrow_batches`: topics as Arrow in this process, by the planner of the Spark read.

The rows come in order within each partition, partition after partition. A few splits are read at once, ahead of the
caller, and wait in memory until he takes them. So `arrow_batches` needs about `SPLITS_AHEAD` times the size of a split,
however large the topic is.
"""

# pandas and pyarrow bring no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AsyncExitStack, closing
from typing import TYPE_CHECKING

import pyarrow as pa

from ..client.crypto.keys import ConsumerCryptoFailureAction, CryptoKeyReader
from ..runtime.environment import Environment
from .access import find_cluster
from .cluster_link import LocateBookies
from .decryption import ReadKeys, read_keys
from .loop_thread import LoopThread
from .planned_read import AskedRead
from .planner import PLAN_TIMEOUT_S, Planner
from .range_reader import RangeReader
from .read_plan import PointsInTopic, ReadSplit, split
from .typed.choice import RowShape, parse_choice, row_shape

if TYPE_CHECKING:
    import pandas as pd

SPLITS_AHEAD = 3
RETRY_LIMIT_S = 30.0


async def _read_split(
    reader: RangeReader, part: ReadSplit, locate: LocateBookies, shape: RowShape, keys: ReadKeys
) -> list[pa.RecordBatch]:
    return [batch async for batch in reader.read_patiently(part, locate, shape, RETRY_LIMIT_S, keys)]


async def read_batches(
    asked: AskedRead, on_shape: Callable[[RowShape], object] | None = None
) -> AsyncGenerator[pa.RecordBatch]:
    """The rows of a topic, partition after partition. `on_shape` is told their columns before the first batch.

    Raises what `to_arrow` raises.
    """
    topic, start, end, columns, schema, is_read_compacted, keys, admin_url, plan_timeout_s, _ = asked
    choice = parse_choice(schema)
    if choice is None:
        row_shape(columns)
    async with AsyncExitStack() as ending:
        env = Environment.real(threads_max=1)
        ending.callback(env.close)
        access, locate = await find_cluster(admin_url)
        planner = Planner(env, access, topic, timeout_s=plan_timeout_s, locate=locate)
        await ending.enter_async_context(planner)
        plans = await planner.plan(start, end, compacted=is_read_compacted)
        shape = await planner.shape(columns, choice)
        if on_shape is not None:
            on_shape(shape)
        reader = RangeReader(env, access)
        ending.push_async_callback(reader.close)
        waiting = deque(split(plans, SPLITS_AHEAD))
        under_way: deque[asyncio.Task[list[pa.RecordBatch]]] = deque()
        ending.push_async_callback(_cancel, under_way)
        while waiting or under_way:
            while waiting and len(under_way) < SPLITS_AHEAD:
                reading = _read_split(reader, waiting.popleft(), planner.link.bookies, shape, keys)
                under_way.append(asyncio.create_task(reading, name="read-split"))
            # It stays in the queue while it is waited for: a cancelled caller cancels it with the others.
            batches = await asyncio.shield(under_way[0])
            under_way.popleft()
            for batch in batches:
                yield batch


async def _cancel(tasks: deque[asyncio.Task[list[pa.RecordBatch]]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def arrow_batches(
    topic: str,
    start: PointsInTopic = "earliest",
    end: PointsInTopic = "latest",
    *,
    columns: Sequence[str] | None = None,
    schema: str | int | None = None,
    is_read_compacted: bool = False,
    crypto_key_reader: CryptoKeyReader | None = None,
    crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
    admin_url: str | None = None,
    plan_timeout_s: float = PLAN_TIMEOUT_S,
) -> Generator[pa.RecordBatch]:
    """Read a topic as Arrow record batches, one after the other, with little memory.

    Args:
        topic: As in `to_arrow`, like all others.
        start: Where the read begins.
        end: Where the read ends.
        columns: The columns, in this order. None: all.
        schema: `"auto"`, `"bytes"` or the number of a version. None means bytes.
        is_read_compacted: Read only the last message of each key of what is compacted, and everything after it.
        crypto_key_reader: What gives the private keys for encrypted messages.
        crypto_failure_action: What becomes of a message that cannot be decrypted, as for a consumer.
        admin_url: The admin HTTP of the cluster. None finds the cluster through Ray.
        plan_timeout_s: Seconds to look for the topic's brokers while some of them fail over.

    Returns:
        An iterator. The read begins with its first item.

    Raises:
        MagnetarError: As `to_arrow` does.
    """
    keys = read_keys(crypto_key_reader, crypto_failure_action).portable()
    asked = AskedRead(topic, start, end, columns, schema, is_read_compacted, keys, admin_url, plan_timeout_s)
    with closing(LoopThread("magnetar-read")) as thread:
        rows = read_batches(asked)
        yield from thread.items(rows)


def to_arrow(
    topic: str,
    start: PointsInTopic = "earliest",
    end: PointsInTopic = "latest",
    *,
    columns: Sequence[str] | None = None,
    schema: str | int | None = None,
    is_read_compacted: bool = False,
    crypto_key_reader: CryptoKeyReader | None = None,
    crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
    admin_url: str | None = None,
    plan_timeout_s: float = PLAN_TIMEOUT_S,
) -> pa.Table:
    """Read what a topic holds between two points into an Arrow table, in this process and without Spark.

    The rows come straight from the bookies. Reading moves no cursor.

    Args:
        topic: Any form of a persistent topic's name. A partitioned topic is read with all its partitions, one after
            the other, in order within each.
        start: `"earliest"`, `"latest"`, a message id or a time, both inclusive. A mapping gives one for each partition.
        end: The same, with a message id inclusive and a time exclusive. `"latest"` means the moment of the call.
        columns: The columns, in this order. What nobody asks for is not decoded. None: all.
        schema: None or `"bytes"` gives the payload in the column `value`. `"auto"` gives the columns of the topic's
            newest schema, if it has one. A number gives those of that version. Messages of other versions are resolved
            to it.
        is_read_compacted: Read only the last message of each key of what is compacted, and everything after it.
        crypto_key_reader: What gives the private keys for encrypted messages. It is asked in a thread of this process,
            and the read waits for it.
        crypto_failure_action: What becomes of a message that cannot be decrypted. FAIL raises CryptoError, DISCARD
            leaves it out, CONSUME gives the bytes as they are, a batch as one row.
        admin_url: `http://host:port` of the cluster's admin HTTP. None finds the cluster through Ray.
        plan_timeout_s: Seconds to look for the topic's brokers while some of them fail over.

    Returns:
        A table with one row per message.

    Raises:
        NotAllowedError: If the topic is non-persistent, or its schema cannot become columns.
        TopicNotFound: If the topic does not exist.
        InvalidTopicName: If `topic` is no topic name.
        InvalidConfiguration: If the bounds, a column, the schema or the URL are impossible, or a private key cannot be
            read.
        SchemaSerializationError: If a message does not fit the schema. It names the entry.
        IncompatibleSchema: If a version of the schema cannot be read as the one of the columns.
        ClusterError: If there is no cluster.
        ConnectError: If nothing answers at `admin_url`.
        ServiceUnitNotReady: If the topic's owner cannot be asked in time.
        CoordinatorUnavailable: If the coordinator cannot be asked in time.
        NoSuchEntry: If an entry of the range is gone. No message is left out silently.
        EntryUnknown: If an entry cannot be read now.
        EntryCorrupt: If no copy of an entry is intact.
        CryptoError: If a message cannot be decrypted.
        MessageTooBig: If a message in chunks is larger than 512 MiB.
    """
    shapes: list[RowShape] = []
    keys = read_keys(crypto_key_reader, crypto_failure_action).portable()
    asked = AskedRead(topic, start, end, columns, schema, is_read_compacted, keys, admin_url, plan_timeout_s)
    rows = read_batches(asked, shapes.append)
    with closing(LoopThread("magnetar-read")) as thread:
        batches = list(thread.items(rows))
    return pa.Table.from_batches(batches, schema=shapes[0].schema)


def to_pandas(
    topic: str,
    start: PointsInTopic = "earliest",
    end: PointsInTopic = "latest",
    *,
    columns: Sequence[str] | None = None,
    schema: str | int | None = None,
    is_read_compacted: bool = False,
    crypto_key_reader: CryptoKeyReader | None = None,
    crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
    admin_url: str | None = None,
    plan_timeout_s: float = PLAN_TIMEOUT_S,
) -> "pd.DataFrame":
    """Read what a topic holds between two points into a pandas frame, as `to_arrow` does.

    Args:
        topic: As in `to_arrow`, like all others.
        start: Where the read begins.
        end: Where the read ends.
        columns: The columns, in this order. None: all.
        schema: `"auto"`, `"bytes"` or the number of a version. None means bytes.
        is_read_compacted: Read only the last message of each key of what is compacted, and everything after it.
        crypto_key_reader: What gives the private keys for encrypted messages.
        crypto_failure_action: What becomes of a message that cannot be decrypted, as for a consumer.
        admin_url: The admin HTTP of the cluster. None finds the cluster through Ray.
        plan_timeout_s: Seconds to look for the topic's brokers while some of them fail over.

    Returns:
        A frame with one row per message.

    Raises:
        MagnetarError: As `to_arrow` does.
    """
    table = to_arrow(
        topic,
        start,
        end,
        columns=columns,
        schema=schema,
        is_read_compacted=is_read_compacted,
        crypto_key_reader=crypto_key_reader,
        crypto_failure_action=crypto_failure_action,
        admin_url=admin_url,
        plan_timeout_s=plan_timeout_s,
    )
    return table.to_pandas()
