"""Forced deletion of namespaces: what the coordinator does about it, from the order to the last record.

States of one namespace, and what is stored in each:

| state | its record | its topics |
| --- | --- | --- |
| existing | plain | there |
| marked | `deleted` | deleted by force, some at a time |
| gone | none | none |

- existing → marked: a compare-and-set of the namespace's record. From here on it takes no topic, policy or schema, and
  clients are told that it does not exist.
- marked → gone: topics whose creation is under way are waited for. All topics are deleted (`topic_deletions`), then the
  record. There is no way back: a failing step is repeated, with back-off, as long as this coordinator is active.

Crash points. Before the mark: nothing was changed. Behind it: the next coordinator finds the mark (`start`), and goes
on with the topics that are left. A mark whose outcome was unknown counts as soon as it is known (`Namespaces.on_marked`
is called wherever a marked record is taken over).
"""

import asyncio
import contextlib
import logging

from ...protocol.errors import MagnetarError, ServiceUnitNotReady, TopicNotFound
from ...protocol.topics import TopicName
from ...runtime import retry
from ...runtime.backoff import Backoff
from ...runtime.environment import Environment
from ...runtime.tasks import Tasks
from ..members.contracts_coordinator import NAMESPACE_DELETE_TIMEOUT_S, NamespaceDeletionContract
from .namespaces import Namespaces
from .topic_deletions import TopicDeletions
from .topic_registry import TopicRegistry

logger = logging.getLogger(__name__)

TOPICS_AT_A_TIME = 16
RETRY_INITIAL_S = 0.1
RETRY_MAX_S = 5.0


class NamespaceDeletions(NamespaceDeletionContract):
    """See the module."""

    def __init__(
        self, env: Environment, namespaces: Namespaces, registry: TopicRegistry, topics: TopicDeletions
    ) -> None:
        self._env = env
        self._namespaces = namespaces
        self._registry = registry
        self._topics = topics
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._tasks = Tasks()
        namespaces.on_marked = self._begin

    def start(self) -> None:
        """Go on with the deletions that an earlier coordinator marked."""
        for name in self._namespaces.marked():
            self._begin(name)

    async def close(self) -> None:
        """Stop; what is marked is finished by the next coordinator."""
        await self._tasks.close()

    async def delete_namespace(self, *, namespace: str, force: bool = False) -> None:
        if force:
            await self._delete_with_topics(namespace)
        else:
            await self._namespaces.delete(namespace, self._registry.names_in)

    async def delete_tenant(self, *, tenant: str, force: bool = False) -> None:
        for namespace in await self._namespaces.namespaces(tenant=tenant) if force else ():
            with contextlib.suppress(TopicNotFound):  # another call has deleted it
                await self._delete_with_topics(namespace)
        await self._namespaces.delete_tenant(tenant)

    async def _delete_with_topics(self, name: str) -> None:
        """Returns when nothing of the namespace is left. After ServiceUnitNotReady the next call waits for its end."""
        try:
            async with asyncio.timeout(NAMESPACE_DELETE_TIMEOUT_S):
                if name not in self._under_way:
                    await self._namespaces.mark(name)
                task = self._under_way.get(name)
                if task is not None:
                    await asyncio.wait((task,))
        except TimeoutError:
            raise ServiceUnitNotReady(
                f"the deletion of the namespace {name} takes long: it goes on, and the call can be repeated"
            ) from None

    def _begin(self, name: str) -> None:
        if name not in self._under_way and not self._tasks.closed:
            self._under_way[name] = self._tasks.spawn(self._finish(name), f"delete namespace {name}")

    async def _finish(self, name: str) -> None:
        def failed(error: Exception, delay_s: float) -> None:
            if isinstance(error, MagnetarError):
                logger.warning("the namespace %s is not deleted yet: %s", name, error)
            else:
                logger.exception("the deletion of the namespace %s failed and is tried again", name)

        try:
            await retry.forever(
                Backoff(self._env.random, RETRY_INITIAL_S, RETRY_MAX_S),
                lambda: self._remove(name),
                retriable=retry.every_error,
                on_retry=failed,
            )
        finally:
            del self._under_way[name]
        logger.info("the namespace %s is deleted", name)

    async def _remove(self, name: str) -> None:
        # A try that failed may have done all. A namespace of that name that was created since then has no mark.
        while self._namespaces.is_marked(name) and (topics := self._registry.names_in(name)[:TOPICS_AT_A_TIME]):
            outcomes = await asyncio.gather(*(self._delete_topic(topic) for topic in topics), return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome
        await self._namespaces.remove_marked(name)

    async def _delete_topic(self, topic: str) -> None:
        if (creation := self._registry.creating.get(topic)) is not None:
            await asyncio.wait((creation,))
        try:
            await self._topics.delete(TopicName.parse(topic), force=True)
        except TopicNotFound:
            return  # it was not created, or another call has deleted it
