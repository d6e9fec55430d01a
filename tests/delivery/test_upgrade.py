"""A pipeline of one table that an older release delivered goes on where it was: through the tasks, in every kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract.kinds import kinds
from delivery.direct_delivery import Lake, all_well, lake_source
from delivery.task_pipelines import flush_work, seed_work, standing_of, task_pipeline_of
from trunkline.core.delivery_messages import JobMember, Outcome
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.destinations.contract import FENCED_TOKEN, TAKEN_OVER, Standing
from trunkline.delivery.job.small import flush_portion, seed_portion
from trunkline.delivery.job.standings import read_standings
from trunkline.delivery.job.table_works import known_tables
from trunkline.delivery.job.work import Portion, TaskDestination
from trunkline.destination_suite.place import Kind, SiteOfReleases, content

ORDERS = "CREATE TABLE lake.orders (id BIGINT, tenant VARCHAR, amount INTEGER)"


@pytest.fixture(params=[kind for kind in kinds() if "older_records" not in kind.lacks], ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
def site(kind: Kind, tmp_path: Path, request: pytest.FixtureRequest) -> SiteOfReleases:
    found: SiteOfReleases = kind.make(tmp_path, lambda: request.getfixturevalue("postgres"))  # type: ignore[assignment]
    return found


@pytest.mark.parametrize("marks", [False, True], ids=["without marks", "with marks"])
def test_a_destination_of_an_older_release_continues_without_a_seed_and_fences_it(
    site: SiteOfReleases, kind: Kind, tmp_path: Path, marks: bool
) -> None:
    lake = Lake(tmp_path, ORDERS, "INSERT INTO lake.orders VALUES (1, 'acme', 1), (2, 'bolt', 2)")
    target = TaskDestination("acme", site.address("orders"), ("acme",))
    pipeline = task_pipeline_of(lake_source(lake), [target])
    at = pipeline.source.state(0).version
    all_well(seed_portion(pipeline, seed_work(pipeline, at), Portion(0, (JobMember("acme", 0, 7),), True)))
    held = standing_of(pipeline, "acme")
    assert held is not None
    site.make_old_record("orders", Standing(held.position, 7, held.source, held.mark if marks else ""), marks=marks)
    [found] = read_standings(pipeline, ["acme"], {}, known_tables(pipeline))
    assert (found.outcome, found.position, found.token, found.error) == (Outcome.STANDS, at, 7, "")
    assert found.mark == (held.mark if marks else "")
    through = lake.run("INSERT INTO lake.orders VALUES (3, 'acme', 3)", "DELETE FROM lake.orders WHERE id = 1")
    member = JobMember("acme", found.position, 8, found.mark)
    report = flush_portion(pipeline, flush_work(pipeline, Window(at, through)), Portion(0, (member,), True))
    assert [each.outcome for each in report.results] == [Outcome.APPLIED]
    assert content(site.held("orders")) == content([{"id": 3, "tenant": "acme", "amount": 3}])
    assert site.old_token("orders") == (8 if kind.commits_alone else FENCED_TOKEN)
    assert site.old_source("orders") == ("" if kind.commits_alone else TAKEN_OVER), "a higher token alone helps no one"
