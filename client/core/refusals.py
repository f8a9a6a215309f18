"""Parameters of the official client whose features are missing here: they keep their places and names, and are refused.

A program that moves here fails where it asks for such a feature, and the error names the feature. Without them it would
get a TypeError, or run without the feature. Values that switch a feature off pass.
"""

from ...protocol.errors import OperationNotSupported


def refuse(call: str, **given: object) -> None:
    """Raise OperationNotSupported for the first parameter that asks for a feature."""
    for name, value in given.items():
        if not _is_off(value):
            raise OperationNotSupported(f"{call}: {name}={value!r} is not supported yet: leave it out")


def _is_off(value: object) -> bool:
    """Whether `value` is the official client's default for such a parameter: None, False, empty, an enumeration's first
    member (Shared, PersistentOnly, FAIL), or the bytes schema.
    """
    if value is None or type(value).__name__ == "BytesSchema":
        return True
    try:
        return int(value) == 0  # type: ignore[call-overload]
    except (TypeError, ValueError):
        return not value
