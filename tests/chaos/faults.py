"""Faults on the processes of a cluster on Ray, drawn from a seed."""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError

from magnetar.protocol.names import COORDINATOR_ACTOR, COORDINATOR_ID, RAY_NAMESPACE, actor_name
from support.nodes.network import Cut

from .judging import Fault
from .nodes import Nodes

PAUSE_S = 4.5
"""Longer than a session (3 s)."""
ANSWER_S = 2.0
SILENT_MAX_S = 1.5

WEIGHTS = {
    ("broker", "kill"): 2,
    ("broker", "pause"): 3,
    ("broker", "restart"): 1,
    ("bookie", "kill"): 2,
    ("bookie", "pause"): 2,
    ("bookie", "restart"): 1,
    ("coordinator", "kill"): 1,
    ("coordinator", "pause"): 1,
    ("coordinator", "restart"): 1,
}
"""`restart`: a member closes in good order and the supervisor starts it again; the coordinator, which has no order to
close by itself, is restarted by Ray."""
LONG_CUT = "long cut"
NODE_WEIGHTS = {
    ("node", Cut.BOTH_WAYS): 3,
    ("node", Cut.OUTGOING): 2,
    ("node", Cut.INCOMING): 2,
    ("node", "kill"): 2,
}
"""On several nodes: packets of one are lost, as long as a pause lasts; or it is killed whole, and comes back."""
LONG_CUT_WEIGHT = 6
OFFICIAL_NOTICES_S = 60.0
"""The official client sends a PING after 30 s without an answer, and gives the connection up after as long again."""
LONG_CUT_S = 40.0
"""Longer than Ray takes to give a node up. Its broker is started elsewhere while the old one still runs."""
AWAY_S = 6.0
RETURN_S = 6.0
"""How long a killed node is away, and what its new raylet takes."""


