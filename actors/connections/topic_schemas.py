"""What a topic demands of the schemas of its producers and consumers. The rules are those of Pulsar.

- A producer's schema is added to the topic, if the topic's policies let clients add schemas. Else the topic must have
  it already. The producer learns its version.
- A producer without a schema is admitted, unless the topic has schemas and enforces them.
- The first consumer of an unused topic adds its schema like a producer. In a topic that is used, or has schemas, its
  schema must be able to read the topic.
- A consumer without a schema, or one that takes whatever the topic has (AUTO_CONSUME), is admitted.

A client without a schema costs a topic nothing: the broker reads schemas only where they may matter.
"""

from ...protocol.errors import IncompatibleSchema
from ...protocol.schema_types import SchemaType
from ..schemas.definition import VERSION, SchemaDefinition
from ..schemas.registry import SchemaRegistry
from ..topics.loaded_topics import Topic


async def schema_of_producer(schemas: SchemaRegistry, topic: Topic, definition: SchemaDefinition | None) -> bytes:
    """The version of a producer's schema as it travels; empty without a schema. Raises IncompatibleSchema."""
    if definition is not None:
        return VERSION.pack(await _add(schemas, topic, definition))
    if topic.policies.schema_validation_enforced and await schemas.latest(topic.name) is not None:
        raise IncompatibleSchema(
            "Producers cannot connect or send message without a schema to topics with a schema "
            "when SchemaValidationEnforced is enabled"
        )
    return b""


async def check_schema_of_consumer(schemas: SchemaRegistry, topic: Topic, definition: SchemaDefinition | None) -> None:
    """Raise IncompatibleSchema unless a consumer with this schema may read the topic. The first one adds it."""
    if definition is None or definition.type is SchemaType.AUTO_CONSUME:
        return
    if _is_used(topic) or await schemas.latest(topic.name) is not None:
        await schemas.check_consumer(topic.name, definition, topic.policies.schema_compatibility_strategy)
    else:
        await _add(schemas, topic, definition)


async def _add(schemas: SchemaRegistry, topic: Topic, definition: SchemaDefinition) -> int:
    policies = topic.policies
    return await schemas.put(
        topic.name,
        definition,
        policies.schema_compatibility_strategy,
        add=policies.is_allow_auto_update_schema,
    )


def _is_used(topic: Topic) -> bool:
    """Whether somebody relies on what the topic has, or has not, as its schema."""
    return (
        topic.has_messages
        or len(topic.publishing.producers) > 0
        or any(not one.takes_any_schema for members in topic.subscriptions.values() for one in members.consumers)
    )
