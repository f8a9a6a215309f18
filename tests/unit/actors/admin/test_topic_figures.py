"""Figures of topics under Pulsar's names, and what is added up over the partitions of a topic."""

import pytest

from magnetar.actors.admin.topic_figures import partitioned_json, storage_json, subscription_names, topic_json
from magnetar.actors.members.contracts_broker import BrokerContract
from magnetar.protocol.errors import ProtocolError
from magnetar.protocol.topic_figures import CursorFigures
from magnetar.runtime.rpc.messages import pack, unpack
from support.fakes.topic_figures import (
    consumer_figures,
    producer_figures,
    storage_figures,
    subscription_figures,
    topic_figures,
)


def test_a_topic_is_shown_with_its_state_epoch_and_sums_over_its_subscriptions():
    consumers = [consumer_figures("a"), consumer_figures("b")]
    subscriptions = [subscription_figures("s", consumers=consumers), subscription_figures("t", messages=1)]
    shown = topic_json(topic_figures(subscriptions=subscriptions, topic_epoch=3, waiting_producers=2))
    assert (shown["state"], shown["ownerEpoch"], shown["topicEpoch"]) == ("open", 7, 3)
    assert shown["waitingPublishers"] == 2
    assert (shown["msgInCounter"], shown["bytesInCounter"], shown["averageMsgSize"]) == (2, 10, 5.0)
    assert (shown["msgOutCounter"], shown["msgRateOut"]) == (6, 2.0)
    assert [consumer["consumerName"] for consumer in shown["subscriptions"]["s"]["consumers"]] == ["a", "b"]
    assert shown["publishers"][0]["connectedSince"] == "1970-01-01T00:00:01Z"


def test_a_topic_without_messages_has_an_average_size_of_zero():
    assert topic_json(topic_figures(messages=0, bytes=0))["averageMsgSize"] == 0.0


def test_a_non_durable_subscription_that_shares_its_name_is_marked():
    both = [subscription_figures("s", durable=False), subscription_figures("s")]
    assert subscription_names(topic_figures(subscriptions=both)) == ["s (non-durable)", "s"]
    assert subscription_names(topic_figures(subscriptions=both[:1])) == ["s"]


def test_partitions_add_up_counters_and_neither_epochs_nor_states():
    total = partitioned_json({"t-0": topic_figures(), "t-1": topic_figures(epoch=9, state="fenced")}, each=True)
    assert "topicEpoch" not in total and "state" not in total
    assert (total["msgInCounter"], total["storageSize"], total["pendingPublishes"]) == (4, 200, 2)
    assert (total["averageMsgSize"], total["metadata"]) == (5.0, {"partitions": 2, "deleted": False})
    assert [total["partitions"][name]["ownerEpoch"] for name in ("t-0", "t-1")] == [7, 9]
    assert len(total["publishers"]) == 2


def test_a_partitioned_subscription_is_blocked_if_it_is_in_one_partition():
    parts = [
        subscription_figures("s", blocked=True, backlog_entries=3, consumers=[consumer_figures("a")]),
        subscription_figures("s", type="", backlog_entries=4),
    ]
    total = partitioned_json({str(i): topic_figures(subscriptions=[part]) for i, part in enumerate(parts)}, each=False)
    shown = total["subscriptions"]["s"]
    assert (shown["blockedSubscriptionOnUnackedMsgs"], shown["type"], shown["msgBacklog"]) == (True, "Shared", 7)
    assert (shown["unackedMessages"], len(shown["consumers"]), shown["isDurable"]) == (4, 1, True)
    assert total["partitions"] == {}


def test_times_and_sizes_of_a_subscription_are_those_of_its_partitions_and_consumers():
    consumers = [consumer_figures("a", last_consumed_ms=5), consumer_figures("b", last_acknowledged_ms=9000)]
    parts = [
        subscription_figures("s", backlog_bytes=7, acknowledged_ranges=2, last_flow_ms=4, consumers=consumers),
        subscription_figures("s", backlog_bytes=1, acknowledged_ranges=1, last_mark_delete_ms=6),
    ]
    total = partitioned_json({str(i): topic_figures(subscriptions=[part]) for i, part in enumerate(parts)}, each=False)
    shown = total["subscriptions"]["s"]
    assert (shown["backlogSize"], shown["nonContiguousDeletedMessagesRanges"]) == (8, 3)
    assert total["nonContiguousDeletedMessagesRanges"] == 3
    assert (shown["lastConsumedTimestamp"], shown["lastAckedTimestamp"]) == (2000, 9000)
    assert (shown["lastConsumedFlowTimestamp"], shown["lastMarkDeleteAdvancedTimestamp"]) == (4, 6)


@pytest.mark.promise("32.14")
def test_the_first_ranges_of_a_cursor_are_listed_as_pulsar_writes_them():
    figures = storage_figures(9)
    figures.cursors.append(CursorFigures("s", (1, 0), (1, 9), 5, 2, {}, 9, [(1, 2, 3), (2, 0, 0)], 7))
    figures.cursors.append(CursorFigures("t", (1, 0), (1, 9), 5, 3, {}, 9, [(1, 2, 3)]))
    cursors = storage_json(figures)["cursors"]
    assert cursors["s"]["individuallyDeletedMessages"] == "[(1:1..1:3],(2:-1..2:0]]"
    assert cursors["t"]["individuallyDeletedMessages"] == "[(1:1..1:3],…]"
    assert (cursors["s"]["cursorLedger"], cursors["s"]["messagesConsumedCounter"]) == (7, 4)
    assert cursors["s"]["numberOfEntriesSinceFirstNotAckedMessage"] == 9


def test_ledgers_and_cursors_are_shown_under_pulsars_names():
    figures = storage_figures(3)
    figures.cursors.append(CursorFigures("s", (1, 0), (1, 1), 2, 0, {"a": "b"}))
    shown = storage_json(figures)
    assert (shown["numberOfEntries"], shown["lastConfirmedEntry"], shown["state"]) == (3, "1:2", "LedgerOpened")
    assert shown["ledgers"] == [
        {"ledgerId": 1, "entries": 3, "size": 30, "closed": False, "offloaded": False, "underReplicated": False}
    ]
    assert shown["cursors"]["s"]["markDeletePosition"] == "1:0" and shown["cursors"]["s"]["properties"] == {"a": "b"}


def answer(method, plain):
    """What a caller of the broker's method gets for the answer `plain`."""
    return BrokerContract.methods[method].answer(unpack(pack(plain)))


def test_figures_are_the_same_after_their_way_over_the_rpc():
    figures = topic_figures(
        subscriptions=[subscription_figures("s", consumers=[consumer_figures("a")])], producers=[producer_figures("p")]
    )
    assert answer("topic_stats", figures) == figures
    stored = storage_figures(3)
    stored.cursors.append(CursorFigures("s", (1, 0), (1, 1), 2, 0, {"a": "b"}))
    assert answer("internal_stats", stored) == stored


@pytest.mark.parametrize("method", ["topic_stats", "internal_stats"])
@pytest.mark.parametrize("plain", [{}, [], {"state": "open"}, {"subscriptions": [1], "producers": []}])
def test_what_is_no_figures_of_a_topic_is_refused(method, plain):
    with pytest.raises(ProtocolError, match=method):
        answer(method, plain)
