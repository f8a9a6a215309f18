"""Targets: a bookie's files after any damage.

`storage` damages the files of a bookie that stopped and starts it again. Then, of all that was answered before:

- an entry reads as it was, or not at all; never as anything else;
- outside limbo nothing is absent, except where the end of the last journal was torn: a lost record with an intact
  later batch behind it is corruption, and corruption means limbo;
- in limbo, nothing is said to be absent; a fence that could have been lost refuses;
- the next start comes to the same judgement.

`files` reads single files of any content, with checksums that hold where the input wants it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from struct import Struct
from typing import Any

from crc32c import crc32c

from magnetar.protocol.bookie_wire import BookieStatus
from magnetar.protocol.errors import CookieMismatch, EntryCorrupt, FormatTooNew
from magnetar.runtime.rpc.messages import unpack
from magnetar.storage.bookie.checkpoint import CHECKPOINT_NAME, Checkpoint
from magnetar.storage.bookie.compaction import Compactor
from magnetar.storage.bookie.cookie import COOKIE_NAME, read_cookie
from magnetar.storage.bookie.records import (
    ENTRY_HEAD,
    ENTRY_HEAD_SIZE,
    KIND_BEGIN,
    KIND_COMMIT,
    KIND_ENTRY,
    KIND_FENCE,
    KIND_LOST,
    KIND_TOMBSTONE,
    RECORD_HEADER_SIZE,
    Scan,
    digest_of,
    encode_file_header,
    encode_record_header,
    file_seed,
)
from magnetar.storage.bookie.segment import JOURNAL_SUFFIX, parse_segment_name
from magnetar.storage.bookie.segment_index import Rows, decode_table, encode_index
from support.files.faulty_files import FaultyFiles
from support.stores.bookie_kit import DIRECTORY, INSTANCE, Bookie, body_of

from .loop import make_env, run
from .mutation import SIZE_MAX_BYTES, make_odd, mutate
from .records import pack_odd
from .target import Target, Wrong, quietly

S = BookieStatus
SEGMENT_BYTES = 4096
_FENCED, _DELETED, _COMPACTED = 2, 4, 5


@dataclass
class Record:
    """A record of an unsealed journal. `key` is (ledger, entry), (ledger, −1) for a fence, None for the rest."""

    name: str
    file_id: int
    offset: int
    end: int
    batch_start: int
    key: tuple[int, int] | None


@dataclass
class Image:
    """The files of a bookie that stopped, and what it had answered."""

    files: dict[str, bytes]
    entries: dict[tuple[int, int], bytes]
    records: list[Record] = field(default_factory=list[Record])

    def __post_init__(self) -> None:
        checkpoint = Checkpoint.decode(self.files[CHECKPOINT_NAME])
        sealed = {(file_id, kind) for file_id, kind, _ in checkpoint.segments}
        for name in sorted(self.files):
            found = parse_segment_name(name)
            if found is None or found in sealed or found[1] != JOURNAL_SUFFIX:
                continue
            data, seed = self.files[name], file_seed(INSTANCE, found[0])
            scan = Scan(_reader(data), len(data), found[0], seed)
            for record in scan:
                key = None
                if record.kind == KIND_ENTRY:
                    key = ENTRY_HEAD.unpack_from(record.body)[1:4:2]
                elif record.kind == KIND_FENCE:
                    key = (int.from_bytes(record.body[:8], "big"), -1)
                start = int.from_bytes(data[record.offset + 8 : record.offset + 12], "big")
                end = record.offset + RECORD_HEADER_SIZE + len(record.body)
                self.records.append(Record(name, found[0], record.offset, end, start, key))

    def unseen_end(self, name: str) -> int:
        """Where the interesting part of a file ends: behind it are zeros only."""
        return len(self.files[name].rstrip(b"\0")) + 24


def _reader(data: bytes) -> Callable[[int, int], bytes]:
    return lambda offset, length: data[offset : offset + length]


# ---- Images ----

_images: list[Image] = []


async def _make_images() -> None:
    for make in (_one_journal, _several_journals, _compacted_segments):
        files = FaultyFiles(1)
        bookie = await Bookie.started(files, env=make_env(files), segment_bytes=SEGMENT_BYTES)
        entries = await make(bookie)
        kept = {name: files.read_bytes(f"{DIRECTORY}/{name}") for name in files.list(DIRECTORY)}
        _images.append(Image(kept, entries))
        await bookie.store.close()


async def _add(bookie: Bookie, ledger_id: int, ids: range, size: int = 100) -> dict[tuple[int, int], bytes]:
    await bookie.add_many(ledger_id, ids, size)
    return {(ledger_id, entry_id): body_of(ledger_id, entry_id, size) for entry_id in ids}


async def _one_journal(bookie: Bookie) -> dict[tuple[int, int], bytes]:
    entries = await _add(bookie, 1, range(3))
    await bookie.fence(_FENCED)
    for start in range(3, 12, 3):
        entries |= await _add(bookie, 1, range(start, start + 3))
    return entries


async def _several_journals(bookie: Bookie) -> dict[tuple[int, int], bytes]:
    entries: dict[tuple[int, int], bytes] = {}
    for start in range(0, 30, 5):
        entries |= await _add(bookie, 1, range(start, start + 5), 90)
        entries |= await _add(bookie, 3, range(start, start + 2), 700)
    await bookie.fence(_FENCED)
    return entries | await _add(bookie, 1, range(30, 36), 40)


async def _compacted_segments(bookie: Bookie) -> dict[tuple[int, int], bytes]:
    entries: dict[tuple[int, int], bytes] = {}
    await bookie.fence(_FENCED)
    for start in range(0, 20, 5):
        entries |= await _add(bookie, _COMPACTED, range(start, start + 5))
        await _add(bookie, _DELETED, range(start, start + 5), 500)
    await bookie.store.add_tombstones([_DELETED])
    compactor = Compactor(bookie.store.entries, bytes_per_s=1 << 40)
    await compactor.run(0.9)
    await compactor.close()
    return entries | await _add(bookie, 1, range(5))


# ---- Damage ----

_OP = Struct(">BBIH")
_OPS_MAX = 8


def damage(image: Image, data: bytes) -> dict[str, bytes]:
    """The image's files after the operations in `data`, eight bytes each."""
    files = {name: bytearray(content) for name, content in image.files.items()}
    names = sorted(files)
    for start in range(0, min(len(data), _OPS_MAX * _OP.size) // _OP.size * _OP.size, _OP.size):
        op, which, offset, argument = _OP.unpack_from(data, start)
        name = names[which % len(names)]
        other = names[argument % len(names)]
        if name not in files:
            continue
        content = files[name]
        at = offset % max(1, image.unseen_end(name))
        span = slice(at, at + argument % 1500)
        match op % 15:
            case 0 | 1 if at < len(content):
                content[at] ^= 1 << argument % 8
            case 2 if at < len(content):
                content[at] = argument & 0xFF
            case 3:
                content[span] = bytes(len(content[span]))
            case 4:
                content[span] = b"\xff" * len(content[span])
            case 5:
                del content[at:]
            case 6:
                del content[span]
            case 7:
                content[at:at] = Random(argument).randbytes(argument % 100)
            case 8:
                source = (at * 31 + argument) % max(1, len(content))
                content[span] = content[source : source + len(content[span])]
            case 9:
                del files[name]
            case 10 if other in files:
                files[name], files[other] = files[other], files[name]
            case 11 if other in files:
                files[name] = bytearray(files[other])
            case 12:
                content += Random(argument).randbytes(argument % 700)
            case 13:
                content[at:] = bytes(len(content[at:]))
            case _:
                sector = at // 512 * 512
                content[sector : sector + 512] = bytes(len(content[sector : sector + 512]))
    return {name: bytes(content[: 1 << 16]) for name, content in files.items()}


def may_be_absent(image: Image, files: dict[str, bytes], key: tuple[int, int]) -> bool:
    """Whether nothing in the files proves that the record of `key` was once complete: it was in the last batch that
    anything is left of.
    """
    lost = [record for record in image.records if record.key == key]
    if not lost:
        return False  # in a sealed segment or in the checkpoint
    last = lost[-1]
    broken = {
        (record.file_id, record.batch_start)
        for record in image.records
        if files.get(record.name, b"")[record.offset : record.end]
        != image.files[record.name][record.offset : record.end]
    }
    for record in image.records:
        batch = (record.file_id, record.batch_start)
        content = files.get(record.name, b"")
        intact = content[record.offset : record.end] == image.files[record.name][record.offset : record.end]
        if record.file_id == last.file_id and record.batch_start > last.offset and intact:
            return False
        if record.file_id > last.file_id and batch not in broken:
            return False
    return True


# ---- The target ----


async def _read_all(bookie: Bookie, image: Image) -> dict[tuple[int, int], BookieStatus]:
    """The status of each entry; what is OK was compared."""
    found: dict[tuple[int, int], BookieStatus] = {}
    for key, body in image.entries.items():
        tries = 0
        status, _, entries = await bookie.read(*key, key[1])
        while status == S.IO_ERROR and tries < 12:
            await asyncio.sleep(0.1)  # a damaged index is built again in the meantime
            status, _, entries = await bookie.read(*key, key[1])
            tries += 1
        if status == S.OK and entries != {key[1]: body}:
            raise Wrong(f"entry {key} is not what was written: {entries}")
        found[key] = status
    return found


async def _judge(image: Image, files: dict[str, bytes], bookie: Bookie) -> dict[tuple[int, int], BookieStatus]:
    limbo = bookie.store.limbo
    found = await _read_all(bookie, image)
    limbo_later = bookie.store.limbo
    for key, status in found.items():
        if status in (S.OK, S.CORRUPT) or (status == S.UNKNOWN and limbo_later):
            continue
        if status in (S.NO_SUCH_ENTRY, S.NO_SUCH_LEDGER) and not limbo and may_be_absent(image, files, key):
            continue
        raise Wrong(f"entry {key} reads as {status.name}, limbo: {limbo!r}")
    absent = {(await bookie.read(ledger_id, 999, 999))[0] for ledger_id in (1, 77)}
    if not absent <= {S.NO_SUCH_ENTRY, S.NO_SUCH_LEDGER, S.UNKNOWN}:
        raise Wrong(f"entries that never were read as {absent}")
    status = await bookie.add(_FENCED, 1000)
    if status not in (S.FENCED, S.READ_ONLY) and (limbo or not may_be_absent(image, files, (_FENCED, -1))):
        raise Wrong(f"an add to a fenced ledger got {status.name}, limbo: {limbo!r}")
    status = await bookie.add(9, 0)
    if status != (S.READ_ONLY if limbo_later else S.OK):
        raise Wrong(f"an add to a new ledger got {status.name}, limbo: {limbo!r}")
    return found


async def _start(files: FaultyFiles) -> Bookie:
    bookie = Bookie(files, env=make_env(files), segment_bytes=SEGMENT_BYTES)
    await bookie.store.open()
    return bookie


async def _main(data: bytes) -> None:
    if not _images:
        await _make_images()
    image = _images[(data[0] if data else 0) % len(_images)]
    damaged = damage(image, data[1:])
    files = FaultyFiles()
    files.make_directory(DIRECTORY)
    for name, content in damaged.items():
        file = files.open(f"{DIRECTORY}/{name}", create=True)
        file.write_at(0, [content])
        file.sync()
    files.sync_directory(DIRECTORY)
    try:
        bookie = await _start(files)
    except CookieMismatch:
        if CHECKPOINT_NAME in damaged:
            raise
        return
    found = await _judge(image, damaged, bookie)
    limbo = bookie.store.limbo
    await bookie.store.close()
    if bookie.fatal:
        raise Wrong(f"the bookie stopped: {bookie.fatal}")
    again = await _start(files)
    if limbo and not again.store.limbo:
        raise Wrong(f"limbo was forgotten: {limbo}")
    for key, status in (await _read_all(again, image)).items():
        if found[key] == S.OK and status != S.OK:
            raise Wrong(f"entry {key} was there, and reads as {status.name} after the next start")
    await again.store.close()


def make(random: Random) -> bytes:
    data = random.randbytes(1)
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 6))):
        data += _OP.pack(random.randrange(15), random.randrange(256), random.getrandbits(32), random.getrandbits(16))
    return data


