"""TLS between clients and brokers: with our client in both faces, and with the official one."""

import contextlib
import dataclasses
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from cryptography import x509

import magnetar
from magnetar.protocol.errors import SettingError
from magnetar.protocol.pulsar_pb2 import CommandLookupTopic
from magnetar.runtime import repeated_warnings
from support.clients.sides import FACES, Side, connect
from support.clients.wire_peer import WirePeer
from support.files.certificates import HOSTS, PemPair, TestAuthority
from support.servers.embedded_cluster import EmbeddedCluster

PLAIN, SECURE, PROXY = "127.0.0.1", "127.0.0.2", "127.0.0.3"
TOPIC = "persistent://public/default/t"
TOPICS = [f"{TOPIC}-partition-{number}" for number in range(4)]
OURS = ("ours", "asyncio")


@pytest.fixture(autouse=True)
def every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of the log that repeat those of a test before are not left out."""
    monkeypatch.setattr(repeated_warnings, "EVERY_S", -1.0)


@dataclasses.dataclass
class Kit:
    """A cluster with TLS beside plain ports, and the files that it uses."""

    cluster: EmbeddedCluster
    authority: TestAuthority
    server: PemPair
    directory: Path

    def url(self, host: str = SECURE, scheme: str = "pulsar+ssl") -> str:
        ports = [broker.address[1] for broker in self.cluster.brokers.values()]
        return f"{scheme}://" + ",".join(f"{host}:{port}" for port in ports)

    @contextlib.contextmanager
    def side(self, face: str, url: str = "", **options: Any) -> Iterator[Side]:
        trust = {"tls_trust_certs_file_path": self.authority.path, "tls_validate_hostname": True}
        with connect(url or self.url(), face, **{"operation_timeout_seconds": 10, **trust, **options}) as side:
            yield side

    def tls_connections(self) -> int:
        async def count() -> int:
            return sum(one.tls for broker in self.cluster.brokers.values() for one in broker.connections)

        return self.cluster.run(count())


@contextlib.contextmanager
def running(directory: Path, *, brokers: int = 1, **settings: Any) -> Iterator[Kit]:
    authority = TestAuthority(directory)
    server = authority.issue("server", (*HOSTS, PROXY))
    files = {"tls_certificate_path": server.certificate, "tls_key_path": server.key}
    (directory / "cluster").mkdir()
    with EmbeddedCluster(directory / "cluster", brokers=brokers, **{**files, **settings}) as cluster:
        cluster.run(cluster.coordinator_call("create_topic", topic=TOPIC, partitions=len(TOPICS)))
        yield Kit(cluster, authority, server, directory)


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kit]:
    directory = tmp_path_factory.mktemp("tls")
    both = {
        "advertised_listeners": f"internal:pulsar://{PLAIN}:{{port}},internal:pulsar+ssl://{SECURE}:{{port}},"
        f"web:pulsar+proxy://{PROXY}:{{port}}",
        "bind_addresses": f"internal:pulsar+ssl://{SECURE}:{{port}},web:pulsar+ssl://{PROXY}:{{port}}",
    }
    with running(directory, brokers=2, **both) as made:
        yield made


def exchange(side: Side, subscription: str) -> None:
    """Send to each topic, and receive."""
    for topic in TOPICS:
        consumer = side.client.subscribe(topic, subscription)
        side.client.create_producer(topic).send(topic.encode())
        assert side.values(consumer, 1, acknowledge=True) == [topic.encode()]


@pytest.mark.promise("30.27", "31.27")
@pytest.mark.parametrize("face", FACES)
def test_messages_go_through_tls_to_all_brokers(kit: Kit, face: str) -> None:
    with kit.side(face) as side:
        exchange(side, f"tls-{face}")
        assert kit.tls_connections() >= 2, "the service URL's, and the other owner's"


@pytest.mark.parametrize("face", OURS)
def test_use_tls_speaks_tls_with_a_url_that_does_not_ask_for_it(kit: Kit, face: str) -> None:
    with kit.side(face, kit.url(scheme="pulsar"), use_tls=True) as side:
        exchange(side, f"use-tls-{face}")
        assert kit.tls_connections() >= 2


@pytest.mark.parametrize("face", OURS)
def test_a_variable_of_the_process_says_which_ca_is_trusted(
    kit: Kit, face: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAGNETAR_TLS_TRUST_CERTS_FILE_PATH", kit.authority.path)
    with connect(kit.url(), face) as side:
        exchange(side, f"variable-{face}")
    other = TestAuthority(kit.directory, f"given-{face}")
    with connect(kit.url(), face, tls_trust_certs_file_path=other.path) as side:
        with pytest.raises(magnetar.TlsError, match="of a CA that is not trusted here"):
            side.client.create_producer(TOPIC)


@pytest.mark.parametrize("face", FACES)
def test_the_plain_port_goes_on_beside_tls(kit: Kit, face: str) -> None:
    with connect(kit.cluster.service_url, face) as side:
        exchange(side, f"plain-{face}")
        assert kit.tls_connections() == 0


async def test_a_lookup_tells_both_addresses(kit: Kit) -> None:
    peer = await WirePeer.open(kit.cluster.brokers[1].address[1], host=PLAIN)
    found = await peer.request(CommandLookupTopic(topic=TOPICS[0], request_id=0))
    assert found.brokerServiceUrl.startswith(f"pulsar://{PLAIN}:")
    assert found.brokerServiceUrlTls == found.brokerServiceUrl.replace("pulsar", "pulsar+ssl").replace(PLAIN, SECURE)
    await peer.close()


@pytest.mark.promise("30.20", "30.27")
@pytest.mark.parametrize("face", FACES)
def test_brokers_forward_the_connections_of_clients_with_tls(kit: Kit, face: str) -> None:
    with kit.side(face, kit.url(PROXY)) as side:
        exchange(side, f"proxy-{face}")

        async def forwarded() -> int:
            return sum(len(broker.forwards.open) for broker in kit.cluster.brokers.values())

        assert kit.cluster.run(forwarded()) >= 1


@pytest.mark.promise("31.27")
@pytest.mark.parametrize("face", OURS)
def test_another_ca_is_refused_with_the_reason(kit: Kit, face: str) -> None:
    other = TestAuthority(kit.directory, f"other-{face}")
    with kit.side(face, tls_trust_certs_file_path=other.path) as side:
        begun = time.monotonic()
        with pytest.raises(magnetar.TlsError, match=r"of a CA that is not trusted here .* tls_trust_certs_file_path"):
            side.client.create_producer(TOPIC)
        assert time.monotonic() - begun < 8, "it does not try until its time-out"
    with kit.side(face, tls_trust_certs_file_path=None) as side:
        with pytest.raises(magnetar.TlsError, match="of a CA that is not trusted here"):
            side.client.create_producer(TOPIC)


def test_the_official_client_is_refused_by_its_ca_too(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    other = TestAuthority(kit.directory, "other-official")
    with kit.side("official", tls_trust_certs_file_path=other.path) as side, pytest.raises(pulsar.PulsarException):
        side.client.create_producer(TOPIC)
    wait_until(lambda: "it does not trust the CA of this certificate" in caplog.text)


@pytest.fixture(scope="module")
def elsewhere(kit: Kit) -> Iterator[str]:
    """The service URL of a port of 127.0.0.4, which leads to a broker. Its certificate does not name that address."""
    target = (SECURE, kit.cluster.brokers[1].address[1])
    with contextlib.closing(socket.create_server(("127.0.0.4", 0))) as listening:
        threading.Thread(target=_pass_on, args=(listening, target), daemon=True).start()
        yield f"pulsar+ssl://127.0.0.4:{listening.getsockname()[1]}"


def _pass_on(listening: socket.socket, target: tuple[str, int]) -> None:
    def copy(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError), source, sink:
            while data := source.recv(1 << 16):
                sink.sendall(data)

    with contextlib.suppress(OSError):
        while True:
            near, far = listening.accept()[0], socket.create_connection(target)
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=copy, args=(one, other), daemon=True).start()


@pytest.mark.promise("31.27")
@pytest.mark.parametrize("face", FACES)
def test_another_host_name_is_refused_unless_it_is_not_checked(kit: Kit, elsewhere: str, face: str) -> None:
    with kit.side(face, elsewhere) as side:
        if face == "official":
            with pytest.raises(pulsar.PulsarException):
                side.client.create_producer(TOPICS[0])
        else:
            expected = r"not for 127\.0\.0\.4: use a host name .* tls_validate_hostname=False"
            with pytest.raises(magnetar.TlsError, match=expected):
                side.client.create_producer(TOPICS[0])
    with kit.side(face, elsewhere, tls_validate_hostname=False) as side:
        exchange(side, f"unchecked-{face}")
    with kit.side(face, elsewhere, tls_trust_certs_file_path=None, tls_allow_insecure_connection=True,
                  tls_validate_hostname=False) as side:  # fmt: skip
        exchange(side, f"insecure-{face}")


@pytest.mark.promise("31.27")
@pytest.mark.parametrize("face", OURS)
def test_tls_on_a_plain_port_and_plain_on_a_tls_port_are_told_apart(
    kit: Kit, face: str, caplog: pytest.LogCaptureFixture
) -> None:
    with kit.side(face, kit.url(PLAIN)) as side:
        with pytest.raises(magnetar.TlsError, match="this may be its port without TLS, so use that for TLS, 6651"):
            side.client.create_producer(TOPIC)
    assert f"speaks TLS on a port without it: its client has to use pulsar+ssl://{SECURE}" in caplog.text
    with connect(kit.url(SECURE, "pulsar"), face, operation_timeout_seconds=10) as side:
        with pytest.raises(magnetar.NotAllowedError, match=r"speaks TLS only: use pulsar\+ssl://127\.0\.0\.2:\d+"):
            side.client.create_producer(TOPIC)
    assert "does not speak TLS, but this port does" in caplog.text


def test_a_plain_official_client_on_a_tls_port_ends_with_its_time_out(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(kit.url(SECURE, "pulsar"), "official", operation_timeout_seconds=2) as side:
        with pytest.raises(pulsar.PulsarException):
            side.client.create_producer(TOPIC)
    assert "does not speak TLS, but this port does" in caplog.text


@pytest.mark.parametrize("face", OURS)
def test_a_file_that_is_missing_is_named(kit: Kit, face: str) -> None:
    with kit.side(face, tls_trust_certs_file_path="/nowhere/ca.pem") as side:
        with pytest.raises(magnetar.TlsError, match=r"/nowhere/ca\.pem cannot be read: No such file"):
            side.client.create_producer(TOPIC)


def wait_until(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# -- certificates of clients -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kit]:
    """A cluster with TLS only, where clients must show a certificate."""
    directory = tmp_path_factory.mktemp("mutual")
    trust = directory / "trust.pem"
    authority = TestAuthority(directory, "clients")
    trust.write_bytes(Path(authority.path).read_bytes())
    settings = {"broker_tls_only": True, "tls_client_required": True, "tls_trust_path": str(trust)}
    with running(directory, brokers=2, **settings) as made:
        yield dataclasses.replace(made, directory=directory)


def of_client(pair: PemPair) -> dict[str, str]:
    return {"tls_certificate_file_path": pair.certificate, "tls_private_key_file_path": pair.key}


def clients_ca(kit: Kit) -> TestAuthority:
    authority = TestAuthority(kit.directory, "next-clients")
    (kit.directory / "trust.pem").write_bytes(Path(authority.path).read_bytes())
    for broker in kit.cluster.brokers.values():
        kit.cluster.run(broker._listeners._contexts.refresh())
    return authority


@pytest.mark.promise("30.27")
@pytest.mark.parametrize("face", FACES)
def test_a_client_with_a_trusted_certificate_gets_in(mutual: Kit, face: str) -> None:
    mine = clients_ca(mutual).issue("my-app", ())
    with mutual.side(face, mutual.url(PLAIN), **of_client(mine)) as side:
        exchange(side, f"mutual-{face}")

        async def shown() -> set[str]:
            ends = [one._transport for broker in mutual.cluster.brokers.values() for one in broker.connections]
            return {end.get_extra_info("peercert")["subject"][0][0][1] for end in ends if end is not None}

        assert mutual.cluster.run(shown()) == {"my-app"}


@pytest.mark.promise("30.27")
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("kind", ["none", "of another CA", "expired"])
def test_a_client_without_a_trusted_certificate_does_not(
    mutual: Kit, face: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    clients = clients_ca(mutual)
    if kind == "none":
        options, logged = {}, "it shows no certificate, but tlsRequireTrustedClientCertOnConnect"
    elif kind == "expired":
        options, logged = of_client(clients.issue("expired", (), days=-1)), "certificate has expired"
    else:
        stranger = TestAuthority(mutual.directory, "stranger")
        options, logged = of_client(stranger.issue("stranger", ())), "its certificate is refused"
    with mutual.side(face, mutual.url(PLAIN), operation_timeout_seconds=2, **options) as side:
        error = pulsar.PulsarException if face == "official" else magnetar.ConnectError
        with pytest.raises(error) as refused:
            side.client.create_producer(TOPIC)
        if face != "official":
            assert "tls_certificate_file_path" in str(refused.value)
    assert logged in caplog.text


async def test_brokers_with_tls_only_tell_no_plain_address(mutual: Kit) -> None:
    pair = clients_ca(mutual).issue("peer", ())
    context = ssl.create_default_context(cafile=mutual.authority.path)
    context.load_cert_chain(pair.certificate, pair.key)
    peer = await WirePeer.open(mutual.cluster.brokers[1].address[1], host=PLAIN, ssl=context)
    found = await peer.request(CommandLookupTopic(topic=TOPICS[0], request_id=0))
    assert not found.brokerServiceUrl and found.brokerServiceUrlTls.startswith(f"pulsar+ssl://{PLAIN}:")
    await peer.close()


@pytest.mark.parametrize("face", OURS)
def test_an_owner_with_tls_only_gets_forwarded_connections_with_tls(tmp_path: Path, face: str) -> None:
    authority = tmp_path / "ca.pem"
    settings = {
        "broker_tls_only": True,
        "tls_trust_path": str(authority),
        "advertised_listeners": f"internal:pulsar+ssl://{PLAIN}:{{port}},web:pulsar+proxy://{PROXY}:{{port}}",
        "bind_addresses": f"web:pulsar://{SECURE}:{{port}},web:pulsar+ssl://{PROXY}:{{port}}",
    }
    with running(tmp_path, brokers=2, **settings) as kit:
        with kit.side(face, kit.url(PROXY)) as side:
            exchange(side, "tls-tls")
        with kit.side(face, kit.url(SECURE, "pulsar")) as side:
            exchange(side, "plain-tls")


# -- change of certificates ------------------------------------------------------------------------------------------


@pytest.mark.promise("30.28")
@pytest.mark.parametrize("face", FACES)
def test_no_send_fails_while_certificates_change_and_new_clients_see_the_new_one(tmp_path: Path, face: str) -> None:
    settings = {"broker_tls_only": True, "tls_refresh_s": 0}
    with running(tmp_path, brokers=2, **settings) as kit:
        stop, sent = threading.Event(), [0]

        def publish() -> None:
            with kit.side(face, kit.url(PLAIN)) as side:
                producers = [side.client.create_producer(topic) for topic in TOPICS]
                while not stop.is_set():
                    for producer in producers:
                        producer.send(b"x")  # raises if one fails
                        sent[0] += 1

        failures: list[BaseException] = []
        publishing = threading.Thread(target=_noting(failures, publish))
        publishing.start()
        try:
            for round_number in range(3):
                before = sent[0]
                kit.server.replace_by(kit.authority.issue(f"server-{round_number}", HOSTS))
                for broker in kit.cluster.brokers.values():
                    wait_until(lambda broker=broker: serial(PLAIN, broker.address[1]) == kit.server.serial)
                with kit.side(face, kit.url(PLAIN)) as late:
                    consumer = late.client.subscribe("late", "s")
                    late.client.create_producer("late").send(b"late")
                    assert late.values(consumer, 1, acknowledge=True) == [b"late"]
                wait_until(lambda before=before: sent[0] > before + 20 or bool(failures))
        finally:
            stop.set()
            publishing.join(60)
        assert failures == [] and sent[0] > 60


def _noting(failures: list[BaseException], act: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        try:
            act()
        except BaseException as error:  # whatever it is, the test fails with it
            failures.append(error)

    return run


def serial(host: str, port: int) -> int:
    """Of the certificate that a new connection is shown."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((host, port)) as plain, context.wrap_socket(plain) as secure:
        shown = secure.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


