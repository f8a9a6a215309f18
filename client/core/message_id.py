"""The place of a message, with the face of the official client's MessageId.

A tuple underneath, because ids are made once for every receipt and every received message: a whole batch of them is
built in C (`batch_ids`).
"""

from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, ClassVar, Protocol, Self, TypeVar

from ...protocol.errors import ProtocolError
from ...protocol.message_id import LATEST_POSITION, Position, WireMessageId, position_of, signed64, unsigned64
from ...protocol.pulsar_pb2 import MessageIdData

_Id = TypeVar("_Id", bound="MessageId")


if TYPE_CHECKING:

    def _new(kind: type[_Id], parts: tuple[int, ...], /) -> _Id: ...

else:
    _new = tuple.__new__


class PlacedLikeAnId(Protocol):
    """A message id of any client."""

    def ledger_id(self) -> int: ...
    def entry_id(self) -> int: ...
    def batch_index(self) -> int: ...
    def partition(self) -> int: ...


class MessageId(tuple[int, int, int, int, int]):
    """Ledger, entry, batch index and partition of a message; −1 where there is none.

    Ordered by ledger, entry, batch index, partition. `batch_size` (0 if unknown or not a batch) travels along for
    acknowledgement and takes no part in comparisons.
    """

    __slots__ = ()

    earliest: ClassVar["MessageId"]
    """Before the first message that the topic still holds."""
    latest: ClassVar["MessageId"]
    """Behind the last message published so far."""

    def __new__(
        cls, partition: int = -1, ledger_id: int = -1, entry_id: int = -1, batch_index: int = -1, batch_size: int = 0
    ) -> Self:
        return _new(cls, (ledger_id, entry_id, batch_index, partition, batch_size))

    def ledger_id(self) -> int:
        """Return the ledger that holds the message.

        Returns:
            The ledger id.
        """
        return self[0]

    def entry_id(self) -> int:
        """Return the entry of the ledger.

        Returns:
            The entry id.
        """
        return self[1]

    def batch_index(self) -> int:
        """Return the index within the batch.

        Returns:
            The index, −1 for a message that was sent alone.
        """
        return self[2]

    def partition(self) -> int:
        """Return the partition of the topic.

        Returns:
            The index, −1 for a topic without partitions.
        """
        return self[3]

    def batch_size(self) -> int:
        """Return the number of messages of the batch.

        Returns:
            The number, 0 if unknown or without a batch.
        """
        return self[4]

    def serialize(self) -> bytes:
        """Return the id as bytes that every Pulsar client reads.

        Returns:
            A MessageIdData of the protocol.
        """
        return self.to_wire().SerializeToString()

    @staticmethod
    def deserialize(message_id_bytes: bytes, topic: str | None = None) -> "MessageId":
        """Read an id that `serialize` of any Pulsar client wrote.

        Args:
            message_id_bytes: The bytes.
            topic: The topic of the message. Consumers of several topics need it.

        Returns:
            The id; a `TopicMessageId` if the topic is given.

        Raises:
            ProtocolError: If the bytes are no id.
        """
        found = WireMessageId.deserialize(message_id_bytes)
        if found.batch_size < 0:
            raise ProtocolError("the bytes are not a message id: its batch has a negative size")
        data = MessageIdData.FromString(message_id_bytes)
        if data.HasField("first_chunk_message_id"):
            first = position_of(data.first_chunk_message_id)
            place = ChunkedMessageId(found.partition, (first, (found.ledger_id, found.entry_id)))
        else:
            place = MessageId(found.partition, found.ledger_id, found.entry_id, found.batch_index, found.batch_size)
        return place if topic is None else TopicMessageId.of(topic, place)

    @classmethod
    def wrap(cls, msg_id: "PlacedLikeAnId") -> "MessageId":
        """Make an id from an id of this or of the official client.

        Args:
            msg_id: The other id.

        Returns:
            The id of the same place.
        """
        if isinstance(msg_id, MessageId):
            return msg_id
        return cls(msg_id.partition(), msg_id.ledger_id(), msg_id.entry_id(), msg_id.batch_index())

    def to_wire(self) -> MessageIdData:
        """Return the id as the protocol's message.

        Returns:
            A MessageIdData. The −1 of `earliest` becomes its 64-bit pattern, as everywhere in Pulsar.
        """
        data = MessageIdData(ledgerId=unsigned64(self[0]), entryId=unsigned64(self[1]))
        if self[3] >= 0:
            data.partition = self[3]
        if self[2] >= 0:
            data.batch_index = self[2]
            if self[4] > 0:
                data.batch_size = self[4]
        return data

    @staticmethod
    def from_wire(data: MessageIdData) -> "MessageId":
        """Make an id from the protocol's message.

        Args:
            data: The message.

        Returns:
            The id.
        """
        return MessageId(
            data.partition, signed64(data.ledgerId), signed64(data.entryId), data.batch_index, max(data.batch_size, 0)
        )

    @property
    def position(self) -> tuple[int, int]:
        """(ledger, entry)."""
        return self[:2]

    @property
    def entry(self) -> "MessageId":
        """The id of the whole entry: without batch index."""
        return MessageId(self[3], self[0], self[1])

    @property
    def whole_entry(self) -> "MessageId":
        """The same, with the topic if this id names one."""
        return self.entry

    @property
    def text(self) -> str:
        """`ledger:entry:partition`, and `:batch index` for a message of a batch."""
        alone = f"{self[0]}:{self[1]}:{self[3]}"
        return alone if self[2] < 0 else f"{alone}:{self[2]}"

    def __str__(self) -> str:
        return f"({self[0]},{self[1]},{self[3]},{self[2]})"

    def __repr__(self) -> str:
        return f"MessageId(partition={self[3]}, ledger_id={self[0]}, entry_id={self[1]}, batch_index={self[2]})"

    def __reduce__(self) -> tuple[object, ...]:
        return (MessageId, (self[3], self[0], self[1], self[2], self[4]))

    def __hash__(self) -> int:
        return hash(self[:4])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MessageId) and self[:4] == other[:4]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: object) -> bool:
        return self[:4] < other[:4] if isinstance(other, MessageId) else NotImplemented

    def __le__(self, other: object) -> bool:
        return self[:4] <= other[:4] if isinstance(other, MessageId) else NotImplemented

    def __gt__(self, other: object) -> bool:
        return self[:4] > other[:4] if isinstance(other, MessageId) else NotImplemented

    def __ge__(self, other: object) -> bool:
        return self[:4] >= other[:4] if isinstance(other, MessageId) else NotImplemented


