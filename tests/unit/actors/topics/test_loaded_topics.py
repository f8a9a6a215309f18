"""Which topics a broker serves, and when it loads and closes them."""

import asyncio
import gc
import weakref
from typing import Any

import pytest

from magnetar.actors.compaction.topic_compaction import COMPACTION_CURSOR
from magnetar.actors.features.table import FEATURES
from magnetar.actors.topics.idle_topics import duties_of
from magnetar.actors.topics.owned_topic import OwnedState
from magnetar.actors.topics.persistent import PersistentTopic
from magnetar.protocol.errors import (
    MetadataUnavailable,
    NotAllowedError,
    RecoveryFailed,
    ServiceUnitNotReady,
    StaleEpoch,
    TopicNotFound,
)
from magnetar.protocol.pulsar_pb2 import BaseCommand, ServerError
from magnetar.protocol.topics import TopicName
from magnetar.storage.managed.record import LeftBehind
from support.clients.wire_peer import entry
from support.fakes.bookies import FakeCluster
from support.servers.broker_bench import TOPIC, BrokerFront, broker_front, until

NAME = TopicName.parse(TOPIC)


def state_of(front: BrokerFront) -> OwnedState:
    topic = front.topics.table.find(TOPIC)
    return OwnedState.RELEASED if topic is None else topic.state


async def test_concurrent_users_share_one_load():
    async with broker_front() as front:
        front.open_gate.clear()
        waiting = [asyncio.create_task(front.topics.get(NAME)) for _ in range(5)]
        await asyncio.sleep(0)
        front.open_gate.set()
        topics = await asyncio.gather(*waiting)
        assert len({id(topic) for topic in topics}) == 1 and len(front.opened) == 1


async def test_nothing_holds_the_topics_of_a_broker_that_is_closed():
    async with broker_front() as front:
        await front.topics.get(NAME)
        topics = weakref.ref(front.topics)
    del front
    gc.collect()
    assert topics() is None


async def test_loads_are_bounded_and_those_with_a_client_go_first():
    async with broker_front(topic_load_concurrency_max=4) as front:
        front.open_gate.clear()
        names = [f"persistent://public/default/m{index}" for index in range(20)]
        for name in names:
            front.topics.assign(name, 1, load=True)
        await until(lambda: len(front.opened) == 2)
        wanted = [asyncio.create_task(front.topics.get(TopicName.parse(name))) for name in names[10:14]]
        await until(lambda: len(front.opened) == 4)
        await asyncio.sleep(0.01)
        assert front.opened == [*names[:2], *names[10:12]]  # the broker's own loads leave half of the places
        front.open_gate.set()
        await asyncio.gather(*wanted)
        assert front.opened[4:6] == names[12:14]
        await until(lambda: len(front.topics.loaded) == 20)


async def test_gained_topics_load_by_how_they_were_left_and_those_at_rest_do_not():
    async with broker_front(topic_load_concurrency_max=1) as front:
        name = "persistent://public/default/m{}".format
        at_rest = duties_of(front.topics.policies.of(NAME), FEATURES)
        front.left = {
            name(0): LeftBehind(at_rest),
            name(1): LeftBehind(b"under other policies"),
            name(2): LeftBehind(b"", 1_000),
            name(3): LeftBehind(b"", 2_000),
        }
        for index in range(5):
            front.topics.assign(name(index), 1, load=True)
        await until(lambda: len(front.topics.loaded) == 4)
        assert front.opened == [name(3), name(2), name(1), name(4)]
        assert front.read_left == [[name(index) for index in range(5)]]  # with one question
        await front.topics.get(TopicName.parse(name(0)))
        assert front.opened[-1] == name(0)


