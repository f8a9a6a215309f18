"""What an application says about its task queue."""

from typing import Literal

from pydantic import BaseModel, Field


class MagnetarAdapterConfig(BaseModel):
    """The `adapter_config` of a `TaskProcessorConfig` whose tasks are kept in Magnetar."""

    service_url: str | None = Field(
        default=None, description="`pulsar://host:port` of the cluster. None finds it through Ray."
    )
    admin_url: str | None = Field(
        default=None,
        description="`http://host:port` of the cluster's admin HTTP. Needed with a `service_url`.",
    )
    serializer: Literal["json", "pickle"] = Field(
        default="json",
        description="How arguments and results are written. With pickle, who may publish to the queue may run code.",
    )
    key_ordered: bool = Field(
        default=False, description="Whether tasks with the same option `key` run one after the other, in their order."
    )
    retry_backoff_s: float = Field(default=1.0, gt=0, description="Seconds before the first retry; they double.")
    retry_backoff_max_s: float = Field(default=60.0, gt=0, description="Maximum seconds before a retry.")
    result_expires_s: int = Field(default=86_400, ge=60, description="Seconds for which statuses and results are kept.")