@pytest.mark.parametrize("face", FACES)
def test_a_producer_follows_its_topic_to_another_broker_with_tls(tmp_path: Path, face: str) -> None:
    with running(tmp_path, brokers=2, broker_tls_only=True) as kit, kit.side(face, kit.url(PLAIN)) as side:
        consumer = side.client.subscribe(TOPICS[0], "readers")
        producer = side.client.create_producer(TOPICS[0])
        producer.send(b"before")
        owner = kit.cluster.owner(TOPICS[0])
        kit.cluster.run(kit.cluster.stop_broker(owner))
        producer.send(b"behind")
        assert kit.cluster.owner(TOPICS[0]) != owner
        assert set(side.values(consumer, 2)) == {b"before", b"behind"}


def test_a_broker_whose_files_make_no_certificate_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"missing\.pem cannot be read"):
        with running(tmp_path, broker_tls_only=True, tls_certificate_path=str(tmp_path / "missing.pem")):
            pass


def test_a_broker_has_a_port_for_tls_beside_its_own(tmp_path: Path) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port = probe.getsockname()[1]
    with running(tmp_path, broker_port_tls=port % 60_000) as kit:
        with kit.side("ours", f"pulsar+ssl://{PLAIN}:{port % 60_000}") as side:
            exchange(side, "own-port")
        assert kit.cluster.brokers[1].where_tls_is == f"pulsar+ssl://{PLAIN}:{port % 60_000}"
