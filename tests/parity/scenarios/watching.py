"""Topic list watchers, and lists of topics with a pattern and a hash: by raw frames.

Names of scenarios are short: they are in the patterns, and a pattern has up to 50 characters.
"""

from typing import Any

from magnetar.protocol.pulsar_pb2 import (
    BaseCommand,
    CommandGetTopicsOfNamespace,
    CommandWatchTopicList,
    CommandWatchTopicListClose,
)
from magnetar.protocol.topic_lists import topics_hash

from ..peer import Peer
from ..registry import scenario
from ..stage import Stage


def _watch(stage: Stage, pattern: str, watcher_id: int = 1, **fields: Any) -> CommandWatchTopicList:
    fields.setdefault("namespace", stage.namespace)
    return CommandWatchTopicList(watcher_id=watcher_id, topics_pattern=pattern, **fields)


def _becomes(stage: Stage, label: str, peer: Peer, names: set[str], *wanted: str) -> None:
    """Apply updates until the list is the wanted one, and note whether the last hash is that of the list."""
    last = ""
    while names != {stage.topic(one) for one in wanted}:
        update = peer.next_frame(BaseCommand.WATCH_TOPIC_UPDATE).command.watchTopicUpdate
        names -= set(update.deleted_topics)
        names |= set(update.new_topics)
        last = update.topics_hash
    stage.note(label, sorted(names))
    stage.note(f"{label}: the hash is that of the list", last == topics_hash(names))


@scenario()
def watched(stage: Stage) -> None:
    """A watcher is told of topics that are created, grow and are deleted, and of no others."""
    peer = stage.peer()
    stage.admin("PUT", "/admin/v2/persistent/{ns}/a1")
    pattern = f"persistent://{stage.namespace}/a.*"
    names = set(stage.ask("a list with one topic", peer, _watch(stage, pattern)).topic)
    stage.admin("PUT", "/admin/v2/persistent/{ns}/a2")
    stage.next_frame("a topic is created", peer)
    names.add(stage.topic("a2"))
    stage.admin("PUT", "/admin/v2/persistent/{ns}/b")
    stage.admin("PUT", "/admin/v2/non-persistent/{ns}/a3")
    stage.settle("topics that do not match, and that are not persistent", peer)
    stage.admin("PUT", "/admin/v2/persistent/{ns}/ap/partitions", 2)
    _becomes(stage, "a partitioned topic", peer, names, "a1", "a2", "ap-partition-0", "ap-partition-1")
    stage.admin("POST", "/admin/v2/persistent/{ns}/ap/partitions", 3)
    _becomes(stage, "it grows", peer, names, "a1", "a2", *(f"ap-partition-{index}" for index in range(3)))
    stage.admin("DELETE", "/admin/v2/persistent/{ns}/ap/partitions")
    _becomes(stage, "it is deleted", peer, names, "a1", "a2")
    stage.admin("DELETE", "/admin/v2/persistent/{ns}/a1")
    stage.next_frame("a topic is deleted", peer)
    stage.ask("close", peer, CommandWatchTopicListClose(watcher_id=1))
    stage.ask("close again", peer, CommandWatchTopicListClose(watcher_id=1))
    stage.admin("PUT", "/admin/v2/persistent/{ns}/a4")
    stage.settle("a topic after the close", peer)


@scenario()
def reconciled(stage: Stage) -> None:
    """The same watcher asked again, with and without the hash of its list; several on one connection."""
    peer = stage.peer()
    stage.admin("PUT", "/admin/v2/persistent/{ns}/a1")
    first = stage.ask("a wrong hash", peer, _watch(stage, f"{stage.namespace}/a.*", topics_hash="12345678"))
    hash_ = {"topics_hash": first.topics_hash}
    stage.ask("again, with its hash", peer, _watch(stage, f"{stage.namespace}/a.*", **hash_))
    stage.ask("again, without a hash", peer, _watch(stage, f"{stage.namespace}/a.*"))
    stage.ask("again, with another pattern", peer, _watch(stage, f"{stage.namespace}/b.*"))
    stage.ask("a second one with that hash", peer, _watch(stage, f"{stage.namespace}/a.*", 2, **hash_))
    stage.ask("everything", peer, _watch(stage, ".*", 3))
    stage.ask("nothing", peer, _watch(stage, f"{stage.namespace}/c", 4))
    stage.ask("a missing namespace", peer, _watch(stage, ".*", 5, namespace="parity/none-such"))


@scenario()
def unwatchable(stage: Stage) -> None:
    """Patterns that are too long or no regular expressions."""
    peer = stage.peer()
    space = stage.namespace
    at_most = f"{space}/" + "x" * (50 - len(space) - 1)
    stage.ask("50 characters", peer, _watch(stage, at_most))
    stage.ask("50 characters behind the domain", peer, _watch(stage, f"persistent://{at_most}", 2))
    stage.ask("51 characters", peer, _watch(stage, f"{at_most}x", 3))
    stage.ask("an open group", peer, _watch(stage, f"{space}/(", 4))
    stage.ask("a look-ahead", peer, _watch(stage, f"{space}/(?=a)a", 5))
    stage.ask("a domain that does not exist", peer, _watch(stage, f"strange://{space}/a", 6))
    stage.ask("the number of a refused one", peer, _watch(stage, f"{space}/a", 4))


@scenario()
def filtered(stage: Stage) -> None:
    """GET_TOPICS_OF_NAMESPACE with a pattern and a hash."""
    peer = stage.peer()
    stage.admin("PUT", "/admin/v2/persistent/{ns}/a1")
    stage.admin("PUT", "/admin/v2/persistent/{ns}/b1")
    stage.admin("PUT", "/admin/v2/persistent/{ns}/ap/partitions", 1)
    space = stage.namespace

    def ask(label: str, pattern: str, **fields: Any) -> Any:
        command = CommandGetTopicsOfNamespace(namespace=space, topics_pattern=pattern, **fields)
        return stage.ask(label, peer, command)

    found = ask("one topic", f"persistent://{space}/b.")
    ask("with its hash", f"persistent://{space}/b.", topics_hash=found.topics_hash)
    ask("with another hash", f"persistent://{space}/b.", topics_hash="00000000")
    ask("a partitioned topic is matched without its number", f"{space}/ap")
    ask("names are matched as a whole", f"{space}/a")
    ask("nothing", f"{space}/c", topics_hash="00000000")
    ask("too long a pattern", f"{space}/b." + "x" * 50)
    ask("an open group", f"{space}/(")
    stage.ask("no pattern, and a hash", peer, CommandGetTopicsOfNamespace(namespace=space, topics_hash="00000000"))
