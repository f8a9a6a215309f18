"""The bytes of slots: what was packed comes back, and anything else is refused with a typed error."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.protocol.errors import MetadataError, ProtocolError
from magnetar.protocol.slots import slot_of, slots_of_page
from magnetar.protocol.topics import TopicName
from magnetar.runtime.rpc.messages import pack, unpack
from magnetar.storage.metadata.slot_rows import (
    EXCEPTIONS_PER_PAGE_MAX,
    SlotEntry,
    SlotOwner,
    SlotPage,
    SlotRows,
)

SLOTS = 256
TOPIC = TopicName.parse("persistent://public/default/t")
NAMES = st.text(st.characters(codec="ascii", min_codepoint=33), min_size=1, max_size=10)
OWNERS = st.builds(SlotOwner, NAMES, NAMES)
ENTRIES = st.builds(SlotEntry, st.none() | OWNERS, st.integers(0, (1 << 63) - 1))
TOPICS = st.integers(0, 1000).map(lambda number: f"persistent://public/default/t{number}")


@settings(max_examples=100)
@given(st.dictionaries(st.integers(0, SLOTS - 1), ENTRIES), st.dictionaries(TOPICS, ENTRIES, max_size=5))
def test_rows_come_back_as_they_were(entries: dict[int, SlotEntry], exceptions: dict[str, SlotEntry]) -> None:
    rows = SlotRows(entries, exceptions)
    assert SlotRows.unpack(rows.pack(), SLOTS) == rows


def test_a_whole_table_is_small() -> None:
    owners = [SlotOwner(f"broker-{number}", f"{number:08x}") for number in range(100)]
    rows = SlotRows({slot: SlotEntry(owners[slot % 100], 1 << 40) for slot in range(4096)})
    assert len(rows.pack()) < 52_000


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_other_bytes_are_refused(value: bytes) -> None:
    with pytest.raises(ProtocolError):
        SlotRows.unpack(value, SLOTS)


ROW = b"\0\1\0\0" + bytes(7) + b"\5"
GOOD: dict[str, Any] = {"format": 1, "owners": [["b", "1"]], "rows": ROW, "exceptions": []}


@pytest.mark.parametrize(
    "fields",
    [
        {"format": 2},
        {"format": None},
        {"owners": None},
        {"owners": [["b"]]},
        {"owners": [["b", ""]]},
        {"owners": [["b", 1]]},
        {"owners": [["b" * 1001, "1"]]},
        {"owners": []},
        {"rows": "text"},
        {"rows": ROW[:-1]},
        {"rows": ROW + ROW},
        {"rows": b"\1\0" + ROW[2:]},
        {"rows": b"\0\1\0\2" + ROW[4:]},
        {"rows": b"\0\1\0\0\xff" + ROW[5:]},
        {"rows": bytes(12 * (SLOTS + 1))},
        {"exceptions": {}},
        {"exceptions": [["x/y", 0, 1]]},
        {"exceptions": [["t", 0, 1]]},
        {"exceptions": [[TOPIC.full, 1, 1]]},
        {"exceptions": [[TOPIC.full, 0, -1]]},
        {"exceptions": [[TOPIC.full, 0, True]]},
        {"exceptions": [[TOPIC.full, 0, 1], [TOPIC.full, 0, 2]]},
        {"exceptions": [[TOPIC.full, 0, 1]] * 20_000},
    ],
)
def test_each_impossible_field_is_refused(fields: dict[str, Any]) -> None:
    SlotRows.unpack(pack(GOOD), SLOTS)
    with pytest.raises(ProtocolError):
        SlotRows.unpack(pack({**GOOD, **fields}), SLOTS)


def test_a_page_has_its_own_slots_and_topics_only() -> None:
    number = slot_of(TOPIC, SLOTS) * 64 // SLOTS
    entry = SlotEntry(SlotOwner("b", "1"), 1)
    entries = {slot: entry for slot in slots_of_page(number, SLOTS)}
    good = SlotPage(number, SLOTS, SlotRows(entries, {TOPIC.full: entry}))
    assert SlotPage.unpack(good.pack(), number, SLOTS) == good
    name = unpack(good.pack())["exceptions"][0][0]
    many = {f"{name}-{n}": entry for n in range(100_000)}
    many = {topic: one for topic, one in many.items() if slot_of(TopicName.parse(topic), SLOTS) in entries}
    assert len(many) > EXCEPTIONS_PER_PAGE_MAX
    for rows in (
        SlotRows(dict(list(entries.items())[1:])),
        SlotRows({**entries, (max(entries) + 1) % SLOTS: entry}),
        SlotRows(entries, {TOPIC.partition_name(100): entry}),
        SlotRows(entries, many),
    ):
        with pytest.raises(MetadataError):
            SlotPage.unpack(SlotPage(number, SLOTS, rows).pack(), number, SLOTS)
