"""Values as JSON. The definition is that of the same record in Avro, as in Pulsar's other clients."""

import json

from ...protocol.errors import SchemaSerializationError
from ...protocol.schema_types import SchemaType
from .models import shape_of
from .schema import Schema, SchemaInfo
from .shapes import Unfit


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
            return json.dumps(self._shape.to_plain(value, True), ensure_ascii=False, separators=(",", ":")).encode()
        except Unfit as error:
            raise SchemaSerializationError(error.text(self.record_cls.__name__)) from None
        except (TypeError, ValueError) as error:
            raise SchemaSerializationError(f"{self.record_cls.__name__} cannot be JSON: {error}") from None

    def _decode(self, data: bytes, writer: SchemaInfo | None = None) -> object:
        try:
            return self._shape.of_plain(json.loads(data))
        except Unfit as error:
            raise SchemaSerializationError(error.text(self.record_cls.__name__)) from None
        except (ValueError, RecursionError) as error:
            raise SchemaSerializationError(f"the payload is no JSON: {error}") from None


def definition_text(definition: object) -> bytes:
    """A definition as the official Python client writes it, so that both register one version."""
    return json.dumps(definition, indent=True).encode()
