"""All features of topics, in the order in which they are asked and in which entries pass their stages.

A publish rate stands last: what another stage refuses does not count.
"""

from ..compaction.topic_compaction import TopicCompaction
from ..deduplication.topic_deduplication import Deduplication
from ..delays.delivery_delays import DeliveryDelays
from ..same_address.address_limits import SameAddressLimits
from ..topics.feature import FeatureKinds
from ..topics.stages import EncryptionDemand, LargestMessage, PublishRates

FEATURES: FeatureKinds = (
    EncryptionDemand,
    DeliveryDelays,
    LargestMessage,
    TopicCompaction,
    Deduplication,
    SameAddressLimits,
    PublishRates,
)
