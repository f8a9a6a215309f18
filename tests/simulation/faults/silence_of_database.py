"""A database that is away for longer than its callers wait behind a lost answer: `install`.

A caller repeats a write whose answer was lost, for up to 30 s. Runs are shorter than that. So in some runs callers give
up after a fraction of a second, while the database is away for seconds. Every certain write meets this, whatever its
record is. In these runs, too, a share of the coordinator's own writes end as if the database had been away for so long:
their outcome stays unknown, whether they are carried out or not.
"""

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from random import Random
from typing import Any
from unittest.mock import patch

from magnetar.protocol.errors import OutcomeUnknown
from magnetar.runtime.backoff import LimitedBackoff
from magnetar.storage.metadata import certain_records, certain_writes

SHARE = 0.1
"""Of the runs in which callers are impatient."""
PATIENCE_S = (0.05, 0.3, 1.0)
UNKNOWN = 0.1
"""Of the coordinator's writes."""
CARRIED_OUT = 0.6
"""Of those."""


def install(random: Random, stack: ExitStack, share: float = SHARE) -> None:
    """Draw whether callers are impatient in this run, and have them so until the stack is left."""
    if random.random() >= share:
        return
    patience_s = random.choice(PATIENCE_S)

    def impatient(chance: Any, initial_s: float, max_s: float, limit_s: float) -> LimitedBackoff:
        return LimitedBackoff(chance, initial_s, max_s, min(limit_s, patience_s))

    def doubting(write: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def writing(*arguments: Any, **options: Any) -> Any:
            if random.random() >= UNKNOWN:
                return await write(*arguments, **options)
            if random.random() < CARRIED_OUT:
                await write(*arguments, **options)
            raise OutcomeUnknown("the database was away for longer than the caller waited")

        return writing

    stack.enter_context(patch.object(certain_writes, "LimitedBackoff", impatient))
    for name in ("put_certain", "delete_certain"):
        stack.enter_context(patch.object(certain_records, name, doubting(getattr(certain_records, name))))
