"""The outbox of one partition's producer: messages become batches here, on the caller's thread.

Per message it costs two list appends, a sum and a comparison under one lock; encoding waits until the loop takes the
batch. Plain payloads stay as they are until then and are encoded together. From the first message with a key or
properties on, the rest of that batch is encoded message by message.

Invariants:
- batches leave in the order in which their first messages came, and messages keep their order within a batch;
- `pending` counts the messages that were accepted and not yet `release`d, and never exceeds `pending_max`. With a pool
  (`pending_pool`), `pending_max` is what is borrowed from it at the moment, up to the given limit;
- a message lies in the open batch only while `ticking` is set or the loop has been told to look (`_told`). So no
  message can be forgotten there.

Key-based batching is another outbox (`KeyedOutbox`). What becomes of a batch is left to the producer.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, repeat

from ...protocol.batches import encode_batch, encode_single
from ...protocol.errors import MagnetarError, MemoryBufferIsFull, ProducerQueueIsFull
from ...protocol.message_id import Position
from ..core.memory_limit import MemoryLimit
from ..core.message_id import MessageId
from ..core.pending_pool import PendingPool
from ..core.results import Result
from ..core.threading_bridge import Handover
from .outgoing import Outgoing

SendCallback = Callable[[Result, MessageId], object]

MESSAGE_OVERHEAD_BYTES = 10
"""Counted for each plain payload: the size in front of its metadata, and the metadata."""


def ignore(result: Result, message_id: MessageId) -> None:
    """The callback of those who asked for none."""


class Flush:
    """A caller waits until the batch it hangs on has ended."""

    __slots__ = ("error", "future")

    def __init__(self, future: asyncio.Future[None]) -> None:
        self.future = future
        self.error: MagnetarError | None = None


class Batch:
    """Messages that travel as one entry, from the outbox until their receipt or failure."""

    __slots__ = (
        "attributes",
        "batched",
        "callbacks",
        "chunks",
        "deadline",
        "encoded",
        "entry",
        "first_sequence_id",
        "flushes",
        "last_sequence_id",
        "memory_bytes",
        "payloads",
        "size_bytes",
    )

    def __init__(
        self,
        payloads: list[bytes],
        callbacks: list[SendCallback],
        first_sequence_id: int,
        last_sequence_id: int,
        *,
        batched: bool,
        encoded: bool,
        attributes: Outgoing | None,
        size_bytes: int = 0,
    ) -> None:
        self.size_bytes = size_bytes
        """Of the messages' payloads as the application gave them."""
        self.payloads = payloads
        """Plain payloads, or encoded pieces of the batch if `encoded`."""
        self.callbacks = callbacks
        """One for each message."""
        self.first_sequence_id = first_sequence_id
        self.last_sequence_id = last_sequence_id
        self.batched = batched
        """False: one message, sent as an entry of its own without a batch around it."""
        self.encoded = encoded
        self.attributes = attributes
        """Of the message (unbatched) or of the batch's first message, whose key the entry shows."""
        self.entry = b""
        self.chunks: list[Position] | None = None
        """Of a message that travels in chunks: where those lie that have their receipt."""
        self.deadline = 0.0
        self.flushes: list[Flush] | None = None
        self.memory_bytes = 0
        """What it counts for the client's memory limit, if there is one."""

    def payload(self) -> bytes:
        """The uncompressed payload of the entry."""
        if not self.batched:
            return self.payloads[0]
        return b"".join(self.payloads) if self.encoded else encode_batch(self.payloads)


class _Attributed:
    """What an open batch has besides, once one of its messages has attributes."""

    __slots__ = ("first", "last_number", "numbered", "overhead_bytes")

    def __init__(self, first: Outgoing | None) -> None:
        self.first = first
        """Of the batch's first message."""
        self.numbered = 0
        """How many messages brought their sequence id with them."""
        self.last_number: int | None = None
        """The sequence id that the last message brought with it."""
        self.overhead_bytes = 0
        """What the attributes take beyond what is counted for a plain message."""


