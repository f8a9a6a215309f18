"""The admin's paths of tenants, namespaces and their policies."""

from magnetar.protocol.pulsar_pb2 import CommandCloseProducer, CommandProducer, CommandSubscribe

from ..registry import scenario
from ..stage import Stage


@scenario()
def tenants_are_created_changed_and_deleted(stage: Stage) -> None:
    """Statuses and bodies, also of what cannot be."""
    tenant = "/admin/v2/tenants/tenant-of-parity"
    body = {"adminRoles": ["one"], "allowedClusters": ["standalone"]}
    for name in ("tenant-of-parity", "other-of-parity"):
        stage.admin("DELETE", f"/admin/v2/tenants/{name}")
    stage.http("missing", "GET", tenant)
    stage.http("change a missing one", "POST", tenant, body)
    stage.http("delete a missing one", "DELETE", tenant)
    stage.http("create", "PUT", tenant, body)
    stage.http("create again", "PUT", tenant, body)
    stage.http("get", "GET", tenant)
    stage.http("change", "POST", tenant, {**body, "adminRoles": ["two"]})
    stage.http("get then", "GET", tenant)
    stage.http(
        "clusters that do not exist", "PUT", "/admin/v2/tenants/other-of-parity", {"allowedClusters": ["none-such"]}
    )
    stage.http("no clusters", "PUT", "/admin/v2/tenants/other-of-parity", {"allowedClusters": []})
    stage.http("a name that cannot be", "PUT", "/admin/v2/tenants/no good", body)
    stage.http("a body that is no tenant", "PUT", "/admin/v2/tenants/other-of-parity", ["a"])
    stage.admin("PUT", "/admin/v2/namespaces/tenant-of-parity/n")
    stage.http("delete with a namespace", "DELETE", tenant)
    stage.admin("DELETE", "/admin/v2/namespaces/tenant-of-parity/n")
    stage.http("delete", "DELETE", tenant)
    stage.http("its namespaces then", "GET", "/admin/v2/namespaces/tenant-of-parity")


@scenario()
def namespaces_are_created_and_deleted(stage: Stage) -> None:
    """Statuses and bodies, also of what cannot be."""
    tenant = "/admin/v2/namespaces/namespaces-of-parity"
    stage.http("of a missing tenant", "GET", tenant)
    stage.http("create in a missing tenant", "PUT", tenant + "/n")
    stage.admin("PUT", "/admin/v2/tenants/namespaces-of-parity", {"allowedClusters": ["standalone"]})
    stage.http("none yet", "GET", tenant)
    stage.http("missing", "GET", tenant + "/n")
    stage.http("topics of a missing one", "GET", tenant + "/n/topics")
    stage.http("delete a missing one", "DELETE", tenant + "/n")
    stage.http("create", "PUT", tenant + "/n")
    stage.http("create again", "PUT", tenant + "/n")
    stage.http("a name that cannot be", "PUT", tenant + "/no good")
    stage.http("list", "GET", tenant)
    stage.http("its topics", "GET", tenant + "/n/topics")
    stage.admin("PUT", "/admin/v2/persistent/namespaces-of-parity/n/t")
    stage.http("its topics then", "GET", tenant + "/n/topics")
    stage.http("delete with a topic", "DELETE", tenant + "/n")
    stage.admin("DELETE", "/admin/v2/persistent/namespaces-of-parity/n/t")
    stage.http("delete", "DELETE", tenant + "/n")
    stage.http("list at the end", "GET", tenant)
    stage.admin("DELETE", "/admin/v2/tenants/namespaces-of-parity")


