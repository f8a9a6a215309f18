"""Bugs of the record of a topic at its broker: a step that the table of `owned_topic` has is not made, or half made."""

from contextlib import ExitStack

from magnetar.actors.topics.loaded_topics import Topics
from magnetar.actors.topics.loads import TopicLoads
from magnetar.actors.topics.owned_topic import Kept, OwnedTopic, TopicTable
from magnetar.protocol.errors import MagnetarError

from .mutant import Mutant, replace


def _leave_it_in_its_queue(stack: ExitStack) -> None:
    """A topic that is given up waits for its load as before."""

    def forget(self: TopicLoads, topic: OwnedTopic, error: MagnetarError) -> None:
        topic.backoff = None

    replace(stack, TopicLoads, "forget", forget)


def _never_release(stack: ExitStack) -> None:
    """What ends of a topic that was given up does not end its closing."""
    tidy = TopicTable.tidy

    def tidying(self: TopicTable, topic: OwnedTopic) -> None:
        if topic.load is not None or topic.closing is not None or not topic.state.value == "closing":
            tidy(self, topic)

    replace(stack, TopicTable, "tidy", tidying)


def _keep_the_grant(stack: ExitStack) -> None:
    """A topic is given up, and its epoch and grant stay."""
    give_up = Topics._give_up

    def giving_up(self: Topics, topic: OwnedTopic) -> None:
        epoch, grant = topic.epoch, topic.grant
        give_up(self, topic)
        topic.epoch, topic.grant = epoch, grant

    replace(stack, Topics, "_give_up", giving_up)


def _keep_nothing_in_view(stack: ExitStack) -> None:
    """What is kept of a topic at rest is not found when policies change."""

    def keep(self: TopicTable, topic: OwnedTopic, kept: Kept | None) -> None:
        topic.kept = kept

    replace(stack, TopicTable, "keep", keep)


OWNED = (
    Mutant(
        "queued on", "a topic that was given up stays in the queue of loads", "I20", _leave_it_in_its_queue, "cluster"
    ),
    Mutant("closing on", "a topic that was given up never counts as released", "I20", _never_release, "cluster"),
    Mutant("granted on", "a topic that was given up keeps its grant", "I20", _keep_the_grant, "cluster"),
    Mutant(
        "out of view",
        "a broker does not find what it keeps of a topic at rest",
        "I20",
        _keep_nothing_in_view,
        "resting",
    ),
)