# ---- Single files ----

_FILE_ID = 7
_SEED = file_seed(INSTANCE, _FILE_ID)
_BODY_SIZES = {KIND_FENCE: 16, KIND_TOMBSTONE: 8, KIND_COMMIT: 0, KIND_BEGIN: 16, KIND_LOST: 24}


def _entry_body(random: Random) -> bytes:
    content = random.randbytes(random.choice((0, 1, 50, 600)))
    if random.random() < 0.2:
        content = b"\xb7\x4d\x02\x00\x00\x00\x02\x00" * 20  # what looks like records, inside of one
    head = ENTRY_HEAD.pack(0, random.randrange(3), 0, random.randrange(9), -1, 0, 0)
    return head[:-4] + digest_of(head + content).to_bytes(4, "big") + content


def make_segment(random: Random) -> bytes:
    """Whole batches with good checksums, then damage."""
    out = bytearray(encode_file_header(_FILE_ID, _SEED))
    for _ in range(random.randint(1, 5)):
        start = len(out)
        for kind in [*random.choices([*_BODY_SIZES, *[KIND_ENTRY] * 4], k=random.randrange(5)), KIND_COMMIT]:
            if kind == KIND_ENTRY:
                body = _entry_body(random)
                out += encode_record_header(kind, body[:ENTRY_HEAD_SIZE], start, _SEED, len(body)) + body
            else:
                body = random.randbytes(_BODY_SIZES[kind])
                out += encode_record_header(kind, body, start, _SEED) + body
    out += bytes(random.choice((0, 3, 700)))
    return mutate(bytes(out), random) if random.random() < 0.8 else bytes(out)


