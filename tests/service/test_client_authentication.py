"""Clients that prove who they are by tokens and passwords: ours, and the official one."""

import base64
import json
import logging
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import jwt
import pulsar
import pytest

import magnetar
from magnetar.actors.security.passwords import HASHES
from magnetar.runtime.logs import AUDIT_LOGGER
from magnetar.runtime.token_file import VARIABLE
from support.servers.embedded_cluster import EmbeddedCluster

SECRET = b"0123456789abcdef0123456789abcdef"
TOPIC = "persistent://public/default/orders"


def token(role: str, **claims: object) -> str:
    return jwt.encode({"sub": role, **claims}, SECRET, algorithm="HS256")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    """Two brokers that ask for tokens or passwords, and for permissions."""
    place: Path = tmp_path_factory.mktemp("secure")
    (place / "key").write_bytes(SECRET)
    (place / "users").write_text(f"admin:{HASHES.hash('right')}\n")
    with EmbeddedCluster(
        place / "cluster",
        brokers=2,
        authentication_enabled=True,
        authentication_providers="token,basic",
        token_secret_key=f"file://{place / 'key'}",
        basic_auth_conf=str(place / "users"),
        authorization_enabled=True,
        super_user_roles="admin",
        authentication_refresh_check_s=2,
        audit_log_enabled=True,
    ) as running:
        grant(running, "producer", "produce")
        grant(running, "consumer", "consume")
        yield running


def grant(cluster: EmbeddedCluster, role: str, *actions: str) -> None:
    _, _, found = cluster.run(cluster.coordinator_call("namespace", namespace="public/default"))
    grants = found.get("auth_policies", {})
    roles = {**grants.get("namespace_auth", {}), role: list(actions)}
    value = {**grants, "namespace_auth": {name: words for name, words in roles.items() if words}}
    cluster.run(cluster.coordinator_call("set_policy", namespace="public/default", policy="auth_policies", value=value))


@pytest.mark.promise("30.29", "31.28")
def test_a_token_lets_a_role_do_what_it_is_granted(cluster: EmbeddedCluster) -> None:
    with (
        magnetar.Client(cluster.service_url, magnetar.AuthenticationToken(token("producer"))) as publisher,
        magnetar.Client(cluster.service_url, magnetar.AuthenticationToken(lambda: token("consumer"))) as reader,
    ):
        consumer = reader.subscribe(TOPIC, "s", initial_position=magnetar.InitialPosition.Earliest)
        publisher.create_producer(TOPIC).send(b"one")
        assert consumer.receive(10_000).data() == b"one"
        with pytest.raises(magnetar.AuthorizationError, match="producer may not consume"):
            publisher.subscribe(TOPIC, "s")
        with pytest.raises(magnetar.AuthorizationError, match="consumer may not produce"):
            reader.create_producer(TOPIC)


@pytest.mark.promise("30.29")
def test_the_official_client_works_with_tokens_and_passwords(cluster: EmbeddedCluster) -> None:
    for authentication in (
        pulsar.AuthenticationToken(token("admin")),
        pulsar.AuthenticationBasic("admin", "right"),
    ):
        client = pulsar.Client(cluster.service_url, authentication)
        try:
            consumer = client.subscribe(TOPIC, f"official-{id(authentication)}")
            client.create_producer(TOPIC).send(b"two")
            assert consumer.receive(10_000).data() == b"two"
        finally:
            client.close()


@pytest.mark.promise("30.29")
@pytest.mark.parametrize(
    ("authentication", "reason"),
    [
        (None, "gave no credential: this cluster takes token, basic"),
        (magnetar.AuthenticationToken("rubbish"), "malformed"),
        (magnetar.AuthenticationToken(token("admin", exp=1)), "expired"),
        (magnetar.AuthenticationToken(jwt.encode({"sub": "admin"}, b"x" * 32)), "another key"),
        (magnetar.AuthenticationToken(jwt.encode({"name": "admin"}, SECRET)), "no role"),
        (magnetar.AuthenticationBasic("admin", "wrong"), "wrong"),
        (magnetar.AuthenticationBasic("nobody", "right"), "wrong"),
    ],
)
def test_others_are_refused(
    cluster: EmbeddedCluster, authentication: magnetar.Authentication | None, reason: str
) -> None:
    with magnetar.Client(cluster.service_url, authentication) as client:
        began = time.monotonic()
        with pytest.raises(magnetar.AuthenticationError, match=reason):
            client.create_producer(TOPIC)
        assert time.monotonic() - began < 5, "nothing is tried again"


