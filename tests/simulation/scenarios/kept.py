"""Workloads about what topics keep: a share of the runs has one kind of them, in the place of most of the others.

In the scenario "kept" every run has one. In a scenario that has the name of a kind every run has this one. These are
for mutants that only such a workload finds. Shares of the other runs have the kinds "draining", "restarting",
"resting", "growing", "tailing", "withholding" and "viewing".
"""

from collections.abc import Callable
from random import Random

from magnetar.protocol.topics import TopicName

from ..checkers.history import History
from ..checkers.schema_watch import SchemaWatch
from ..workloads.clearing import Clearing
from ..workloads.compacting import Compacting
from ..workloads.cut_off import CutOff
from ..workloads.delaying import Delaying
from ..workloads.draining import Draining
from ..workloads.growing import Growing
from ..workloads.holding import Holding
from ..workloads.keeping import Keeping
from ..workloads.leaving import Leaving
from ..workloads.loading import Loading
from ..workloads.numbered import Numbered
from ..workloads.registering import Registering
from ..workloads.restarting import Restarting
from ..workloads.resting import Resting
from ..workloads.tailing import Tailing
from ..workloads.terminating import Terminating
from ..workloads.viewing import Viewing
from ..workloads.withholding import Withholding
from ..workloads.workload import Workload
from ..world.chance import drawn_apart
from ..world.cluster import SimCluster

SHARE = 0.25
"""So many runs have one."""
DRAINING = "draining"
DRAINING_SHARE = 0.1
RESTARTING = "restarting"
RESTARTING_SHARE = 0.05
RESTING = "resting"
RESTING_SHARE = 0.1
GROWING = "growing"
GROWING_SHARE = 0.1
TAILING = "tailing"
TAILING_SHARE = 0.05
WITHHOLDING = "withholding"
WITHHOLDING_SHARE = 0.05
VIEWING = "viewing"
VIEWING_SHARE = 0.05
"""Of the runs that have none."""

Harmed = Callable[[], list[str]]
"""Names the bookies whose disks have lost something."""
COMPACTING = "compacting"
RESTORING = "restoring"
"""These only where they are asked for: a share of all runs has them anyway."""
Making = Callable[[SimCluster, History, Random], list[Workload]]


def draw(
    cluster: SimCluster, history: History, random: Random, share: float, kind: str | None, harmed: Harmed
) -> list[Workload]:
    """The workloads of one kind, or none. They may change the settings of the cluster, which has not begun.

    `kind`: this one, in every run.
    """
    if random.random() >= share and kind is None:
        share = drawn_apart(random).random()
        for besides, their_share in BESIDES.items():
            if share < their_share:
                kind = besides
                break
            share -= their_share
        else:
            return []
    drawn = random.choice(list(KEPT))
    chance = Random(random.getrandbits(64))
    if kind == DRAINING:
        return [Draining(cluster, history, chance, "operator", harmed)]
    if kind == RESTARTING:
        return [Restarting(cluster, history, chance, "restarter", harmed)]
    if kind == GROWING:
        return [Growing(cluster, history, chance, "grower", "growing")]
    if kind == RESTING:
        return [Resting(cluster, history, chance, "rester")]
    if kind == RESTORING:
        return []  # it comes at the end of the run, see `cluster`
    if kind == COMPACTING:
        return [Compacting(cluster, history, chance, "compactor-too", "compacted-too")]
    if kind == TAILING:
        return [Tailing(cluster, history, chance, "tailer", "tailed")]
    if kind == WITHHOLDING:
        return [Withholding(cluster, history, chance, "withholder", "withheld")]
    if kind == VIEWING:
        return [Viewing(cluster, history, chance, "viewer", "viewed")]
    return KEPT[kind or drawn](cluster, history, chance)


def _numbered(cluster: SimCluster, history: History, random: Random) -> list[Workload]:
    return [Numbered(cluster, history, random, "source", "numbered")]


def _clearing(cluster: SimCluster, history: History, random: Random) -> list[Workload]:
    return [Clearing(cluster, history, random, "clearer")]


def _cut_off(cluster: SimCluster, history: History, random: Random) -> list[Workload]:
    return [CutOff(cluster, history, random, "cut-off", "reached")]


def _delaying(cluster: SimCluster, history: History, random: Random) -> list[Workload]:
    return [Delaying(cluster, history, random, "delayer", "delayed")]


def _holding(cluster: SimCluster, history: History, random: Random) -> list[Workload]:
    return [Holding(cluster, history, random, "holder", "held")]


def _keeping(cluster: SimCluster, history: History, random: Random) -> list[Workload]:
    return [Keeping(cluster, history, random, "keeper-of-some", "kept")]


def _leaving(cluster: SimCluster, history: History, random: Random) -> list[Workload]:
    return [Leaving(cluster, history, random, "stayer", "left")]


def _loading(cluster: SimCluster, history: History, random: Random) -> list[Workload]:
    return [Loading(cluster, history, random, "loader")]


def _terminating(cluster: SimCluster, history: History, random: Random) -> list[Workload]:
    return [Terminating(cluster, history, random, "terminator", "ending")]


def _registering(cluster: SimCluster, history: History, random: Random) -> list[Workload]:
    watch = SchemaWatch(history, TopicName.parse("registered"))
    count = random.randint(2, 3)
    return [
        Registering(
            cluster, history, Random(random.getrandbits(64)), f"registrar-{number}", watch, judges=number == count
        )
        for number in range(1, count + 1)
    ]


KEPT: dict[str, Making] = {
    "clearing": _clearing,
    "cut off": _cut_off,
    "numbered": _numbered,
    "delaying": _delaying,
    "holding": _holding,
    "keeping": _keeping,
    "leaving": _leaving,
    "loading": _loading,
    "terminating": _terminating,
    "registering": _registering,
}
BESIDES = {
    DRAINING: DRAINING_SHARE,
    RESTARTING: RESTARTING_SHARE,
    RESTING: RESTING_SHARE,
    GROWING: GROWING_SHARE,
    TAILING: TAILING_SHARE,
    WITHHOLDING: WITHHOLDING_SHARE,
    VIEWING: VIEWING_SHARE,
}
KINDS = (*KEPT, *BESIDES, COMPACTING, RESTORING)
