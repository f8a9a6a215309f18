"""What the parts of an owner that is closed have in its place.

An owner and its parts refer to each other. The garbage collector of a service runs seldom, so such a cycle would keep
its memory for long. Parts that let go of their owner are freed with the last reference to it.
"""

from typing import ClassVar, NoReturn

from ..protocol.errors import ServiceUnitNotReady


class Gone:
    """See the module. It is in no state and not in use. All else raises ServiceUnitNotReady: a caller that comes too
    late tries again."""

    state: ClassVar[None] = None
    is_open: ClassVar[bool] = False
    in_use: ClassVar[bool] = False

    def __getattr__(self, name: str) -> NoReturn:
        raise ServiceUnitNotReady("what was asked for was closed meanwhile")

    def __call__(self, *unused: object) -> NoReturn:
        raise ServiceUnitNotReady("what was asked for was closed meanwhile")


GONE = Gone()