@pytest.mark.promise("30.30")
def test_a_token_is_renewed_under_load_and_nothing_is_lost(cluster: EmbeddedCluster) -> None:
    given: list[float] = []

    def fresh() -> str:
        given.append(time.time())
        return token("admin", exp=int(time.time()) + 2)

    with magnetar.Client(cluster.service_url, magnetar.AuthenticationToken(fresh)) as client:
        topic = f"{TOPIC}-renewed"
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic)
        sent = 0
        end = time.monotonic() + 6
        while time.monotonic() < end:
            producer.send(b"%d" % sent)
            sent += 1
        assert [int(consumer.receive(10_000).data()) for _ in range(sent)] == list(range(sent))
        assert len(given) >= 3


def test_a_pattern_takes_the_topics_of_a_namespace_that_the_role_may_list(cluster: EmbeddedCluster) -> None:
    with magnetar.Client(cluster.service_url, magnetar.AuthenticationToken(token("admin"))) as client:
        client.create_producer(f"{TOPIC}-pattern").send(b"one")
    pattern = re.compile("persistent://public/default/orders-pattern.*")
    for role, error in (("consumer", None), ("stranger", magnetar.AuthorizationError)):
        with magnetar.Client(cluster.service_url, magnetar.AuthenticationToken(token(role))) as client:
            if error is not None:
                with pytest.raises(error):
                    client.subscribe(pattern, "pattern")
                continue
            consumer = client.subscribe(pattern, "pattern", initial_position=magnetar.InitialPosition.Earliest)
            assert consumer.receive(10_000).data() == b"one"


@pytest.mark.promise("30.31", "32.6")
def test_a_revocation_reaches_connected_clients_within_a_second(cluster: EmbeddedCluster) -> None:
    topic = f"{TOPIC}-revoked"
    grant(cluster, "guest", "produce", "consume")
    with magnetar.Client(
        cluster.service_url, magnetar.AuthenticationToken(token("guest")), operation_timeout_seconds=5
    ) as client:
        producer, consumer = client.create_producer(topic, send_timeout_millis=3_000), client.subscribe(topic, "s")
        producer.send(b"before")
        assert consumer.receive(10_000).data() == b"before"
        grant(cluster, "guest")
        began = time.monotonic()
        with pytest.raises(magnetar.MagnetarError):
            while True:
                producer.send(b"after")
        assert time.monotonic() - began < 5


@pytest.fixture(scope="module")
def admin(cluster: EmbeddedCluster) -> str:
    """The URL of an admin of the same cluster."""
    return cluster.run(cluster.start_admin())


def status(url: str, path: str, method: str = "GET", body: object = None, **headers: str) -> int:
    request = urllib.request.Request(url + path, method=method, headers=headers)
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            print(method, path, error.code, error.read())
            return error.code


def bearer(role: str, **claims: object) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(role, **claims)}"}


def test_the_admin_asks_who_calls(admin: str) -> None:
    path = "/admin/v2/tenants"
    password = base64.b64encode(b"admin:right").decode()
    wrong = base64.b64encode(b"admin:wrong").decode()
    assert status(admin, path) == 401
    assert status(admin, path, **bearer("admin")) == 200
    assert status(admin, path, **bearer("producer")) == 403
    assert status(admin, path, **bearer("admin", exp=1)) == 401
    assert status(admin, path, Authorization=f"Basic {password}") == 200
    assert status(admin, path, Authorization=f"Basic {wrong}") == 401
    assert status(admin, path, Authorization="Basic %") == 401
    assert status(admin, path, Authorization="Digest x") == 401
    assert [status(admin, open_path) for open_path in ("/metrics", "/admin/v2/brokers/ready")] == [200, 200]


