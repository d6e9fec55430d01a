"""The sorted map of monitors, compared with a plain dict."""

from __future__ import annotations

from random import Random

import pytest

from trunkline.check.frozen import rename, text
from trunkline.check.monitors.sorted_map import SortedMap


def made(pairs: dict[int, str]) -> SortedMap[str]:
    result: SortedMap[str] = SortedMap()
    for key, value in pairs.items():
        result = result.put(key, value)
    return result


@pytest.mark.parametrize("highest", [20, 63, 64, 5_000, 2**32])
def test_it_behaves_like_a_dict(highest: int) -> None:
    random = Random(highest)
    pairs = {random.randrange(highest): str(number) for number in range(400)}
    built = made(pairs)
    assert list(built.items()) == sorted(pairs.items())
    assert built.highest() == max(pairs)
    for key in [*pairs, *(random.randrange(highest * 2) for _ in range(400)), 0]:
        below = [each for each in pairs if each <= key]
        assert built.get(key) == pairs.get(key)
        assert built.floor(key) == (pairs[max(below)] if below else None)


def test_equal_contents_are_equal_values_in_any_order_of_insertion() -> None:
    pairs = {number * 37 % 5_000: "x" for number in range(300)}
    backwards = dict(reversed(pairs.items()))
    assert made(pairs) == made(backwards)
    assert hash(made(pairs)) == hash(made(backwards))
    assert made(pairs) != made({**pairs, 5_001: "x"})


def test_a_replaced_value_leaves_the_previous_map_unchanged() -> None:
    before = made({1: "a", 100: "b"})
    assert dict(before.put(100, "c").items()) == {1: "a", 100: "c"}
    assert dict(before.items()) == {1: "a", 100: "b"}


def test_an_empty_map_has_no_values() -> None:
    empty: SortedMap[str] = SortedMap()
    assert (empty.get(1), empty.floor(1), empty.highest(), list(empty.items())) == (None, None, None, [])


def test_its_names_are_renamed_and_it_is_shown_as_a_dict() -> None:
    assert rename(made({1: "n1", 70: "n2"}), {"n1": "n2", "n2": "n1"}) == made({1: "n2", 70: "n1"})
    assert text(made({1: "n1", 70: "n2"})) == "{1: 'n1', 70: 'n2'}"
