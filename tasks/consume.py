"""`magnetar.consume`: a function over the messages of a subscription, in Ray actors.

    with magnetar.consume("orders", "billing", bill, concurrency=(1, 8), max_redeliver_count=3) as consuming:
        consuming.wait()

`consume_worker` says what becomes of the messages of a call, `consume_pool` which workers there are, `pool_sizing` how
many. Here are the arguments and the handle.

What holds, whatever ends:

- A message is acknowledged when its call has returned, or when its copy is in the dead letter topic. So it is handled
  at least once. It is handled again when its worker, its broker or this process dies before.
- The handle and the pool are in the process that called `consume`. When that process dies, Ray ends the workers, and
  the broker gives what is not acknowledged to the next consumer of the subscription.
"""

import atexit
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar

from ..bulk.access import check_urls
from ..client.core.configuration import ConsumerDeadLetterPolicy, InitialPosition
from ..client.core.redelivery_backoff import MultiplierRedeliveryBackoff, RedeliveryBackoff, check_backoff
from ..protocol.errors import InvalidConfiguration, MagnetarError
from ..protocol.topics import TopicName
from ..runtime.ray_calls import OWN_ACTOR_OPTIONS, check_actor_options
from .consume_pool import ConsumePool, ConsumeStats, TopicBacklog
from .consume_worker import ConsumeWorker, WorkOrder
from .open_queue import shared_loop, shared_random
from .pool_sizing import PoolBounds

T = TypeVar("T")

BATCH_WAIT_MS = 100
RETRY_MIN_MS = 1_000
RETRY_MAX_MS = 60_000
STOP_TIMEOUT_S = 60.0
NAME_SIZE_BYTES = 4
"""What makes the names of the workers of one call differ from those of another."""
OWN_CONSUMER_OPTIONS = (
    "ack_group_time_ms",
    "batch_index_ack_enabled",
    "batch_receive_policy",
    "consumer_name",
    "consumer_type",
    "dead_letter_policy",
    "enable_retry",
    "initial_position",
    "is_pattern_topic",
    "max_total_receiver_queue_size_across_partitions",
    "message_listener",
    "negative_ack_redelivery_backoff",
    "negative_ack_redelivery_delay_ms",
    "receiver_queue_size",
    "schema",
    "subscription_name",
    "topic",
)

_open: set[ConsumePool] = set()
_lock = threading.Lock()


