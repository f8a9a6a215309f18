"""Figures of topics under the names of Pulsar's admin API, and which of them add up over the partitions of a topic.

For a partitioned topic, counters, rates, sizes and backlogs are summed, and publishers and consumers are listed
together. A subscription counts as blocked when it is blocked in one partition. Its type is that of a partition where it
has a consumer. What belongs to one partition only, its state and epochs, is shown under `partitions`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ...protocol.topic_figures import (
    CompactionFigures,
    ConsumerFigures,
    CursorFigures,
    KeySharedFigures,
    ProducerFigures,
    StorageFigures,
    SubscriptionFigures,
    TopicFigures,
)
from ...runtime.meter import time_text

NEVER_COMPACTED = CompactionFigures("NOT_RUN", "", 0, 0, 0, 0)
JsonObject = dict[str, Any]
"""An object as JSON will show it."""


_STATES = {"open": "LedgerOpened", "terminated": "Terminated"}


def topic_json(topic: TopicFigures) -> JsonObject:
    """`GET …/stats`."""
    own: JsonObject = {
        "state": topic.state,
        "ownerEpoch": topic.epoch,
        "ownerBroker": topic.broker,
        "topicCreationTimeStamp": topic.created_ms,
        "lastPublishTimeStamp": topic.last_publish_ms,
        "backlogQuotaLimitSize": topic.backlog_quota_bytes if topic.persistent else 0,
        "backlogQuotaLimitTime": topic.backlog_quota_s if topic.persistent else 0,
        "oldestBacklogMessageAgeSeconds": topic.backlog_age_s if topic.persistent else 0,
    }
    if topic.topic_epoch is not None:  # as in Pulsar, there is none before the first grant
        own["topicEpoch"] = topic.topic_epoch
    own["compaction"] = _compaction_json(topic.compaction or NEVER_COMPACTED)
    if topic.persistent:
        own["deduplicationStatus"] = topic.deduplication
    else:
        own["msgDropRate"] = sum(one.drop_rate or 0.0 for one in topic.subscriptions)
    return {**_totals([topic]), **own}


def partitioned_json(partitions: Mapping[str, TopicFigures], *, each: bool) -> JsonObject:
    """`GET …/partitioned-stats`: all partitions added up; with `each` also one by one, by name."""
    topics = list(partitions.values())
    return {
        **_totals(topics),
        "backlogQuotaLimitSize": -1,
        "backlogQuotaLimitTime": -1,
        "oldestBacklogMessageAgeSeconds": max([0, *(topic.backlog_age_s for topic in topics)]),
        "topicCreationTimeStamp": min((topic.created_ms for topic in topics if topic.created_ms), default=0),
        "lastPublishTimeStamp": max((topic.last_publish_ms for topic in topics), default=0),
        "compaction": _compaction_json(NEVER_COMPACTED),
        "metadata": {"partitions": len(partitions), "deleted": False},
        "partitions": {name: topic_json(topic) for name, topic in partitions.items()} if each else {},
    }


def storage_json(storage: StorageFigures) -> JsonObject:
    """`GET …/internalStats`."""
    ledgers = storage.ledgers
    return {
        "entriesAddedCounter": storage.entries_added,
        "numberOfEntries": sum(ledger.entries for ledger in ledgers),
        "totalSize": storage.size_bytes,
        "currentLedgerEntries": ledgers[-1].entries if ledgers else 0,
        "currentLedgerSize": ledgers[-1].size_bytes if ledgers else 0,
        "lastLedgerCreatedTimestamp": time_text(ledgers[-1].created_ms) if ledgers else "",
        "lastConfirmedEntry": _text(storage.last_confirmed),
        "pendingAddEntriesCount": storage.pending_publishes,
        "state": _STATES.get(storage.state, storage.state),
        "ledgers": [
            {
                "ledgerId": ledger.ledger_id,
                "entries": ledger.entries,
                "size": ledger.size_bytes,
                "closed": ledger.closed,
                "offloaded": False,
                "underReplicated": False,
            }
            for ledger in ledgers
        ],
        "cursors": {cursor.name: _cursor_json(cursor, storage.entries_added) for cursor in storage.cursors},
        "compactedLedger": {
            "ledgerId": -1 if storage.compacted is None else storage.compacted.ledger_id,
            "entries": -1 if storage.compacted is None else storage.compacted.entries,
            "size": -1 if storage.compacted is None else storage.compacted.size_bytes,
            "offloaded": False,
            "underReplicated": False,
        },
    }


def partitioned_storage_json(partitions: Mapping[str, StorageFigures]) -> JsonObject:
    """`GET …/partitioned-internalStats`."""
    return {
        "metadata": {"partitions": len(partitions), "deleted": False},
        "partitions": {name: storage_json(storage) for name, storage in partitions.items()},
    }


def storage_info_json(storage: StorageFigures) -> JsonObject:
    """`GET …/internal-info`."""
    return {
        "ledgers": [
            {
                "ledgerId": ledger.ledger_id,
                "entries": ledger.entries,
                "size": ledger.size_bytes,
                "timestamp": ledger.created_ms,
                "isOffloaded": False,
            }
            for ledger in storage.ledgers
        ],
        "cursors": {
            cursor.name: {
                "cursorsLedgerId": cursor.ledger_id,
                "markDelete": {"ledgerId": cursor.mark_delete[0], "entryId": cursor.mark_delete[1]},
            }
            for cursor in storage.cursors
        },
    }


def compaction_status_json(compaction: CompactionFigures) -> JsonObject:
    """`GET …/compaction`: Pulsar's LongRunningProcessStatus."""
    return {"status": compaction.state, "lastError": compaction.error}


