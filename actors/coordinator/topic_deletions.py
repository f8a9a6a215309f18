"""Deleting topics: what the coordinator does about it, from the order to the last record.

States of one topic, and what is stored in each:

| state | its record | grants | data |
| --- | --- | --- | --- |
| existing | plain | to owners | there |
| asked | plain | none; owners give theirs up | there; owners close what has no clients |
| marked | `deleting` | none, and earlier ones open nothing | deleted, a group of partitions at a time |
| gone | none | none | none |

- existing → asked: a caller requested it, in this coordinator's memory. From here on nobody gets a grant for the topic,
  and it is neither looked up, nor created, nor grown. Callers get ServiceUnitNotReady, as for Pulsar's fenced topics,
  and try again. Brokers forget that it exists, before they are asked to close it. So a client that is sent away, and
  wants no topic created, does not hear that this one exists, and does not have it created when it is gone.
- asked → existing: not forced, and an owner still has clients (NotAllowedError), or does not answer, or has just gone.
  Owners that had closed their partitions already are given new grants. For an inactive topic each owner looks again
  whether that holds, in the step in which it closes its partition. Of a partition that is not loaded that is known only
  if it has no chain record: then no broker ever opened it.
- asked → marked: a compare-and-set of the topic's record. A forced deletion begins with it.
- marked → gone: for each group of partitions: have brokers delete the stored data, under an epoch greater than all
  before (`managed.deletion`). Then end its exceptions and have the owners of their slots close them, delete its
  policies, what roles were allowed at it, and schemas, last its record. There is no way back: a failing step is
  repeated, with back-off, as long as this coordinator is active.

Why nothing comes back. A grant names the version of the topic's record. The mark has another version, and so has a
topic that was created again. A broker opens a topic only while the record has the version in its grant, and creates its
chain record in one transaction with that test. So once the record is marked no broker creates the chain record, even
after a pause, a restart or a late answer. A broker that has had the topic open since before is fenced by the deletion.
It does not matter how long the deletion takes. A topic that is created again is opened under an epoch greater than that
of the deletion, which therefore spares it.

Why no owner is left out. An owner that is not alive may be on its way to this coordinator, which is young. It has the
topic open, perhaps with clients, and would keep it: nobody would tell it later. So it is waited for, before the
question to owners and before each group. The wait ends when it is back. Or its slot has another owner, and this is
stored: then it gives its grants up as soon as it hears of that, from whichever coordinator. The owner of a slot whose
topic was moved alone is one of them: it may have been away since before that move. When the exception has ended the
stored slots name it again, so it would never hear of the move. So it is waited for, and closes the topic, behind that
end.

Why an owner that closed its partition keeps it closed. Each request to close has a number from the counter of grants.
The broker refuses grants with a lower one, however late they arrive. A new owner gets none.

Why a request that comes late does no harm. A topic that was created again since has a greater epoch than each of its
deletions. A broker closes nothing that it has under a greater epoch, and the stored record refuses the deletion. Nor
does a request to close end anything that was granted behind it.

Crash points. Before the mark: nothing was changed. Behind it: the next coordinator finds the mark (`start`) and goes
through all partitions again. Data that is already deleted is no error. When the record is gone all else is gone.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...protocol.errors import MagnetarError, NotAllowedError, ServiceUnitNotReady
from ...protocol.names import ROLE_BROKER
from ...protocol.topics import TopicName
from ...runtime import retry
from ...runtime.backoff import Backoff
from ...runtime.environment import Environment
from ...runtime.tasks import Tasks
from ...storage.metadata import keys as metadata_keys
from ...storage.metadata.certain_records import remove_record
from ...storage.metadata.store import MetadataStore
from ..members.contracts_broker import DELETE_TIMEOUT_S, BrokerContract
from ..members.contracts_coordinator import TopicDeletionContract
from ..members.peer_calls import MemberCalls
from .grants import Grants
from .membership import Membership
from .placement import SlotPlacement
from .topic_policies import TopicPolicies
from .topic_registry import TopicRegistry

logger = logging.getLogger(__name__)

PARTITIONS_AT_A_TIME = 100
RELEASES_AT_A_TIME = 16
"""How long a broker has for its share of a group, and how long who ordered a deletion waits for its end."""
RETRY_INITIAL_S = 0.1
RETRY_MAX_S = 5.0


@dataclass
class _Deletion:
    name: TopicName
    ended: "asyncio.Future[None]"
    done: dict[str, None] = field(default_factory=dict[str, None])


class TopicDeletions(TopicDeletionContract):
    """See the module."""

    def __init__(
        self,
        env: Environment,
        store: MetadataStore,
        membership: Membership,
        placement: SlotPlacement,
        registry: TopicRegistry,
        policies: TopicPolicies,
        broker_calls: MemberCalls[BrokerContract],
        grants: Grants,
    ) -> None:
        self.failures = 0
        """Tries that failed and were, or will be, repeated."""
        self._env = env
        self._store = store
        self._membership = membership
        self._placement = placement
        self._registry = registry
        self._policies = policies
        self._broker_calls = broker_calls
        self.grants = grants
        self._under_way: dict[str, _Deletion] = {}
        self._tasks = Tasks()
        self._turn = 0

    def start(self) -> None:
        """Go on with the deletions that an earlier coordinator marked."""
        for topic in self._registry.deleting:
            deletion = self._begin(TopicName.parse(topic))
            self._tasks.spawn(self._finish(deletion), f"delete {topic}")

    async def close(self) -> None:
        """Stop; what is marked is finished by the next coordinator."""
        await self._tasks.close()
        for deletion in list(self._under_way.values()):
            self._end(deletion, ServiceUnitNotReady("the coordinator is closing"))

    @property
    def under_way(self) -> list[str]:
        """The topics that are being deleted."""
        return list(self._under_way)

    async def delete_topic(self, *, topic: str, force: bool = False) -> None:
        name = TopicName.parse(topic)
        if name.partition >= 0 and self._registry.find(name) is None:
            raise NotAllowedError(f"{topic} is a partition and cannot be deleted alone: delete the whole topic")
        await self.delete(name, force=force)

    async def delete_inactive_topic(self, *, topic: str) -> None:
        name = TopicName.parse(topic)
        whole = name if self._registry.find(name) is not None else name.without_partition()
        await self.delete(whole, force=False, inactive=True)

    async def delete(self, name: TopicName, *, force: bool, inactive: bool = False) -> None:
        """Delete a topic, with `inactive` only if it is. Returns when nothing of it is left.

        Raises TopicNotFound, and NotAllowedError (not `force`, and a client is connected; or not inactive).
        ServiceUnitNotReady: an owner does not answer, or the deletion takes long; then it goes on, and the next call
        waits for its end.
        """
        try:
            async with asyncio.timeout(DELETE_TIMEOUT_S):
                while (earlier := self._under_way.get(name.full)) is not None:
                    await asyncio.wait((earlier.ended,))  # it must not end in what was created since
                members = self._registry.members(name)  # raises what there is to say against it
                if inactive and len(members) > 1:
                    await self._check_inactive(members)  # before any of them is closed in vain
                    self._registry.members(name)
                elif not (inactive or force):
                    await self._owners(members)  # before the topic is closed to clients
                    self._registry.members(name)
                deletion = self._begin(name)
                if not force:
                    await self._ask_owners(deletion, inactive=inactive)
                self._tasks.spawn(self._finish(deletion), f"delete {name.full}")
                await asyncio.shield(deletion.ended)
        except TimeoutError:
            raise ServiceUnitNotReady(
                f"the deletion of {name.full} takes long: it goes on, and the call can be repeated"
            ) from None

    def _begin(self, name: TopicName) -> _Deletion:
        deletion = _Deletion(name, asyncio.get_running_loop().create_future())
        self._under_way[name.full] = deletion
        self._registry.begin_deletion(name)
        return deletion

    def _end(self, deletion: _Deletion, error: MagnetarError | None = None) -> None:
        """It is over: by success, or (`error`) before the mark, or with this coordinator."""
        if self._under_way.get(deletion.name.full) is not deletion:
            return
        del self._under_way[deletion.name.full]
        if error is None:
            deletion.ended.set_result(None)
        else:
            deletion.ended.set_exception(error)
            deletion.ended.exception()  # perhaps no caller waits

    # -- asking ------------------------------------------------------------------------------------------------------

    async def _check_inactive(self, topics: Sequence[str]) -> None:
        """Raise NotAllowedError unless the owners say that all of these are inactive, or were never opened."""
        for topic in await self._opened(topics):
            owner = self._owner_of(topic)
            if owner is None or not await self._broker_calls.of(owner).is_inactive(topic=topic):
                raise NotAllowedError(f"{topic} is in use")

    async def _opened(self, topics: Sequence[str]) -> list[str]:
        """Those that have a chain record, or never have one."""
        names = [TopicName.parse(topic) for topic in topics]
        records = await self._store.get_many([metadata_keys.managed_ledger(name.path) for name in names])
        return [
            name.full for name, record in zip(names, records, strict=True) if record is not None or not name.persistent
        ]

    async def _ask_owners(self, deletion: _Deletion, *, inactive: bool) -> None:
        """Have all owners close their partitions, provided that no client is connected. Else nothing is deleted."""
        released: dict[str, None] = {}
        try:
            await self._release(self._registry.members_of_any(deletion.name), released, inactive=inactive)
        except BaseException as error:
            del self._registry.deleting[deletion.name.full]
            self._tasks.spawn(self._give_back(list(released)), f"give back {deletion.name.full}")
            failure = (
                error
                if isinstance(error, MagnetarError)
                else ServiceUnitNotReady("the deletion ended without a result: repeat it")
            )
            self._end(deletion, failure)
            raise

    async def _release(self, topics: Sequence[str], released: dict[str, None], *, inactive: bool) -> None:
        opened = dict.fromkeys(await self._opened(topics)) if inactive else {}

        async def release(topic: str) -> None:
            released[topic] = None  # without an owner, too: the next one may come, and gets no grant yet
            owner = self._owner_of(topic)
            if owner is None and (topic in opened or (not inactive and self._is_away(topic))):
                raise ServiceUnitNotReady(f"the owner of {topic} is gone, so it is not known who uses it")
            if owner is not None:
                number = self._placement.take_epoch()
                await self._broker_calls.of(owner).unload(topic=topic, number=number, inactive=topic in opened)

        for first in range(0, len(topics), RELEASES_AT_A_TIME):
            group = topics[first : first + RELEASES_AT_A_TIME]
            outcomes = await asyncio.gather(*(release(topic) for topic in group), return_exceptions=True)
            errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
            for error in sorted(errors, key=lambda error: not isinstance(error, NotAllowedError)):
                raise error
        if inactive and len(await self._opened(topics)) > len(opened):  # by a grant from before
            raise NotAllowedError(f"{topics[0]} was opened a moment ago")

    async def _give_back(self, topics: Sequence[str]) -> None:
        """The topics are not deleted after all: their owners load them again."""
        shares: dict[str, list[TopicName]] = {}
        for topic in topics:
            owner = self._owner_of(topic)
            if owner is not None:
                shares.setdefault(owner, []).append(TopicName.parse(topic))
        await asyncio.gather(*(self._give_back_to(owner, names) for owner, names in shares.items()))

    async def _give_back_to(self, owner: str, names: Sequence[TopicName]) -> None:
        """Tried for as long as the owner is alive: without a grant it would load a topic only when a client comes."""

        async def give() -> None:
            own = [name for name in names if self._owner_of(name.full) == owner]
            grants = [grant for name in own if (grant := self.grants.make(name)) is not None]
            if grants:
                await self._broker_calls.of(owner).take_topics(grants=grants)

        def failed(error: Exception, delay_s: float) -> None:
            logger.info("%s does not load %d topics that are not deleted: %s", owner, len(names), error)

        backoff = Backoff(self._env.random, RETRY_INITIAL_S, RETRY_MAX_S)
        await retry.forever(backoff, give, retriable=retry.our_error, on_retry=failed)

    def _owner_of(self, topic: str) -> str | None:
        """The live broker that owns a topic."""
        return self._placement.live_owner(TopicName.parse(topic))

    def _is_away(self, topic: str) -> bool:
        """Whether a topic has an owner that is not alive. This coordinator may not have heard of it yet."""
        entry = self._placement.table.entry_of(TopicName.parse(topic))
        return entry.owner is not None and not self._placement.is_settled(entry)

    async def _owners(self, topics: Sequence[str]) -> dict[str, str | None]:
        """The owners of topics, as soon as each is alive; None for a topic that nobody has owned.

        May take long (an owner is away): the caller bounds it. Raises ServiceUnitNotReady without a broker.
        """
        while away := next((topic for topic in topics if self._is_away(topic)), None):
            await self._placement.owner(TopicName.parse(away))
        return {topic: self._owner_of(topic) for topic in topics}

    # -- deleting ----------------------------------------------------------------------------------------------------

    async def _finish(self, deletion: _Deletion) -> None:
        """Mark the topic and delete it, however often that has to be tried."""

        def failed(error: Exception, delay_s: float) -> None:
            if isinstance(error, MagnetarError):
                logger.warning("%s is not deleted yet: %s", deletion.name.full, error)
            else:
                logger.exception("the deletion of %s failed and is tried again", deletion.name.full)
            self.failures += 1

        await retry.forever(
            Backoff(self._env.random, RETRY_INITIAL_S, RETRY_MAX_S),
            lambda: self._remove(deletion),
            retriable=retry.every_error,
            on_retry=failed,
        )
        logger.info("%s is deleted", deletion.name.full)
        self._end(deletion)

    async def _remove(self, deletion: _Deletion) -> None:
        name = deletion.name
        await self._registry.mark_deleting(name)
        members = self._registry.stored_members(name)  # it may have grown until the mark
        await self._remove_data(deletion, members)
        for topic in self._placement.exceptions_among(members):
            deletion.done.pop(topic, None)
        await self._placement.end_exceptions(members)
        await self._remove_data(deletion, members)  # of those that were exceptions: their slots' owners close them
        await self._policies.delete(name)
        await self._registry.drop_grants(name)
        # Since the mark no broker adds a schema (`schemas.registry`): each such write needs the record without it.
        await remove_record(self._env, self._store, metadata_keys.schema(name.path))
        await self._registry.delete(name)

    async def _remove_data(self, deletion: _Deletion, members: Sequence[str]) -> None:
        left = [topic for topic in members if topic not in deletion.done]
        for first in range(0, len(left), PARTITIONS_AT_A_TIME):
            group = left[first : first + PARTITIONS_AT_A_TIME]
            await self._remove_group(group)
            deletion.done.update(dict.fromkeys(group))

    async def _remove_group(self, group: Sequence[str]) -> None:
        keys = [metadata_keys.managed_ledger(TopicName.parse(topic).path) for topic in group]
        records = await self._store.get_many(keys)
        stored = [topic for topic, record in zip(group, records, strict=True) if record is not None]
        owners = await self._owners(group)  # the last thing before they are told
        if stored:
            await self._delete_data({topic: owners[topic] for topic in stored})
        await self._close_others({topic: owner for topic, owner in owners.items() if topic not in stored})

    async def _close_others(self, owners: Mapping[str, str | None]) -> None:
        """Have the owners close topics that store nothing: those that are not persistent, and those being opened."""
        shares: dict[str, list[str]] = {}
        for topic, owner in owners.items():
            if owner is not None:
                shares.setdefault(owner, []).append(topic)
        for owner, topics in shares.items():
            number = self._placement.take_epoch()
            await self._broker_calls.of(owner).release(number=number, slots=[], topics=topics)

    async def _delete_data(self, owners: Mapping[str, str | None]) -> None:
        """Have brokers delete what these topics store: their owners, and any broker where nobody has owned them."""
        brokers = [session.node_id for session in self._membership.of_role(ROLE_BROKER)]
        if not brokers:
            raise ServiceUnitNotReady("no live broker can delete the topic's data: start a broker")
        shares: dict[str, list[tuple[str, int]]] = {}
        for topic, owner in owners.items():
            self._turn += 1
            broker = owner if owner is not None else brokers[self._turn % len(brokers)]
            shares.setdefault(broker, []).append((topic, self._placement.take_epoch()))
        outcomes = await asyncio.gather(
            *(self._broker_calls.of(broker).delete_topics(topics=share) for broker, share in shares.items()),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
