"""Publishers of a chaos run: they send `key:sequence:` for ever and remember what they were told.

One with callbacks on a client's own thread (our blocking client and the official one have the same methods), and one
of coroutines (both have those, too).
"""

import asyncio
import threading
import time
from collections import Counter, defaultdict
from typing import Any

KEYS = 8
IN_FLIGHT_MAX = 200
PAUSE_S = 0.03
GAP_MIN_S = 0.25
SEND_TIMEOUT_MS = 120_000
_PADDING = b"." * 100


class History:
    """What was sent, and what the answers were. May be written from several threads."""

    def __init__(self, name: str) -> None:
        self.keys = [f"{name}-{number}" for number in range(KEYS)]
        self.sent: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._last: dict[int, float] = {}
        self._acknowledged: dict[str, list[tuple[int, str]]] = defaultdict(list)
        self._failed: list[tuple[str, int, str]] = []
        self._per_second: Counter[int] = Counter()
        self._gaps: list[tuple[float, float]] = []

    def next(self, key: str, sequence: int) -> bytes:
        """The message to send now."""
        self.sent[key] += 1
        return b"%s:%d:%s" % (key.encode(), sequence, _PADDING)

    def acknowledge(self, key: str, sequence: int, message_id: Any) -> None:
        now = time.monotonic()
        with self._lock:
            self._acknowledged[key].append((sequence, place_of(message_id)))
            self._per_second[int(now)] += 1
            partition = message_id.partition()
            begin = self._last.get(partition, now)
            if now - begin >= GAP_MIN_S:
                self._gaps.append((begin, now))
            self._last[partition] = now

    def fail(self, key: str, sequence: int, why: str) -> None:
        with self._lock:
            self._failed.append((key, sequence, why))

    def report(self) -> dict[str, Any]:
        return {
            "sent": self.sent,
            "acknowledged": self._acknowledged,
            "failed": self._failed,
            "per_second": self._per_second,
            "gaps": self._gaps,
        }


def place_of(message_id: Any) -> str:
    """Where a message lies. Ledger ids are the cluster's own, so that the partition need not be told."""
    return f"{message_id.ledger_id()}:{message_id.entry_id()}:{message_id.batch_index()}"


def publish(
    module: Any, client: Any, topic: str, history: History, ready: Any, stopping: threading.Event, batching: bool
) -> None:
    """Send until `stopping`, then flush; with callbacks, at most IN_FLIGHT_MAX unanswered."""
    producer = client.create_producer(
        topic,
        send_timeout_millis=SEND_TIMEOUT_MS,
        batching_enabled=batching,
        batching_max_publish_delay_ms=5,
        block_if_queue_full=True,
    )
    slots = threading.Semaphore(IN_FLIGHT_MAX)

    def answer(key: str, sequence: int) -> Any:
        def answered(result: Any, message_id: Any) -> None:
            if result == module.Result.Ok:
                history.acknowledge(key, sequence, message_id)
            else:
                history.fail(key, sequence, str(result))
            slots.release()

        return answered

    ready()
    sequence = 0
    while not stopping.is_set():
        for key in history.keys:
            slots.acquire()
            producer.send_async(history.next(key, sequence), answer(key, sequence), partition_key=key)
        sequence += 1
        stopping.wait(PAUSE_S)
    producer.flush()


async def publish_async(client: Any, topic: str, history: History, ready: Any, stopping: threading.Event) -> None:
    """The same in coroutines, one for each message under way. Each key's are begun in the order of their sequences."""
    producer = await client.create_producer(topic, send_timeout_millis=SEND_TIMEOUT_MS, batching_enabled=True)
    slots = asyncio.Semaphore(IN_FLIGHT_MAX)
    under_way: set[asyncio.Task[None]] = set()

    async def send(key: str, sequence: int) -> None:
        try:
            history.acknowledge(key, sequence, await producer.send(history.next(key, sequence), partition_key=key))
        except Exception as error:
            history.fail(key, sequence, repr(error))
        finally:
            slots.release()

    ready()
    sequence = 0
    while not stopping.is_set():
        for key in history.keys:
            await slots.acquire()
            task = asyncio.create_task(send(key, sequence))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        sequence += 1
        await asyncio.sleep(PAUSE_S)
    await asyncio.gather(*under_way)
