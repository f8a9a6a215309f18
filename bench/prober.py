"""A producer that sends without a pause, and the longest time that it went without a receipt. For both clients."""

import threading
import time
from types import TracebackType
from typing import Any, Self

SEND_EVERY_S = 0.01
PENDING_MAX = 200
SEND_TIMEOUT_MS = 300_000


class Prober:
    """It sends from its making until `close`. `client` is a blocking one of `module`, ours or the official one."""

    def __init__(self, module: Any, client: Any, topic: str, size: int = 100) -> None:
        self.failed: list[str] = []
        self.last = time.monotonic()
        self.receipts = 0
        self._ok = module.Result.Ok
        self._payload = b"x" * size
        self._client = client
        self._longest = 0.0
        self._lock = threading.Lock()
        self._pending = threading.Semaphore(PENDING_MAX)
        self._stopping = threading.Event()
        self._producer = client.create_producer(
            topic, send_timeout_millis=SEND_TIMEOUT_MS, batching_enabled=False, max_pending_messages=2 * PENDING_MAX
        )
        self._thread = threading.Thread(target=self._run, name=f"prober-{topic}", daemon=True)
        self._thread.start()

    @property
    def longest_s(self) -> float:
        """The longest time without a receipt since `restart`; one that goes on counts."""
        with self._lock:
            return max(self._longest, time.monotonic() - self.last)

    def restart(self) -> None:
        with self._lock:
            self._longest = 0.0
            self.last = time.monotonic()

    def close(self) -> None:
        """Stop without waiting for receipts."""
        self._stopping.set()
        self._pending.release()
        self._thread.join()
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        while not self._stopping.wait(SEND_EVERY_S):
            self._pending.acquire()
            self._producer.send_async(self._payload, self._answered)

    def _answered(self, result: Any, message_id: Any) -> None:
        now = time.monotonic()
        self._pending.release()
        with self._lock:
            if result != self._ok:
                if not self._stopping.is_set():
                    self.failed.append(str(result))
                return
            self.receipts += 1
            self._longest = max(self._longest, now - self.last)
            self.last = now
