"""Every deliberate difference between Magnetar and Apache Pulsar 4.2.4 that a scenario shows, with its reason.

`test_parity` fails when a listed difference no longer exists. Three things are never compared, and so not listed:

- Texts of errors, in frames and in bodies of refused requests. Our sentences are our own. A recording keeps Pulsar's
  in a line that begins with `#`.
- Ids of ledgers, times, addresses, rates and made-up names, other than whether they are there and the same
  (`normalizing`).
- The order of lists of names in answers of the admin.
"""

from .comparing import Difference

STATISTICS = r"statistics.*"
"""Steps that show the statistics of a topic have a label that begins so."""


def _left_out(reason: str, *fields: str) -> list[Difference]:
    """Fields of statistics that only Pulsar has, by their last names."""
    path = r"\.(\S*\.)?"
    return [Difference(reason, rf"{path}{field}(\.\S+)? = .*", None, steps=STATISTICS) for field in fields]


DIFFERENCES: tuple[Difference, ...] = (
    *_left_out("Magnetar has no transactions yet", "(aborted|committed|ongoing)TxnCount"),
    *_left_out("Magnetar has no backlog quotas yet", "backlogQuotaLimit(Size|Time)"),
    *_left_out("Magnetar has no compaction yet", "compaction"),
    *_left_out("Magnetar has no deduplication yet", "deduplicationStatus"),
    *_left_out("Magnetar has no delayed delivery yet", "(msgDelayed|delayedMessageIndexSizeInBytes)"),
    *_left_out("Magnetar has no message expiry yet", "(msgExpired|totalMsgExpired|lastExpireTimestamp|msgRateExpired)"),
    *_left_out("Magnetar has no replication yet", "(replication|replicated|isReplicated)"),
    *_left_out("Magnetar has no limits of rates yet", "(dispatchThrottled\\w+|publishRateLimitedTimes)"),
    *_left_out("Magnetar offloads no ledgers", "(offloadedStorageSize|lastOffload\\w+)"),
    *_left_out("Magnetar has no filters of entries", "filter\\w+MsgCount"),
    *_left_out("Magnetar has no system topics yet", "(systemTopicBytesInCounter|bytesOutInternalCounter)"),
    *_left_out("Magnetar does not ask how old a backlog is yet", "(oldest|earliest)\\w*Backlog\\w*"),
    *_left_out("Magnetar has no chunks yet", "(chunkedMessageRate|msgChunkPublished)"),
    *_left_out("Magnetar has no Key_Shared yet", "(drainingHashes\\w+|allowOutOfOrderDelivery)"),
    *_left_out("the same figure has another name, too: isDurable", "durable"),
    *_left_out("Magnetar does not count it", "nonContiguousDeletedMessagesRanges(SerializedSize)?"),
    *_left_out("Magnetar does not tell it", "(supportsPartialProducer|consumersAfterMarkDeletePosition|ownerBroker)"),
    *_left_out("Magnetar does not note the time", "(lastPublishTimeStamp|topicCreationTimeStamp)"),
    *_left_out("Magnetar does not note the time", "consumers.*(firstConsumedFlowTimestamp|firstMessagesSentTimestamp)"),
    *_left_out("Consumers have it, a subscription has not", r"subscriptions\.\w+\.last\w+Timestamp"),
    *_left_out("Magnetar does not add it up", r"subscriptions\.\w+\.(backlogSize|activeConsumerName)"),
    Difference(
        "a time that never came is no text, while Pulsar tells the first moment of 1970",
        r"\S*\.lastAckedTime = <time>",
        r"\S*\.lastAckedTime = \"\"",
        steps=STATISTICS,
    ),
    Difference("the epoch of the ownership", None, r"\.ownerEpoch = .*", steps=STATISTICS),
    Difference("the broker says whether the topic takes publishes", None, r"\.state = .*", steps=STATISTICS),
    Difference("the broker says how many entries are on their way", None, r"\.pendingPublishes = .*", steps=STATISTICS),
)
