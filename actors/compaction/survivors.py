"""Which messages a compaction keeps: for each key the last one, unless that is empty. Pure.

A compaction reads the same entries, in the same order, several times. So a message is known by a *code*: the number of
its entry in that order, and its index in the batch. Codes ascend in the order of messages.

What is kept, as in Pulsar:

- Of each key the last message. If that has no payload, or a null value, the key is gone, and so is the message.
- Of messages without a key all of them or none, as `topicCompactionRetainNullKey` says.
- A batch that cannot be read (damaged), or an entry that is no message, is kept whole. An encrypted batch counts as one
  message, with the key of its entry.
- Markers of the broker itself are not kept.

Pulsar keeps only the last chunk of a chunked message, which no consumer can put together. Here a message is kept or
dropped with all its chunks. Chunks of a message that is not complete are kept for `INCOMPLETE_MS`: the rest may come.

Memory: a scan holds one number for each key. When the keys take more than `keys_size_max`, `too_large` says so, and the
caller divides them into shares by a hash. It scans once for each share. What remains of a scan is 8 bytes a message.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import groupby
from typing import NamedTuple
from zlib import crc32

from ...protocol.compacted_batches import is_readable_batch, keep_of_batch, keyed_size, keys_of_batch
from ...protocol.entries import parse_entry
from ...protocol.errors import ChecksumError, ProtocolError
from ...protocol.pulsar_pb2 import MessageMetadata

INDEX_BITS = 20
"""A batch has fewer messages: an entry of 5 MB has room for 870,000."""
WHOLE = (1 << INDEX_BITS) - 1
"""Stands for an index: keep the entry as it is."""
KEYLESS = WHOLE - 1
"""Stands for an index: keep the messages without a key."""
KEY_OVERHEAD_BYTES = 200
"""What Python needs for a key and its number in a dictionary, besides the key's own bytes."""
INCOMPLETE_MS = 3600_000
DECOMPRESSED_SIZE_MAX = 64 << 20
"""A payload may be larger than an entry before it is compressed; one that is larger than this is kept as it is."""


class Share(NamedTuple):
    """The keys whose hash has this remainder."""

    remainder: int
    modulus: int

    def split(self) -> tuple["Share", "Share"]:
        """Two shares of half the size."""
        return Share(self.remainder, 2 * self.modulus), Share(self.remainder + self.modulus, 2 * self.modulus)

    def holds(self, key: bytes) -> bool:
        return crc32(key) % self.modulus == self.remainder


EVERYTHING = Share(0, 1)


class Rules(NamedTuple):
    """What a compaction goes by."""

    retain_null_key: bool
    decompressed_size_max: int
    keys_size_max: int
    now_ms: int


