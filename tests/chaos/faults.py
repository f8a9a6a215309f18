"""Faults on the processes of a cluster on Ray, drawn from a seed."""

import os
import random
import signal
import threading
import time
from collections import Counter
from typing import Any

import ray
from ray.exceptions import RayError

from magnetar.protocol.names import COORDINATOR_ACTOR, COORDINATOR_ID, RAY_NAMESPACE, actor_name

from .judging import Fault

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


class Faults:
    """Draws and does faults. A bookie is harmed only while all bookies are there, so at most one is down."""

    def __init__(self, seed: int, brokers: int, bookies: int) -> None:
        self.done: list[Fault] = []
        self.skipped: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._nodes = {
            "broker": [f"broker-{number}" for number in range(1, brokers + 1)],
            "bookie": [f"bookie-{number}" for number in range(1, bookies + 1)],
            "coordinator": [COORDINATOR_ID],
        }
        self._pauses: list[threading.Thread] = []
        self._paused: dict[str, int] = {}
        self._harmed_bookie: tuple[str, str] | None = None
        """The bookie harmed last and the incarnation that has to go, or "" where it may stay."""

    def do_one(self) -> Fault | None:
        """Draw until a fault can be done, and do it; None when five draws could not."""
        for _ in range(5):
            role, kind = self._random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            node_id = self._random.choice(self._nodes[role])
            fault = self._do(role, node_id, kind)
            if fault is not None:
                self.done.append(fault)
                return fault
            self.skipped[f"{role} {kind}"] += 1
        return None

    def heal(self) -> None:
        """Wait until nothing is paused."""
        for pause in self._pauses:
            pause.join()
        self._pauses.clear()

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
        except (ValueError, RayError):
            return None  # it is away, or who could tell is
        begun = over = time.monotonic()
        if kind == "kill":
            os.kill(process, signal.SIGKILL)
        elif kind == "restart" and role == "coordinator":
            ray.kill(actor, no_restart=False)
        elif kind == "restart":
            actor.close.remote()
        else:
            os.kill(process, signal.SIGSTOP)
            over += PAUSE_S
            self._paused[node_id] = process
            self._pauses.append(threading.Thread(target=self._resume, args=(node_id, process)))
            self._pauses[-1].start()
        return Fault(node_id, kind, begun, over)

    def _resume(self, node_id: str, process: int) -> None:
        time.sleep(PAUSE_S)
        try:
            os.kill(process, signal.SIGCONT)
        except ProcessLookupError:
            pass  # replaced meanwhile
        self._paused.pop(node_id, None)

    def _bookies(self) -> dict[str, str]:
        """Those that answer, by incarnation. Raises RayError, ValueError."""
        status: Any = ray.get(ray.get_actor(COORDINATOR_ACTOR, RAY_NAMESPACE).status.remote(), timeout=ANSWER_S)
        return {
            member["id"]: member["incarnation"]
            for member in status["members"]
            if member["role"] == "bookie"
            and member["silent_s"] < SILENT_MAX_S
            and member["id"] not in self._paused
            and (member["id"], member["incarnation"]) != self._harmed_bookie
        }
