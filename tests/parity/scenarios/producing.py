"""Producers: names, sequence ids, sizes, compression, batches."""

from magnetar.protocol.pulsar_pb2 import CommandProducer

from ..registry import scenario
from ..stage import Stage


@scenario()
def a_producer_name_is_taken_while_its_producer_lives(stage: Stage) -> None:
    """A second producer of a name is refused, on each topic by itself, and taken when the first has gone."""
    client = stage.client()
    first = stage.step("the first producer", client.create_producer, stage.topic(), producer_name="chosen")
    stage.step("the second producer of that name", client.create_producer, stage.topic(), producer_name="chosen")
    stage.step("on another topic", client.create_producer, stage.topic("other"), producer_name="chosen")
    stage.step("the first one closes", first.close)
    stage.step("the name again", client.create_producer, stage.topic(), producer_name="chosen")


@scenario()
def producers_without_a_name_get_one_each(stage: Stage) -> None:
    """The broker makes up a name, with the cluster's name in front."""
    client = stage.client()
    made = [stage.step(f"producer {number}", client.create_producer, stage.topic()) for number in (1, 2)]
    stage.note("the names differ", made[0].producer_name() != made[1].producer_name())
    stage.note("they begin with the cluster", [one.producer_name().startswith("standalone-") for one in made])


@scenario()
def a_producer_id_that_is_taken_is_answered_as_its_first_time(stage: Stage) -> None:
    """The same producer id twice on one connection."""
    topic, peer = stage.found_topic(), stage.peer()
    stage.ask("the first", peer, CommandProducer(topic=topic, producer_id=1, producer_name="a"))
    stage.ask("the same id and name", peer, CommandProducer(topic=topic, producer_id=1, producer_name="a"))
    stage.ask("the same id, another name", peer, CommandProducer(topic=topic, producer_id=1, producer_name="b"))
    stage.settle("what else came", peer)