class Consuming:
    """A running `consume`. As a context manager it stops at the end of the block.

    It belongs to the process that called `consume`. Its calls block: a coroutine calls them with `asyncio.to_thread`.
    """

    def __init__(self, pool: ConsumePool) -> None:
        self._pool = pool
        with _lock:
            _open.add(pool)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
        else:
            with suppress(MagnetarError):  # the error of the block is the one to see
                self.stop()

    def __repr__(self) -> str:
        return f"<Consuming {self._pool.name}>"

    def stop(self, timeout: float | None = STOP_TIMEOUT_S) -> bool:
        """Take no more messages, let running calls finish, and acknowledge theirs. A second call does nothing.

        Args:
            timeout: Maximum seconds for the calls that run. Then their workers are killed, and their messages stay
                unacknowledged. None waits without end.

        Returns:
            Whether all calls finished in time.

        Raises:
            ConsumeFailed: If the workers had failed.
        """
        try:
            return shared_loop().run(self._pool.stop(timeout))
        finally:
            with _lock:
                _open.discard(self._pool)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it ends: another thread has called `stop`, or the workers have failed.

        Args:
            timeout: Maximum seconds to wait. None waits without end.

        Returns:
            Whether it has ended.

        Raises:
            ConsumeFailed: If the workers have failed.
        """
        return shared_loop().run(self._pool.wait(timeout))

    def stats(self) -> ConsumeStats:
        """Ask the workers what they have done.

        Returns:
            Their figures, added up.
        """
        return shared_loop().run(self._pool.stats())


def consume(
    topic: str,
    subscription: str,
    fn: Callable[..., object],
    *,
    concurrency: int | tuple[int, int] = 1,
    key_ordered: bool = False,
    batch_size: int | None = None,
    batch_wait_ms: int = BATCH_WAIT_MS,
    schema: object = None,
    max_redeliver_count: int | None = None,
    dead_letter_topic: str | None = None,
    backoff: RedeliveryBackoff | None = None,
    receiver_queue_size: int | None = None,
    initial_position: InitialPosition = InitialPosition.Latest,
    consumer_options: Mapping[str, object] | None = None,
    fn_constructor_args: Sequence[object] = (),
    fn_constructor_kwargs: Mapping[str, object] | None = None,
    service_url: str | None = None,
    admin_url: str | None = None,
    num_cpus: float = 1,
    num_gpus: float = 0,
    resources: Mapping[str, float] | None = None,
    **ray_options: object,
) -> Consuming:
    """Run a function over the messages of a subscription, in a pool of Ray actors.

    It returns when the subscription is there. A message is acknowledged when its call returns. After an error it comes
    again, behind a back-off.

    Args:
        topic: A persistent topic, in any form of its name. It may have partitions.
        subscription: The subscription, which is made if it does not exist.
        fn: Called with a message, a value or a list. A coroutine function runs on the worker's loop, any other one in
            its thread. An object of a class is made once per worker, and called.
        concurrency: Number of workers, or `(min, max)`: then the backlog decides. `min` may be 0.
        key_ordered: Whether messages of one key are handled one after the other, in order. The subscription is then
            KeyShared, else Shared. After an error the worker calls again itself, and its other keys wait.
        batch_size: Maximum number of messages of a call, which gets a list. None calls with single messages. An error
            is one of the whole list.
        batch_wait_ms: Milliseconds that a list waits to be full, from the first wish for it.
        schema: How values are decoded. The function then gets values in place of messages.
        max_redeliver_count: How often a message comes again before it goes to the dead letter topic. None: for ever.
        dead_letter_topic: The dead letter topic; by default `<topic>-<subscription>-DLQ`.
        backoff: How long a message waits after an error. By default 1 s, twice as long each time, up to 60 s.
        receiver_queue_size: Number of messages that wait in a worker, for each partition one at least. By default
            as many as it handles in 200 ms, up to 100, and at least a batch. Half as many, up to 50, were taken for
            its next calls.
        initial_position: Where a new subscription starts.
        consumer_options: Other [options of a consumer](#options-of-a-consumer), such as `crypto_key_reader`.
        fn_constructor_args: Arguments for the class.
        fn_constructor_kwargs: Named arguments for the class.
        service_url: `pulsar://host:port` of the cluster. None finds it through Ray.
        admin_url: `http://host:port` of the cluster's admin HTTP, which is needed with a `service_url`.
        num_cpus: CPUs of Ray that a worker takes.
        num_gpus: GPUs of Ray that a worker takes.
        resources: Other resources of Ray that a worker takes.
        ray_options: Other options of Ray's actors, such as `runtime_env`.

    Returns:
        The handle, which stops the workers.

    Raises:
        InvalidConfiguration: If an argument is impossible, or cannot be pickled for the workers.
        InvalidTopicName: If `topic` is not a topic name.
        ClusterError: If this process has joined no Ray, or there is no cluster.
        MagnetarError: Why the subscription cannot be made.
    """
    name = TopicName.parse(_checked("topic", topic, str))
    if not name.persistent:
        raise InvalidConfiguration(f"{name.full} keeps nothing that could come again: name a persistent topic")
    check_urls(service_url, admin_url)
    dead_letters = _dead_letters(max_redeliver_count, dead_letter_topic)
    check_backoff("backoff", backoff)
    order = WorkOrder(
        name.full,
        subscription,
        _checked_function(fn, has_arguments=bool(fn_constructor_args or fn_constructor_kwargs)),
        tuple(fn_constructor_args),
        dict(fn_constructor_kwargs or {}),
        _checked("key_ordered", key_ordered, bool),
        schema,
        _checked_count("batch_size", batch_size),
        _checked_count("batch_wait_ms", batch_wait_ms) or BATCH_WAIT_MS,
        _checked_count("receiver_queue_size", receiver_queue_size),
        backoff or MultiplierRedeliveryBackoff(RETRY_MIN_MS, RETRY_MAX_MS),
        dead_letters,
        service_url,
        {
            **_without(
                "consumer_options", _checked("consumer_options", consumer_options or {}, Mapping), OWN_CONSUMER_OPTIONS
            ),
            "initial_position": initial_position,
        },
    )
    order.check()
    options = {"num_cpus": num_cpus, "num_gpus": num_gpus, **_without("consume", ray_options, OWN_ACTOR_OPTIONS)}
    if resources is not None:
        options["resources"] = dict(_checked("resources", resources, Mapping))
    bounds = PoolBounds.of(concurrency)
    check_actor_options(ConsumeWorker, options, "workers")
    pool_name = f"consume:{name.namespace}/{name.local_name}:{subscription}:{shared_random().hex(NAME_SIZE_BYTES)}"
    backlog = TopicBacklog(name, subscription, admin_url)
    return Consuming(shared_loop().run(_opened(pool_name, order, options, bounds, backlog)))


async def _opened(
    name: str, order: WorkOrder, options: Mapping[str, object], bounds: PoolBounds, backlog: TopicBacklog
) -> ConsumePool:
    pool = ConsumePool(name, order, options, bounds, backlog)
    await pool.open()
    return pool


def _dead_letters(max_redeliver_count: int | None, topic: str | None) -> ConsumerDeadLetterPolicy | None:
    if max_redeliver_count is not None:
        return ConsumerDeadLetterPolicy(max_redeliver_count, topic)
    if topic is not None:
        raise InvalidConfiguration("dead_letter_topic needs max_redeliver_count, which says when messages go there")
    return None


def _checked_function(fn: Callable[..., object], *, has_arguments: bool) -> Callable[..., object]:
    if hasattr(fn, "remote"):
        raise InvalidConfiguration(
            f"{fn!r} is a task or actor of Ray: pass the function or the class below @ray.remote"
        )
    calls = any("__call__" in vars(one) for one in fn.__mro__) if isinstance(fn, type) else callable(fn)
    if not calls:
        raise InvalidConfiguration(f"{fn!r:.200} cannot be called: pass a function, or a class with __call__")
    called = getattr(fn, "__call__", None)  # noqa: B004 (a function has one, too, and an instance that of its class)
    for one in (fn, called):
        if inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one):
            raise InvalidConfiguration(
                f"{fn!r:.200} is a generator, so a call would run nothing of it: remove its yield"
            )
    if has_arguments and not isinstance(fn, type):
        raise InvalidConfiguration(
            f"{fn!r:.200} is no class, so it takes no fn_constructor_args: use functools.partial"
        )
    return fn


def _checked(name: str, given: T, kind: type) -> T:
    if isinstance(given, kind):
        return given
    raise InvalidConfiguration(f"{name} must be a {kind.__name__.lower()}, not {given!r:.200}")


def _checked_count(name: str, count: int | None) -> int | None:
    if count is None or (type(count) is int and count >= 1):
        return count
    raise InvalidConfiguration(f"{name} must be an integer from 1, not {count!r}")


def _without(what: str, options: Mapping[str, object], own: Sequence[str]) -> dict[str, object]:
    if taken := sorted(set(options) & set(own)):
        raise InvalidConfiguration(f"{what} takes no {', '.join(taken)}: consume sets that itself")
    return dict(options)


def _abandon_all() -> None:
    """The process ends. No thread may ask Ray for an actor while Ray ends."""
    with _lock:
        pools = [*_open]
    for pool in pools:
        with suppress(RuntimeError, TimeoutError):
            shared_loop().submit(pool.abandon()).result(1.0)


atexit.register(_abandon_all)
