"""What `receive_many` and `batch_receive` hand over: messages of many entries as one sequence."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import cast, overload

from .message import INDEXES, Message, Run, entry_of

_index_of: Callable[[Message], int] = itemgetter(1)


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


def run_at(messages: Sequence[object], start: int) -> Run | None:
    """The run of batched messages that begins at a place of a list of whatever; None if there is none.

    Where a whole batch, or what is left of it, lies there in its order, nothing is done message by message.
    """
    first = messages[start]
    if type(first) is not Message or first[1] < 0:
        return None
    entry, index = first[0], first[1]
    stop = min(start + entry.count - index, len(messages))
    length = stop - start
    last = messages[stop - 1]
    if type(last) is Message and last[0] is entry and last[1] == index + length - 1:  # else it is no use to look
        found = cast("Sequence[Message]", messages[start:stop])  # which the next line makes sure of, in C
        if [*map(type, found)].count(Message) == length and [*map(entry_of, found)].count(entry) == length:
            indexes = INDEXES if entry.count <= len(INDEXES) else range(entry.count)
            if (*map(_index_of, found),) == (*indexes[index : index + length],):
                return Run(entry, index, index + length)
    end = index + 1
    for place in range(start + 1, stop):
        other = messages[place]
        if type(other) is not Message or other[0] is not entry or other[1] != end:
            break
        end += 1
    return Run(entry, index, end)
