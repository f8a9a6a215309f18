"""Topics of very different load, which changes all the time, so that topics move for their load: `Loading`.

- I15: the moves are damped (`BalanceWatch`).
- I1: what is acknowledged is in the log, however often its topic moved.
"""

import asyncio
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import magnetar
from magnetar.protocol.errors import MagnetarError

from ..checkers.balance_watch import BalanceWatch
from ..checkers.history import History
from ..world.cluster import SimCluster
from .reading import read_log
from .workload import Workload

TOPICS = 4
KEEPER = "keeper"
BURST = 10
PACE_S = 0.1
HOT_S = 1.0
SEND_TIMEOUT_MS = 5000


class Loading(Workload):
    """See the module."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, name: str) -> None:
        super().__init__(cluster, history, random, name)
        cluster.settings = replace(
            cluster.settings,
            allow_auto_topic_creation_type="non-partitioned",
            default_num_partitions=1,
            load_report_interval_ms=200,
            load_shedding_interval_minutes=0.4 / 60,
            load_shedding_grace_minutes=random.choice((1.0, 3.0)) / 60,
            load_history_share=random.choice((0.3, 0.9)),
            load_least_entries_over_mean=0.1,
            load_moves_max=random.choice((1, 3)),
        )
        self._topics = [f"{name}-{number}" for number in range(TOPICS)]
        self._producers: list[Any] = []
        self._number = 0
        self._acknowledged: dict[str, dict[bytes, None]] = {topic: {} for topic in self._topics}

    def watch(self, stack: ExitStack) -> None:
        BalanceWatch(self.history, self.cluster.settings).install(stack)

    async def setup(self) -> None:
        self.connect()
        for topic in self._topics:
            consumer = await self.again(partial(self.client.subscribe, topic, KEEPER))
            await consumer.close()
            create = partial(self.client.create_producer, topic, send_timeout_millis=SEND_TIMEOUT_MS)
            self._producers.append(await self.again(create))

    async def start(self) -> None:
        self.begin(self._load(), "load")

    async def _load(self) -> None:
        loop = asyncio.get_running_loop()
        hot, until = 0, 0.0
        while not self.stopping:
            if loop.time() >= until:
                hot, until = self.random.randrange(TOPICS), loop.time() + HOT_S * (0.5 + self.random.random())
            for number in range(TOPICS):
                for _ in range(BURST if number == hot else self.random.randint(0, 1)):
                    self.begin(self._send(number), "send")
            await asyncio.sleep(PACE_S)
            self.tasks = [task for task in self.tasks if not task.done()]

    async def _send(self, number: int) -> None:
        payload = f"{self.name}:{self._number:06d}".encode()
        self._number += 1
        try:
            await self._producers[number].send(payload)
        except (MagnetarError, magnetar.PulsarException) as error:
            self.history.counts[f"loading failed: {type(error).__name__}"] += 1
        else:
            self._acknowledged[self._topics[number]][payload] = None

    async def stop(self) -> None:
        self.stopping = True
        while self.tasks:  # the one that begins the others is among them
            for task in list(self.tasks):
                await task
            self.tasks = [task for task in self.tasks if not task.done()]
        for topic, acknowledged in self._acknowledged.items():
            found = {message.payload for message in await self.again(partial(read_log, self.client, topic))}
            lost = [payload for payload in acknowledged if payload not in found]
            if lost:
                self.history.violated(f"I1: {lost[:3]} of {topic} are lost")
