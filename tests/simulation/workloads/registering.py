"""Clients that publish to one topic with one schema after the other, which they register: `Registering`.

Several of them do so at once, also on different partitions, which share their schemas. In some runs an operator deletes
all schemas now and then.

- I14: versions keep their meaning (`SchemaWatch`), also for who asks a broker. Each stored message has the version of
  the schema that its producer had.
- I1: each message with a receipt is in the log.
"""

import asyncio
import json
from functools import partial
from random import Random
from typing import Any

import magnetar
from magnetar.client.core.message_id import MessageId
from magnetar.client.schemas.schema import Schema, SchemaInfo
from magnetar.protocol.schema_types import SchemaType

from ..checkers.history import History, show
from ..checkers.schema_watch import SchemaWatch
from ..world.cluster import SimCluster
from .reading import read_messages
from .workload import Workload

SCHEMAS = 12
PENDING_MAX = 20
STAY_MAX_S = 0.6
"""A producer lives so long."""
DELETION_MAX_S = 4.0


class Defined(Schema):
    """The schema of a number. All have another optional field, so each can follow each."""

    def __init__(self, number: int) -> None:
        fields = [{"name": "n", "type": "int"}, {"name": f"f{number}", "type": ["null", "int"], "default": None}]
        definition = {"type": "record", "name": "Counted", "fields": fields}
        self.number = number
        self.definition = json.dumps(definition).encode()
        self.info = SchemaInfo("JSON", SchemaType.JSON, self.definition)

    def _encode(self, value: object) -> bytes:
        return json.dumps({"n": value}).encode()


DEFINED = [Defined(number) for number in range(SCHEMAS)]


class Registering(Workload):
    """See the module. All of a run share a `watch`; one of them judges in the end, behind the others."""

    def __init__(
        self, cluster: SimCluster, history: History, random: Random, name: str, watch: SchemaWatch, *, judges: bool
    ) -> None:
        super().__init__(cluster, history, random, name)
        self.topic = watch.topic.local_name
        self.may_crash = random.random() < 0.4
        self._watch = watch
        self._judges = judges
        if judges:
            cluster.on_record.append(watch.metadata_changed)
        self._deletes = judges and random.random() < 0.4
        self._number = 0
        self._pending: dict[bytes, None] = {}
        self._stored: dict[bytes, None] = {}

    async def setup(self) -> None:
        self.connect()
        keeper = await self.again(self._keep)
        await keeper.close()

    async def _keep(self) -> Any:
        return await self.client.subscribe(self.topic, "keeper", initial_position=magnetar.InitialPosition.Earliest)

    async def start(self) -> None:
        self.begin(self._publish(), "publish with schemas")
        if self._deletes:
            self.begin(self._delete_now_and_then(), "delete schemas")

    def crash(self) -> None:
        super().crash()
        self._pending = {}

    # -- publishing --------------------------------------------------------------------------------------------------

    async def _publish(self) -> None:
        while not self.stopping:
            schema = self.random.choice(DEFINED)
            producer = await self.again(partial(self._create, schema))
            for _ in range(self.random.randint(1, 5)):
                if len(self._pending) < PENDING_MAX:
                    self._send(producer, schema)
                await asyncio.sleep(self.random.random() * STAY_MAX_S / 5)
            while self._pending:  # noqa: ASYNC110  # virtual time costs nothing
                await asyncio.sleep(0.02)
            await producer.close()

    async def _create(self, schema: Schema) -> Any:
        return await self.client.create_producer(self.topic, schema=schema, send_timeout_millis=0)

    def _send(self, producer: Any, schema: Defined) -> None:
        value = f"{self.name}:{schema.number}:{self._number:06d}"
        payload = schema.encode(value)
        self._number += 1
        pending = self._pending
        pending[payload] = None

        def answered(result: magnetar.Result, message_id: MessageId) -> None:
            pending.pop(payload, None)
            if result == magnetar.Result.Ok:
                self._stored[payload] = None
            elif pending is self._pending:  # else of a process that was killed
                self.history.violated(f"I8: {show(payload)} was refused permanently: {result}")

        producer.send_async(value, answered)

    # -- deleting ----------------------------------------------------------------------------------------------------

    async def _delete_now_and_then(self) -> None:
        while not self.stopping:
            await asyncio.sleep(self.random.random() * DELETION_MAX_S)
            node = self.random.choice(self.cluster.brokers)
            if node.ready and node.process is not None:
                await self.ask(node, node.service.schemas.delete(self._watch.topic, force=False), "delete schemas")

    # -- the end -----------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Everything has its receipt and is in the log, with the version of its schema."""
        self.stopping = True
        for task in self.tasks:
            await task
        messages: list[Any] = []
        for partition in await self.again(partial(self.client.get_topic_partitions, self.topic)):
            messages += await self.again(partial(read_messages, self.client, partition))
        found = {bytes(message.data()): message for message in messages}
        if lost := [payload for payload in self._stored if payload not in found]:
            self.history.violated(f"I1: {', '.join(map(show, lost[:5]))} of {self.topic} have receipts, and are lost")
        if self._judges:
            for payload, message in found.items():
                schema = DEFINED[int(json.loads(payload)["n"].split(":")[1])]
                self._watch.check_message(message.schema_version(), schema.definition, show(payload))
            await self._ask_for_versions()

    async def _ask_for_versions(self) -> None:
        """Whoever asks a broker is told what the record says."""
        schemas = self.client._running_core().schemas
        for version in range(self._watch.first, len(self._watch.definitions)):
            wire = version.to_bytes(8, "big")
            answer = await self.again(partial(schemas.get, self._watch.topic.full, wire))
            self._watch.check_message(wire, answer.definition, "the answer of a broker")
