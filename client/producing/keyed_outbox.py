"""Key-based batching: one key in each batch, keyless messages in one of their own.

The batches of a partition fill side by side and leave together, in the order of their first messages. The limits on
messages and bytes hold for their sum. Every message carries its own sequence id, because those of one batch need not
follow each other.
"""

from collections.abc import Sequence

from .attributes import Attributes
from .outbox import Batch, Outbox, SendCallback


class _OpenBatch:
    """One key's messages so far."""

    __slots__ = ("attributes", "callbacks", "first_sequence_id", "last_sequence_id", "pieces", "size_bytes")

    def __init__(self, attributes: Attributes, first_sequence_id: int) -> None:
        self.attributes = attributes
        self.first_sequence_id = first_sequence_id
        self.last_sequence_id = first_sequence_id
        self.pieces: list[bytes] = []
        self.callbacks: list[SendCallback] = []
        self.size_bytes = 0


class KeyedOutbox(Outbox):
    """See the module. Without batching it is an ordinary outbox."""

    def _open(self) -> None:
        super()._open()
        self._by_key: dict[str | None, _OpenBatch] = {}

    def add(self, content: bytes, callback: SendCallback) -> bool:
        """As in Outbox."""
        if not self._batching:
            return super().add(content, callback)
        return self.add_with(content, Attributes(), callback)

    def add_with(self, content: bytes, attributes: Attributes, callback: SendCallback) -> bool:
        """As in Outbox."""
        if not self._batching or attributes.deliver_at_ms is not None:
            return super().add_with(content, attributes, callback)
        key = attributes.ordering_key if attributes.ordering_key is not None else attributes.partition_key
        with self.lock:
            if self.pending >= self.pending_max and not self._borrow():
                return False
            self.pending += 1
            number = attributes.sequence_id
            if number is None:
                number = self.next_sequence_id
                self.next_sequence_id = number + 1
            numbered = Attributes(
                attributes.properties,
                attributes.partition_key,
                attributes.ordering_key,
                number,
                attributes.event_timestamp,
                attributes.null_value,
                schema_version=attributes.schema_version,
            )
            piece = numbered.encode(content)
            if self._size + len(piece) > self._bytes_max and self._callbacks:
                self._seal()
            batch = self._by_key.get(key)
            if batch is None:
                batch = self._by_key[key] = _OpenBatch(numbered, number)
            batch.pieces.append(piece)
            batch.callbacks.append(callback)
            batch.size_bytes += len(content)
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
