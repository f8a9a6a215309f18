"""A broker's topics when all of them are given up while some are still being loaded. Found by the simulator."""

import asyncio

import pytest

from magnetar.protocol.errors import ServiceUnitNotReady, StaleEpoch
from magnetar.protocol.topics import TopicName
from support.fakes.managed_ledger import MemoryManagedLedger
from support.servers.broker_bench import TOPIC, broker_front, until


@pytest.mark.parametrize("begun", [True, False])
async def test_a_load_that_hangs_does_not_keep_the_broker_from_giving_up_its_topics(begun: bool) -> None:
    async with broker_front() as front:
        front.open_gate.clear()
        waiting = asyncio.create_task(front.topics.get(TopicName.parse(TOPIC)))
        if begun:
            await until(lambda: front.opened)
        else:
            await asyncio.sleep(0)
        async with asyncio.timeout(5):
            await front.topics.close_all()
        with pytest.raises(ServiceUnitNotReady):
            await waiting
        front.open_gate.set()
        front.topics.assign(TOPIC, 2, load=False)
        assert (await front.topics.get(TopicName.parse(TOPIC))).epoch == 2


async def test_giving_up_may_itself_be_given_up_and_repeated() -> None:
    """The second call used to spin for as long as the load took."""
    async with broker_front() as front:
        topic = await front.topics.get(TopicName.parse(TOPIC))
        gate = asyncio.Event()
        close = front.ledger.close

        async def close_late() -> None:
            await gate.wait()
            await close()

        front.ledger.close = close_late  # type: ignore[method-assign]
        first = asyncio.create_task(front.topics.close_all())
        await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.wait([first])
        second = asyncio.create_task(front.topics.close_all())
        await asyncio.sleep(0.01)
        assert not second.done()  # the closing of the topic goes on
        gate.set()
        await second
        assert topic.state.name == "CLOSED"


async def test_a_refusal_of_an_old_epoch_ends_with_that_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The assignment went on while the load was under way: the news came first, the refusal of the load after it."""
    async with broker_front() as front:
        open_ledger = front._open_ledger

        async def open_late(name: TopicName, epoch: int) -> MemoryManagedLedger:
            if epoch == 1:
                front.topics.assign(TOPIC, 2, load=False)
                raise StaleEpoch("assigned under epoch 2")
            return await open_ledger(name, epoch)

        monkeypatch.setattr(front.topics, "_open_ledger", open_late)
        with pytest.raises(StaleEpoch):
            await front.topics.get(TopicName.parse(TOPIC))
        assert (await front.topics.get(TopicName.parse(TOPIC))).epoch == 2
