"""`follow`: a topic as batches of rows that go on. `followed_batches` says why it is not a dataset of Ray Data."""

# Ray and pyarrow bring no types.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

import pyarrow.compute as pc

from ..bulk.access import check_urls, find_cluster
from ..bulk.decryption import read_keys
from ..bulk.planned_read import loop_of_reads
from ..bulk.planner import PLAN_TIMEOUT_S, Planner
from ..bulk.typed.choice import RowShape, parse_choice, row_shape
from ..client.core.configuration import InitialPosition
from ..client.crypto.keys import ConsumerCryptoFailureAction, CryptoKeyReader
from ..protocol.errors import InvalidConfiguration
from ..protocol.topics import TopicName
from ..runtime.environment import Environment
from ..runtime.ray_calls import OWN_ACTOR_OPTIONS, check_actor_options
from .batch_steps import BatchStep
from .entry_batches import FollowOrder
from .follow_reader import FollowReader
from .followed_batches import BatchFormat, FollowedBatches, FollowedTopics
from .positions import parse_positions

BATCH_ROWS = 1_024
BATCH_WAIT_MS = 100
PREFETCH_BATCHES = 4
RECEIVER_QUEUE_SIZE = 1_000
BATCH_FORMATS = ("default", "numpy", "pandas", "pyarrow")


class Following:
    """A topic that is followed, and what is done with its batches. Made by `follow`. `iter_batches` begins."""

    def __init__(self, followed: FollowedTopics, steps: tuple[BatchStep, ...] = ()) -> None:
        """Call `follow` instead."""
        self._followed = followed
        self._steps = steps

    def __repr__(self) -> str:
        followed = self._followed
        return f"<Following {', '.join(followed.topics)} from {followed.order.subscription}>"

    def map_batches(
        self,
        fn: Callable[..., object],
        *,
        batch_format: str = "default",
        fn_kwargs: Mapping[str, object] | None = None,
        num_cpus: float = 1,
    ) -> "Following":
        """Call a function with each batch, in a Ray task. It may return another number of rows.

        All functions and filters of one batch run in one task. Tasks of `prefetch_batches` batches may run at a time.
        The function may be called again with the same batch, if its process or the batch is lost.

        Args:
            fn: Takes a batch, and returns one in any of the formats.
            batch_format: What the function takes: `"default"` or `"numpy"` (arrays by column), `"pandas"` or
                `"pyarrow"`.
            fn_kwargs: Named arguments for the function.
            num_cpus: CPUs of Ray that a task takes.

        Returns:
            Another `Following`.

        Raises:
            InvalidConfiguration: If an argument is impossible.
        """
        if not callable(fn) or isinstance(fn, type):
            raise InvalidConfiguration(f"map_batches takes a function, not {fn!r:.100}: it is called in tasks")
        return self._with(BatchStep(fn, _ray_format(batch_format), dict(fn_kwargs or {}), num_cpus))

    def filter(
        self, condition: "Callable[[dict[str, object]], bool] | pc.Expression", *, num_cpus: float = 1
    ) -> "Following":
        """Leave out rows. What is left out is acknowledged together with the rows before it.

        Args:
            condition: An expression of pyarrow, such as `pc.field("delay") > 60`. Or a function of a row, which is far
                slower.
            num_cpus: CPUs of Ray that a task takes.

        Returns:
            Another `Following`.

        Raises:
            InvalidConfiguration: If it is neither.
        """
        if not (isinstance(condition, pc.Expression) or callable(condition)):
            raise InvalidConfiguration(f"filter takes an expression or a function of a row, not {condition!r:.100}")
        return self._with(BatchStep(condition, None, {}, num_cpus))

    def iter_batches(
        self,
        *,
        batch_size: int | None = BATCH_ROWS,
        batch_format: str = "default",
        batch_wait_ms: int | None = BATCH_WAIT_MS,
        prefetch_batches: int = PREFETCH_BATCHES,
        auto_acknowledge: bool = True,
    ) -> FollowedBatches:
        """Start the readers, and iterate over batches without end. It returns when the readers have subscribed.

        Args:
            batch_size: Maximum number of rows that a batch has before functions and filters. None: no maximum but
                32 MiB of payloads.
            batch_format: What you get: `"default"` or `"numpy"` (arrays by column), `"pandas"` or `"pyarrow"`.
            batch_wait_ms: Milliseconds that a batch waits for more rows, from its first one on. None: until it is full.
            prefetch_batches: Batches of each reader that wait or are worked on, beside the one you have.
            auto_acknowledge: Whether a batch is acknowledged when you ask for the next one. Else call `acknowledge`,
                which also counts for batches of which a filter left nothing.

        Returns:
            An iterator. Use it in a `with` statement: its readers end with the block.

        Raises:
            InvalidConfiguration: If an argument is impossible, or `start` names a partition that is not there.
            ClusterError: If this process has joined no Ray, or there is no cluster.
            NoSuchEntry: If rows behind a place of `start` may be gone.
            MagnetarError: Why a reader cannot subscribe.
        """
        _check_count("batch_size", batch_size, 1)
        _check_count("batch_wait_ms", batch_wait_ms, 0)
        if type(prefetch_batches) is not int or prefetch_batches < 0:
            raise InvalidConfiguration(f"prefetch_batches must be an integer from 0, not {prefetch_batches!r:.100}")
        if batch_size is None and batch_wait_ms is None:
            raise InvalidConfiguration("a batch without a size must have a time: set batch_size or batch_wait_ms")
        wait_s = None if batch_wait_ms is None else batch_wait_ms / 1000
        order = replace(self._followed.order, batch_rows=batch_size, batch_wait_s=wait_s)
        followed = replace(self._followed, order=order)
        return FollowedBatches(
            followed, self._steps, BatchFormat(_ray_format(batch_format), prefetch_batches, auto_acknowledge)
        )

    def _with(self, step: BatchStep) -> "Following":
        return Following(self._followed, (*self._steps, step))


