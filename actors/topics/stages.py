"""Which publish stages a topic has, in the order in which an entry passes them."""

from ...protocol.topics import TopicName
from ...runtime.settings.declarations import Settings
from .encryption_required import EncryptionRequired
from .publishing import PublishStage


def publish_stages(settings: Settings, name: TopicName) -> tuple[PublishStage, ...]:
    """The stages of a topic; none for a plain one. They are made anew each time that the topic is loaded."""
    stages: list[PublishStage] = []
    if settings.encryption_require_on_producer:
        stages.append(EncryptionRequired(name))
    return tuple(stages)