class Outbox:
    """See the module. All methods may be called from any thread; `on_work` is called on the loop."""

    def __init__(
        self,
        handover: Handover,
        on_work: Callable[[], object],
        *,
        pending_max: int,
        batching: bool,
        messages_max: int,
        bytes_max: int,
        pool: PendingPool | None = None,
    ) -> None:
        self.lock, self.space = handover.lock_and_signal()
        self.pending = 0
        self.pending_max = 0 if pool is not None else pending_max
        self.on_full: Callable[[], object] | None = None
        """Called under the lock when a batch is closed because it is full."""
        self.waiting = 0
        """Callers that wait for space; changed under the lock."""
        self.ticking = False
        """Whether the delay timer looks after this outbox."""
        self.failure: MagnetarError | None = None
        """Why no more messages are accepted."""
        self.refused = 0
        """Messages that callers did not wait for space with; changed under the lock."""
        self.next_sequence_id = 0
        self._wake = handover.wake
        self._on_work = on_work
        self._batching = batching
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._pool = pool
        self._limit = pending_max
        self._borrowed = 0
        self._told = False
        self._sealed: list[Batch] = []
        self._open()

    def _open(self) -> None:
        self._payloads: list[bytes] = []
        self._callbacks: list[SendCallback] = []
        self._size = 0
        self._attributed: _Attributed | None = None
        """From the first message with attributes on, all are encoded one by one."""

    # ---- Putting in ----

    def add(self, content: bytes, callback: SendCallback) -> bool:
        """Accept a plain payload. False if there is no space, or if no more messages are accepted."""
        with self.lock:
            if self.pending >= self.pending_max and not self._borrow():
                return False
            self.pending += 1
            if self._batching:
                size = self._size + len(content) + MESSAGE_OVERHEAD_BYTES
                if size > self._bytes_max and self._callbacks:
                    self._seal()
                    size = len(content) + MESSAGE_OVERHEAD_BYTES
                self._size = size
                if self._attributed is not None:
                    content = encode_single(content)
                    self._attributed.last_number = None
                self._payloads.append(content)
                callbacks = self._callbacks
                callbacks.append(callback)
                if len(callbacks) >= self._messages_max or size >= self._bytes_max:
                    self._seal_full()
                elif self.ticking and not self._sealed:
                    return True
            else:
                self._seal_one(content, callback, None)
            if self._told:
                return True
            self._told = True
        self._wake(self._on_work)
        return True

    def add_with(self, message: Outgoing, callback: SendCallback) -> bool:
        """Accept a message with more than a payload. False as in `add`."""
        content = message.payload
        alone = not self._batching or message.deliver_at_ms is not None
        piece = content if alone else message.encode()
        with self.lock:
            if self.pending >= self.pending_max and not self._borrow():
                return False
            self.pending += 1
            if alone:
                if self._callbacks:
                    self._seal()
                self._seal_one(content, callback, message)
            else:
                if self._size + len(piece) > self._bytes_max and self._callbacks:
                    self._seal()
                attributed = self._attributed
                if attributed is None:
                    attributed = self._attributed = _Attributed(None if self._payloads else message)
                    if self._payloads:
                        self._payloads = [encode_batch(self._payloads)]
                self._payloads.append(piece)
                self._callbacks.append(callback)
                self._size += len(piece)
                attributed.overhead_bytes += len(piece) - len(content) - MESSAGE_OVERHEAD_BYTES
                attributed.last_number = message.sequence_id
                if message.sequence_id is not None:
                    attributed.numbered += 1
                if len(self._callbacks) >= self._messages_max or self._size >= self._bytes_max:
                    self._seal_full()
                elif self.ticking and not self._sealed:
                    return True
            if self._told:
                return True
            self._told = True
        self._wake(self._on_work)
        return True

    def offer(self, message: bytes | Outgoing, callback: SendCallback) -> bool:
        """Accept a message. False as in `add`."""
        return self.add(message, callback) if isinstance(message, bytes) else self.add_with(message, callback)

    def extend(self, contents: Sequence[bytes], start: int, callback: SendCallback, one_batch: bool = False) -> int:
        """Accept plain payloads from `contents[start:]` on, as many as there is space for; returns how many.

        With `one_batch` no more than fill the open batch.
        """
        with self.lock:
            wanted = len(contents) - start
            if wanted > self.pending_max - self.pending:
                self._borrow(wanted - (self.pending_max - self.pending))
            end = start + min(self.pending_max - self.pending, wanted)
            if end <= start:
                return 0
            place = start
            if self._batching:
                closed = len(self._sealed)
                while place < end and not (one_batch and place > start and len(self._sealed) > closed):
                    place += self._extend_open(contents[place : min(end, place + self._messages_max)], callback)
            else:
                for content in contents[start:end]:
                    self._seal_one(content, callback, None)
                place = end
            self.pending += place - start
            if self._told or (self.ticking and not self._sealed):
                return place - start
            self._told = True
        self._wake(self._on_work)
        return place - start

    def add_entry(self, entry: Batch) -> bool:
        """Accept a batch whose messages are encoded and numbered. It is closed, so nothing joins it.

        False if there is no space for all of it, or if no more messages are accepted.
        """
        count = len(entry.callbacks)
        with self.lock:
            missing = self.pending + count - self.pending_max
            if missing > 0 and not (self._borrow(missing) and self.pending + count <= self.pending_max):
                return False
            self.pending += count
            if self._callbacks:
                self._seal()
            self._keep_entry(entry)
            self.next_sequence_id = max(self.next_sequence_id, entry.last_sequence_id + 1)
            if self._told:
                return True
            self._told = True
        self._wake(self._on_work)
        return True

    def _keep_entry(self, entry: Batch) -> None:
        self._sealed.append(entry)

    def _extend_open(self, contents: Sequence[bytes], callback: SendCallback) -> int:
        """Put a first part of `contents` into the open batch, sealing when it is full; returns how many went in."""
        contents = contents[: self._messages_max - len(self._callbacks)]
        size = sum(map(len, contents)) + MESSAGE_OVERHEAD_BYTES * len(contents)
        if self._size + size > self._bytes_max:
            sizes = list(
                accumulate(map(len, contents), lambda total, one: total + one + MESSAGE_OVERHEAD_BYTES, initial=0)
            )
            fitting = bisect_right(sizes, self._bytes_max - self._size) - 1
            if not fitting:
                if self._callbacks:
                    self._seal()
                    return 0
                fitting = 1
            contents = contents[:fitting]
            size = sizes[fitting]
        if self._attributed is not None:
            self._payloads.append(encode_batch(contents))
            self._attributed.last_number = None
        else:
            self._payloads.extend(contents)
        self._callbacks.extend(repeat(callback, len(contents)))
        self._size += size
        if len(self._callbacks) >= self._messages_max or self._size >= self._bytes_max:
            self._seal_full()
        return len(contents)

    def _borrow(self, wanted: int = 0) -> bool:
        """Have room for so many more messages, 0 for a few, or for less if the pool has less. To be called under the
        lock."""
        if self._pool is None or self.failure is not None:
            return False
        wanted = min(wanted or self._pool.step, self._limit - self._borrowed)
        given = self._pool.borrow(self, wanted) if wanted > 0 else 0
        self._borrowed += given
        self.pending_max = self._borrowed
        return given > 0

    def _seal_full(self) -> None:
        self._seal()
        if self.on_full is not None:
            self.on_full()

    def _seal_one(self, content: bytes, callback: SendCallback, attributes: Outgoing | None) -> None:
        number = attributes.sequence_id if attributes is not None else None
        if number is None:
            number = self.next_sequence_id
            self.next_sequence_id = number + 1
        self._sealed.append(
            Batch(
                [content],
                [callback],
                number,
                number,
                batched=False,
                encoded=False,
                attributes=attributes,
                size_bytes=len(content),
            )
        )

    def _seal(self) -> None:
        """Close the open batch. Messages without a number of their own take the next ones."""
        count, attributed = len(self._callbacks), self._attributed
        size_bytes = self._size - MESSAGE_OVERHEAD_BYTES * count
        following = self.next_sequence_id + count
        attributes = first = last = None
        if attributed is not None:
            size_bytes -= attributed.overhead_bytes
            following -= attributed.numbered
            attributes, last = attributed.first, attributed.last_number
            first = attributes.sequence_id if attributes is not None else None
        self._sealed.append(
            Batch(
                self._payloads,
                self._callbacks,
                first if first is not None else self.next_sequence_id,
                last if last is not None else following - 1,
                batched=True,
                encoded=attributed is not None,
                attributes=attributes,
                size_bytes=size_bytes,
            )
        )
        self.next_sequence_id = following
        self._open()

    # ---- Taking out ----

    def seal(self) -> None:
        """Let the open batch go now, whatever its size."""
        with self.lock:
            if self._callbacks:
                self._seal()
            if self._told or not self._sealed:
                return
            self._told = True
        self._wake(self._on_work)

    def tick(self) -> bool:
        """The delay has passed: close the open batch. False if there was none; the timer need not come back then."""
        with self.lock:
            if self._callbacks:
                self._seal()
                return True
            self.ticking = False
            return False

    def take(self) -> tuple[list[Batch], bool]:
        """All closed batches, and whether the delay timer has to start for an open one."""
        with self.lock:
            self._told = False
            sealed, self._sealed = self._sealed, []
            start = bool(self._callbacks) and not self.ticking
            if start:
                self.ticking = True
            return sealed, start

    def release(self, messages: int, memory_bytes: int = 0) -> None:
        """So many messages have their receipt or have failed: there is space for others."""
        tell = None
        with self.lock:
            self.pending -= messages
            if self._pool is not None:
                tell = self._pool.give_back(self._borrowed - self.pending)
                self._borrowed = self.pending
                if self.failure is None:
                    self.pending_max = self._borrowed
            if self.waiting:
                self.space.notify_all()
        if tell is not None:
            tell()

    def look_again(self) -> None:
        """See `pending_pool`."""
        with self.lock:
            if self.waiting:
                self.space.notify_all()

    def limit_bytes(self, bytes_max: int) -> None:
        """Keep batches below what the broker takes, whatever was configured."""
        with self.lock:
            self._bytes_max = max(1, min(self._bytes_max, bytes_max))

    def has_room(self) -> bool:
        """Whether `add` would accept a message, or fail finally; to be called under the lock."""
        return self.pending < self.pending_max or self.failure is not None or self._borrow()

    def full_error(self) -> MagnetarError:
        """Why `add` accepts nothing at the moment, for those who do not wait."""
        return ProducerQueueIsFull(
            "the producer's queue is full: wait for receipts, raise max_pending_messages, or set "
            "block_if_queue_full=True"
        )

    def inherited(self, handover: Handover, failure: MagnetarError) -> None:
        """See `forking`: the lock may be held by a thread that is not here."""
        self.lock, self.space = handover.lock_and_signal()
        self.waiting = 0
        self.refuse(failure)

    def refuse(self, failure: MagnetarError) -> None:
        """Accept no more messages; waiting callers get `failure`."""
        with self.lock:
            if self.failure is None:
                self.failure = failure
            self.pending_max = 0
            if self.waiting:
                self.space.notify_all()


