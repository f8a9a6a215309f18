"""A publisher that remembers what was acknowledged, and the check that nothing of it is lost or out of order.

The checker stands outside the system: it knows only what the publisher's callbacks said and what a reader from the
start finds.
"""

import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field

import magnetar


@dataclass
class History:
    """What one publisher learned. `acknowledged` and `failed` hold (key, sequence)."""

    acknowledged: set[tuple[str, int]] = field(default_factory=set)
    failed: dict[tuple[str, int], str] = field(default_factory=dict)
    sent: int = 0
    longest_gap_s: float = 0.0
    """Longest time between two acknowledgements while messages were outstanding."""


class Publisher:
    """Publishes keyed, numbered messages from a thread of its own until it is stopped.

    With `in_flight_max` messages outstanding it waits; a message that fails is recorded and not sent again, so the only
    resends are the client's own. The pause leaves a small machine time for the cluster: 2,000 messages per second. The
    publisher closes its `client` at the end.
    """

    def __init__(
        self, service_url, topic, *, keys=8, in_flight_max=200, pause_s=0.004, payload_size=100, client=None, **options
    ):
        self.topic = topic
        self.history = History()
        self._keys = [f"key-{number}" for number in range(keys)]
        self._pause_s = pause_s
        self._padding = b"." * payload_size
        self._slots = threading.Semaphore(in_flight_max)
        self._lock = threading.Lock()
        self._last_answer_s = time.monotonic()
        self._stopping = threading.Event()
        self._progress = threading.Condition(self._lock)
        self._client = client if client is not None else magnetar.Client(service_url)
        options = {"send_timeout_millis": 60_000, "batching_max_publish_delay_ms": 2, **options}
        self._producer = self._client.create_producer(topic, **options)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def __enter__(self):
        self._last_answer_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *error):
        self.stop()

    def wait_for(self, acknowledged_more, timeout_s=60.0):
        """Wait until so many more messages are acknowledged than now."""
        with self._progress:
            goal = len(self.history.acknowledged) + acknowledged_more
            reached = self._progress.wait_for(
                lambda: len(self.history.acknowledged) >= goal or self._error is not None, timeout_s
            )
        assert self._error is None, self._error
        assert reached, f"publishing stalled: {len(self.history.acknowledged)} of {goal} after {timeout_s} s"

    def reset_gap(self):
        with self._lock:
            self.history.longest_gap_s = 0.0
            self._last_answer_s = time.monotonic()

    def stop(self):
        """Stop publishing, wait for what is outstanding, close."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(90)
        assert not self._thread.is_alive(), "the publisher does not end"
        self._client.close()
        assert self._error is None, self._error

    def _run(self):
        try:
            sequence = 0
            while not self._stopping.is_set():
                for key in self._keys:
                    self._slots.acquire()
                    payload = b"%s:%d:" % (key.encode(), sequence) + self._padding
                    self.history.sent += 1
                    self._producer.send_async(payload, self._answer(key, sequence), partition_key=key)
                sequence += 1
                if self._pause_s:
                    self._stopping.wait(self._pause_s)  # the pace of the workload, not a wait for an event
            self._producer.flush()
        except BaseException as error:
            self._error = error

    def _answer(self, key, sequence):
        def answered(result, message_id):
            now = time.monotonic()
            with self._progress:
                self.history.longest_gap_s = max(self.history.longest_gap_s, now - self._last_answer_s)
                self._last_answer_s = now
                if result == magnetar.Result.Ok:
                    self.history.acknowledged.add((key, sequence))
                else:
                    self.history.failed[key, sequence] = str(result)
                self._progress.notify_all()
            self._slots.release()

        return answered


def read_log(client, topic):
    """Every message of a (partitioned) topic from the start, as [(key, sequence)] for each partition, in log order."""
    logs = []
    for partition in client.get_topic_partitions(topic):
        reader = client.create_reader(partition, magnetar.MessageId.earliest)
        log = []
        while reader.has_message_available():
            message = reader.read_next(timeout_millis=30_000)
            key, sequence, _ = message.data().split(b":", 2)
            assert message.partition_key() == key.decode()
            log.append((key.decode(), int(sequence)))
        reader.close()
        logs.append(log)
    return logs


def check_history(history, logs):
    """Nothing acknowledged is lost, nothing unsent appears, and each key's first occurrences are in order."""
    found = defaultdict(int)
    for log in logs:
        highest = {}
        for key, sequence in log:
            found[key, sequence] += 1
            if found[key, sequence] == 1:
                assert sequence > highest.get(key, -1), f"{key}: {sequence} first seen behind {highest[key]}"
                highest[key] = sequence
    lost = sorted(history.acknowledged - found.keys())
    assert not lost, f"{len(lost)} acknowledged messages are lost, the first ones {lost[:5]}"
    phantoms = sorted(entry for entry in found if entry not in history.acknowledged and entry not in history.failed)
    assert not phantoms, (
        f"{len(phantoms)} messages that were never sent or whose outcome was never told: {phantoms[:5]}"
    )
    return {"messages": len(found), "duplicates": sum(found.values()) - len(found)}
