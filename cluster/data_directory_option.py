"""The option `--data-dir` of the commands that concern one cluster's directory."""

from pathlib import Path
from typing import Annotated

import typer

DataDirectory = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", help="The cluster's data directory. By default $MAGNETAR_DATA_DIR or ~/.local/share/magnetar."
    ),
]
