"""Who owns slots, as bytes: the records of pages, the whole table for a member that registers, and changes of it.

One format for all three. Owners are listed once. A row is a slot, the number of its owner in that list and its epoch.
An *exception* is a topic that another broker owns than its slot says. It counts while its epoch is greater than that of
the slot. So a new owner of the slot ends it.

Nothing here is trusted: `SlotRows.unpack` takes at most `slots` rows and `EXCEPTIONS_MAX` exceptions, checks each
number, and raises ProtocolError for the rest. `SlotPage.unpack` also demands each slot of its page exactly once, and
only topics of its slots. It raises MetadataError.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeGuard, cast

from ...protocol.errors import InvalidTopicName, MetadataError, ProtocolError
from ...protocol.plain_values import is_list
from ...protocol.slots import PAGES, is_slot_count, slot_of, slots_of_page
from ...protocol.topics import TopicName
from ...runtime.rpc.messages import pack, unpack

FORMAT = 1
EXCEPTIONS_MAX = 16_384
"""Topics of one cluster that another broker owns than the owner of their slot."""
EXCEPTIONS_PER_PAGE_MAX = EXCEPTIONS_MAX // PAGES
NAME_LENGTH_MAX = 1000
EPOCH_END = 1 << 63
EPOCH_SHIFT = 32
"""Epochs of slots and topics begin with the epoch of the coordinator that gave them."""

_ROW = struct.Struct(">HHQ")
_NOBODY = 0xFFFF


class SlotOwner(NamedTuple):
    """An incarnation of a broker."""

    broker: str
    incarnation: str


class SlotEntry(NamedTuple):
    """Who owns a slot (None: nobody yet, or an exception that has ended), and since which epoch."""

    owner: SlotOwner | None
    epoch: int


UNOWNED = SlotEntry(None, 0)


@dataclass(frozen=True)
class SlotRows:
    """Entries by slot, and exceptions by the full name of a partition or plain topic."""

    entries: Mapping[int, SlotEntry] = field(default_factory=dict[int, SlotEntry])
    exceptions: Mapping[str, SlotEntry] = field(default_factory=dict[str, SlotEntry])

    def pack(self) -> bytes:
        """As they are stored and sent."""
        numbers: dict[SlotOwner, int] = {}

        def number_of(owner: SlotOwner | None) -> int:
            return _NOBODY if owner is None else numbers.setdefault(owner, len(numbers))

        rows = b"".join(_ROW.pack(slot, number_of(one.owner), one.epoch) for slot, one in self.entries.items())
        exceptions = [[topic, number_of(one.owner), one.epoch] for topic, one in self.exceptions.items()]
        owners = [[one.broker, one.incarnation] for one in numbers]
        return pack({"format": FORMAT, "owners": owners, "rows": rows, "exceptions": exceptions})

    @staticmethod
    def unpack(value: bytes, slots: int) -> "SlotRows":
        """The inverse of `pack`, in a cluster of so many slots. Raises ProtocolError for anything else."""
        found = unpack(value)
        if not isinstance(found, Mapping):
            raise _malformed("they are no map")
        fields = cast("Mapping[object, object]", found)
        if fields.get("format") != FORMAT:
            raise _malformed(f"their format is {fields.get('format')!r:.40}, and this version reads {FORMAT}")
        owners = _owners(fields.get("owners"))
        return SlotRows(_entries(fields.get("rows"), owners, slots), _exceptions(fields.get("exceptions"), owners))


@dataclass(frozen=True)
class SlotPage:
    """The record of one page: each of its slots, and the exceptions that lie in them."""

    number: int
    slots: int
    rows: SlotRows

    def pack(self) -> bytes:
        return self.rows.pack()

    @staticmethod
    def unpack(value: bytes, number: int, slots: int) -> "SlotPage":
        """Page `number` of a cluster with so many slots. Raises MetadataError for anything else."""
        try:
            rows = SlotRows.unpack(value, slots)
        except ProtocolError as error:
            raise MetadataError(f"the record of page {number} of the slots cannot be decoded: {error}") from error
        own = slots_of_page(number, slots)
        if list(rows.entries) != list(own):
            raise MetadataError(f"the record of page {number} of the slots does not hold its slots, and only them")
        if len(rows.exceptions) > EXCEPTIONS_PER_PAGE_MAX:
            raise MetadataError(f"the record of page {number} of the slots holds {len(rows.exceptions)} exceptions")
        for topic in rows.exceptions:
            if slot_of(TopicName.parse(topic), slots) not in own:
                raise MetadataError(
                    f"the record of page {number} of the slots holds {topic:.200}, which lies elsewhere"
                )
        return SlotPage(number, slots, rows)


def decode_page(value: bytes) -> SlotRows:
    """The rows of a page whose number is not known. Raises MetadataError for what is no such record."""
    try:
        return SlotRows.unpack(value, 1 << 16)
    except ProtocolError as error:
        raise MetadataError(f"the record of a page of slots cannot be decoded: {error}") from error


def _owners(found: object) -> list[SlotOwner]:
    if not is_list(found) or len(found) >= _NOBODY:
        raise _malformed("they have no list of owners")
    owners: list[SlotOwner] = []
    for one in found:
        if not is_list(one) or len(one) != 2 or not (_is_name(one[0]) and _is_name(one[1])):
            raise _malformed(f"an owner is {one!r:.100}")
        owners.append(SlotOwner(one[0], one[1]))
    return owners


def _entries(found: object, owners: list[SlotOwner], slots: int) -> dict[int, SlotEntry]:
    assert is_slot_count(slots)
    if not isinstance(found, bytes) or len(found) % _ROW.size or len(found) > slots * _ROW.size:
        raise _malformed("the rows have an impossible length")
    entries: dict[int, SlotEntry] = {}
    for slot, number, epoch in _ROW.iter_unpack(found):
        if slot >= slots or slot in entries:
            raise _malformed(f"slot {slot} of {slots} is impossible, or there twice")
        entries[slot] = _entry(number, epoch, owners)
    return entries


def _exceptions(found: object, owners: list[SlotOwner]) -> dict[str, SlotEntry]:
    if not is_list(found) or len(found) > EXCEPTIONS_MAX:
        raise _malformed(f"the exceptions are no list of at most {EXCEPTIONS_MAX} topics")
    exceptions: dict[str, SlotEntry] = {}
    for one in found:
        if not is_list(one) or len(one) != 3 or not isinstance(one[0], str):
            raise _malformed(f"an exception is {one!r:.100}")
        topic, number, epoch = one[0], one[1], one[2]
        try:
            if TopicName.parse(topic).full != topic:
                raise _malformed(f"{topic:.200} is not a full name")
        except InvalidTopicName as error:
            raise _malformed(str(error)) from error
        if topic in exceptions or not (_is_number(number) and _is_number(epoch)):
            raise _malformed(f"the exception {topic:.200} is impossible, or there twice")
        exceptions[topic] = _entry(number, epoch, owners)
    return exceptions


def _entry(number: int, epoch: int, owners: list[SlotOwner]) -> SlotEntry:
    if not 0 <= epoch < EPOCH_END or (number != _NOBODY and not 0 <= number < len(owners)):
        raise _malformed(f"owner {number} or epoch {epoch} is impossible")
    return SlotEntry(None if number == _NOBODY else owners[number], epoch)


def _is_name(found: object) -> TypeGuard[str]:
    return isinstance(found, str) and 0 < len(found) <= NAME_LENGTH_MAX


def _is_number(found: object) -> TypeGuard[int]:
    return isinstance(found, int) and not isinstance(found, bool)


def _malformed(why: str) -> ProtocolError:
    return ProtocolError(f"malformed rows of slots: {why}")
