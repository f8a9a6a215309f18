"""Commands of `pulsar-admin` for clusters, brokers, bookies and tenants."""

from ..registry import scenario
from ..stage import Stage


@scenario(promises=("32.1", "32.4"))
def the_tool_looks_at_the_cluster(stage: Stage) -> None:
    """Names of the cluster, its brokers and bookies, and their health."""
    stage.pulsar_admin("clusters list", only=["", ".clusterName"])
    stage.pulsar_admin("clusters get standalone")
    stage.pulsar_admin("clusters get nowhere")
    stage.pulsar_admin("clusters get-peer-clusters standalone")
    stage.pulsar_admin("clusters list-failure-domains standalone")
    stage.pulsar_admin("brokers list standalone")
    stage.pulsar_admin("brokers leader-broker")
    stage.pulsar_admin("brokers healthcheck")
    stage.pulsar_admin("brokers version")
    stage.pulsar_admin("bookies list-bookies")
    stage.pulsar_admin("bookies racks-placement")


@scenario(promises=("32.1", "32.3"))
def the_tool_asks_for_settings_of_brokers(stage: Stage) -> None:
    """Settings are read; one that is not dynamic is not changed."""
    stage.pulsar_admin("brokers get-runtime-config", only=[".clusterName", ".maxMessageSize", ".defaultNumPartitions"])
    stage.pulsar_admin("brokers get-all-dynamic-config")
    stage.pulsar_admin("brokers update-dynamic-config --config clusterName --value other")
    stage.pulsar_admin("brokers delete-dynamic-config --config clusterName")
    stage.pulsar_admin("bookies get-bookie-rack -b missing")


@scenario(promises=("32.1",))
def the_tool_manages_tenants(stage: Stage) -> None:
    """A tenant is created, changed and deleted; a second creation and what is missing are refused."""
    stage.pulsar_admin("tenants create tool-tenant --admin-roles one,two --allowed-clusters standalone")
    stage.pulsar_admin("tenants create tool-tenant")
    stage.pulsar_admin("tenants get tool-tenant")
    stage.pulsar_admin("tenants update tool-tenant --admin-roles three")
    stage.pulsar_admin("tenants get tool-tenant")
    stage.pulsar_admin("tenants create tool-plain")
    stage.pulsar_admin("tenants get tool-plain")
    stage.pulsar_admin("tenants delete tool-plain")
    stage.pulsar_admin("tenants delete tool-tenant")
    stage.pulsar_admin("tenants delete tool-tenant")
    stage.pulsar_admin("tenants get tool-tenant")
