"""The token of this process: in the file that the variable `MAGNETAR_TOKEN_FILE` names.

So a task of Ray or Spark that is handed a URL only finds the token that its node has. The file is read again for each
use, because a new token is written over the old one.
"""

import os
from collections.abc import Mapping

VARIABLE = "MAGNETAR_TOKEN_FILE"


def token_of_process(environment: Mapping[str, str] = os.environ) -> str | None:
    """The token; None without the variable. Raises OSError, and ValueError for a file that is no text."""
    path = environment.get(VARIABLE)
    if not path:
        return None
    with open(path, encoding="utf-8") as file:
        return file.read().strip()
