"""Producer access modes: who may publish, who waits, who is fenced, and with which topic epoch."""

from magnetar.protocol.pulsar_pb2 import (
    BaseCommand,
    CommandCloseProducer,
    CommandProducer,
    Exclusive,
    ExclusiveWithFencing,
    ProducerAccessMode,
    Shared,
    WaitForExclusive,
)

from ..peer import Peer
from ..registry import scenario
from ..stage import Stage

STATISTICS = ("publishers.accessMode", "publishers.producerName", "waitingPublishers", "topicEpoch")


def producer(
    topic: str, number: int, mode: ProducerAccessMode, *, topic_epoch: int | None = None, epoch: int = 0
) -> CommandProducer:
    """PRODUCER of a client that chose the name."""
    command = CommandProducer(
        topic=topic,
        producer_id=number,
        producer_name=f"p{number}",
        user_provided_producer_name=True,
        producer_access_mode=mode,
        epoch=epoch,
    )
    if topic_epoch is not None:
        command.topic_epoch = topic_epoch
    return command


def statistics(stage: Stage, label: str) -> None:
    stage.http(label, "GET", "/admin/v2/persistent/{ns}/topic/stats", only=[f".{name}" for name in STATISTICS])


def shut(stage: Stage, label: str, peer: Peer, number: int) -> None:
    stage.ask(label, peer, CommandCloseProducer(producer_id=number))


@scenario(promises=("4.2",))
def beside_an_exclusive_producer_all_others_are_refused(stage: Stage) -> None:
    """Exclusive first, then one of each mode that does not wait."""
    topic, peer = stage.found_topic(), stage.peer()
    stage.ask("an exclusive producer", peer, producer(topic, 1, Exclusive))
    stage.ask("another exclusive one", peer, producer(topic, 2, Exclusive))
    stage.ask("a shared one", peer, producer(topic, 3, Shared))
    statistics(stage, "who publishes")


@scenario()
def exclusive_access_is_refused_beside_a_shared_producer(stage: Stage) -> None:
    """Shared first, then Exclusive; when the first has gone it may come."""
    topic, peer = stage.found_topic(), stage.peer()
    stage.ask("a shared producer", peer, producer(topic, 1, Shared))
    stage.ask("an exclusive one", peer, producer(topic, 2, Exclusive))
    shut(stage, "the shared one closes", peer, 1)
    stage.ask("the exclusive one again", peer, producer(topic, 2, Exclusive))


@scenario()
def a_waiting_producer_gets_access_when_the_holder_closes(stage: Stage) -> None:
    """It is answered at once that it waits, and again with its epoch. Meanwhile others are refused."""
    topic, holder, waits = stage.found_topic(), stage.peer(), stage.peer()
    stage.ask("the holder", holder, producer(topic, 1, Exclusive))
    stage.ask("one that waits", waits, producer(topic, 2, WaitForExclusive))
    stage.ask("a shared one", holder, producer(topic, 3, Shared))
    stage.ask("an exclusive one", holder, producer(topic, 4, Exclusive))
    statistics(stage, "one waits")
    shut(stage, "the holder closes", holder, 1)
    stage.next_frame("access is granted", waits, BaseCommand.PRODUCER_SUCCESS)
    statistics(stage, "it publishes")


@scenario(promises=("4.5",))
def producers_wait_in_the_order_in_which_they_came(stage: Stage) -> None:
    """Two wait. The end of a connection hands access on like a close."""
    topic = stage.found_topic()
    holder, first, second = stage.peer(), stage.peer(), stage.peer()
    stage.ask("the holder", holder, producer(topic, 1, WaitForExclusive))
    stage.ask("the first that waits", first, producer(topic, 2, WaitForExclusive))
    stage.ask("the second that waits", second, producer(topic, 3, WaitForExclusive))
    holder.close()
    stage.next_frame("the first has access", first, BaseCommand.PRODUCER_SUCCESS)
    stage.settle("the second still waits", second)
    first.close()
    stage.next_frame("the second has access", second, BaseCommand.PRODUCER_SUCCESS)


