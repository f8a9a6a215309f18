"""Control messages of the internal RPC: calls, results and typed errors as msgpack."""

from collections.abc import Mapping
from typing import Any

import msgpack

from ...protocol.errors import MagnetarError, ProtocolError, error_from_wire
from ...protocol.plain_values import is_list, is_text_map
from .shapes import plain


def pack(value: object) -> bytes:
    """msgpack with bytes kept apart from strings; a dataclass as the map of its fields."""
    return msgpack.packb(value, use_bin_type=True, default=plain)


def unpack(payload: bytes) -> Any:
    """Raises ProtocolError on anything that is not one msgpack value."""
    try:
        return msgpack.unpackb(payload, raw=False, strict_map_key=False)
    except Exception as error:  # msgpack raises many unrelated types on bad bytes
        raise ProtocolError(f"malformed internal message: {error}") from error


def encode_call(method: str, arguments: Mapping[str, object]) -> bytes:
    """What `decode_call` reads."""
    return pack([method, arguments])


def decode_call(payload: bytes) -> tuple[str, dict[str, object]]:
    """The method and its arguments. Raises ProtocolError."""
    value = unpack(payload)
    if is_list(value) and len(value) == 2:
        method, arguments = value
        if isinstance(method, str) and is_text_map(arguments):
            return method, arguments
    raise ProtocolError("malformed call: it is not a method's name with arguments")


def decode_error(payload: bytes) -> MagnetarError:
    """The exception that the other end raised. Raises ProtocolError."""
    value = unpack(payload)
    if not is_list(value) or len(value) != 3 or not isinstance(value[0], str) or not isinstance(value[1], str):
        raise ProtocolError("malformed error answer")
    return error_from_wire(*value)
