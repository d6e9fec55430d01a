"""A short run of the delivery soak; ``delivery_soak.py`` runs for as long as you like."""

from __future__ import annotations

from pathlib import Path

from system.delivery_soak import Plan, soak

SHORT_S = 30.0


def test_every_table_is_equal_to_its_part_of_the_source_after_kills(tmp_path: Path) -> None:
    """Mirror and append, DuckLake, Delta and PostgreSQL; drivers, workers and the server die."""
    faults = soak(tmp_path, Plan(SHORT_S, seed=11, deliverers=1))
    assert faults.total() > 0, "nothing was killed: the run shows nothing"
