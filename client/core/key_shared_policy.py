"""How the consumers of a KeyShared subscription divide the keys among them."""

from collections.abc import Iterable
from enum import IntEnum
from itertools import pairwise

from ...protocol.errors import InvalidConfiguration
from ...protocol.pulsar_pb2 import IntRange, KeySharedMeta
from .options import checked_choice

HASHES = 65_536


def checked_ranges(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The ranges in order, both ends inclusive. Raises InvalidConfiguration for impossible ones."""
    found: list[tuple[int, int]] = []
    for one in ranges:
        pair = tuple(one)
        if len(pair) != 2 or any(isinstance(end, bool) or not isinstance(end, int) for end in pair):  # pyright: ignore[reportUnnecessaryIsInstance, reportUnnecessaryComparison] (callers may be untyped)
            raise InvalidConfiguration(f"a range of key hashes is a pair of integers, not {one!r}")
        if not 0 <= pair[0] <= pair[1] < HASHES:
            raise InvalidConfiguration(f"a range of key hashes lies within 0 to {HASHES - 1}, and {one!r} does not")
        found.append(pair)
    found.sort()
    for (_, end), (start, _) in pairwise(found):
        if start <= end:
            raise InvalidConfiguration(f"ranges of key hashes must not overlap at {start}")
    if not found:
        raise InvalidConfiguration("key_hash_ranges holds no range: give at least one")
    return tuple(found)


SLOTS = 65536


class KeySharedMode(IntEnum):
    """Who decides which consumer gets a key: the broker, or the hash ranges that each consumer brings."""

    AutoSplit = 0
    Sticky = 1


class ConsumerKeySharedPolicy:
    """What a KeyShared consumer asks for. All consumers of a subscription ask for the same mode and order.

    Args:
        key_shared_mode: AutoSplit, or Sticky with `sticky_ranges`.
        allow_out_of_order_delivery: Whether a key that moves to another consumer goes there at once, though its old
            consumer still holds messages of it.
        sticky_ranges: With Sticky, the hashes that this consumer takes: pairs of first and last hash, each from 0 to
            65535. Hashes that no consumer takes wait.

    Raises:
        InvalidConfiguration: If ranges are missing, lie outside 0 to 65535, or overlap.
    """

    def __init__(
        self,
        key_shared_mode: KeySharedMode = KeySharedMode.AutoSplit,
        allow_out_of_order_delivery: bool = False,
        sticky_ranges: Iterable[tuple[int, int]] | None = None,
    ) -> None:
        key_shared_mode = checked_choice("key_shared_mode", key_shared_mode, KeySharedMode)
        if key_shared_mode is KeySharedMode.Sticky and sticky_ranges is None:
            raise InvalidConfiguration("KeySharedMode.Sticky needs sticky_ranges: give at least one pair of hashes")
        self._mode = key_shared_mode
        self._out_of_order = bool(allow_out_of_order_delivery)
        self._ranges = [] if sticky_ranges is None else _checked(sticky_ranges)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ConsumerKeySharedPolicy):
            return NotImplemented
        return (self._mode, self._out_of_order, self._ranges) == (other._mode, other._out_of_order, other._ranges)

    def __hash__(self) -> int:
        return hash((self._mode, self._out_of_order, tuple(self._ranges)))

    def __repr__(self) -> str:
        return f"ConsumerKeySharedPolicy({self._mode!s}, {self._out_of_order}, {self._ranges})"

    @property
    def key_shared_mode(self) -> KeySharedMode:
        """The mode."""
        return self._mode

    @property
    def allow_out_of_order_delivery(self) -> bool:
        """Whether a key that moves to another consumer goes there at once."""
        return self._out_of_order

    @property
    def sticky_ranges(self) -> list[tuple[int, int]]:
        """The pairs of first and last hash, empty unless given."""
        return list(self._ranges)

    def to_wire(self) -> KeySharedMeta:
        """Return it as SUBSCRIBE carries it.

        Returns:
            The message.
        """
        return KeySharedMeta(
            keySharedMode=self._mode.value,  # pyright: ignore[reportArgumentType]
            allowOutOfOrderDelivery=self._out_of_order,
            hashRanges=[IntRange(start=start, end=end) for start, end in self._ranges],
        )


def _checked(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Pairs of hashes without overlap. Raises InvalidConfiguration."""
    try:
        pairs = [(int(start), int(end)) for start, end in ranges]
    except (TypeError, ValueError):
        raise InvalidConfiguration(f"sticky_ranges must be pairs of two integers, not {ranges!r}") from None
    if not pairs:
        raise InvalidConfiguration("Ranges for KeyShared policy must not be empty.")
    for start, end in pairs:
        if not 0 <= start <= end < SLOTS:
            raise InvalidConfiguration(f"Ranges must be [0, {SLOTS - 1}], but provided range is [{start}, {end}]")
    in_order = sorted(pairs)
    if any(left[1] >= right[0] for left, right in pairwise(in_order)):
        raise InvalidConfiguration(f"Ranges for KeyShared policy with overlap: {in_order}")
    return pairs
