"""Where each process of the cluster shall run: desired state × what is observed → a target for each member. Pure.

The supervisor asks again whenever the desired state, the Ray nodes or the cookies that lie on them changed. It then
compares the targets with what runs: a member without a target ends, one whose target is another machine moves.

States of a member, and what leads from one to the other:

    RUN on a machine   the machine is alive: it stays there (the rules below)
    WAIT               a bookie whose data lies on no machine that is alive, or on two; a member that no machine takes

    bookie   runs where its cookie lies, and nowhere else. One that never registered, or whose lost disk the operator
             gave up, starts empty on the machine with the fewest bookies. RUN → WAIT when its Ray node is gone, WAIT →
             RUN when a Ray node sees its cookie, whatever the id of that node.
    broker   any machine: the one with the fewest brokers when its own is gone, or leaves. RUN → RUN elsewhere.
    admin    the first machine that takes it, else any other. It stays where it is while that machine takes it.

A machine is a Ray node. Its `place_id` names the data directory that it sees (the `machine-id` file in it). Several
Ray nodes that see one directory, of a shared file system or of one computer, have the same. So a bookie there may run
on any of them. The same cookie in two directories is a copy: then no process may run on either, until one is gone.

A machine may take no bookies or only one, no brokers, or not the admin (labels of Ray nodes). A bookie that has its
data there runs there all the same. A member that no machine takes waits, except the admin, which then runs anywhere.

A machine with a problem could not be looked at. What runs there stays, and nothing starts there. Its data is not gone:
a bookie without a machine that has its cookie waits. So does one whose directory is there and whose cookie could not be
read, also when another machine has its cookie: that may be a copy.

`even_out` moves one broker from the machine with the most to one with at least two fewer. A machine that leaves (Ray is
draining it) gets nothing new, and its brokers move. Bookies there stay as long as the machine does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...protocol.errors import ClusterError
from ...protocol.names import ADMIN_ID
from .record import DesiredState

NOWHERE = "-"
"""No Ray node has this id. The machine of an embedded cluster has an empty one."""


class CookieFound(NamedTuple):
    """A bookie's cookie on a disk: its cluster, and the life of the disk."""

    cluster_id: str
    instance: str


