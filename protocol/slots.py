"""Slots: the unit in which brokers own topics.

A cluster has a fixed number of slots, a power of two, chosen when it is created. Each partition, and each topic without
partitions, lies in exactly one slot: partition i of topic T in slot (hash(T) + i) mod slots, a topic without partitions
in slot hash(T) mod slots. So a look-up is arithmetic, and the partitions of a topic lie in consecutive slots. The
broker that owns a slot owns what lies in it.

The hash is CRC-32 of the full name, as for Pulsar's bundles. It is a part of the stored format and never changes.

The records of slots are pages: `PAGES` of them, each with consecutive slots.
"""

import zlib
from typing import NamedTuple

from .topics import TopicName

SLOTS_DEFAULT = 4096
"""Of a new cluster, and of every cluster whose identity does not say otherwise. Never changes."""
SLOTS_MAX = 1 << 16
PAGES = 64
SLOTS_MIN = PAGES


class TopicGrant(NamedTuple):
    """What the owner of a partition or plain topic needs to open it, as the coordinator says it to that owner only.

    It is opened under `epoch`, and only while the record of the whole topic has this version (None: it has none).
    `home_epoch` is that of its slot, or of its exception. The grant ends when that changes. `partitions` counts those
    of the whole topic, 0: plain. Numbers grow with every grant, and with every release that the coordinator asks for.
    """

    topic: str
    epoch: int
    home_epoch: int
    version: int | None
    partitions: int
    number: int


def is_slot_count(slots: int) -> bool:
    """Whether a cluster may have so many slots."""
    return SLOTS_MIN <= slots <= SLOTS_MAX and slots & (slots - 1) == 0


def first_slot(full_name: str, slots: int) -> int:
    """The slot of a topic without partitions, or of partition 0. `full_name` has no partition suffix."""
    return zlib.crc32(full_name.encode()) & (slots - 1)


def slot_of(topic: TopicName, slots: int) -> int:
    """The slot of a partition or of a topic without partitions."""
    if topic.partition < 0:
        return first_slot(topic.full, slots)
    return (first_slot(topic.partitioned_name, slots) + topic.partition) & (slots - 1)


def page_of(slot: int, slots: int) -> int:
    return slot * PAGES // slots


def slots_of_page(page: int, slots: int) -> range:
    size = slots // PAGES
    return range(page * size, (page + 1) * size)
