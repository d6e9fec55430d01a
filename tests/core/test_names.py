"""Names: one rule for those that are made, a bound for those that are there."""

from __future__ import annotations

import re

import pytest

from trunkline.core.names import (
    LOG_NAME_BYTES_MAX,
    LOG_NAME_PATTERN,
    NAME_BYTES_MAX,
    is_bounded,
    log_name_fault,
    may_be_log,
)

FINE = ["a", "0", "orders", "orders.eu-west_1", "A" * LOG_NAME_BYTES_MAX, "a..b", "x-"]
NOT_FINE = [
    "",
    ".",
    "-a",
    "_a",
    ".a",
    "a b",
    "a/b",
    "a\n",
    "日" * 100,
    "日",
    "é",
    "a" * 129,
    "٣",
    "²",
    "a\x00",
    "\ud800",
]


@pytest.mark.parametrize("name", FINE)
def test_b1_a_log_is_made_under_a_name_of_ascii(name: str) -> None:
    assert log_name_fault(name) == ""
    assert len(name.encode()) == len(name)
    assert re.fullmatch(LOG_NAME_PATTERN, name)


@pytest.mark.parametrize("name", NOT_FINE)
def test_b1_any_other_name_is_refused_with_the_rule(name: str) -> None:
    assert "up to 128 ASCII letters, digits" in log_name_fault(name)
    assert len(log_name_fault("日" * 1_000_000)) < 500


@pytest.mark.parametrize("name", [*FINE, "日", "日" * 85, "a b", "a" * NAME_BYTES_MAX])
def test_b2_a_name_that_exists_is_only_bounded_in_bytes(name: str) -> None:
    assert is_bounded(name)


@pytest.mark.parametrize("name", ["", "日" * 86, "a" * 256, "\ud800"])
def test_b2_a_longer_one_is_none(name: str) -> None:
    assert not is_bounded(name)


def test_b2_whatever_an_older_version_took_may_be_a_log() -> None:
    assert may_be_log("日" * 128)
    assert may_be_log("\U00020000" * 128)
    assert not may_be_log("\U00020000" * 129)
    assert not may_be_log("")
