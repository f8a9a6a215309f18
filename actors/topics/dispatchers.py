"""Makes the dispatcher of a subscription as its first consumer asks for it, and says which other consumers fit."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...protocol.errors import ConsumerBusy
from ...protocol.message_id import Position
from ...protocol.pulsar_pb2 import CommandSubscribe
from ..dispatch.consumer import AttachedConsumer
from ..dispatch.dispatcher import CursorView, Dispatcher
from ..dispatch.exclusive import ExclusiveDispatcher
from ..dispatch.failover import ActiveConsumerNews, FailoverDispatcher
from ..dispatch.hash_ranges import HashRing, SplitRanges, StickyRanges
from ..dispatch.key_shared import KeySharedDispatcher
from ..dispatch.shared_chunks import ChunkedSharedDispatcher

if TYPE_CHECKING:
    from .loaded_topics import Topic


def new_dispatcher(
    host: "Topic",
    subscription: str,
    cursor: CursorView,
    subscription_type: int,
    consumer: AttachedConsumer,
    count_of: Callable[[Position, bytes], int],
    wake: Callable[[], None],
) -> Dispatcher:
    """The dispatcher of a subscription whose first consumer is about to join. `wake` sets its dispatch going, and
    `count_of` says how many messages of an entry are to be delivered."""
    limits, settings = host.dispatch_limits, host.settings
    if subscription_type == CommandSubscribe.Exclusive:
        return ExclusiveDispatcher(cursor, limits, count_of)
    if subscription_type == CommandSubscribe.Shared:
        return ChunkedSharedDispatcher(cursor, limits, count_of, host.counts)
    if subscription_type == CommandSubscribe.Key_Shared:
        options = consumer.key_shared
        if options.sticky:
            ranges = StickyRanges()
        elif settings.key_shared_consistent_hashing:
            ranges = HashRing(settings.key_shared_ring_points)
        else:
            ranges = SplitRanges()
        return KeySharedDispatcher(cursor, limits, count_of, options=options, ranges=ranges)
    news = ActiveConsumerNews(settings.active_consumer_failover_delay_ms / 1000, wake)
    failover = FailoverDispatcher(
        cursor,
        limits,
        count_of,
        subscription=subscription,
        topic=host.failover_topic,
        held_topics=host.held_topics,
        changed=news.changed,
    )
    news.follow(failover)
    return failover


def fits(dispatcher: Dispatcher, consumer: AttachedConsumer, subscription_type: int) -> bool:
    """Whether the consumer asks for what the subscription is."""
    try:
        check_fits(dispatcher, consumer, subscription_type)
    except ConsumerBusy:
        return False
    return True


def check_fits(dispatcher: Dispatcher, consumer: AttachedConsumer, subscription_type: int) -> None:
    """Raise ConsumerBusy when the consumer asks for something else than what the subscription is."""
    if dispatcher.subscription_type != subscription_type:
        active, connecting = type_name(dispatcher.subscription_type), type_name(subscription_type)
        raise ConsumerBusy(
            f"its connected consumers are of type {active}, and this one is {connecting}: subscribe as {active}, or "
            "close them first"
        )
    if not isinstance(dispatcher, KeySharedDispatcher):
        return
    active, connecting = dispatcher.options, consumer.key_shared
    if active.sticky != connecting.sticky:
        raise ConsumerBusy(
            f"its connected consumers have the Key_Shared mode {active.mode}, and this one has {connecting.mode}: use "
            f"{active.mode}, or close them first"
        )
    if active.allow_out_of_order and not connecting.allow_out_of_order:
        raise ConsumerBusy(
            "its connected consumers allow delivery out of order, and this one does not: allow it, or close them first"
        )
    if connecting.allow_out_of_order and not active.allow_out_of_order:
        raise ConsumerBusy(
            "its connected consumers do not allow delivery out of order, and this one does: leave that out, or close "
            "them first"
        )


def type_name(subscription_type: int) -> str:
    """A subscription type as Pulsar writes it."""
    return CommandSubscribe.SubType.Name(subscription_type)  # type: ignore[arg-type]
