"""The bytes of segment files: what a scan makes of torn writes and of corruption, everywhere in a file."""

from random import Random

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.protocol.errors import EntryCorrupt
from magnetar.storage.bookie import records as records_module
from magnetar.storage.bookie.records import (
    BEGIN_BODY,
    ENTRY_HEAD,
    ENTRY_HEAD_SIZE,
    FENCE_BODY,
    FILE_HEADER_SIZE,
    KIND_BEGIN,
    KIND_COMMIT,
    KIND_ENTRY,
    KIND_FENCE,
    RECORD_HEADER_SIZE,
    Scan,
    check_entry,
    encode_file_header,
    encode_record_header,
    file_seed,
)
from support.stores.bookie_kit import add_payload, body_of

FILE_ID = 7
SEED = file_seed("instance", FILE_ID)


class FileBuilder:
    """Writes batches the way the journal does."""

    def __init__(self, size=8192, file_id=FILE_ID):
        self.seed = file_seed("instance", file_id)
        self.content = bytearray(size)
        self.content[:FILE_HEADER_SIZE] = encode_file_header(file_id, self.seed)
        self.end = FILE_HEADER_SIZE
        self.entries = []
        self.batches = []

    def batch(self, *records, commit=True):
        start = self.end
        for kind, body in records:
            covered = body[:ENTRY_HEAD_SIZE] if kind == KIND_ENTRY else body
            data = encode_record_header(kind, covered, start, self.seed, len(body)) + body
            if kind == KIND_ENTRY:
                self.entries.append((self.end, len(data), ENTRY_HEAD.unpack_from(body)[1:4:2]))
            self._put(data)
        if commit:
            self._put(encode_record_header(KIND_COMMIT, b"", start, self.seed))
        self.batches.append((start, self.end))
        return self

    def _put(self, data):
        self.content[self.end : self.end + len(data)] = data
        self.end += len(data)

    def scan(self):
        return scan_of(self.content)


def scan_of(content, file_id=FILE_ID):
    data = bytes(content)
    scan = Scan(lambda offset, size: data[offset : offset + size], len(data), file_id, file_seed("instance", file_id))
    return scan, list(scan)


def entries_in(records):
    return [ENTRY_HEAD.unpack_from(record.body)[1:4:2] for record in records if record.kind == KIND_ENTRY]


def three_batches(last_size=200):
    builder = FileBuilder()
    builder.batch((KIND_BEGIN, BEGIN_BODY.pack(6, 99)), (KIND_ENTRY, add_payload(1, 0)))
    builder.batch((KIND_ENTRY, add_payload(1, 1)), (KIND_FENCE, FENCE_BODY.pack(5, 0)), (KIND_ENTRY, add_payload(2, 0)))
    builder.batch((KIND_ENTRY, add_payload(1, 2, body_of(1, 2, last_size))))
    return builder


def test_what_was_written_comes_back_and_nothing_else():
    builder = three_batches()
    scan, records = builder.scan()
    assert entries_in(records) == [(1, 0), (1, 1), (2, 0), (1, 2)]
    assert [record.kind for record in records if record.kind != KIND_ENTRY] == [5, 4, 2, 4, 4]
    assert scan.end == builder.end and not scan.torn and not scan.damaged


def test_an_empty_and_a_full_file_end_cleanly():
    scan, records = FileBuilder().scan()
    assert records == [] and not scan.torn and not scan.damaged and scan.end == FILE_HEADER_SIZE
    builder = three_batches()
    scan, records = scan_of(builder.content[: builder.end])
    assert len(entries_in(records)) == 4 and not scan.torn and not scan.damaged


def test_records_of_another_file_are_not_taken_for_this_ones():
    """Bytes of a deleted segment in a reused block, or a file under a wrong name, must not come to life."""
    other = FileBuilder(file_id=8).batch((KIND_ENTRY, add_payload(9, 9)))
    mine = three_batches()
    mine.content[mine.end : mine.end + other.end - FILE_HEADER_SIZE] = other.content[FILE_HEADER_SIZE : other.end]
    _, records = mine.scan()
    assert (9, 9) not in entries_in(records)
    scan, records = scan_of(other.content, FILE_ID)
    assert records == [] and scan.damaged


def test_a_write_cut_off_at_any_byte_is_torn_and_loses_only_itself():
    builder = three_batches()
    start, end = builder.batches[-1]
    for cut in range(start, end):
        content = builder.content.copy()
        content[cut:] = bytes(len(content) - cut)
        scan, records = scan_of(content)
        assert not scan.damaged, cut
        assert entries_in(records)[:3] == [(1, 0), (1, 1), (2, 0)]
        # All bytes of the entry may be there and only the COMMIT missing: then it may be kept.
        assert len(entries_in(records)) == (4 if cut >= end - RECORD_HEADER_SIZE else 3)
        assert scan.torn or cut == start or cut == end - RECORD_HEADER_SIZE


