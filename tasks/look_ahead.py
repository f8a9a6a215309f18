"""How many messages wait in a worker of `magnetar.consume` behind its call.

What waits there is kept from the other workers. What does not wait costs a message to the broker and back between two
calls. So as many wait as the worker handles in `LOOK_AHEAD_S`: one behind a long call, many behind short ones. The
worker takes half of them at once, and then others come: so half as many more may be there.
"""

LOOK_AHEAD_S = 0.2
MESSAGES_MAX = 100
"""Behind calls of less than `LOOK_AHEAD_S / MESSAGES_MAX`."""
WEIGHT = 0.2
"""Of the latest call in the mean."""


class LookAhead:
    """See the module. `size` is what waits at most, never fewer than `size_min`."""

    def __init__(self, size_min: int) -> None:
        self.size = size_min
        self._size_min = size_min
        self._mean_s: float | None = None

    def called(self, duration_s: float, messages: int) -> bool:
        """A call with so many messages has ended. Returns whether `size` is another one now.

        It changes when what is wanted is twice as much or half of it, so that most calls change nothing.
        """
        each_s = duration_s / messages
        self._mean_s = each_s if self._mean_s is None else (1 - WEIGHT) * self._mean_s + WEIGHT * each_s
        wanted = MESSAGES_MAX if self._mean_s * MESSAGES_MAX <= LOOK_AHEAD_S else int(LOOK_AHEAD_S / self._mean_s)
        wanted = max(wanted, self._size_min)
        if self.size // 2 < wanted < 2 * self.size and (wanted > self._size_min or wanted == self.size):
            return False
        self.size = wanted
        return True