@scenario(promises=("4.8",))
def beside_a_shared_producer_one_waits_and_no_shared_one_comes_in(stage: Stage) -> None:
    """A producer that waits keeps newcomers out."""
    topic, peer, waits = stage.found_topic(), stage.peer(), stage.peer()
    stage.ask("a shared producer", peer, producer(topic, 1, Shared))
    stage.ask("one that waits", waits, producer(topic, 2, WaitForExclusive))
    stage.ask("another shared one", peer, producer(topic, 3, Shared))
    shut(stage, "the shared one closes", peer, 1)
    stage.next_frame("access is granted", waits, BaseCommand.PRODUCER_SUCCESS)


@scenario(promises=("4.4",))
def fencing_takes_access_from_the_holder_and_from_those_that_wait(stage: Stage) -> None:
    """ExclusiveWithFencing has access at once, with the next epoch."""
    topic, waits, new = stage.found_topic(), stage.peer(), stage.peer()
    old = stage.client()
    held = stage.step("the holder", old.create_producer, topic, producer_name="old", access_mode=_official("Exclusive"))
    stage.step("the holder publishes", held.send, b"old")
    stage.ask("one that waits", waits, producer(topic, 2, WaitForExclusive))
    stage.ask("one that fences", new, producer(topic, 3, ExclusiveWithFencing))
    stage.next_frame("the waiting one is told", waits, BaseCommand.ERROR)
    stage.step("the old holder publishes", held.send, b"late")
    stage.step("and again", held.send, b"later")
    statistics(stage, "who publishes")


@scenario()
def a_producer_with_an_old_topic_epoch_is_fenced(stage: Stage) -> None:
    """The epoch has moved while the producer was away."""
    topic, peer = stage.found_topic(), stage.peer()
    for number in (1, 2):
        stage.ask(f"holder {number}", peer, producer(topic, number, Exclusive))
        shut(stage, f"holder {number} closes", peer, number)
    stage.ask("the first comes back", peer, producer(topic, 1, Exclusive, topic_epoch=0, epoch=1))
    stage.ask("it fences", peer, producer(topic, 1, ExclusiveWithFencing, topic_epoch=0, epoch=1))
    stage.ask("the second comes back", peer, producer(topic, 2, Exclusive, topic_epoch=1, epoch=1))
    statistics(stage, "who publishes")


@scenario()
def the_topic_epoch_survives_an_unload(stage: Stage) -> None:
    """The next grant on the next owner has the next epoch, and the holder may come back with its own."""
    topic, peer = stage.found_topic(), stage.peer()
    stage.ask("the holder", peer, producer(topic, 1, Exclusive))
    shut(stage, "it closes", peer, 1)
    stage.admin("PUT", "/admin/v2/persistent/{ns}/topic/unload")
    stage.found_topic()
    stage.ask("it comes back", peer, producer(topic, 2, Exclusive, topic_epoch=0, epoch=1))
    shut(stage, "and closes", peer, 2)
    stage.ask("a new one", peer, producer(topic, 3, Exclusive))


@scenario()
def shared_producers_are_told_the_epoch_once_there_is_one(stage: Stage) -> None:
    """None before the first exclusive producer."""
    topic, peer = stage.found_topic(), stage.peer()
    stage.ask("a shared producer", peer, producer(topic, 1, Shared))
    shut(stage, "it closes", peer, 1)
    stage.ask("an exclusive one", peer, producer(topic, 2, Exclusive))
    shut(stage, "and closes", peer, 2)
    stage.ask("a shared one again", peer, producer(topic, 3, Shared))


@scenario(promises=("4.2",))
def the_official_client_sees_each_refusal_as_its_own_error(stage: Stage) -> None:
    """Errors of create_producer beside an exclusive and beside a shared producer."""
    client = stage.client()
    mode = _official
    first = stage.step("exclusive", client.create_producer, stage.topic(), "a", access_mode=mode("Exclusive"))
    stage.step("exclusive again", client.create_producer, stage.topic(), "b", access_mode=mode("Exclusive"))
    stage.step("shared", client.create_producer, stage.topic(), "c")
    stage.step("the name of the holder", client.create_producer, stage.topic(), "a")
    stage.step("the first closes", first.close)
    stage.step("shared then", client.create_producer, stage.topic(), "c")
    stage.step("exclusive beside it", client.create_producer, stage.topic(), "d", access_mode=mode("Exclusive"))


def _official(mode: str) -> object:
    import pulsar

    return getattr(pulsar.ProducerAccessMode, mode)
