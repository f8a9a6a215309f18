"""The quickstart and the guides: each example and command is executed as it stands there, at real addresses.

`test_spark_read.py` runs those of the page on Spark.
"""

import json
import os
import shlex
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pulsar
import pytest

import magnetar
from magnetar.cluster.ports import free_ports
from magnetar.cluster.ray_cluster import RayCluster
from support.checks import document_examples
from support.checks.document_examples import ADMIN_URL, commands
from support.checks.running_examples import curl, run
from support.files.key_files import write_key_files

QUICKSTART = "docs/quickstart.md"
RAY = "docs/guides/ray.md"
CONSUMERS = "docs/guides/consumers.md"
ACKNOWLEDGEMENT = "docs/guides/acknowledgement.md"
TYPES = "docs/guides/subscription-types.md"
OFFICIAL = "docs/guides/official-clients.md"
CHUNKS = "docs/guides/chunks-and-encryption.md"
SCHEMAS = "docs/guides/schemas.md"
DEDUPLICATION = "docs/guides/deduplication.md"
COMPACTION = "docs/guides/compaction.md"
RETENTION = "docs/guides/retention.md"
DELAYED = "docs/guides/delayed-delivery.md"
MIGRATION = "docs/guides/migration.md"
WATCHING = "docs/operations/watching.md"
SECURITY = "docs/guides/security.md"
COMMAND = [sys.executable, "-P", "-m", "magnetar.cluster.command_line"]
TIMEOUT_S = 180


@pytest.mark.parametrize(("name", "printed"), [("ray-task", "("), ("ray-actor", "2"), ("ray-travel", "(")])
def test_the_examples_for_ray_print_what_they_should(
    greetings: RayCluster, capsys: pytest.CaptureFixture[str], name: str, printed: str
) -> None:
    run(RAY, name)
    assert printed in capsys.readouterr().out


def test_the_example_of_a_queue_ships_the_orders_that_were_put(
    cluster: RayCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    run(RAY, "ray-queue")
    assert capsys.readouterr().out.strip() == "[0, 1, 2]"


@pytest.mark.filterwarnings("ignore:::ray")  # Ray warns of settings that it makes itself
def test_the_example_of_datasets_counts_and_adds_what_it_wrote(
    cluster: RayCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    run(RAY, "ray-data")
    assert capsys.readouterr().out.strip().splitlines()[-1] == f"1000 {sum(number % 7 for number in range(1000))}"


@pytest.mark.filterwarnings("ignore:::ray")  # Ray warns of settings that it makes itself
def test_the_examples_of_following_count_each_row_once(
    cluster: RayCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    run(RAY, "ray-follow")
    assert capsys.readouterr().out.strip().splitlines()[-1] == "15"
    scope = run(RAY, "ray-follow-once")
    with closing(scope["store"]) as store:
        counted = store.execute("SELECT page, COUNT(*) FROM pages GROUP BY page").fetchall()
        assert counted == [(f"page {number}", 20) for number in range(5)]


@pytest.mark.filterwarnings("ignore:::ray", "ignore::ResourceWarning")  # Ray warns of settings that it makes itself
def test_the_example_of_task_queues_runs_a_task(cluster: RayCluster, capsys: pytest.CaptureFixture[str]) -> None:
    from ray import serve

    serve.start(proxy_location="Disabled")
    try:
        run(RAY, "ray-serve")
    finally:
        serve.shutdown()
    assert "[192, 108]" in capsys.readouterr().out.splitlines()


def test_the_example_of_consume_bills_each_order(cluster: RayCluster, capsys: pytest.CaptureFixture[str]) -> None:
    run(RAY, "ray-consume")
    assert capsys.readouterr().out.strip() == "['billed order 0', 'billed order 1', 'billed order 2']"


def test_the_example_for_many_messages_adds_them_up(cluster: RayCluster, capsys: pytest.CaptureFixture[str]) -> None:
    run(RAY, "ray-many")
    assert capsys.readouterr().out.strip() == "499500"


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("several-topics", "orders-eu b'one'"),
        ("letters", "dead letter b'bad' no answer"),
        ("listener", "handled b'one click'"),
        ("table-view", "b'1.25'"),
        ("client-statistics", "100 messages with 500 bytes, 100 received"),
    ],
)
def test_the_examples_for_consumers_print_what_they_should(
    cluster: RayCluster, capsys: pytest.CaptureFixture[str], name: str, printed: str
) -> None:
    run(CONSUMERS, name)
    assert printed in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("schema-json", "Order(item='pen', count=3, note=None)"),
        ("schema-change", "Trip(city='Rome', days=1) version 0"),
    ],
)
def test_the_examples_for_schemas_print_what_they_should(
    cluster: RayCluster, capsys: pytest.CaptureFixture[str], name: str, printed: str
) -> None:
    run(SCHEMAS, name, cluster.service_url)
    assert printed in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("acknowledge", "comes again: b'5'"),
        ("ack-receipt", "acknowledged b'pay once' failed: 0"),
        ("negative", "delivered before: 2"),
        ("ack-timeout", "delivered before: 1"),
    ],
)
def test_the_examples_for_acknowledgement_print_what_they_should(
    cluster: RayCluster, capsys: pytest.CaptureFixture[str], name: str, printed: str
) -> None:
    run(ACKNOWLEDGEMENT, name)
    assert printed in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("failover", ["a has b'one'", "b goes on with b'two'"]),
        ("key-shared", ["drains: a holds 3 messages of it", "keys of both: set()"]),
        ("sticky", ["low and high have True True"]),
    ],
)
def test_the_examples_for_failover_and_key_shared_print_what_they_should(
    cluster: RayCluster, capsys: pytest.CaptureFixture[str], name: str, printed: list[str]
) -> None:
    run(TYPES, name, admin_url=cluster.admin_url)
    found = capsys.readouterr().out
    assert [text for text in printed if text not in found] == []


