"""Bugs of our own choosing in how subscriptions expire. See `own` for how a mutant is made."""

from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from magnetar.actors.topics.subscription import Subscription
from magnetar.storage.managed import cursor_storage
from magnetar.storage.managed.cursor_storage import CursorRecord
from magnetar.storage.managed.managed_ledger import ManagedLedger

from .mutant import Mutant, replace


def _keep_the_stored_time(stack: ExitStack) -> None:
    put, stored = cursor_storage.put_certain, dict[str, int]()

    async def putting(env: Any, metadata: Any, key: str, value: bytes, version: int | None, **named: Any) -> int:
        record = CursorRecord.unpack(value)
        stored[key] = record.idle_since_ms or stored.get(key, 0)
        return await put(env, metadata, key, record._replace(idle_since_ms=stored[key]).pack(), version, **named)

    replace(stack, cursor_storage, "put_certain", putting)


def _count_from_the_beginning(stack: ExitStack) -> None:
    initialize = Subscription.__init__

    def initializing(self: Any, *others: Any, **named: Any) -> None:
        initialize(self, *others, **named)
        self.idle_since_ms = self.cursor.idle_since_ms or 1

    replace(stack, Subscription, "__init__", initializing)


def _hand_out_dying_cursors(stack: ExitStack) -> None:
    opening = ManagedLedger.open_cursor

    async def open_cursor(ledger: Any, name: str, *others: Any, **named: Any) -> Any:
        found = ledger.cursors.get(name)
        return found if found is not None else await opening(ledger, name, *others, **named)

    stack.enter_context(patch.object(ManagedLedger, "open_cursor", open_cursor))


EXPIRY = (
    Mutant(
        "dying cursor",
        "a subscription that is made while one of its name is deleted gets the cursor of that one",
        "I7",
        _hand_out_dying_cursors,
        "leaving",
    ),
    Mutant(
        "stored for good",
        "since when a subscription was idle stays stored when a consumer has come back",
        "I7",
        _keep_the_stored_time,
        "leaving",
    ),
    Mutant(
        "idle for ever",
        "a subscription counts as idle for ever when its broker has crashed",
        "I7",
        _count_from_the_beginning,
        "leaving",
    ),
)
