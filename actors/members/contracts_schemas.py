"""What any broker offers to the admin about schemas: it reads and writes them wherever their topic is."""

from dataclasses import dataclass, field

from ...runtime.rpc.contract import Contract, method
from .permissions import ADMIN


@dataclass(frozen=True)
class SchemaRow:
    """One version of a topic's schema. `type` is the number of Pulsar's protocol."""

    version: int
    type: int
    data: bytes
    created_ms: int
    properties: dict[str, str] = field(default_factory=dict[str, str])


class SchemaContract(Contract):
    """See the module."""

    @method(ADMIN)
    async def schemas(self, *, topic: str) -> list[SchemaRow]:
        """The versions since the last deletion, oldest first."""
        ...

    @method(ADMIN)
    async def put_schema(self, *, topic: str, type: int, data: bytes, properties: dict[str, str]) -> int:
        """Add a schema and return its version. Raises IncompatibleSchema, TopicNotFound (no such namespace)."""
        ...

    @method(ADMIN)
    async def find_schema(self, *, topic: str, type: int, data: bytes) -> int:
        """The version that has exactly this definition, −1 for none."""
        ...

    @method(ADMIN)
    async def check_schema(self, *, topic: str, type: int, data: bytes, properties: dict[str, str]) -> str:
        """The strategy by which the topic may get a schema. Raises IncompatibleSchema."""
        ...

    @method(ADMIN)
    async def delete_schemas(self, *, topic: str, force: bool = False) -> int:
        """Delete all versions and return the version of the deletion. Raises TopicNotFound (no such namespace)."""
        ...
