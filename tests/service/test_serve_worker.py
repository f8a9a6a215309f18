"""Which tasks of a queue of Serve run without a question for statuses. The worker of a replica, without Ray."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from magnetar.client.aio.client import AsyncClient
from magnetar.client.aio.reader import AsyncReader
from magnetar.client.core.configuration import ConsumerType
from magnetar.client.core.message_id import MessageId
from magnetar.protocol.errors import ConnectError
from magnetar.runtime.environment import Environment
from magnetar.serve import worker as worker_module
from magnetar.serve.configuration import MagnetarAdapterConfig
from magnetar.serve.deaths import DeathCount
from magnetar.serve.queue_topics import SUBSCRIPTION
from magnetar.serve.records import REVOKED, SUCCESS, Task, TaskStatus, load_status
from magnetar.serve.sending import TaskSender
from magnetar.serve.statuses import Statuses
from magnetar.serve.worker import QueueRules, TaskWorker
from support.servers.embedded_cluster import EmbeddedCluster

WITHIN_S = 30.0


class CountingStatuses(Statuses):
    """Statuses that note who asked for them."""

    def __init__(self, client: AsyncClient, topic: str) -> None:
        super().__init__(client, topic, "json")
        self.asked: list[str] = []
        self.lost: set[str] = set()
        """Tasks whose results cannot be stored."""

    async def current(self, task_id: str) -> TaskStatus | None:
        self.asked.append(task_id)
        return await super().current(task_id)

    async def publish(self, task_id: str, status: TaskStatus) -> None:
        if task_id in self.lost:
            self.lost.remove(task_id)
            raise ConnectError("this test stores no result")
        await super().publish(task_id, status)


class Replica:
    """A worker of a queue, and what enqueues."""

    def __init__(self, client: AsyncClient, topic: str) -> None:
        self._env = Environment.real(threads_max=1)
        self.topic = topic
        self.ran: list[str] = []
        self.fails: set[str] = set()
        self.statuses = CountingStatuses(client, f"{topic}-status")
        self._client = client
        self._told: AsyncReader | None = None
        self._succeeded: set[str] = set()
        self._closed = False
        config = MagnetarAdapterConfig(retry_backoff_s=0.01)
        deaths = DeathCount(self._env, "test", topic, self.statuses)
        self.sender = TaskSender(self._env, client, "json")
        rules = QueueRules(topic, 1, 3, None, None)
        handlers = {"note": self._note}
        self._worker = TaskWorker(self._env, client, config, rules, self.statuses, deaths, self.sender, handlers)

    async def _note(self, name: str) -> str:
        self.ran.append(name)
        if name in self.fails:
            self.fails.remove(name)
            raise ValueError("this test fails")
        return name

    async def start(self) -> None:
        await self._worker.start()

    async def enqueue(self, name: str) -> None:
        await self.sender.send(self.topic, Task(name, "note", [name], {}, 0.0))

    async def ended(self, name: str) -> None:
        """Wait until it has succeeded, and ask nothing of the statuses that are counted."""
        async with asyncio.timeout(WITHIN_S):
            if self._told is None:
                self._told = await self._client.create_reader(f"{self.topic}-status", MessageId.earliest)
            while name not in self._succeeded:
                told = await self._told.read_next()
                if load_status("json", told.properties(), told.data()).status == SUCCESS:
                    self._succeeded.add(told.partition_key())

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._worker.stop(WITHIN_S)
            await self.statuses.close()
            self._env.close()


@pytest.fixture
async def connected(cluster: EmbeddedCluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(cluster.service_url) as made:
        yield made


@pytest.fixture
async def replica(connected: AsyncClient, topic: str, monkeypatch: Any) -> AsyncIterator[Replica]:
    monkeypatch.setattr(worker_module, "UNASKED_MAX_MS", 60_000)  # whatever else the machine does
    made = Replica(connected, topic)
    await made.start()
    await made.enqueue("first")
    await made.ended("first")
    assert made.statuses.asked == ["first"]  # the view had not been read up
    made.statuses.asked.clear()
    yield made
    await made.close()


async def test_a_task_that_comes_for_the_first_time_runs_without_a_question(replica: Replica) -> None:
    for number in range(5):
        await replica.enqueue(f"{number}")
        await replica.ended(f"{number}")
    assert replica.statuses.asked == []
    assert replica.ran == ["first", "0", "1", "2", "3", "4"]


async def test_a_task_that_is_older_is_asked_for(replica: Replica, monkeypatch: Any) -> None:
    monkeypatch.setattr(worker_module, "UNASKED_MAX_MS", -1)
    await replica.enqueue("old")
    await replica.ended("old")
    assert replica.statuses.asked == ["old"]


async def test_a_task_whose_message_comes_again_is_asked_for(replica: Replica) -> None:
    replica.statuses.lost.add("a")
    await replica.enqueue("a")
    await replica.ended("a")
    assert replica.ran == ["first", "a", "a"]
    assert replica.statuses.asked == ["a"]  # for the second delivery only


async def test_another_attempt_is_asked_for(replica: Replica) -> None:
    replica.fails.add("a")
    await replica.enqueue("a")
    await replica.ended("a")
    assert replica.ran == ["first", "a", "a"]
    assert replica.statuses.asked == ["a"]


async def test_a_cancellation_that_has_come_is_heeded_without_a_question(replica: Replica) -> None:
    await replica.statuses.publish("cancelled", TaskStatus(REVOKED, 0.0))
    assert (found := await Statuses.current(replica.statuses, "cancelled")) is not None and found.status == REVOKED
    await replica.enqueue("cancelled")
    await replica.enqueue("next")
    await replica.ended("next")
    assert replica.ran == ["first", "next"]
    assert replica.statuses.asked == []


async def test_what_another_consumer_had_is_asked_for(replica: Replica, connected: AsyncClient) -> None:
    await replica.close()
    other = await connected.subscribe(replica.topic, SUBSCRIPTION, ConsumerType.Shared)
    await replica.enqueue("left")
    assert (await other.receive(30_000)).redelivery_count() == 0
    following = Replica(connected, replica.topic)
    assert await Statuses.current(following.statuses, "left") is None  # the view is read up, so that is no reason
    await following.start()
    await other.close()
    await following.ended("left")
    await following.enqueue("new")
    await following.ended("new")
    await following.close()
    assert (following.ran, following.statuses.asked) == (["left", "new"], ["left"])