@settings(max_examples=150)
@given(st.integers(0, 2**32), st.integers(300, 6000))
def test_a_write_that_misses_sectors_is_torn_and_never_damage(seed, size):
    random = Random(seed)
    builder = FileBuilder(size=16384)
    builder.batch((KIND_ENTRY, add_payload(1, 0)))
    start = builder.end
    builder.batch(*((KIND_ENTRY, add_payload(1, n, body_of(1, n, size // 3))) for n in range(1, 4)))
    content = builder.content.copy()
    sectors = range(start // 512, builder.end // 512 + 1)
    missing = [sector for sector in sectors if random.random() < 0.4]
    for sector in missing:
        low, high = max(start, sector * 512), min(builder.end, (sector + 1) * 512)
        content[low:high] = bytes(max(0, high - low))
    scan, records = scan_of(content)
    assert not scan.damaged
    assert entries_in(records)[0] == (1, 0)
    assert [entry for entry in entries_in(records)] == [(1, n) for n in range(len(entries_in(records)))]


def test_a_flipped_bit_in_a_committed_batch_is_damage_or_harmless_never_silent():
    """The heart of "corruption is never absence": every single byte of the file, the last batch included."""
    builder = three_batches()
    everything = entries_in(builder.scan()[1])
    for byte in range(FILE_HEADER_SIZE, builder.end):
        content = builder.content.copy()
        content[byte] ^= 0x10
        scan, records = scan_of(content)
        intact = [ENTRY_HEAD.unpack_from(r.body)[1:4:2] for r in records if r.kind == KIND_ENTRY and r.intact]
        fences = [record for record in records if record.kind == KIND_FENCE]
        complete = intact == everything and len(fences) == 1
        assert complete or scan.damaged, byte
        assert set(intact) <= set(everything)
        if scan.damaged and not scan.lost:
            assert entries_in(records) == everything, "a damaged content leaves the identity known"


def test_a_damaged_file_header_is_damage():
    for byte in range(FILE_HEADER_SIZE):
        content = three_batches().content
        content[byte] ^= 1
        scan, records = scan_of(content)
        assert scan.damaged and len(entries_in(records)) == 4
        scan, records = scan_of(content[:byte] + bytes(FILE_HEADER_SIZE - byte + 4096))
        assert not scan.damaged and not records, "an interrupted creation"


def test_a_whole_missing_batch_in_the_middle_is_damage():
    builder = three_batches()
    start, end = builder.batches[1]
    builder.content[start:end] = bytes(end - start)
    scan, records = builder.scan()
    assert scan.lost == [(start, end)] and entries_in(records) == [(1, 0), (1, 2)]


def test_garbage_of_any_kind_never_makes_a_scan_fail():
    random = Random(3)
    for _ in range(60):
        content = three_batches().content
        for _ in range(random.randint(1, 30)):
            at = random.randrange(len(content))
            content[at : at + random.randint(1, 40)] = random.randbytes(random.randint(1, 40))
        scan, records = scan_of(content)
        assert scan.end <= len(content)
        for record in records:
            assert record.offset + RECORD_HEADER_SIZE + len(record.body) <= len(content)


def summed_bytes(monkeypatch, content):
    """How many bytes a scan of `content` computes checksums over, and the scan."""
    total = 0

    def counting(data, value=0):
        nonlocal total
        total += len(data)
        return crc32c(data, value)

    monkeypatch.setattr(records_module, "crc32c", counting)
    scan, _ = scan_of(content)
    return total, scan


@pytest.mark.parametrize("damaged_byte", [-1, 4], ids=["content", "header"])
def test_the_time_of_a_scan_grows_with_the_file_not_with_the_square_of_its_damage(monkeypatch, damaged_byte):
    """A bookie whose disk lost one bit in each of many records of one batch has to start all the same."""
    count = 400
    builder = FileBuilder(size=1 << 16)
    builder.batch(*((KIND_ENTRY, add_payload(1, entry_id, b"x" * 20)) for entry_id in range(count)))
    whole, _ = summed_bytes(monkeypatch, builder.content)
    for offset, size, (_, entry_id) in builder.entries:
        if entry_id % 2:
            builder.content[offset + damaged_byte % size] ^= 1
    damaged, scan = summed_bytes(monkeypatch, builder.content)
    assert scan.corrupted_entries + len(scan.lost) == count // 2
    assert damaged < 4 * whole


def test_a_payload_full_of_what_looks_like_records_costs_no_more_than_another(monkeypatch):
    """Such a header announces a body of any size; checksums over all of them would take hours."""
    size = 60_000
    fake = b"\xb7\x4d\x02\x00" + (size // 2).to_bytes(4, "big") + bytes(8)
    builder = FileBuilder(size=1 << 16)
    builder.batch((KIND_ENTRY, add_payload(1, 0, fake * (size // len(fake)))))
    builder.content[builder.entries[0][0] + 4] ^= 1
    total, scan = summed_bytes(monkeypatch, builder.content)
    assert len(scan.lost) == 1
    assert total < size


def test_check_entry_accepts_only_the_very_record():
    payload = add_payload(3, 4, body_of(3, 4, 300))
    record = encode_record_header(KIND_ENTRY, payload[:ENTRY_HEAD_SIZE], 16, SEED, len(payload)) + payload
    assert bytes(check_entry(memoryview(record), SEED, 3, 4)) == payload[1:]
    for ledger_id, entry_id, seed in ((3, 5, SEED), (2, 4, SEED), (3, 4, SEED + 1)):
        with pytest.raises(EntryCorrupt):
            check_entry(memoryview(record), seed, ledger_id, entry_id)
    for byte in range(len(record)):
        broken = bytearray(record)
        broken[byte] ^= 4
        with pytest.raises(EntryCorrupt):
            check_entry(memoryview(bytes(broken)), SEED, 3, 4)
    for size in range(len(record)):
        with pytest.raises(EntryCorrupt):
            check_entry(memoryview(record)[:size], SEED, 3, 4)
