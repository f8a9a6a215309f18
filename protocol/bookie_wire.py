"""What brokers and bookies say to each other: operations, statuses, and the bytes of a ledger entry.

A ledger entry, the same bytes on the wire, on every bookie's disk and in recovery:

    [u64 ledger id][u64 nonce][u64 entry id][i64 LAC][u64 length][u32 crc32c][body]

The nonce is the ledger's, a random number in its metadata. A counter gives each id out once, but the counter goes back
when the metadata is restored from a backup. Two ledgers may then have one id, and the nonce tells them apart. It is
part of every request, too. A bookie that holds another ledger under the id answers FOREIGN to every request. Neither
its entries nor their absence say anything about the requested ledger.

LAC (last add confirmed) is the last entry that the writer knew confirmed when it sent this one, −1 for none. `length`
counts all bodies of the ledger up to and including this one. The CRC32C covers the header before it and the body, so an
entry proves by itself which entry of which ledger it is. The body is the producer's and is not looked into.

Requests travel in RPC frames (`rpc_frames`), operation and status in the frame's code:

| operation | request | answer when OK |
| --- | --- | --- |
| ADD | `[u8 flags][entry]` | nothing |
| READ | `[u64 ledger][u64 nonce][u64 first][u64 last][u32 bytes][u8 flags]` | `[u64 next]`, then `[u32 size][entry]`… |
| FENCE | `[u64 ledger][u64 nonce]` | `[i64 LAC][i64 last entry]` |
| READ_LAC | `[u64 ledger][u64 nonce]` | `[i64 LAC][i64 last entry]` |

A READ answers entries of first…last (both inclusive) in ascending order: at least one if the bookie has any, then up to
`bytes`. `next` is the first id not examined. Entries that it does not hold are absent from the answer. LAC in answers
is the highest that any stored entry carries, −1 for none, as is the last entry's id.
"""

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from .errors import (
    BookieReadOnly,
    BookieUnavailable,
    DigestConflict,
    EntryCorrupt,
    EntryUnknown,
    ForeignLedger,
    FrameTooLarge,
    LedgerError,
    LedgerFenced,
    MagnetarError,
    NoSuchEntry,
    NoSuchLedger,
    ProtocolError,
    StorageFailed,
)
from .rpc_frames import STATUS_DISCONNECTED


class BookieOp(IntEnum):
    """Operations, in the code of a request frame."""

    ADD = 1
    READ = 2
    FENCE = 3
    READ_LAC = 4


class BookieStatus(IntEnum):
    """Statuses, in the code of a response frame."""

    OK = 0
    NO_SUCH_ENTRY = 1
    NO_SUCH_LEDGER = 2
    FENCED = 3
    READ_ONLY = 4
    UNKNOWN = 5
    CORRUPT = 6
    BAD_REQUEST = 7
    TOO_LARGE = 8
    IO_ERROR = 9
    CONFLICT = 10
    OVERLOADED = 11
    FOREIGN = 12


# A recovery add goes through although the ledger is fenced.
ADD_FLAG_RECOVERY = 1
# A read that fences the ledger first, as recovery does.
READ_FLAG_FENCE = 1

ENTRY_ID_MAX = (1 << 63) - 1

_CHECKED_HEADER = Struct(">QQQqQ")
_CRC = Struct(">I")
_HEADER = Struct(">QQQqQI")
_READ_REQUEST = Struct(">QQQQIB")
_READ_ANSWER = Struct(">Q")
_LEDGER = Struct(">QQ")
_LEDGER_STATE = Struct(">qq")

ENTRY_HEADER_SIZE_BYTES = _HEADER.size
_CHECKED_SIZE = _CHECKED_HEADER.size
_ADD_FLAGS = (b"\x00", b"\x01")


class LedgerEntry(NamedTuple):
    """One entry of a ledger. `length` is cumulative, this body included; `lac` is −1 for none."""

    ledger_id: int
    nonce: int
    entry_id: int
    lac: int
    length: int
    body: bytes


class EntryHeader(NamedTuple):
    """The header of an entry, unchecked."""

    ledger_id: int
    nonce: int
    entry_id: int
    lac: int
    length: int
    crc: int


class ReadRequest(NamedTuple):
    """A READ: entries `first`…`last` inclusive of a ledger, about `bytes_max` of them; `fence` first or not."""

    ledger_id: int
    nonce: int
    first: int
    last: int
    bytes_max: int
    fence: bool


