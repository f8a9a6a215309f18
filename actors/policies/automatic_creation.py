"""The policies of what clients create by using it: topics and subscriptions."""

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from ...runtime.settings.declarations import Settings
from .kinds import INT_MAX, FieldRecord, Flag, Text, WholeNumber, part

if TYPE_CHECKING:
    from .kinds import Kind

PARTITIONS_MAX = 10_000
"""Partitions that a topic may have."""


class TopicType(enum.Enum):
    """What kind of topic is created."""

    PLAIN = "non-partitioned"
    PARTITIONED = "partitioned"


@dataclass(frozen=True, slots=True)
class AutoTopicCreation(FieldRecord):
    """Whether a missing topic is created when a client first uses it, and of which kind."""

    allow: bool = part("allowAutoTopicCreation", Flag(), False)
    type_name: str | None = part("topicType", cast("Kind[str | None]", Text()), None)
    partition_count: int | None = part(
        "defaultNumPartitions", cast("Kind[int | None]", WholeNumber(-INT_MAX - 1)), None
    )

    def fault(self) -> str:
        return self._fault() if self.allow else ""

    def _fault(self) -> str:
        if self.type_name not in [one.value for one in TopicType]:
            given = "missing" if self.type_name is None else repr(self.type_name[:100])
            return f"topicType is {given}: it must be partitioned or non-partitioned"
        count = self.partition_count
        if self.type_name == TopicType.PLAIN.value:
            return "a non-partitioned topic has no defaultNumPartitions: leave it out" if count is not None else ""
        if count is None or not 1 <= count <= PARTITIONS_MAX:
            given = "missing" if count is None else count
            return f"defaultNumPartitions is {given}: a partitioned topic has 1 to {PARTITIONS_MAX} partitions"
        return ""

    @property
    def partitions(self) -> int:
        """How many partitions a new topic gets, 0 for a plain one."""
        return self.partition_count or 1 if self.type_name == TopicType.PARTITIONED.value else 0


@dataclass(frozen=True, slots=True)
class AutoSubscriptionCreation(FieldRecord):
    """Whether a missing subscription is created when a consumer first uses it."""

    allow: bool = part("allowAutoSubscriptionCreation", Flag(), False)


def default_topic_creation(settings: Settings) -> AutoTopicCreation:
    """What the settings say."""
    type_name = settings.allow_auto_topic_creation_type
    partitioned = type_name == TopicType.PARTITIONED.value
    count = settings.default_num_partitions if partitioned else None
    return AutoTopicCreation(settings.allow_auto_topic_creation, type_name, count)


def default_subscription_creation(settings: Settings) -> AutoSubscriptionCreation:
    """What the settings say."""
    return AutoSubscriptionCreation(settings.allow_auto_subscription_creation)
