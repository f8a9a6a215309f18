"""What this repository uses of msgpack, which brings no types of its own."""

from collections.abc import Callable
from typing import Any

class PackOverflowError(ValueError, OverflowError): ...

def packb(
    o: object,
    /,
    *,
    use_bin_type: bool = True,
    default: Callable[[object], object] | None = None,
    unicode_errors: str | None = None,
) -> bytes: ...
def unpackb(packed: bytes, /, *, raw: bool = False, strict_map_key: bool = True) -> Any: ...
