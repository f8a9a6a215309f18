"""A warning that may come for every message: the first is logged at once, and then a count from time to time."""

import logging
from collections.abc import Callable

EVERY_S = 10.0


class RepeatedWarnings:
    """One kind of warning of one object. Not for several threads at a time."""

    __slots__ = ("_logger", "_next_s", "_now_s", "_untold")

    def __init__(self, logger: logging.Logger, now_s: Callable[[], float]) -> None:
        self._logger = logger
        self._now_s = now_s
        self._next_s = float("-inf")
        self._untold = 0

    def note(self, text: str) -> None:
        """It has happened. Logs it, unless the last line is not `EVERY_S` old; then it is counted."""
        now_s = self._now_s()
        if now_s < self._next_s:
            self._untold += 1
            return
        self._next_s = now_s + EVERY_S
        self._logger.warning("%s%s", text, self._more())

    def flush(self, what: str) -> None:
        """Log how often it has happened since the last line, if it has. `what` says of what the line is."""
        if self._untold:
            self._logger.warning("%s%s", what, self._more())

    def _more(self) -> str:
        untold, self._untold = self._untold, 0
        return f"; the same happened {untold:,} times more since the last line" if untold else ""
