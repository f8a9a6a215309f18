"""The checkers of letters, of non-persistent topics and of cursors' ledgers find what they are there for."""

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest

from magnetar.actors.dispatch.consumer import AttachedConsumer, Delivery
from magnetar.actors.dispatch.shared import SharedDispatcher
from magnetar.actors.policies.effective import EffectivePolicies
from magnetar.actors.topics import pump
from magnetar.actors.topics.non_persistent import NO_PLACE, NonPersistentTopic, PassingSubscription
from magnetar.actors.topics.topic import CommonState, SubscriptionStart
from magnetar.client.letters.handling import ORIGIN_MESSAGE_ID, REAL_SUBSCRIPTION, REAL_TOPIC, RECONSUMETIMES
from magnetar.protocol.message_id import Position
from magnetar.protocol.pulsar_pb2 import CommandSubscribe, MessageMetadata
from magnetar.protocol.topics import TopicName
from magnetar.runtime.environment import Environment
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.managed.cursor_storage import CursorRecord
from magnetar.storage.metadata.store import Versioned
from simulation.checkers.cursor_watch import CursorWatch
from simulation.checkers.delivery_watch import DeliveryWatch
from simulation.checkers.delivery_watch import _Held as HeldEntries
from simulation.checkers.history import History
from simulation.checkers.letter_watch import LetterWatch
from simulation.checkers.passed_watch import PassedWatch
from simulation.checkers.passing_watch import PassingWatch
from simulation.checkers.stall_watch import StallWatch
from support.stores.memory_store import MemoryRecords

TOPIC = "persistent://public/default/t"
FIRST: Position = (1, 0)


def broken(history: History) -> list[str]:
    return [violation.partition(":")[0] for violation in history.violations]


# -- cursors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epoch", "named", "kept", "violations"),
    [
        (3, 7, None, []),
        (3, 8, None, ["I1"]),
        (3, 8, b"now", ["I1"]),
        (3, None, None, ["I1"]),
        (3, None, b"before", ["I1"]),
        (3, None, b"now", []),
        (4, 8, None, []),
    ],
)
def test_a_cursor_writes_to_the_ledger_of_its_record_or_what_that_has(
    epoch: int, named: int | None, kept: bytes | None, violations: list[str]
) -> None:
    """Seed 336482522: the answer was lost to an owner that had put its last state into the record."""
    history, records = History(), MemoryRecords()
    records.store("c", Versioned(CursorRecord(epoch, named, kept).pack(), 0))
    home, writer = SimpleNamespace(epoch=3), SimpleNamespace(ledger_id=7)
    storage: Any = SimpleNamespace(_key="c", _home=home, ledger_writer=writer, name="s")
    state: Any = SimpleNamespace(pack=lambda: b"now")
    CursorWatch(history, records).stored(storage, state)
    assert broken(history) == violations


# -- letters -----------------------------------------------------------------------------------------------------------


class Letters(LetterWatch):
    """The checker of one message at `FIRST`."""

    def __init__(self, batch: int = 0) -> None:
        self.history = History()
        super().__init__(self.history, TOPIC, "s")
        metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
        if batch:
            metadata.num_messages_in_batch = batch
        self.holds(TOPIC, FIRST, metadata)

    def stores(self, topic: str, times: int, origin: str = "1:0:-1") -> dict[str, str]:
        properties = {REAL_TOPIC: TOPIC, ORIGIN_MESSAGE_ID: origin, REAL_SUBSCRIPTION: "s", RECONSUMETIMES: str(times)}
        self.stored(topic, properties)
        return properties

    def verdict(self) -> list[str]:
        self.acknowledged(TOPIC, FIRST)
        return broken(self.history)


def test_an_acknowledgement_of_what_was_neither_consumed_nor_stored() -> None:
    assert Letters().verdict() == ["I1"]
    letters = Letters()
    letters.consumed(TOPIC, FIRST, -1)
    assert letters.verdict() == []


@pytest.mark.parametrize(
    ("dead", "times", "origin", "violations"),
    [
        (False, 1, "1:0:-1", []),
        (True, 1, "1:0:-1", []),
        (True, 0, "1:0:-1", []),
        (False, 0, "1:0:-1", ["I1"]),
        (False, 2, "1:0:-1", ["I1"]),
        (False, 1, "1:1:-1", ["I1"]),
    ],
)
def test_a_copy_counts_for_its_origin_and_attempt(dead: bool, times: int, origin: str, violations: list[str]) -> None:
    letters = Letters()
    letters.stores(letters.dead_letter_topic if dead else letters.retry_topic, times, origin)
    assert letters.verdict() == violations


def test_every_message_of_a_batch_needs_its_copy() -> None:
    letters = Letters(batch=2)
    letters.stores(letters.retry_topic, 1, "1:0:-1:0")
    assert letters.verdict() == ["I1"]
    letters = Letters(batch=2)
    letters.stores(letters.retry_topic, 1, "1:0:-1:0")
    letters.consumed(TOPIC, FIRST, 1)
    assert letters.verdict() == []


def test_a_retry_letter_needs_the_next_copy() -> None:
    letters = Letters()
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    for name, value in letters.stores(letters.retry_topic, 1).items():
        metadata.properties.add(key=name, value=value)
    letters.holds(letters.retry_topic, FIRST, metadata)
    letters.acknowledged(letters.retry_topic, FIRST)
    assert broken(letters.history) == ["I1"]
    letters = Letters()
    letters.holds(letters.retry_topic, FIRST, metadata)
    letters.stores(letters.dead_letter_topic, 2)
    letters.acknowledged(letters.retry_topic, FIRST)
    assert broken(letters.history) == []