def _compaction_json(compaction: CompactionFigures) -> JsonObject:
    return {
        "lastCompactionRemovedEventCount": compaction.removed_messages,
        "lastCompactionSucceedTimestamp": compaction.succeeded_ms,
        "lastCompactionFailedTimestamp": compaction.failed_ms,
        "lastCompactionDurationTimeInMills": compaction.duration_ms,
    }


def subscription_names(topic: TopicFigures) -> list[str]:
    """Under which names a topic's subscriptions are shown."""
    return [name for name, _ in _named(topic)]


def _named(topic: TopicFigures) -> list[tuple[str, SubscriptionFigures]]:
    """A durable and a non-durable subscription may share a name: the latter is then marked."""
    durable = {one.name for one in topic.subscriptions if one.durable}
    return [
        (f"{one.name} (non-durable)" if not one.durable and one.name in durable else one.name, one)
        for one in topic.subscriptions
    ]


def _totals(topics: Sequence[TopicFigures]) -> JsonObject:
    messages, size = sum(topic.messages for topic in topics), sum(topic.bytes for topic in topics)
    subscriptions: dict[str, list[SubscriptionFigures]] = {}
    for topic in topics:
        for name, one in _named(topic):
            subscriptions.setdefault(name, []).append(one)
    parts_of_each = subscriptions.values()
    return {
        "msgRateIn": sum(topic.message_rate for topic in topics),
        "msgThroughputIn": sum(topic.byte_rate for topic in topics),
        "msgInCounter": messages,
        "bytesInCounter": size,
        "msgRateOut": sum(_message_rate(parts) for parts in parts_of_each),
        "msgThroughputOut": sum(_byte_rate(parts) for parts in parts_of_each),
        "msgOutCounter": sum(_messages(parts) for parts in parts_of_each),
        "bytesOutCounter": sum(_bytes(parts) for parts in parts_of_each),
        "averageMsgSize": size / messages if messages else 0.0,
        "msgChunkPublished": any(topic.has_chunks for topic in topics),
        "storageSize": sum(topic.storage_bytes for topic in topics),
        "backlogSize": sum(topic.backlog_bytes for topic in topics),
        "nonContiguousDeletedMessagesRanges": sum(part.acknowledged_ranges for one in parts_of_each for part in one),
        "delayedMessageIndexSizeInBytes": sum(part.delayed_index_bytes for one in parts_of_each for part in one),
        "waitingPublishers": sum(topic.waiting_producers for topic in topics),
        "publishers": [_producer_json(producer) for topic in topics for producer in topic.producers],
        "subscriptions": {name: _subscription_json(parts) for name, parts in subscriptions.items()},
        "pendingPublishes": sum(topic.pending_publishes for topic in topics),
    }


