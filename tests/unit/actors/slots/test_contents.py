"""The index of topics by slot says the same as a look at all topics."""

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.actors.slots.contents import SlotContents
from magnetar.protocol.slots import slot_of
from magnetar.protocol.topics import TopicName

SLOTS = 64
TOPICS = [f"persistent://public/default/t{number}" for number in range(6)]


def members(topic: str, partitions: int) -> list[TopicName]:
    name = TopicName.parse(topic)
    return [name.partition_topic(index) for index in range(partitions)] if partitions else [name]


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(TOPICS), st.none() | st.sampled_from([0, 1, 5, 64, 130]))))
def test_members_lie_where_their_names_say(changes: list[tuple[str, int | None]]) -> None:
    contents, topics = SlotContents(SLOTS), dict[str, int]()
    for topic, partitions in changes:
        contents.change(topic, topics.pop(topic, None), partitions)
        if partitions is not None:
            topics[topic] = partitions
    expected: dict[int, list[str]] = {slot: [] for slot in range(SLOTS)}
    for topic, partitions in topics.items():
        for one in members(topic, partitions):
            expected[slot_of(one, SLOTS)].append(one.full)
    for slot in range(SLOTS):
        found = [topic if index < 0 else f"{topic}-partition-{index}" for topic, index in contents.members(slot)]
        assert sorted(found) == sorted(expected[slot])
        assert contents.is_empty(slot) == (not found)


def test_a_page_has_whole_slots_and_at_least_one() -> None:
    contents = SlotContents(SLOTS)
    for number in range(1000):
        contents.change(f"persistent://public/default/x{number}", None, 0)
    slots, found = list(range(SLOTS)), list[tuple[str, int]]()
    while slots:
        page, done = contents.page(slots, 50)
        assert done >= 1 and (len(page) <= 50 or done == 1)
        found += page
        slots = slots[done:]
    assert len(found) == len(dict.fromkeys(found)) == 1000 == contents.count(range(SLOTS))
    assert contents.page([3, 4, 5], 1)[1] == 1
