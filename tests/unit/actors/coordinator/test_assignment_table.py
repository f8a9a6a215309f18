"""Placement decisions: even spread, minimal and bounded movement."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.actors.coordinator.assignment_table import Assignment, AssignmentTable
from magnetar.protocol.topics import group_of

BASE = "persistent://public/default/"


def table_of(owners: dict[str, str]) -> AssignmentTable:
    table = AssignmentTable()
    for epoch, (topic, broker) in enumerate(owners.items()):
        table.set(topic, Assignment(broker, "1", epoch, 0))
    return table


def partitions(name: str, count: int) -> list[str]:
    return [f"{BASE}{name}-partition-{index}" for index in range(count)]


def test_five_partitions_on_three_brokers() -> None:
    placed = AssignmentTable().place(partitions("t", 5), ["a", "b", "c"])
    assert sorted(Counter(placed.values()).values()) == [1, 2, 2]


def test_plain_topics_fill_up_the_emptiest() -> None:
    table = table_of({f"{BASE}x{n}": "a" for n in range(3)})
    placed = table.place([f"{BASE}y{n}" for n in range(3)], ["a", "b"])
    assert set(placed.values()) == {"b"}


def test_the_group_comes_before_the_total() -> None:
    table = table_of({f"{BASE}x{n}": "a" for n in range(10)} | {f"{BASE}t-partition-0": "b"})
    assert table.place([f"{BASE}t-partition-1"], ["a", "b"]) == {f"{BASE}t-partition-1": "a"}


def test_a_loss_moves_only_what_was_lost() -> None:
    table = AssignmentTable()
    for topic, broker in table.place(partitions("t", 9), ["a", "b", "c"]).items():
        table.set(topic, Assignment(broker, "1", 0, 0))
    lost = table.topics_of("b")
    placed = table.place(lost, ["a", "c"])
    assert set(placed) == set(lost)
    counts = Counter(table.get(topic).broker for topic in partitions("t", 9) if topic not in placed)  # type: ignore[union-attr]
    counts.update(placed.values())
    assert sorted(counts.values()) == [4, 5]


def test_an_even_table_moves_nothing() -> None:
    table = table_of({topic: "abc"[n % 3] for n, topic in enumerate(partitions("t", 7))})
    assert table.rebalance(["a", "b", "c"], 100) == {}
    assert table.rebalance(["a"], 100) == {}
    assert AssignmentTable().rebalance(["a", "b"], 100) == {}


def test_a_newcomer_gets_its_share_and_no_more() -> None:
    owners = {f"{BASE}x{n:04}": "ab"[n % 2] for n in range(1000)}
    moves = table_of(owners).rebalance(["a", "b", "c"], 10_000)
    assert 332 <= len(moves) <= 334
    assert set(moves.values()) == {"c"}
    assert len(table_of(owners).rebalance(["a", "b", "c"], 50)) == 50


def test_the_table_counts_and_pages() -> None:
    table = table_of({f"{BASE}x{n}": "a" for n in range(5)})
    table.set(f"{BASE}x0", Assignment("b", "1", 9, 1))
    assert (table.count_of("a"), table.count_of("b"), table.count_of("c"), len(table)) == (4, 1, 0, 5)
    assert [topic for topic, _ in table.page(f"{BASE}x1", 2)] == [f"{BASE}x2", f"{BASE}x3"]
    assert table.remove(f"{BASE}x0") is not None and table.remove(f"{BASE}x0") is None
    assert table.topics_of("b") == []
    assert group_of(f"{BASE}t-partition-3") == f"{BASE}t"
    assert group_of(f"{BASE}t-partition-03") == f"{BASE}t-partition-03"


@settings(max_examples=80, deadline=None)
@given(
    groups=st.lists(st.integers(0, 9), max_size=8),
    before=st.integers(1, 5),
    after=st.integers(1, 5),
    lost=st.integers(0, 4),
)
def test_any_history_ends_even(groups: list[int], before: int, after: int, lost: int) -> None:
    topics = [
        topic
        for number, size in enumerate(groups)
        for topic in (partitions(f"g{number}", size) if size else [f"{BASE}plain{number}"])
    ]
    names = [f"broker-{number}" for number in range(before)]
    table = AssignmentTable()
    for topic, broker in table.place(topics, names).items():
        table.set(topic, Assignment(broker, "1", 0, 0))
    survivors = names[min(lost, len(names) - 1) :] + [f"new-{number}" for number in range(after)]
    orphans = [topic for topic, entry in table.items() if entry.broker not in survivors]
    for topic, broker in table.place(orphans, survivors).items():
        table.set(topic, Assignment(broker, "1", 1, 1))
    moves = table.rebalance(survivors, 10_000)
    for topic, broker in moves.items():
        table.set(topic, Assignment(broker, "1", 2, 2))
    for number, size in enumerate(groups):
        members = partitions(f"g{number}", size)
        counts = Counter({name: 0 for name in survivors})
        counts.update(table.get(topic).broker for topic in members)  # type: ignore[union-attr]
        assert max(counts.values()) - min(counts.values()) <= 1
    totals = [table.count_of(name) for name in survivors]
    if all(size <= 1 for size in groups):
        assert max(totals, default=0) - min(totals, default=0) <= 1
    assert table.rebalance(survivors, 10_000) == {}
