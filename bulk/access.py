"""What a process needs to read a cluster's ledgers in bulk.

A process that has joined the cluster's Ray gets it from the coordinator's actor. Any other gets it from the admin HTTP.
"""

import asyncio
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Collection, Mapping
from http import HTTPStatus
from typing import NamedTuple, Protocol, TypeVar
from urllib.parse import quote

from ..protocol.errors import ClusterError, CoordinatorUnavailable, InvalidConfiguration
from ..protocol.names import COORDINATOR_ACTOR, METHOD_HEADER, RAY_METHOD, READ_CREDENTIALS_PATH, ROLE_READER
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


class AdminOfRay(str):
    """`http://host:port` of the admin HTTP as Ray said it, not a user.

    A process that has joined Ray asks Ray again before each request to it, and sends the token of that answer. In any
    other, such as an executor of Spark, it is a URL like each other.
    """

    __slots__ = ()


async def admin_through_ray() -> AdminOfRay:
    """`http://host:port` of the cluster's admin HTTP. Raises ClusterError, CoordinatorUnavailable."""
    return (await _admin_of_now())[0]


async def _admin_of_now() -> tuple[AdminOfRay, str]:
    """Its URL, and a token of Ray, empty where the cluster gives none."""
    found = await _ask_coordinator(lambda actor: actor.client_information())
    return AdminOfRay(found["admin_url"]), str(found["token"])


def _through_ray(admin_url: str | None) -> bool:
    """Whether Ray says where the admin is, and who asks it. Never for a URL that a user gave."""
    if admin_url is None:
        return True
    ray = sys.modules.get("ray")  # an executor of Spark does not need it
    return isinstance(admin_url, AdminOfRay) and ray is not None and bool(ray.is_initialized())


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
    """What the admin HTTP at `http://host:port` gives to bulk readers. Of an `AdminOfRay` Ray is asked for the same.

    Raises InvalidConfiguration for another kind of URL, ConnectError when nothing answers there, ClusterError when it
    is no Magnetar cluster, and CoordinatorUnavailable when the cluster cannot answer now.
    """
    if _through_ray(admin_url):
        return await cluster_access()
    if not admin_url.startswith(("http://", "https://")):
        raise InvalidConfiguration(f"the admin URL must be http://host:port, not {admin_url!r:.200}")
    answer = await ask_admin(admin_url, READ_CREDENTIALS_PATH)
    return _access_in(answer, admin_url.rstrip("/") + READ_CREDENTIALS_PATH)


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
    admin_url: str | None,
    path: str,
    method: str = "GET",
    body: object = None,
    *,
    accepted: Collection[int] = (),
    timeout_s: float = LOCATE_TIMEOUT_S,
) -> bytes:
    """What the admin HTTP answers for a path; nothing for an error whose status is `accepted`.

    Without a URL, and with an `AdminOfRay`, Ray says where the admin is now, and gives a token with that. The token in
    the file of `MAGNETAR_TOKEN_FILE` goes before it, as with a client.

    Raises ConnectError, CoordinatorUnavailable, ClusterError.
    """
    data = None if body is None else json.dumps(body).encode()
    headers = {} if data is None else {"Content-Type": "application/json"}
    try:
        token = token_of_process()
    except (OSError, ValueError) as error:
        raise ClusterError(f"the file of {VARIABLE} cannot be read: {error}") from error
    if admin_url is None or _through_ray(admin_url):
        admin_url, token_of_ray = await _admin_of_now()
        if token is None and token_of_ray:
            token = token_of_ray
            headers[METHOD_HEADER] = RAY_METHOD
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(admin_url.rstrip("/") + path, data, headers, method=method)
    return await asyncio.to_thread(_answer, request, accepted, timeout_s)


def topic_path(topic: str, what: str = "") -> str:
    """Where the admin HTTP has a persistent topic or partition, or with `what` something of it, such as `/stats`."""
    name = TopicName.parse(topic)
    path = "/".join(quote(part, safe="") for part in (*name.namespace.split("/"), name.local_name))
    return f"/admin/v2/persistent/{path}{what}"


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
    return await ask_admin(admin_url or None, topic_path(topic, what), method, body, accepted=accepted)


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
