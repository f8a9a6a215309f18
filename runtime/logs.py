"""How processes of the cluster write their logs: one line a record, whatever the record says.

Clients choose names of subscriptions, producers and consumers, and Pulsar allows any character in them. So a name may
hold line breaks, and the text behind one would look like another record. It may also hold control sequences for a
terminal. The formatter writes such characters as `\\n` or `\\x1b`. A traceback has lines of its own, which are marked:
an exception's text may hold a name, too.
"""

import logging
import logging.handlers
import os
import re
from io import TextIOWrapper

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
FILE_SIZE_MAX_BYTES = 16 << 20
FILES_KEPT = 3
"""Older files of a process, beside the one that it writes."""

AUDIT_LOGGER = "magnetar.audit"
"""Its records are lines of JSON. They go to a file of their own, and nowhere else."""
CONTINUED = "  | "
"""In front of every line that is not the first one of its record."""

# Control characters, line and paragraph separators, marks that turn the direction of text, halves of characters.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def one_line(text: str) -> str:
    """`text` with everything escaped that could end its line, or make it look like another one."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class LineFormatter(logging.Formatter):
    def __init__(self, text: str = FORMAT) -> None:
        super().__init__(text)

    def format(self, record: logging.LogRecord) -> str:
        record.message = record.getMessage()
        if self.usesTime():
            record.asctime = self.formatTime(record, self.datefmt)
        lines = [one_line(self.formatMessage(record))]
        if record.exc_info:
            lines += self._continued(self.formatException(record.exc_info))
        if record.stack_info:
            lines += self._continued(self.formatStack(record.stack_info))
        return "\n".join(lines)

    def _continued(self, text: str) -> list[str]:
        return [CONTINUED + one_line(line) for line in text.split("\n")]


def log_to_stderr(level: int = logging.INFO, text: str = FORMAT) -> None:
    """Have this process write its log to its standard error, unless it is set up already."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter(text))
    logging.basicConfig(level=level, handlers=[handler])


def audit_to_file(path: str) -> None:
    """Have this process write the records of `AUDIT_LOGGER` to `path`, as `log_to_file` writes the others."""
    audit = logging.getLogger(AUDIT_LOGGER)
    audit.setLevel(logging.INFO)
    audit.propagate = False
    log_to_file(path, "%(message)s", audit)


def log_to_file(path: str, text: str = FORMAT, source: logging.Logger | None = None) -> None:
    """Have this process write its log to `path`, too, which only its user may read. By default all of it.

    The file is renamed to `path.1` when it has `FILE_SIZE_MAX_BYTES`, and the oldest of `FILES_KEPT` is removed. A file
    that cannot be written stops no process: the log says so on standard error.
    """
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        handler = _PrivateRotatingFile(path, maxBytes=FILE_SIZE_MAX_BYTES, backupCount=FILES_KEPT, encoding="utf-8")
    except OSError as error:
        logging.getLogger(__name__).warning(
            "the log file %s cannot be written, and this process logs to standard error only: %s", path, error
        )
        return
    handler.setFormatter(LineFormatter(text))
    (source or logging.getLogger()).addHandler(handler)


class _PrivateRotatingFile(logging.handlers.RotatingFileHandler):
    def _open(self) -> TextIOWrapper:
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return TextIOWrapper(os.fdopen(descriptor, "ab"), encoding=self.encoding, errors="backslashreplace")
