"""Changes of the coordinator's records whose outcome is not known, and the task that finds it out.

When the store's answer stays lost, or the caller goes away before it comes, the change is *in doubt*: it may be stored,
or be stored later. `settle_one` then reads the record again, with a back-off, until the store answers:

- another version than before: the change is stored.
- the same version: `settle_one` writes the record again as it is. The new version keeps the change from being stored
  later, because that change names the old one.
- no record: a deletion happened, or the record was to be created. `settle_one` is given what was to be stored.

The doubt ends with this, with the next change whose outcome is known, or with the end of the office: the next
coordinator reads everything.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from ...protocol.errors import OutcomeUnknown
from ...runtime import retry
from ...runtime.backoff import Backoff
from ...runtime.environment import Environment
from ...runtime.tasks import Tasks
from ...storage.metadata.epoch_guard import EpochMetadataStore

logger = logging.getLogger(__name__)

SETTLE_INITIAL_S = 0.5
SETTLE_MAX_S = 10.0

Wanted = TypeVar("Wanted")
Outcome = TypeVar("Outcome")


class ChangesInDoubt(Generic[Wanted]):
    """See the module. `changing` is the lock under which the owner changes its records one by one.

    `settle_one` gets a name and what was to be stored, under that lock. It raises what the store raises, for another
    try.
    """

    def __init__(
        self,
        env: Environment,
        store: EpochMetadataStore,
        what: str,
        changing: asyncio.Lock,
        settle_one: Callable[[str, Wanted], Awaitable[None]],
    ) -> None:
        self._env = env
        self._store = store
        self._what = what
        self._changing = changing
        self._settle_one = settle_one
        self._wanted: dict[str, Wanted] = {}
        self._tasks = Tasks()
        self.settler: asyncio.Task[None] | None = None

    def __contains__(self, name: str) -> bool:
        return name in self._wanted

    def names(self) -> list[str]:
        """Whose changes are in doubt."""
        return list(self._wanted)

    async def close(self) -> None:
        """End what is under way."""
        await self._tasks.close()

    async def outcome_of(self, name: str, change: Awaitable[Outcome], wanted: Wanted) -> Outcome:
        """The outcome of a change. Where it stays unknown, the change is in doubt from here on."""
        try:
            outcome = await change
        except (OutcomeUnknown, asyncio.CancelledError):
            self._wanted[name] = wanted
            if not self._tasks.closed and (self.settler is None or self.settler.done()):
                self.settler = self._tasks.spawn(self._settle(), f"coordinator-{self._what}-in-doubt")
            raise
        self.forget(name)  # an older change in doubt names a version that is gone
        return outcome

    def forget(self, name: str) -> None:
        """End the doubt about that name."""
        self._wanted.pop(name, None)

    async def _settle(self) -> None:
        backoff = Backoff(self._env.random, SETTLE_INITIAL_S, SETTLE_MAX_S)
        await retry.forever(backoff, self._settle_all, retriable=retry.our_error, on_retry=self._log_retry)

    async def _settle_all(self) -> None:
        while self._wanted and not self._store.superseded:
            async with self._changing:
                for name, wanted in list(self._wanted.items()):
                    await self._settle_one(name, wanted)
                    self.forget(name)

    def _log_retry(self, error: Exception, delay_s: float) -> None:
        names = ", ".join(sorted(self._wanted))
        logger.warning(
            "whether a change of the %s %s is stored is asked again in %.1f s: %s", self._what, names, delay_s, error
        )
