"""Which figures of a cluster's processes Ray's metrics have, and where each comes from.

The names are those of Pulsar and BookKeeper, in small letters, with `magnetar_` in place of `pulsar_`. Each has the
labels `cluster` and `process`, such as `broker-1`. None is per topic.

A broker counts what goes in and out for all its topics together (`topics.traffic`). For what has to be added up, a
round looks at each loaded topic, `TOPICS_AT_A_TIME` in one step of the event loop, as the load reports do.

Times are those of the event loop's clock, which has whole milliseconds.
"""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...protocol.names import ROLE_BOOKIE, ROLE_BROKER
from ...runtime.meter import RecentTimes
from ...runtime.ray_metrics import Figure, FigureValues, RayMetrics, report_always

if TYPE_CHECKING:
    from ..bookie.service import BookieService
    from ..broker.service import BrokerService
    from ..coordinator.service import CoordinatorService
    from .assembly import MemberService

TOPICS_AT_A_TIME = 200
QUANTILES = (0.5, 0.99, 1.0)
BY = "quantile"
SAMPLED = "Milliseconds, over the last minute,"

BROKER_FIGURES = (
    Figure("magnetar_broker_in_messages", "counter", "Messages that producers have published."),
    Figure("magnetar_broker_in_bytes", "counter", "Bytes of these, as they are stored."),
    Figure("magnetar_broker_out_messages", "counter", "Messages that were sent to consumers."),
    Figure("magnetar_broker_out_bytes", "counter", "Bytes of these."),
    Figure("magnetar_broker_topics_count", "gauge", "Topics and partitions that are loaded."),
    Figure("magnetar_broker_subscriptions_count", "gauge", "Subscriptions of loaded topics."),
    Figure("magnetar_broker_producers_count", "gauge", "Producers that are connected."),
    Figure("magnetar_broker_consumers_count", "gauge", "Consumers that are connected."),
    Figure(
        "magnetar_broker_msg_backlog",
        "gauge",
        "Entries that subscriptions have not acknowledged, of loaded topics.",
    ),
    Figure("magnetar_broker_publish_latency", "gauge", f"{SAMPLED} from an entry to its receipt, of samples.", BY),
)
BOOKIE_FIGURES = (
    Figure("magnetar_bookie_add_entries", "counter", "Entries that were written since the bookie started."),
    Figure("magnetar_bookie_write_bytes", "counter", "Bytes of these."),
    Figure("magnetar_bookie_journal_sync", "gauge", f"{SAMPLED} of a synced write of the journal.", BY),
    Figure("magnetar_bookie_ledgers_count", "gauge", "Ledgers of which the bookie has entries."),
    Figure("magnetar_bookie_disk_used_bytes", "gauge", "Used bytes of the disk that the bookie writes to."),
    Figure("magnetar_bookie_disk_free_bytes", "gauge", "Free bytes of that disk."),
    Figure("magnetar_bookie_writable", "gauge", "1 while the bookie takes new entries, else 0."),
)
COORDINATOR_FIGURES = (
    Figure("magnetar_topics", "gauge", "Topics. A partitioned topic counts once."),
    Figure("magnetar_brokers", "gauge", "Live brokers."),
    Figure("magnetar_bookies", "gauge", "Live bookies."),
    Figure("magnetar_auditor_incomplete_ledgers", "gauge", "Ledgers that lack copies: under-replicated ones."),
    Figure("magnetar_auditor_incomplete_bytes", "gauge", "Length of the closed ones of these."),
    Figure("magnetar_auditor_repaired_ledgers", "counter", "Ledgers that were repaired since the coordinator started."),
    Figure("magnetar_auditor_copied_bytes", "counter", "Bytes that repairs copied since the coordinator started."),
)


