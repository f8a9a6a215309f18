"""The file of a metadata backup: every record of one moment, with checksums, read and written in bounded memory.

    file  = magic(8) block…
    block = kind(1) size(4) crc(4) body(size)          numbers are big-endian, the CRC32C covers kind, size and body

| kind | body |
| --- | --- |
| 1 HEAD | msgpack map: `format`, `cluster_id`, `created_ms`, `floor`, `source`, `release` |
| 2 RECORDS | zstd of a msgpack list of [key, version, value], keys ascending over the whole file |
| 3 END | msgpack map: `records`, their number, and `digest`, the SHA-256 of all bytes before this block |

A file without its END is not whole: its writer was interrupted, or it was cut. `write_backup` writes beside the wanted
name, syncs, and renames. So a file under the wanted name is whole. It never replaces an older file.

Nothing that is read is trusted. What is not as described raises BackupDamaged, and a later format FormatTooNew. A
reader knows that all of a file is right only behind its END. So `check_backup` reads a whole file before any of it is
used.
"""

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import zstandard
from crc32c import crc32c

from ...protocol.errors import BackupDamaged, ClusterError, FormatTooNew, ProtocolError
from ...protocol.names import VERSION
from ...protocol.plain_values import is_list, is_text_map
from ...runtime.files import File, Files
from ...runtime.rpc.messages import pack, unpack

MAGIC = b"MGNTRMB1"
FORMAT = 1
HEAD, RECORDS, END = 1, 2, 3
_BLOCK = struct.Struct(">BI")
_CRC = struct.Struct(">I")
BLOCK_RECORDS_MAX = 1000
BLOCK_SIZE_BYTES = 1 << 20
"""Of packed records, at which a block ends. One record may have 16 MiB."""
BODY_SIZE_MAX_BYTES = 32 << 20

CountRecords = Callable[[int], None]
"""Told how many records there are so far."""


class MetadataRecord(NamedTuple):
    key: str
    version: int
    value: bytes


@dataclass(frozen=True)
class BackupHead:
    """What a backup is of. `floor` is the store's (see `metadata.store`), `source` the kind of database."""

    cluster_id: str
    created_ms: int
    floor: int
    source: str
    release: str = VERSION

    def pack(self) -> bytes:
        return pack({"format": FORMAT, **self.__dict__})

    @staticmethod
    def unpack(body: bytes) -> "BackupHead":
        """Raises BackupDamaged, FormatTooNew."""
        fields = _map(body)
        found = fields.get("format")
        if isinstance(found, int) and found > FORMAT:
            raise FormatTooNew(
                f"the backup has format {found}, written by Magnetar {fields.get('release')}, and this version reads "
                f"format {FORMAT}: use that version or a later one"
            )
        texts = [one for name in ("cluster_id", "source", "release") if isinstance(one := fields.get(name), str)]
        numbers = [one for name in ("created_ms", "floor") if isinstance(one := fields.get(name), int) and one >= 0]
        if found != FORMAT or len(texts) != 3 or len(numbers) != 2:
            raise BackupDamaged("the head of the backup lacks a field, or one is of another kind")
        return BackupHead(texts[0], numbers[0], numbers[1], texts[1], texts[2])


@dataclass(frozen=True)
class CheckedBackup:
    """A backup of which every byte was read and found right. `digest` names it."""

    path: str
    head: BackupHead
    records: int
    digest: str


def write_backup(
    files: Files, path: str, head: BackupHead, records: Iterable[MetadataRecord], progress: CountRecords | None = None
) -> int:
    """Write a backup and return the number of its records. Raises ClusterError if the file exists, DiskFull, OSError.

    What raises while `records` are read leaves nothing behind.
    """
    if files.exists(path):
        raise ClusterError(f"{path} exists already: choose another name for the backup")
    partial = path + ".partial"
    if files.exists(partial):
        files.remove(partial)  # of a backup that was interrupted
    file = files.open(partial, create=True)
    try:
        count = _write(file, head, records, progress)
        file.sync()
    except BaseException:
        file.close()
        files.remove(partial)
        raise
    file.close()
    files.rename(partial, path)
    files.sync_directory(path.rpartition("/")[0] or ".")
    return count


def _write(file: File, head: BackupHead, records: Iterable[MetadataRecord], progress: CountRecords | None) -> int:
    digest = hashlib.sha256()
    offset = 0

    def put(data: bytes) -> None:
        nonlocal offset
        digest.update(data)
        file.write_at(offset, [data])
        offset += len(data)

    put(MAGIC)
    put(_block(HEAD, head.pack()))
    compressor = zstandard.ZstdCompressor()
    count = size = 0
    page: list[MetadataRecord] = []
    for record in records:
        page.append(record)
        size += len(record.key) + len(record.value)
        if len(page) >= BLOCK_RECORDS_MAX or size >= BLOCK_SIZE_BYTES:
            put(_block(RECORDS, compressor.compress(pack(page))))
            count += len(page)
            page, size = [], 0
            if progress is not None:
                progress(count)
    if page:
        put(_block(RECORDS, compressor.compress(pack(page))))
        count += len(page)
    put(_block(END, pack({"records": count, "digest": digest.hexdigest()})))
    return count


