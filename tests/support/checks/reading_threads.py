"""The threads in which bulk reads run, and which end after the reads have returned."""

import threading


def wait_for_readings() -> None:
    """Return when no bulk read of this process runs, or removes its pins, any longer."""
    for thread in threading.enumerate():
        if thread.name == "magnetar-read":
            thread.join(10)
