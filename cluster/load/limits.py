"""When a measured run ends: after a number of messages, after a time, or never."""

import time


class LoadLimits:
    """What all producers or consumers of a run may still do. 0 is no limit. The time counts from `begin` on."""

    def __init__(self, messages: int, seconds: float) -> None:
        self._left = messages or None
        self._seconds = seconds
        self._until_s: float | None = None
        self._ended = False

    def begin(self) -> None:
        """The clients are connected: the run begins."""
        if self._seconds:
            self._until_s = time.monotonic() + self._seconds

    def take(self, wanted: int) -> int:
        """How many of `wanted` messages may go on; 0 when the run is over."""
        if self.over:
            return 0
        if self._left is None:
            return wanted
        taken = min(wanted, self._left)
        self._left -= taken
        return taken

    @property
    def over(self) -> bool:
        return self._ended or self._left == 0 or (self._until_s is not None and time.monotonic() >= self._until_s)

    def left_s(self, longest_s: float) -> float:
        """Seconds until the time is over, or `longest_s` if that comes first."""
        return longest_s if self._until_s is None else max(0.0, min(longest_s, self._until_s - time.monotonic()))

    def end(self) -> None:
        self._ended = True
