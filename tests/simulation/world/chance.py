"""Chance of its own for what joins a scenario later: the seeds that do not meet it stay as they were."""

from random import Random


def drawn_apart(random: Random) -> Random:
    """A chance that depends on `random` and takes no draw from it: other runs stay as they are."""
    apart = Random()
    apart.setstate(random.getstate())
    return Random(apart.getrandbits(64))
