"""Commands of `pulsar-admin` for namespaces and what holds for their topics."""

from ..registry import scenario
from ..stage import Stage


@scenario(promises=("32.1",))
def the_tool_manages_namespaces(stage: Stage) -> None:
    """A namespace is created, listed, looked at and deleted; what is missing, or in use, is refused."""
    stage.pulsar_admin("tenants create tool-spaces")
    stage.pulsar_admin("namespaces create tool-spaces/one")
    stage.pulsar_admin("namespaces create tool-spaces/one")
    stage.pulsar_admin("namespaces create tool-missing/one")
    stage.pulsar_admin("namespaces list tool-spaces")
    stage.pulsar_admin("namespaces get-clusters tool-spaces/one")
    stage.pulsar_admin("namespaces bundles tool-spaces/none")
    stage.pulsar_admin("namespaces set-clusters tool-spaces/one -c standalone")
    stage.pulsar_admin("namespaces get-clusters tool-spaces/none")
    stage.pulsar_admin("topics create persistent://tool-spaces/one/topic")
    stage.pulsar_admin("namespaces delete tool-spaces/one")
    stage.pulsar_admin("tenants delete tool-spaces")
    stage.pulsar_admin("namespaces unload tool-spaces/one")
    stage.pulsar_admin("namespaces unload tool-spaces/none")
    stage.pulsar_admin("topics delete persistent://tool-spaces/one/topic")
    stage.pulsar_admin("namespaces delete tool-spaces/one")
    stage.pulsar_admin("namespaces delete tool-spaces/one")
    stage.pulsar_admin("namespaces list tool-spaces")
    stage.pulsar_admin("tenants delete tool-spaces")


@scenario(promises=("32.1",))
def the_tool_clears_the_subscriptions_of_a_namespace(stage: Stage) -> None:
    """The backlog of all topics goes, of one subscription or of all; then the subscription itself."""
    client = stage.client()
    for name in ("one", "two"):
        client.subscribe(stage.topic(name), "s").close()
        client.subscribe(stage.topic(name), "t").close()
        producer = client.create_producer(stage.topic(name), batching_enabled=False)
        producer.send(b"0")
        producer.close()
    stage.pulsar_admin("namespaces clear-backlog {ns} -force -s s")
    stage.until(lambda: [_backlog(stage, name, "s") for name in ("one", "two")] == [0, 0])
    stage.note("the backlogs of t", [_backlog(stage, name, "t") for name in ("one", "two")])
    stage.pulsar_admin("namespaces clear-backlog {ns} -force")
    stage.until(lambda: [_backlog(stage, name, "t") for name in ("one", "two")] == [0, 0])
    stage.pulsar_admin("namespaces unsubscribe {ns} -s s")
    stage.pulsar_admin("topics subscriptions persistent://{ns}/one")
    stage.pulsar_admin("topics subscriptions persistent://{ns}/two")


@scenario(promises=("32.1",))
def the_tool_sets_policies_of_a_namespace(stage: Stage) -> None:
    """Each policy is read while it is not set, then set, read, removed and read again."""
    for name, options in {
        "retention": "-s 100M -t 2h",
        "message-ttl": "-ttl 60",
        "backlog-quota": "-l 10M -p producer_exception",
        "persistence": "-e 1 -w 1 -a 1 -r 1.5",
        "max-producers-per-topic": "-p 3",
        "max-consumers-per-topic": "-c 3",
        "max-consumers-per-subscription": "-c 3",
        "max-subscriptions-per-topic": "-m 3",
        "max-unacked-messages-per-consumer": "-c 30",
        "max-unacked-messages-per-subscription": "-c 30",
        "max-topics-per-namespace": "-t 100",
        "publish-rate": "-m 100 -b 1000",
        "dispatch-rate": "-md 100 -bd 1000",
        "subscription-dispatch-rate": "-md 100 -bd 1000",
        "delayed-delivery": "--enable --time 2s",
        "deduplication": "--enable",
        "deduplication-snapshot-interval": "-i 10",
        "compaction-threshold": "-t 100M",
        "auto-topic-creation": "-e -t partitioned -n 3",
        "auto-subscription-creation": "-e",
        "subscription-types-enabled": "-t Shared",
        "inactive-topic-policies": "-e -t 2h -m delete_when_no_subscriptions",
        "subscription-expiration-time": "-t 60",
    }.items():
        get = "backlog-quotas" if name == "backlog-quota" else name
        stage.pulsar_admin(f"namespaces get-{get} {{ns}}")
        stage.pulsar_admin(f"namespaces set-{name} {{ns}} {options}")
        stage.pulsar_admin(f"namespaces get-{get} {{ns}}")
        stage.pulsar_admin(f"namespaces remove-{name} {{ns}}")
        stage.pulsar_admin(f"namespaces get-{get} {{ns}}")


@scenario(promises=("32.1",))
def the_tool_sets_switches_of_a_namespace(stage: Stage) -> None:
    """Policies that are always set: they are switched on and off."""
    for name, on, off in (
        ("encryption-required", "--enable", "--disable"),
        ("schema-validation-enforce", "--enable", "--disable"),
        ("is-allow-auto-update-schema", "--disable", "--enable"),
        ("schema-compatibility-strategy", "-c FORWARD", "-c UNDEFINED"),
    ):
        stage.pulsar_admin(f"namespaces get-{name} {{ns}}")
        stage.pulsar_admin(f"namespaces set-{name} {{ns}} {on}")
        stage.pulsar_admin(f"namespaces get-{name} {{ns}}")
        stage.pulsar_admin(f"namespaces set-{name} {{ns}} {off}")
        stage.pulsar_admin(f"namespaces get-{name} {{ns}}")


def _backlog(stage: Stage, topic: str, subscription: str) -> int:
    return stage.stats(topic)["subscriptions"][subscription]["msgBacklog"]
