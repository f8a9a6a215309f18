"""What `receive_many` and `batch_receive` hand over: messages of many entries as one sequence."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import overload

from .message import Message


class Messages(Sequence[Message]):
    """Messages as `receive_many` hands them over: a sequence like a list, in which whole batches stay together.

    Messages that are only looked at one after the other are made one after the other. To acknowledge all of it
    (`acknowledge_many`) costs a step for each batch.
    """

    __slots__ = ("_all", "parts")

    def __init__(self) -> None:
        self.parts: list[Sequence[Message]] = []
        self._all: list[Message] | None = None

    def add(self, part: Sequence[Message]) -> None:
        """Append messages; only the maker calls it."""
        self.parts.append(part)

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __iter__(self) -> Iterator[Message]:
        return chain.from_iterable(self.parts) if self._all is None else iter(self._all)

    @overload
    def __getitem__(self, place: int) -> Message: ...
    @overload
    def __getitem__(self, place: slice) -> list[Message]: ...
    def __getitem__(self, place: int | slice) -> Message | list[Message]:
        if self._all is None:
            self._all = [*chain.from_iterable(self.parts)]
        return self._all[place]

    def __add__(self, other: Sequence[Message]) -> list[Message]:
        return [*self, *other]

    def __radd__(self, other: Sequence[Message]) -> list[Message]:
        return [*other, *self]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr([*self])
