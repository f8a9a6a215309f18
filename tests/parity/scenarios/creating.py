"""Topics that nobody created: what their first client gets."""

from magnetar.protocol.pulsar_pb2 import CommandProducer, CommandSubscribe

from ..registry import NO_CREATION, scenario
from ..stage import Stage


@scenario(NO_CREATION)
def without_automatic_creation_a_missing_topic_is_an_error(stage: Stage) -> None:
    """A producer and a consumer of a topic that does not exist, by raw frames."""
    topic, peer = stage.found_topic(), stage.peer()
    stage.ask("a producer", peer, CommandProducer(topic=topic, producer_id=1))
    stage.ask("a consumer", peer, CommandSubscribe(topic=topic, subscription="s", subType=0, consumer_id=1))
    stage.admin("PUT", "/admin/v2/persistent/{ns}/topic")
    stage.http("the topic is there", "GET", "/admin/v2/persistent/{ns}")
    stage.ask("a producer again", peer, CommandProducer(topic=topic, producer_id=2, producer_name="p"))
    stage.ask("no subscription", peer, CommandSubscribe(topic=topic, subscription="s", consumer_id=2, subType=0))