class _OpenBatch:
    """One key's messages so far."""

    __slots__ = ("attributes", "callbacks", "first_sequence_id", "last_sequence_id", "pieces", "size_bytes")

    def __init__(self, attributes: Outgoing, first_sequence_id: int) -> None:
        self.attributes = attributes
        self.first_sequence_id = first_sequence_id
        self.last_sequence_id = first_sequence_id
        self.pieces: list[bytes] = []
        self.callbacks: list[SendCallback] = []
        self.size_bytes = 0


class KeyedOutbox(Outbox):
    """Key-based batching: one key in each batch, keyless messages in one of their own.

    The batches of a partition fill side by side and leave together, in the order of their first messages. The limits on
    messages and bytes hold for their sum. Every message carries its own sequence id, because those of one batch need
    not follow each other.

    Without batching it is an ordinary outbox.
    """

    def _open(self) -> None:
        super()._open()
        self._by_key: dict[str | None, _OpenBatch] = {}

    def add(self, content: bytes, callback: SendCallback) -> bool:
        """As in Outbox."""
        if not self._batching:
            return super().add(content, callback)
        return self.add_with(Outgoing(content), callback)

    def add_with(self, message: Outgoing, callback: SendCallback) -> bool:
        """As in Outbox."""
        if not self._batching or message.deliver_at_ms is not None:
            return super().add_with(message, callback)
        key = message.ordering_key if message.ordering_key is not None else message.partition_key
        with self.lock:
            if self.pending >= self.pending_max and not self._borrow():
                return False
            self.pending += 1
            number = message.sequence_id
            if number is None:
                number = self.next_sequence_id
                self.next_sequence_id = number + 1
            numbered = message.numbered(number)
            piece = numbered.encode()
            if self._size + len(piece) > self._bytes_max and self._callbacks:
                self._seal()
            batch = self._by_key.get(key)
            if batch is None:
                batch = self._by_key[key] = _OpenBatch(numbered, number)
            batch.pieces.append(piece)
            batch.callbacks.append(callback)
            batch.size_bytes += len(message.payload)
            batch.last_sequence_id = number
            self._callbacks.append(callback)
            self._size += len(piece)
            if len(self._callbacks) >= self._messages_max or self._size >= self._bytes_max:
                self._seal_full()
            elif self.ticking and not self._sealed:
                return True
            if self._told:
                return True
            self._told = True
        self._wake(self._on_work)
        return True

    def extend(self, contents: Sequence[bytes], start: int, callback: SendCallback, one_batch: bool = False) -> int:
        """As in Outbox."""
        if not self._batching:
            return super().extend(contents, start, callback, one_batch)
        for index in range(start, len(contents)):
            if not self.add(contents[index], callback):
                return index - start
        return len(contents) - start

    def _seal(self) -> None:
        for batch in self._by_key.values():
            self._sealed.append(
                Batch(
                    batch.pieces,
                    batch.callbacks,
                    batch.first_sequence_id,
                    batch.last_sequence_id,
                    batched=True,
                    encoded=True,
                    attributes=batch.attributes,
                    size_bytes=batch.size_bytes,
                )
            )
        self._open()