class LedgerEnd(NamedTuple):
    """What a bookie knows of a ledger's end: highest LAC in a stored entry and highest stored entry id, −1 for none."""

    lac: int
    last_entry: int


# ---- Entries ----


def encode_entry_header(
    ledger_id: int, nonce: int, entry_id: int, lac: int, length: int, body: bytes | memoryview
) -> bytes:
    """The 44 bytes that go before `body`."""
    checked = _CHECKED_HEADER.pack(ledger_id, nonce, entry_id, lac, length)
    return checked + _CRC.pack(crc32c(body, crc32c(checked)))


def decode_entry_header(data: bytes | bytearray | memoryview) -> EntryHeader:
    """The header at the beginning of `data`, its checksum not looked at; EntryCorrupt if it is not all there."""
    if len(data) < ENTRY_HEADER_SIZE_BYTES:
        raise EntryCorrupt("a ledger entry is shorter than its header", size_bytes=len(data))
    return EntryHeader(*_HEADER.unpack_from(data))


def decode_entry(data: bytes | bytearray | memoryview, verify: bool = True) -> LedgerEntry:
    """The entry in `data`, body copied; EntryCorrupt if cut off or (with `verify`) its checksum does not match."""
    ledger_id, nonce, entry_id, lac, length, crc = decode_entry_header(data)
    view = memoryview(data)
    body = view[ENTRY_HEADER_SIZE_BYTES:]
    if verify and crc32c(body, crc32c(view[:_CHECKED_SIZE])) != crc:
        raise EntryCorrupt("the checksum of a ledger entry does not match", ledger_id=ledger_id, entry_id=entry_id)
    return LedgerEntry(ledger_id, nonce, entry_id, lac, length, bytes(body))


def entry_intact(data: bytes | bytearray | memoryview) -> bool:
    """Whether `data` is a whole entry whose checksum matches."""
    if len(data) < ENTRY_HEADER_SIZE_BYTES:
        return False
    view = memoryview(data)
    crc: int = _CRC.unpack_from(view, _CHECKED_SIZE)[0]
    return crc32c(view[ENTRY_HEADER_SIZE_BYTES:], crc32c(view[:_CHECKED_SIZE])) == crc


# ---- ADD ----


def encode_add(entry_header: bytes, body: bytes, recovery: bool = False) -> tuple[bytes, bytes, bytes]:
    """The payload of an ADD in parts, so that the body is not copied."""
    return _ADD_FLAGS[recovery], entry_header, body


def decode_add(payload: bytes | memoryview) -> tuple[bool, memoryview]:
    """`(recovery, entry bytes)` of an ADD; ProtocolError if malformed. The entry is not verified here."""
    if len(payload) <= ENTRY_HEADER_SIZE_BYTES:
        raise ProtocolError("an ADD holds no entry", size_bytes=len(payload))
    flags = payload[0]
    if flags & ~ADD_FLAG_RECOVERY:
        raise ProtocolError(f"an ADD has unknown flags {flags}", flags=flags)
    return flags == ADD_FLAG_RECOVERY, memoryview(payload)[1:]


# ---- READ ----


def encode_read(ledger_id: int, nonce: int, first: int, last: int, bytes_max: int, fence: bool = False) -> bytes:
    """The payload of a READ of entries `first`…`last`, both inclusive."""
    return _READ_REQUEST.pack(ledger_id, nonce, first, last, bytes_max, READ_FLAG_FENCE if fence else 0)


def decode_read(payload: bytes | memoryview) -> ReadRequest:
    """A READ's request; ProtocolError if malformed or the range is empty."""
    if len(payload) != _READ_REQUEST.size:
        raise ProtocolError("a READ has the wrong size", size_bytes=len(payload))
    ledger_id, nonce, first, last, bytes_max, flags = _READ_REQUEST.unpack(payload)
    if flags & ~READ_FLAG_FENCE:
        raise ProtocolError(f"a READ has unknown flags {flags}", flags=flags)
    if first > last or last > ENTRY_ID_MAX:
        raise ProtocolError("a READ asks for an impossible range", first=first, last=last)
    return ReadRequest(ledger_id, nonce, first, last, bytes_max, flags == READ_FLAG_FENCE)


def encode_read_answer(next_entry_id: int, entries: list[bytes]) -> list[bytes]:
    """The payload of an OK answer to a READ, in parts, entries uncopied. `next_entry_id` is the first not examined."""
    parts = [_READ_ANSWER.pack(next_entry_id)]
    for entry in entries:
        parts.append(_CRC.pack(len(entry)))
        parts.append(entry)
    return parts


