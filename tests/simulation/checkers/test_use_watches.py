"""The checkers of expiring subscriptions, and of namespaces that are deleted by force, find their violations."""

from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.actors.policies.record import NamespaceRecord
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.store import Versioned
from simulation.checkers.history import History
from simulation.checkers.namespace_watch import NamespaceWatch
from simulation.checkers.use_watch import UseWatch
from simulation.world.metadata import WatchedRecords

NAMESPACE = "public/short"
KEY = metadata_keys.namespace(NAMESPACE)
TOPIC = metadata_keys.topic(f"persistent/{NAMESPACE}/t")
EXPIRES_S = 10.0


def broken(history: History) -> list[str]:
    return [violation.partition(":")[0] for violation in history.violations]


@pytest.mark.parametrize(
    ("uses", "loaded_s", "violations"),
    [
        ([], 12.0, []),  # nobody has used it since it was loaded
        ([], 18.0, ["I7"]),
        ([(1.0, True), (13.0, False)], 0.0, []),
        ([(1.0, True), (15.0, False)], 0.0, ["I7"]),
        ([(1.0, True)], 0.0, ["I7"]),  # it has a consumer, perhaps at another broker
        ([(1.0, True)], 2.0, []),  # the broker with the consumer crashed before that
        ([(1.0, True)], 18.0, ["I7"]),
    ],
)
def test_a_subscription_that_expires_had_no_consumer_for_long(
    uses: list[tuple[float, bool]], loaded_s: float, violations: list[str]
) -> None:
    history, loop = History(), SimpleNamespace(now=0.0)
    simulated: Any = loop
    watch = UseWatch(history, simulated, "t", EXPIRES_S)
    for at_s, attached in uses:
        loop.now = at_s
        watch.used(("t", "s"), attached=attached)
    watch.expires(("t", "s"), loaded_s, begun_s=20.0)
    assert broken(history) == violations
    assert watch.expired == {("t", "s"): 1}


@pytest.fixture
def records() -> WatchedRecords:
    return WatchedRecords()


@pytest.fixture
def history() -> History:
    return History()


@pytest.fixture
def watch(history: History, records: WatchedRecords) -> NamespaceWatch:
    watch = NamespaceWatch(history, records, NAMESPACE)
    records.watcher = watch.metadata_changed
    return watch


def packed(*, deleted: bool) -> bytes:
    record = NamespaceRecord.new({}, 1, Settings())
    return (record.as_deleted() if deleted else record).pack()


def test_a_namespace_whose_record_goes_last(history: History, watch: NamespaceWatch, records: WatchedRecords) -> None:
    records.store(KEY, Versioned(packed(deleted=False), 0))
    records.store(TOPIC, Versioned(b"", 0))
    assert (watch.exists, watch.marked, watch.leftovers()) == (True, False, [TOPIC])
    records.store(KEY, Versioned(packed(deleted=True), 1))
    assert watch.marked
    records.remove(TOPIC)
    records.remove(KEY)
    assert (watch.exists, watch.marked, watch.created, watch.leftovers()) == (False, False, 1, [])
    assert broken(history) == []


@pytest.mark.usefixtures("watch")
def test_a_namespace_whose_record_goes_before_a_topic(history: History, records: WatchedRecords) -> None:
    records.store(KEY, Versioned(packed(deleted=True), 0))
    records.store(TOPIC, Versioned(b"", 0))
    records.remove(KEY)
    assert broken(history) == ["I2"]


@pytest.mark.usefixtures("watch")
def test_a_mark_that_is_taken_back(history: History, records: WatchedRecords) -> None:
    records.store(KEY, Versioned(packed(deleted=True), 0))
    records.store(KEY, Versioned(packed(deleted=False), 1))
    assert broken(history) == ["I2"]