class KeyScan:
    """One pass over all entries for one share of the keys. With `notes` it also sees to what has no key."""

    def __init__(self, rules: Rules, share: Share = EVERYTHING, *, notes: bool = True) -> None:
        self.messages = 0
        """Messages seen that were not compacted away before."""
        self.kept = 0
        """Those that are kept; known with `survivors`."""
        self.deleted = 0
        """Keys that a message without a payload removed. Pulsar counts it and the message before it as one."""
        self.too_large = False
        """Whether the keys take more memory than they may."""
        self._rules = rules
        self._share = share
        self._notes = notes
        self._latest: dict[bytes, int] = {}
        self._chunks: dict[int, list[int]] = {}
        """The code of a message's last chunk → those of the others."""
        self._incomplete: dict[str, tuple[list[int], int]] = {}
        """Of messages of which chunks are missing: the codes by uuid, and when the latest was published."""
        self._noted: array[int] = array("Q")
        self._size_at_most = 0

    def add(self, first: int, entries: Sequence[bytes]) -> None:
        """The next entries; the first of them has the number `first`."""
        keys = len(self._latest)
        for number, entry in enumerate(entries, first):
            self._add(number << INDEX_BITS, entry)
        self._size_at_most += sum(map(len, entries)) + (len(self._latest) - keys) * KEY_OVERHEAD_BYTES
        if self._size_at_most > self._rules.keys_size_max:
            self._size_at_most = self._measure()
            self.too_large = self._size_at_most > self._rules.keys_size_max

    def survivors(self) -> "array[int]":
        """The codes of what is kept, in order. The scan is over."""
        kept = list(self._latest.values())
        self._latest = {}
        self.kept += len(kept)
        if self._chunks:
            kept += [code for last in kept for code in self._chunks.get(last, ())]
        oldest_ms = self._rules.now_ms - INCOMPLETE_MS
        kept += [code for codes, published in self._incomplete.values() if published > oldest_ms for code in codes]
        kept += self._noted
        kept.sort()
        return array("Q", kept)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _measure(self) -> int:
        """The memory that the keys and the chunks take, about. Chunks of messages that are superseded go."""
        if self._chunks:
            latest = set(self._latest.values())
            self._chunks = {last: others for last, others in self._chunks.items() if last in latest}
        return (
            sum(map(len, self._latest))
            + (len(self._latest) + len(self._chunks) + len(self._incomplete)) * KEY_OVERHEAD_BYTES
            + sum(40 * len(others) for others in self._chunks.values())
            + sum(40 * len(codes) for codes, _ in self._incomplete.values())
        )

    def _add(self, code: int, entry: bytes) -> None:
        try:
            metadata, payload = parse_entry(entry, verify=False)
        except ProtocolError:
            self._keep_whole(code)
            return
        if metadata.HasField("marker_type"):
            return
        if is_readable_batch(metadata):
            self._add_batch(code, metadata, payload)
        else:
            self._add_message(code, metadata, payload)

    def _add_batch(self, code: int, metadata: MessageMetadata, payload: memoryview) -> None:
        try:
            keys = keys_of_batch(metadata, payload, self._rules.decompressed_size_max)
        except ProtocolError:
            self._keep_whole(code)
            return
        if len(keys) > KEYLESS:
            self._keep_whole(code)
            return
        latest = self._latest
        holds = None if self._share is EVERYTHING else self._share.holds
        keyless = gone = 0
        for index, (key, size) in enumerate(keys, code):
            if key is None:
                keyless += size >= 0
                gone += size < 0
            elif holds is None or holds(key):
                if size:
                    latest[key] = index
                elif latest.pop(key, None) is not None:
                    self.deleted += 1
        self.messages += len(keys) - gone
        self._size_at_most += metadata.uncompressed_size if metadata.compression else 0
        if keyless and self._notes and self._rules.retain_null_key:
            self.kept += keyless
            self._noted.append(code | KEYLESS)

    def _add_message(self, code: int, metadata: MessageMetadata, payload: memoryview) -> None:
        chunked = metadata.num_chunks_from_msg > 1
        self.messages += not chunked or metadata.chunk_id == 0
        key, size = keyed_size(metadata, payload)
        if key is None:
            if self._notes and self._rules.retain_null_key:
                self.kept += not chunked or metadata.chunk_id == 0
                self._noted.append(code | WHOLE)
            return
        if not self._share.holds(key) or (chunked and not self._complete(code, metadata)):
            return
        if size:
            self._latest[key] = code
        elif self._latest.pop(key, None) is not None:
            self.deleted += 1

    def _complete(self, code: int, metadata: MessageMetadata) -> bool:
        """A chunk. Whether its message is complete with it."""
        codes = [] if metadata.chunk_id == 0 else self._incomplete.pop(metadata.uuid, ([], 0))[0]
        if metadata.chunk_id < metadata.num_chunks_from_msg - 1:
            self._incomplete[metadata.uuid] = ([*codes, code], int(metadata.publish_time))
            return False
        self._incomplete.pop(metadata.uuid, None)
        self._chunks[code] = codes
        return True

    def _keep_whole(self, code: int) -> None:
        self.messages += 1
        if self._notes:
            self.kept += 1
            self._noted.append(code | WHOLE)


def by_entry(scans: Iterable["array[int]"]) -> Iterator[tuple[int, frozenset[int]]]:
    """What several scans keep, entry by entry in order: the entry's number, and the indexes of its messages."""
    for number, codes in groupby(merge(*scans), lambda code: code >> INDEX_BITS):
        yield number, frozenset([code & WHOLE for code in codes])


def keep(entry: bytes, kept: frozenset[int], decompressed_size_max: int) -> bytes:
    """The entry with the messages that are kept; the entry itself where that changes nothing."""
    if WHOLE in kept:
        return entry
    try:
        metadata, payload = parse_entry(entry)
        if not is_readable_batch(metadata):
            return entry
        if KEYLESS in kept:
            keys = keys_of_batch(metadata, payload, decompressed_size_max)
            keyless = [index for index, (key, size) in enumerate(keys) if key is None and size >= 0]
            kept = kept.union(keyless) - {KEYLESS}
        return keep_of_batch(entry, metadata, payload, kept, decompressed_size_max)
    except (ChecksumError, ProtocolError):
        return entry  # its consumers will see that it is damaged


def kept_indexes(entry: bytes, decompressed_size_max: int) -> list[int]:
    """The indexes of a batch's messages that are not compacted away; none for what is no readable batch."""
    try:
        metadata, payload = parse_entry(entry, verify=False)
        if not is_readable_batch(metadata):
            return []
        keys = keys_of_batch(metadata, payload, decompressed_size_max)
    except ProtocolError:
        return []
    return [index for index, (_, size) in enumerate(keys) if size >= 0]
