"""Workloads about what topics keep: a share of the runs has one kind of them, in the place of most of the others.

In the scenario "kept" every run has one. In a scenario that has the name of a kind every run has this one. These are
for mutants that only such a workload finds. Shares of the other runs have the kinds "draining", "restarting",
"resting", "growing", "tailing", "withholding", "viewing" and "following".
"""

from collections.abc import Callable
from functools import partial
from random import Random

from magnetar.protocol.topics import TopicName

from ..checkers.history import History
from ..checkers.schema_watch import SchemaWatch
from ..workloads.clearing import Clearing
from ..workloads.compacting import Compacting
from ..workloads.cut_off import CutOff
from ..workloads.delaying import Delaying
from ..workloads.draining import Draining
from ..workloads.following import Following
from ..workloads.growing import Growing
from ..workloads.holding import Holding
from ..workloads.keeping import Keeping
from ..workloads.leaving import Leaving
from ..workloads.loading import Loading
from ..workloads.numbered import Numbered
from ..workloads.recreating import Recreating
from ..workloads.registering import Registering
from ..workloads.restarting import Restarting
from ..workloads.resting import Resting
from ..workloads.tailing import Tailing
from ..workloads.terminating import Terminating
from ..workloads.viewing import Viewing
from ..workloads.watching import Watching
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
FOLLOWING = "following"
FOLLOWING_SHARE = 0.05
"""Of the runs that have none."""

Harmed = Callable[[], list[str]]
"""Names the bookies whose disks have lost something."""
COMPACTING = "compacting"
RESTORING = "restoring"
WATCHING = "watching"
RECREATING = "recreating"
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
    if kind == RESTORING:
        return []  # it comes at the end of the run, see `cluster`
    return (KEPT | FURTHER)[kind or drawn](cluster, history, chance)


def _one(workload: Callable[..., Workload], *names: str) -> Making:
    """One workload, with its name, and that of its topic if it is told one."""
    return lambda cluster, history, random: [workload(cluster, history, random, *names)]


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
    "clearing": _one(Clearing, "clearer"),
    "cut off": _one(CutOff, "cut-off", "reached"),
    "numbered": _one(Numbered, "source", "numbered"),
    "delaying": _one(Delaying, "delayer", "delayed"),
    "holding": _one(Holding, "holder", "held"),
    "keeping": _one(Keeping, "keeper-of-some", "kept"),
    "leaving": _one(Leaving, "stayer", "left"),
    "loading": _one(Loading, "loader"),
    "terminating": _one(Terminating, "terminator", "ending"),
    "registering": _registering,
}
FURTHER: dict[str, Making] = {
    GROWING: _one(Growing, "grower", "growing"),
    RESTING: _one(Resting, "rester"),
    COMPACTING: _one(Compacting, "compactor-too", "compacted-too"),
    WATCHING: _one(Watching, "onlooker"),
    RECREATING: _one(partial(Recreating, moves_alone=True), "recreator-too", "fleeting-too"),
    TAILING: _one(Tailing, "tailer", "tailed"),
    WITHHOLDING: _one(Withholding, "withholder", "withheld"),
    VIEWING: _one(Viewing, "viewer", "viewed"),
    FOLLOWING: _one(Following, "follower", "followed"),
}
BESIDES = {
    DRAINING: DRAINING_SHARE,
    RESTARTING: RESTARTING_SHARE,
    RESTING: RESTING_SHARE,
    GROWING: GROWING_SHARE,
    TAILING: TAILING_SHARE,
    WITHHOLDING: WITHHOLDING_SHARE,
    VIEWING: VIEWING_SHARE,
    FOLLOWING: FOLLOWING_SHARE,
}
KINDS = (*KEPT, *BESIDES, COMPACTING, RESTORING, WATCHING, RECREATING)
