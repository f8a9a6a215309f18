"""Removes the directory of a retired bookie."""

import os
import shutil
from contextlib import suppress

from .survey import COOKIE_FILE


def remove_directory(directory: str) -> None:
    """Remove it; nothing happens if it is gone. Two coordinators may do so at the same time. Raises OSError.

    The cookie goes last: a coordinator that begins meanwhile finds the directory by it.
    """
    try:
        with os.scandir(directory) as found:
            entries = sorted(found, key=lambda entry: entry.name == COOKIE_FILE)
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            with suppress(FileNotFoundError):
                os.unlink(entry.path)
    with suppress(FileNotFoundError):
        os.rmdir(directory)
