"""The methods of a service that lie in several objects, each with one subject."""

from collections.abc import Mapping
from typing import cast

from .connection import Handler

PREFIX = "rpc_"


def handlers_of(*groups: object) -> Mapping[str, Handler]:
    """The handlers of all groups by the name of their method, without `rpc_`.

    Raises ValueError when two groups have the same method.
    """
    handlers: dict[str, Handler] = {}
    for group in groups:
        for name in method_names(type(group)):
            if name in handlers:
                raise ValueError(f"method {name} is in {type(group).__name__} and in another group")
            handlers[name] = cast(Handler, getattr(group, PREFIX + name))
    return handlers


def method_names(*groups: type) -> list[str]:
    """The names of the methods that these classes have handlers for, sorted within each class."""
    return [name.removeprefix(PREFIX) for group in groups for name in dir(group) if name.startswith(PREFIX)]
