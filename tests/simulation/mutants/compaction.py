"""Bugs of compaction."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from magnetar.actors.compaction import topic_compaction as compaction_run
from magnetar.actors.compaction.topic_compaction import CompactionResult, CompactionRun, TopicCompaction
from magnetar.storage.managed.compacted import ScanRange

from .mutant import Mutant, replace


def _move_the_compaction_cursor_first(stack: ExitStack) -> None:
    original = CompactionRun.run

    async def run(self: CompactionRun) -> CompactionResult:
        await self._move_cursor(self._ledger.last_confirmed)
        return await original(self)

    replace(stack, CompactionRun, "run", run)


def _switch_before_the_end(stack: ExitStack) -> None:
    original = compaction_run._ranges

    def ranges(segments: list[ScanRange], kept: Iterator[tuple[int, frozenset[int]]], wanted: Any) -> Any:
        return original(segments, iter(list(kept)[:-1]), wanted)

    replace(stack, compaction_run, "_ranges", ranges)


def _ask_the_namespace(stack: ExitStack) -> None:
    """At its load a topic has no compaction cursor for a threshold of its own."""

    async def make_none(ledger: Any, policies: Any) -> None:
        return None

    replace(stack, TopicCompaction, "opening", staticmethod(make_none))


COMPACTION = (
    Mutant(
        "cursor first",
        "the compaction cursor moves before the switch",
        "I1",
        _move_the_compaction_cursor_first,
        "cluster",
    ),
    Mutant(
        "namespace only",
        "a threshold of a topic's own is not looked at when the topic is loaded",
        "I1",
        _ask_the_namespace,
        "compacting",
    ),
    Mutant("half a copy", "the switch comes before the copy is complete", "I1", _switch_before_the_end, "cluster"),
)