def follow(
    topic: str | Sequence[str],
    subscription: str,
    *,
    start: str | Mapping[str, str] = "earliest",
    columns: Sequence[str] | None = None,
    schema: str | int | None = None,
    crypto_key_reader: CryptoKeyReader | None = None,
    crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
    concurrency: int = 1,
    receiver_queue_size: int = RECEIVER_QUEUE_SIZE,
    service_url: str | None = None,
    admin_url: str | None = None,
    num_cpus: float = 1,
    **ray_options: object,
) -> Following:
    """Follow a topic: batches of its rows that go on, as `read_topic` gives them, from a subscription.

    Actors of Ray read. What you have finished is acknowledged. After a crash the rows come again that were not: each
    row at least once. Store `positions` together with your results, and pass them as `start`: then each exactly once.

    Args:
        topic: A persistent topic, in any form of its name, or several. A partitioned topic is followed with all its
            partitions, also with those that are added.
        subscription: The subscription, which is made if it does not exist. It has the type Failover.
        start: `"earliest"` or `"latest"`: where a new subscription begins. Or what `positions` of an earlier iteration
            gave: behind that it goes on, whatever was acknowledged.
        columns: The columns, in this order. What nobody asks for is not decoded. None: all.
        schema: None or `"bytes"` gives the payload in the column `value`. `"auto"` gives the columns of the topic's
            newest schema, if it has one. A number gives those of that version. Messages of other versions are resolved
            to it, also of versions to come.
        crypto_key_reader: What gives the private keys for encrypted messages. It travels to the readers. The file of a
            `CryptoKeyReader` is read here.
        crypto_failure_action: What becomes of a message that cannot be decrypted. FAIL ends the iteration with an
            error, DISCARD leaves it out, CONSUME gives the bytes as they are, a batch as one row.
        concurrency: Maximum number of readers, which share the partitions.
        receiver_queue_size: About how many messages of each partition a reader has in advance.
        service_url: `pulsar://host:port` of the cluster. None finds it through Ray.
        admin_url: `http://host:port` of the cluster's admin HTTP, which is needed with a `service_url`.
        num_cpus: CPUs of Ray that a reader takes.
        ray_options: Other options of Ray's actors, such as `resources` or `scheduling_strategy`.

    Returns:
        What `iter_batches` iterates over.

    Raises:
        InvalidConfiguration: If an argument is impossible, or a private key cannot be read.
        InvalidTopicName: If `topic` is no topic name.
        NotAllowedError: If the schema cannot become columns.
        ClusterError: If this process has joined no Ray, or there is no cluster.
        MagnetarError: Why the schema cannot be fetched.
    """
    names = tuple(dict.fromkeys(TopicName.parse(one).full for one in ([topic] if isinstance(topic, str) else topic)))
    if not names or not all(TopicName.parse(one).persistent for one in names):
        raise InvalidConfiguration("what is followed must be kept, to come again: name persistent topics")
    if not subscription:
        raise InvalidConfiguration(f"subscription must be a name, not {subscription!r:.100}")
    check_urls(service_url, admin_url)
    _check_count("concurrency", concurrency, 1)
    _check_count("receiver_queue_size", receiver_queue_size, 1)
    starts = None if start in ("earliest", "latest") else parse_positions(start)
    keys = read_keys(crypto_key_reader, crypto_failure_action).portable()
    options = {"num_cpus": num_cpus, **ray_options}
    check_actor_options(FollowReader, options, "readers")
    if taken := sorted(set(options) & set(OWN_ACTOR_OPTIONS)):
        raise InvalidConfiguration(f"follow takes no {', '.join(taken)}: it sets that itself")
    order = FollowOrder(
        topics=(),
        subscription=subscription,
        shape=_shape(names, columns, schema, admin_url),
        keys=keys,
        batch_rows=None,
        batch_wait_s=None,
        receiver_queue_size=receiver_queue_size,
        initial_position=InitialPosition.Latest if start == "latest" else InitialPosition.Earliest,
        behind={},
        is_start=True,
        service_url=service_url,
        admin_url=admin_url,
    )
    return Following(FollowedTopics(names, order, starts, concurrency, options))


def _shape(names: Sequence[str], columns: Sequence[str] | None, schema: object, admin_url: str | None) -> RowShape:
    choice = parse_choice(schema)
    if choice is None:
        return row_shape(columns)
    if len(names) > 1:
        raise InvalidConfiguration(
            "several topics have a schema each, and rows have one: follow them one by one, or leave schema out"
        )

    async def asked() -> RowShape:
        access, locate = await find_cluster(admin_url)
        async with AsyncExitStack() as ending:
            env = Environment.real(threads_max=1)
            ending.callback(env.close)
            planner = Planner(env, access, names[0], timeout_s=PLAN_TIMEOUT_S, locate=locate)
            await ending.enter_async_context(planner)
            return await planner.shape(columns, choice)

    return loop_of_reads().run(asked())


def _ray_format(name: str) -> str:
    """What a block is turned into. Ray's datasets mean arrays by the default, and its blocks do not."""
    if name not in BATCH_FORMATS:
        raise InvalidConfiguration(f"batch_format must be one of {', '.join(BATCH_FORMATS)}, not {name!r:.100}")
    return "numpy" if name == "default" else name


def _check_count(name: str, count: object, least: int) -> None:
    if count is not None and (type(count) is not int or count < least):
        raise InvalidConfiguration(f"{name} must be an integer from {least}, not {count!r:.100}")