async def test_a_policy_that_gives_a_topic_at_rest_something_to_do_loads_it():
    async with broker_front() as front:
        front.left = {TOPIC: LeftBehind(duties_of(front.topics.policies.of(NAME), FEATURES))}
        front.topics.assign(TOPIC, 2, load=True)
        await until(lambda: state_of(front) is OwnedState.RESTING)
        front.topics.policies.take([("public/default", 1, {"message_ttl": 5})])
        await until(lambda: TOPIC in front.topics.loaded)


async def test_a_topics_own_compaction_threshold_keeps_what_is_published_from_its_load_on():
    async with broker_front(FakeCluster()) as front:
        front.topics.policies.take([(TOPIC, 1, {"compaction_threshold": 1000})])
        topic = await front.topics.get(NAME)
        assert isinstance(topic, PersistentTopic) and COMPACTION_CURSOR in topic.ledger.cursors


async def test_a_compaction_cursor_that_cannot_be_made_is_made_as_soon_as_it_can():
    storage = FakeCluster()
    async with broker_front(storage) as front:
        topic = await front.topics.get(NAME)
        assert isinstance(topic, PersistentTopic)
        tries, good = [], topic.ledger.open_cursor

        async def bad(name: str, *arguments: Any, **options: Any) -> Any:
            tries.append(name)
            raise MetadataUnavailable("the database is away")

        topic.ledger.open_cursor = bad  # type: ignore[method-assign]
        front.topics.policies.take([(TOPIC, 1, {"compaction_threshold": 1000})])
        await until(lambda: len(tries) == 2)
        front.topics.policies.take([(TOPIC, 2, {"compaction_threshold": 2000})])
        topic.ledger.open_cursor = good  # type: ignore[method-assign]
        await until(lambda: COMPACTION_CURSOR in topic.ledger.cursors)
        assert set(tries) == {COMPACTION_CURSOR}


async def test_a_load_of_the_brokers_own_that_fails_is_tried_again():
    async with broker_front() as front:
        good, tries = front.topics._open_ledger, []

        async def bad(name, epoch):
            tries.append(name.full)
            raise RecoveryFailed("two bookies are away")

        front.topics._open_ledger = bad
        front.topics.assign(TOPIC, 2, load=True)
        with pytest.raises(RecoveryFailed):
            await front.topics.get(NAME)
        await until(lambda: len(tries) == 3)
        front.topics._open_ledger = good
        await until(lambda: TOPIC in front.topics.loaded)
        front.topics._open_ledger = bad
        await front.topics.release(TOPIC)
        front.topics.assign(TOPIC, 3, load=False)
        tries.clear()
        with pytest.raises(RecoveryFailed):
            await front.topics.get(NAME)
        await asyncio.sleep(0.3)
        assert len(tries) == 1  # only a client wanted it, and comes again


async def test_a_topic_that_ended_by_itself_is_loaded_again_as_long_as_the_broker_owns_it():
    async with broker_front() as front:
        first = await front.topics.get(NAME)
        assert isinstance(first, PersistentTopic)
        first._on_terminal(first, MetadataUnavailable("it is not known whether a cursor was deleted"))
        await until(lambda: front.topics.loaded.get(TOPIC) not in (None, first))

        async def stale(name, epoch):
            front.opened.append(name.full)
            raise StaleEpoch("another owner")

        front.topics._open_ledger = stale
        opened = len(front.opened)
        second = front.topics.loaded[TOPIC]
        assert isinstance(second, PersistentTopic)
        second._on_terminal(second, StaleEpoch("another owner"))
        await until(lambda: not front.topics.owns(TOPIC))
        await asyncio.sleep(0.3)
        assert len(front.opened) == opened + 1 and TOPIC not in front.topics.loaded


async def test_how_topics_were_left_is_asked_again_and_clients_do_not_wait_for_it():
    async with broker_front() as front:
        answers, good = [], front.topics._read_left

        async def away(names):
            answers.append(len(names))
            if len(answers) < 3:
                raise MetadataUnavailable("the coordinator is away")
            return await good(names)

        front.topics._read_left = away
        names = [f"persistent://public/default/m{index}" for index in range(3)]
        for name in names:
            front.topics.assign(name, 1, load=True)
        await front.topics.get(TopicName.parse(names[2]))
        assert len(answers) < 3
        front.topics.revoke(names[1])
        await until(lambda: len(front.topics.loaded) == 2)
        assert front.opened == [names[2], names[0]] and answers[-1] == 1