def test_requests_that_change_something_are_told(admin: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, AUDIT_LOGGER)
    path = "/admin/v2/namespaces/public/default/retention"
    body = {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1}
    assert status(admin, path, "POST", body, **bearer("admin")) == 204
    assert status(admin, path, "POST", body, **bearer("producer")) == 403
    assert status(admin, path, **bearer("admin")) == 200
    assert status(admin, path, "DELETE", **bearer("admin")) == 204
    lines = [json.loads(record.message) for record in caplog.records if record.name == AUDIT_LOGGER]
    assert [(line["role"], line["action"], line["target"], line["outcome"]) for line in lines] == [
        ("admin", "POST", path, "permitted"),
        ("producer", "POST", path, "refused"),
        ("admin", "DELETE", path, "permitted"),
    ]


def test_roles_reach_the_paths_of_their_permissions(admin: str) -> None:
    topic = "/admin/v2/persistent/public/default/orders"
    assert status(admin, f"{topic}/stats", **bearer("producer")) == 200
    assert status(admin, f"{topic}/subscriptions", **bearer("producer")) == 403
    assert status(admin, f"{topic}/subscriptions", **bearer("consumer")) == 200
    assert status(admin, f"{topic}/subscription/s/skip_all", "POST", **bearer("producer")) == 403
    assert status(admin, f"{topic}/unload", "PUT", **bearer("consumer")) == 403
    assert status(admin, f"{topic}/no-such-path", **bearer("consumer")) == 501
    assert status(admin, "/admin/v2/persistent/public/default/missing/stats", **bearer("nobody")) == 403


@pytest.mark.promise("32.6")
def test_an_admin_of_a_tenant_does_everything_below_it_and_nothing_else(cluster: EmbeddedCluster, admin: str) -> None:
    made = {"adminRoles": ["boss"], "allowedClusters": ["standalone"]}
    assert status(admin, "/admin/v2/tenants/shop", "PUT", made, **bearer("boss")) == 403
    assert status(admin, "/admin/v2/tenants/shop", "PUT", made, **bearer("admin")) == 204
    assert status(admin, "/admin/v2/namespaces/shop/sales", "PUT", **bearer("boss")) == 204
    assert status(admin, "/admin/v2/namespaces/public/more", "PUT", **bearer("boss")) == 403
    grants = "/admin/v2/namespaces/shop/sales/permissions/clerk"
    assert status(admin, grants, "POST", ["produce"], **bearer("clerk")) == 403
    assert status(admin, grants, "POST", ["produce"], **bearer("boss")) == 204
    topic = "persistent://shop/sales/orders"
    for role in ("boss", "clerk"):
        with magnetar.Client(cluster.service_url, magnetar.AuthenticationToken(token(role))) as client:
            client.create_producer(topic).send(b"sold")
    with magnetar.Client(cluster.service_url, magnetar.AuthenticationToken(token("boss"))) as client:
        client.subscribe(topic, "s").close()
        with pytest.raises(magnetar.AuthorizationError):
            client.create_producer(TOPIC)
    assert status(admin, "/admin/v2/tenants/shop", "POST", {"adminRoles": []}, **bearer("admin")) == 204
    assert status(admin, "/admin/v2/namespaces/shop/sales", **bearer("boss")) == 403


def test_a_process_has_a_token_in_a_file(
    cluster: EmbeddedCluster, admin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text(token("admin"))
    monkeypatch.setenv(VARIABLE, str(file))
    with magnetar.Client(cluster.service_url) as client:
        client.create_producer(f"{TOPIC}-of-process").send(b"one")
    assert magnetar.to_arrow(f"{TOPIC}-of-process", admin_url=admin).num_rows == 1
    file.write_text(token("consumer"))
    with pytest.raises(magnetar.MagnetarError, match="403"):
        magnetar.to_arrow(f"{TOPIC}-of-process", admin_url=admin)
