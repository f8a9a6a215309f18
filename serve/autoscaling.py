"""An autoscaling policy for `@task_consumer` deployments: as many replicas as the exact backlog needs.

Serve's controller calls the policy on its event loop and waits for it. So the backlog is asked for in a task, at most
one at a time, and a call answers with the backlog that was heard last.
"""

import asyncio
import logging
import math
from typing import TYPE_CHECKING

from ..protocol.errors import MagnetarError
from .outcomes import queue_metrics
from .queue_topics import QueueTopics

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

logger = logging.getLogger("ray.serve")

POLL_INTERVAL_S = 1.0


class BacklogAutoscalingPolicy:
    """For the `policy_function` of Serve's `AutoscalingPolicy`, with `policy_kwargs={"queue_name": …}`.

    The number of replicas is the backlog over `target_ongoing_requests`, within the bounds of the autoscaling config.
    Tasks that run or wait for a retry count, too. So the last replica goes when nothing is left to do.
    """

    def __init__(self, queue_name: str, admin_url: str | None = None, poll_interval_s: float = POLL_INTERVAL_S) -> None:
        self._topics = QueueTopics(queue_name, admin_url)
        self._metrics = queue_metrics(self._topics.queue)
        self._poll_interval_s = poll_interval_s
        self._backlog = 0
        self._asking: asyncio.Task[None] | None = None
        self._asked_at = -math.inf

    def __call__(self, ctx: "AutoscalingContext") -> tuple[int | float, dict[str, object]]:
        loop = asyncio.get_running_loop()
        if (self._asking is None or self._asking.done()) and loop.time() - self._asked_at >= self._poll_interval_s:
            self._asked_at = loop.time()
            self._asking = loop.create_task(self._ask())
        config = ctx.config
        assert config is not None
        workload = ctx.total_num_requests + self._backlog
        return math.ceil(workload / config.get_target_ongoing_requests()), {"backlog": self._backlog}

    async def _ask(self) -> None:
        try:
            self._backlog = (await self._topics.figures()).backlog
            self._metrics.report({"magnetar_serve_backlog": self._backlog})
        except MagnetarError as error:
            logger.warning("the backlog of %s is not known now: %s", self._topics.queue, error)
