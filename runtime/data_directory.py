"""Where the data directory of this user's cluster lies, and where that cluster runs, as far as it is written down."""

import json
import os
from pathlib import Path
from typing import cast

RUN_FILE = "run.json"


def default_data_directory() -> Path:
    """`$MAGNETAR_DATA_DIR`, else `magnetar` in the user's data directory."""
    given = os.environ.get("MAGNETAR_DATA_DIR")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "magnetar"


def recorded_ray(directory: Path) -> str | None:
    """The address of the Ray on which the cluster of a data directory was started and not stopped; None for none."""
    try:
        record = cast("dict[str, dict[str, str]]", json.loads((directory / RUN_FILE).read_bytes()))
        return str(record["ray"]["address"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