def _block(kind: int, body: bytes) -> bytes:
    head = _BLOCK.pack(kind, len(body))
    return head + _CRC.pack(crc32c(body, crc32c(head))) + body


def check_backup(files: Files, path: str, progress: CountRecords | None = None) -> CheckedBackup:
    """Read a whole backup. Raises BackupDamaged, FormatTooNew, OSError."""
    reader = _Reader(files, path)
    try:
        count = 0
        for page in reader.pages():
            count += len(page)
            if progress is not None:
                progress(count)
        assert reader.head is not None
        return CheckedBackup(path, reader.head, count, reader.digest)
    finally:
        reader.close()


def read_records(files: Files, backup: CheckedBackup) -> Iterator[MetadataRecord]:
    """The records of a checked backup. Raises BackupDamaged if the file has changed since, OSError."""
    reader = _Reader(files, backup.path)
    try:
        for page in reader.pages():
            yield from page
        if reader.digest != backup.digest:
            raise BackupDamaged(f"the backup {backup.path} has changed while it was read")
    finally:
        reader.close()


class _Reader:
    """One pass over a file. `head` is known with the first page, `digest` behind the last one."""

    def __init__(self, files: Files, path: str) -> None:
        if not files.exists(path):
            raise ClusterError(f"there is no backup {path}")
        self.head: BackupHead | None = None
        self.digest = ""
        self._path = path
        self._file = files.open(path)
        self._offset = 0
        self._hash = hashlib.sha256()

    def close(self) -> None:
        self._file.close()

    def pages(self) -> Iterator[list[MetadataRecord]]:
        """All records, a block at a time."""
        magic = self._take(len(MAGIC))
        if magic != MAGIC:
            raise self._not_a_backup(magic)
        kind, body = self._next_block()
        if kind != HEAD:
            raise self._damaged("it does not begin with a head")
        self.head = BackupHead.unpack(body)
        last_key = ""
        count = 0
        while True:
            before = self._hash.hexdigest()
            kind, body = self._next_block()
            if kind == END:
                break
            if kind != RECORDS:
                raise self._damaged(f"it has a block of kind {kind}")
            page = self._records(body)
            for record in page:
                if record.key <= last_key:
                    raise self._damaged(f"the record {record.key} is out of order")
                last_key = record.key
            count += len(page)
            yield page
        if _map(body) != {"records": count, "digest": before}:
            raise self._damaged("its end does not match its contents")
        if self._file.size() != self._offset:
            raise self._damaged("something follows its end")
        self.digest = self._hash.hexdigest()

    def _next_block(self) -> tuple[int, bytes]:
        head = self._take(_BLOCK.size)
        kind, size = _BLOCK.unpack(head)
        if size > BODY_SIZE_MAX_BYTES:
            raise self._damaged(f"a block claims {size} bytes")
        (crc,) = _CRC.unpack(self._take(_CRC.size))
        body = self._take(size)
        if crc32c(body, crc32c(head)) != crc:
            raise self._damaged("a block fails its checksum")
        return kind, body

    def _take(self, size: int) -> bytes:
        data = self._file.read_at(self._offset, size)
        if len(data) < size:
            raise self._damaged("it ends early, so its writer was interrupted or it was cut")
        self._offset += size
        self._hash.update(data)
        return data

    def _records(self, body: bytes) -> list[MetadataRecord]:
        try:
            if not 0 <= zstandard.frame_content_size(body) <= BODY_SIZE_MAX_BYTES:
                raise self._damaged("a block of records has an impossible size")
            rows: object = unpack(zstandard.ZstdDecompressor().decompress(body))
        except (zstandard.ZstdError, ProtocolError) as error:
            raise self._damaged(str(error)) from error
        if not is_list(rows):
            raise self._damaged("a block of records is no list")
        page: list[MetadataRecord] = []
        for row in rows:
            if not is_list(row) or len(row) != 3:
                raise self._damaged("a record is not a key, a version and a value")
            key, version, value = row
            if not isinstance(key, str) or not isinstance(version, int) or not isinstance(value, bytes) or version < 0:
                raise self._damaged("a record is not a key, a version and a value")
            page.append(MetadataRecord(key, version, value))
        return page

    def _not_a_backup(self, magic: bytes) -> Exception:
        if magic[:-1] == MAGIC[:-1] and magic[-1:] > MAGIC[-1:]:
            return FormatTooNew(f"{self._path} is a backup of a later version of Magnetar: use that version")
        return BackupDamaged(f"{self._path} is no backup of Magnetar's metadata")

    def _damaged(self, why: str) -> BackupDamaged:
        return BackupDamaged(f"the backup {self._path} is damaged: {why}. Use another backup")


def _map(body: bytes) -> dict[str, object]:
    try:
        fields = unpack(body)
    except ProtocolError as error:
        raise BackupDamaged(f"the backup is damaged: {error}") from error
    if not is_text_map(fields):
        raise BackupDamaged("the backup is damaged: a block is no map")
    return dict(fields)
