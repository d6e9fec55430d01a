"""A log is read once for all destinations that are verified, as long as they are at one position."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from delivery.direct_delivery import Direct
from delivery.test_seed_from import TENANTS, TrimmedShop, flush
from trunkline.delivery.config.addresses import DeltaAddress
from trunkline.delivery.config.tree import SeedMode
from trunkline.delivery.job.work import TaskDestination
from trunkline.delivery.sources import log_reader
from trunkline.delivery.sources.database import DatabaseSource
from trunkline.delivery.verification import verify
from trunkline.delivery.verification.verify import verify_all

COUNT = 20
NAMES = [f"t{number}" for number in range(COUNT)]
SEEDS: dict[str, SeedMode] = dict.fromkeys(NAMES, "scan")


@pytest.fixture
def shop() -> Iterator[TrimmedShop]:
    made = TrimmedShop()
    yield made
    log_reader._open.pop(log_reader._key(made.source.address), None)


@pytest.fixture
def delivery(shop: TrimmedShop, tmp_path: Path) -> Direct:
    """Twenty destinations; each tenant's rows go to ten of them."""
    targets = [
        TaskDestination(name, DeltaAddress(f"{tmp_path}/{name}/{{table}}"), (TENANTS[number % 2],))
        for number, name in enumerate(NAMES)
    ]
    made = Direct(shop.source, *targets, tables=["*.*"], key=())
    shop.write(*range(30))
    made.seed()
    return made


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The version of each read of a state."""
    found, scan = list[int](), DatabaseSource.scan

    def counted(source: DatabaseSource, version: int, *rest: Any) -> Any:
        found.append(version)
        return scan(source, version, *rest)

    monkeypatch.setattr(DatabaseSource, "scan", counted)
    return found


def entries_read(shop: TrimmedShop, delivery: Direct, names: list[str]) -> int:
    """By a process that has not read the log yet; all are equal."""
    log_reader._open.pop(log_reader._key(shop.source.address), None)
    shop.memory.close()
    before = shop.memory.read
    assert {each.outcome for each in verify_all(delivery.work, names, SEEDS, at_once=4)} == {"equal"}
    return shop.memory.read - before


def test_twenty_destinations_cost_one_read_of_the_log(shop: TrimmedShop, delivery: Direct, scans: list[int]) -> None:
    one, all_of_them = entries_read(shop, delivery, NAMES[:1]), entries_read(shop, delivery, NAMES)
    assert all_of_them == one
    assert len(scans) == 2, "one for each verification"


def test_destinations_at_other_positions_cost_a_read_for_each_position(
    shop: TrimmedShop, delivery: Direct, scans: list[int]
) -> None:
    through = shop.write(31, 32)
    flush(delivery, *NAMES[:5], through=through)
    entries_read(shop, delivery, NAMES)
    assert sorted(scans) == [through - 1, through]


def test_a_read_of_the_log_is_for_as_many_tables_as_memory_allows(
    shop: TrimmedShop, delivery: Direct, scans: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "TABLES_TOGETHER_MAX", 10)
    entries_read(shop, delivery, NAMES)
    assert len(scans) == 4, "five destinations with two tables each at a time"
