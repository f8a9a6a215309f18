"""The admin over https: who is served, who is told why not, and which addresses it tells."""

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.bulk.access import access_over_http
from magnetar.cluster.admin.session import AdminSession
from magnetar.cluster.ports import free_ports
from magnetar.protocol.errors import ConnectError, TlsError
from magnetar.runtime.tls_contexts import ClientTls
from support.files.certificates import TestAuthority
from support.servers.embedded_cluster import CLUSTER_ID, EmbeddedCluster

TOPIC = "persistent://public/default/t"


class AdminKit:
    """A cluster whose brokers have TLS beside plain ports, and an admin with `settings`."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.authority = TestAuthority(directory)
        self.server = self.authority.issue("server")
        (directory / "cluster").mkdir()
        self.cluster = EmbeddedCluster(
            directory / "cluster",
            tls_certificate_path=self.server.certificate,
            tls_key_path=self.server.key,
            advertised_listeners="in:pulsar://127.0.0.1:{port},in:pulsar+ssl://127.0.0.2:{port}",
            bind_addresses="in:pulsar+ssl://127.0.0.2:{port}",
            **settings,
        )

    def ask(self, url: str, path: str, **tls: Any) -> Any:
        return AdminSession(url, ClientTls(**{"trust": self.authority.path, **tls})).ask("GET", path, {}, {}).value()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[AdminKit, str, str]]:
    """An admin with both ports: the kit, the plain URL, and the other."""
    (port,) = free_ports("127.0.0.1", 1)
    kit = AdminKit(tmp_path_factory.mktemp("admin"), admin_port_tls=port)
    with kit.cluster as cluster:
        plain = cluster.run(cluster.start_admin())
        cluster.run(cluster.coordinator_call("create_topic", topic=TOPIC, partitions=0))
        yield kit, plain, f"https://localhost:{port}"


@pytest.mark.promise("30.27")
def test_both_ports_serve_and_tell_the_addresses_with_tls(both: tuple[AdminKit, str, str]) -> None:
    kit, plain, secure = both
    port = kit.cluster.brokers[1].address[1]
    lookup = "/lookup/v2/topic/persistent/public/default/t"
    expected = {
        "brokerUrl": f"pulsar://127.0.0.1:{port}",
        "nativeUrl": f"pulsar://127.0.0.1:{port}",
        "brokerUrlTls": f"pulsar+ssl://127.0.0.2:{port}",
        "brokerUrlSsl": "",
    }
    assert kit.ask(plain, lookup) == {**expected, "httpUrl": plain}
    assert kit.ask(secure, lookup) == {**expected, "httpUrl": "", "httpUrlTls": secure}
    cluster = "/admin/v2/clusters/" + kit.ask(secure, "/admin/v2/clusters")[0]
    found = kit.ask(secure, cluster)
    assert (found["serviceUrl"], found["serviceUrlTls"]) == ("", secure)
    assert found["brokerServiceUrlTls"] == f"pulsar+ssl://127.0.0.2:{port}"
    assert "serviceUrlTls" not in kit.ask(plain, cluster)


@pytest.mark.parametrize("tls", [True, False], ids=["TLS", "plain"])
def test_the_official_client_looks_topics_up_over_https(both: tuple[AdminKit, str, str], tls: bool) -> None:
    kit, plain, secure = both
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(
        secure if tls else plain,
        operation_timeout_seconds=10,
        tls_trust_certs_file_path=kit.authority.path,
        tls_validate_hostname=tls,
        logger=logger,
    )
    consumer = client.subscribe(TOPIC, f"https-{tls}")
    client.create_producer(TOPIC).send(b"over https")
    assert consumer.receive(10_000).data() == b"over https"

    async def connections() -> set[bool]:
        return {one.tls for one in kit.cluster.brokers[1].connections}

    assert kit.cluster.run(connections()) == {tls}
    client.close()


async def test_bulk_readers_ask_over_https_with_the_variables_of_their_process(
    both: tuple[AdminKit, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kit, _, secure = both
    with pytest.raises(TlsError, match="of a CA that is not trusted here"):
        await access_over_http(secure)
    monkeypatch.setenv("MAGNETAR_TLS_TRUST_CERTS_FILE_PATH", kit.authority.path)
    assert (await access_over_http(secure)).cluster_id == CLUSTER_ID


def test_what_is_wrong_with_a_certificate_is_told(both: tuple[AdminKit, str, str], tmp_path: Path) -> None:
    kit, plain, secure = both
    with pytest.raises(TlsError, match="of a CA that is not trusted here"):
        kit.ask(secure, "/admin/v2/clusters", trust="")
    with pytest.raises(TlsError, match=r"not for 127\.0\.0\.1"):
        other = AdminSession(secure.replace("localhost", "127.0.0.1"), ClientTls(kit.authority.path))
        pair = kit.authority.issue("other", ("localhost",))
        kit.server.replace_by(pair)
        assert kit.cluster.admin is not None and kit.cluster.admin._secure is not None
        kit.cluster.run(kit.cluster.admin._secure._contexts.refresh())
        other.ask("GET", "/admin/v2/clusters", {}, {})
    assert kit.ask(secure, "/admin/v2/clusters"), "the new certificate has this name"
    with pytest.raises(TlsError, match=r"missing\.pem cannot be read"):
        kit.ask(secure, "/admin/v2/clusters", trust=str(tmp_path / "missing.pem"))
    with pytest.raises(ConnectError, match="does not speak TLS"):
        kit.ask(plain.replace("http:", "https:").replace("127.0.0.1", "localhost"), "/admin/v2/clusters")


def test_plain_http_on_the_port_for_tls_is_answered_with_the_reason(both: tuple[AdminKit, str, str]) -> None:
    _, _, secure = both
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(secure.replace("https:", "http:") + "/admin/v2/clusters", timeout=30)
    with refused.value as answer:
        assert answer.code == 400
        assert json.loads(answer.read()) == {"reason": "this port speaks TLS only: use https://"}


def test_an_admin_with_tls_only_asks_for_a_certificate(tmp_path: Path) -> None:
    trust = tmp_path / "ca.pem"
    kit = AdminKit(tmp_path, admin_tls_only=True, tls_trust_path=str(trust), tls_client_required=True)
    with kit.cluster as cluster:
        url = cluster.run(cluster.start_admin()).replace("http:", "https:")
        mine = kit.authority.issue("operator", ())
        assert kit.ask(url, "/admin/v2/clusters", certificate=mine.certificate, key=mine.key)
        with pytest.raises(ConnectError):
            kit.ask(url, "/admin/v2/clusters")
        context = ssl.create_default_context(cafile=kit.authority.path)
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(url.replace("https:", "http:"), timeout=30, context=context)