def decode_read_answer(payload: bytes | memoryview) -> tuple[int, list[memoryview]]:
    """`(next entry id, entries)` of an OK answer to a READ; ProtocolError if malformed. Entries are not verified."""
    size = len(payload)
    if size < _READ_ANSWER.size:
        raise ProtocolError("a READ's answer is cut off", size_bytes=size)
    view = memoryview(payload)
    next_entry_id: int = _READ_ANSWER.unpack_from(view)[0]
    entries: list[memoryview] = []
    position = _READ_ANSWER.size
    while position < size:
        start = position + _CRC.size
        if start > size:
            raise ProtocolError("a READ's answer is cut off", size_bytes=size)
        entry_size: int = _CRC.unpack_from(view, position)[0]
        position = start + entry_size
        if entry_size < ENTRY_HEADER_SIZE_BYTES or position > size:
            raise ProtocolError("a READ's answer holds an impossible entry", size_bytes=entry_size)
        entries.append(view[start:position])
    return next_entry_id, entries


# ---- FENCE, READ_LAC ----


def encode_ledger(ledger_id: int, nonce: int) -> bytes:
    """The payload of a FENCE or READ_LAC."""
    return _LEDGER.pack(ledger_id, nonce)


def decode_ledger(payload: bytes | memoryview) -> tuple[int, int]:
    """`(ledger id, nonce)` of a FENCE or READ_LAC; ProtocolError if malformed."""
    if len(payload) != _LEDGER.size:
        raise ProtocolError("a ledger id has the wrong size", size_bytes=len(payload))
    ledger_id, nonce = _LEDGER.unpack(payload)
    return ledger_id, nonce


def encode_ledger_end(lac: int, last_entry: int) -> bytes:
    """The payload of an OK answer to FENCE or READ_LAC."""
    return _LEDGER_STATE.pack(lac, last_entry)


def decode_ledger_end(payload: bytes | memoryview) -> LedgerEnd:
    """An OK answer to FENCE or READ_LAC; ProtocolError if malformed."""
    if len(payload) != _LEDGER_STATE.size:
        raise ProtocolError("a ledger's state has the wrong size", size_bytes=len(payload))
    lac, last_entry = _LEDGER_STATE.unpack(payload)
    if lac < -1 or last_entry < -1:
        raise ProtocolError("a ledger's state holds an impossible id", lac=lac, last_entry=last_entry)
    return LedgerEnd(lac, last_entry)


# ---- Statuses as errors ----

_STATUS_ERRORS: dict[int, tuple[type[MagnetarError], str]] = {
    BookieStatus.NO_SUCH_ENTRY: (NoSuchEntry, "the bookie has no such entry"),
    BookieStatus.NO_SUCH_LEDGER: (NoSuchLedger, "the bookie does not know the ledger"),
    BookieStatus.FENCED: (LedgerFenced, "the ledger is fenced"),
    BookieStatus.READ_ONLY: (BookieReadOnly, "the bookie is read-only: check its disk"),
    BookieStatus.UNKNOWN: (EntryUnknown, "the bookie cannot say whether it has the entry"),
    BookieStatus.CORRUPT: (EntryCorrupt, "the bookie's copy of the entry is damaged"),
    BookieStatus.BAD_REQUEST: (ProtocolError, "the bookie did not understand the request"),
    BookieStatus.TOO_LARGE: (FrameTooLarge, "the entry is larger than the bookie accepts"),
    BookieStatus.IO_ERROR: (StorageFailed, "the bookie's disk failed"),
    BookieStatus.CONFLICT: (DigestConflict, "the bookie holds other bytes under the same ids"),
    BookieStatus.OVERLOADED: (BookieUnavailable, "the bookie is overloaded"),
    BookieStatus.FOREIGN: (
        ForeignLedger,
        "the bookie holds another ledger with this id, from before a restore of the metadata",
    ),
    STATUS_DISCONNECTED: (EntryUnknown, "the connection to the bookie ended before the answer"),
}


def error_for_status(status: int, **details: object) -> MagnetarError:
    """The error that a status other than OK stands for; an unknown status is a LedgerError."""
    unknown = (LedgerError, f"the bookie answered with unknown status {status}")
    error_class, message = _STATUS_ERRORS.get(status, unknown)
    return error_class(message, status=status, **details)
