"""What hits hosts and connections of a simulated network, and until when.

A checker asks whether a connection had a reason to end. The list is exact. These count:

- a host: its process is paused or killed, or its packets are slow;
- a way from one host to another: it is cut;
- a connection: it is reset, or held up.

Nothing else keeps bytes back: not a disk, not the database, not an order of an administrator.
"""

from collections.abc import Hashable
from math import inf

SETTLING_S = 0.1
"""So long what was kept back may still be on its way."""


class Disturbances:
    """See the module. A key is a host, a pair of hosts (from, to), or the number of a connection."""

    def __init__(self) -> None:
        self._under_way: dict[Hashable, int] = {}
        self._over_at: dict[Hashable, float] = {}

    def begin(self, key: Hashable) -> None:
        """One begins. As many `end`s end it."""
        self._under_way[key] = self._under_way.get(key, 0) + 1

    def end(self, key: Hashable, now: float, settling_s: float = SETTLING_S) -> None:
        """One ends."""
        self._under_way[key] -= 1
        self.until(key, now + settling_s)

    def until(self, key: Hashable, moment: float) -> None:
        """One lasts until then."""
        self._over_at[key] = max(self._over_at.get(key, -inf), moment)

    def since(self, moment: float, *keys: Hashable) -> bool:
        """Whether there was one at that moment or later."""
        return any(self._under_way.get(key) or self._over_at.get(key, -inf) >= moment for key in keys)
