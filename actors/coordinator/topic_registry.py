"""Which topics exist: records in the metadata store, with a copy in the coordinator's memory.

Only the active coordinator changes these records (each write is guarded by its epoch). So its copy is right as long as
it is active. Changes of one topic run one by one, those of different topics at the same time (their writes then share a
transaction). `CertainRecords` settles a change whose outcome is unknown. A topic whose creation is in doubt neither
exists nor can be created until then: callers get ServiceUnitNotReady. A namespace with a topic under way, or in doubt,
is not deleted (see `namespaces`). A topic that is being deleted exists
until its record is gone. Callers that want to use it, create it or grow it get ServiceUnitNotReady (see
`topic_deletions`). One that grows has its former number of partitions until the growth has ended (see `topic_growth`).

A non-persistent topic without partitions has no record: it *passes*. It exists in this coordinator's memory, from its
creation until its broker ends. Its next client has it created again.

A topic has the epoch of its creation, in its record. Its owner opens it under that epoch or that of its slot, whichever
is greater. So a deletion that was ordered earlier, and comes late, does not touch it.

Who owns a topic and what it stores is not known here.
"""

import asyncio
import bisect
from collections.abc import Awaitable, Callable
from typing import NamedTuple, NotRequired, TypedDict, cast

from ...protocol.errors import (
    InvalidConfiguration,
    InvalidTopicName,
    KeyExists,
    NotAllowedError,
    ReservedName,
    ServiceUnitNotReady,
    TopicNotFound,
)
from ...protocol.properties import Properties, changed_properties
from ...protocol.system_topics import is_system_topic
from ...protocol.topics import TopicName, topic_of_path
from ...runtime.environment import Environment
from ...runtime.named_locks import NamedLocks
from ...runtime.rpc.connection import RpcConnection
from ...runtime.rpc.contract import CALLER
from ...runtime.settings.declarations import Settings
from ...storage.metadata import keys as metadata_keys
from ...storage.metadata.certain_records import CertainRecords
from ...storage.metadata.epoch_guard import EpochMetadataStore
from ...storage.metadata.store import KEY_SIZE_MAX_BYTES, Guard, Versioned, list_pages, pack, unpack
from ..members.contracts_coordinator import TopicContract, TopicRecord
from ..members.permissions import check_topic_creation
from ..policies.automatic_creation import PARTITIONS_MAX
from .namespaces import Namespaces

LIST_LIMIT_MAX = 10_000
GROWN_FOR_MS = 60_000
"""So long after a growth a client may subscribe with the former number of partitions. It asked for the number before
the end of the growth, and its operation time-out (30 s by default) is not over."""


class TopicFacts(NamedTuple):
    """What an owner of a topic needs: the version of its record (None: it has none), the epoch of its creation, and
    how many partitions the whole topic has (0: plain)."""

    version: int | None
    epoch: int
    partitions: int


class TopicFields(TypedDict):
    """What a topic's record says. Keys that this version does not know are kept."""

    partitions: int
    epoch: NotRequired[int]
    created_ms: NotRequired[int]
    properties: NotRequired[dict[str, str]]
    deleting: NotRequired[bool]
    growing: NotRequired[int]
    """How many partitions it gets."""
    grown: NotRequired[list[int]]
    """How many partitions it had before it grew, and when that was, in milliseconds since the epoch."""


class KnownTopic(NamedTuple):
    """What is known of a topic that has a record: its partitions, how many it gets (None: it does not grow), whether it
    is being deleted, and the version of its record."""

    partitions: int
    growing: int | None
    deleting: bool
    version: int


class Growth(NamedTuple):
    """A topic that grows: its partitions now and in the end, and the epoch of its creation. `guard` holds while its
    record is as it is."""

    partitions: int
    target: int
    guard: Guard
    epoch: int