async def test_a_topic_that_is_not_owned_is_asked_for():
    async with broker_front() as front:
        name = TopicName.parse("persistent://public/default/soon")

        def grant(topic):
            front.topics.assign(topic.full, 1, load=False)
            return True

        front.lookups.grant = grant
        early = [asyncio.create_task(front.topics.get(name)) for _ in range(2)]
        assert (await early[0]).name == name and (await early[1]).name == name
        front.lookups.grant = lambda topic: False
        with pytest.raises(ServiceUnitNotReady):
            await front.topics.get(TopicName.parse("elsewhere"))


async def test_a_stale_owner_opens_nothing_more_without_a_new_grant():
    async with broker_front() as front:

        async def stale(name, epoch):
            front.opened.append(name.full)
            raise StaleEpoch("another owner")

        front.topics._open_ledger = stale
        with pytest.raises(StaleEpoch):
            await front.topics.get(NAME)
        with pytest.raises(ServiceUnitNotReady):
            await front.topics.get(NAME)
        assert len(front.opened) == 1 and not front.topics.owns(TOPIC)


async def test_a_topic_that_was_deleted_behind_the_brokers_back_may_be_made_again():
    """The coordinator could not reach the broker when it deleted the topic: seed 625904348."""
    async with broker_front() as front:
        good, created = front.topics._open_ledger, []

        async def deleted(name, epoch):
            raise TopicNotFound(f"{name.full} does not exist")

        async def claim(name, create):
            created.append(create)
            front.topics.assign(name.full, 2, load=False)
            return True

        front.topics._open_ledger, front.topics._claim = deleted, claim
        with pytest.raises(ServiceUnitNotReady, match="was deleted"):
            await front.topics.get(NAME, create=True)
        assert not front.topics.owns(TOPIC)
        front.topics._open_ledger = good
        assert (await front.topics.get(NAME, create=True)).epoch == 2 and created == [True]


