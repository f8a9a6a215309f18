"""The admin's paths of tenants, namespaces and their policies."""

from ..registry import scenario
from ..stage import Stage


@scenario()
def tenants_are_created_changed_and_deleted(stage: Stage) -> None:
    """Statuses and bodies, also of what cannot be."""
    tenant = "/admin/v2/tenants/tenant-of-parity"
    body = {"adminRoles": ["one"], "allowedClusters": ["standalone"]}
    stage.admin("DELETE", tenant)
    stage.http("missing", "GET", tenant)
    stage.http("change a missing one", "POST", tenant, body)
    stage.http("delete a missing one", "DELETE", tenant)
    stage.http("create", "PUT", tenant, body)
    stage.http("create again", "PUT", tenant, body)
    stage.http("get", "GET", tenant)
    stage.http("change", "POST", tenant, {**body, "adminRoles": ["two"]})
    stage.http("get then", "GET", tenant)
    stage.http("clusters that do not exist", "PUT", "/admin/v2/tenants/other", {"allowedClusters": ["none-such"]})
    stage.http("no clusters", "PUT", "/admin/v2/tenants/other", {"allowedClusters": []})
    stage.http("a name that cannot be", "PUT", "/admin/v2/tenants/no good", body)
    stage.http("a body that is no tenant", "PUT", "/admin/v2/tenants/other", ["a"])
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
def a_policy_limits_the_clients_of_a_topic(stage: Stage) -> None:
    """One producer and one consumer at most, and the errors beyond that."""
    stage.admin("POST", "/admin/v2/namespaces/{ns}/maxProducersPerTopic", 1)
    stage.admin("POST", "/admin/v2/namespaces/{ns}/maxConsumersPerTopic", 1)
    client = stage.client(operation_timeout_seconds=3)
    first = stage.step("the first producer", client.create_producer, stage.topic(), producer_name="a")
    stage.step("the second producer", client.create_producer, stage.topic(), producer_name="b")
    stage.step("the first consumer", client.subscribe, stage.topic(), "s")
    stage.step("the second consumer", client.subscribe, stage.topic(), "t")
    first.close()
    stage.step("a producer when the first has left", client.create_producer, stage.topic(), producer_name="c")