@dataclass(frozen=True)
class Machine:
    """A Ray node that is alive. `cookies` are those in the data directory that it sees, by bookie.

    `only_bookie` is the one that may start empty there; with an empty text any may. `problem` says why the machine
    could not be looked at, else it is empty; `unread` then names the bookies that have directories there.
    """

    ray_node_id: str
    address: str
    cookies: Mapping[str, CookieFound] = field(default_factory=dict[str, CookieFound])
    place_id: str = ""
    zone: str = ""
    leaving: bool = False
    takes_bookies: bool = True
    only_bookie: str = ""
    takes_brokers: bool = True
    takes_admin: bool = True
    problem: str = ""
    unread: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Which data directory it sees."""
        return self.place_id or self.ray_node_id


@dataclass(frozen=True)
class Observed:
    """What there is. `machines` are alive; the first is preferred for the admin. `running_on` says on which Ray node a
    member runs, or was last told to; that node may be gone. `registered` has the instance in each bookie's cookie in
    the metadata. `lost_instances` are those that the operator gave up.
    """

    machines: Sequence[Machine]
    running_on: Mapping[str, str] = field(default_factory=dict[str, str])
    registered: Mapping[str, str] = field(default_factory=dict[str, str])
    lost_instances: Mapping[str, str] = field(default_factory=dict[str, str])


class RunOn(NamedTuple):
    """A member runs on this machine."""

    machine: Machine


class WaitFor(NamedTuple):
    """A member cannot run now."""

    reason: str


Targets = dict[str, RunOn | WaitFor]


def plan(cluster_id: str, desired: DesiredState, observed: Observed, *, even_out: bool = False) -> Targets:
    """The target of each member of the desired state, and of the admin. See the module."""
    targets: Targets = {}
    if not observed.machines:
        waiting = WaitFor("no Ray node is alive")
        return {member: waiting for member in (*desired.bookie_ids, *desired.broker_ids, ADMIN_ID)}
    by_node = {machine.ray_node_id: machine for machine in observed.machines}
    _plan_bookies(cluster_id, desired, observed, by_node, targets)
    _plan_brokers(desired, observed, by_node, targets, even_out)
    targets[ADMIN_ID] = _admin_target(observed, by_node)
    return {member: targets[member] for member in (*desired.bookie_ids, *desired.broker_ids, ADMIN_ID)}


def check_cookies(cluster_id: str, machines: Sequence[Machine], registered: Mapping[str, str]) -> None:
    """Raise ClusterError when a cookie belongs to another cluster, or lies in two directories."""
    found: dict[str, Machine] = {}
    for machine in machines:
        for bookie, cookie in sorted(machine.cookies.items()):
            if cookie.cluster_id != cluster_id:
                raise ClusterError(
                    f"{bookie} on {machine.address} belongs to cluster {cookie.cluster_id}, not to {cluster_id}: "
                    "choose another --data-dir"
                )
            if not _is_current(cookie, cluster_id, registered.get(bookie)):
                continue
            other = found.setdefault(bookie, machine)
            if other.place != machine.place:
                raise ClusterError(_copy_found(bookie, [other, machine]))


def _copy_found(bookie: str, machines: Sequence[Machine]) -> str:
    where = " and on ".join(machine.address for machine in machines)
    return f"the data of {bookie} lies on {where}: one is a copy. Move the copy out of the data directory"


def _not_found(bookie: str, machines: Sequence[Machine]) -> str:
    others = [machine.address for machine in machines if bookie in machine.cookies]
    if others:
        return f"the disk on {others[0]} is not the one on which {bookie} last ran: put that disk back"
    left_out = [machine.address for machine in machines if machine.problem]
    if left_out:
        return f"its data lies on no Ray node that could be looked at, and {', '.join(left_out)} could not be"
    return "its data lies on no Ray node that is alive"


def _unread(bookie: str, machines: Sequence[Machine], holders: Sequence[Machine]) -> Machine | None:
    """A machine that has a directory of the bookie which could not be read, other than those of the holders."""
    places = [machine.place for machine in holders]
    return next((one for one in machines if bookie in one.unread and one.place not in places), None)


def _unread_found(bookie: str, machine: Machine) -> str:
    return (
        f"{machine.address} has a directory of {bookie}, and could not be looked at: mend that, or move the directory "
        "out of the data directory"
    )


def _is_current(cookie: CookieFound, cluster_id: str, instance: str | None) -> bool:
    """Whether it is the cookie of the disk that the metadata knows, or of one that may have to be registered yet."""
    return cookie.cluster_id == cluster_id and instance in (None, cookie.instance)


def _plan_bookies(
    cluster_id: str, desired: DesiredState, observed: Observed, by_node: Mapping[str, Machine], targets: Targets
) -> None:
    carried = dict.fromkeys(by_node, 0)
    fresh: list[str] = []
    movable: list[tuple[str, list[Machine]]] = []
    for bookie in desired.bookie_ids:
        instance = observed.registered.get(bookie)
        present = by_node.get(observed.running_on.get(bookie, NOWHERE))
        holders = [
            machine
            for machine in observed.machines
            if (cookie := machine.cookies.get(bookie)) is not None and _is_current(cookie, cluster_id, instance)
        ]
        places = list({machine.place: machine for machine in holders}.values())
        unread = _unread(bookie, observed.machines, holders)
        is_lost = instance is not None and observed.lost_instances.get(bookie) == instance
        if present is not None and (not present.leaving or not _staying(holders)):
            _run(bookie, present, carried, targets)
        elif len(places) > 1:
            targets[bookie] = WaitFor(_copy_found(bookie, places))
        elif unread is not None and not is_lost:
            targets[bookie] = WaitFor(_unread_found(bookie, unread))
        elif holders:
            movable.append((bookie, _staying(holders) or holders))
        elif instance is None or is_lost:
            fresh.append(bookie)
        else:
            targets[bookie] = WaitFor(_not_found(bookie, observed.machines))
    for bookie, holders in movable:
        _run(bookie, _least(holders, carried), carried, targets)
    for bookie in fresh:
        usable = _usable(observed.machines)
        taking = [machine for machine in usable if machine.takes_bookies and machine.only_bookie == bookie]
        taking = taking or [one for one in usable if one.takes_bookies and not one.only_bookie]
        if taking:
            _run(bookie, _least(_staying(taking) or taking, carried), carried, targets)
        else:
            targets[bookie] = WaitFor("no Ray node that takes it is alive")


def _plan_brokers(
    desired: DesiredState, observed: Observed, by_node: Mapping[str, Machine], targets: Targets, even_out: bool
) -> None:
    carried = dict.fromkeys(by_node, 0)
    homeless: list[str] = []
    taking = [machine for machine in _usable(observed.machines) if machine.takes_brokers]
    staying = _staying(taking)
    for broker in desired.broker_ids:
        present = by_node.get(observed.running_on.get(broker, NOWHERE))
        if present is None or (present.leaving and staying):
            homeless.append(broker)
        else:
            _run(broker, present, carried, targets)
    for broker in homeless:
        if taking:
            _run(broker, _least(staying or taking, carried), carried, targets)
        else:
            targets[broker] = WaitFor("no Ray node that takes brokers is alive")
    if not even_out or homeless or len(staying) < 2:
        return
    least = _least(staying, carried)
    most = max(staying, key=lambda machine: carried[machine.ray_node_id])
    if carried[most.ray_node_id] - carried[least.ray_node_id] < 2:
        return
    here = [one for one in desired.wanted_brokers if targets[one] == RunOn(most)]
    if here:
        targets[here[-1]] = RunOn(least)


def _admin_target(observed: Observed, by_node: Mapping[str, Machine]) -> RunOn | WaitFor:
    present = by_node.get(observed.running_on.get(ADMIN_ID, NOWHERE))
    usable = [one for one in observed.machines if not one.problem or one is present]
    staying = _staying(usable) or usable
    taking = [machine for machine in staying if machine.takes_admin] or staying
    if not taking:
        return WaitFor("no Ray node could be looked at")
    return RunOn(present if present is not None and present in taking else taking[0])


def _run(member: str, machine: Machine, carried: dict[str, int], targets: Targets) -> None:
    targets[member] = RunOn(machine)
    carried[machine.ray_node_id] += 1


def _usable(machines: Sequence[Machine]) -> list[Machine]:
    """Those on which a member may start."""
    return [machine for machine in machines if not machine.problem]


def _staying(machines: Sequence[Machine]) -> list[Machine]:
    return [machine for machine in machines if not machine.leaving]


def _least(machines: Sequence[Machine], carried: Mapping[str, int]) -> Machine:
    """The first of those that carry least."""

    return min(machines, key=lambda machine: carried[machine.ray_node_id])
