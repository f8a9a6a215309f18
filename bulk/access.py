"""What a process needs to read a cluster's ledgers in bulk.

A process that has joined the cluster's Ray gets it from the coordinator's actor. Any other gets it from the admin HTTP.
"""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Collection, Mapping
from http import HTTPStatus
from typing import NamedTuple, Protocol, TypeVar
from urllib.parse import quote

from ..protocol.errors import ClusterError, CoordinatorUnavailable, InvalidConfiguration
from ..protocol.names import COORDINATOR_ACTOR, READ_CREDENTIALS_PATH, ROLE_READER
from ..protocol.topics import TopicName
from ..runtime.http_opener import direct_opener, failure
from ..runtime.ray_calls import find_actor
from ..runtime.rpc.connection import Locate
from ..runtime.rpc.keys import NodeKeys, ReadCredentials
from ..runtime.tls_contexts import tls_of_process
from ..runtime.token_file import VARIABLE, token_of_process

T = TypeVar("T")

LOCATE_TIMEOUT_S = 10.0
ANSWER_SIZE_MAX_BYTES = 64 << 20
"""Enough for the names of all topics of a large namespace."""


class ClusterAccess(NamedTuple):
    """What proves to the bookies that a reader belongs to the cluster. Never logged."""

    cluster_id: str
    keys: NodeKeys
    coordinator: tuple[str, int]

    def __repr__(self) -> str:
        return f"ClusterAccess({self.cluster_id!r}, coordinator={self.coordinator})"


class ReadingCoordinator(Protocol):
    """What a bulk read asks of the coordinator's actor."""

    async def address(self) -> tuple[str, int]: ...
    async def read_credentials(self) -> ReadCredentials: ...
    async def client_information(self) -> Mapping[str, object]: ...


async def cluster_access() -> ClusterAccess:
    """What the cluster on this process's Ray gives to bulk readers. Raises ClusterError when there is none."""
    given = await _ask_coordinator(lambda actor: actor.read_credentials())
    return ClusterAccess(given["cluster_id"], given["keys"], given["coordinator"])


async def locate_coordinator() -> tuple[str, int]:
    """Where the coordinator listens now. Raises ClusterError, CoordinatorUnavailable."""
    return await _ask_coordinator(lambda actor: actor.address())


async def admin_through_ray() -> str:
    """`http://host:port` of the cluster's admin HTTP. Raises ClusterError, CoordinatorUnavailable."""
    return str((await _ask_coordinator(lambda actor: actor.client_information()))["admin_url"])


async def _ask_coordinator(question: Callable[[ReadingCoordinator], Awaitable[T]]) -> T:
    import ray
    from ray.exceptions import RayError

    if not ray.is_initialized():  # else Ray would start one: also at the end of a program, when a pin is removed
        raise ClusterError("this process has not joined a Ray: call magnetar.connect() or magnetar.start() first")
    try:
        actor: ReadingCoordinator = await asyncio.to_thread(find_actor, COORDINATOR_ACTOR)
    except ValueError as error:
        raise ClusterError("no Magnetar cluster runs on this Ray: start one with `magnetar start`") from error
    try:
        async with asyncio.timeout(LOCATE_TIMEOUT_S):
            return await question(actor)
    except (TimeoutError, RayError) as error:
        raise CoordinatorUnavailable(f"the coordinator's actor does not answer: {error}") from error


async def access_over_http(admin_url: str) -> ClusterAccess:
    """What the admin HTTP at `http://host:port` gives to bulk readers.

    Raises InvalidConfiguration for another kind of URL, ConnectError when nothing answers there, ClusterError when it
    is no Magnetar cluster, and CoordinatorUnavailable when the cluster cannot answer now.
    """
    if not admin_url.startswith(("http://", "https://")):
        raise InvalidConfiguration(f"the admin URL must be http://host:port, not {admin_url!r:.200}")
    url = admin_url.rstrip("/") + READ_CREDENTIALS_PATH
    return _access_in(await ask_admin(url), url)


