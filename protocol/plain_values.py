"""Values as msgpack and JSON carry them, and what they may be taken for.

An unpacked value is an `object` until its reader has checked what it is. These guards check the kind alone. The reader
checks the items.
"""

from typing import TypeGuard


def is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


def is_map(value: object) -> TypeGuard[dict[object, object]]:
    return isinstance(value, dict)


def is_text_map(value: object) -> TypeGuard[dict[str, object]]:
    """Whether it is a map whose keys are all texts."""
    return is_map(value) and all(isinstance(key, str) for key in value)
