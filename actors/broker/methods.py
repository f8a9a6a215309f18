"""What members of the cluster ask a broker about its topics: figures, subscriptions, unloading, planning a bulk read.

The admin service, the coordinator and the Spark bridge call these over the internal RPC. Each raises
ServiceUnitNotReady for a topic that this broker does not own, so that the caller asks the coordinator again.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace

from ...protocol.ack_sets import bits_to_words
from ...protocol.bounds import NAME_MAX_BYTES, check_text
from ...protocol.entries import message_count, parse_metadata
from ...protocol.errors import ConflictError, InvalidConfiguration, NotAllowedError, ProtocolError, SubscriptionNotFound
from ...protocol.schema_types import SchemaType
from ...protocol.slots import TopicGrant
from ...protocol.topic_figures import CompactionFigures, StorageFigures, TopicFigures
from ...protocol.topics import TopicName
from ...runtime.rpc.connection import Handler, RpcConnection, RpcService
from ...runtime.rpc.groups import handlers_of
from ...storage.ledger.bookie_directory import BookieInfo
from ...storage.managed.chain import bytes_after
from ..connections.consumer_commands import SUBSCRIPTION_PROPERTIES_MAX_BYTES
from ..members.contracts_broker import (
    PIN_TTL_DEFAULT_S,
    BacklogAnalysis,
    BrokerContract,
    EntryPosition,
    LastMessage,
    PlannedRead,
    Point,
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

DELETIONS_AT_A_TIME = 8


class OwnershipMethods:
    """What the coordinator asks of the owner of topics: to release them, to take them back, to delete what they store.

    Topics are named in full.
    """

    def __init__(self, topics: Topics, ownership: Ownership) -> None:
        self._topics = topics
        self._ownership = ownership

    async def rpc_release(self, connection: RpcConnection, number: int, slots: list[int], topics: list[str]) -> None:
        """Close these topics and all in these slots; see `Ownership`."""
        await self._ownership.release(number, slots, topics)

    async def rpc_unload(self, connection: RpcConnection, topic: str, number: int, inactive: bool = False) -> None:
        """Close a topic that is about to be deleted.

        Raises NotAllowedError, and closes nothing, while a client is connected. With `inactive` also while the topic
        is not inactive.
        """
        await self._ownership.unload(topic, number, inactive=inactive)

    async def rpc_take_topics(self, connection: RpcConnection, grants: list[TopicGrant]) -> None:
        """Load these topics: they were released, and are not deleted after all."""
        self._ownership.take_back(grants)

    async def rpc_is_inactive(self, connection: RpcConnection, topic: str) -> bool:
        """Whether a topic is loaded here and inactive. One that is not persistent, and not loaded, is inactive."""
        found = self._topics.find(topic)
        if found is None:
            return not TopicName.parse(topic).persistent
        return await found.keeping.is_inactive()

    async def rpc_delete_topics(self, connection: RpcConnection, topics: list[tuple[str, int]]) -> None:
        """Delete all that these topics store, each under the epoch beside its name; no broker can open them.

        Every one of them is tried. Raises the first error.
        """
        permits = asyncio.Semaphore(DELETIONS_AT_A_TIME)

        async def delete(topic: str, epoch: int) -> None:
            async with permits:
                await self._topics.delete(TopicName.parse(topic), epoch)

        outcomes = await asyncio.gather(*(delete(topic, epoch) for topic, epoch in topics), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome


PEEK_MAX = 100_000
"""Entries in front of the one that is looked at: they are counted one by one on the broker's loop."""


