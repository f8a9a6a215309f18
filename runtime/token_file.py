"""The token of this process: in the file that the variable `MAGNETAR_TOKEN_FILE` names.

So a task of Ray or Spark that is handed a URL only finds the token that its node has. The file is read again for each
use, because a new token is written over the old one.
"""

import os
from collections.abc import Mapping

VARIABLE = "MAGNETAR_TOKEN_FILE"


def token_of_process(environment: Mapping[str, str] = os.environ) -> str | None:
    """The token; None without the variable. Raises OSError, and ValueError for a file that has none."""
    path = environment.get(VARIABLE)
    return read_token(path) if path else None


def read_token(path: str) -> str:
    """The token in a file. Raises OSError, and ValueError for what is no token; no text of an error has it."""
    with open(path, encoding="utf-8", errors="replace") as file:
        token = file.read().strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(f"{path} has no token: a token is one word of ASCII")
    return token
