"""Tenants with four tables, under kills: every look of a reader sees one state of the database."""

from __future__ import annotations

from pathlib import Path

import pytest

from system.tenants_soak import Plan, soak


@pytest.mark.usefixtures("java")
def test_tenants_show_one_state_of_the_database_at_every_look_while_everything_is_killed(tmp_path: Path) -> None:
    faults, looks = soak(tmp_path / "soak", Plan(30.0, seed=5, accounts=50, rate=20, pauses_s=(3.0, 6.0)))
    assert sum(faults.values()) > 3
    assert min(looks.taken["ducklake"], looks.taken["postgres"]) > 20, looks
