"""Permissions, the cluster's own record, and other clusters, with authorization off."""

from ..registry import scenario
from ..stage import Stage


@scenario(promises=("32.6",))
def permissions_are_stored(stage: Stage) -> None:
    """Of a namespace, its topics and subscriptions; given with a new namespace, added and taken away."""
    grants = {
        "namespace_auth": {"ann": ["produce"]},
        "destination_auth": {"persistent://{ns}-new/t": {"bob": ["consume"]}},
        "subscription_auth_roles": {"s": ["ann"]},
    }
    path = "/admin/v2/namespaces/{ns}-new"
    stage.http("a new namespace", "PUT", path, {"auth_policies": grants})
    stage.http("its permissions", "GET", f"{path}/permissions")
    stage.http("those of subscriptions", "GET", f"{path}/permissions/subscription")
    stage.http(
        "its policies", "GET", path, only=[".auth_policies.namespace_auth.", ".auth_policies.subscription_auth_roles."]
    )
    stage.http("not an object", "PUT", "/admin/v2/namespaces/{ns}-other", {"auth_policies": []})
    nothing = {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}}
    stage.http("none", "PUT", "/admin/v2/namespaces/{ns}-none", {"auth_policies": nothing})
    stage.http("and none it has", "GET", "/admin/v2/namespaces/{ns}-none", only=[".auth_policies."])
    one = "/admin/v2/namespaces/{ns}/permissions"
    stage.http("nothing yet", "GET", one)
    stage.http("grant", "POST", f"{one}/bob", ["produce"])
    stage.http("again", "POST", f"{one}/bob", ["consume"])
    stage.http("nothing granted", "POST", f"{one}/eve", [])
    stage.http("no list", "POST", f"{one}/bob", "produce")
    stage.http("no body", "POST", f"{one}/bob")
    stage.http("a missing namespace", "POST", "/admin/v2/namespaces/parity/none-such/permissions/bob", ["produce"])
    stage.http("permissions of a missing one", "GET", "/admin/v2/namespaces/parity/none-such/permissions")
    stage.http("granted", "GET", one)
    stage.http("revoke", "DELETE", f"{one}/bob")
    stage.http("revoke again", "DELETE", f"{one}/bob")
    stage.http("left", "GET", one)
    stage.http("grant a subscription", "POST", f"{one}/subscription/s", ["ann"])
    stage.http("no list of roles", "POST", f"{one}/subscription/s", "ann")
    stage.http("revoke it of another", "DELETE", f"{one}/s/bob")
    stage.http("subscriptions", "GET", f"{one}/subscription")
    topic = "/admin/v2/persistent/{ns}/topic"
    stage.http("a missing topic", "POST", f"{topic}/permissions/cid", ["produce"])
    stage.http("permissions of a missing topic", "GET", f"{topic}/permissions")
    stage.http("create", "PUT", topic)
    stage.http("grant a topic", "POST", f"{topic}/permissions/cid", ["produce"])
    stage.http("permissions of the topic", "GET", f"{topic}/permissions")
    stage.http("of the namespace", "GET", one)
    stage.http("revoke of the topic", "DELETE", f"{topic}/permissions/cid")
    stage.http("revoke again of the topic", "DELETE", f"{topic}/permissions/cid")
    stage.http("permissions left", "GET", f"{topic}/permissions")


@scenario(promises=("32.1", "32.6"))
def the_tool_grants_permissions(stage: Stage) -> None:
    """As start scripts do."""
    topic = "persistent://{ns}/topic"
    stage.pulsar_admin("namespaces grant-permission {ns} --role ann --actions produce")
    stage.pulsar_admin("namespaces permissions {ns}")
    stage.pulsar_admin("namespaces grant-subscription-permission {ns} --subscription s --roles ann")
    stage.pulsar_admin("namespaces subscription-permission {ns}")
    stage.pulsar_admin("namespaces revoke-subscription-permission {ns} --subscription s --role bob")
    stage.pulsar_admin("namespaces revoke-permission {ns} --role ann")
    stage.pulsar_admin("namespaces permissions {ns}")
    stage.pulsar_admin(f"topics create {topic}")
    stage.pulsar_admin(f"topics grant-permission {topic} --role bob --actions consume")
    stage.pulsar_admin(f"topics permissions {topic}")
    stage.pulsar_admin(f"topics revoke-permission {topic} --role bob")
    stage.pulsar_admin(f"topics permissions {topic}")


@scenario(promises=("31.21",))
def there_is_one_cluster(stage: Stage) -> None:
    """It cannot be created again. A message for other clusters is stored."""
    stage.http("create it again", "PUT", "/admin/v2/clusters/standalone", {"serviceUrl": "http://127.0.0.1:1"})
    stage.http("change it to nothing else", "POST", "/admin/v2/clusters/standalone", {})
    stage.http("change a missing one", "POST", "/admin/v2/clusters/missing", {"serviceUrl": "http://127.0.0.1:1"})
    stage.http("a configuration inside", "GET", "/admin/v2/brokers/internal-configuration", only=[".none"])
    stage.http("a check of quotas", "GET", "/admin/v2/brokers/backlog-quota-check")
    producer = stage.client().create_producer(stage.topic(), producer_name="p", batching_enabled=False)
    stage.step("to another cluster", producer.send, b"0", replication_clusters=["other"])
    stage.step("to none", producer.send, b"1", disable_replication=True)
