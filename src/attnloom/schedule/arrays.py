"""The arrays of a Plan in one buffer: address and length of each at once, a tensor of one when somebody asks.

A plan has a dozen arrays and a launch wants addresses; making a tensor of each would cost more than the planning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

if TYPE_CHECKING:
    import torch


class Column(NamedTuple):
    """Which array of the buffer a field is, counted from its owner's first; columns 0: one dimension; wide: int64."""

    place: int
    columns: int = 0
    wide: bool = False


class ArrayBuffer:
    """tensor: int32 [n], on any device; places: (first, length) of each array in it, in int32."""

    __slots__ = ("address", "places", "tensor")

    def __init__(self, tensor: torch.Tensor, places: Sequence[Sequence[int]]) -> None:
        self.tensor = tensor
        self.places = places
        self.address: int = tensor.data_ptr()

    def view(self, place: int, column: Column) -> torch.Tensor:
        """The array as a tensor."""
        import torch

        first, length = self.places[place]
        whole = self.tensor
        if column.wide:
            whole, first, length = whole.view(torch.int64), first // 2, length // 2
        shape = (length // column.columns, column.columns) if column.columns else (length,)
        if not length:
            return whole.new_empty(shape)
        return whole.as_strided(shape, (column.columns, 1) if column.columns else (1,), first)


class Stored:
    """Base of frozen dataclasses whose tensors may lie in an `ArrayBuffer`: see `COLUMNS` of each."""

    COLUMNS: ClassVar[dict[str, Column]]

    @classmethod
    def stored(cls, buffer: ArrayBuffer, first: int, **fields: Any) -> Self:
        """One whose arrays are those of `buffer` from number `first` on, but for the fields that are given."""
        made = object.__new__(cls)
        made.__dict__.update(fields, _buffer=buffer, _first=first)
        return made

    def __getattr__(self, name: str) -> Any:
        """A tensor that is asked for the first time."""
        buffer, column = self.__dict__.get("_buffer"), type(self).COLUMNS.get(name)
        if buffer is None or column is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        made = self.__dict__[name] = buffer.view(self._first + column.place, column)
        return made

    def address(self, name: str) -> int:
        """Where the array of a field starts in the device's memory."""
        if name in self.__dict__:
            return int(self.__dict__[name].data_ptr())
        buffer = self._buffer
        return int(buffer.address + 4 * buffer.places[self._first + self.COLUMNS[name].place][0])

    def rows(self, name: str) -> int:
        """First extent of a field's array."""
        if name in self.__dict__:
            return int(self.__dict__[name].shape[0])
        place, columns, wide = self.COLUMNS[name]
        return int(self._buffer.places[self._first + place][1]) // (columns or 1 + wide)
