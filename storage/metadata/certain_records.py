"""How the active coordinator changes records of which it has a copy in memory: the copy is what is stored, in the end.

All writes of the coordinator's own records go this way. Their outcome is certain for the caller (`certain_writes`), or
it is *in doubt*: the store's answer stays lost, or the caller goes away before it comes. The change may then be stored,
or be stored later. A task reads the record again, with back-off, until the store answers:

- another version than that of the copy: the change is stored. The copy takes it over.
- the same version: the record is written again as it is. The new version keeps the change from being stored later,
  because that change names the old one.
- no record: a deletion happened, and the copy forgets the record. One that was to be created is created.

The doubt ends with this, with the next change whose outcome is known, or with the coordinator: the next one reads
everything.

`remove_record` is for records without a copy: their callers repeat it until the outcome is known.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, TypeVar

from ...protocol.errors import ConditionFailed, OutcomeUnknown
from ...runtime import retry
from ...runtime.backoff import Backoff
from ...runtime.environment import Environment
from ...runtime.tasks import Tasks
from .certain_writes import delete_certain, put_certain
from .epoch_guard import EpochMetadataStore
from .store import Guard, MetadataStore, Versioned

logger = logging.getLogger(__name__)

SETTLE_INITIAL_S = 0.5
SETTLE_MAX_S = 10.0

Outcome = TypeVar("Outcome")


class _Creation(NamedTuple):
    """A record that was to be created."""

    value: bytes
    needs: Guard | None


class CertainRecords:
    """Records of one kind, by names. See the module.

    `what` names the kind in the log. The owner of the copy holds `changing(name)` while it changes a record, and so
    does the task that settles a doubt. `key_of(name)` is the record's key, `version_of(name)` the version that the copy
    has. `take(name, found)` enters what is stored into the copy, None for no record.
    """

    def __init__(
        self,
        env: Environment,
        store: EpochMetadataStore,
        what: str,
        *,
        changing: Callable[[str], AbstractAsyncContextManager[object]],
        key_of: Callable[[str], str],
        version_of: Callable[[str], int | None],
        take: Callable[[str, Versioned | None], None],
    ) -> None:
        self._env = env
        self._store = store
        self._what = what
        self._changing = changing
        self._key_of = key_of
        self._version_of = version_of
        self._take = take
        self._doubts: dict[str, _Creation | None] = {}
        self._tasks = Tasks()
        self.settler: asyncio.Task[None] | None = None

    def __contains__(self, name: str) -> bool:
        """Whether a change of that record is in doubt."""
        return name in self._doubts

    def __len__(self) -> int:
        """How many changes are in doubt."""
        return len(self._doubts)

    def in_doubt(self) -> list[str]:
        """The names whose changes are in doubt."""
        return list(self._doubts)

    async def close(self) -> None:
        """End what is under way."""
        await self._tasks.close()

    async def put(self, name: str, value: bytes, version: int | None, *, needs: Guard | None = None) -> int:
        """Create (None) or replace a record; returns its new version, which the caller enters. Raises as `put_certain`.
        After OutcomeUnknown, and when the caller is cancelled, the change is in doubt."""
        change = put_certain(self._env, self._store, self._key_of(name), value, version, needs=needs)
        return await self._outcome_of(name, change, _Creation(value, needs) if version is None else None)

    async def delete(self, name: str) -> None:
        """Delete a record, if it is there; the caller forgets it. Raises as `delete_certain`, and as `put`."""
        await self._outcome_of(name, delete_certain(self._env, self._store, self._key_of(name)), None)

    async def _outcome_of(self, name: str, change: Awaitable[Outcome], creation: _Creation | None) -> Outcome:
        try:
            outcome = await change
        except (OutcomeUnknown, asyncio.CancelledError):
            self._doubts[name] = creation
            if not self._tasks.closed and (self.settler is None or self.settler.done()):
                self.settler = self._tasks.spawn(self._settle(), f"coordinator-{self._what}-in-doubt")
            raise
        self._doubts.pop(name, None)  # an older change in doubt names a version that is gone
        return outcome

    # -- doubts ------------------------------------------------------------------------------------------------------

    async def _settle(self) -> None:
        backoff = Backoff(self._env.random, SETTLE_INITIAL_S, SETTLE_MAX_S)
        await retry.forever(backoff, self._settle_all, retriable=retry.our_error, on_retry=self._log_retry)

    async def _settle_all(self) -> None:
        while self._doubts and not self._store.superseded:
            for name in list(self._doubts):
                async with self._changing(name):
                    if name in self._doubts:
                        await self._settle_one(name, self._doubts[name])
                        self._doubts.pop(name, None)

    async def _settle_one(self, name: str, creation: _Creation | None) -> None:
        key, known = self._key_of(name), self._version_of(name)
        found = await self._store.get(key)
        if found is not None:
            if found.version == known:
                found = Versioned(found.value, await self._store.put(key, found.value, known))
        elif creation is not None and known is None:
            value, needs = creation
            try:
                found = Versioned(value, await put_certain(self._env, self._store, key, value, None, needs=needs))
            except ConditionFailed:
                pass  # neither try can succeed any longer
        self._take(name, found)

    def _log_retry(self, error: Exception, delay_s: float) -> None:
        names = ", ".join(sorted(self._doubts))
        logger.warning(
            "whether a change of the %s %s is stored is asked again in %.1f s: %s", self._what, names, delay_s, error
        )


async def remove_record(env: Environment, store: MetadataStore, key: str) -> None:
    """Delete a record of which the coordinator has no copy. Raises as `delete_certain`: the caller tries again."""
    await delete_certain(env, store, key)
