"""What goes in and out of all topics of one broker, counted as it goes: a few additions for each entry.

The counters of single topics begin again when a topic is loaded, and end with it. These never get smaller.

Of publishes one at a time is timed: the next one that begins after the timed one was answered. So an entry costs two
comparisons, and a busy broker has some hundred times a second.
"""

from ...runtime.meter import Meter, RecentTimes


class Traffic:
    """See the module. What is timed is any object that stands for one publish."""

    __slots__ = ("_began_s", "publish_times", "published", "sent", "timed")

    def __init__(self) -> None:
        self.published = Meter(0.0)
        self.sent = Meter(0.0)
        self.publish_times = RecentTimes()
        """From the arrival of an entry to its receipt, or to its failure."""
        self.timed: object | None = None
        """The publish that is under way and timed."""
        self._began_s = 0.0

    def time(self, publish: object, now_s: float) -> None:
        """A publish begins, and none is timed."""
        self.timed, self._began_s = publish, now_s

    def timed_ended(self, now_s: float) -> None:
        """The timed publish was answered."""
        self.timed = None
        self.publish_times.add(now_s, now_s - self._began_s)
