"""Ray Serve's task queues on topics: an adapter for `@task_consumer`, and a policy that scales by the exact backlog.

    from ray import serve
    from ray.serve.schema import TaskProcessorConfig
    from ray.serve.task_consumer import instantiate_adapter_from_config, task_consumer, task_handler

    config = TaskProcessorConfig(
        queue_name="thumbnails",
        adapter=magnetar.serve.MagnetarTaskProcessorAdapter,
        adapter_config=magnetar.serve.MagnetarAdapterConfig(),
    )

Everything is loaded on first use: importing this brings in neither Ray nor Serve.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .adapter import MagnetarTaskProcessorAdapter as MagnetarTaskProcessorAdapter
    from .autoscaling import BacklogAutoscalingPolicy as BacklogAutoscalingPolicy
    from .configuration import MagnetarAdapterConfig as MagnetarAdapterConfig

_HOMES = {
    "BacklogAutoscalingPolicy": ".autoscaling",
    "MagnetarAdapterConfig": ".configuration",
    "MagnetarTaskProcessorAdapter": ".adapter",
}

__all__ = ["BacklogAutoscalingPolicy", "MagnetarAdapterConfig", "MagnetarTaskProcessorAdapter"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
