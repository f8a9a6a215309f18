"""Which scenarios there are, and which settings of the broker each of them needs."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from . import scenarios

if TYPE_CHECKING:
    from .stage import Stage

RECORDINGS = Path(__file__).parent / "recordings"


@dataclass(frozen=True, eq=False)
class Group:
    """Settings of one server. All scenarios of a group share it, so have few groups."""

    name: str
    settings: Mapping[str, str] = field(default_factory=dict)


BY_INDEX = "acknowledgmentAtBatchIndexLevelEnabled"

PLAIN = Group("plain", {BY_INDEX: "false"})
"""Pulsar's documentation says that this is the default. In Pulsar 4.2.4 it is true."""
NO_CREATION = Group("no creation", {"allowAutoTopicCreation": "false", "allowAutoSubscriptionCreation": "false"})
PARTITIONED_CREATION = Group(
    "partitioned creation", {"allowAutoTopicCreationType": "partitioned", "defaultNumPartitions": "3"}
)

PERSISTENT_ONLY = Group("persistent only", {"enableNonPersistentTopics": "false"})
BATCH_INDEX = Group("batch index", {BY_INDEX: "true"})

KEEPING = Group(
    "keeping",
    {
        "managedLedgerMaxEntriesPerLedger": "4",
        "managedLedgerMinLedgerRolloverTimeMinutes": "0",
        "brokerServiceCompactionMonitorIntervalInSeconds": "1",
        "backlogQuotaCheckIntervalInSeconds": "1",
    },
)
"""Small ledgers, and a broker that looks every second at what it compacts and at backlogs."""

LISTENERS = Group(
    "listeners",
    {"advertisedListeners": "inside:pulsar://127.0.0.1:{port},outside:pulsar://203.0.113.5:7002"},
)
"""Two addresses. Nothing answers at the second. Magnetar fills in the port; `servers` does it for Pulsar."""

GROUPS = (PLAIN, NO_CREATION, PARTITIONED_CREATION, PERSISTENT_ONLY, BATCH_INDEX, KEEPING, LISTENERS)


class Scenario(NamedTuple):
    """One scenario. `play` does it, and notes on the stage what it saw. It shows `promises` of docs/promises.toml."""

    name: str
    subject: str
    group: Group
    play: Callable[["Stage"], None]
    promises: tuple[str, ...] = ()

    @property
    def recording(self) -> Path:
        """Where its transcript on Pulsar lies."""
        return RECORDINGS / self.subject / f"{self.name}.txt"


_found: dict[str, Scenario] = {}


def scenario(
    group: Group = PLAIN, promises: tuple[str, ...] = ()
) -> Callable[[Callable[["Stage"], None]], Callable[["Stage"], None]]:
    """Make a function a scenario. Its name is the scenario's, its file the subject."""

    def declare(play: Callable[["Stage"], None]) -> Callable[["Stage"], None]:
        name = play.__name__
        assert name not in _found, f"two scenarios are called {name}"
        assert inspect.getdoc(play), f"the scenario {name} does not say what it asks"
        _found[name] = Scenario(name, play.__module__.rpartition(".")[2], group, play, promises)
        return play

    return declare


def all_scenarios() -> list[Scenario]:
    """Every scenario, those of one group together."""
    for module in pkgutil.iter_modules(scenarios.__path__):
        importlib.import_module(f"{scenarios.__name__}.{module.name}")
    return sorted(_found.values(), key=lambda one: (GROUPS.index(one.group), one.subject, one.name))
