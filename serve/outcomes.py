"""What a replica did with the tasks of its queue, for Ray's metrics. `magnetar_serve_backlog` comes from the policy."""

from collections import Counter

from ..client.aio.client import AsyncClient
from ..runtime.ray_metrics import Figure, FigureValues, RayMetrics, report_always
from .records import FINAL, RETRY, TaskStatus
from .statuses import Statuses

FIGURES = (
    Figure("magnetar_serve_tasks", "counter", "Tasks for which a replica has stored such a status.", "status"),
    Figure("magnetar_serve_backlog", "gauge", "Tasks that wait, run, or wait for a retry, as the policy heard last."),
)


class CountedStatuses(Statuses):
    """Statuses that count the outcomes which this replica has stored."""

    def __init__(self, client: AsyncClient, topic: str, serializer: str) -> None:
        super().__init__(client, topic, serializer)
        self.outcomes: Counter[str] = Counter()

    async def publish(self, task_id: str, status: TaskStatus) -> None:
        await super().publish(task_id, status)
        if status.status == RETRY or status.status in FINAL:
            self.outcomes[status.status] += 1

    async def report(self, queue: str) -> None:
        """Give Ray the outcomes, until cancelled."""

        async def read() -> FigureValues:
            return {"magnetar_serve_tasks": self.outcomes}

        await report_always(queue_metrics(queue), read)


def queue_metrics(queue: str) -> RayMetrics:
    """The figures of a queue, of which a process reports those that it has."""
    return RayMetrics(FIGURES, {"queue": queue})
