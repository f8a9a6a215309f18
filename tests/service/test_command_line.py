"""`magnetar produce`, `magnetar consume` and `magnetar perf` against a cluster, also with official clients."""

import base64
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader

from support.files.key_files import write_key_files
from support.servers.command_line import CommandLine, command_line

RECORD = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "count", "type": "int"}]})
PROGRAM = """
import sys
from magnetar.cluster.command_line import main
try:
    main()
finally:
    print(sorted({"ray", "pyspark", "raydp"} & set(sys.modules)), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def magnetar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    with command_line(tmp_path_factory.mktemp("data")) as found:
        yield found


@pytest.fixture
def official(magnetar: CommandLine) -> Iterator[pulsar.Client]:
    client = pulsar.Client(magnetar.cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


def contents(printed: str) -> list[str]:
    return re.findall(r"content:(.*)", printed)


@pytest.mark.promise("32.13")
def test_what_produce_sends_consume_prints_with_key_and_properties(magnetar: CommandLine, tmp_path: Path) -> None:
    magnetar.admin("topics", "create-subscription", "-s", "s", "plain")
    (tmp_path / "file").write_bytes(b"\x00\xff")
    sent = magnetar(
        "produce", "plain", "-m", "a,b", "-f", str(tmp_path / "file"), "-n", "2", "-k", "key", "-p", "p=1,q=2"
    )
    assert sent == "6 messages successfully produced\n"
    done = magnetar.run("consume", "plain", "-s", "s", "-n", "6")
    assert contents(done.stdout) == ["a", "b", "\\x00\\xff"] * 2
    assert done.stdout.count("key:[key], properties:[p=1, q=2]") == 6
    assert done.stderr == "6 messages successfully consumed\n"
    backlog = magnetar.admin("topics", "stats", "plain")["subscriptions"]["s"]["msgBacklog"]
    assert backlog == 0, "what was printed is acknowledged"


def test_an_official_client_reads_what_produce_sends(magnetar: CommandLine, official: pulsar.Client) -> None:
    consumer = official.subscribe("official", "s", schema=pulsar.schema.StringSchema())
    magnetar("produce", "official", "-m", "grün", "-k", "k", "-vs", "string", "-db")
    message = consumer.receive(10_000)
    assert (message.value(), message.partition_key()) == ("grün", "k")
    assert magnetar.admin("schemas", "get", "official")["type"] == "STRING"


def test_consume_reads_what_an_official_client_sends_and_decodes_it(
    magnetar: CommandLine, official: pulsar.Client
) -> None:
    magnetar("produce", "orders", "-vs", f"avro:{RECORD}", "-s", "", "-m", '{"count": 3}')
    options = ("orders", "-s", "s", "-p", "earliest", "-t", "shared")
    assert contents(magnetar("consume", *options, "-st", "auto_consume")) == ["{'count': 3}"]
    official.create_producer("raw").send(b"A\n")
    assert "41 0A" in magnetar("consume", "raw", "-s", "s", "-p", "Earliest", "--hex")


def test_a_payload_that_does_not_fit_the_schema_is_not_sent(magnetar: CommandLine) -> None:
    assert magnetar.fails("produce", "misfit", "-vs", f"json:{RECORD}", "-m", "{").startswith(
        "magnetar: SchemaSerializationError: "
    )


def test_pairs_have_their_key_beside_the_payload_or_within(magnetar: CommandLine, official: pulsar.Client) -> None:
    consumer = official.subscribe("pairs", "s")
    magnetar("produce", "pairs", "-m", "v", "-k", "k", "-kvet", "separated", "-vs", "string")
    message = consumer.receive(10_000)
    assert (message.data(), base64.b64decode(message.partition_key())) == (b"v", b"k")


def test_encrypted_messages_need_the_private_key(magnetar: CommandLine, tmp_path: Path) -> None:
    public, private = write_key_files(tmp_path)
    magnetar.admin("topics", "create-subscription", "-s", "s", "secret")
    magnetar("produce", "secret", "-m", "x", "-ekn", "name", "-ekv", Path(public).as_uri())
    assert magnetar.fails("consume", "secret", "-s", "s").startswith("magnetar: CryptoError: ")
    assert contents(magnetar("consume", "secret", "-s", "s", "-ekv", private)) == ["x"]
    assert "neither" in magnetar.fails("produce", "secret", "-m", "x", "-ekn", "name")


def test_chunks_are_put_together_again(magnetar: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * (6 << 20))
    magnetar.admin("topics", "create-subscription", "-s", "s", "large")
    assert "MessageTooBig" in magnetar.fails("produce", "large", "-f", str(tmp_path / "large"), "-db")
    magnetar("produce", "large", "-f", str(tmp_path / "large"), "--chunking")
    assert len(contents(magnetar("consume", "large", "-s", "s"))[0]) == 6 << 20


def test_a_non_durable_subscription_leaves_nothing_behind(magnetar: CommandLine) -> None:
    magnetar.admin("topics", "create-subscription", "-s", "kept", "passing")
    magnetar("produce", "passing", "-m", "a,b")
    assert contents(magnetar("consume", "passing", "-s", "x", "-m", "NonDurable", "-p", "Earliest", "-n", "2")) == [
        "a",
        "b",
    ]
    assert magnetar.admin("topics", "subscriptions", "passing") == ["kept"]
    for kind in ("Shared", "Failover", "Key_Shared"):
        arguments = ("consume", "passing", "-s", "x", "-m", "NonDurable", "-p", "Earliest", "-n", "2", "-t", kind)
        assert contents(magnetar(*arguments)) == ["a", "b"]
    assert magnetar.admin("topics", "subscriptions", "passing") == ["kept"]


def test_produce_says_when_nothing_keeps_what_it_sends(magnetar: CommandLine) -> None:
    """It says so where it can ask the admin; a subscription or a retention keeps messages."""
    done = magnetar.run("produce", "kept-by-nothing", "-m", "a")
    assert done.exit_code == 0 and done.stdout == "1 messages successfully produced\n"
    (line,) = done.stderr.strip().splitlines()
    assert "kept-by-nothing has no subscription and no retention" in line and "subscribe" in line
    magnetar.admin("topics", "create-partitioned-topic", "-p", "2", "kept-by-nobody")
    assert "no retention" in magnetar.run("produce", "kept-by-nobody", "-m", "a").stderr
    assert "no retention" in magnetar.run("produce", "non-persistent://public/default/passing", "-m", "a").stderr
    magnetar.admin("topics", "create-subscription", "-s", "s", "kept-by-nothing")
    assert not magnetar.run("produce", "kept-by-nothing", "-m", "b").stderr
    magnetar.admin("topics", "create", "kept-for-a-while")
    magnetar.admin("topicPolicies", "set-retention", "-s", "1G", "-t", "1d", "kept-for-a-while")
    assert not magnetar.run("produce", "kept-for-a-while", "-m", "a").stderr
    magnetar.environment["MAGNETAR_ADMIN_URL"] = "http://127.0.0.1:1"
    try:
        done = magnetar.run("produce", "kept-by-nobody", "-m", "a")
        assert done.exit_code == 0 and not done.stderr, "an admin that does not answer is no failure"
    finally:
        magnetar.environment["MAGNETAR_ADMIN_URL"] = magnetar.cluster.admin_url


def test_a_pattern_takes_all_topics_that_match(magnetar: CommandLine) -> None:
    for name in ("many-1", "many-2"):
        magnetar("produce", name, "-m", name)
    found = magnetar(
        "consume", "persistent://public/default/many-.*", "--regex", "-s", "s", "-p", "Earliest", "-n", "2"
    )
    assert sorted(contents(found)) == ["many-1", "many-2"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("produce", "bad://x/y", "-m", "x"), "magnetar: InvalidTopicName: "),
        (("produce", "t"), "magnetar: InvalidConfiguration: there is nothing to send"),
        (("produce", "t", "-f", "/nowhere"), "magnetar: FileNotFoundError: "),
        (("produce", "t", "-m", "x", "-u", "http://x"), "magnetar: InvalidUrl: "),
        (("consume", "(", "-s", "s", "--regex"), "magnetar: InvalidConfiguration: '(' is no pattern"),
        (("produce", "no/where/t", "-m", "x"), "magnetar: TopicNotFound: "),
    ],
)
def test_a_mistake_is_one_line_with_its_class_and_status_1(
    magnetar: CommandLine, arguments: tuple[str, ...], line: str
) -> None:
    assert magnetar.fails(*arguments).startswith(line)


def test_an_option_that_does_not_exist_has_status_2(magnetar: CommandLine) -> None:
    assert magnetar.run("produce", "t", "--mesages", "x").exit_code == 2
    assert magnetar.run("consume", "t").exit_code == 2, "the subscription is missing"


def test_a_terminated_topic_takes_nothing_and_says_so(magnetar: CommandLine) -> None:
    magnetar("produce", "ended", "-m", "x")
    magnetar.admin("topics", "terminate", "ended")
    assert magnetar.fails("produce", "ended", "-m", "x").startswith("magnetar: TopicTerminated: ")
    assert magnetar.fails("perf", "produce", "ended", "-m", "1").startswith("magnetar: TopicTerminated: ")


def test_ctrl_c_ends_consume_and_ray_is_never_loaded(magnetar: CommandLine) -> None:
    magnetar("produce", "interrupted", "-m", "x")
    command = [sys.executable, "-P", "-c", PROGRAM, "consume", "interrupted", "-s", "s", "-p", "Earliest", "-n", "0"]
    with subprocess.Popen(
        command,
        env={**os.environ, **magnetar.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell without job control starts what it puts into the background with SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            assert process.stdout.readline() == "----- got message -----\n"
            assert process.stdout.readline().endswith("content:x\n")
            process.send_signal(signal.SIGINT)
            errors = process.stderr.read()
            assert process.wait(60) == 130, errors
            assert errors.splitlines() == ["1 messages successfully consumed", "[]"]
        finally:
            process.kill()


# -- perf --------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("32.13")
def test_perf_produces_at_a_rate_and_writes_a_plot_and_histograms(magnetar: CommandLine, tmp_path: Path) -> None:
    plot, log = tmp_path / "plot.png", tmp_path / "latencies.hlog"
    printed = magnetar(
        "perf", "produce", "rate", "-r", "400", "-time", "1", "-i", "0.1", "-s", "50", "--warmup-time", "0",
        "--plot-file", str(plot), "--histogram-file", str(log),
    )  # fmt: skip
    lines = [line for line in printed.splitlines() if line.startswith("Throughput produced: ")]
    assert len(lines) >= 2
    form = re.compile(
        r"Throughput produced: \d+ msg --- [\d.]+ msg/s --- [\d.]+ Mbit/s --- failure 0.000 msg/s --- "
        r"Latency: mean: [\d.]+ ms - med: [\d.]+ - 95pct: [\d.]+ - 99pct: [\d.]+ - 99.9pct: [\d.]+ - "
        r"99.99pct: [\d.]+ - Max: [\d.]+"
    )
    assert any(map(form.fullmatch, lines)), "a busy machine may store nothing in some intervals, but not in all of them"
    sent = re.search(r"Aggregated throughput stats --- (\d+) records sent", printed)
    assert sent is not None and 0 < int(sent[1]) <= 401
    assert magnetar.admin("topics", "stats", "rate")["msgInCounter"] == int(sent[1])
    assert plot.read_bytes().startswith(b"\x89PNG")
    reader = HistogramLogReader(str(log), HdrHistogram(1, 120_000_000, 3))
    counted = 0
    while (interval := reader.get_next_interval_histogram()) is not None:
        counted += interval.get_total_count()
    reader.input_file.close()
    assert counted == int(sent[1])


@pytest.mark.parametrize("more", [(), ("-mk", "random"), ("-db",), ("-n", "2", "-t", "2", "-z", "LZ4")])
def test_perf_produces_a_number_of_messages_as_fast_as_possible(magnetar: CommandLine, more: tuple[str, ...]) -> None:
    topic = f"fast{''.join(more)}"
    printed = magnetar("perf", "produce", topic, "-r", "0", "-m", "3000", "-o", "100", *more)
    assert "Aggregated throughput stats --- 3000 records sent" in printed
    names = [topic] if "-t" not in more else [f"{topic}-0", f"{topic}-1"]
    assert sum(magnetar.admin("topics", "stats", name)["msgInCounter"] for name in names) == 3000


def test_perf_consumes_a_number_of_messages_with_their_latencies(magnetar: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "payloads").write_bytes(b"one\ntwo\n")
    magnetar("perf", "produce", "consumed", "-r", "0", "-m", "2000", "-f", str(tmp_path / "payloads"))
    plot = tmp_path / "plot.png"
    printed = magnetar("perf", "consume", "consumed", "-sp", "Earliest", "-m", "2000", "--plot-file", str(plot))
    assert "Aggregated throughput stats --- 2000 records received" in printed
    assert re.search(r"Aggregated latency stats --- Latency: mean: [\d.]+ ms - med: ", printed)
    assert magnetar.admin("topics", "stats", "consumed")["subscriptions"]["sub"]["msgBacklog"] == 0
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_perf_consumes_for_a_time_at_a_rate_with_several_consumers(magnetar: CommandLine) -> None:
    magnetar("perf", "produce", "shared", "-r", "0", "-m", "1000")
    options = ("-st", "Shared", "-n", "2", "-ns", "2", "-sp", "Earliest", "-r", "200", "-time", "0.6")
    printed = magnetar("perf", "consume", "shared", *options)
    received = re.search(r"Aggregated throughput stats --- (\d+) records received", printed)
    assert received is not None and 0 < int(received[1]) <= 200
    assert magnetar.admin("topics", "subscriptions", "shared") == ["sub-0", "sub-1"]


def test_perf_says_which_messages_failed(magnetar: CommandLine, tmp_path: Path) -> None:
    done = magnetar.run("perf", "produce", "toobig", "-r", "0", "-m", "3", "-s", str(6 << 20), "-db")
    assert done.exit_code == 1
    assert "magnetar: MessageTooBig: " in done.stderr and "0 records sent" in done.stdout
