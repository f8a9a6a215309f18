"""`python -m magnetar.cluster.demo`."""

import sys

from ...protocol.errors import MagnetarError
from .program import console, main

if __name__ == "__main__":
    try:
        sys.exit(main())
    except MagnetarError as error:
        console.print(f"[red]magnetar:[/red] {error}", highlight=False)
        sys.exit(1)
