"""A shared setting has the default of Pulsar 4.2.4 or BookKeeper 4.17.3, or its declaration says theirs."""

import dataclasses

import pytest

from magnetar.runtime.settings.declarations import Settings

PULSAR = {
    "authenticationEnabled": "false",
    "authenticationProviders": "",
    "authenticationRefreshCheckSeconds": "60",
    "anonymousUserRole": "",
    "superUserRoles": "",
    "proxyRoles": "",
    "authenticateOriginalAuthData": "false",
    "authorizationEnabled": "false",
    "authorizationProvider": "org.apache.pulsar.broker.authorization.PulsarAuthorizationProvider",
    "authorizationAllowWildcardsMatching": "false",
    "tokenSecretKey": "",
    "tokenPublicKey": "",
    "tokenPublicAlg": "RS256",
    "tokenAuthClaim": "sub",
    "tokenAudienceClaim": "",
    "tokenAudience": "",
    "tokenAllowedClockSkewSeconds": "0",
    "basicAuthConf": "",
    "authenticateMetricsEndpoint": "false",
    "advertisedAddress": "the host's canonical name",
    "advertisedListeners": "",
    "bindAddresses": "",
    "brokerProxyConnectTimeoutMs": "10000",
    "brokerProxyReadTimeoutMs": "75000",
    "brokerServicePortTls": "none",
    "webServicePortTls": "none",
    "tlsCertificateFilePath": "",
    "tlsKeyFilePath": "",
    "tlsTrustCertsFilePath": "",
    "tlsAllowInsecureConnection": "false",
    "tlsRequireTrustedClientCertOnConnect": "false",
    "tlsProtocols": "",
    "tlsCiphers": "",
    "tlsCertRefreshCheckDurationSec": "300",
    "loadBalancerEnabled": "true",
    "loadBalancerSheddingEnabled": "true",
    "loadBalancerReportUpdateMinIntervalMillis": "5000",
    "loadBalancerSheddingIntervalMinutes": "1",
    "loadBalancerSheddingGracePeriodMinutes": "30",
    "loadBalancerHistoryResourcePercentage": "0.9",
    "maxUnloadBundleNumPerShedding": "-1",
    "brokerDeduplicationEnabled": "false",
    "brokerDeduplicationEntriesInterval": "1000",
    "brokerDeduplicationMaxNumberOfProducers": "10000",
    "brokerDeduplicationProducerInactivityTimeoutMinutes": "360",
    "brokerDeduplicationSnapshotIntervalSeconds": "120",
    "brokerDeleteInactivePartitionedTopicMetadataEnabled": "false",
    "brokerDeleteInactiveTopicsEnabled": "true",
    "brokerDeleteInactiveTopicsFrequencySeconds": "60",
    "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": "none",
    "brokerDeleteInactiveTopicsMode": "delete_when_no_subscriptions",
    "brokerMaxConnections": "0",
    "brokerMaxConnectionsPerIp": "0",
    "maxTopicsPerNamespace": "0",
    "maxProducersPerTopic": "0",
    "maxConsumersPerTopic": "0",
    "maxSameAddressProducersPerTopic": "0",
    "maxSameAddressConsumersPerTopic": "0",
    "maxConsumersPerSubscription": "0",
    "maxSubscriptionsPerTopic": "0",
    "maxPublishRatePerTopicInMessages": "0",
    "maxPublishRatePerTopicInBytes": "0",
    "dispatchThrottlingRatePerTopicInMsg": "0",
    "dispatchThrottlingRatePerTopicInByte": "0",
    "dispatchThrottlingRatePerSubscriptionInMsg": "0",
    "dispatchThrottlingRatePerSubscriptionInByte": "0",
    "subscribeThrottlingRatePerConsumer": "0",
    "subscribeRatePeriodPerConsumerInSecond": "30",
    "forceDeleteTenantAllowed": "false",
    "subscriptionBacklogScanMaxEntries": "10000",
    "subscriptionBacklogScanMaxTimeMs": "120000",
    "dispatchThrottlingRateRelativeToPublishRate": "false",
    "forceDeleteNamespaceAllowed": "false",
    "systemTopicEnabled": "true",
    "subscriptionTypesEnabled": "Exclusive,Shared,Failover,Key_Shared",
    "subscriptionExpirationTimeMinutes": "0",
    "subscriptionExpiryCheckIntervalInMinutes": "5",
    "maxMessageSize": "5242880",
    "managedLedgerDefaultEnsembleSize": "2",
    "managedLedgerDefaultWriteQuorum": "2",
    "managedLedgerDefaultAckQuorum": "2",
    "managedLedgerMaxEntriesPerLedger": "50000",
    "managedLedgerMaxSizePerLedgerMbytes": "2048",
    "managedLedgerMinLedgerRolloverTimeMinutes": "10",
    "managedLedgerMaxLedgerRolloverTimeMinutes": "240",
    "managedLedgerCursorPositionFlushSeconds": "60",
    "managedLedgerCursorMaxEntriesPerLedger": "50000",
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
    "maxUnackedMessagesPerConsumer": "50000",
    "maxUnackedMessagesPerSubscription": "200000",
    "maxConsumerMetadataSize": "1024",
    "maxPendingPublishRequestsPerConnection": "1000",
    "pulsarChannelWriteBufferHighWaterMark": "65536",
    "dispatcherMaxReadBatchSize": "100",
    "dispatcherMaxReadSizeBytes": "5242880",
    "dispatcherMaxRoundRobinBatchSize": "20",
    "activeConsumerFailoverDelayTimeMillis": "1000",
    "subscriptionKeySharedUseConsistentHashing": "true",
    "subscriptionKeySharedConsistentHashingReplicaPoints": "100",
    "keySharedLookAheadMsgInReplayThresholdPerConsumer": "2000",
    "keySharedLookAheadMsgInReplayThresholdPerSubscription": "20000",
    "connectionLivenessCheckTimeoutMillis": "5000",
    "maxConcurrentLookupRequest": "50000",
    "maxConcurrentTopicLoadRequest": "5000",
    "topicLoadTimeoutSeconds": "60",
    "enableNonPersistentTopics": "true",
    "schemaCompatibilityStrategy": "FULL",
    "isAllowAutoUpdateSchemaEnabled": "true",
    "isSchemaValidationEnforced": "false",
    "allowAutoTopicCreation": "true",
    "allowAutoTopicCreationType": "non-partitioned",
    "defaultNumPartitions": "1",
    "allowAutoSubscriptionCreation": "true",
    "encryptionRequireOnProducer": "false",
    "topicLevelPoliciesEnabled": "true",
    "keepAliveIntervalSeconds": "30",
    "enableBrokerSideSubscriptionPatternEvaluation": "true",
    "enableBrokerTopicListWatcher": "true",
    "subscriptionPatternMaxLength": "50",
    "brokerServiceCompactionThresholdInBytes": "0",
    "brokerServiceCompactionMonitorIntervalInSeconds": "60",
    "brokerServiceCompactionPhaseOneLoopTimeInSeconds": "30",
    "topicCompactionRetainNullKey": "false",
    "defaultRetentionTimeInMinutes": "0",
    "defaultRetentionSizeInMB": "0",
    "ttlDurationDefaultInSeconds": "0",
    "messageExpiryCheckIntervalInMinutes": "5",
    "backlogQuotaCheckEnabled": "true",
    "backlogQuotaCheckIntervalInSeconds": "60",
    "backlogQuotaDefaultLimitBytes": "-1",
    "backlogQuotaDefaultLimitGB": "-1",
    "backlogQuotaDefaultLimitSecond": "-1",
    "backlogQuotaDefaultRetentionPolicy": "producer_request_hold",
    "delayedDeliveryEnabled": "true",
    "delayedDeliveryTickTimeMillis": "1000",
    "internalListenerName": "",
    "isDelayedDeliveryDeliverAtTimeStrict": "false",
    "delayedDeliveryMaxDelayInMillis": "0",
    "delayedDeliveryMinIndexCountPerBucket": "50000",
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": "5000",
}
"""From the classes ServiceConfiguration and, for what brokers forward, ProxyConfiguration."""
BOOKKEEPER = {
    "nettyMaxFrameSizeBytes": "5242880",
    "addEntryTimeoutSec": "5",
    "readEntryTimeoutSec": "5",
    "speculativeReadTimeout": "2000",
    "journalSyncData": "true",
    "logSizeLimit": "1073741824",
    "maxBatchReadSize": "5242880",
    "diskUsageWarnThreshold": "0.9",
    "diskUsageThreshold": "0.95",
    "diskCheckInterval": "10000",
    "gcWaitTime": "600000",
    "minorCompactionThreshold": "0.2",
    "majorCompactionThreshold": "0.8",
    "majorCompactionInterval": "86400",
    "compactionRateByBytes": "1000000",
    "localScrubInterval": "0",
    "auditorPeriodicCheckInterval": "604800",
    "lostBookieRecoveryDelay": "0",
    "replicationRateByBytes": "-1",
}
"""From the getters of the classes ServerConfiguration and ClientConfiguration."""
OF_THE_MACHINE = {"clusterName", "managedLedgerCacheSizeMB", "maxMessagePublishBufferSizeInMB"}
"""Pulsar computes these from the JVM's memory, or has no default."""


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


@pytest.mark.promise("18.12", "24.7", "25.8")
def test_a_default_is_the_originals_or_the_declaration_says_what_the_original_is() -> None:
    for item in dataclasses.fields(Settings):
        name, origin, original = (item.metadata[key] for key in ("name", "origin", "original"))
        if origin == "magnetar" or name in OF_THE_MACHINE:
            continue
        theirs = (PULSAR if origin == "pulsar" else BOOKKEEPER)[name]
        if original:
            assert original.partition(";")[0] == theirs, name
            assert original.partition("; ")[2], f"{name}: the declaration does not say why ours differs"
        else:
            assert _text(item.default) == theirs, name


def test_no_setting_of_ours_has_a_name_of_theirs() -> None:
    ours = {item.metadata["name"] for item in dataclasses.fields(Settings) if item.metadata["origin"] == "magnetar"}
    assert not ours & {*PULSAR, *BOOKKEEPER, *OF_THE_MACHINE}
