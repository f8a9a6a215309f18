"""What the admin asks any broker about schemas, whether or not it owns the topic."""

from ...protocol.errors import ProtocolError
from ...protocol.schema_types import SchemaType
from ...protocol.topics import TopicName
from ...runtime.rpc.connection import RpcConnection
from ..members.contracts_schemas import SchemaRow
from ..schemas.definition import SchemaDefinition
from ..schemas.registry import SchemaRegistry
from ..topics.loaded_topics import Topics


class SchemaMethods:
    """See the module. Topics are named in full."""

    def __init__(self, registry: SchemaRegistry, topics: Topics) -> None:
        self._registry = registry
        self._policies = topics.policies

    async def rpc_schemas(self, connection: RpcConnection, topic: str) -> list[SchemaRow]:
        """The versions since the last deletion, oldest first."""
        return [
            SchemaRow(
                one.version,
                int(one.definition.type),
                one.definition.data,
                one.created_ms,
                dict(one.definition.properties),
            )
            for one in await self._registry.versions(TopicName.parse(topic))
        ]

    async def rpc_put_schema(
        self, connection: RpcConnection, topic: str, type: int, data: bytes, properties: dict[str, str]
    ) -> int:
        """Add a schema, whether or not clients may. Raises IncompatibleSchema, TopicNotFound (no such namespace)."""
        name = TopicName.parse(topic)
        await self._policies.known()
        strategy = self._policies.of(name).schema_compatibility_strategy
        return await self._registry.put(name, _definition(type, data, properties), strategy)

    async def rpc_find_schema(self, connection: RpcConnection, topic: str, type: int, data: bytes) -> int:
        """The version that has exactly this definition, −1 for none."""
        return await self._registry.find(TopicName.parse(topic), _definition(type, data, {}))

    async def rpc_check_schema(
        self, connection: RpcConnection, topic: str, type: int, data: bytes, properties: dict[str, str]
    ) -> str:
        """The strategy by which the topic may get a schema. Raises IncompatibleSchema."""
        name = TopicName.parse(topic)
        await self._policies.known()
        strategy = self._policies.of(name).schema_compatibility_strategy
        await self._registry.check(name, _definition(type, data, properties), strategy)
        return strategy.value

    async def rpc_delete_schemas(self, connection: RpcConnection, topic: str, force: bool = False) -> int:
        """Delete all versions and return the version of the deletion."""
        return await self._registry.delete(TopicName.parse(topic), force=force)


def _definition(number: int, data: bytes, properties: dict[str, str]) -> SchemaDefinition:
    try:
        return SchemaDefinition(SchemaType(number), data, properties)
    except ValueError:
        raise ProtocolError(f"{number} is no type of schema") from None
