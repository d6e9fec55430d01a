"""Delta tables on a disk that loses power."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from contract.delta_destination import DeltaSite
from system.volumes import MIB, Volumes
from trunkline.delivery.changes.columns import Column
from trunkline.delivery.changes.rows import Op
from trunkline.delivery.destinations import delta_log
from trunkline.delivery.destinations.contract import Standing
from trunkline.destination_suite.place import Change, Plan, Table, content, plain, staged
from trunkline.errors import TrunklineError

COLUMNS = (Column("id", "BIGINT"), Column("name", "VARCHAR"))
PLAN = Plan(through=1, token=1, source="lake/orders", columns=COLUMNS, key=("id",), seeds=True)
DISK_BYTES = 64 * MIB


@pytest.mark.parametrize("flushes", [0, 1, 4, 12])
def test_p2_what_was_reported_is_there_after_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flushes: int
) -> None:
    """The last of these flushes follows a checkpoint, and the log before it was removed."""
    monkeypatch.setattr(delta_log, "CHECKPOINT_EVERY", 5)
    monkeypatch.setattr(delta_log, "PROPERTIES", {"delta.logRetentionDuration": "interval 0 seconds"})
    with Volumes(tmp_path / "disks") as volumes:
        disk = volumes.ext4("d1", DISK_BYTES)
        table = Table(DeltaSite(str(disk)), "table")
        rows = {number: {"id": number, "name": f"n{number}"} for number in range(3)}
        destination = table.open()
        destination.seed(PLAN, plain(COLUMNS, list(rows.values())))
        for at in range(1, flushes + 1):
            changes: list[Change] = [
                (Op.REPLACE, {"id": 1, "name": str(at)}),
                (Op.INSERT, {"id": 100 + at, "name": "x"}),
            ]
            flush = replace(PLAN, expected=at, through=at + 1, seeds=False)
            destination.flush(flush, staged(COLUMNS, ("id",), changes))
            rows |= {int(row["id"]): dict(row) for _, row in changes}
        volumes.cut_power(disk)
        with pytest.raises(TrunklineError):
            destination.flush(replace(PLAN, expected=flushes + 1, through=99, seeds=False), [])
        volumes.power_on(disk)
        again = table.open()
        assert again.standing() == Standing(flushes + 1, 1, "lake/orders")
        assert content(table.held()) == content(rows.values())
        more = replace(PLAN, expected=flushes + 1, through=99, seeds=False)
        assert again.flush(more, staged(COLUMNS, ("id",), [(Op.REMOVE, {"id": 0})])).removed == 1
