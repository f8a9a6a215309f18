"""Finding the cluster through Ray, for clients without a service URL.

The coordinator is a named actor; it knows the brokers' addresses. Ray is imported only here, and only when asked.
"""

import logging
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypedDict, cast

from ...protocol.errors import ConnectError
from ...protocol.names import COORDINATOR_ACTOR, RAY_NAMESPACE
from ...runtime.environment import Environment
from .configuration import ClientConfiguration
from .forking import ray_was_inherited

ANSWER_TIMEOUT_S = 10.0


class FoundCluster(TypedDict):
    """What a client takes from the answer of the coordinator's actor."""

    service_urls: list[str]


def service_url_source(environment: Environment, configuration: ClientConfiguration) -> Callable[[], Awaitable[str]]:
    """What to await for the service URL: the configured one, or what the cluster's coordinator says now."""
    configured = configuration.service_url

    async def given() -> str:
        assert configured is not None
        return configured

    async def asked() -> str:
        return await environment.offload.run(find_service_url)

    return asked if configured is None else given


def find_service_url() -> str:
    """The brokers' addresses as one service URL; blocks. Raises ConnectError if no cluster is found."""
    import ray

    if ray_was_inherited():
        raise ConnectError(
            "no service URL was given, and this process was forked from one that uses Ray, which does not survive it: "
            "pass a service URL, or use the start method 'spawn'"
        )
    try:
        if not ray.is_initialized():
            ray.init(  # pyright: ignore[reportUnknownMemberType] (Ray types its parameters in part)
                address="auto", log_to_driver=False, logging_level=logging.WARNING
            )
        coordinator = cast(
            "Any",  # a handle has whatever methods its actor has
            ray.get_actor(COORDINATOR_ACTOR, namespace=RAY_NAMESPACE),  # pyright: ignore[reportUnknownMemberType]
        )
        found = cast("FoundCluster", ray.get(coordinator.client_information.remote(), timeout=ANSWER_TIMEOUT_S))
    except Exception as error:  # Ray raises a different class for every way of not being there
        raise ConnectError(
            f"no service URL was given, and no Magnetar cluster was found on Ray ({error}): pass a service URL, or "
            "start a cluster"
        ) from error
    urls = [url.removeprefix("pulsar://").rstrip("/") for url in found["service_urls"]]
    if not urls:
        raise ConnectError("the cluster has no live broker: see `magnetar status`")
    return "pulsar://" + ",".join(urls)


def in_ray_worker() -> bool:
    """Whether this process runs Ray tasks or actors (and is not a driver)."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return False
    return ray.get_runtime_context().worker.mode == ray.WORKER_MODE
