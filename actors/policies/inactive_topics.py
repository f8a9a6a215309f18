"""The policy of when a topic that nobody uses is deleted."""

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from ...runtime.settings.declarations import Settings
from .kinds import INT_MAX, Choice, FieldRecord, Flag, WholeNumber, part

if TYPE_CHECKING:
    from .kinds import Kind


class InactiveTopicDeleteMode(enum.Enum):
    """What keeps a topic, beside producers: every subscription, or one that has a backlog."""

    NO_SUBSCRIPTIONS = "delete_when_no_subscriptions"
    SUBSCRIPTIONS_CAUGHT_UP = "delete_when_subscriptions_caught_up"


@dataclass(frozen=True, slots=True)
class InactiveTopicPolicies(FieldRecord):
    """Whether a topic is deleted, and after how many seconds without use. As in Pulsar, none is without a mode."""

    mode: InactiveTopicDeleteMode | None = part(
        "inactiveTopicDeleteMode",
        cast("Kind[InactiveTopicDeleteMode | None]", Choice(InactiveTopicDeleteMode)),
        None,
    )
    inactive_s: int = part("maxInactiveDurationSeconds", WholeNumber(-INT_MAX - 1), 0)
    delete: bool = part("deleteWhileInactive", Flag(), False)


def default_inactive_topics(settings: Settings) -> InactiveTopicPolicies:
    """What the settings say."""
    return InactiveTopicPolicies(
        InactiveTopicDeleteMode(settings.inactive_topics_delete_mode),
        settings.inactive_topics_max_s or round(settings.inactive_topics_check_interval_s),
        settings.inactive_topics_deletion_enabled,
    )
