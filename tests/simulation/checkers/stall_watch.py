"""I8, seen where brokers look for stalled dispatch: they never find any.

A broker starts dispatch that has stalled again, and logs that as an error. So no workload sees more than a delay. Here
each such sentence is a violation.
"""

import logging
from contextlib import ExitStack

from magnetar.actors.topics import pump

from .history import History
from .store_watch import is_dead, who


class StallWatch(logging.Handler):
    """See the module."""

    def __init__(self, history: History) -> None:
        super().__init__(logging.ERROR)
        self._history = history

    def install(self, stack: ExitStack) -> None:
        """Watch until the stack is left."""
        pump.logger.addHandler(self)
        stack.callback(pump.logger.removeHandler, self)

    def emit(self, record: logging.LogRecord) -> None:
        """A pump says that something went wrong."""
        if "had stalled" in record.msg and not is_dead():
            self._history.violated(f"I8: {who()} says that {record.getMessage()[:200]}")
