"""What the nodes said, one line for each event: virtual time, node, text; and what none of them should ever say.

Lines of the simulator itself (faults, healing, ends of processes) and violations, at the moment they are found, stand
among them, and are not left out when only some nodes are asked for.

An error logged with the traceback of anything but an expected failure (ours, the network's, the disk's, a time-out) is
a finding: it is kept in `unexpected`.
"""

import asyncio
import logging
import traceback
from collections.abc import Sequence
from typing import TextIO

from magnetar.protocol.errors import MagnetarError

from .loop import PROCESS, START_S, SimLoop

EXPECTED = (MagnetarError, OSError, TimeoutError, asyncio.CancelledError)
SIMULATOR = "the simulator"
LOGGER = "magnetar.simulation"
"""What the simulator itself logs to, whichever process it is in."""
NODE_WIDTH = 13
TEXT_MAX = 600
"""Characters of one line."""


class Transcript(logging.Handler):
    """Prints to `stream` as it comes, of all nodes or of `nodes`; without a stream only findings are kept."""

    def __init__(self, stream: TextIO | None = None, nodes: Sequence[str] = ()) -> None:
        super().__init__(logging.DEBUG if stream is not None else logging.ERROR)
        self.unexpected: list[str] = []
        self.tracebacks: list[str] = []
        """Of what is unexpected."""
        self._stream = stream
        self._nodes = (*nodes, SIMULATOR) if nodes else ()
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
        if self._stream is None or self._loop is None or (self._nodes and who not in self._nodes):
            return
        text = " ⏎ ".join(text.splitlines())
        if len(text) > TEXT_MAX:
            text = text[:TEXT_MAX] + "…"
        print(f"{self._loop.now - START_S:10.4f}  {who:{NODE_WIDTH}}  {text}", file=self._stream)

    def emit(self, record: logging.LogRecord) -> None:
        owner = PROCESS.get()
        if owner is not None and not owner.alive:
            return
        who = owner.name if owner is not None and record.name != LOGGER else SIMULATOR
        text = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            text += f": {error!r}"
            if not isinstance(error, EXPECTED):
                self.unexpected.append(f"{who}: {text}")
                trace = "".join(traceback.format_exception(error))
                self.tracebacks.append(f"{who}: {record.getMessage()}\n{trace}")
        self.note(who, text)
