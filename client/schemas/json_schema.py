"""Values as JSON. The definition is that of the same record in Avro, as in Pulsar's other clients."""

import json
import math
from typing import cast

import orjson

from ...protocol.errors import SchemaSerializationError
from ...protocol.schema_types import SchemaType
from .models import shape_of
from .schema import Schema, SchemaInfo
from .shapes import Unfit

_AS_IT_IS = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS


class JsonSchema(Schema):
    """JSON of a dataclass, a pydantic model, or a `Record` of the official client."""

    def __init__(self, record_cls: type) -> None:
        """Make the schema of a class.

        Args:
            record_cls: The class.

        Raises:
            InvalidConfiguration: If a field has a type without a definition in Avro.
        """
        self.record_cls = record_cls
        self._shape = shape_of(record_cls)
        self.info = SchemaInfo("JSON", SchemaType.JSON, definition_text(self._shape.definition(set())))

    def __reduce__(self) -> tuple[object, ...]:
        return (JsonSchema, (self.record_cls,))

    def __repr__(self) -> str:
        return f"JsonSchema({self.record_cls.__name__})"

    def _encode(self, value: object) -> bytes:
        try:
            return _text(self._shape.to_plain(value, True))
        except Unfit as error:
            raise SchemaSerializationError(error.text(self.record_cls.__name__)) from None
        except (TypeError, ValueError) as error:
            raise SchemaSerializationError(f"{self.record_cls.__name__} cannot be JSON: {error}") from None

    def _decode(self, data: bytes, writer: SchemaInfo | None = None) -> object:
        try:
            return self._shape.of_plain(orjson.loads(data))
        except (Unfit, ValueError):  # orjson reads no NaN, and takes very large integers for floats
            pass
        try:
            return self._shape.of_plain(json.loads(data))
        except Unfit as error:
            raise SchemaSerializationError(error.text(self.record_cls.__name__)) from None
        except (ValueError, RecursionError) as error:
            raise SchemaSerializationError(f"the payload is no JSON: {error}") from None


def _text(plain: object) -> bytes:
    """JSON of a plain value. orjson is fast; what it does not write as Python's own JSON does is left to that."""
    try:
        data = orjson.dumps(plain, option=_AS_IT_IS)
    except TypeError:
        data = None
    if data is None or (b"null" in data and not _is_finite(plain)):  # orjson writes null for NaN and infinity
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode()
    return data


def _is_finite(plain: object) -> bool:
    """Whether no number in a plain value is NaN or infinite."""
    if isinstance(plain, float):
        return math.isfinite(plain)
    if isinstance(plain, dict):
        return all([_is_finite(one) for one in cast("dict[str, object]", plain).values()])
    return not isinstance(plain, list) or all([_is_finite(one) for one in cast("list[object]", plain)])


def definition_text(definition: object) -> bytes:
    """A definition as the official Python client writes it, so that both register one version."""
    return json.dumps(definition, indent=True).encode()
