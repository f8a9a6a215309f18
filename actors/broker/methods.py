"""What members of the cluster ask a broker about its topics: figures, subscriptions, messages, planning a bulk read.

The admin service, the coordinator and the Spark bridge call these over the internal RPC. Each raises
ServiceUnitNotReady for a topic that this broker does not own, so that the caller asks the coordinator again.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from ...protocol.ack_sets import bits_to_words
from ...protocol.bounds import NAME_MAX_BYTES, check_text
from ...protocol.entries import message_count, parse_metadata
from ...protocol.errors import ConflictError, InvalidConfiguration, NotAllowedError, ProtocolError, SubscriptionNotFound
from ...protocol.schema_types import SchemaType
from ...protocol.topic_figures import CompactionFigures, StorageFigures, TopicFigures
from ...protocol.topics import TopicName
from ...runtime.rpc.connection import RpcService
from ...runtime.rpc.contract import handlers_of
from ...storage.ledger.bookie_directory import BookieInfo
from ...storage.managed.chain import bytes_after
from ..compaction.topic_compaction import TopicCompaction
from ..connections.consumer_commands import SUBSCRIPTION_PROPERTIES_MAX_BYTES
from ..members.contracts_broker import (
    PIN_TTL_DEFAULT_S,
    BacklogAnalysis,
    BrokerContract,
    EntryPosition,
    LastMessage,
    MessageContract,
    OwnerContract,
    PlannedRead,
    Point,
    SchemaContract,
    SchemaRow,
    StoredEntry,
)
from ..schemas.definition import SchemaDefinition
from ..schemas.registry import SchemaRegistry
from ..topics.loaded_topics import Topic, Topics
from ..topics.persistent import PersistentTopic
from ..topics.subscription import Subscription
from ..topics.subscription_members import SubscriptionMembers
from ..topics.topic import SubscriptionStart
from . import backlog
from .backlog import entry_at
from .health import HealthMethods
from .ownership import Ownership
from .read_planning import plan_read, position_of_point

PEEK_MAX = 100_000
"""Entries in front of the one that is looked at: they are counted one by one on the broker's loop."""


