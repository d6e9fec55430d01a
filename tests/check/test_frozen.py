"""How values of roles are compared, copied, renamed and printed."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field

import pytest
from msgspec import Struct

from trunkline.check.frozen import clone, freeze, rename, text
from trunkline.core.effects import Address


class Color(enum.Enum):
    RED = "red"


class Point(Struct, frozen=True):
    x: int
    owner: str = ""


@dataclass
class Box:
    items: list[int] = field(default_factory=list)
    by_name: dict[str, set[int]] = field(default_factory=dict)
    other: object = None


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


def test_equal_contents_freeze_to_equal_values_that_can_be_hashed() -> None:
    first, second = (Box([1], {"a": {1, 2}}, Slotted((Point(1), Color.RED))) for _ in range(2))
    assert freeze(first) == freeze(second)
    assert hash(freeze(first)) == hash(freeze(second))
    second.by_name["a"].add(3)
    assert freeze(first) != freeze(second)


def test_values_of_different_types_are_different() -> None:
    values = [[1], (1,), {1}, deque([1]), {1: None}, Box([1]), Slotted(1), Point(1), Address("a", "b"), None]
    assert len({freeze(value) for value in values}) == len(values)


def test_dicts_filled_in_different_orders_are_different() -> None:
    assert freeze({1: 0, 2: 0}) != freeze({2: 0, 1: 0})
    assert freeze({1, 2}) == freeze({2, 1})


def test_a_copy_shares_no_mutable_object() -> None:
    box = Box([1], {"a": {1}}, Slotted([2]))
    copy = clone(box)
    assert freeze(copy) == freeze(box)
    copy.items.append(2)
    copy.by_name["a"].add(2)
    copy.other.value.append(3)
    assert freeze(box) == freeze(Box([1], {"a": {1}}, Slotted([2])))


def test_an_object_that_is_referenced_twice_is_one_object_in_the_copy() -> None:
    shared = [1]
    copy = clone(Box(shared, {}, Slotted(shared)))
    copy.items.append(2)
    assert copy.other.value == [1, 2]


def test_a_deque_keeps_its_bound() -> None:
    assert clone(deque([1, 2], maxlen=2)).maxlen == 2


def test_renaming_reaches_every_whole_string() -> None:
    value = Box([], {"n1": {1}}, (Point(1, "n1"), Address("n2", "n1"), frozenset({"n1", "n10"})))
    renamed = rename(value, {"n1": "n2", "n2": "n1"})
    assert renamed.by_name == {"n2": {1}}
    assert renamed.other == (Point(1, "n2"), Address("n1", "n2"), frozenset({"n2", "n10"}))
    assert isinstance(renamed.other[1], Address)


def test_text_is_one_line_and_sorts_sets() -> None:
    value = (Point(1, "a\nb"), {"b", "a"}, Color.RED, [1], {"k": (2,)}, Address("p", "r"))
    assert text(value) == (
        "(Point(x=1, owner='a\\nb'), {'a', 'b'}, RED, [1], {'k': (2,)}, Address(process='p', role='r'))"
    )


def test_a_value_that_cannot_be_compared_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="may not hold a generator"):
        freeze(each for each in (1,))
