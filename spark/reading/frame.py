"""`read_topic`: a topic as a lazy Spark DataFrame.

`read_topic` asks the topic's owners where it ends, and plans. Nothing is read before an action, and each action reads
again. All of them see the same rows: what is published later is not among them.

The plan's ledgers are pinned: brokers do not trim them. This process prolongs the pins until `release(frame)`, `stop`,
its own end, or until Python has forgotten the frame. Then they last for `pin_ttl_s` more, and tasks that run prolong
them, too. So keep the frame as long as frames that were derived from it.
"""

# pyarrow brings no types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...bulk.decryption import read_keys
from ...bulk.planned_read import AskedRead, KeptPins, loop_of_reads, plan_read
from ...bulk.planner import PIN_TTL_S, PLAN_TIMEOUT_S
from ...bulk.read_plan import TASK_SIZE_BYTES, PointsInTopic
from ...client.crypto.keys import ConsumerCryptoFailureAction, CryptoKeyReader
from ...protocol.errors import InvalidConfiguration
from ...runtime.tasks import together
from .task_frame import frame_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_lock = threading.Lock()
_reads: "weakref.WeakKeyDictionary[DataFrame, tuple[KeptPins, weakref.finalize[[], DataFrame]]]" = (
    weakref.WeakKeyDictionary()
)


def read_topic(
    spark: "SparkSession",
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
    min_partitions: int | None = None,
    plan_timeout_s: float = PLAN_TIMEOUT_S,
    pin_ttl_s: float = PIN_TTL_S,
) -> "DataFrame":
    """Plan what a topic holds between two points as a DataFrame.

    Nothing is read before an action. Each action reads the same rows from the bookies; `frame.persist()` keeps them.
    Reading moves no cursor. The ledgers are kept until `release`, `stop`, or until the frame is forgotten.

    Args:
        spark: A session of `magnetar.spark.session`, or any other of Spark 3.5 or later whose executors have Magnetar.
        topic: Any form of a persistent topic's name. A partitioned topic is read with all its partitions, in order
            within each. One partition is read by its own name (`…-partition-3`).
        start: `"earliest"`, `"latest"`, a message id or a time, both inclusive. A mapping gives one for each partition.
        end: The same, with a message id inclusive and a time exclusive. `"latest"` means the moment of the call.
        columns: The columns, in this order. What nobody asks for is not decoded. None: all.
        schema: None or `"bytes"` gives the payload in the column `value`. `"auto"` gives the columns of the topic's
            newest schema, if it has one. A number gives those of that version. Messages of other versions are resolved
            to it.
        is_read_compacted: Read only the last message of each key of what is compacted, and everything after it.
        admin_url: `http://host:port` of the cluster's admin HTTP. None finds the cluster through Ray.
        crypto_key_reader: What gives the private keys for encrypted messages. It travels to the tasks. The file of a
            `CryptoKeyReader` is read here.
        crypto_failure_action: What becomes of a message that cannot be decrypted. FAIL ends the action with an error,
            DISCARD leaves it out, CONSUME gives the bytes as they are, a batch as one row.
        max_bytes_per_split: About how many bytes of the topic one task reads.
        min_partitions: Number of tasks at least, if there are as many entries. None: the session's default parallelism.
        plan_timeout_s: Seconds to look for the topic's brokers while some of them fail over.
        pin_ttl_s: Seconds after which planned ledgers may be trimmed if this process crashes.

    Returns:
        A frame with one row per message.

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
    from pyspark.sql.pandas.types import from_arrow_schema

    if max_bytes_per_split < 1 or (min_partitions is not None and min_partitions < 1):
        raise InvalidConfiguration("max_bytes_per_split and min_partitions must be 1 or more")
    keys = read_keys(crypto_key_reader, crypto_failure_action).portable()
    asked = AskedRead(topic, start, end, columns, schema, is_read_compacted, keys, admin_url, plan_timeout_s, pin_ttl_s)
    planned, pins = plan_read(asked)
    least = spark.sparkContext.defaultParallelism if min_partitions is None else min_partitions
    frame = frame_of(spark, planned.tasks(max_bytes_per_split, least), from_arrow_schema(planned.shape.schema))
    # Frames that were derived from a forgotten one may still be computed, so its pins only expire.
    forgetting = weakref.finalize(frame, pins.forget)
    forgetting.atexit = False
    with _lock:
        _reads[frame] = pins, forgetting
    return frame


def release(frame: "DataFrame") -> None:
    """Let the ledgers of a frame that `read_topic` returned be trimmed again. It cannot be computed any longer then.

    A second call does nothing.

    Args:
        frame: The frame.

    Raises:
        InvalidConfiguration: If `read_topic` did not return the frame.
    """
    with _lock:
        found = _reads.get(frame)
    if found is None:
        raise InvalidConfiguration("this DataFrame was not made by magnetar.spark.read_topic")
    pins, forgetting = found
    if forgetting.detach() is not None:
        pins.close()


def release_all() -> None:
    """Let go of all frames of this process."""
    with _lock:
        found = list(_reads.values())
    ending = [pins.end() for pins, forgetting in found if forgetting.detach() is not None]
    if ending:
        loop_of_reads().run(together(ending))
