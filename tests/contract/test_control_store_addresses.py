"""A destination that takes over the tables of another is seeded again unless they hold exactly its rows (rule C12)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from contract.control_place import LONG_MS, Place
from trunkline.delivery.control.store import ControlStore

File = Mapping[str, tuple[str, str]]  # name of a destination: its address, and what else decides its rows


class Files:
    """Configures one file after the other, as a deliverer that starts with each does."""

    def __init__(self, store: ControlStore) -> None:
        self.store = store
        self._count = 0

    def start(self, file: File, *, seeds: bool = True) -> list[str]:
        """Returns the destinations that are to be seeded again; ``seeds``: they are."""
        self._count += 1
        digest = f"file{self._count}"
        digests = {name: f"{rest}@{address}" for name, (address, rest) in file.items()}
        addresses = {name: address for name, (address, _) in file.items()}
        for _ in range(2):  # a repeated call changes nothing (C8)
            self.store.configurations.configure("p", digest, digests, None, addresses)
        owned = self.store.ownerships.acquire("p", "me", digest, LONG_MS).ownerships
        asked = [each for each in owned if each.reseed]
        for each in asked if seeds else ():
            self.store.desired_states.reseeded("p", each.name, each.token, each.reseed)
        return [each.name for each in asked]


@pytest.fixture
def files(store: ControlStore) -> Files:
    return Files(store)


def test_c12_a_renamed_destination_goes_on(files: Files) -> None:
    assert files.start({"a": ("x", "1"), "b": ("y", "2")}) == []
    assert files.start({"c": ("x", "1"), "b": ("y", "2")}) == []


def test_c12_a_destination_that_is_renamed_and_has_other_rows_is_seeded_again_once(files: Files) -> None:
    files.start({"a": ("x", "1"), "b": ("y", "2")})
    assert files.start({"c": ("x", "3"), "b": ("y", "2")}) == ["c"]
    assert files.start({"c": ("x", "3"), "b": ("y", "2"), "d": ("z", "4")}) == ["d"], "b and c are as they were"


def test_c12_a_destination_that_is_renamed_back_is_compared_with_what_its_tables_hold(files: Files) -> None:
    files.start({"a": ("x", "1")})
    assert files.start({"b": ("x", "2")}) == ["b"]
    assert files.start({"a": ("x", "1")}) == ["a"]
    assert files.start({"b": ("x", "1")}) == ["b"], "its own last rows were others"
    assert files.start({"a": ("x", "1")}) == []


def test_c12_only_the_last_destination_with_the_tables_counts(files: Files) -> None:
    files.start({"a": ("x", "1")})
    files.start({"b": ("x", "2")})
    assert files.start({"c": ("x", "1")}) == ["c"], "a had the same rows, but b came after it"
    files.start({"c": ("y", "1")})
    assert files.start({"d": ("x", "2")}) == ["d"], "also if the last one has gone elsewhere"


def test_c12_a_seed_that_was_requested_before_the_renaming_is_still_to_be_done(files: Files) -> None:
    files.start({"a": ("x", "1")})
    assert files.start({"a": ("x", "2")}, seeds=False) == ["a"]
    assert files.start({"b": ("x", "2")}, seeds=False) == ["b"]
    assert files.start({"c": ("x", "2")}) == ["c"]
    assert files.start({"d": ("x", "2")}) == []


def test_c12_destinations_that_exchange_their_names_are_seeded_again(files: Files) -> None:
    files.start({"a": ("x", "1"), "b": ("y", "2")})
    assert files.start({"a": ("y", "2"), "b": ("x", "1")}) == ["a", "b"]


def test_c12_nothing_is_seeded_again_by_a_store_that_is_new_or_was_lost(files: Files) -> None:
    assert files.start({"a": ("x", "1"), "b": ("y", "2")}) == []
    files.store.configurations.discover("p", "file1", {"c": ("c", "3@z")}, None, {"c": "z"})
    assert [each.reseed for each in files.store.destinations("p")] == [0, 0, 0]


def test_c12_a_discovered_destination_may_take_over_tables_too(files: Files) -> None:
    files.start({"a": ("x", "1"), "b": ("y", "2")})
    files.start({"b": ("y", "2")})
    files.store.configurations.discover("p", "file2", {"c": ("c", "3@x")}, None, {"c": "x"})
    assert {each.name: each.reseed for each in files.store.destinations("p")} == {"a": 0, "b": 0, "c": 1}


def test_c12_an_address_with_another_spelling_may_be_that_of_a_destination_that_was_removed(files: Files) -> None:
    files.start({"a": ("host=db", "1")})
    assert files.start({"b": ("host=127.0.0.1", "2")}) == ["b"]


@pytest.mark.parametrize(("rows", "asked"), [("1", []), ("2", ["b"])])
def test_c12_of_a_destination_that_left_before_addresses_were_recorded_the_rows_count(
    control_place: Place, rows: str, asked: list[str]
) -> None:
    store = control_place.open()
    store.configurations.configure("p", "old", {"a": "1@x"})
    assert Files(store).start({"b": ("x", rows)}) == asked
    store.close()


def test_c12_ten_thousand_destinations_are_compared_at_once(files: Files) -> None:
    many = {f"t{n}": (f"x{n}", "1") for n in range(10_000)}
    files.start(many)
    renamed = {f"u{n}": (f"x{n}", "1" if n % 5_000 else "2") for n in range(10_000)}
    assert files.start(renamed) == ["u0", "u5000"]
