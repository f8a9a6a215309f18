"""Control messages of the internal RPC: calls, results and typed errors as msgpack."""

from typing import Any, cast

import msgpack

from ...protocol.errors import MagnetarError, ProtocolError, error_from_wire
from .shapes import plain


def pack(value: object) -> bytes:
    """msgpack with bytes kept apart from strings; a dataclass as the map of its fields."""
    return cast(bytes, msgpack.packb(value, use_bin_type=True, default=plain))


def unpack(payload: bytes) -> Any:
    """Raises ProtocolError on anything that is not one msgpack value."""
    try:
        return msgpack.unpackb(payload, raw=False, strict_map_key=False)
    except Exception as error:  # msgpack raises many unrelated types on bad bytes
        raise ProtocolError(f"malformed internal message: {error}") from error


def decode_call(payload: bytes) -> tuple[str, dict[str, Any]]:
    """The method and its arguments. Raises ProtocolError."""
    value = unpack(payload)
    if (
        not isinstance(value, list)
        or len(value) != 2
        or not isinstance(value[0], str)
        or not isinstance(value[1], dict)
        or not all(isinstance(key, str) for key in value[1])
    ):
        raise ProtocolError("malformed call: it is not a method's name with arguments")
    return value[0], value[1]


def decode_error(payload: bytes) -> MagnetarError:
    """The exception that the other end raised. Raises ProtocolError."""
    value = unpack(payload)
    if not isinstance(value, list) or len(value) != 3 or not isinstance(value[0], str) or not isinstance(value[1], str):
        raise ProtocolError("malformed error answer")
    return error_from_wire(value[0], value[1], value[2] if isinstance(value[2], dict) else {})