async def test_a_caller_that_gives_up_does_not_end_the_load_for_others():
    async with broker_front() as front:
        front.open_gate.clear()
        first, second = (asyncio.create_task(front.topics.get(NAME)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        front.open_gate.set()
        assert (await second).name == NAME


async def test_a_load_whose_assignment_changed_is_thrown_away():
    async with broker_front() as front:
        front.open_gate.clear()
        waiting = asyncio.create_task(front.topics.get(NAME))
        await asyncio.sleep(0.01)
        front.topics.revoke(TOPIC)
        front.open_gate.set()
        with pytest.raises(ServiceUnitNotReady):
            await waiting
        assert front.ledger.closed and not front.topics.loaded


async def test_a_queued_load_ends_with_the_assignment():
    async with broker_front(topic_load_concurrency_max=1) as front:
        front.open_gate.clear()
        front.topics.assign("persistent://public/default/other", 1, load=True)
        waiting = asyncio.create_task(front.topics.get(NAME))
        await asyncio.sleep(0)
        front.topics.revoke(TOPIC)
        with pytest.raises(ServiceUnitNotReady):
            await waiting
        front.open_gate.set()


async def test_a_raised_epoch_closes_the_old_instance_before_the_new_one_opens():
    async with broker_front() as front:
        peer = await front.peer()
        await peer.producer(TOPIC)
        old, ledger = front.topic, front.ledger
        front.topics.assign(TOPIC, 2, load=True)
        await peer.expect(BaseCommand.CLOSE_PRODUCER)
        await peer.producer(TOPIC)
        assert (old.epoch, front.topic.epoch, ledger.closed) == (1, 2, True)
        front.topics.assign(TOPIC, 1, load=True)  # late news
        assert front.topic.epoch == 2
        await peer.close()


async def test_a_revoked_topic_completes_its_publishes_then_sends_its_clients_away():
    async with broker_front() as front:
        peer = await front.peer()
        await peer.producer(TOPIC)
        await peer.subscribe(TOPIC, "s")
        ledger = front.ledger
        ledger.hold()
        peer.send_entry(entry(), 0)
        await peer.settle()
        front.topics.revoke(TOPIC)
        peer.send_entry(entry(), 1)
        await peer.settle()
        assert not peer.received
        ledger.release()
        await peer.expect(BaseCommand.SEND_RECEIPT, sequence_id=0)
        await peer.expect(BaseCommand.CLOSE_PRODUCER)
        await peer.expect(BaseCommand.CLOSE_CONSUMER)
        assert (await peer.producer(TOPIC)).error == ServerError.ServiceNotReady
        assert ledger.closed and len(ledger.entries) == 1
        await peer.close()


async def test_a_released_topic_is_refused_until_it_is_granted_again():
    async with broker_front() as front:
        await front.topics.get(NAME)
        await front.topics.release(TOPIC)
        assert front.ledger.closed and state_of(front) is OwnedState.RELEASED
        with pytest.raises(ServiceUnitNotReady):
            await front.topics.get(NAME)
        front.topics.assign(TOPIC, 2, load=False)
        assert (await front.topics.get(NAME)).epoch == 2


async def test_a_failed_load_is_an_error_for_those_who_wait_and_tried_again_by_the_next(monkeypatch):
    async with broker_front() as front:
        good = front.topics._open_ledger

        async def bad(name, epoch):
            raise RecoveryFailed("two bookies are away")

        front.topics._open_ledger = bad
        with pytest.raises(RecoveryFailed):
            await front.topics.get(NAME)

        async def stuck(name, epoch) -> Any:
            await asyncio.Event().wait()

        front.topics._open_ledger = stuck
        front.topics._settings = front.settings.__class__(topic_load_timeout_s=0.1)
        with pytest.raises(ServiceUnitNotReady):
            await front.topics.get(NAME)
        front.topics._open_ledger = good
        await front.topics.get(NAME)


async def test_a_topic_with_a_client_is_in_use():
    async with broker_front() as front:
        peer = await front.peer()
        await peer.producer(TOPIC)
        with pytest.raises(NotAllowedError):
            front.topics.check_unused(TOPIC)
        peer.send_entry(entry(), 0)
        await peer.expect(BaseCommand.SEND_RECEIPT)
        await front.topics.release(TOPIC)
        await peer.expect(BaseCommand.CLOSE_PRODUCER)
        assert (await peer.producer(TOPIC)).error == ServerError.ServiceNotReady
        front.topics.check_unused(TOPIC)
        with pytest.raises(NotAllowedError):
            front.topics.check_unused(TOPIC, inactive=True)  # nobody knows when it was used last
        front.topics.check_unused("non-persistent://public/default/t", inactive=True)
        await peer.close()


async def test_a_deletion_closes_what_is_open_under_an_earlier_epoch_first():
    async with broker_front() as front:
        await front.topics.get(NAME)
        ledger = front.ledger
        await front.topics.delete(NAME, 2)
        assert ledger.closed and not front.topics.loaded and not front.topics.table.all_granted() and not front.ledgers


async def test_a_lost_session_closes_everything():
    async with broker_front() as front:
        for index in range(10):
            name = f"persistent://public/default/m{index}"
            front.topics.assign(name, 1, load=True)
        await until(lambda: len(front.topics.loaded) == 10)
        await front.topics.close_all()
        assert not front.topics.loaded and not front.topics.table.all_granted()
        assert all(ledger.closed for ledger in front.ledgers.values())
        front.topics.assign(TOPIC, 5, load=False)
        await front.topics.get(NAME)
