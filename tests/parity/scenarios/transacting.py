"""Transactions, which are switched off: what clients hear who want one, and what becomes of markers."""

from typing import Any

import pulsar

from magnetar.protocol.pulsar_pb2 import (
    BaseCommand,
    CommandAddPartitionToTxn,
    CommandAddSubscriptionToTxn,
    CommandEndTxn,
    CommandFlow,
    CommandGetLastMessageId,
    CommandLookupTopic,
    CommandNewTxn,
    CommandPartitionedTopicMetadata,
    CommandProducer,
    CommandSubscribe,
    CommandTcClientConnectRequest,
)

from ..peer import content_of
from ..registry import scenario
from ..stage import Stage

COORDINATORS = "persistent://pulsar/system/transaction_coordinator_assign"
COMMIT, ABORT = 21, 22
"""Types of markers."""
NUMBER: dict[str, Any] = {"txnid_most_bits": 0, "txnid_least_bits": 5}


@scenario(promises=("31.21",))
def a_client_that_begins_a_transaction_hears_that_there_are_none(stage: Stage) -> None:
    """By raw frames, in the order in which the Java client asks: where the coordinators are, then a transaction."""
    peer = stage.peer()
    stage.ask("how many coordinators", peer, CommandPartitionedTopicMetadata(topic=COORDINATORS))
    found = content_of(peer.request(CommandLookupTopic(topic=COORDINATORS)))
    stage.note("where the coordinator is: answered", found.response == found.Connect and bool(found.brokerServiceUrl))
    stage.ask("connect to the coordinator", peer, CommandTcClientConnectRequest(tc_id=0))
    stage.ask("a new transaction", peer, CommandNewTxn(tc_id=0))
    stage.ask("a partition joins", peer, CommandAddPartitionToTxn(**NUMBER))
    stage.ask("a subscription joins", peer, CommandAddSubscriptionToTxn(**NUMBER))
    stage.ask("the end of a transaction", peer, CommandEndTxn(**NUMBER))


@scenario(promises=("31.21",))
def a_message_of_a_transaction_is_refused(stage: Stage) -> None:
    """By raw frames. Its number may be 0."""
    topic = stage.found_topic()
    for number in (NUMBER, {"txnid_most_bits": 0, "txnid_least_bits": 0}):
        peer = stage.peer()
        peer.request(CommandProducer(topic=topic, producer_id=1))
        peer.send_message(b"in a transaction", 0, command=number, **number)
        stage.next_frame(f"transaction {number['txnid_least_bits']}", peer, BaseCommand.SEND_ERROR)
        peer.close()


@scenario()
def markers_are_stored_and_never_delivered(stage: Stage) -> None:
    """By raw frames, on all types of subscriptions: what stands in front of a marker, and behind it, comes."""
    topic, peer = stage.found_topic(), stage.peer()
    peer.request(CommandProducer(topic=topic, producer_id=1, producer_name="p"))
    kinds = CommandSubscribe.SubType.items()
    for number, (name, kind) in enumerate(kinds):
        peer.request(CommandSubscribe(topic=topic, subscription=name, consumer_id=number, subType=kind))
    for sequence_id, marker in enumerate((COMMIT, None, ABORT, COMMIT, None, ABORT)):
        fields = {} if marker is None else {"marker_type": marker}
        peer.send_message(b"%d" % sequence_id, sequence_id, **fields)
        stage.next_frame(f"receipt {sequence_id}", peer, BaseCommand.SEND_RECEIPT)
    for number, (name, _) in enumerate(kinds):
        peer.send(CommandFlow(consumer_id=number, messagePermits=10))
        for count in range(2):
            stage.next_frame(f"{name}, message {count}", peer, BaseCommand.MESSAGE)
    stage.until(lambda: stage.stats()["subscriptions"]["Shared"]["msgBacklog"] <= 2)
    stage.settle("nothing else", peer)
    stage.ask("the last message", peer, CommandGetLastMessageId(consumer_id=0))
    reader = stage.client().create_reader(topic, pulsar.MessageId.earliest)
    stage.receive("a reader", reader, 2)
    stage.note("it has more behind a marker", reader.has_message_available())
