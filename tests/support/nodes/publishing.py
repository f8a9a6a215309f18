"""A producer that publishes while something happens to a cluster on hosts, and may not fail."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import magnetar

from .ray_hosts import RayHosts

SEND_TIMEOUT_MS = 60_000
READ_TIMEOUT_MS = 20_000
PAUSE_S = 0.01
"""Between two messages. A producer without a pause would keep from the processors what starts meanwhile."""


class Sent:
    """What was acknowledged so far."""

    def __init__(self) -> None:
        self.message_ids: list[magnetar.MessageId] = []
        self.failed: list[Exception] = []
        self._grown = threading.Condition()

    def add(self, message_id: magnetar.MessageId) -> None:
        with self._grown:
            self.message_ids.append(message_id)
            self._grown.notify_all()

    def fail(self, error: Exception) -> None:
        with self._grown:
            self.failed.append(error)
            self._grown.notify_all()

    def wait_for_more(self, count: int, timeout_s: float) -> None:
        """Wait until so many more messages are acknowledged."""
        with self._grown:
            wanted = len(self.message_ids) + count
            enough = self._grown.wait_for(lambda: self.failed or len(self.message_ids) >= wanted, timeout_s)
        assert self.failed == []
        assert enough, f"fewer than {count} messages were acknowledged within {timeout_s} s"


@contextmanager
def publishing(hosts: RayHosts, client: magnetar.Client, topic: str) -> Iterator[Sent]:
    """Send while the block runs. No send may fail, and everything that was acknowledged is read afterwards."""
    client.subscribe(topic, "keeper").close()
    producer = client.create_producer(topic, send_timeout_millis=SEND_TIMEOUT_MS)
    sent = Sent()
    ending = threading.Event()

    def publish() -> None:
        with hosts.client.network():
            while not ending.is_set():
                try:
                    sent.add(producer.send(b"%d" % len(sent.message_ids)))
                except magnetar.MagnetarError as error:
                    sent.fail(error)
                    return
                ending.wait(PAUSE_S)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield sent
    finally:
        ending.set()
        thread.join()
    assert sent.failed == []
    reader = client.create_reader(topic, magnetar.MessageId.earliest)
    found: set[magnetar.MessageId] = set()
    while sent.message_ids[-1] not in found:
        found.add(reader.read_next(READ_TIMEOUT_MS).message_id())
    assert set(sent.message_ids) <= found