def _subscription_json(parts: Sequence[SubscriptionFigures]) -> JsonObject:
    """One subscription, in as many partitions as it is in."""
    consumers = [consumer for part in parts for consumer in part.consumers]
    backlog = sum(part.backlog_entries for part in parts)
    delayed = sum(part.delayed_entries for part in parts)
    properties: dict[str, str] = {}
    for part in parts:
        properties.update(part.properties)
    figures: JsonObject = {
        "msgRateOut": _message_rate(parts),
        "msgThroughputOut": _byte_rate(parts),
        "bytesOutCounter": _bytes(parts),
        "msgOutCounter": _messages(parts),
        "msgRateRedeliver": sum(consumer.redelivery_rate for consumer in consumers),
        "messageAckRate": sum(consumer.acknowledge_rate for consumer in consumers),
        "chunkedMessageRate": sum(consumer.chunk_rate for consumer in consumers),
        "msgBacklog": backlog,
        "msgBacklogNoDelayed": max(backlog - delayed, 0),
        "msgDelayed": delayed,
        "delayedMessageIndexSizeInBytes": sum(part.delayed_index_bytes for part in parts),
        "backlogSize": sum(part.backlog_bytes for part in parts),
        "nonContiguousDeletedMessagesRanges": sum(part.acknowledged_ranges for part in parts),
        "msgInReplay": sum(part.replay_entries for part in parts),
        "unackedMessages": sum(part.unacked_messages for part in parts),
        "blockedSubscriptionOnUnackedMsgs": any(part.blocked for part in parts),
        "type": next((part.type for part in parts if part.type), "None"),
        "durable": parts[0].durable,
        "isDurable": parts[0].durable,
        **_times_json(parts, consumers),
        "msgRateExpired": sum(part.expire_rate for part in parts),
        "msgExpired": sum(part.expired_entries for part in parts),
        "totalMsgExpired": sum(part.expired_entries for part in parts),
        "lastExpireTimestamp": max(part.last_expire_ms for part in parts),
        "subscriptionProperties": properties,
        **_draining_json([consumer.key_shared for consumer in consumers]),
        "consumers": [_consumer_json(consumer) for consumer in consumers],
    }
    active = next((part.active_consumer for part in parts if part.active_consumer is not None), None)
    if active is not None:
        figures["activeConsumerName"] = active
    if parts[0].drop_rate is not None:
        figures["msgDropRate"] = sum(part.drop_rate or 0.0 for part in parts)
        figures["msgDropCounter"] = sum(part.dropped_messages for part in parts)
    keys = next((consumer.key_shared for consumer in consumers if consumer.key_shared is not None), None)
    figures["allowOutOfOrderDelivery"] = keys is not None and keys.allow_out_of_order
    if keys is not None:
        figures["keySharedMode"] = keys.mode
    return figures


def _times_json(parts: Sequence[SubscriptionFigures], consumers: Sequence[ConsumerFigures]) -> JsonObject:
    return {
        "lastConsumedTimestamp": max([one.last_consumed_ms for one in consumers], default=0),
        "lastAckedTimestamp": max([one.last_acknowledged_ms for one in consumers], default=0),
        "lastConsumedFlowTimestamp": max(part.last_flow_ms for part in parts),
        "lastMarkDeleteAdvancedTimestamp": max(part.last_mark_delete_ms for part in parts),
    }


def _draining_json(consumers: Sequence[KeySharedFigures | None]) -> JsonObject:
    keys = [one for one in consumers if one is not None]
    return {
        "drainingHashesCount": sum(len(one.draining) for one in keys),
        "drainingHashesClearedTotal": sum(one.drained for one in keys),
        "drainingHashesUnackedMessages": sum(slot.unacked_messages for one in keys for slot in one.draining),
    }


def _key_shared_json(keys: KeySharedFigures | None) -> JsonObject:
    """As in Pulsar, what drains is listed only where hashes can drain: split, and in order."""
    if keys is None:
        return {}
    figures: JsonObject = {
        "keyHashRangeArrays": keys.ranges,
        "keyHashRanges": [f"[{start}, {end}]" for start, end in keys.ranges],
    }
    if keys.mode == "AUTO_SPLIT" and not keys.allow_out_of_order:
        figures["drainingHashes"] = [
            {"hash": slot.slot, "unackMsgs": slot.unacked_messages, "blockedAttempts": slot.blocked_attempts}
            for slot in keys.draining
        ]
    return figures


