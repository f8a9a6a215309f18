"""What a fuzz target is: a way to make inputs, and a way to take one."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from magnetar.protocol.errors import MagnetarError


@dataclass(frozen=True)
class Target:
    """`make` gives a nearly valid input; `take` must come to its end, whatever the bytes are, or raise MagnetarError:
    every other exception, a hang and a growth of memory are findings.
    """

    name: str
    make: Callable[[Random], bytes]
    take: Callable[[bytes], None]
    share: int = 1
    """Of the time: more for those that take a whole service, whose inputs cost milliseconds."""


class Wrong(AssertionError):
    """The code under test came to a result that is not true."""


def quietly(function: Callable[..., object], *arguments: object, allowed: tuple[type[Exception], ...]) -> object:
    """The function's result, None for an error that it may raise."""
    try:
        return function(*arguments)
    except allowed:
        return None
    except MagnetarError as error:
        raise Wrong(f"{type(error).__name__} is not an error of this function") from error