def take_segment(data: bytes) -> None:
    """A scan ends, its records lie in order inside the file, and each is what its checksum says."""
    scan = Scan(_reader(data), len(data), _FILE_ID, _SEED)
    end = 0
    for record in scan:
        if record.offset < end or data[record.offset + RECORD_HEADER_SIZE :][: len(record.body)] != record.body:
            raise Wrong(f"a record at {record.offset} behind {end}")
        end = record.offset + RECORD_HEADER_SIZE + len(record.body)
        covered = record.body[:ENTRY_HEAD_SIZE] if record.kind == KIND_ENTRY else record.body
        head = data[record.offset : record.offset + RECORD_HEADER_SIZE]
        if int.from_bytes(head[-4:], "big") != crc32c(head[:-4] + bytes(covered), _SEED):
            raise Wrong("a record whose checksum does not hold")
        if record.kind != KIND_ENTRY and len(record.body) != _BODY_SIZES[record.kind]:
            raise Wrong("a record of an impossible size")
        if record.kind == KIND_ENTRY and record.intact is not (
            ENTRY_HEAD.unpack_from(record.body)[6] == digest_of(record.body)
        ):
            raise Wrong("a record's content was misjudged")
    if end and scan.end < end:
        raise Wrong("the log ends before its last record")


def make_index(random: Random) -> bytes:
    rows: dict[int, Rows] = {}
    for ledger_id in range(random.randrange(4)):
        rows[ledger_id] = Rows(0)
        for entry_id in range(random.randrange(1, 9)):
            rows[ledger_id].put(entry_id * random.randint(1, 3), 20 + entry_id * 90, 60, random.getrandbits(32), -1)
    return mutate(encode_index(_FILE_ID, _SEED, 4096, rows)[0], random)


