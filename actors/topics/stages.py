"""Which publish stages a topic has, in the order in which an entry passes them."""

from ...protocol.topics import TopicName
from ..policies.effective import EffectivePolicies
from .encryption_required import EncryptionRequired
from .publishing import PublishStage


def publish_stages(policies: EffectivePolicies, name: TopicName) -> tuple[PublishStage, ...]:
    """The stages of a topic; none for a plain one. They are made again when the topic is loaded, or its policies
    change: what must outlive that belongs to the topic."""
    stages: list[PublishStage] = []
    if policies.encryption_required:
        stages.append(EncryptionRequired(name))
    return tuple(stages)
