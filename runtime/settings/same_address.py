"""Bounds on the clients of a topic that come from one IP address."""

from dataclasses import dataclass

from .text import setting


@dataclass(frozen=True)
class SameAddressSettings:
    """What exists when a bound is lowered stays."""

    producers_max_of_same_address: int = setting(
        "maxSameAddressProducersPerTopic",
        0,
        "Producers of a topic or partition from one IP address; 0 = no bound.",
        within=(0, 1 << 31),
    )
    consumers_max_of_same_address: int = setting(
        "maxSameAddressConsumersPerTopic",
        0,
        "Consumers of a topic or partition from one IP address, those of all its subscriptions together; 0 = no bound.",
        within=(0, 1 << 31),
    )
