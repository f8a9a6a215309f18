"""What a Failover consumer learns about itself: whether it is the active one of its topic or partition.

The broker's news arrive on the client's event loop, perhaps before the application has the consumer. They wait in
`FailoverEvents` until a public face has a place for them (`deliver_to`), and keep their order.
"""

import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)


class ConsumerEventListener:
    """Derive from it, and override what concerns you.

    The broker tells every consumer of a Failover subscription at each change of the active one. So a consumer that
    stands by may be told again that it is inactive.
    """

    def became_active(self, consumer: object, partition: int) -> None:
        """Take note that the consumer gets the messages from now on.

        Args:
            consumer: The consumer, as `subscribe` returned it.
            partition: The index of the partition, −1 for a topic without partitions.
        """

    def became_inactive(self, consumer: object, partition: int) -> None:
        """Take note that another consumer gets the messages from now on.

        Args:
            consumer: The consumer, as `subscribe` returned it.
            partition: The index of the partition, −1 for a topic without partitions.
        """


class FailoverEvents:
    """See the module. All methods are for the loop's thread."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, bool]] = []
        self._deliver: Callable[[int, bool], None] | None = None
        self._ended: Callable[[], None] | None = None

    def changed(self, partition: int, active: bool) -> None:
        """The broker says whether the consumer is the active one of the partition."""
        if self._deliver is None:
            self._waiting.append((partition, active))
        else:
            self._deliver(partition, active)

    def deliver_to(self, deliver: Callable[[int, bool], None], ended: Callable[[], None] | None = None) -> None:
        """Hand over what waits, and everything to come. `ended` is called when the consumer is closed."""
        self._deliver = deliver
        self._ended = ended
        waiting, self._waiting = self._waiting, []
        for partition, active in waiting:
            deliver(partition, active)

    def end(self) -> None:
        """The consumer is closed: nothing more comes."""
        ended, self._ended = self._ended, None
        if ended is not None:
            ended()


def tell(listener: ConsumerEventListener, consumer: object, partition: int, active: bool) -> None:
    """Call the listener. What it raises is logged: it has no other place to go."""
    try:
        (listener.became_active if active else listener.became_inactive)(consumer, partition)
    except Exception:
        logger.exception("the consumer event listener failed")
