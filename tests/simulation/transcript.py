"""What the nodes said, with virtual time and the node's name; and what none of them should ever say.

An error logged with the traceback of anything but an expected failure (ours, the network's, the disk's, a time-out) is
a finding: it is kept in `unexpected`.
"""

import asyncio
import logging
from typing import TextIO

from magnetar.protocol.errors import MagnetarError

from .loop import PROCESS, START_S, SimLoop

EXPECTED = (MagnetarError, OSError, TimeoutError, asyncio.CancelledError)


class Transcript(logging.Handler):
    """Prints to `stream` as it comes; without one only findings are kept."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(logging.DEBUG if stream is not None else logging.ERROR)
        self.unexpected: list[str] = []
        self._stream = stream
        self._loop: SimLoop | None = None

    def begin(self, loop: SimLoop) -> None:
        self._loop = loop
        logger = logging.getLogger("magnetar")
        self._before = (logger.level, logger.propagate)
        logger.setLevel(logging.DEBUG if self._stream is not None else logging.ERROR)
        logger.propagate = False
        logger.addHandler(self)

    def end(self) -> None:
        logger = logging.getLogger("magnetar")
        logger.removeHandler(self)
        logger.level, logger.propagate = self._before
        self._loop = None

    def note(self, who: str, text: str) -> None:
        """One line."""
        if self._stream is not None and self._loop is not None:
            print(f"{self._loop.now - START_S:9.4f} {who:14} {text}", file=self._stream)

    def emit(self, record: logging.LogRecord) -> None:
        owner = PROCESS.get()
        if owner is not None and not owner.alive:
            return
        who = owner.name if owner is not None else "the simulator"
        text = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            text += f": {error!r}"
            if not isinstance(error, EXPECTED):
                self.unexpected.append(f"{who}: {text}")
                if self._stream is not None:
                    text += "\n" + logging.Formatter().formatException(record.exc_info)  # type: ignore[arg-type]
        self.note(who, text)