async def find_cluster(admin_url: str | None) -> tuple[ClusterAccess, Locate]:
    """Its access, and where the coordinator listens now: over HTTP, or without a URL through Ray. Raises as both do."""
    if admin_url is None:
        return await cluster_access(), locate_coordinator
    return await access_over_http(admin_url), locate_over_http(admin_url)


def locate_over_http(admin_url: str) -> Locate:
    """What to await for where the coordinator listens now. It raises what `access_over_http` raises."""

    async def locate() -> tuple[str, int]:
        return (await access_over_http(admin_url)).coordinator

    return locate


async def ask_admin(
    url: str,
    method: str = "GET",
    body: object = None,
    *,
    accepted: Collection[int] = (),
    timeout_s: float = LOCATE_TIMEOUT_S,
) -> bytes:
    """What the admin HTTP answers; nothing for an error whose status is `accepted`.

    Raises ConnectError, CoordinatorUnavailable, ClusterError.
    """
    data = None if body is None else json.dumps(body).encode()
    headers = {} if data is None else {"Content-Type": "application/json"}
    try:
        token = token_of_process()
    except (OSError, ValueError) as error:
        raise ClusterError(f"the file of {VARIABLE} cannot be read: {error}") from error
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(url, data, headers, method=method)
    return await asyncio.to_thread(_answer, request, accepted, timeout_s)


def topic_url(admin_url: str, topic: str, what: str = "") -> str:
    """Where the admin HTTP has a persistent topic or partition, or with `what` something of it, such as `/stats`."""
    name = TopicName.parse(topic)
    path = "/".join(quote(part, safe="") for part in (*name.namespace.split("/"), name.local_name))
    return f"{admin_url.rstrip('/')}/admin/v2/persistent/{path}{what}"


async def ask_of_topic(
    admin_url: str | None,
    topic: str,
    what: str = "",
    method: str = "GET",
    body: object = None,
    *,
    accepted: Collection[int] = (),
) -> bytes:
    """As `ask_admin`, of a topic. Without a URL the admin HTTP is found through Ray."""
    return await ask_admin(
        topic_url(admin_url or await admin_through_ray(), topic, what), method, body, accepted=accepted
    )


def check_urls(service_url: str | None, admin_url: str | None) -> None:
    """Raise InvalidConfiguration if only one of them is given: both lead to the cluster, or Ray does."""
    if (service_url is None) != (admin_url is None):
        raise InvalidConfiguration("service_url and admin_url belong together: pass both, or none inside Ray")


def _answer(request: urllib.request.Request, accepted: Collection[int], timeout_s: float) -> bytes:
    asked = f"{request.get_method()} {request.full_url}"
    opener = direct_opener(request.full_url, tls_of_process())
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            return answer.read(ANSWER_SIZE_MAX_BYTES)
    except urllib.error.HTTPError as error:
        with error:
            text = error.read(1_000).decode(errors="replace")[:300]
        if error.code in accepted:
            return b""
        if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
            raise CoordinatorUnavailable(f"{asked} answers with status 503: {text}") from error
        raise ClusterError(f"{asked} answers with status {error.code}: {text}") from error
    except OSError as error:
        raise failure(asked, request.full_url, error) from error


def _access_in(answer: bytes, url: str) -> ClusterAccess:
    try:
        given = json.loads(answer)
        host, port = given["coordinator"]["host"], given["coordinator"]["port"]
        keys = {str(role): bytes.fromhex(key) for role, key in given["keys"].items()}
        if not (isinstance(given["clusterId"], str) and isinstance(host, str) and type(port) is int):
            raise ValueError("a field has another type than it should")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ClusterError(f"{url} does not answer as the admin HTTP of a Magnetar cluster does: {error!r}") from error
    return ClusterAccess(given["clusterId"], NodeKeys(ROLE_READER, "", b"", keys), (host, port))
