"""The flow permits of one partition's consumer: how many messages its broker may send.

Invariant, with a receiver queue: permits at the broker + messages in unopened entries + `_credit` = `queue_size` (a
batch may exceed it by its own size, because brokers send whole batches). Without a queue, a caller that waits asks for
one message.

While the consumer is paused, no permit goes out: what is freed stays in `_credit`, and `resume` sends it. What the
broker may send already still comes, up to the size of the queue.
"""

from ...protocol.commands import flow
from ..core.connection import ConsumerEndpoint
from ..core.registration import Registration
from ..core.threading_bridge import Handover
from .receive_queue import ReceiveQueue


class Permits:
    """See the module. `free` may be called from any thread, the rest from the loop's."""

    def __init__(
        self, registration: Registration[ConsumerEndpoint], queue: ReceiveQueue, queue_size: int, handover: Handover
    ) -> None:
        self.queue_size = queue_size
        self.outstanding = 0
        """Permits at the broker, without a queue; below zero after a batch of several messages."""
        self._registration = registration
        self._receive_queue = queue
        self._handover = handover
        self._credit = 0
        """Messages that left the queue, and whose permits are not sent yet; changed under the receive queue's lock."""
        self._subscriptions = 0

    def begin(self, source: object) -> int:
        """The broker has answered a SUBSCRIBE and has no permits. Returns those for the free part of the queue."""
        self.outstanding = 0
        with self._receive_queue.lock:
            # At once with the credit: what is opened in between counts once.
            self._subscriptions += 1
            free = max(0, self.queue_size - self._receive_queue.queued(source))
            self._credit = free if self._receive_queue.paused else 0
            return free - self._credit

    def free(self, count: int) -> None:
        """So many messages left the queue; tell the broker when it is half empty. Called under the receive queue's
        lock.
        """
        if not self.queue_size:
            return
        self._credit += count
        if self._credit >= (self.queue_size // 2 or 1) and not self._receive_queue.paused:
            self._handover.wake(self.send, self._credit, self._subscriptions)
            self._credit = 0

    def send(self, permits: int, subscription: int | None = None) -> None:
        """Grant permits to the broker, unless they are of an earlier subscription, whose permits ended with it."""
        connection = self._registration.connection
        if connection is not None and subscription in (None, self._subscriptions):
            connection.write(flow(self._registration.id, permits))

    def free_at_once(self, count: int) -> None:
        """So many messages were dropped from the queue: the broker sends others at once, unless paused."""
        if not self._receive_queue.paused:
            self.send(count)
            return
        with self._receive_queue.lock:
            self.free(count)

    def ask_for_one(self) -> None:
        """Without a queue: a caller waits for a message, so ask for one unless that is in progress."""
        if self.queue_size or self.outstanding > 0 or self._receive_queue.paused:
            return
        connection = self._registration.connection
        if connection is not None:
            connection.write(flow(self._registration.id, 1 - self.outstanding))
            self.outstanding = 1

    def resume(self) -> None:
        """The consumer is no longer paused: grant what was freed meanwhile."""
        with self._receive_queue.lock:
            if self._receive_queue.paused:
                return
            permits, self._credit = self._credit, 0
        if permits:
            self.send(permits)
        elif self._receive_queue.waiting:
            self.ask_for_one()
