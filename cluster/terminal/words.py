"""Pulsar's words for what commands that consume can be asked for."""

from enum import StrEnum


class SubscriptionTypeName(StrEnum):
    """Pulsar's words for the types of subscriptions."""

    EXCLUSIVE = "Exclusive"
    SHARED = "Shared"
    FAILOVER = "Failover"
    KEY_SHARED = "Key_Shared"

    @property
    def client_name(self) -> str:
        """The name of our client's type."""
        return self.value.replace("_", "")


class SubscriptionModeName(StrEnum):
    """Whether the subscription outlives the command."""

    DURABLE = "Durable"
    NON_DURABLE = "NonDurable"


class StartPosition(StrEnum):
    """Where a new subscription begins."""

    LATEST = "Latest"
    EARLIEST = "Earliest"


class SchemaUse(StrEnum):
    """Whether values are decoded."""

    BYTES = "bytes"
    AUTO_CONSUME = "auto_consume"
