"""The methods of a service that lie in several objects, each with one subject."""

from collections.abc import Mapping
from typing import cast

from .connection import Handler
from .contract import HANDLER_PREFIX, handlers_in


def handlers_of(*groups: object) -> Mapping[str, Handler]:
    """The handlers of all groups by the name of their method, without `rpc_`.

    Raises ValueError when two groups have the same method.
    """
    handlers: dict[str, Handler] = {}
    for group in groups:
        for name in handlers_in(type(group)):
            if name in handlers:
                raise ValueError(f"method {name} is in {type(group).__name__} and in another group")
            handlers[name] = cast(Handler, getattr(group, HANDLER_PREFIX + name))
    return handlers
