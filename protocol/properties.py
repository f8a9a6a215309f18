"""Properties of a resource: texts by name, which an administrator gives to a namespace or a topic."""

import json
from collections.abc import Mapping, Sequence

from .errors import InvalidConfiguration

Properties = dict[str, str]

PROPERTIES_MAX_BYTES = 64 << 10
"""Of one resource, as JSON. Pulsar has no bound of its own. They stand in the metadata store."""


def changed_properties(
    found: Mapping[str, str], put: Mapping[str, str], remove: Sequence[str], *, clear: bool = False
) -> Properties:
    """What is left of `found` without `remove`, or with `clear` nothing, and with `put`. As in Pulsar, a name that is
    not there is removed without an error. Raises InvalidConfiguration beyond the bound."""
    kept = {} if clear else {name: text for name, text in found.items() if name not in remove}
    result = {**kept, **put}
    if len(json.dumps(result).encode()) > PROPERTIES_MAX_BYTES:
        raise InvalidConfiguration(f"properties have at most {PROPERTIES_MAX_BYTES} bytes: set fewer or shorter ones")
    return result
