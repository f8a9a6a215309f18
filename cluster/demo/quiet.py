"""What libraries print by themselves goes to a file: logs of Ray and Spark, and of the Java processes they start.

They write to the file descriptors 1 and 2, past Python's streams, so those are what is redirected. The demo's own lines
go to the terminal through a copy of descriptor 1.
"""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console


@contextmanager
def quiet(log: Path) -> Generator[Console]:
    """Redirect descriptors 1 and 2 into `log`, a new file; yields a console on the former descriptor 1.

    Afterwards both are as before, so a traceback is shown. Raises OSError when the file cannot be made.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    try:
        os.dup2(file, 1)
        os.dup2(file, 2)
        with os.fdopen(os.dup(kept[0]), "w", encoding="utf-8") as terminal:
            yield Console(file=terminal)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(kept[0], 1)
        os.dup2(kept[1], 2)
        for descriptor in (*kept, file):
            os.close(descriptor)
