"""What an idle cluster costs: processor time and memory of all its processes above that of as many empty Ray actors."""

import os
import time
from pathlib import Path
from typing import Any

import ray
from rows import Report, Row

from magnetar.cluster.ray_calls import ask, remote
from magnetar.protocol.names import ADMIN_ID, COORDINATOR_ID, RAY_NAMESPACE, actor_name

QUIET_S = 60.0
WINDOW_S = 20.0


class Empty:
    """An actor that does nothing, on an event loop like ours."""

    async def process_id(self) -> int:
        return os.getpid()


def run(status: dict[str, Any], started: float, report: Report) -> None:
    """Both rows. `started` is the `time.monotonic()` at which the cluster ran; nobody may use it meanwhile."""
    members = [record["node_id"] for record in status["processes"]]
    names = [actor_name(node) for node in dict.fromkeys([COORDINATOR_ID, *members, ADMIN_ID])]
    actors = [ray.get_actor(name, RAY_NAMESPACE) for name in names]
    ours: list[int] = ask([actor.process_id.remote() for actor in actors], 30)
    empty_actors = [remote(Empty, num_cpus=0).remote() for _ in ours]
    empties: list[int] = ask([actor.process_id.remote() for actor in empty_actors], 120)
    time.sleep(max(0.0, started + QUIET_S - time.monotonic()))
    before = {process: cpu_seconds(process) for process in (*ours, *empties)}
    begin = time.monotonic()
    time.sleep(WINDOW_S)
    elapsed = time.monotonic() - begin
    used = {process: cpu_seconds(process) - before[process] for process in before}
    cpu = 100 * (sum(used[process] for process in ours) - sum(used[process] for process in empties)) / elapsed
    samples = [round(100 * used[process] / elapsed, 3) for process in ours]
    memory = {process: proportional_memory_mb(process) for process in before}
    above = sum(memory[process] for process in ours) - sum(memory[process] for process in empties)
    count = f"{len(ours)} processes"
    report.rows.append(Row("idle, processor", round(cpu, 2), "lower", 2.0, samples, "% of a core", count))
    per_process = [round(memory[process], 1) for process in ours]
    report.rows.append(Row("idle, memory", round(above, 1), "lower", 300.0, per_process, "MB", count))
    for actor in empty_actors:
        ray.kill(actor)


def cpu_seconds(process: int) -> float:
    """Processor time that a process has used, user and system."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def proportional_memory_mb(process: int) -> float:
    """Proportional set size: shared pages count for their share."""
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no Pss of process {process}")
