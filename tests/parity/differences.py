"""Every deliberate difference between Magnetar and Apache Pulsar 4.2.4 that a scenario shows, with its reason.

`test_parity` fails when a listed difference no longer exists. Three things are never compared, and so not listed:

- Texts of errors, in frames and in bodies of refused requests. Our sentences are our own. A recording keeps Pulsar's
  in a line that begins with `#`.
- Ids of ledgers, times, addresses, rates and made-up names, other than whether they are there and the same
  (`normalizing`).
- The order of lists of names in answers of the admin.
"""

from .comparing import Difference

STATISTICS = r"statistics.*|pulsar-admin topics (partitioned-)?stats .*"
"""The labels of steps that show the statistics of a topic."""

INSIDE = r"pulsar-admin topics (partitioned-stats-internal|stats-internal|info-internal) .*"
"""Those of steps that show how a topic is stored."""


def _left_out(reason: str, *fields: str) -> list[Difference]:
    """Fields of statistics that only Pulsar has, by their last names."""
    path = r"\.(\S*\.)?"
    return [Difference(reason, rf"{path}{field}(\.\S+)? = .*", None, steps=STATISTICS) for field in fields]


DIFFERENCES: tuple[Difference, ...] = (
    *_left_out("Magnetar has no transactions yet", "(aborted|committed|ongoing)TxnCount"),
    *_left_out("Magnetar has no replication yet", "(replication|replicated|isReplicated)"),
    *_left_out(
        "Magnetar does not count what a limit of rates held back", "(dispatchThrottled\\w+|publishRateLimitedTimes)"
    ),
    *_left_out("Magnetar offloads no ledgers", "(offloadedStorageSize|lastOffload\\w+)"),
    *_left_out("Magnetar has no filters of entries", "filter\\w+MsgCount"),
    *_left_out("Magnetar has no system topics yet", "(systemTopicBytesInCounter|bytesOutInternalCounter)"),
    *_left_out("Magnetar does not ask when a backlog began", "earliest\\w*Backlog\\w*"),
    *_left_out(
        "a cursor is stored in another form, in which its ranges have no size of their own",
        "nonContiguousDeletedMessagesRangesSerializedSize",
    ),
    *_left_out("it says something of the client's library, not of the topic", "supportsPartialProducer"),
    *_left_out("Pulsar no longer fills it in", "consumersAfterMarkDeletePosition"),
    Difference("the epoch of the ownership", None, r"\S*\.ownerEpoch = .*", steps=STATISTICS),
    Difference("the broker says whether the topic takes publishes", None, r"\S*\.state = .*", steps=STATISTICS),
    Difference(
        "the broker says how many entries are on their way", None, r"\S*\.pendingPublishes = .*", steps=STATISTICS
    ),
    Difference(
        "no client reads the highest sequence id of a receipt; Pulsar says -1 where the producer named none",
        r"(SEND_RECEIPT .*) highest_sequence_id=18446744073709551615",
        r"SEND_RECEIPT .*",
    ),
    Difference(
        "a producer's session ends with an entry that is refused, so that later ones are not stored in its place",
        "SEND_RECEIPT .*",
        "CLOSE_PRODUCER .*",
        "an_entry_with_a_wrong_checksum_is_refused",
        "a whole one after it",
    ),
    Difference(
        "the broker says at once that there is no such namespace; Pulsar asks for a lookup, which says so",
        "ERROR error=ServiceNotReady",
        "ERROR error=TopicNotFound",
        steps="a (namespace|tenant) that does not exist",
    ),
    Difference(
        "Pulsar answers with a code of producers, which clients take for a passing error",
        "ERROR error=ProducerBusy",
        "ERROR error=NotAllowedError",
        "a_subscribe_command_with_impossible_fields_is_refused",
        "no subscription name",
    ),
    *(
        Difference(
            "a topic without types of its own answers alike, whether or not it has other policies",
            theirs,
            ours,
            "types_of_subscriptions_are_enabled_by_namespace_and_topic",
            "types of a topic: not set",
        )
        for theirs, ours in (("status 204", "status 200"), ("no body", r"body = \[\]"))
    ),
    Difference(
        "a flow of no permits does no harm; Pulsar ends the connection",
        "the server closed the connection",
        "nothing",
        "messages_come_only_for_permits",
        "a flow of nothing",
    ),
    Difference(
        "these fields belong to Pulsar's Java class of ids, and say nothing of the message",
        r"\.(batchSize|originalBatchSize|outstandingAcksInSameBatch) = 0",
        None,
        "the_last_message_id_is_that_of_the_last_message",
    ),
    Difference(
        "a made-up name belongs to one producer: its next epoch takes over from a connection that died unnoticed",
        "ERROR error=ProducerBusy|nothing",
        r"PRODUCER_SUCCESS .*|CLOSE_PRODUCER .*",
        "a_producer_comes_back_with_its_next_epoch",
        "next epoch|the first learns it",
    ),
    Difference(
        "the broker answers that there is no such consumer; Pulsar ends the connection",
        "the server closed the connection",
        "CONSUMER_STATS_RESPONSE error_code=ConsumerNotFound.*",
        "commands_of_an_unknown_consumer_are_refused",
        "statistics",
    ),
    Difference(
        "a consumer that asks for a receipt gets an answer; Pulsar is silent, and the client waits in vain",
        "nothing",
        "ACK_RESPONSE consumer_id=9 error=ConsumerNotFound",
        "commands_of_an_unknown_consumer_are_refused",
    ),
    Difference(
        "a refusal has a JSON body with a reason, always; Pulsar answers some with the text of a Java exception",
        "another body",
        "a JSON body with a reason",
    ),
    Difference(
        "a path that is missing answers 501, so that nobody takes it for a topic that does not exist",
        "status 404",
        "status 501",
        steps="a path that does not exist",
    ),
    Difference("a topic has a whole number of partitions", "status 204", "status 400", steps="create with a fraction"),
    Difference(
        "a topic has a whole number of partitions",
        "no body",
        "a JSON body with a reason",
        steps="create with a fraction",
    ),
    Difference(
        "the id of a topic without messages names no ledger, by HTTP as by frames",
        r"\.ledgerId = L1",
        r"\.ledgerId = -1",
        "a_topic_is_created_used_and_deleted",
    ),
    Difference(
        "the id of a topic without messages names no ledger, by HTTP as by frames",
        r"(\.\d)?\.ledgerId = L\d",
        r"(\.\d)?\.ledgerId = -1",
        "other_topics_are_terminated",
    ),
    Difference(
        "a body that names no place is refused; Pulsar takes it for an id and begins at the end",
        "status 204|no body",
        "status 412|a JSON body with a reason",
        "subscriptions_are_managed_by_the_admin",
        "create with a strange body",
    ),
    Difference(
        "a body that names no place is refused; Pulsar takes it for an id and begins at the end",
        r"\[\d\] = \"strange\"",
        None,
        "subscriptions_are_managed_by_the_admin",
        "list.*",
    ),
    Difference(
        "it is the request that is wrong, not the server", "status 500", "status 412", steps="reset without a place"
    ),
    Difference("it is the request that is wrong, not the server", "status 500", "status 412", "lookups_by_the_admin"),
    Difference(
        "a ledger shows what is in it while it is open; Pulsar counts it when it is closed",
        r"(\S*)\.ledgers\[0\]\.(entries|size) = 0",
        r"(\S*)\.ledgers\[0\]\.(entries|size) = [1-9]\d*",
    ),
    Difference(
        "the broker names the features that it has; replication is not among them",
        "CONNECTED .*",
        "CONNECTED protocol_version=.* max_message_size=5242880 feature_flags=.*",
        "a_connection_begins_with_connect",
    ),
    Difference(
        "a client gets all topics when the broker does not understand its pattern, and matches them itself",
        "ERROR error=MetadataError",
        "GET_TOPICS_OF_NAMESPACE_RESPONSE topics=.*",
        "filtered",
        "an open group",
    ),
    Difference(
        "a stranger's pattern is matched in linear time only, which look-aheads do not allow; clients poll then",
        "WATCH_TOPIC_LIST_SUCCESS watcher_id=5 .*",
        "ERROR error=InvalidTopicName",
        "unwatchable",
        "a look-ahead",
    ),
    Difference(
        "a pattern that names no domain of topics is wrong, and its sender may have any rights",
        "ERROR error=AuthorizationError",
        "ERROR error=InvalidTopicName",
        "unwatchable",
        "a domain that does not exist",
    ),
    Difference(
        "the broker answers with an error; Pulsar ends the connection",
        "the server closed the connection",
        "ERROR error=InvalidTopicName",
        "lists_of_topics_name_them_by_mode",
        "an impossible namespace",
    ),
    Difference(
        "only a standalone Pulsar sends clients through its service URL",
        r"(LOOKUP_RESPONSE .*) proxy_through_service_url=True",
        "LOOKUP_RESPONSE .* response=Connect .*",
    ),
    Difference(
        "an unknown listener is the request's fault; 500 calls for another try, which cannot succeed",
        '"500 "',
        '"412 "',
        "the_admin_answers_the_address_of_a_listener",
        "one that does not exist",
    ),
    Difference(
        "a lookup says already that the topic does not exist; Pulsar leaves that to the producer or consumer",
        "LOOKUP_RESPONSE .*",
        "LOOKUP_RESPONSE response=Failed error=TopicNotFound",
        "partition_metadata_without_automatic_creation",
    ),
    Difference(
        "a non-persistent topic has no last message: the error says so; Pulsar's is an unknown one",
        "ERROR",
        "ERROR error=NotAllowedError",
        "commands_on_a_non_persistent_topic",
        "last message id",
    ),
    Difference(
        "a topic that is not there cannot be deleted, persistent or not",
        "status 204|no body",
        "status 404|a JSON body with a reason",
        "non_persistent_topics_in_the_admin",
        "delete again",
    ),
    Difference(
        "only subscriptions drop messages: the broker hands on what a producer sends in the step in which it comes",
        r"\.publishers\[0\]\.msgDropRate = 0",
        None,
        "statistics_of_a_non_persistent_topic",
    ),
    Difference(
        "the drops are counted, too, and not only their rate",
        None,
        r"\.subscriptions\.s\.msgDropCounter = .*",
        "statistics_of_a_non_persistent_topic",
    ),
    Difference(
        "when the subscription got messages is told, as of its consumers",
        r"\.subscriptions\.s\.lastConsumedTimestamp = 0",
        r"\.subscriptions\.s\.lastConsumedTimestamp = <time>",
        "statistics_of_a_non_persistent_topic",
    ),
    Difference(
        "without a consumer a subscription reads from its first unacknowledged message; Pulsar sees to that later",
        r"\.cursors\.s\.(numberOfEntriesSinceFirstNotAckedMessage = 3|readPosition = \"L1:2\")",
        r"\.cursors\.s\.(numberOfEntriesSinceFirstNotAckedMessage = 1|readPosition = \"L1:0\")",
        "positions_of_a_subscription_follow_what_is_read",
        "internal without a consumer",
    ),
    Difference(
        "the broker does not read ahead what no consumer may get",
        r"\.subscriptions\.s\.msgInReplay = [1-9]\d*",
        r"\.subscriptions\.s\.msgInReplay = 0",
        "a_consumer_with_too_many_unacknowledged_messages_waits",
    ),
    Difference(
        "messages of a batch that are acknowledged do not count as sent when the rest of it comes again",
        r"\.subscriptions\.s\.msgOutCounter = [48]",
        r"\.subscriptions\.s\.msgOutCounter = [367]",
        "messages_of_a_batch_stay_.*|sets_of_open_messages_are_kept_.*|a_negative_acknowledgement_of_one_message_.*",
    ),
    Difference(
        "a consumer holds no fewer messages than none",
        r"(\.subscriptions\.s\.\S*unackedMessages) = -2",
        r"\.subscriptions\.s\.\S*unackedMessages = 0",
        "messages_of_a_batch_stay_acknowledged_when_their_consumer_restarts",
    ),
    Difference(
        "what is acknowledged of a batch survives the broker, as Pulsar's documentation says; Pulsar forgets it",
        r"b'[13]' L1:0:-1:[13] .*|(\.subscriptions\.s\.\S*unackedMessages) = 4",
        r"b'3' L1:0:-1:3 .*|missing: 1|(\.subscriptions\.s\.\S*unackedMessages) = 3",
        "messages_of_a_batch_stay_acknowledged_over_an_unload",
    ),
    Difference(
        "a message that the batch does not have is not counted",
        r"(\.subscriptions\.s\.\S*unackedMessages) = [02]",
        r"(\.subscriptions\.s\.\S*unackedMessages) = [13]",
        "sets_of_open_messages_that_do_not_fit",
    ),
    Difference(
        "an acknowledgement without effect leaves the count of deliveries",
        "(MESSAGE .*) redelivery_count=1",
        "(MESSAGE .*) redelivery_count=2",
        "sets_of_open_messages_are_left_out_without_the_brokers_switch",
        "what is left",
    ),
    Difference(
        "what is not there is answered with 404; Pulsar's broker fails",
        "status 500",
        "status 404",
        "subscriptions_of_a_non_persistent_topic_live_as_long_as_it",
        "skip all",
    ),
    Difference(
        "where non-persistent topics are switched off none is created, partitioned or not",
        "status 204|no body",
        "status 412|a JSON body with a reason",
        "non_persistent_topics_can_be_switched_off",
        "partitions",
    ),
    Difference(
        "a topic that stores nothing cannot be compacted, whether it is there or not",
        "status 404",
        "status 405",
        "a_topic_is_compacted_on_request",
        "a non-persistent topic",
    ),
    Difference(
        "no subscription may have the name of a cursor of the broker's own",
        "status 204|no body",
        "status 412|a JSON body with a reason",
        "compaction_outlives_an_unload",
        "a subscription of that name",
    ),
    Difference(
        "what comes in is counted when it is stored, and duplicates are not; Pulsar counts what arrives",
        r"\.msgInCounter = (12|7)",
        r"\.msgInCounter = (9|6)",
        "batches_are_told_by_their_highest_sequence_id|chunks_share_a_sequence_id",
    ),
    Difference(
        "it is the request that is wrong, not the server",
        "status 500",
        "status 40[04]|status 412",
        "messages_are_found_by_id_and_by_time|messages_of_a_backlog_are_peeked_at",
    ),
    Difference(
        "a number that is none is a wrong request, not a path that is missing",
        "status 404",
        "status 400",
        "messages_of_a_backlog_are_peeked_at",
        "a number that is a text",
    ),
    Difference(
        "a subscription that does not exist cannot be peeked at; Pulsar creates a cursor to look",
        'status 200|body = "message one"',
        "status 404|a JSON body with a reason",
        "messages_of_a_backlog_are_peeked_at",
        "of a missing subscription",
    ),
    Difference(
        "the broker's clock decides how old a message is; for Pulsar it is the clock of the producer",
        r"\.subscriptions\.s\.msgBacklog = 2",
        r".subscriptions.s.msgBacklog = 3",
        "the_clock_of_a_producer_and_the_age_of_its_messages",
        "(an hour behind|of 1970): backlog behind 1800 s",
    ),
    Difference(
        "the broker's clock decides how old a message is; Pulsar expires nothing behind one from next year",
        r"\.subscriptions\.s\.msgBacklog = 3",
        r".subscriptions.s.msgBacklog = 0",
        "the_clock_of_a_producer_and_the_age_of_its_messages",
        "a year ahead: backlog behind 3 s",
    ),
    Difference(
        "the operator is told that no message was that old; Pulsar says so where consumers are connected",
        "status 204|no body",
        "status 409|a JSON body with a reason",
        "the_clock_of_a_producer_and_the_age_of_its_messages",
        ".*: expire what is 1800 s old",
    ),
    Difference(
        "a time below zero is refused; Pulsar takes it for the future, and all messages expire",
        "status 204|no body",
        "status 400|a JSON body with a reason",
        "an_operator_expires_old_messages",
        "a time below zero",
    ),
    Difference(
        "a number that is none is a wrong request, not a path that is missing",
        "status 404",
        "status 400",
        "an_operator_expires_old_messages",
        "a time that is a text",
    ),
    Difference(
        "`limit` is an old name of `limitSize`, which is shown",
        r"\.\w+\.limit = \d+",
        None,
        "quotas_of_backlogs_are_policies",
    ),
    Difference(
        "a word that is no strategy is refused; Pulsar removes the policy",
        "status 204|no body",
        "status 400|a JSON body with a reason",
        "the_strategy_of_a_topic_comes_before_that_of_its_namespace",
        "no strategy",
    ),
    Difference(
        "nothing of a cluster is written in Java",
        r"\.brokerClient(SslFactoryPlugin|TlsKeyStoreType|TlsTrustStoreType) = .*",
        None,
        steps="pulsar-admin clusters get .*",
    ),
    Difference(
        "each has its own version", r'(body = )?"?4\.2\.4"?', r'(body = )?"?\d+\.\d+\.\d+"?', steps=".* version"
    ),
    Difference(
        "bookies have names, which survive a change of address",
        r"\.bookies\[0\]\.bookieId = .*",
        r"\.bookies\[0\]\.bookieId = \"bookie-1\"",
        steps=".* list-bookies",
    ),
    Difference(
        "the id of a topic without messages names no ledger, by HTTP as by frames",
        r"\.\d\.ledgerId = L\d|(Topic \S+ successfully terminated at) L\d:-1:-1",
        r"\.\d\.ledgerId = -1|(Topic \S+ successfully terminated at) -1:-1:-1",
        "the_tool_ends_topics",
    ),
    Difference(
        "what is not there is answered with 404; Pulsar's broker fails",
        "status 500",
        "status 404",
        "the_tool_looks_at_messages",
        ".* -e 99",
    ),
    Difference(
        "these say how a Java class waits for entries",
        r"\S*\.(active|pendingReadOps|state|subscriptionHavePending\w+|waitingReadOp|waitingCursorsCount) = .*",
        None,
        steps=INSIDE,
    ),
    Difference(
        "a cursor is stored in a ledger once it has moved, and Pulsar's at once",
        r"\S*\.(cursorLedger|cursorsLedgerId) = .*",
        r"\S*\.(cursorLedger|cursorsLedgerId) = -1",
        steps=INSIDE,
    ),
    Difference(
        "a cursor is stored in a ledger once it has moved, and Pulsar's at once",
        r"\S*\.(cursorLedgerLastEntry|lastLedgerSwitchTimestamp) = .*",
        None,
        steps=INSIDE,
    ),
    Difference(
        "a cursor in front of all entries reads from the first one; Pulsar sees to that later",
        r"\S*\.(numberOfEntriesSinceFirstNotAckedMessage = 0|readPosition = \"L\d:-1\")",
        r"\S*\.(numberOfEntriesSinceFirstNotAckedMessage = 1|readPosition = \"L\d:0\")",
        steps=INSIDE,
    ),
    Difference("schemas are stored in no ledgers", r"\S*\.schemaLedgers = \[\]", None, steps=INSIDE),
    Difference("topics have no properties yet", r"\S*\.properties = {}", None, steps=INSIDE),
    Difference("a ledger says whether it is closed", None, r"\S*\.closed = .*", steps=INSIDE),
    Difference(
        "a schema is that of the topic that the tool names; Pulsar decodes the name once more, and finds none or fails",
        "status 500|status 412|another body",
        "status 404|a JSON body with a reason",
        "topics_have_odd_names",
        "pulsar-admin schemas get .*",
    ),
    Difference(
        "an answer without a body has the status 204",
        "status 200",
        "status 204",
        "there_is_one_cluster",
        "change it to nothing else",
    ),
    Difference(
        "no client uses the metadata store, and brokers check quotas by themselves: the refusal says so",
        "status 20[04]|no body",
        "status 501|a JSON body with a reason",
        "there_is_one_cluster",
        "a configuration inside|a check of quotas",
    ),
    Difference(
        "no client uses the metadata store: the refusal says so",
        None,
        "a JSON body with a reason",
        "there_is_one_cluster",
        "a configuration inside",
    ),
    Difference(
        "the broker knows at any time since when the oldest message is there; Pulsar knows it after its next check",
        r"\S*\.oldestBacklogMessageAgeSeconds = -1",
        r"\S*\.oldestBacklogMessageAgeSeconds = 0",
        steps=STATISTICS,
    ),
    Difference(
        "a subscription that a topic does not have needs no change",
        "status 500|a JSON body with a reason",
        "status 204|no body",
        "subscriptions_of_a_namespace_have_odd_names",
        '.* clear-backlog .* "a b"',
    ),
    Difference(
        "an answer without a body has the status 204",
        "status 200",
        "status 204",
        steps="pulsar-admin .* set-clusters .*",
    ),
    Difference(
        "limit is an old name of limitSize; a request may use it",
        r"\.destination_storage\.limit = .*",
        None,
        steps="pulsar-admin .* get-backlog-quotas? .*",
    ),
    Difference(
        "topics are placed one by one, so a namespace has one bundle",
        r'(body = )?"?0x[04c8]0000000_0x\w+"?',
        r'(body = )?"?0x00000000_0xffffffff"?',
        steps="pulsar-admin topics bundle-range .*",
    ),
    Difference(
        "the last message is no marker, so that a reader's loop ends",
        r"GET_LAST_MESSAGE_ID_RESPONSE last_message_id=L1:5:-1:-1 .*",
        r"GET_LAST_MESSAGE_ID_RESPONSE last_message_id=L1:4:-1:-1 .*",
        steps="the last message",
    ),
    Difference("the same", "True", "False", steps="it has more behind a marker"),
)

PRINTED: tuple[Difference, ...] = (
    Difference("the tool prints 0 for what is not told", None, r"\S*\.cursorLedgerLastEntry = 0", steps=INSIDE),
)
"""Further differences of what `pulsar-admin` prints. Only `make parity` sees them."""