class MeteredOutbox(Outbox):
    """Outboxes of a client that has a memory limit (`core/memory_limit.py`).

    A batch is counted when it is closed. When that reaches the limit, the outbox accepts nothing more, as if its queue
    were full, until there is room. Other outboxes learn it with their own next batch.
    """

    def __init__(
        self,
        memory: MemoryLimit,
        handover: Handover,
        on_work: Callable[[], object],
        *,
        pending_max: int,
        batching: bool,
        messages_max: int,
        bytes_max: int,
        pool: PendingPool | None = None,
    ) -> None:
        self._memory = memory
        self._stopped = False
        super().__init__(
            handover,
            on_work,
            pending_max=pending_max,
            batching=batching,
            messages_max=messages_max,
            bytes_max=bytes_max,
            pool=pool,
        )

    def extend(self, contents: Sequence[bytes], start: int, callback: SendCallback, one_batch: bool = False) -> int:
        """As in Outbox, batch by batch: each may reach the limit."""
        place, end = start, len(contents)
        while place < end:
            portion = contents if self._batching else contents[place : place + 1]
            accepted = super().extend(portion, place if self._batching else 0, callback, one_batch=True)
            place += accepted
            if one_batch or not accepted:
                break
        return place - start

    def release(self, messages: int, memory_bytes: int = 0) -> None:
        """As in Outbox."""
        super().release(messages)
        with self.lock:
            if self._stopped:
                self.pending_max = 0
        self._memory.give_back(memory_bytes)

    def full_error(self) -> MagnetarError:
        """As in Outbox."""
        if not self._stopped:
            return super().full_error()
        return MemoryBufferIsFull(
            f"the client's {self._memory.limit_bytes} bytes of memory are full of messages without a receipt: wait for "
            "receipts, raise memory_limit_bytes, or set block_if_queue_full=True"
        )

    def _borrow(self, wanted: int = 0) -> bool:
        if self._stopped:
            if self.failure is not None or not self._memory.has_room(self):
                return False
            self._stopped = False
            self.pending_max = self._limit if self._pool is None else self._borrowed
            if self.pending < self.pending_max:
                return True
        return super()._borrow(wanted)

    def _seal(self) -> None:
        size, first = self._size, len(self._sealed)
        super()._seal()
        self._count(first, size)

    def _seal_one(self, content: bytes, callback: SendCallback, attributes: Outgoing | None) -> None:
        first = len(self._sealed)
        super()._seal_one(content, callback, attributes)
        self._count(first, len(content) + MESSAGE_OVERHEAD_BYTES)

    def _keep_entry(self, entry: Batch) -> None:
        super()._keep_entry(entry)
        self._count(len(self._sealed) - 1, entry.size_bytes + MESSAGE_OVERHEAD_BYTES * len(entry.callbacks))

    def _count(self, index: int, size_bytes: int) -> None:
        """The batch with that index was closed; those of other keys that were closed with it count as part of it."""
        self._sealed[index].memory_bytes = size_bytes
        if not self._memory.take(size_bytes):
            self._stopped = True
            self.pending_max = 0


class MeteredKeyedOutbox(MeteredOutbox, KeyedOutbox):
    """The same with key-based batching."""


def outbox_type(memory: MemoryLimit | None, *, keyed: bool) -> Callable[..., Outbox]:
    """What makes the outboxes of a producer."""
    if memory is None:
        return KeyedOutbox if keyed else Outbox
    return partial(MeteredKeyedOutbox if keyed else MeteredOutbox, memory)
