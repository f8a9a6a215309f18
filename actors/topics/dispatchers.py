"""Makes the dispatcher of a subscription, by the type that its first consumer asks for."""

from collections.abc import Callable
from typing import Protocol

from ...protocol.message_id import Position
from ...protocol.pulsar_pb2 import CommandSubscribe
from ...runtime.settings.declarations import Settings
from ..dispatch.dispatcher import CursorView, Dispatcher, Limits
from ..dispatch.exclusive import ExclusiveDispatcher
from ..dispatch.failover import FailoverDispatcher, FailoverTopic, HeldTopics
from ..dispatch.shared import SharedDispatcher
from .active_consumer import ActiveConsumerNews


class DispatcherHost(Protocol):
    """What dispatch needs of a topic."""

    settings: Settings
    dispatch_limits: Limits
    failover_topic: FailoverTopic
    held_topics: HeldTopics


def new_dispatcher(
    host: DispatcherHost,
    subscription: str,
    cursor: CursorView,
    subscription_type: int,
    wake: Callable[[], None],
    count_of: Callable[[Position, bytes], int],
) -> Dispatcher:
    """The dispatcher of a subscription that has no consumer yet. `wake` sets its dispatch going, and `count_of` says
    how many messages of an entry are to be delivered."""
    if subscription_type == CommandSubscribe.Exclusive:
        return ExclusiveDispatcher(cursor, host.dispatch_limits, count_of)
    if subscription_type == CommandSubscribe.Shared:
        return SharedDispatcher(cursor, host.dispatch_limits, count_of)
    news = ActiveConsumerNews(host.settings.active_consumer_failover_delay_ms / 1000, wake)
    news.dispatcher = FailoverDispatcher(
        cursor,
        host.dispatch_limits,
        count_of,
        subscription=subscription,
        topic=host.failover_topic,
        held_topics=host.held_topics,
        changed=news.changed,
    )
    return news.dispatcher
