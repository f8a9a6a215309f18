"""What a mutant is: a bug that can be switched on in production classes for a while."""

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

Patch = Callable[[ExitStack], None]


@dataclass(frozen=True)
class Mutant:
    """A bug: what it is, the invariant that breaks, how to switch it on, and the scenario that looks for it.

    `scenario` is a name in `run.SCENARIOS`. "ledgers" costs much less than "cluster" and is right for whatever
    shows in ledgers alone; "cluster" has brokers, subscriptions, clients and deletions too. The name of a kind
    in `scenarios.kept` is a cluster that always has this workload.
    """

    name: str
    bug: str
    invariant: str
    switch_on: Patch
    scenario: str = "ledgers"


def replace(stack: ExitStack, owner: Any, name: str, value: Any, **options: Any) -> None:
    """Put `value` in the place of a member until the stack is left.

    Raises TypeError for a function that does not take what the member takes. It would raise that in a seed as well, and
    the seed would find a mutant that is not there.
    """
    before = inspect.getattr_static(owner, name, None)
    if inspect.isfunction(before) and inspect.isfunction(value):
        every = inspect.signature(before).parameters.values()
        by_place = [one for one in every if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        by_name = [one.name for one in every if one.kind is one.KEYWORD_ONLY]
        inspect.signature(value).bind(*by_place, **dict.fromkeys(by_name))
    stack.enter_context(patch.object(owner, name, value, **options))


class Denying:
    """A ReadingState to which a failed read is a denial."""

    def __init__(self, reading: Any) -> None:
        self._reading = reading
        self.failed = reading.denied

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reading, name)