def test_the_example_of_an_election_has_one_leader_after_the_other(
    cluster: RayCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    run(RAY, "ray-leader")
    assert "['one', 'two']" in capsys.readouterr().out


def test_the_example_for_the_official_client_prints_its_message(
    cluster: RayCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    run(OFFICIAL, "official-client", cluster.service_url)
    assert "from an official client" in capsys.readouterr().out


def test_the_commands_and_the_example_for_deduplication(
    cluster: RayCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert curl(DEDUPLICATION, "deduplication", cluster.admin_url) == ["", "", "true"]
    run(DEDUPLICATION, "deduplication", cluster.service_url, cluster.admin_url)
    assert capsys.readouterr().out.splitlines() == [
        "the topic knew -1 and then 2",
        str([b"rent", b"food", b"train", b"tea"]),
    ]


@pytest.mark.parametrize(("name", "printed"), [("delayed", ["now", "in two seconds"]), ("cancel-delayed", ["wake up"])])
def test_the_examples_for_delayed_delivery_print_what_they_should(
    cluster: RayCluster, capsys: pytest.CaptureFixture[str], name: str, printed: list[str]
) -> None:
    run(DELAYED, name, cluster.service_url)
    assert capsys.readouterr().out.splitlines() == printed


def test_the_commands_and_the_example_for_compaction(cluster: RayCluster, capsys: pytest.CaptureFixture[str]) -> None:
    run(COMPACTION, "compaction", cluster.service_url, cluster.admin_url)
    assert capsys.readouterr().out.splitlines() == ["GBP b'1.24'", "EUR b'1.08'", "GBP b'1.25'"]
    with magnetar.Client(cluster.service_url) as client:
        client.create_producer("prices").close()
    assert '"status"' in curl(COMPACTION, "compact-once", cluster.admin_url)[1]
    assert curl(COMPACTION, "compact-threshold", cluster.admin_url) == ["", ""]


def test_the_commands_and_the_example_for_retention_and_quotas(
    cluster: RayCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = curl(RETENTION, "retention", cluster.admin_url)[-1]
    assert json.loads(shown) == {"retentionTimeInMinutes": 1440, "retentionSizeInMB": 512}
    assert curl(RETENTION, "time-to-live", cluster.admin_url)[-1] == "3600"
    assert set(json.loads(curl(RETENTION, "backlog-quota", cluster.admin_url)[-1])) == {
        "destination_storage",
        "message_age",
    }
    run(RETENTION, "retention", cluster.service_url, cluster.admin_url)
    assert capsys.readouterr().out.strip() == f"still there: {[b'one', b'two']}"


def test_the_examples_for_chunks_and_encryption(
    cluster: RayCluster, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_key_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    run(CHUNKS, "chunks", cluster.service_url)
    run(CHUNKS, "encryption", cluster.service_url)
    printed = capsys.readouterr().out
    assert "12000000 (" in printed and "b'the eagle has landed' agency" in printed


def test_quickstart_and_migration_work_from_start_to_stop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One after the other, as an operator types them, with a Ray of their own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment = {**kept, "MAGNETAR_DATA_DIR": str(tmp_path / "data"), "RAY_USAGE_STATS_ENABLED": "0"}
    admin_url = ADMIN_URL

    def type_in(page: str, name: str) -> str:
        """Run a block of commands; returns what they print."""
        printed = ""
        for line in commands(page, name):
            words = shlex.split(line.replace(ADMIN_URL, admin_url))
            if words[0] == "magnetar":
                words = [*COMMAND, *words[1:], *(("--port", "0", "--admin-port", "0") if words[1] == "start" else ())]
            else:
                words = [words[0], "--silent", "--show-error", "--fail", *words[1:]]
            done = subprocess.run(
                words, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
            printed += done.stdout
        return printed

    def status() -> dict[str, Any]:
        done = subprocess.run(
            [*COMMAND, "status", "--json"], env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        return json.loads(done.stdout)

    try:
        type_in(QUICKSTART, "start")
        admin_url = status()["admin_url"]
        run(QUICKSTART, "first-messages", status()["service_url"])
        assert "b'hello'" in capsys.readouterr().out
        looked = type_in(QUICKSTART, "look")
        assert "broker-2" in looked and "ok" in looked and '"msgInCounter"' in looked
        type_in(QUICKSTART, "stop")

        (tmp_path / "magnetar.conf").write_text("keepAliveIntervalSeconds=20\n")
        assert "gcWaitTime" in type_in(MIGRATION, "config")
        admin_url, service_url = status()["admin_url"], status()["service_url"]
        type_in(MIGRATION, "tenants")
        assert "orders-partition-3" in type_in(OFFICIAL, "admin")
        assert '"max_producers_per_topic": 5' in type_in(WATCHING, "policies")
        run(OFFICIAL, "official-client", service_url)
        _keep(service_url, "letters", [b"one", b"two"])
        assert '"status"' in type_in(WATCHING, "compaction")
        run(MIGRATION, "copy-topic", service_url)
        assert _contents(service_url, "letters-copy", "readers")[-2:] == [b"one", b"two"]
    finally:
        type_in(QUICKSTART, "stop")


def _shell(place: Path, text: str) -> str:
    """What commands print, in a shell that knows of no Ray and has a data directory of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    path = f"{Path(sys.executable).parent}:{kept['PATH']}"
    environment = {**kept, "PATH": path, "MAGNETAR_DATA_DIR": str(place / "data"), "RAY_USAGE_STATS_ENABLED": "0"}
    words = ["bash", "-euc", text]
    done = subprocess.run(
        words, env=environment, cwd=place, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_the_commands_and_the_example_for_tokens_work_from_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All in one shell, as they stand there but for the ports."""
    port = str(free_ports("127.0.0.1", 1)[0])
    script = "\n".join(commands(SECURITY, "tokens"))
    script = script.replace("start --detach", f"start --detach --brokers 1 --port {port} --admin-port 0")
    try:
        assert "1 messages successfully produced" in _shell(tmp_path, script.replace(":6650", f":{port}"))
        monkeypatch.chdir(tmp_path)
        code = document_examples.example(SECURITY, "token").replace(":6650", f":{port}")
        exec(compile(code, SECURITY, "exec"), {"magnetar": magnetar})
        with pytest.raises(magnetar.AuthenticationError):
            magnetar.Client(f"pulsar://127.0.0.1:{port}").create_producer("orders")
    finally:
        _shell(tmp_path, "magnetar stop")


def test_the_commands_and_the_example_for_tls_work_from_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All in one shell, as they stand there but for the ports."""
    ports = dict(zip(("6651", "8443"), map(str, free_ports("127.0.0.1", 2)), strict=True))
    start = f"start --set brokerServicePortTls={ports['6651']} --set webServicePortTls={ports['8443']}"
    script = "\n".join(commands(SECURITY, "tls")).replace("start", f"{start} --port 0 --admin-port 0")
    for printed, free in ports.items():
        script = script.replace(f":{printed}", f":{free}")
    try:
        assert "persistent://public/default/my-topic" in _shell(tmp_path, script)
        monkeypatch.chdir(tmp_path)
        code = document_examples.example(SECURITY, "tls").replace("localhost:6651", f"localhost:{ports['6651']}")
        exec(compile(code, SECURITY, "exec"), {"magnetar": magnetar})
    finally:
        _shell(tmp_path, "magnetar stop")


def _keep(service_url: str, topic: str, payloads: list[bytes]) -> None:
    client = pulsar.Client(service_url)
    client.subscribe(topic, "keeper").close()
    producer = client.create_producer(topic)
    for payload in payloads:
        producer.send(payload)
    client.close()


def _contents(service_url: str, topic: str, subscription: str) -> list[bytes]:
    found = []
    with magnetar.Client(service_url) as client:
        consumer = client.subscribe(topic, subscription)
        try:
            while True:
                found.append(consumer.receive(timeout_millis=2_000).data())
        except magnetar.Timeout:
            return found


@pytest.mark.parametrize(
    "page",
    [
        QUICKSTART,
        RAY,
        CONSUMERS,
        ACKNOWLEDGEMENT,
        TYPES,
        OFFICIAL,
        CHUNKS,
        SCHEMAS,
        DEDUPLICATION,
        COMPACTION,
        RETENTION,
        MIGRATION,
        WATCHING,
        SECURITY,
    ],
)
def test_this_file_runs_every_example_and_command_of_a_page(page: str) -> None:
    source = Path(__file__).read_text()
    for kind in ("example", "commands"):
        assert [name for name in document_examples.named(page, kind) if f'"{name}"' not in source] == []
