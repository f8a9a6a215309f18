"""`magnetar admin` against a cluster: each noun's commands do what they say."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.servers.command_line import CommandLine, command_line


@pytest.fixture(scope="module")
def magnetar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    with command_line(tmp_path_factory.mktemp("data")) as found:
        yield found


@pytest.mark.promise("25.7")
def test_tenants_and_namespaces_live_and_die(magnetar: CommandLine) -> None:
    magnetar.admin("tenants", "create", "acme", "-r", "ann,bob")
    assert magnetar.admin("tenants", "get", "acme")["adminRoles"] == ["ann", "bob"]
    magnetar.admin("tenants", "update", "acme", "-r", "ann")
    magnetar.admin("namespaces", "create", "acme/one")
    assert magnetar.admin("namespaces", "list", "acme") == ["acme/one"]
    magnetar.admin("topics", "create", "acme/one/t")
    assert magnetar.admin("namespaces", "topics", "acme/one") == ["persistent://acme/one/t"]
    assert magnetar.admin("topics", "list", "acme/one", "--include-system-topic") == ["persistent://acme/one/t"]
    assert magnetar.fails("admin", "namespaces", "delete", "acme/one").endswith("Conflict)")
    magnetar.admin("topics", "delete", "acme/one/t")
    magnetar.admin("namespaces", "delete", "acme/one")
    magnetar.admin("tenants", "delete", "acme")
    assert magnetar("admin", "tenants", "list").split() == ["public"]
    assert magnetar.fails("admin", "tenants", "get", "acme").endswith("(404 Not Found)")


def test_partitioned_topics_are_created_grown_looked_up_and_deleted(magnetar: CommandLine) -> None:
    magnetar.admin("topics", "create-partitioned-topic", "-p", "2", "parts")
    magnetar.admin("topics", "update-partitioned-topic", "-p", "3", "parts")
    assert magnetar.admin("topics", "get-partitioned-topic-metadata", "parts") == {"partitions": 3, "deleted": False}
    assert magnetar.admin("topics", "list-partitioned-topics", "public/default") == [
        "persistent://public/default/parts"
    ]
    found = magnetar.admin("topics", "partitioned-lookup", "parts")
    assert list(found) == [f"parts-partition-{index}" for index in range(3)]
    assert set(found.values()) == {magnetar.cluster.service_url}
    stats = magnetar.admin("topics", "partitioned-stats", "parts", "--per-partition")
    assert stats["metadata"] == {"partitions": 3, "deleted": False}
    assert "parts-partition-2" in magnetar("admin", "topics", "list", "public/default")
    assert "a topic" not in magnetar("admin", "topics", "partitioned-terminate", "parts")
    magnetar.admin("topics", "delete-partitioned-topic", "parts", "-f")
    assert "parts" not in magnetar("admin", "topics", "list", "public/default")


@pytest.mark.parametrize("name", ["a b", "a+b", "100%", "a%2Fb", "{x}", "ü?#&"])
def test_odd_names_reach_the_broker_as_they_are(magnetar: CommandLine, name: str) -> None:
    magnetar.admin("topics", "create", name)
    assert f"persistent://public/default/{name}" in magnetar.admin("topics", "list", "public/default")
    magnetar.admin("subscriptions", "create", name, "-s", f"{name}/")
    assert magnetar.admin("subscriptions", "list", name) == [f"{name}/"]
    magnetar.admin("topics", "skip", "-n", "1", "-s", f"{name}/", name)
    magnetar.admin("namespaces", "unsubscribe", "public/default", "-s", f"{name}/", "--yes")
    assert magnetar.admin("subscriptions", "list", name) == []
    magnetar.admin("namespaces", "set-property", "public/default", "-k", f"{name}/", "-v", name)
    assert magnetar("admin", "namespaces", "get-property", "public/default", "-k", f"{name}/").strip() == name
    magnetar.admin("namespaces", "clear-properties", "public/default")
    magnetar.admin("topics", "delete", name)
    assert magnetar.admin("topics", "list", "public/default") == []


def test_what_holds_something_is_deleted_with_yes_only_where_nobody_can_answer(magnetar: CommandLine) -> None:
    magnetar.admin("subscriptions", "create", "held", "-s", "s")
    magnetar.admin("subscriptions", "create", "held", "-s", "t")
    magnetar("produce", "held", "-m", "a,b,c", "-db")
    lost = "takes away what is there (subscriptions: 2, entries of backlog: 6, stored bytes: "
    said = magnetar.fails("admin", "topics", "delete", "held")
    assert lost in said and said.endswith("pass --yes to do it without a question")
    said = magnetar.fails("admin", "subscriptions", "delete", "held", "-s", "s")
    assert "subscriptions delete takes away what is there (entries of backlog: 3): pass --yes" in said
    assert magnetar.admin("subscriptions", "list", "held") == ["s", "t"]
    gone = magnetar.admin("topics", "unsubscribe", "held", "-s", "s", "--yes")
    assert gone == {"deleted": "s of persistent://public/default/held", "entries of backlog": 3}
    gone = magnetar.admin("topics", "delete", "held", "--force")
    stored = gone.pop("stored bytes")
    assert stored > 0
    assert gone == {"deleted": "persistent://public/default/held", "subscriptions": 1, "entries of backlog": 3}
    assert magnetar.fails("admin", "topics", "delete", "held").endswith("(404 Not Found)")

    magnetar.admin("topics", "create-partitioned-topic", "-p", "2", "held")
    magnetar.admin("subscriptions", "create", "held", "-s", "s")
    assert "(subscriptions: 1)" in magnetar.fails("admin", "topics", "delete-partitioned-topic", "held")
    assert "(backlogs of topics: 2)" in magnetar.fails("admin", "namespaces", "clear-backlog", "public/default")
    gone = magnetar.admin("namespaces", "clear-backlog", "public/default", "--force")
    assert gone == {"cleared": "public/default", "backlogs of topics": 2}
    assert "deleted" in magnetar("admin", "topics", "delete-partitioned-topic", "held", "-y")
    assert magnetar.admin("topics", "list", "public/default") == []


@pytest.mark.parametrize(("answer", "left"), [("n", ["s"]), ("y", None)])
def test_in_a_terminal_a_deletion_asks(magnetar: CommandLine, answer: str, left: list[str] | None) -> None:
    magnetar.admin("subscriptions", "create", f"asked-{answer}", "-s", "s")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-P", "-m", "magnetar.cluster.command_line", "admin", "topics", "delete"]
    with subprocess.Popen(
        [*command, f"asked-{answer}"],
        env={**os.environ, **magnetar.environment},
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        said = b""
        while b"Go on?" not in said:
            said += os.read(ours, 1000)
        os.write(ours, f"{answer}\n".encode())
        printed = process.communicate(timeout=60)[0].decode()
    os.close(ours)
    assert b"topics delete takes away what is there (subscriptions: 1)" in said
    assert (process.returncode == 0, "deleted" in printed) == (left is None, left is None)
    if left is not None:
        assert magnetar.admin("subscriptions", "list", f"asked-{answer}") == left
        magnetar.admin("topics", "delete", f"asked-{answer}", "--yes")


def test_messages_of_a_topic_are_looked_at_and_its_subscriptions_moved(magnetar: CommandLine) -> None:
    magnetar.admin("subscriptions", "create", "read", "-s", "s")
    magnetar("produce", "read", "-m", "a,b,c", "-db", "-k", "k")
    last = magnetar.admin("topics", "last-message-id", "read")
    peeked = magnetar.admin("topics", "peek-messages", "-s", "s", "-n", "9", "read")
    assert [one["content"] for one in peeked] == ["a", "b", "c"], "as many as there are"
    assert peeked[0]["partition-key"] == "k"
    by_id = ("-l", str(last["ledgerId"]), "-e", str(last["entryId"]))
    assert magnetar.admin("topics", "get-message-by-id", "read", *by_id)[0]["content"] == "c"
    assert magnetar.admin("topics", "examine-messages", "read", "-i", "earliest", "-m", "2")[0]["content"] == "b"
    assert magnetar.admin("topics", "get-message-id", "read", "-d", "2020-01-01T00:00:00Z")["entryId"] == 0

    def backlog() -> int:
        return magnetar.admin("topics", "stats", "read")["subscriptions"]["s"]["msgBacklog"]

    magnetar.admin("topics", "skip", "-n", "1", "-s", "s", "read")
    assert backlog() == 2
    magnetar.admin("topics", "reset-cursor", "-s", "s", "-t", "1h", "read")
    assert backlog() == 3
    magnetar.admin("subscriptions", "clear-backlog", "-s", "s", "read")
    assert backlog() == 0
    assert magnetar.fails("admin", "topics", "peek-messages", "-s", "s", "read").endswith("(404 Not Found)")
    assert magnetar.fails("admin", "topics", "expire-messages", "-s", "s", "-t", "1h", "read").endswith("Conflict)")
    magnetar.admin("topics", "update-subscription-properties", "-s", "s", "-p", "a=1,b=x=y", "read")
    assert magnetar.admin("topics", "get-subscription-properties", "-s", "s", "read") == {"a": "1", "b": "x=y"}
    magnetar.admin("topics", "update-subscription-properties", "-s", "s", "-c", "read")
    assert magnetar.admin("topics", "get-subscription-properties", "-s", "s", "read") == {}
    magnetar.admin("topics", "unsubscribe", "-s", "s", "read")
    assert magnetar.admin("subscriptions", "list", "read") == []


def test_a_topic_is_compacted_truncated_unloaded_and_terminated(magnetar: CommandLine) -> None:
    magnetar("produce", "cared", "-m", "a,b", "-k", "k")
    magnetar.admin("topics", "compact", "cared")
    assert magnetar.admin("topics", "compaction-status", "cared")["status"] in ("RUNNING", "SUCCESS")
    magnetar.admin("topics", "truncate", "cared")
    assert magnetar.admin("topics", "stats-internal", "cared")["state"] == "LedgerOpened"
    assert magnetar.admin("topics", "terminate", "cared")["ledgerId"] >= 0
    assert magnetar.admin("topics", "lookup", "cared")["brokerUrl"] == magnetar.cluster.service_url


@pytest.mark.parametrize(
    ("verb", "options", "value"),
    [
        ("retention", ("-t", "2d", "-s", "5G"), {"retentionTimeInMinutes": 2880, "retentionSizeInMB": 5120}),
        ("message-ttl", ("-t", "1h"), 3600),
        ("max-producers", ("-p", "3"), 3),
        ("max-unacked-messages-per-consumer", ("-m", "7"), 7),
        ("deduplication", ("--enable",), True),
        ("compaction-threshold", ("-t", "10M"), 10 << 20),
        ("publish-rate", ("-m", "5"), {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": -1}),
        (
            "persistence",
            ("-e", "2", "-w", "2", "-a", "2", "-r", "1.5"),
            {
                "bookkeeperEnsemble": 2,
                "bookkeeperWriteQuorum": 2,
                "bookkeeperAckQuorum": 2,
                "managedLedgerMaxMarkDeleteRate": 1.5,
            },
        ),
    ],
)
def test_a_policy_of_a_topic_is_set_shown_and_removed(
    magnetar: CommandLine, verb: str, options: tuple[str, ...], value: object
) -> None:
    if "ruled" not in magnetar("admin", "topics", "list", "public/default"):
        magnetar.admin("topics", "create", "ruled")
    magnetar.admin("topicPolicies", f"set-{verb}", "ruled", *options)
    assert magnetar.admin("topicPolicies", f"get-{verb}", "ruled") == value
    magnetar.admin("topicPolicies", f"remove-{verb}", "ruled")
    assert magnetar.admin("topicPolicies", f"get-{verb}", "ruled") is None


def test_policies_of_a_namespace_hold_for_its_topics(magnetar: CommandLine) -> None:
    magnetar.admin("namespaces", "create", "public/ruled")
    magnetar.admin("topics", "create", "public/ruled/t")
    magnetar.admin("namespaces", "set-max-consumers-per-topic", "public/ruled", "-c", "3")
    magnetar.admin("namespaces", "set-backlog-quota", "public/ruled", "-l", "5M", "-p", "consumer_backlog_eviction")
    assert magnetar.admin("topicPolicies", "get-max-consumers", "public/ruled/t", "-ap") == 3
    quotas = magnetar.admin("namespaces", "get-backlog-quotas", "public/ruled")
    assert quotas["destination_storage"]["limitSize"] == 5 << 20
    assert "consumer_backlog_eviction" in magnetar("admin", "namespaces", "get-backlog-quotas", "public/ruled")
    assert magnetar.admin("namespaces", "policies", "public/ruled")["max_consumers_per_topic"] == 3
    magnetar.admin("namespaces", "remove-backlog-quota", "public/ruled")
    assert magnetar.admin("namespaces", "get-backlog-quotas", "public/ruled") == {}
    assert magnetar.fails("admin", "namespaces", "set-persistence", "public/ruled", "-e", "1", "-w", "2").endswith(")")


def test_schemas_are_uploaded_shown_checked_and_deleted(magnetar: CommandLine, tmp_path: Path) -> None:
    record = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    file = tmp_path / "schema.json"
    file.write_text(json.dumps({"type": "AVRO", "schema": json.dumps(record), "properties": {}}))
    magnetar.admin("topics", "create", "shaped")
    magnetar.admin("schemas", "upload", "shaped", "-f", str(file))
    assert magnetar.admin("schemas", "get", "shaped")["version"] == 0
    assert json.loads(magnetar.admin("schemas", "get", "shaped", "-v", "0")["data"]) == record
    assert magnetar.admin("schemas", "version", "shaped", "-f", str(file)) == {"version": 0}
    assert magnetar.admin("schemas", "compatibility", "shaped", "-f", str(file))["compatibility"] is True
    assert "AVRO" in magnetar("admin", "schemas", "get", "shaped", "-a")
    assert magnetar.admin("schemas", "metadata", "shaped")["info"]["version"] == 0
    magnetar.admin("schemas", "delete", "shaped", "-f")
    assert magnetar.fails("admin", "schemas", "get", "shaped").endswith("Schema not found (404 Not Found)")
    assert "no JSON" in magnetar.fails("admin", "schemas", "upload", "shaped", "-f", __file__)


def test_the_cluster_shows_itself(magnetar: CommandLine) -> None:
    address = magnetar.cluster.service_url.removeprefix("pulsar://")
    assert magnetar("admin", "brokers", "healthcheck") == "ok\n"
    assert magnetar.admin("brokers", "list") == [address]
    (name,) = magnetar.admin("clusters", "list")
    shown = magnetar.admin("clusters", "get", name)
    assert (shown["brokerServiceUrl"], shown["serviceUrl"]) == (f"pulsar://{address}", magnetar.cluster.admin_url)
    assert magnetar.admin("brokers", "list", name) == [address]
    assert "bookie-1" in magnetar("admin", "bookies", "list-bookies")


def test_the_whole_of_a_namespace_is_cleared_and_the_cluster_described(magnetar: CommandLine) -> None:
    magnetar.admin("namespaces", "create", "public/whole")
    for name in ("public/whole/a", "public/whole/b"):
        magnetar.admin("subscriptions", "create", name, "-s", "s")
        magnetar("produce", name, "-m", "x,y", "-db")
    last = magnetar.admin("topics", "last-message-id", "public/whole/a")
    assert magnetar.admin("topics", "get-backlog-size", "public/whole/a", "-m", f"{last['ledgerId']}:0") > 0
    magnetar.admin("namespaces", "clear-backlog", "public/whole", "-s", "s", "-f")
    assert magnetar.admin("topics", "stats", "public/whole/b")["subscriptions"]["s"]["msgBacklog"] == 0
    magnetar.admin("namespaces", "clear-backlog", "public/whole", "--yes")
    magnetar.admin("namespaces", "unsubscribe", "public/whole", "-s", "s", "--yes")
    assert magnetar.admin("subscriptions", "list", "public/whole/a") == []
    (cluster,) = magnetar.admin("clusters", "list")
    assert magnetar.admin("namespaces", "get-clusters", "public/whole") == [cluster]
    magnetar.admin("namespaces", "set-clusters", "public/whole", "-c", cluster)
    assert magnetar("admin", "brokers", "version").strip()
    assert "maxMessageSize" in magnetar("admin", "brokers", "get-runtime-config")
    assert "(412 " in magnetar.fails("admin", "brokers", "update-dynamic-config", "-c", "maxMessageSize", "-v", "1")


@pytest.mark.promise("24.8")
def test_topics_in_memory_are_managed_with_the_same_commands(magnetar: CommandLine) -> None:
    name = "non-persistent://public/default/light"
    magnetar.admin("topics", "create-partitioned-topic", name, "-p", "2")
    assert magnetar.admin("topics", "get-partitioned-topic-metadata", name) == {"partitions": 2, "deleted": False}
    parts = [f"{name}-partition-{index}" for index in range(2)]
    assert magnetar.admin("topics", "list", "public/default", "-td", "non-persistent") == parts
    assert magnetar.admin("topics", "stats", parts[0])["msgInCounter"] == 0
    magnetar.admin("topics", "unload", parts[0])
    magnetar.admin("topics", "delete-partitioned-topic", name)
    assert magnetar.admin("topics", "list", "public/default", "-td", "non-persistent") == []


def test_statistics_are_a_table_of_what_matters(magnetar: CommandLine) -> None:
    magnetar.admin("subscriptions", "create", "counted", "-s", "readers")
    magnetar("produce", "counted", "-m", "a,b,c", "-db")
    rows = [line.split() for line in magnetar("admin", "topics", "stats", "counted").splitlines()]
    assert ["msgInCounter", "3"] in rows
    (row,) = [row for row in rows if row[:1] == ["readers"]]
    (head,) = [row for row in rows if row[:1] == ["name"]]
    assert row[head.index("msgBacklog") - len(head)] == "3"


def test_an_admin_url_before_the_noun_counts(magnetar: CommandLine) -> None:
    done = magnetar.run("admin", "--admin-url", "http://127.0.0.1:1", "tenants", "list")
    assert (done.exit_code, "http://127.0.0.1:1" in done.stderr) == (1, True)
