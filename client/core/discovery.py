"""Finding the cluster through Ray, for clients without a service URL.

The coordinator is a named actor; it knows the brokers' addresses. Ray is imported only here, and only when asked.

A Ray without a cluster is refused at once: a program that calls `ray.init()` in place of `magnetar.connect()` starts an
empty Ray of its own. A client that has found its cluster before waits for it, because it may be started again.
"""

import logging
import os
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NotRequired, TypedDict, cast

from ...protocol.addresses import joined_urls
from ...protocol.errors import ClusterError, ConnectError, TlsError
from ...protocol.names import COORDINATOR_ACTOR
from ...runtime.data_directory import default_data_directory, recorded_ray
from ...runtime.environment import Environment
from ...runtime.ray_calls import ask, find_actor, gcs_address, why_unreachable
from .configuration import ClientConfiguration
from .forking import ray_was_inherited

ANSWER_TIMEOUT_S = 10.0


class FoundCluster(TypedDict):
    """What a client takes from the answer of the coordinator's actor. An older one does not tell `service_urls_tls`."""

    service_urls: list[str]
    service_urls_tls: NotRequired[list[str]]


def service_url_source(environment: Environment, configuration: ClientConfiguration) -> Callable[[], Awaitable[str]]:
    """What to await for the service URL: the configured one, or what the cluster's coordinator says now."""
    configured = configuration.service_url

    async def given() -> str:
        assert configured is not None
        return configured

    found_before = False

    async def asked() -> str:
        nonlocal found_before
        try:
            find = partial(find_service_url, may_join=not found_before, tls=configuration.use_tls)
            url = await environment.offload.run(find)
        except ClusterError as error:
            if found_before:
                raise ConnectError(str(error)) from None
            raise
        found_before = True
        return url

    return asked if configured is None else given


def find_service_url(*, may_join: bool = True, tls: bool = False) -> str:
    """The brokers' addresses as one service URL, with `tls` those for TLS; blocks.

    `may_join`: this process may join the Ray of this machine.

    Raises ClusterError if no cluster runs on the Ray of this process, ConnectError if it does not answer.
    """
    import ray

    if ray_was_inherited():
        raise ConnectError(
            "no service URL was given, and this process was forked from one that uses Ray, which does not survive it: "
            "pass a service URL, or use the start method 'spawn'"
        )
    if not ray.is_initialized():
        if not may_join:  # the program has left Ray, perhaps at this moment
            raise ConnectError("this process has left the Ray through which the cluster was found: join it again")
        address = os.environ.get("RAY_ADDRESS", "")
        if problem := why_unreachable(address):
            raise ClusterError(
                f"no service URL was given, and no Ray answers at RAY_ADDRESS={address} ({problem}): set it to the Ray "
                "of the cluster, or pass a service URL"
            )
        try:
            ray.init(  # pyright: ignore[reportUnknownMemberType] (Ray types its parameters in part)
                address="auto", log_to_driver=False, logging_level=logging.WARNING
            )
        except Exception:  # Ray raises a different class for every way of not being there
            raise ClusterError(_no_cluster("this process has joined no Ray, and none was found", None)) from None
    try:
        coordinator = find_actor(COORDINATOR_ACTOR)
    except ValueError:
        address = gcs_address()
        joined = f"no Magnetar cluster runs on the Ray at {address}, which this process has joined or started"
        raise ClusterError(_no_cluster(joined, address)) from None
    try:
        found = cast("FoundCluster", ask(coordinator.client_information(), ANSWER_TIMEOUT_S))
    except Exception as error:
        raise ConnectError(
            f"no service URL was given, and the cluster on Ray does not answer ({error}): pass a service URL, or look "
            "at `magnetar status`"
        ) from error
    urls = found["service_urls"]
    if not urls:
        raise ConnectError("the cluster has no live broker: see `magnetar status`")
    if tls:
        urls = found.get("service_urls_tls", [])
        if not urls:
            raise TlsError("use_tls=True, but the cluster has no TLS: set brokerServicePortTls, or leave use_tls out")
    return joined_urls(urls)


def _no_cluster(why: str, joined: str | None) -> str:
    """What is said where no cluster was found: also where the one of this user runs, and what to call."""
    directory = default_data_directory()
    elsewhere = recorded_ray(directory)
    if elsewhere is not None and elsewhere != joined:
        where = f"The cluster of {directory} runs on the Ray at {elsewhere}"
    else:
        where = "Start one with `magnetar start --detach`, or pass a service URL"
    return f"no service URL was given, and {why}. {where}. Call `magnetar.connect()` in place of `ray.init()`"


def in_ray_worker() -> bool:
    """Whether this process runs Ray tasks or actors (and is not a driver)."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return False
    return ray.get_runtime_context().worker.mode == ray.WORKER_MODE
