"""What brokers and bookies say to each other: every codec, and every way the bytes can be wrong."""

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from magnetar.protocol import bookie_wire as wire
from magnetar.protocol import errors
from magnetar.protocol.bookie_wire import BookieStatus

UINT64 = st.integers(0, (1 << 64) - 1)
IDS = st.integers(0, wire.ENTRY_ID_MAX)
LACS = st.integers(-1, wire.ENTRY_ID_MAX)


def entry(
    ledger_id: int = 1, entry_id: int = 2, lac: int = 1, length: int = 3, body: bytes = b"abc", nonce: int = 9
) -> bytes:
    return wire.encode_entry_header(ledger_id, nonce, entry_id, lac, length, body) + body


@given(UINT64, UINT64, UINT64, LACS, UINT64, st.binary(max_size=50))
def test_entry_round_trip(ledger_id: int, nonce: int, entry_id: int, lac: int, length: int, body: bytes) -> None:
    data = entry(ledger_id, entry_id, lac, length, body, nonce)
    assert wire.decode_entry(data) == (ledger_id, nonce, entry_id, lac, length, body)
    assert wire.decode_entry(memoryview(data)) == (ledger_id, nonce, entry_id, lac, length, body)
    assert wire.decode_entry_header(data)[:5] == (ledger_id, nonce, entry_id, lac, length)
    assert wire.entry_intact(data)


def test_entry_layout() -> None:
    head = bytes.fromhex("0000000000000001 0000000000000009 0000000000000002 ffffffffffffffff 0000000000000003")
    assert entry(lac=-1) == head + crc32c(head + b"abc").to_bytes(4, "big") + b"abc"
    assert wire.ENTRY_HEADER_SIZE_BYTES == 44


@given(st.integers(0, 38), st.integers(1, 255))
def test_every_changed_byte_is_noticed(position: int, change: int) -> None:
    data = bytearray(entry())
    data[position] ^= change
    assert not wire.entry_intact(data)
    with pytest.raises(errors.EntryCorrupt):
        wire.decode_entry(data)


@given(st.integers(0, 38))
def test_every_cut_is_noticed(size: int) -> None:
    assert not wire.entry_intact(entry()[:size])
    with pytest.raises(errors.EntryCorrupt):
        wire.decode_entry(entry()[:size])


def test_entry_without_verification() -> None:
    assert wire.decode_entry(entry()[:-1], verify=False).body == b"ab"
    with pytest.raises(errors.EntryCorrupt):
        wire.decode_entry(entry()[:43], verify=False)


@pytest.mark.parametrize("recovery", [False, True])
def test_add(recovery: bool) -> None:
    header = wire.encode_entry_header(1, 0, 2, 1, 3, b"abc")
    parts = wire.encode_add(header, b"abc", recovery)
    assert wire.decode_add(b"".join(parts)) == (recovery, header + b"abc")
    assert parts[2] == b"abc"


@pytest.mark.parametrize("payload", [b"", b"\x00", b"\x00" * 44, b"\x02" + entry(), b"\xff" + entry()])
def test_add_refused(payload: bytes) -> None:
    with pytest.raises(errors.ProtocolError):
        wire.decode_add(payload)


@given(UINT64, UINT64, IDS, IDS, st.integers(0, (1 << 32) - 1), st.booleans())
def test_read(ledger_id: int, nonce: int, one: int, other: int, bytes_max: int, fence: bool) -> None:
    first, last = sorted((one, other))
    request = (ledger_id, nonce, first, last, bytes_max, fence)
    assert wire.decode_read(wire.encode_read(*request)) == request


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        bytes(28),
        bytes(30),
        wire.encode_read(1, 0, 2, 1, 10),
        wire.encode_read(1, 0, 0, 1 << 63, 10),
        wire.encode_read(1, 0, 0, 1, 10)[:-1] + b"\x02",
    ],
)
def test_read_refused(payload: bytes) -> None:
    with pytest.raises(errors.ProtocolError):
        wire.decode_read(payload)


@given(UINT64, st.lists(st.binary(max_size=20), max_size=5))
def test_read_answer(next_entry_id: int, bodies: list[bytes]) -> None:
    entries = [entry(body=body) for body in bodies]
    payload = b"".join(wire.encode_read_answer(next_entry_id, entries))
    assert wire.decode_read_answer(payload) == (next_entry_id, entries)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        bytes(7),
        bytes(9),
        bytes(12),
        bytes(8) + (35).to_bytes(4, "big") + bytes(35),
        bytes(8) + (0xFFFFFFFF).to_bytes(4, "big") + bytes(60),
        b"".join(wire.encode_read_answer(1, [entry()]))[:-1],
    ],
)
def test_read_answer_refused(payload: bytes) -> None:
    with pytest.raises(errors.ProtocolError):
        wire.decode_read_answer(payload)


@given(UINT64, UINT64, LACS, LACS)
def test_ledger_and_state(ledger_id: int, nonce: int, lac: int, last_entry: int) -> None:
    assert wire.decode_ledger(wire.encode_ledger(ledger_id, nonce)) == (ledger_id, nonce)
    assert wire.decode_ledger_end(wire.encode_ledger_end(lac, last_entry)) == (lac, last_entry)


def test_ledger_and_state_refused() -> None:
    for payload in (b"", bytes(8), bytes(15), bytes(17)):
        with pytest.raises(errors.ProtocolError):
            wire.decode_ledger(payload)
    for payload in (b"", bytes(15), bytes(17), wire.encode_ledger_end(-2, 0), wire.encode_ledger_end(0, -2)):
        with pytest.raises(errors.ProtocolError):
            wire.decode_ledger_end(payload)


def test_statuses_as_errors() -> None:
    expected = {
        BookieStatus.NO_SUCH_ENTRY: errors.NoSuchEntry,
        BookieStatus.NO_SUCH_LEDGER: errors.NoSuchLedger,
        BookieStatus.FENCED: errors.LedgerFenced,
        BookieStatus.READ_ONLY: errors.BookieReadOnly,
        BookieStatus.UNKNOWN: errors.EntryUnknown,
        BookieStatus.CORRUPT: errors.EntryCorrupt,
        BookieStatus.BAD_REQUEST: errors.ProtocolError,
        BookieStatus.TOO_LARGE: errors.FrameTooLarge,
        BookieStatus.IO_ERROR: errors.StorageFailed,
        BookieStatus.CONFLICT: errors.DigestConflict,
        BookieStatus.OVERLOADED: errors.BookieUnavailable,
        BookieStatus.FOREIGN: errors.ForeignLedger,
        254: errors.EntryUnknown,
        99: errors.LedgerError,
    }
    for status, error_class in expected.items():
        error = wire.error_for_status(status, bookie="bookie-1")
        assert type(error) is error_class
        assert error.details == {"status": status, "bookie": "bookie-1"}
    assert {int(status) for status in BookieStatus} - {0} <= set(map(int, expected))
