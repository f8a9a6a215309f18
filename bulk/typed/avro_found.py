"""Values that were found in payloads, before they are Arrow arrays.

A value that only some rows have is spread over all of them, the other rows being null. For numbers and for places in
bytes that is done before an array is built, because it costs least there.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyarrow brings no types.

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from .payloads import spread

MakeOfNumbers = Callable[[np.ndarray, "np.ndarray | None"], pa.Array]
"""An array of numbers, and of which of them are not null."""
MakeOfPlaces = Callable[[np.ndarray, np.ndarray, np.ndarray, "np.ndarray | None"], pa.Array]
"""An array of bytes, where values begin in them, their sizes, and which are not null."""


class Found(ABC):
    """One value for each row."""

    @abstractmethod
    def spread(self, places: np.ndarray, begin: np.ndarray) -> "Found":
        """The same at the rows `places`; the others are null. `begin` is a place in the bytes of each of all rows."""

    @abstractmethod
    def array(self) -> pa.Array:
        """As Arrow has it. Raises PayloadMisfit."""


class Numbers(Found):
    def __init__(self, values: np.ndarray, make: MakeOfNumbers, valid: np.ndarray | None = None) -> None:
        self._values = values
        self._make = make
        self._valid = valid

    def spread(self, places: np.ndarray, begin: np.ndarray) -> Found:
        values = np.zeros(len(begin), self._values.dtype)
        values[places] = self._values
        return Numbers(values, self._make, _spread_valid(self._valid, places, len(begin)))

    def array(self) -> pa.Array:
        return self._make(self._values, self._valid)


class Places(Found):
    def __init__(
        self,
        data: np.ndarray,
        starts: np.ndarray,
        sizes: np.ndarray,
        make: MakeOfPlaces,
        valid: np.ndarray | None = None,
    ) -> None:
        self._data = data
        self._starts = starts
        self._sizes = sizes
        self._make = make
        self._valid = valid

    def spread(self, places: np.ndarray, begin: np.ndarray) -> Found:
        starts, sizes = begin.copy(), np.zeros(len(begin), np.int64)
        starts[places], sizes[places] = self._starts, self._sizes
        return Places(self._data, starts, sizes, self._make, _spread_valid(self._valid, places, len(begin)))

    def array(self) -> pa.Array:
        return self._make(self._data, self._starts, self._sizes, self._valid)


class Made(Found):
    """An array already."""

    def __init__(self, made: pa.Array) -> None:
        self._made = made

    def spread(self, places: np.ndarray, begin: np.ndarray) -> Found:
        return Made(spread(self._made, places, len(begin)))

    def array(self) -> pa.Array:
        return self._made


def _spread_valid(valid: np.ndarray | None, places: np.ndarray, count: int) -> np.ndarray:
    found = np.zeros(count, bool)
    found[places] = True if valid is None else valid
    return found
