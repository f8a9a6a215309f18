"""A topic and its subscriptions that somebody owns and nobody uses: `IdleTopicLife`.

Its owner appends a few entries, acknowledges some, and then does nothing, to the end of the run. So its ledger and its
cursors' ledgers stay open although nobody fails to write to them: whoever waits for their end (a bookie in limbo) has
to get it from the owner's timers, or from the auditor.
"""

import asyncio

from magnetar.protocol.errors import MagnetarError

from ..world.ledgers import Host
from .ledgers import Ownership, TopicLife

LOOK_S = 0.25


class IdleTopicLife(TopicLife):
    """See the module. Another host takes the topic when its owner has ended, or has lost it."""

    async def _turn(self, host: Host) -> None:
        owner = self.take_ownership()
        owning = self.begin(host, self._own(host, owner), f"idle-{owner.epoch}")
        while host.process.alive and not owning.done():
            await self.wait([owning], LOOK_S)
        await self.pause()

    async def _own(self, host: Host, owner: Ownership) -> None:
        try:
            await self.open(host, owner)
            await self._append(owner)
            await asyncio.sleep(LOOK_S)
            await self._consume(owner)
            await self._flush(owner)
            while owner.ended is None and not self.stopping:  # noqa: ASYNC110  # virtual time costs nothing
                await asyncio.sleep(LOOK_S)
        except MagnetarError as error:
            self.history.counts[f"idle topic lost: {type(error).__name__}"] += 1
        if owner.managed is not None:
            await self.close(owner)
