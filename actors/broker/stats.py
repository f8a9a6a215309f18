"""What a topic tells about itself, under the names of Pulsar's admin API."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from ...protocol.message_id import Position
from ..topics.persistent import PersistentTopic


def topic_stats(topic: PersistentTopic) -> dict[str, Any]:
    """`GET …/stats`: rates in messages and bytes per second, sizes in bytes, times in milliseconds since the epoch."""
    now_s = asyncio.get_running_loop().time()
    ledger, published = topic.ledger, topic.publishing.published
    subscriptions = {
        name if durable else f"{name} (non-durable)" if (name, True) in topic.subscriptions else name: item.stats(now_s)
        for (name, durable), item in sorted(topic.subscriptions.items(), key=lambda pair: pair[0])
    }
    return {
        "msgRateIn": published.message_rate(now_s),
        "msgThroughputIn": published.byte_rate(now_s),
        "msgInCounter": published.messages,
        "bytesInCounter": published.bytes,
        "msgRateOut": _sum(subscriptions.values(), "msgRateOut"),
        "msgThroughputOut": _sum(subscriptions.values(), "msgThroughputOut"),
        "msgOutCounter": _sum(subscriptions.values(), "msgOutCounter"),
        "bytesOutCounter": _sum(subscriptions.values(), "bytesOutCounter"),
        "averageMsgSize": published.bytes / published.messages if published.messages else 0.0,
        "storageSize": ledger.size_bytes,
        "backlogSize": ledger.backlog_bytes,
        "publishers": [producer.stats(now_s) for producer in topic.publishing.producers.values()],
        "subscriptions": subscriptions,
        "pendingPublishes": topic.publishing.pending,
        "state": topic.state.value,
        "topicEpoch": topic.epoch,
    }


def internal_stats(topic: PersistentTopic) -> dict[str, Any]:
    """`GET …/internalStats`: the chain of ledgers and the cursors."""
    ledger = topic.ledger
    infos = ledger.ledger_infos
    return {
        "entriesAddedCounter": topic.publishing.published.entries,
        "numberOfEntries": sum(info.entries for info in infos),
        "totalSize": ledger.size_bytes,
        "currentLedgerEntries": infos[-1].entries if infos else 0,
        "currentLedgerSize": infos[-1].size_bytes if infos else 0,
        "lastConfirmedEntry": _text(ledger.last_confirmed),
        "pendingAddEntriesCount": topic.publishing.pending,
        "state": "LedgerOpened" if topic.state.value == "open" else topic.state.value,
        "ledgers": [
            {"ledgerId": info.ledger_id, "entries": info.entries, "size": info.size_bytes, "closed": info.closed}
            for info in infos
        ],
        "cursors": {
            name: {
                "markDeletePosition": _text(cursor.mark_delete_position),
                "readPosition": _text(cursor.first_unacknowledged),
                "numberOfEntriesSinceFirstNotAckedMessage": cursor.backlog_entries,
                "individuallyDeletedMessagesRanges": cursor.acknowledged_ranges,
                "properties": dict(cursor.properties),
            }
            for name, cursor in sorted(ledger.cursors.items())
        },
    }


def _sum(items: Iterable[Mapping[str, Any]], key: str) -> Any:
    return sum(item[key] for item in items)


def _text(position: Position) -> str:
    """`ledger:entry`."""
    return f"{position[0]}:{position[1]}"