class TopicRegistry(TopicContract):
    """See the module. `topic_epoch` gives a new topic its epoch."""

    def __init__(
        self,
        env: Environment,
        store: EpochMetadataStore,
        settings: Settings,
        namespaces: Namespaces,
    ) -> None:
        self.topic_epoch: Callable[[], Awaitable[int]] = _no_epoch
        self._env = env
        self._store = store
        self._settings = settings
        self._namespaces = namespaces
        self.deleting: dict[str, None] = {}
        """Full names of the topics that are being deleted, marked or about to be."""
        self.on_changed: list[Callable[[TopicName, int | None, int | None], None]] = []
        """Told of each topic that is created or grows, or is gone: its partitions before and now (0: plain, None: it
        does not exist)."""
        self.on_growing: Callable[[TopicName], None] = lambda topic: None
        """Told of each topic whose record says that it grows, as soon as that is known."""
        self.on_deletion: Callable[[TopicName], None] = lambda topic: None
        """Told of each topic whose deletion begins, or is gone on with, before anybody is asked to close it."""
        self._partitions: dict[str, int] = {}
        self._growing: dict[str, int] = {}
        """How many partitions topics get that grow now."""
        self._grown: dict[str, tuple[int, int]] = {}
        """How many partitions topics had before they grew, and when that was, in milliseconds since the epoch."""
        self._versions: dict[str, int] = {}  # of the topics' records
        self._epochs: dict[str, int] = {}
        self._names_by_namespace: dict[str, list[str]] = {}
        self._counts: dict[str, int] = {}
        """Topics of each namespace, partitions counted one by one; also those that are being created."""
        self._changing = NamedLocks()
        """Held while the record of a topic is changed, by its full name."""
        self._stored = CertainRecords(
            env,
            store,
            "topic",
            changing=self._changing.hold,
            key_of=lambda full_name: metadata_keys.topic(TopicName.parse(full_name).path),
            version_of=self._versions.get,
            take=self._settled,
        )
        self.creating: dict[str, asyncio.Future[None]] = {}
        """By full name: ends when the topic is created, or is not."""

    async def start(self) -> None:
        """Read everything. Raises MetadataUnavailable."""
        async for records in list_pages(self._store, metadata_keys.TOPICS_PREFIX):
            for key, record in records:
                topic = topic_of_path(key.removeprefix(metadata_keys.TOPICS_PREFIX))
                value = cast("TopicFields", unpack(record.value))
                self._take(topic, value, record.version)

    async def close(self) -> None:
        """End what is under way."""
        await self._stored.close()

    @property
    def topic_count(self) -> int:
        """Topics, a partitioned one counted once."""
        return len(self._partitions)

    # -- topics --------------------------------------------------------------------------------------------------

    def find(self, topic: TopicName) -> int | None:
        """Partitions of an existing topic (0: not partitioned), None when it does not exist."""
        return self._partitions.get(topic.full)

    def known(self) -> dict[str, KnownTopic]:
        """The topics that have a record, by full name, as far as this coordinator knows."""
        return {
            name: KnownTopic(self._partitions[name], self._growing.get(name), name in self.deleting, version)
            for name, version in self._versions.items()
        }

    def forget(self, full_name: str) -> None:
        """A topic that exists in memory only has ended with its broker."""
        if full_name in self._partitions and full_name not in self._versions:
            self._remove(TopicName.parse(full_name))

    def guard_of(self, topic: TopicName) -> Guard | None:
        """Holds while the record of the topic that a partition or plain topic belongs to is as it is known here.

        None when there is no such topic, or it is being deleted: then nothing is to be written for it.
        """
        whole = topic if topic.partition < 0 or topic.full in self._partitions else topic.without_partition()
        version = self._versions.get(whole.full)
        if version is None or whole.full in self.deleting:
            return None
        return Guard(metadata_keys.topic(whole.path), version)

    def facts(self, topic: TopicName) -> TopicFacts | None:
        """Those of a partition or plain topic. None when it does not exist, or is being deleted."""
        whole = topic if topic.partition < 0 else topic.without_partition()
        partitions = self._partitions.get(whole.full)
        if partitions is None or whole.full in self.deleting or topic.partition >= partitions:
            return None
        return TopicFacts(self._versions.get(whole.full), self._epochs.get(whole.full, 0), partitions)

    async def check_assignable(self, topic: TopicName, create: bool) -> None:
        """Raise unless `topic` is a partition or a plain topic that exists, or could be created and now was.

        Raises TopicNotFound, NotAllowedError (the name of a partitioned topic itself, non-persistent topics),
        ServiceUnitNotReady (it is being deleted).
        """
        _check_domain(topic, self._settings)
        self._check_stays(topic)
        if topic.partition >= 0:
            base = topic.without_partition()
            partitions = self._partitions.get(base.full)
            if partitions is None and create and self._namespaces.creation(topic.namespace).partitions:
                partitions = await self._find_or_create(base, create=True)
            if partitions is None or topic.partition >= partitions:
                raise TopicNotFound(f"{topic.full} does not exist: {base.full} has {partitions or 0} partitions")
            return
        partitions = self._partitions.get(topic.full)
        if partitions is None:
            if not create:
                self._namespaces.check(topic.namespace)
                raise TopicNotFound(f"{topic.full} does not exist")
            partitions = await self._create_missing(topic, self._namespaces.creation(topic.namespace).partitions)
        if partitions:
            raise NotAllowedError(f"{topic.full} has {partitions} partitions: name one of them")

    def would_create(self, topic: TopicName) -> bool:
        """Whether `topic` is missing, and its first client would create it."""
        creation = self._namespaces.creation(topic.namespace)
        if not creation.allow or not self._namespaces.exists(topic.namespace) or _is_reserved(topic, self._settings):
            return False
        if topic.partition < 0:
            return topic.full not in self._partitions
        return topic.partitioned_name not in self._partitions and topic.partition < creation.partitions

    async def partitions(
        self, *, topic: str, create: bool = False, tell_missing: bool = False, caller: RpcConnection = CALLER
    ) -> int:
        check_topic_creation(caller, create)
        name = TopicName.parse(topic)
        found = await self._find_or_create(name, create=create)
        return -1 if tell_missing and not found and self.facts(name) is None else found

    async def _find_or_create(self, topic: TopicName, *, create: bool) -> int:
        """Partitions of a topic, 0 for one that has none: then its first producer or consumer creates it."""
        _check_domain(topic, self._settings)
        self._check_stays(topic)
        if topic.partition >= 0 and topic.full not in self._partitions:
            base = topic.without_partition()
            if topic.partition >= (self._partitions.get(base.full) or 0):
                raise TopicNotFound(f"{topic.full} does not exist")
            return 0
        found = self._partitions.get(topic.full)
        if found is not None:
            return found
        self._namespaces.check(topic.namespace)
        creation = self._namespaces.creation(topic.namespace)
        if not (create and creation.allow):
            raise TopicNotFound(f"{topic.full} does not exist")
        return await self._create_missing(topic, creation.partitions) if creation.partitions else 0

    async def _create_missing(self, topic: TopicName, partitions: int) -> int:
        try:
            return await self.create(topic, partitions)
        except KeyExists:
            return self._partitions[topic.full]

    async def create_topic(self, *, topic: str, partitions: int = 0, properties: Properties | None = None) -> None:
        await self.create(TopicName.parse(topic), partitions, properties=properties)

    async def create(
        self, topic: TopicName, partitions: int, *, system: bool = False, properties: Properties | None = None
    ) -> int:
        """Create a topic (0 partitions: a plain one). `system` says that it is for the cluster, and needs no namespace.

        Raises KeyExists, TopicNotFound (no such namespace), NotAllowedError (a name that is reserved), …
        """
        _check_domain(topic, self._settings)
        if _is_reserved(topic, self._settings) and not system:
            raise ReservedName(f"{topic.full} is the name of a system topic: choose another name")
        if topic.partition >= 0:
            raise NotAllowedError(
                f"{topic.full} is the name of a partition, which cannot be created alone: choose another name"
            )
        if not 0 <= partitions <= PARTITIONS_MAX:
            raise InvalidConfiguration(f"a topic has up to {PARTITIONS_MAX} partitions, not {partitions}")
        if len(metadata_keys.cursor(topic.path, "").encode()) > KEY_SIZE_MAX_BYTES - 300:
            raise InvalidTopicName(f"the topic name {topic.full[:100]}… is too long: shorten it")
        while topic.full in self.creating:
            await asyncio.wait((self.creating[topic.full],))
        self._check_stays(topic)
        if not system:
            self._namespaces.check(topic.namespace)
        if topic.full in self._partitions:
            raise KeyExists(f"{topic.full} already exists", partitions=self._partitions[topic.full])
        self._take_room(topic.namespace, max(partitions, 1))
        under_way = self.creating[topic.full] = asyncio.get_running_loop().create_future()
        try:
            value: TopicFields = {"partitions": partitions, "epoch": await self.topic_epoch()}
            if topic.persistent or partitions:
                value["created_ms"] = self._env.clock.now_ms()
                if properties:
                    value["properties"] = changed_properties({}, properties, ())
                async with self._changing.hold(topic.full):
                    await self._write(topic, value, None)
            else:
                self._take(topic, value, None)
        finally:
            self._counts[topic.namespace] -= max(partitions, 1)  # `_take` has counted it, if it was created
            del self.creating[topic.full]
            under_way.set_result(None)
        return partitions

    async def topic_properties(self, *, topic: str) -> Properties:
        name = TopicName.parse(topic)
        self.members(name)
        record = await self._store.get(metadata_keys.topic(name.path))
        return dict(unpack(record.value).get("properties", {})) if record is not None else {}

    async def change_topic_properties(self, *, topic: str, put: Properties, remove: list[str] | None = None) -> None:
        name = TopicName.parse(topic)
        await self.change_properties(name, lambda found: changed_properties(found, put, remove or ()))

    async def change_properties(self, topic: TopicName, change: Callable[[Properties], Properties]) -> None:
        """Store what `change` makes of a topic's properties. Raises TopicNotFound, NotAllowedError (a partition, or a
        topic without a record), and what `change` raises."""
        async with self._changing.hold(topic.full):
            self.members(topic)
            if topic.full not in self._versions:
                raise NotAllowedError(f"{topic.full} has no properties: set those of the whole topic")
            value, version = await self._read(topic)
            changed = change(value.get("properties", {}))
            if changed != value.get("properties", {}):
                await self._write(topic, {**value, "properties": changed}, version)

    def begin_deletion(self, topic: TopicName) -> None:
        """The topic is about to be deleted: it is neither looked up, nor created, nor grown."""
        self.deleting[topic.full] = None
        self.on_deletion(topic)

    async def mark_deleting(self, topic: TopicName) -> None:
        """Write into the record that the topic is being deleted. No error when it says so, or is not there.

        Raises MetadataUnavailable, OutcomeUnknown.
        """
        self.deleting[topic.full] = None
        async with self._changing.hold(topic.full):
            try:
                value, version = await self._read(topic)
            except TopicNotFound:
                return
            if value.get("deleting"):
                self._take(topic, value, version)
            else:
                await self._write(topic, {**value, "deleting": True}, version)

    async def drop_grants(self, topic: TopicName) -> None:
        """Take away what roles were allowed at a marked topic and its partitions. Raises as that of `Namespaces`."""
        await self._namespaces.drop_grants(topic.namespace, {topic.full, *self.stored_members(topic)})

    async def delete(self, topic: TopicName) -> None:
        """Delete the record of a marked topic; whatever it owned is gone already. No error when it is not there."""
        async with self._changing.hold(topic.full):
            await self._stored.delete(topic.full)
            self.deleting.pop(topic.full, None)
            self._versions.pop(topic.full, None)
            self._remove(topic)

    def _remove(self, topic: TopicName) -> None:
        size, partitions = self._size(topic), self._partitions.pop(topic.full, None)
        self._growing.pop(topic.full, None)
        self._grown.pop(topic.full, None)
        if partitions is not None:
            self._counts[topic.namespace] -= size
            names = self._names_by_namespace[topic.namespace]
            del names[bisect.bisect_left(names, topic.full)]
            self._epochs.pop(topic.full, None)
            self._tell(topic, partitions, None)

    def members(self, topic: TopicName) -> list[str]:
        """What brokers own of a topic: its partitions, or itself. Raises TopicNotFound, ServiceUnitNotReady."""
        self._check_stays(topic)
        return self.members_of_any(topic)

    def stored_members(self, topic: TopicName) -> list[str]:
        """Of a topic that is being deleted: all of which something may be stored. Raises TopicNotFound.

        A growth that has not ended may have stored something of partitions that do not exist yet.
        """
        found = self.members_of_any(topic)
        coming = range(self._partitions[topic.full], self._growing.get(topic.full, 0)) if topic.partition < 0 else ()
        return [*found, *(topic.partition_name(index) for index in coming)]

    def members_of_any(self, topic: TopicName) -> list[str]:
        """What `members` says of a topic that may be in the middle of being deleted. Raises TopicNotFound."""
        if topic.partition >= 0:
            if topic.partition >= (self._partitions.get(topic.partitioned_name) or 0):
                raise TopicNotFound(f"{topic.full} does not exist")
            return [topic.full]
        partitions = self._partitions.get(topic.full)
        if partitions is None:
            raise TopicNotFound(f"{topic.full} does not exist")
        return [topic.partition_name(index) for index in range(partitions)] if partitions else [topic.full]

    async def topic_records(self, *, namespace: str, after: str = "", limit: int = 1000) -> list[TopicRecord]:
        return self.list_topics(namespace, after, limit)

    def list_topics(self, namespace: str, after: str, limit: int) -> list[TopicRecord]:
        """Topics of a namespace with their partitions, ordered, behind `after`. Raises TopicNotFound (no namespace)."""
        self._namespaces.check(namespace)
        names = self._names_by_namespace.get(namespace, [])
        first = bisect.bisect_right(names, after)
        page = names[first : first + max(1, min(limit, LIST_LIMIT_MAX))]
        return [TopicRecord(name, self._partitions[name]) for name in page]

    def names_in(self, namespace: str) -> list[str]:
        """Full names of the topics of a namespace, and of those that are being created there, or may have been."""
        there = self._names_by_namespace.get(namespace, ())
        under_way = (*self.creating, *self._stored.in_doubt())
        coming = [name for name in under_way if TopicName.parse(name).namespace == namespace]
        return list(dict.fromkeys((*there, *coming)))

    # -- growth --------------------------------------------------------------------------------------------------

    def growing(self) -> list[TopicName]:
        """The topics that grow."""
        return [TopicName.parse(full_name) for full_name in self._growing]

    def growth(self, topic: TopicName) -> Growth | None:
        """The growth of a topic that is under way. Raises ServiceUnitNotReady for a topic that is being deleted."""
        target = self._growing.get(topic.full)
        if target is None:
            return None
        self._check_stays(topic)
        guard = Guard(metadata_keys.topic(topic.path), self._versions[topic.full])
        return Growth(self._partitions[topic.full], target, guard, self._epochs[topic.full])

    def new_partitions(self, topic: TopicName) -> range:
        """The partitions of a topic that a client which asked a moment ago may not know."""
        partitions = self._partitions.get(topic.full, 0)
        before, at_ms = self._grown.get(topic.full, (partitions, 0))
        return range(before if self._env.clock.now_ms() - at_ms < GROWN_FOR_MS else partitions, partitions)

    async def begin_growth(self, topic: TopicName, target: int) -> None:
        """Write into the record that the topic grows. Raises TopicNotFound, InvalidConfiguration (fewer than now),
        NotAllowedError (the namespace takes no more), ServiceUnitNotReady (it is being deleted, or grows)."""
        async with self._changing.hold(topic.full):
            self._check_stays(topic)
            now = self._partitions.get(topic.full)
            if now is None:
                raise TopicNotFound(f"{topic.full} does not exist")
            if topic.full in self._growing:
                raise ServiceUnitNotReady(f"{topic.full} is growing")
            if not 0 < now <= target <= PARTITIONS_MAX:
                raise InvalidConfiguration(
                    f"{topic.full} has {now} partitions and cannot have {target}: the number can only grow"
                )
            value, version = await self._read(topic)
            self._take_room(topic.namespace, target - now)
            try:
                await self._write(topic, {**value, "growing": target}, version)
            finally:
                self._counts[topic.namespace] -= target - now  # `_take` has counted them, if it was stored

    async def end_growth(self, topic: TopicName, target: int) -> None:
        """The topic has so many partitions from now on. Raises TopicNotFound, ServiceUnitNotReady (it is being deleted,
        or does not grow to so many)."""
        async with self._changing.hold(topic.full):
            self._check_stays(topic)
            value, version = await self._read(topic)
            if value.get("growing") != target:
                raise ServiceUnitNotReady(f"{topic.full} does not grow to {target} partitions")
            grown = value.copy()
            del grown["growing"]
            if target > value["partitions"]:
                first = min(value["partitions"], self.new_partitions(topic).start)
                grown["partitions"], grown["grown"] = target, [first, self._env.clock.now_ms()]
            await self._write(topic, grown, version)

    # -- inside --------------------------------------------------------------------------------------------------

    def _check_stays(self, topic: TopicName) -> None:
        """Raise ServiceUnitNotReady for a topic that is being deleted, or may have been created, and its partitions."""
        for one in (topic.full, topic.partitioned_name) if self._stored else ():
            if one in self._stored and one not in self._partitions:
                raise ServiceUnitNotReady(f"it is not known yet whether {one} was created: try again")
        if self.deleting and (topic.full in self.deleting or topic.partitioned_name in self.deleting):
            raise ServiceUnitNotReady(f"{topic.full} is being deleted")

    def _tell(self, topic: TopicName, before: int | None, now: int | None) -> None:
        for listener in self.on_changed:
            listener(topic, before, now)

    async def _read(self, topic: TopicName) -> tuple[TopicFields, int]:
        """What a topic's record says, and its version. Raises TopicNotFound."""
        record = await self._store.get(metadata_keys.topic(topic.path))
        if record is None:
            raise TopicNotFound(f"{topic.full} does not exist")
        return cast("TopicFields", unpack(record.value)), record.version

    async def _write(self, topic: TopicName, value: TopicFields, version: int | None) -> None:
        """Store a topic's record in place of that version, and take it over."""
        self._take(topic, value, await self._stored.put(topic.full, pack(dict(value)), version))

    def _settled(self, full_name: str, found: Versioned | None) -> None:
        """It is known what became of a change that was in doubt."""
        topic = TopicName.parse(full_name)
        if found is not None:
            self._take(topic, cast("TopicFields", unpack(found.value)), found.version)
        elif full_name not in self.deleting:  # else its deletion goes on, and ends with it
            self._versions.pop(full_name, None)
            self._remove(topic)

    def _take(self, topic: TopicName, value: TopicFields, version: int | None) -> None:
        """Take over what a topic's record says. Version None: it has no record."""
        full_name, namespace = topic.full, topic.namespace
        partitions, before, size = int(value["partitions"]), self._partitions.get(full_name), self._size(topic)
        if before is None:
            bisect.insort(self._names_by_namespace.setdefault(namespace, []), full_name)
        self._partitions[full_name] = partitions
        self._epochs[full_name] = int(value.get("epoch", 0))
        if version is not None:
            self._versions[full_name] = version
        if (growing := value.get("growing")) is not None:
            self._growing[full_name] = int(growing)
        else:
            self._growing.pop(full_name, None)
        if "grown" in value:
            first, at_ms = value["grown"]
            self._grown[full_name] = (int(first), int(at_ms))
        self._counts[namespace] = self._counts.get(namespace, 0) + self._size(topic) - size
        if value.get("deleting"):
            self.deleting[full_name] = None
        if before != partitions:
            self._tell(topic, before, partitions)
        if full_name in self._growing:
            self.on_growing(topic)

    def _size(self, topic: TopicName) -> int:
        """For how many topics one counts: for each partition that it has, or gets."""
        partitions = self._partitions.get(topic.full)
        return 0 if partitions is None else max(partitions, self._growing.get(topic.full, 0), 1)

    def _take_room(self, namespace: str, count: int) -> None:
        """Count topics that are about to be created. Raises NotAllowedError when the namespace may not have so many."""
        wanted = self._counts.get(namespace, 0) + count
        if 0 < self._namespaces.topics_max(namespace) < wanted:
            raise NotAllowedError("Exceed maximum number of topics in namespace.")
        self._counts[namespace] = wanted


async def _no_epoch() -> int:
    return 0


def _is_reserved(topic: TopicName, settings: Settings) -> bool:
    return settings.system_topic_enabled and is_system_topic(topic.full)


def _check_domain(topic: TopicName, settings: Settings) -> None:
    if not topic.persistent and not settings.non_persistent_topics_enabled:
        raise NotAllowedError("non-persistent topics are switched off: set enableNonPersistentTopics=true")
