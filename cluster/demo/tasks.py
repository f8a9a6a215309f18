"""The demo's Ray tasks: publishing, consuming, and an actor that counts what they have done."""

import time
from collections import Counter
from typing import TypedDict

from ...client.consuming.messages import Messages
from ...client.core.configuration import ConsumerType, InitialPosition
from ...protocol.errors import Timeout
from ...runtime.ray_calls import ask
from .flights import FlightIdentity, flights, identify

REPORT_EVERY_S = 0.1
RECEIVE_MAX = 2000
IDLE_END_S = 3.0
"""A consumer that got nothing for so long, after everything was counted once, is done."""
IDLE_FAIL_S = 45.0


class Outcome(TypedDict):
    """What one publisher did."""

    sent: int
    received: int
    seconds: float
    failures: list[str]


class Progress:
    """Counts of all tasks, by task. An actor."""

    def __init__(self) -> None:
        self._done: dict[str, int] = {}
        self._pending: dict[str, int] = {}

    async def report(self, task: str, done: int, pending: int = 0) -> int:
        """Take a task's counts; returns what all tasks have done together."""
        self._done[task] = done
        self._pending[task] = pending
        return sum(self._done.values())

    async def totals(self) -> tuple[int, int]:
        """(done, pending) of all tasks."""
        return sum(self._done.values()), sum(self._pending.values())


def publish(topic: str, number: int, part: int, parts: int, progress: Progress) -> Outcome:
    """Publish one share of the first `number` flights; every receipt is counted by its own callback."""
    from ...client.blocking.client import Client
    from ...client.core.results import Result

    client = Client()
    producer = client.create_producer(
        topic,
        producer_name=f"flights-{part}",
        batching_enabled=True,
        batching_max_publish_delay_ms=10,
        max_pending_messages=5000,
        block_if_queue_full=True,
        send_timeout_millis=60_000,
    )
    name = f"publish-{part}"
    received = 0
    failures: list[str] = []

    def receipt(result: Result, message_id: object) -> None:
        nonlocal received
        received += 1
        if result != Result.Ok:
            failures.append(str(result))

    begin = time.perf_counter()
    next_report = begin
    sent = 0
    for flight in flights(number, part, parts):
        producer.send_async(flight.value, receipt, partition_key=flight.key, sequence_id=flight.sequence)
        sent += 1
        now = time.perf_counter()
        if now >= next_report:
            next_report = now + REPORT_EVERY_S
            _ = progress.report(name, received, sent - received)
    producer.flush()
    seconds = time.perf_counter() - begin
    producer.close()
    ask(progress.report(name, received, 0))
    return {"sent": sent, "received": received, "seconds": seconds, "failures": failures[:5]}


def consume(topic: str, subscription: str, number: int, expected: int, progress: Progress) -> list[FlightIdentity]:
    """Consume until all consumers together have seen `expected` different messages and nothing more comes."""
    from ...client.blocking.client import Client

    client = Client()
    consumer = client.subscribe(
        topic,
        subscription,
        consumer_type=ConsumerType.Shared,
        consumer_name=f"consumer-{number}",
        initial_position=InitialPosition.Earliest,
        receiver_queue_size=4000,
    )
    name = f"consume-{number}"
    seen: Counter[FlightIdentity] = Counter()
    total = 0
    last = time.monotonic()
    while True:
        try:
            messages = consumer.receive_many(RECEIVE_MAX, timeout_millis=500)
        except Timeout:
            messages = Messages()
        for message in messages:
            seen[identify(message.partition_key(), message.sequence_id(), message.data())] += 1
        now = time.monotonic()
        if messages:
            consumer.acknowledge_many(messages)
            last = now
        total = ask(progress.report(name, len(seen)))
        if now - last > (IDLE_END_S if total >= expected else IDLE_FAIL_S):
            break
    consumer.close()
    return list(seen.elements())
