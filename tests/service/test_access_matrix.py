"""Every path of the admin with no credential, a wrong one, one that is over, another tenant's, and the right one."""

import http.client
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import jwt
import pytest

from magnetar.actors.admin.routes import Route
from magnetar.actors.security.authorization import Level
from support.servers.embedded_cluster import EmbeddedCluster
from tools.reference_pages import admin_service

SECRET = b"0123456789abcdef0123456789abcdef"
ROUTES = list(admin_service().routes)
NAMES = {
    "domain": "persistent", "tenant": "nowhere", "namespace": "none", "topic": "missing", "subscription": "s",
    "subscription_name": "s", "role": "r", "cluster": "standalone", "setting": "maxMessageSize", "value": "1",
    "member": "broker-99", "bookie": "bookie-99", "property": "p", "text": "t", "seconds": "1", "timestamp": "1",
    "messages": "1", "position": "1", "ledger": "1", "entry": "1", "version": "1",
}  # fmt: skip
"""What stands for each parameter. Nothing of it exists, so that nothing is changed."""
ANYBODY, KNOWN = {Level.OPEN}, {Level.OPEN, Level.KNOWN}


class Case(NamedTuple):
    """A credential, and the levels of needs that it is enough for. `refusal` is the status of others."""

    headers: dict[str, str]
    enough_for: set[Level]
    refusal: int


def bearer(role: str, key: bytes = SECRET, **claims: object) -> dict[str, str]:
    return {"Authorization": f"Bearer {jwt.encode({'sub': role, **claims}, key)}"}


CASES = {
    "none": Case({}, ANYBODY, 401),
    "wrong": Case(bearer("root", b"x" * 32), ANYBODY, 401),
    "rubbish": Case({"Authorization": "Bearer rubbish"}, ANYBODY, 401),
    "over": Case(bearer("root", exp=int(time.time()) - 60), ANYBODY, 401),
    "another method": Case({**bearer("root"), "X-Pulsar-Auth-Method-Name": "athenz"}, ANYBODY, 401),
    "in another's name": Case({**bearer("stranger"), "X-Original-Principal": "root"}, ANYBODY, 403),
    "another tenant's admin": Case(bearer("stranger"), KNOWN, 403),
    "root": Case(bearer("root"), set(Level), 0),
}


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the admin of a cluster listens that asks for tokens and permissions."""
    place: Path = tmp_path_factory.mktemp("secure")
    (place / "key").write_bytes(SECRET)
    with EmbeddedCluster(
        place / "cluster",
        authentication_enabled=True,
        authentication_providers="token",
        token_secret_key=f"file://{place / 'key'}",
        authorization_enabled=True,
        super_user_roles="root",
    ) as cluster:
        record = {"adminRoles": ["stranger"], "allowedClusters": ["standalone"]}
        cluster.run(cluster.coordinator_call("put_tenant", tenant="other", record=record))
        yield urlsplit(cluster.run(cluster.start_admin())).netloc


def path_of(route: Route) -> str:
    parts = [part.strip("{}").partition(":")[0] if part.startswith("{") else "" for part in route.path.split("/")]
    return "/".join(NAMES[name] if name else part for name, part in zip(parts, route.path.split("/"), strict=True))


@pytest.mark.promise("30.31")
@pytest.mark.parametrize("name", CASES)
def test_a_path_is_served_to_those_who_may(admin: str, name: str) -> None:
    case = CASES[name]
    connection = http.client.HTTPConnection(admin, timeout=30)
    wrong: list[str] = []
    for route in ROUTES:
        connection.request(
            route.method,
            path_of(route),
            b"{}" if route.body else None,
            {"Content-Type": "application/json", **case.headers},
        )
        answer = connection.getresponse()
        answer.read()
        served = answer.status not in (401, 403)
        if served != (route.need.level in case.enough_for) or not (served or answer.status == case.refusal):
            wrong.append(f"{route.method} {route.path} ({route.need.level.name}): {answer.status}")
    connection.close()
    assert wrong == [] and len(ROUTES) > 200


def test_few_paths_are_open_and_each_is_known() -> None:
    found = {level: sorted(route.path for route in ROUTES if route.need.level is level) for level in KNOWN}
    assert found == {
        Level.OPEN: ["/admin/v2/brokers/ready", "/admin/v2/openapi.json", "/metrics"],
        Level.KNOWN: ["/admin/v2/brokers/version", "/admin/v2/clusters"],
    }


def test_each_level_says_of_what() -> None:
    """A need about a topic stands at a path that has one, and so on."""
    parts = {
        Level.TENANT: ("{tenant}",),
        Level.NAMESPACE: ("{tenant}", "{namespace}"),
        Level.TOPIC: ("{tenant}", "{namespace}", "{topic}"),
    }
    for route in ROUTES:
        assert all(part in route.path for part in parts.get(route.need.level, ())), route.path
        if "{topic}" in route.path:
            assert route.need.level in (Level.TOPIC, Level.NAMESPACE), route.path