class MessageMethods(MessageContract):
    """What the admin asks the owner of a topic about its messages. Topics are named in full."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    async def terminate(self, *, topic: str) -> EntryPosition:
        return EntryPosition(*await (await self._persistent(topic)).terminate())

    async def truncate(self, *, topic: str) -> None:
        await backlog.truncate(await self._persistent(topic))

    async def trim(self, *, topic: str) -> None:
        await (await self._persistent(topic)).ledger.trim()

    async def analyze_backlog(
        self, *, topic: str, subscription: str, position: list[int] | None = None
    ) -> BacklogAnalysis:
        owner = await self._persistent(topic)
        begin = position_of_point(position) if position is not None else None
        return await backlog.analyze(owner, _find_persistent(owner, subscription), begin)

    async def skip(self, *, topic: str, subscription: str, entries: int) -> None:
        owner = await self._persistent(topic)
        await backlog.skip(owner, _find_persistent(owner, subscription), entries)

    async def peek(self, *, topic: str, subscription: str, number: int) -> StoredEntry:
        if not 1 <= number <= PEEK_MAX:
            raise InvalidConfiguration(f"the number of the message must be from 1 to {PEEK_MAX}, not {number}")
        owner = await self._persistent(topic)
        position, data = await backlog.peek(owner, _find_persistent(owner, subscription), number)
        return StoredEntry(*position, data)

    async def examine(self, *, topic: str, number: int, from_latest: bool = False) -> StoredEntry:
        position, data = await backlog.examine(await self._persistent(topic), number, from_latest=from_latest)
        return StoredEntry(*position, data)

    async def entry_at(self, *, topic: str, ledger: int, entry: int) -> StoredEntry:
        if ledger < 0 or entry < 0:
            raise InvalidConfiguration(f"{ledger}:{entry} is no message id")
        position, data = await backlog.entry_at(await self._persistent(topic), (ledger, entry))
        return StoredEntry(*position, data)

    async def bytes_after(self, *, topic: str, ledger: int, entry: int) -> int:
        return bytes_after((await self._persistent(topic)).ledger.ledger_infos, (ledger, entry))

    async def find_entry(self, *, topic: str, publish_time_ms: int) -> EntryPosition:
        return EntryPosition(*await (await self._persistent(topic)).ledger.find_by_publish_time(publish_time_ms))

    async def _persistent(self, topic: str) -> PersistentTopic:
        found = await self._topics.get(TopicName.parse(topic))
        if not isinstance(found, PersistentTopic):
            raise NotAllowedError(f"{topic} is not persistent, so it stores no messages")
        return found


def _find_persistent(topic: PersistentTopic, name: str) -> Subscription:
    found = topic.subscriptions.get((name, True))
    if found is None:
        raise SubscriptionNotFound(f"Subscription {name} of {topic.name.full} does not exist")
    return found


class SchemaMethods(SchemaContract):
    """What the admin asks any broker about schemas, whether or not it owns the topic.

    Topics are named in full.
    """

    def __init__(self, registry: SchemaRegistry, topics: Topics) -> None:
        self._registry = registry
        self._policies = topics.policies

    async def schemas(self, *, topic: str) -> list[SchemaRow]:
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

    async def put_schema(self, *, topic: str, type: int, data: bytes, properties: dict[str, str]) -> int:
        name = TopicName.parse(topic)
        await self._policies.known()
        strategy = self._policies.of(name).schema_compatibility_strategy
        return await self._registry.put(name, _definition(type, data, properties), strategy)

    async def find_schema(self, *, topic: str, type: int, data: bytes) -> int:
        return await self._registry.find(TopicName.parse(topic), _definition(type, data, {}))

    async def check_schema(self, *, topic: str, type: int, data: bytes, properties: dict[str, str]) -> str:
        name = TopicName.parse(topic)
        await self._policies.known()
        strategy = self._policies.of(name).schema_compatibility_strategy
        await self._registry.check(name, _definition(type, data, properties), strategy)
        return strategy.value

    async def delete_schemas(self, *, topic: str, force: bool = False) -> int:
        return await self._registry.delete(TopicName.parse(topic), force=force)


def _definition(number: int, data: bytes, properties: dict[str, str]) -> SchemaDefinition:
    try:
        return SchemaDefinition(SchemaType(number), data, properties)
    except ValueError:
        raise ProtocolError(f"{number} is no type of schema") from None


PIN_TTL_MAX_S = 24 * 3600.0


class OwnerMethods(OwnerContract):
    """What only the owner of a topic can answer. Topics are named in full."""

    def __init__(
        self,
        topics: Topics,
        bookies: Callable[[], Iterable[BookieInfo]],
        address: str = "",
        lacking_copies: Callable[[], int] = int,
    ) -> None:
        self._topics = topics
        self._bookies = bookies
        self._address = address
        self._lacking_copies = lacking_copies

    # -- figures -------------------------------------------------------------------------------------------------

    async def topic_stats(self, *, topic: str) -> TopicFigures:
        found = await self._topic(topic)
        if isinstance(found, PersistentTopic):
            await found.last_publish.learn()
        return replace(found.describe(), broker=self._address)

    async def internal_stats(self, *, topic: str) -> StorageFigures:
        return (await self._persistent(topic)).describe_storage()

    async def last_message_id(self, *, topic: str) -> LastMessage:
        last = await (await self._topic(topic)).last_message_id()
        return LastMessage(last.ledger_id, last.entry_id, last.partition, last.batch_index)

    # -- subscriptions -------------------------------------------------------------------------------------------

    async def create_subscription(
        self,
        *,
        topic: str,
        subscription: str,
        position: Point = "latest",
        properties: dict[str, str] | None = None,
    ) -> None:
        if not subscription:
            raise InvalidConfiguration("the name of the subscription is empty: give one")
        check_text("the name of the subscription", subscription, NAME_MAX_BYTES)
        owner = await self._topic(topic)
        if (subscription, True) in owner.subscriptions:
            raise ConflictError(f"Subscription {subscription} already exists")
        if isinstance(position, int):
            start = SubscriptionStart(publish_time_ms=position)
        else:
            start = SubscriptionStart(position=position_of_point(position))
        await owner.subscription(subscription, durable=True, start=start, properties=properties)

    async def delete_subscription(self, *, topic: str, subscription: str, force: bool = False) -> None:
        await (await self._topic(topic)).delete_subscription(subscription, force=force)

    async def reset_cursor(
        self,
        *,
        topic: str,
        subscription: str,
        position: Point,
        batch_index: int = -1,
        excluded: bool = False,
    ) -> None:
        owner = await self._topic(topic)
        found = _find(owner, subscription)
        plain = batch_index < 0 and not excluded
        if plain or not isinstance(position, list) or not isinstance(owner, PersistentTopic):
            await self._seek(found, position)
            return
        place = position_of_point(position)
        messages = message_count(parse_metadata((await entry_at(owner, place))[1])) if batch_index >= 0 else 0
        first = max(batch_index, 0) + excluded
        if first >= max(messages, 1):
            await found.seek(position=(place[0], place[1] + 1))
        else:
            wanted = (1 << messages) - (1 << first) if first else 0
            await found.seek(position=place, ack_set=bits_to_words(wanted))

    async def set_subscription_properties(self, *, topic: str, subscription: str, properties: dict[str, str]) -> None:
        if (
            sum(len(name.encode()) + len(value.encode()) for name, value in properties.items())
            > SUBSCRIPTION_PROPERTIES_MAX_BYTES
        ):
            raise InvalidConfiguration(
                f"the properties have more than {SUBSCRIPTION_PROPERTIES_MAX_BYTES} bytes: shorten them"
            )
        found = _find(await self._persistent(topic), subscription)
        if not isinstance(found, Subscription):
            raise NotAllowedError(f"subscription {subscription} of {topic} is not stored, and has no properties")
        found.cursor.take_snapshot(found.cursor.mark_delete_position, properties)
        await found.cursor.flush()

    async def skip_all(self, *, topic: str, subscription: str) -> None:
        owner = await self._topic(topic)
        found = _find(owner, subscription)
        if isinstance(owner, PersistentTopic) and isinstance(found, Subscription):
            await found.acknowledge_all_to(owner.ledger.last_confirmed)
        else:
            await self._seek(found, "latest")

    async def expire_messages(self, *, topic: str, age_s: int, subscription: str = "") -> int:
        if age_s < 0:
            raise InvalidConfiguration(f"messages cannot be {age_s} s old: give 0 or more")
        owner = await self._persistent(topic)
        names = [subscription] if subscription else [name for name, durable in owner.subscriptions if durable]
        for name in names:
            _find(owner, name)
        return await owner.keeping.expire_each([owner.subscriptions[name, True] for name in names], age_s)

    async def lacking_copies(self) -> int:
        return self._lacking_copies()

    # -- compaction ----------------------------------------------------------------------------------------------

    async def compact(self, *, topic: str) -> None:
        (await self._persistent(topic)).features.of(TopicCompaction).start()

    async def compaction_status(self, *, topic: str) -> CompactionFigures:
        return (await self._persistent(topic)).features.of(TopicCompaction).status()

    # -- bulk reads ----------------------------------------------------------------------------------------------

    async def plan_read(
        self,
        *,
        topic: str,
        start: Point = "earliest",
        end: Point = "latest",
        ttl_s: float = PIN_TTL_DEFAULT_S,
        compacted: bool = False,
        before_bytes: int = 0,
    ) -> PlannedRead:
        name = TopicName.parse(topic)
        if not name.persistent:
            raise NotAllowedError("a non-persistent topic has no stored messages to read")
        if not 0 < ttl_s <= PIN_TTL_MAX_S:
            raise InvalidConfiguration(f"a pin cannot last {ttl_s} s: ask for up to {PIN_TTL_MAX_S} s")
        if before_bytes < 0:
            raise InvalidConfiguration(f"before_bytes must be 0 or more, not {before_bytes}")
        found = await self._persistent(topic)
        found.keeping.inactivity.used()
        return await plan_read(found, start, end, ttl_s, self._bookies, compacted=compacted, before_bytes=before_bytes)

    async def prolong_pin(self, *, topic: str, pin: str, ttl_s: float) -> bool:
        if not 0 < ttl_s <= PIN_TTL_MAX_S:
            raise InvalidConfiguration(f"a pin cannot last {ttl_s} s: ask for up to {PIN_TTL_MAX_S} s")
        return await (await self._persistent(topic)).ledger.prolong_pin(pin, ttl_s)

    async def unpin(self, *, topic: str, pin: str) -> None:
        await (await self._persistent(topic)).ledger.unpin(pin)

    # -- inside --------------------------------------------------------------------------------------------------

    async def _topic(self, topic: str) -> Topic:
        return await self._topics.get(TopicName.parse(topic))

    async def _persistent(self, topic: str) -> PersistentTopic:
        found = await self._topic(topic)
        if not isinstance(found, PersistentTopic):
            raise NotAllowedError(f"{topic} is not persistent, so it stores no messages")
        return found

    async def _seek(self, subscription: SubscriptionMembers, place: Point) -> None:
        if isinstance(place, int):
            await subscription.seek(publish_time_ms=place)
        else:
            await subscription.seek(position=position_of_point(place))


class BrokerRpc(RpcService):
    """The internal side of one broker."""

    contract = BrokerContract

    def __init__(
        self,
        topics: Topics,
        ownership: Ownership,
        schemas: SchemaRegistry,
        bookies: Callable[[], Iterable[BookieInfo]],
        health: HealthMethods,
        address: str = "",
        lacking_copies: Callable[[], int] = int,
    ) -> None:
        """`address` is `host:port` of the broker. `lacking_copies` counts its open ledgers with too few copies."""
        self.handlers = handlers_of(
            BrokerContract,
            OwnerMethods(topics, bookies, address, lacking_copies),
            ownership,
            MessageMethods(topics),
            SchemaMethods(schemas, topics),
            health,
        )


def _find(topic: Topic, name: str) -> SubscriptionMembers:
    found = topic.subscriptions.get((name, True))
    if found is None:
        raise SubscriptionNotFound(f"Subscription {name} of {topic.name.full} does not exist")
    return found