def _consumer_json(consumer: ConsumerFigures) -> JsonObject:
    return {
        **_draining_json([consumer.key_shared]),
        **_key_shared_json(consumer.key_shared),
        "msgRateOut": consumer.message_rate,
        "msgThroughputOut": consumer.byte_rate,
        "bytesOutCounter": consumer.bytes,
        "msgOutCounter": consumer.messages,
        "msgRateRedeliver": consumer.redelivery_rate,
        "messageAckRate": consumer.acknowledge_rate,
        "chunkedMessageRate": consumer.chunk_rate,
        "avgMessagesPerEntry": consumer.messages_per_entry,
        "consumerName": consumer.name,
        "availablePermits": consumer.permits,
        "unackedMessages": consumer.unacked_messages,
        "blockedConsumerOnUnackedMsgs": consumer.blocked,
        "firstConsumedFlowTimestamp": consumer.first_flow_ms,
        "firstMessagesSentTimestamp": consumer.first_consumed_ms,
        "lastConsumedTimestamp": consumer.last_consumed_ms,
        "lastAckedTimestamp": consumer.last_acknowledged_ms,
        "lastConsumedFlowTimestamp": consumer.last_flow_ms,
        "lastConsumedTime": time_text(consumer.last_consumed_ms),
        "lastAckedTime": time_text(consumer.last_acknowledged_ms),
        "address": consumer.address,
        "clientVersion": consumer.client_version,
        "connectedSince": time_text(consumer.connected_since_ms),
        "metadata": consumer.metadata,
    }


def _producer_json(producer: ProducerFigures) -> JsonObject:
    return {
        "msgRateIn": producer.message_rate,
        "msgThroughputIn": producer.byte_rate,
        "chunkedMessageRate": producer.chunk_rate,
        "averageMsgSize": producer.average_message_bytes,
        "producerId": producer.producer_id,
        "producerName": producer.name,
        "accessMode": producer.access_mode,
        "address": producer.address,
        "clientVersion": producer.client_version,
        "connectedSince": time_text(producer.connected_since_ms),
        "metadata": producer.metadata,
    }


def _cursor_json(cursor: CursorFigures, entries_added: int) -> JsonObject:
    """As in Pulsar, what is consumed counts from where the topic stood when it was loaded, and may be below zero."""
    return {
        "markDeletePosition": _text(cursor.mark_delete),
        "readPosition": _text(cursor.read),
        "numberOfEntriesSinceFirstNotAckedMessage": cursor.entries_to_read,
        "totalNonContiguousDeletedMessagesRange": cursor.acknowledged_ranges,
        "individuallyDeletedMessages": _ranges_text(cursor),
        "messagesConsumedCounter": entries_added - cursor.backlog_entries,
        "cursorLedger": cursor.ledger_id,
        "properties": cursor.properties,
    }


def _ranges_text(cursor: CursorFigures) -> str:
    """As Pulsar writes them: each opens behind the entry in front of it. The list ends with `…` if there are more."""
    shown = [f"({ledger}:{first - 1}..{ledger}:{last}]" for ledger, first, last in cursor.first_ranges]
    if len(shown) < cursor.acknowledged_ranges:
        shown.append("…")
    return f"[{','.join(shown)}]"


def _message_rate(parts: Sequence[SubscriptionFigures]) -> float:
    return sum(consumer.message_rate for part in parts for consumer in part.consumers)


def _byte_rate(parts: Sequence[SubscriptionFigures]) -> float:
    return sum(consumer.byte_rate for part in parts for consumer in part.consumers)


def _messages(parts: Sequence[SubscriptionFigures]) -> int:
    return sum(part.messages for part in parts)


def _bytes(parts: Sequence[SubscriptionFigures]) -> int:
    return sum(part.bytes for part in parts)


def _text(position: Sequence[int]) -> str:
    """`ledger:entry`."""
    return f"{position[0]}:{position[1]}"
