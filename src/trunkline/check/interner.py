"""Interning: each distinct value gets one small integer, so that a state of the world is a short tuple of integers."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value", bound=Hashable)


class Interner(Generic[Value]):
    """Numbers values 0, 1, 2, ... in the order in which they are first seen.

    ``values`` is public because the hot paths index it without a call. Only ``intern`` may append to it.
    """

    __slots__ = ("_numbers", "values")

    def __init__(self) -> None:
        self._numbers: dict[Value, int] = {}
        self.values: list[Value] = []

    def intern(self, value: Value) -> int:
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self.values)
            self.values.append(value)
        return number

    def find(self, value: Value) -> int | None:
        """The value's number, or None if it was never seen."""
        return self._numbers.get(value)

    def __len__(self) -> int:
        return len(self.values)