def take_index(data: bytes) -> None:
    """Every column that passes its checksum can be asked."""
    table: Any = quietly(decode_table, _reader(data), _FILE_ID, _SEED, 4096, allowed=(EntryCorrupt,))
    for line in (table or {}).values():
        rows: Any = quietly(Rows.decode, data[line.position : line.position + line.size], line, allowed=(EntryCorrupt,))
        if rows is not None and [row.entry_id for row in rows.between(0, 1 << 62, 1 << 20)] != list(rows.entries):
            raise Wrong("columns are not in order")


def take_checkpoint(data: bytes) -> None:
    """What is read can be written, and means the same then; states of ledgers can be asked."""
    checkpoint: Any = quietly(Checkpoint.decode, data, allowed=(EntryCorrupt,))
    if checkpoint is None:
        return
    again = Checkpoint.decode(checkpoint.encode())
    if (vars(again) | {"tombstones": 0}) != (vars(checkpoint) | {"tombstones": 0}):
        raise Wrong("a checkpoint is not what it was")
    tombstones = checkpoint.tombstones
    if list(again.tombstones) != list(tombstones):
        raise Wrong("other ledgers have tombstones")
    for first, last in tombstones:
        if first > last or first not in tombstones or last not in tombstones or last + 1 in tombstones:
            raise Wrong(f"the ledgers {first} to {last} have bad tombstones")


def make_checkpoint(random: Random) -> bytes:
    limbo = random.choice(("", "lost"))
    checkpoint = Checkpoint(INSTANCE, 9, 5, [(1, ".journal", 4096)], [5, 6], {1: 4, 2: 5}, limbo=limbo)
    for ledger_id in random.choices(range(50), k=random.randrange(20)):
        checkpoint.tombstones.add(ledger_id)
    data = checkpoint.encode()
    if random.random() < 0.4:
        return mutate(data, random)
    fields = unpack(data[12:])
    for _ in range(random.randrange(3)):
        make_odd(fields, random)
    if random.random() < 0.5:
        name = random.choice(("tombstones", "fenced"))
        fields[name] = random.randbytes(random.choice((0, 7, 8, 16, 32)))
    body = pack_odd(fields)
    return data[:8] + crc32c(data[:8] + body).to_bytes(4, "big") + body


def take_cookie(data: bytes) -> None:
    files = FaultyFiles()
    files.write_atomic(f"/b/{COOKIE_NAME}", data)
    quietly(read_cookie, files, "/b", allowed=(CookieMismatch, FormatTooNew))


def make_cookie(random: Random) -> bytes:
    return mutate(b'{"id": "b1", "cluster_id": "c", "instance": "0123456789abcdef"}', random)


_FILES: list[tuple[Callable[[Random], bytes], Callable[[bytes], None]]] = [
    (make_segment, take_segment),
    (make_index, take_index),
    (make_checkpoint, take_checkpoint),
    (make_cookie, take_cookie),
]


def make_file(random: Random) -> bytes:
    which = random.choice((0, 0, 0, 1, 1, 2, 3))
    return bytes([which]) + _FILES[which][0](random)


def take_file(data: bytes) -> None:
    if data:
        _FILES[data[0] % len(_FILES)][1](data[1:SIZE_MAX_BYTES])


TARGETS = [
    Target("storage", make, lambda data: run(_main(data)), share=3),
    Target("files", make_file, take_file),
]
