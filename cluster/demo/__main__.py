"""`python -m magnetar.cluster.demo`."""

import sys

from ...protocol.errors import MagnetarError
from .program import main

if __name__ == "__main__":
    try:
        sys.exit(main())
    except MagnetarError as error:
        sys.exit(f"magnetar: {error}")
