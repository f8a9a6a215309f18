"""Keys of the messages of a measured run."""

import random
from collections.abc import Iterator
from enum import StrEnum
from itertools import count, repeat

KEYS = 10_000
"""Different keys that random keys are drawn from."""


class KeyMode(StrEnum):
    """Where the keys of messages come from."""

    AUTO_INCREMENT = "autoIncrement"
    RANDOM = "random"


def keys_of(mode: KeyMode | None) -> Iterator[str] | None:
    """Keys without end; None for messages without keys."""
    if mode is None:
        return None
    chance = random.Random(1)
    return map(str, count()) if mode is KeyMode.AUTO_INCREMENT else (str(chance.randrange(KEYS)) for _ in repeat(0))