async def broker_figures(service: "BrokerService") -> FigureValues:
    """The figures of a broker."""
    topics = list(service.topics.loaded.values())
    subscriptions = producers = consumers = backlog = 0
    for first in range(0, len(topics), TOPICS_AT_A_TIME):
        for topic in topics[first : first + TOPICS_AT_A_TIME]:
            producers += len(topic.publishing.producers)
            subscriptions += len(topic.subscriptions)
            for subscription in topic.subscriptions.values():
                consumers += len(subscription.consumers)
                backlog += subscription.backlog_entries
        await asyncio.sleep(0)
    traffic = service.topics.common.traffic
    return {
        "magnetar_broker_in_messages": traffic.published.messages,
        "magnetar_broker_in_bytes": traffic.published.bytes,
        "magnetar_broker_out_messages": traffic.sent.messages,
        "magnetar_broker_out_bytes": traffic.sent.bytes,
        "magnetar_broker_topics_count": len(topics),
        "magnetar_broker_subscriptions_count": subscriptions,
        "magnetar_broker_producers_count": producers,
        "magnetar_broker_consumers_count": consumers,
        "magnetar_broker_msg_backlog": backlog,
        "magnetar_broker_publish_latency": _quantiles(traffic.publish_times),
    }


async def bookie_figures(service: "BookieService") -> FigureValues:
    """The figures of a bookie. Raises MagnetarError while it starts."""
    status = await service.status()
    return {
        "magnetar_bookie_add_entries": status["adds"],
        "magnetar_bookie_write_bytes": status["added_bytes"],
        "magnetar_bookie_journal_sync": _quantiles(service.store.entries.journal.sync_times),
        "magnetar_bookie_ledgers_count": status["ledgers"],
        "magnetar_bookie_disk_used_bytes": status["disk_used_bytes"],
        "magnetar_bookie_disk_free_bytes": status["disk_free_bytes"],
        "magnetar_bookie_writable": float(not status["read_only"]),
    }


async def coordinator_figures(service: "CoordinatorService") -> FigureValues:
    """The figures of the active coordinator."""
    office = service.office
    roles = [session.role for session in office.membership.all()]
    auditor = office.auditor.status()
    return {
        "magnetar_topics": office.registry.topic_count,
        "magnetar_brokers": roles.count(ROLE_BROKER),
        "magnetar_bookies": roles.count(ROLE_BOOKIE),
        "magnetar_auditor_incomplete_ledgers": auditor["incomplete"],
        "magnetar_auditor_incomplete_bytes": auditor["bytes_to_go"],
        "magnetar_auditor_repaired_ledgers": auditor["repaired_total"],
        "magnetar_auditor_copied_bytes": auditor["copied_bytes_total"],
    }


async def report_member(service: "MemberService", role: str, cluster_id: str, node_id: str) -> None:
    """Give Ray the figures of a broker or bookie, until cancelled. Other roles have none."""
    if role == ROLE_BROKER:
        from ..broker.service import BrokerService

        assert isinstance(service, BrokerService)
        metrics = RayMetrics(BROKER_FIGURES, labels_of(cluster_id, node_id))
        await report_always(metrics, lambda: broker_figures(service))
    elif role == ROLE_BOOKIE:
        from ..bookie.service import BookieService

        assert isinstance(service, BookieService)
        metrics = RayMetrics(BOOKIE_FIGURES, labels_of(cluster_id, node_id))
        await report_always(metrics, lambda: bookie_figures(service))


async def report_coordinator(service: "CoordinatorService", cluster_id: str, node_id: str) -> None:
    """Give Ray the figures of the coordinator, until cancelled."""
    metrics = RayMetrics(COORDINATOR_FIGURES, labels_of(cluster_id, node_id))
    await report_always(metrics, lambda: coordinator_figures(service))


def labels_of(cluster_id: str, node_id: str) -> Mapping[str, str]:
    """The labels of a process."""
    return {"cluster": cluster_id, "process": node_id}


def _quantiles(times: RecentTimes) -> dict[str, float]:
    """The times in milliseconds by quantile."""
    found_s = times.quantiles(asyncio.get_running_loop().time(), *QUANTILES)
    return {str(one): time_s * 1000 for one, time_s in zip(QUANTILES, found_s, strict=True)}