class ChunkedMessageId(MessageId):
    """The id of a message that was published in chunks: it lies where its last chunk lies.

    It knows its first chunk, and knows all chunks when it comes from a producer or consumer. `serialize` keeps the
    first and the last, which is all that the protocol's id has room for. Pickling keeps all. Comparisons look at the
    last.
    """

    _positions: tuple[Position, ...]

    def __new__(cls, partition: int, positions: tuple[Position, ...]) -> Self:  # pyright: ignore[reportInconsistentConstructor] (an id of its own kind)
        made = _new(cls, (*positions[-1], -1, partition, 0))
        made._positions = positions
        return made

    @property
    def positions(self) -> tuple[Position, ...]:
        """(ledger, entry) of the chunks, the first chunk's first, the last chunk's last."""
        return self._positions

    @property
    def start(self) -> MessageId:
        """The id of the first chunk: a seek to the message begins there."""
        return MessageId(self[3], *self.positions[0])

    def to_wire(self) -> MessageIdData:
        """Return the id as the protocol's message.

        Returns:
            A MessageIdData that names the first chunk, too.
        """
        data = super().to_wire()
        data.first_chunk_message_id.CopyFrom(self.start.to_wire())
        return data

    @property
    def text(self) -> str:
        """The texts of the first and of the last chunk's id, as Pulsar writes them."""
        return f"{self.start.text};{super().text}"

    def __str__(self) -> str:
        return f"{self.start};{super().__str__()}"

    def __repr__(self) -> str:
        return f"ChunkedMessageId(partition={self[3]}, positions={self.positions})"

    def __reduce__(self) -> tuple[object, ...]:
        return (ChunkedMessageId, (self[3], self.positions))


class TopicMessageId(MessageId):
    """The id of a message that came through a consumer of several topics: it names its topic or partition."""

    _topic: str
    _place: MessageId

    @staticmethod
    def of(topic: str, place: MessageId) -> "TopicMessageId":
        """Make an id from a topic's full name and a place in it.

        Args:
            topic: The full name of the topic or partition.
            place: The id within it.

        Returns:
            The id.
        """
        made = TopicMessageId(place[3], place[0], place[1], place[2], place[4])
        made._topic = topic
        made._place = place
        return made

    def topic_name(self) -> str:
        """Return the topic or partition of the message.

        Returns:
            The full name.
        """
        return self._topic

    @property
    def whole_entry(self) -> MessageId:
        """The id of the whole entry, with the topic."""
        return TopicMessageId.of(self._topic, self.entry)

    @property
    def place(self) -> MessageId:
        """The id without the topic."""
        return self._place

    def to_wire(self) -> MessageIdData:
        """Return the id as the protocol's message, which has no room for the topic.

        Returns:
            A MessageIdData.
        """
        return self._place.to_wire()

    @property
    def text(self) -> str:
        """The text of the id without the topic."""
        return self._place.text

    def __str__(self) -> str:
        return str(self._place)

    def __reduce__(self) -> tuple[object, ...]:
        return (TopicMessageId.of, (self._topic, self._place))


def positions_of(message_id: MessageId) -> tuple[Position, ...]:
    """(ledger, entry) of every entry that the message is known to lie in."""
    if isinstance(message_id, TopicMessageId):
        message_id = message_id.place
    return message_id.positions if isinstance(message_id, ChunkedMessageId) else (message_id.position,)


def start_of(message_id: MessageId) -> MessageId:
    """The id of the entry with which the message begins: of the first chunk, if it came in chunks."""
    return MessageId(message_id[3], *positions_of(message_id)[0])


MessageId.earliest = MessageId()
MessageId.latest = MessageId(-1, *LATEST_POSITION)

_build = partial(_new, MessageId)


def batch_ids(ledger_id: int, entry_id: int, partition: int, size: int) -> list[MessageId]:
    """The ids of all messages of a batch of `size`."""
    return list(map(_build, zip(repeat(ledger_id), repeat(entry_id), range(size), repeat(partition), repeat(size))))