class MessageMethods:
    """What the admin asks the owner of a topic about its messages. Topics are named in full."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    async def rpc_terminate(self, connection: RpcConnection, topic: str) -> EntryPosition:
        """Let a topic take no message from now on, for ever. Returns the place of its last entry."""
        return EntryPosition(*await (await self._persistent(topic)).terminate())

    async def rpc_truncate(self, connection: RpcConnection, topic: str) -> None:
        """Acknowledge the backlog of every subscription, and delete what is no longer needed."""
        await backlog.truncate(await self._persistent(topic))

    async def rpc_trim(self, connection: RpcConnection, topic: str) -> None:
        """Delete the ledgers that no cursor, no reader and no retention needs. Raises what trimming raises."""
        await (await self._persistent(topic)).ledger.trim()

    async def rpc_analyze_backlog(
        self, connection: RpcConnection, topic: str, subscription: str, position: list[int] | None = None
    ) -> BacklogAnalysis:
        """Read the backlog of a subscription, from a place on, and count. Raises SubscriptionNotFound."""
        owner = await self._persistent(topic)
        begin = position_of_point(position) if position is not None else None
        return await backlog.analyze(owner, _find_persistent(owner, subscription), begin)

    async def rpc_skip(self, connection: RpcConnection, topic: str, subscription: str, entries: int) -> None:
        """Acknowledge the next entries of a subscription. Raises SubscriptionNotFound."""
        owner = await self._persistent(topic)
        await backlog.skip(owner, _find_persistent(owner, subscription), entries)

    async def rpc_peek(self, connection: RpcConnection, topic: str, subscription: str, number: int) -> StoredEntry:
        """An entry of the backlog of a subscription, from 1. Raises SubscriptionNotFound, NoSuchEntry."""
        if not 1 <= number <= PEEK_MAX:
            raise InvalidConfiguration(f"the number of the message must be from 1 to {PEEK_MAX}, not {number}")
        owner = await self._persistent(topic)
        position, data = await backlog.peek(owner, _find_persistent(owner, subscription), number)
        return StoredEntry(*position, data)

    async def rpc_examine(
        self, connection: RpcConnection, topic: str, number: int, from_latest: bool = False
    ) -> StoredEntry:
        """An entry of a topic, from 1, counted from its first or its last one. Raises NoSuchEntry."""
        position, data = await backlog.examine(await self._persistent(topic), number, from_latest=from_latest)
        return StoredEntry(*position, data)

    async def rpc_entry_at(self, connection: RpcConnection, topic: str, ledger: int, entry: int) -> StoredEntry:
        """An entry of a topic. Raises NoSuchEntry."""
        if ledger < 0 or entry < 0:
            raise InvalidConfiguration(f"{ledger}:{entry} is no message id")
        position, data = await backlog.entry_at(await self._persistent(topic), (ledger, entry))
        return StoredEntry(*position, data)

    async def rpc_bytes_after(self, connection: RpcConnection, topic: str, ledger: int, entry: int) -> int:
        """How many bytes a topic stores behind an entry."""
        return bytes_after((await self._persistent(topic)).ledger.ledger_infos, (ledger, entry))

    async def rpc_find_entry(self, connection: RpcConnection, topic: str, publish_time_ms: int) -> EntryPosition:
        """Where the first entry is that was published then or later, else where the next one will be."""
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


class SchemaMethods:
    """What the admin asks any broker about schemas, whether or not it owns the topic.

    Topics are named in full.
    """

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


PIN_TTL_MAX_S = 24 * 3600.0


class OwnerMethods:
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

    async def rpc_topic_stats(self, connection: RpcConnection, topic: str) -> TopicFigures:
        """The figures of a topic."""
        found = await self._topic(topic)
        if isinstance(found, PersistentTopic):
            await found.last_publish.learn()
        return replace(found.describe(), broker=self._address)

    async def rpc_internal_stats(self, connection: RpcConnection, topic: str) -> StorageFigures:
        """Ledgers and cursors of a topic."""
        return (await self._persistent(topic)).describe_storage()

    async def rpc_last_message_id(self, connection: RpcConnection, topic: str) -> LastMessage:
        """Where the topic ends now."""
        last = await (await self._topic(topic)).last_message_id()
        return LastMessage(last.ledger_id, last.entry_id, last.partition, last.batch_index)

    # -- subscriptions -------------------------------------------------------------------------------------------

    async def rpc_create_subscription(
        self,
        connection: RpcConnection,
        topic: str,
        subscription: str,
        position: Point = "latest",
        properties: dict[str, str] | None = None,
    ) -> None:
        """Create a durable subscription at a place. Raises NotAllowedError when it exists, or its name is too long."""
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

    async def rpc_delete_subscription(
        self, connection: RpcConnection, topic: str, subscription: str, force: bool = False
    ) -> None:
        """Raises SubscriptionNotFound; BrokerMetadataError while consumers are connected, unless forced."""
        await (await self._topic(topic)).delete_subscription(subscription, force=force)

    async def rpc_reset_cursor(
        self,
        connection: RpcConnection,
        topic: str,
        subscription: str,
        position: Point,
        batch_index: int = -1,
        excluded: bool = False,
    ) -> None:
        """Move a subscription to a place (inclusive, or behind it), as a consumer's seek does. Raises
        SubscriptionNotFound, and NoSuchEntry where an index in a batch names no entry."""
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

    async def rpc_set_subscription_properties(
        self, connection: RpcConnection, topic: str, subscription: str, properties: dict[str, str]
    ) -> None:
        """Replace the properties of a subscription. Raises SubscriptionNotFound, InvalidConfiguration.

        They are durable when this returns: the cursor writes them with the place where it is.
        """
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

    async def rpc_skip_all(self, connection: RpcConnection, topic: str, subscription: str) -> None:
        """Acknowledge the whole backlog. Raises SubscriptionNotFound."""
        owner = await self._topic(topic)
        found = _find(owner, subscription)
        if isinstance(owner, PersistentTopic) and isinstance(found, Subscription):
            await found.acknowledge_all_to(owner.ledger.last_confirmed)
        else:
            await self._seek(found, "latest")

    async def rpc_expire_messages(
        self, connection: RpcConnection, topic: str, age_s: int, subscription: str = ""
    ) -> int:
        """Count messages that were published longer ago as acknowledged. Returns how many entries that were.

        Raises SubscriptionNotFound; InvalidConfiguration for a negative age.
        """
        if age_s < 0:
            raise InvalidConfiguration(f"messages cannot be {age_s} s old: give 0 or more")
        owner = await self._persistent(topic)
        names = [subscription] if subscription else [name for name, durable in owner.subscriptions if durable]
        for name in names:
            _find(owner, name)
        return await owner.keeping.expire_each([owner.subscriptions[name, True] for name in names], age_s)

    async def rpc_lacking_copies(self, connection: RpcConnection) -> int:
        """How many ledgers that this broker writes have fewer copies than they should."""
        return self._lacking_copies()

    # -- compaction ----------------------------------------------------------------------------------------------

    async def rpc_compact(self, connection: RpcConnection, topic: str) -> None:
        """Begin to compact a topic. Raises NotAllowedError while that is under way."""
        (await self._persistent(topic)).compaction.start()

    async def rpc_compaction_status(self, connection: RpcConnection, topic: str) -> CompactionFigures:
        """How the last compaction of a topic went."""
        return (await self._persistent(topic)).compaction.figures()

    # -- bulk reads ----------------------------------------------------------------------------------------------

    async def rpc_plan_read(
        self,
        connection: RpcConnection,
        topic: str,
        start: Point = "earliest",
        end: Point = "latest",
        ttl_s: float = PIN_TTL_DEFAULT_S,
        compacted: bool = False,
    ) -> PlannedRead:
        """Where a topic begins and ends now, and its ledgers in between, pinned for `ttl_s` seconds.

        See `read_planning.plan_read`. Raises NotAllowedError for a non-persistent topic.
        """
        name = TopicName.parse(topic)
        if not name.persistent:
            raise NotAllowedError("a non-persistent topic has no stored messages to read")
        if not 0 < ttl_s <= PIN_TTL_MAX_S:
            raise InvalidConfiguration(f"a pin cannot last {ttl_s} s: ask for up to {PIN_TTL_MAX_S} s")
        found = await self._persistent(topic)
        found.keeping.inactivity.used()
        return await plan_read(found, start, end, ttl_s, self._bookies, compacted=compacted)

    async def rpc_prolong_pin(self, connection: RpcConnection, topic: str, pin: str, ttl_s: float) -> bool:
        """Let a pin last `ttl_s` seconds from now on, by this broker's clock. Returns whether it is still there."""
        if not 0 < ttl_s <= PIN_TTL_MAX_S:
            raise InvalidConfiguration(f"a pin cannot last {ttl_s} s: ask for up to {PIN_TTL_MAX_S} s")
        return await (await self._persistent(topic)).ledger.prolong_pin(pin, ttl_s)

    async def rpc_unpin(self, connection: RpcConnection, topic: str, pin: str) -> None:
        """The planned read has ended. Nothing happens when the pin has expired."""
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
    method_groups = (OwnerMethods, OwnershipMethods, MessageMethods, SchemaMethods, HealthMethods)

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
        self._handlers = handlers_of(
            OwnerMethods(topics, bookies, address, lacking_copies),
            OwnershipMethods(topics, ownership),
            MessageMethods(topics),
            SchemaMethods(schemas, topics),
            health,
        )

    def handler(self, method: str) -> Handler | None:
        return self._handlers.get(method)


def _find(topic: Topic, name: str) -> SubscriptionMembers:
    found = topic.subscriptions.get((name, True))
    if found is None:
        raise SubscriptionNotFound(f"Subscription {name} of {topic.name.full} does not exist")
    return found
