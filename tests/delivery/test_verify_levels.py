"""Verify and repair of a destination whose tables commit alone, and are at two versions after a crash (T10)."""

from __future__ import annotations

from pathlib import Path

import pytest

from delivery.direct_delivery import Direct
from delivery.set_delivery import customer, direct, order, shop
from delivery.set_source import SetSource, memory_table
from delivery.task_pipelines import flush_work, member_of, standing_of
from trunkline.core.delivery_messages import Outcome
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.config.addresses import DeltaAddress
from trunkline.delivery.destinations.delta import DeltaPlace
from trunkline.delivery.job.small import flush_portion
from trunkline.delivery.job.work import Portion, TaskDestination
from trunkline.delivery.verification.repair import repair_together
from trunkline.delivery.verification.verify import VerifyVerdict, verify_together

WIDER = "id BIGINT, tenant VARCHAR, customer BIGINT, price DOUBLE, note VARCHAR"


def broken_off(source: SetSource, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Direct:
    """The first flush breaks off before the lead commits."""
    delivery = direct(source, TaskDestination("acme", DeltaAddress(f"{folder}/{{table}}"), ("acme",)))
    delivery.seed()
    rows = [{**row, "note": "x"} for row in source.states[-1]["public.orders"].rows]
    source.commit(orders=memory_table(WIDER, *rows, {**order(9, "acme"), "note": "y"}))
    source.put("customers", customer(1, "acme", "Bob"), customer(5, "acme"))
    commits = 0

    def stops(place: DeltaPlace, name: str) -> None:
        nonlocal commits
        commits += name == "commit"
        if commits == 3:
            raise OSError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaPlace, "_step", stops)
        members = (member_of(delivery.work, "acme"),)
        report = flush_portion(delivery.work, flush_work(delivery.work, Window(1, 3)), Portion(0, members, True))
    assert [each.outcome for each in report.results] == [Outcome.UNKNOWN]
    standing = standing_of(delivery.work, "acme")
    assert standing is not None
    assert (standing.position, standing.ahead) == (1, 3)
    return delivery


def verified(delivery: Direct) -> VerifyVerdict:
    [verdict] = verify_together(delivery.work, ["acme"], {"acme": "scan"})
    return verdict


def test_each_table_is_compared_at_its_own_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = shop()
    delivery = broken_off(source, tmp_path, monkeypatch)
    verdict = verified(delivery)
    assert (verdict.outcome, verdict.position, verdict.tables) == ("equal", 1, 2), verdict
    assert "at the versions 1 and 3" in verdict.note
    for version, table in ((1, "public.customers"), (3, "public.orders")):
        kept = source.at(version)[table]
        columns = ", ".join(f"{column.name} {column.type}" for column in kept.columns)
        source.at(version)[table] = memory_table(columns)
        verdict = verified(delivery)
        assert (verdict.outcome, {each.table for each in verdict.differences}) == ("differs", {table}), verdict
        [repair] = repair_together(delivery.work, {"acme": 9}, {"acme": "scan"})
        assert (repair.outcome, "run the pipeline" in repair.note) == ("differs", True), repair
        source.at(version)[table] = kept
    delivery.flush()
    assert (verified(delivery).outcome, verified(delivery).note) == ("equal", "")


def test_tables_ahead_of_a_source_that_was_restored_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = shop()
    delivery = broken_off(source, tmp_path, monkeypatch)
    source.states[1:] = []
    verdict = verified(delivery)
    assert verdict.outcome == "differs"
    assert "at version 3, and the source is at 1" in verdict.note
