"""Features of Pulsar that Magnetar has not, and the names in `broker.conf` that belong to them."""

import re

FEATURES = {
    "tiered storage": r"offload|tieredStorage|s3Managed|gcsManaged|fileSystem(Profile|URI)",
    "WebSocket proxy": r"webSocket",
    "functions": r"functions?Worker|functionsEnabled",
    "transactions": r"transaction|^numIOThreads.*Txn",
    "authentication and authorization": r"authenti|authoriz|superUser|proxyRoles|brokerClient(?!.*tls)|sasl|kinit|jaas|"
    r"anonymousUser|^token(?!s)",
    "TLS": r"tls|ssl|certificate|keyStore|trustStore",
    "ZooKeeper": r"zookeeper|^zk|zkSession|metadataStore|configurationStore",
    "geo-replication": r"replicat(or|edSubscription)|replicationConnections|replicationProducer|replicationMetrics|"
    r"replicationPolicyCheck|replicationTls|enableReplicat",
    "resource groups": r"resourceGroup|resourceUsageTransport",
    "protocol handlers and plug-ins": r"protocolHandler|messagingProtocols|additionalServlet|interceptor|entryFilter|"
    r"PluginClass|FactoryClassName",
}
"""Names that several patterns fit belong to the first."""


def absent_feature(name: str) -> str | None:
    """The feature that is missing, and to which a setting of this name belongs in Pulsar."""
    return next((feature for feature, names in FEATURES.items() if re.search(names, name, re.IGNORECASE)), None)