@scenario()
def policies_of_a_namespace_are_set_read_and_removed(stage: Stage) -> None:
    """Paths of the bounds of clients: values, none, and what cannot be."""
    for name in ("maxProducersPerTopic", "maxConsumersPerSubscription", "maxUnackedMessagesPerConsumer"):
        path = f"/admin/v2/namespaces/{{ns}}/{name}"
        stage.http(f"{name}: not set", "GET", path)
        stage.http(f"{name}: set", "POST", path, 7)
        stage.http(f"{name}: get", "GET", path)
        stage.http(f"{name}: below zero", "POST", path, -1)
        stage.http(f"{name}: a text", "POST", path, "many")
        stage.http(f"{name}: remove", "DELETE", path)
        stage.http(f"{name}: get then", "GET", path)
        stage.http(f"{name}: of a missing namespace", "POST", f"/admin/v2/namespaces/parity/none-such/{name}", 7)
    path = "/admin/v2/namespaces/{ns}/encryptionRequired"
    stage.http("encryption: not set", "GET", path)
    stage.http("encryption: set", "POST", path, True)
    stage.http("encryption: get", "GET", path)
    wanted = [".encryption_required", ".max_producers_per_topic", ".max_consumers_per_subscription"]
    stage.http("all policies", "GET", "/admin/v2/namespaces/{ns}", only=wanted)


@scenario()
def rates_of_a_namespace_and_a_topic_are_set_read_and_removed(stage: Stage) -> None:
    """Paths of publish and dispatch rates: records with some fields, values below zero, wrong ones, none."""
    topic = stage.found_topic().removeprefix("persistent://")
    for name in ("publishRate", "dispatchRate", "subscriptionDispatchRate"):
        field = "publishThrottlingRateInMsg" if name == "publishRate" else "dispatchThrottlingRateInMsg"
        for level in ("/admin/v2/namespaces/{ns}", f"/admin/v2/persistent/{topic}"):
            what = f"{name} of a {'namespace' if 'ns' in level else 'topic'}"
            path = f"{level}/{name}"
            stage.http(f"{what}: not set", "GET", path)
            stage.http(f"{what}: applied", "GET", f"{path}?applied=true")
            stage.http(f"{what}: without fields", "POST", path, {})
            stage.http(f"{what}: get its defaults", "GET", path)
            stage.http(f"{what}: set", "POST", path, {field: 20, "ratePeriodInSecond": -2})
            stage.http(f"{what}: get", "GET", path)
            stage.http(f"{what}: a text", "POST", path, {field: "many"})
            stage.http(f"{what}: a list", "POST", path, [])
            stage.http(f"{what}: remove", "DELETE", path)
            stage.http(f"{what}: get then", "GET", path)


@scenario()
def a_policy_limits_the_clients_of_a_topic(stage: Stage) -> None:
    """One producer and one consumer at most, and the errors beyond that."""
    stage.admin("POST", "/admin/v2/namespaces/{ns}/maxProducersPerTopic", 1)
    stage.admin("POST", "/admin/v2/namespaces/{ns}/maxConsumersPerTopic", 1)
    topic, peer = stage.found_topic(), stage.peer()
    stage.ask("the first producer", peer, CommandProducer(topic=topic, producer_id=1, producer_name="a"))
    stage.ask("the second producer", peer, CommandProducer(topic=topic, producer_id=2, producer_name="b"))
    consumer = {"topic": topic, "subType": CommandSubscribe.Shared}
    stage.ask("the first consumer", peer, CommandSubscribe(**consumer, consumer_id=1, subscription="s"))
    stage.ask("the second consumer", peer, CommandSubscribe(**consumer, consumer_id=2, subscription="t"))
    peer.request(CommandCloseProducer(producer_id=1))
    stage.ask("another when it has left", peer, CommandProducer(topic=topic, producer_id=3, producer_name="c"))
    stage.admin("DELETE", "/admin/v2/namespaces/{ns}/maxConsumersPerTopic")
    stage.admin("POST", "/admin/v2/namespaces/{ns}/maxConsumersPerSubscription", 1)
    stage.admin("POST", "/admin/v2/namespaces/{ns}/maxSubscriptionsPerTopic", 1)
    stage.ask("a second one of s", peer, CommandSubscribe(**consumer, consumer_id=3, subscription="s"))
    stage.ask("another subscription", peer, CommandSubscribe(**consumer, consumer_id=4, subscription="u"))
