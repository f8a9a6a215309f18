"""Allowed transitions of topics, producer sessions and subscriptions, and the check that every change passes."""

import pytest

from magnetar.actors.topics import producer, subscription_members, topic
from magnetar.actors.topics.producer import ProducerState
from magnetar.actors.topics.subscription_members import SubscriptionState
from magnetar.actors.topics.topic import TopicState
from magnetar.runtime.transitions import check_transition


@pytest.mark.parametrize(
    ("table", "final"),
    [
        (topic.TRANSITIONS, TopicState.CLOSED),
        (producer.TRANSITIONS, ProducerState.CLOSED),
        (subscription_members.TRANSITIONS, SubscriptionState.CLOSED),
    ],
)
def test_every_state_has_a_row_and_only_closed_is_final(table, final):
    assert list(table) == list(type(final))
    assert [state for state, following in table.items() if not following] == [final]


def test_a_closed_topic_cannot_be_opened_again():
    with pytest.raises(RuntimeError, match="t cannot go from closed to open"):
        check_transition(topic.TRANSITIONS, "t", TopicState.CLOSED, TopicState.OPEN)


def test_a_failed_session_can_no_longer_be_refused():
    session = producer.AttachedProducer(None, None, 1, "p", user_provided_name=True)  # type: ignore[arg-type]
    session.fail()
    with pytest.raises(RuntimeError, match="the session of producer p cannot go from failed to refused"):
        session.refuse(1, None)  # type: ignore[arg-type]


def test_ending_a_session_twice_changes_nothing():
    session = producer.AttachedProducer(None, None, 1, "p", user_provided_name=True)  # type: ignore[arg-type]
    session.end()
    session.end()
    assert session.state is ProducerState.CLOSED
