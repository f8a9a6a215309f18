"""What an idle cluster costs: processor time and memory of all its processes above that of as many empty Ray actors."""

import os
import time
from pathlib import Path

import ray
from processes import cpu_seconds, service_processes
from rows import Report, Row

from magnetar.protocol.cluster_status import ClusterStatus
from magnetar.runtime.ray_calls import ask, remote

QUIET_S = 60.0
WINDOW_S = 20.0


class Empty:
    """An actor that does nothing, on an event loop like ours."""

    async def process_id(self) -> int:
        return os.getpid()


def run(status: ClusterStatus, started: float, report: Report) -> None:
    """Both rows. `started` is the `time.monotonic()` at which the cluster ran; no client may use it meanwhile."""
    ours = list(service_processes(status).values())
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


def proportional_memory_mb(process: int) -> float:
    """Proportional set size: shared pages count for their share."""
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no Pss of process {process}")
