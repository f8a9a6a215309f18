"""Tells the consumers of a Failover subscription who is active, and ends its hand-overs after a while.

The news goes out behind what the broker does at this moment, so that a consumer gets the answer to its SUBSCRIBE first.
A consumer that has not yet asked for messages gets it with its first FLOW, and after the delay of a hand-over at the
latest. Until then the Go client does not know the consumer, and drops the news; Pulsar sends them after that delay. One
that has left meanwhile gets none.
"""

import asyncio
from collections.abc import Callable
from weakref import ref

from .consumer import AttachedConsumer
from .failover import FailoverDispatcher


def _nobody() -> None:
    return None


def _listen(consumer: Callable[[], AttachedConsumer | None]) -> None:
    found = consumer()
    if found is not None:
        found.listen()


class ActiveConsumerNews:
    """See the module. `changed` is what the dispatcher calls; `wake` sets the dispatch going."""

    def __init__(self, delay_s: float, wake: Callable[[], None]) -> None:
        self._dispatcher: Callable[[], FailoverDispatcher | None] = _nobody
        self._delay_s = delay_s
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._telling = False
        self._timer: asyncio.TimerHandle | None = None

    def follow(self, dispatcher: FailoverDispatcher) -> None:
        """This is the dispatcher. It calls `changed`, so a reference to it would be a cycle."""
        self._dispatcher = ref(dispatcher)

    def changed(self) -> None:
        """There is something to tell, and perhaps a hand-over under way."""
        if not self._telling:
            self._telling = True
            self._loop.call_soon(self._tell)

    def _tell(self) -> None:
        self._telling = False
        dispatcher = self._dispatcher()
        if dispatcher is None:
            return
        for consumer, active in dispatcher.take_announcements():
            if not consumer.closed and consumer.announce(active):
                self._loop.call_later(self._delay_s, _listen, ref(consumer))
        if not dispatcher.handing_over:
            self._cancel()
            self._wake()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._delay_s, self._begin)

    def _begin(self) -> None:
        self._timer = None
        dispatcher = self._dispatcher()
        if dispatcher is not None:
            dispatcher.begin()
            self._wake()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
