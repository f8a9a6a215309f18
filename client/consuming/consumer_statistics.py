"""The statistics of a whole consumer: those of its partitions added up, and what belongs to none of them."""

import logging
from collections.abc import Callable, Mapping, Sequence

from ..core.context import Core
from ..statistics.figures import ConsumerStats, ProducerStats
from ..statistics.intervals import Counts, rate
from .partition_consumer import PartitionConsumer
from .receive_counts import NOTHING_WAITS, ReceiveFigures
from .receive_queue import ReceiveQueue
from .topic_set import TopicSet

logger = logging.getLogger(__name__)

LetterStats = tuple[ProducerStats | None, ProducerStats | None]
"""Of the producers of dead letters and of retry letters."""


class ConsumerStatistics:
    """See the module. `describe` says for the log which consumer it is."""

    def __init__(self, core: Core, queue: ReceiveQueue, topics: TopicSet, describe: Callable[[], str]) -> None:
        self.refused = 0
        """Acknowledgements that belong to no partition of ours, or came after the end."""
        self.letters: Callable[[], LetterStats] = lambda: (None, None)
        """Asked for the statistics of letters."""
        self._refused_before = 0
        """How many of them there were when the interval began."""
        self._core = core
        self._queue = queue
        self._topics = topics
        self._describe = describe

    def stats(self) -> ConsumerStats:
        """What was received and acknowledged so far. May be called from any thread."""
        figures: dict[str, ReceiveFigures] = {}
        now_s = self._core.loop.time()
        with self._queue.lock:
            waiting = self._queue.waiting_of_sources()
            for consumer in [*self._topics.consumers]:
                counts = self._queue.counts.get(consumer)
                if counts is not None:
                    here = waiting.get(consumer, NOTHING_WAITS)
                    figures[consumer.topic.full] = counts.figures(now_s, here, _acks(consumer))
        partitions: dict[str, ConsumerStats] = {}
        if self._topics.several or any(self._topics.partitions.copy().values()):
            partitions = {name: _added_up([one]) for name, one in figures.items()}
        refused = (self.refused - self._refused_before, self.refused)
        return _added_up([*figures.values()], partitions, refused, self.letters())

    def end_interval(self, now_s: float) -> None:
        """An interval has ended: log what it had, if anything."""
        ended = self.stats() if logger.isEnabledFor(logging.INFO) else None
        self._refused_before = self.refused
        with self._queue.lock:
            waiting = self._queue.waiting_of_sources()
            for consumer in self._topics.consumers:
                counts = self._queue.counts.get(consumer)
                if counts is not None:
                    counts.end_interval(now_s, waiting.get(consumer, NOTHING_WAITS), _acks(consumer))
        if ended is not None and (ended.num_msgs_received or ended.num_acks_sent or ended.num_receive_failed):
            _log(self._describe(), ended, self.stats())


def _acks(consumer: PartitionConsumer) -> tuple[int, int]:
    """How many acknowledgements a partition's consumer sent, and how many failed."""
    acks = consumer.acks
    return acks.acked, acks.refused + (0 if acks.receipts is None else acks.receipts.failed)


def _added_up(
    figures: Sequence[ReceiveFigures],
    partitions: Mapping[str, ConsumerStats] | None = None,
    refused: tuple[int, int] = (0, 0),
    letters: LetterStats = (None, None),
) -> ConsumerStats:
    """The figures of partitions, added up. `refused` are acknowledgements of no partition, in this interval and in
    all."""
    messages, size_bytes, failed, acks, acks_failed = _sums([one.current for one in figures])
    total_messages, total_bytes, total_failed, total_acks, total_acks_failed = _sums([one.total for one in figures])
    return ConsumerStats(
        num_msgs_received=messages,
        num_bytes_received=size_bytes,
        rate_msgs_received=sum(rate(one.last[0], one.last_s) for one in figures),
        rate_bytes_received=sum(rate(one.last[1], one.last_s) for one in figures),
        num_acks_sent=acks,
        num_acks_failed=acks_failed + refused[0],
        num_receive_failed=failed,
        total_msgs_received=total_messages,
        total_bytes_received=total_bytes,
        total_received_failed=total_failed,
        total_acks_sent=total_acks,
        total_acks_failed=total_acks_failed + refused[1],
        msg_num_in_receiver_queue=sum(one.waiting for one in figures),
        partition_stats=partitions or {},
        dead_letter_producer_stats=letters[0],
        retry_letter_producer_stats=letters[1],
    )


def _sums(counts: Sequence[Counts]) -> Counts:
    return tuple(map(sum, zip(*counts, strict=True))) or (0, 0, 0, 0, 0)


def _log(what: str, ended: ConsumerStats, now: ConsumerStats) -> None:
    """Log an interval: its counts, and its rates as they are known since it has ended."""
    logger.info(
        "consumer %s received %d messages (%.1f/s, %.3f MB/s), and could not open %d entries; it acknowledged %d "
        "messages, and %d acknowledgements failed; %d messages wait",
        what,
        ended.num_msgs_received,
        now.rate_msgs_received,
        now.rate_bytes_received / 1_000_000,
        ended.num_receive_failed,
        ended.num_acks_sent,
        ended.num_acks_failed,
        now.msg_num_in_receiver_queue,
    )
