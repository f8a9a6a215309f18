"""Message ids: where a message lies, and its serialized form.

A message is found by ledger, entry and, inside a batch, its index. Servers work with positions, plain tuples
`(ledger_id, entry_id)`. `WireMessageId` is an id with the fields of the wire; users hold the client's `MessageId`,
whose arguments come in the official client's order. The serialized form is Pulsar's `MessageIdData`, byte for byte as
the official client writes it. So each client can use an id that the other stored.
"""

from __future__ import annotations

from functools import total_ordering
from typing import ClassVar

from google.protobuf.message import DecodeError

from .errors import ProtocolError
from .pulsar_pb2 import MessageIdData

_UINT64_MASK = (1 << 64) - 1
_INT64_MAX = (1 << 63) - 1

Position = tuple[int, int]

EARLIEST_POSITION: Position = (-1, -1)
LATEST_POSITION: Position = (_INT64_MAX, _INT64_MAX)


@total_ordering
class WireMessageId:
    """The id of a message: immutable, hashable, ordered by ledger, entry, batch index, then partition.

    `partition` is −1 on a topic without partitions. `batch_index` is −1 for a message sent alone. `batch_size` (0 = not
    known) is not part of the identity: two ids that differ only there are equal. Order across partitions has no meaning
    in time.
    """

    __slots__ = ("batch_index", "batch_size", "entry_id", "ledger_id", "partition")

    earliest: ClassVar[WireMessageId]
    latest: ClassVar[WireMessageId]

    ledger_id: int
    entry_id: int
    partition: int
    batch_index: int
    batch_size: int

    def __init__(
        self, ledger_id: int, entry_id: int, partition: int = -1, batch_index: int = -1, batch_size: int = 0
    ) -> None:
        put = object.__setattr__
        put(self, "ledger_id", ledger_id)
        put(self, "entry_id", entry_id)
        put(self, "partition", partition)
        put(self, "batch_index", batch_index)
        put(self, "batch_size", batch_size)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a WireMessageId does not change: {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a WireMessageId does not change: {name}")

    @property
    def position(self) -> Position:
        """`(ledger_id, entry_id)`, as servers use it."""
        return self.ledger_id, self.entry_id

    @property
    def text(self) -> str:
        """`ledger:entry:partition`, with `:batch_index` behind it for a message of a batch."""
        text = f"{self.ledger_id}:{self.entry_id}:{self.partition}"
        return text if self.batch_index < 0 else f"{text}:{self.batch_index}"

    def serialize(self) -> bytes:
        """The id as bytes of `MessageIdData`, equal to what the official client's `serialize` gives."""
        return self.to_data().SerializeToString()

    @staticmethod
    def deserialize(data: bytes) -> WireMessageId:
        """The id that `serialize` (ours or the official client's) wrote; ProtocolError for other bytes."""
        try:
            parsed = MessageIdData.FromString(data)
        except DecodeError as error:
            raise ProtocolError(f"the bytes are not a message id: {error}") from None
        if not parsed.IsInitialized():
            raise ProtocolError("the bytes are not a message id: the ledger or entry is missing")
        return WireMessageId.from_data(parsed)

    def to_data(self) -> MessageIdData:
        """The id as the protobuf message; −1 in ledger or entry is written as its 64-bit pattern."""
        data = MessageIdData(ledgerId=self.ledger_id & _UINT64_MASK, entryId=self.entry_id & _UINT64_MASK)
        if self.partition != -1:
            data.partition = self.partition
        if self.batch_index != -1:
            data.batch_index = self.batch_index
        if self.batch_size != 0:
            data.batch_size = self.batch_size
        return data

    @staticmethod
    def from_data(data: MessageIdData) -> WireMessageId:
        """The id in a protobuf message (whose required fields are there)."""
        return WireMessageId(
            signed64(data.ledgerId), signed64(data.entryId), data.partition, data.batch_index, data.batch_size
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WireMessageId):
            return NotImplemented
        return self._order() == other._order()

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, WireMessageId):
            return NotImplemented
        return self._order() < other._order()

    def __hash__(self) -> int:
        return hash(self._order())

    def __str__(self) -> str:
        return f"({self.ledger_id},{self.entry_id},{self.partition},{self.batch_index})"

    def __repr__(self) -> str:
        size = f", batch_size={self.batch_size}" if self.batch_size else ""
        return (
            f"WireMessageId(ledger_id={self.ledger_id}, entry_id={self.entry_id}, partition={self.partition}, "
            f"batch_index={self.batch_index}{size})"
        )

    def __reduce__(self) -> tuple[type[WireMessageId], tuple[int, int, int, int, int]]:
        return WireMessageId, (self.ledger_id, self.entry_id, self.partition, self.batch_index, self.batch_size)

    def _order(self) -> tuple[int, int, int, int]:
        return self.ledger_id, self.entry_id, self.batch_index, self.partition


WireMessageId.earliest = WireMessageId(*EARLIEST_POSITION)
WireMessageId.latest = WireMessageId(*LATEST_POSITION)


def signed64(value: int) -> int:
    """An unsigned 64-bit number of the wire as the signed one it stands for: earliest travels as 2⁶⁴−1."""
    return value - (1 << 64) if value > _INT64_MAX else value


def position_of(data: MessageIdData) -> Position:
    """`(ledger_id, entry_id)` of a protobuf message id, signed."""
    ledger_id, entry_id = data.ledgerId, data.entryId
    if ledger_id > _INT64_MAX or entry_id > _INT64_MAX:
        return signed64(ledger_id), signed64(entry_id)
    return ledger_id, entry_id


def unsigned64(value: int) -> int:
    """The inverse of `signed64`, for filling a `MessageIdData`."""
    return value & _UINT64_MASK