class Faults:
    """Draws and does faults. A bookie is harmed only while all bookies are there, so at most one is down.

    `nodes` are several hosts, which are harmed, too.
    """

    def __init__(self, seed: int, brokers: int, bookies: int, nodes: Nodes | None = None) -> None:
        self._places = nodes
        self._weights = {**WEIGHTS, **(NODE_WEIGHTS if nodes is not None else {})}
        self.done: list[Fault] = []
        self.skipped: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._nodes = {
            "broker": [f"broker-{number}" for number in range(1, brokers + 1)],
            "bookie": [f"bookie-{number}" for number in range(1, bookies + 1)],
            "coordinator": [COORDINATOR_ID],
            "node": list(nodes.addresses) if nodes is not None else [],
        }
        self._pauses: list[threading.Thread] = []
        self._paused: set[str] = set()
        self._harmed_bookie: tuple[str, str] | None = None
        """The bookie harmed last and the incarnation that has to go, or "" where it may stay."""

    def do_one(self, left_s: float) -> Fault | None:
        """Draw until a fault can be done, and do it; None when five draws could not.

        A fault that lasts longer than the other ones is over in `left_s`.
        """
        weights = dict(self._weights)
        if self._places is not None and left_s >= LONG_CUT_S:
            weights["node", LONG_CUT] = LONG_CUT_WEIGHT
        for _ in range(5):
            role, kind = self._random.choices(list(weights), list(weights.values()))[0]
            node_id = self._random.choice(self._nodes[role])
            fault = self._harm_node(node_id, kind) if role == "node" else self._do(role, node_id, kind)
            if fault is not None:
                self.done.append(fault)
                return fault
            self.skipped[f"{role} {kind}"] += 1
        return None

    def heal(self) -> None:
        """Wait until nothing is paused, and all nodes are back. Raises RuntimeError for a node that is not."""
        for pause in self._pauses:
            pause.join()
        self._pauses.clear()
        if self._places is not None:
            self._places.ask("settle")

    def _do(self, role: str, node_id: str, kind: str) -> Fault | None:
        if node_id in self._paused:
            return None
        try:
            if role == "bookie":
                incarnations = self._bookies()
                if len(incarnations) < len(self._nodes["bookie"]):
                    return None
                self._harmed_bookie = node_id, "" if kind == "pause" else incarnations[node_id]
            actor = ray.get_actor(actor_name(node_id), RAY_NAMESPACE)
            process = ray.get(actor.process_id.remote(), timeout=ANSWER_S)
            address = self._address(node_id) if self._places is not None else ""
        except (ValueError, RayError, KeyError):
            return None  # it is away, or the coordinator is, which knows
        begun = over = time.monotonic()
        if kind == "kill":
            self._send(address, process, signal.SIGKILL)
        elif kind == "restart" and role == "coordinator":
            ray.kill(actor, no_restart=False)
        elif kind == "restart":
            actor.close.remote()
        else:
            self._send(address, process, signal.SIGSTOP)
            over += PAUSE_S
            self._paused.add(node_id)
            self._later(PAUSE_S, lambda: self._send(address, process, signal.SIGCONT), node_id)
        return Fault(node_id, kind, begun, over)

    def _harm_node(self, node: str, kind: str) -> Fault | None:
        """Cut a node off, or kill it. It has a broker and a bookie."""
        nodes = self._places
        assert nodes is not None
        if node in self._paused:
            return None
        try:
            incarnations = self._bookies()
            here = [member["id"] for member in self._members() if member["host"] == nodes.addresses[node]]
        except (ValueError, RayError):
            return None
        if len(incarnations) < len(self._nodes["bookie"]) or not self._paused.isdisjoint(here):
            return None
        begun = time.monotonic()
        self._paused.update({node, *here})
        bookie = next(one for one in here if one in incarnations)
        self._harmed_bookie = bookie, incarnations[bookie]
        if kind == LONG_CUT:
            how = self._random.choice(list(Cut))
            nodes.ask("cut", node, how)
            self._later(LONG_CUT_S, lambda: nodes.ask("rejoin", node), node, *here)
            return Fault(node, f"long cut {how} of", begun, begun + LONG_CUT_S, begun + OFFICIAL_NOTICES_S)
        if kind == "kill":
            nodes.ask("kill", node)
            self._later(AWAY_S, lambda: nodes.ask("bring_back", node), node, *here)
            return Fault(node, kind, begun, begun + AWAY_S + RETURN_S)
        self._harmed_bookie = None  # its session may outlast the cut
        nodes.ask("cut", node, kind)
        self._later(PAUSE_S, lambda: nodes.ask("heal", node), node, *here)
        return Fault(node, f"cut {kind} of", begun, begun + PAUSE_S)

    def _later(self, delay_s: float, undo: Callable[[], None], *harmed: str) -> None:
        """Undo a fault; until then what it harmed is not harmed again."""

        def wait() -> None:
            time.sleep(delay_s)
            undo()
            self._paused.difference_update(harmed)

        self._pauses.append(threading.Thread(target=wait))
        self._pauses[-1].start()

    def _send(self, address: str, process: int, number: signal.Signals) -> None:
        if self._places is not None:
            self._places.signal(address, process, number)
            return
        try:
            os.kill(process, number)
        except ProcessLookupError:
            pass  # replaced meanwhile

    def _address(self, node_id: str) -> str:
        """The host of a process. Raises KeyError, RayError, ValueError."""
        status = self._status()
        if node_id == COORDINATOR_ID:
            return status["coordinator"]["host"]
        return {member["id"]: member["host"] for member in status["members"]}[node_id]

    def _status(self) -> Any:
        return ray.get(ray.get_actor(COORDINATOR_ACTOR, RAY_NAMESPACE).status.remote(), timeout=ANSWER_S)

    def _members(self) -> Any:
        return self._status()["members"]

    def _bookies(self) -> dict[str, str]:
        """Those that answer, by incarnation. Raises RayError, ValueError."""
        return {
            member["id"]: member["incarnation"]
            for member in self._members()
            if member["role"] == "bookie"
            and member["silent_s"] < SILENT_MAX_S
            and member["id"] not in self._paused
            and (member["id"], member["incarnation"]) != self._harmed_bookie
        }