def test_a_copy_that_does_not_say_where_it_came_from() -> None:
    letters = Letters()
    letters.stored(letters.retry_topic, {REAL_TOPIC: TOPIC})
    assert broken(letters.history) == ["I1"]


# -- non-persistent topics ---------------------------------------------------------------------------------------------


class Outlet:
    """A connection that takes everything."""

    writable = True
    closed = False
    remote_address = client_version = ""

    def write_all(self, parts: list[bytes], size: int) -> None: ...


class Passage:
    """A Shared subscription with two consumers, the first of which has a permit."""

    def __init__(self, stack: ExitStack) -> None:
        self.history = History()
        self.watch = PassingWatch(self.history)
        self.watch.install(stack)

    async def open(self) -> None:
        settings = Settings()
        policies = EffectivePolicies.resolve(settings, {})
        name = TopicName.parse("non-persistent://public/default/t")
        self.topic = NonPersistentTopic(Environment.real(), settings, policies, name, 1, CommonState())
        self.subscription = await self.topic.subscription("s", durable=True, start=SubscriptionStart())
        self.consumers = [AttachedConsumer(Outlet(), number, f"c{number}") for number in range(2)]  # type: ignore[arg-type]
        for consumer in self.consumers:
            await self.subscription.attach(consumer, CommandSubscribe.Shared)
        self.subscription.flow(self.consumers[0], 1)

    def hand_on(self, entry: bytes = b"entry") -> None:
        self.subscription.hand_on(entry, 1, MessageMetadata(), 0)

    def deliver(self, consumer: int, entry: bytes = b"entry") -> None:
        one = self.consumers[consumer]
        one.deliver(Delivery(one, [(NO_PLACE, entry, 1, 0)], 1), 0)


async def test_a_topic_that_hands_on_or_drops_breaks_nothing() -> None:
    with ExitStack() as stack:
        passage = Passage(stack)
        await passage.open()
        passage.hand_on()
        passage.hand_on()
        passage.watch.check_figures(passage.topic, 0.0)
        assert broken(passage.history) == []
        assert (passage.history.counts["passed on"], passage.history.counts["dropped"]) == (1, 1)


async def test_an_entry_that_goes_out_later() -> None:
    with ExitStack() as stack:
        passage = Passage(stack)
        await passage.open()
        passage.deliver(0)
        assert broken(passage.history) == ["I11"]


@pytest.mark.parametrize(
    ("to", "what"),
    [
        ((0, 0), "before"),
        ((0, 1), "has 0 permits"),
        ((1,), "has 0 permits"),
        ((), "sends 0 and counts 0 dropped"),
        ((None,), "that c0 may get"),
    ],
)
async def test_entries_doubled_unpermitted_or_lost(to: tuple[int | None, ...], what: str, monkeypatch: Any) -> None:
    def handing_on(subscription: PassingSubscription, entry: bytes, messages: int, *others: Any) -> None:
        for consumer in to:
            if consumer is None:
                subscription._dropped.add(messages, len(entry))
            else:
                passage.deliver(consumer)

    monkeypatch.setattr(PassingSubscription, "hand_on", handing_on)
    with ExitStack() as stack:
        passage = Passage(stack)
        await passage.open()
        passage.hand_on()
    assert broken(passage.history).count("I11") == len(passage.history.violations) > 0
    assert what in "".join(passage.history.violations)


async def test_figures_that_are_not_what_was_seen() -> None:
    with ExitStack() as stack:
        passage = Passage(stack)
        await passage.open()
        passage.hand_on()
        passage.subscription._dropped.add(1, 1)
        passage.watch.check_figures(passage.topic, 0.0)
        assert broken(passage.history) == ["I11"]


# -- dispatch ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("entry_id", "violations"), [(4, []), (3, ["I7"])])
def test_what_was_passed_over_goes_out_to_nobody(entry_id: int, violations: list[str]) -> None:
    history, consumer = History(), cast("AttachedConsumer", None)
    host = SimpleNamespace(name=SimpleNamespace(full="t"))
    subscription: Any = SimpleNamespace(name="s", host=host, cursor=SimpleNamespace(first_unacknowledged=(1, 4)))
    delivery = Delivery(consumer, [((1, entry_id), b"", 1, 0), ((1, 5), b"", 1, 0)], 2)
    PassedWatch(history, "t").goes_out(subscription, delivery)
    assert broken(history) == violations


@pytest.mark.stalls
@pytest.mark.parametrize(
    ("text", "violations"), [("the dispatch of s had stalled and was started again", ["I8"]), ("s could not read", [])]
)
def test_a_broker_that_finds_stalled_dispatch_is_heard_until_the_run_ends(text: str, violations: list[str]) -> None:
    history = History()
    with ExitStack() as stack:
        StallWatch(history).install(stack)
        pump.logger.error(text)
    assert broken(history) == violations
    pump.logger.error(text)
    assert len(history.violations) == len(violations)


class Named(SimpleNamespace):
    """Stands for one that checkers keep in their tables."""

    __hash__ = object.__hash__  # type: ignore[assignment]


@pytest.mark.parametrize(("passed", "violations"), [(True, []), (False, ["I6"])])
def test_nobody_holds_what_the_cursor_has_passed_over(passed: bool, violations: list[str]) -> None:
    history = History()
    held = HeldEntries()
    held.holders[1, 3] = cast("AttachedConsumer", SimpleNamespace(name="one"))
    if passed:
        held.let_go_before((1, 4))
    watch = DeliveryWatch(history)
    subscription: Any = Named(name="s", dispatcher=SharedDispatcher.__new__(SharedDispatcher))
    another: Any = Named(name="another")
    watch._attached[another], watch._held[subscription] = subscription, held
    watch._goes_out(another, Delivery(another, [((1, 3), b"", 1, 0)], 1))
    assert broken(history) == violations
