"""Figures of topics, as a broker tells them, for tests of those that show them."""

from typing import Any

from magnetar.protocol.topic_figures import (
    ConsumerFigures,
    LedgerFigures,
    ProducerFigures,
    StorageFigures,
    SubscriptionFigures,
    TopicFigures,
)

PEER: dict[str, Any] = {"address": "/127.0.0.1:1", "client_version": "c", "connected_since_ms": 1000, "metadata": {}}


def producer_figures(name: str) -> ProducerFigures:
    return ProducerFigures(
        producer_id=1,
        name=name,
        access_mode="Shared",
        message_rate=0.5,
        byte_rate=2.5,
        chunk_rate=0.0,
        average_message_bytes=5.0,
        **PEER,
    )


def consumer_figures(name: str, **changes: Any) -> ConsumerFigures:
    given = {
        "messages": 4,
        "bytes": 40,
        "message_rate": 1.0,
        "byte_rate": 10.0,
        "redelivery_rate": 0.25,
        "acknowledge_rate": 0.75,
        "chunk_rate": 0.0,
        "messages_per_entry": 1,
        "permits": 10,
        "unacked_messages": 2,
        "blocked": False,
        "last_consumed_ms": 2000,
        "last_acknowledged_ms": 3000,
        "last_flow_ms": 4000,
    }
    return ConsumerFigures(name=name, **PEER, **{**given, **changes})  # type: ignore[arg-type]


def subscription_figures(name: str, **changes: Any) -> SubscriptionFigures:
    given = {
        "durable": True,
        "type": "Shared",
        "properties": {},
        "messages": 5,
        "bytes": 50,
        "backlog_entries": 1,
        "replay_entries": 0,
        "unacked_messages": 2,
        "blocked": False,
        "consumers": [],
    }
    return SubscriptionFigures(name=name, **{**given, **changes})  # type: ignore[arg-type]


def topic_figures(**changes: Any) -> TopicFigures:
    given = {
        "state": "open",
        "epoch": 7,
        "messages": 2,
        "bytes": 10,
        "message_rate": 0.5,
        "byte_rate": 2.5,
        "pending_publishes": 1,
        "has_chunks": False,
        "storage_bytes": 100,
        "backlog_bytes": 20,
        "producers": [producer_figures("p")],
        "subscriptions": [subscription_figures("s")],
    }
    return TopicFigures(**{**given, **changes})


def storage_figures(entries: int) -> StorageFigures:
    return StorageFigures(
        state="open",
        entries_added=entries,
        pending_publishes=0,
        size_bytes=10 * entries,
        last_confirmed=(1, entries - 1),
        ledgers=[LedgerFigures(1, entries, 10 * entries, False)],
        cursors=[],
    )
