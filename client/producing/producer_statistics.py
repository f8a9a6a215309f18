"""The statistics of a whole producer: those of its partitions, added up when somebody asks."""

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..core.context import Core
from ..statistics.figures import ProducerStats
from ..statistics.intervals import Counts, rate
from ..statistics.latencies import percentiles_ms
from .send_counts import SendFigures

if TYPE_CHECKING:
    from .topic_producer import TopicProducer

logger = logging.getLogger(__name__)


class ProducerStatistics:
    def __init__(self, core: Core, producer: "TopicProducer") -> None:
        self._core = core
        self._producer = producer

    def stats(self) -> ProducerStats:
        """What was sent so far. May be called from any thread."""
        figures = self.figures()
        partitions: dict[str, ProducerStats] = {}
        if self._producer.topic.full not in figures:
            partitions = {name: producer_stats([one]) for name, one in figures.items()}
        return producer_stats([*figures.values()], partitions)

    def figures(self) -> dict[str, SendFigures]:
        """Of each partition, by its full name."""
        now_s = self._core.loop.time()
        return {
            one.topic.full: one.counts.figures(now_s, one.outbox.refused, one.outbox.pending)
            for one in [*self._producer.producers]
        }

    def end_interval(self, now_s: float) -> None:
        """An interval has ended: log what it had, if anything."""
        ended = self.stats() if logger.isEnabledFor(logging.INFO) else None
        for one in self._producer.producers:
            one.counts.end_interval(now_s, one.outbox.refused)
        if ended is not None and (ended.num_msgs_sent or ended.num_acks_received or ended.num_send_failed):
            _log(f"{self._producer.producer_name} on {self._producer.topic.full}", ended, self.stats())


def producer_stats(
    figures: Sequence[SendFigures], partitions: Mapping[str, ProducerStats] | None = None
) -> ProducerStats:
    """The figures of partitions, added up."""
    sent, size_bytes, failed, receipts = _sums([one.current for one in figures])
    total_sent, total_bytes, total_failed, total_receipts = _sums([one.total for one in figures])
    latencies = percentiles_ms([one.latencies for one in figures])
    return ProducerStats(
        num_msgs_sent=sent,
        num_bytes_sent=size_bytes,
        num_send_failed=failed,
        num_acks_received=receipts,
        send_msgs_rate=sum(rate(one.last[0], one.last_s) for one in figures),
        send_bytes_rate=sum(rate(one.last[1], one.last_s) for one in figures),
        send_latency_millis_50pct=latencies[0],
        send_latency_millis_75pct=latencies[1],
        send_latency_millis_95pct=latencies[2],
        send_latency_millis_99pct=latencies[3],
        send_latency_millis_999pct=latencies[4],
        send_latency_millis_max=latencies[5],
        total_msgs_sent=total_sent,
        total_bytes_sent=total_bytes,
        total_send_failed=total_failed,
        total_acks_received=total_receipts,
        pending_queue_size=sum(one.pending for one in figures),
        partition_stats=partitions or {},
    )


def _sums(counts: Sequence[Counts]) -> Counts:
    return tuple(map(sum, zip(*counts, strict=True))) or (0, 0, 0, 0)


def _log(what: str, ended: ProducerStats, now: ProducerStats) -> None:
    """Log an interval: its counts, and its rates and latencies as they are known since it has ended."""
    logger.info(
        "producer %s sent %d messages (%.1f/s, %.3f MB/s), got %d receipts, and had %d failures; latency of receipts: "
        "median %.1f ms, 95 %% %.1f ms, 99 %% %.1f ms, 99.9 %% %.1f ms, maximum %.1f ms; %d messages wait",
        what,
        ended.num_msgs_sent,
        now.send_msgs_rate,
        now.send_bytes_rate / 1_000_000,
        ended.num_acks_received,
        ended.num_send_failed,
        now.send_latency_millis_50pct,
        now.send_latency_millis_95pct,
        now.send_latency_millis_99pct,
        now.send_latency_millis_999pct,
        now.send_latency_millis_max,
        now.pending_queue_size,
    )
