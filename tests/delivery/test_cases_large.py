"""A window of five million changes, larger than the memory that Spark has."""

from __future__ import annotations

from pathlib import Path

from delivery.job_driver import Jobs, started
from delivery.pipe import make_sites
from delivery.pipe_sources import LakeSource, opened_lake
from delivery.task_pipelines import task_pipeline_of
from postgres_server import PostgresServer
from trunkline.core.delivery_messages import FlushGroup, JobMember, SeedGroup, SeedMode
from trunkline.delivery.config.addresses import LakeAddress

HEAP = "512m"  # the least with which Spark starts; it keeps a quarter of it for rows
HELD = 300_000  # rows before the window
INSERTED = 4_750_000
UPDATED = 200_000
DELETED = 50_000
COLUMNS = "id BIGINT, tenant VARCHAR, item VARCHAR, mark INTEGER"
TENANT = "CASE WHEN i % 10 = 0 THEN 'bolt' ELSE 'acme' END"  # nine rows of ten are one tenant's
ITEM = "md5(CAST(i AS VARCHAR))"


def test_a_window_of_five_million_changes_with_most_of_them_in_one_tenant_completes(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    source = LakeSource(tmp_path, columns=COLUMNS)

    def inserted(first: int, count: int) -> str:
        return f"INSERT INTO lake.orders SELECT i, {TENANT}, {ITEM}, 1 FROM range({first}, {first + count}) r(i)"

    after = source.write(inserted(0, HELD))
    source.write(inserted(HELD, INSERTED))
    source.write(f"UPDATE lake.orders SET mark = 2 WHERE id < {UPDATED}")
    through = source.write(f"DELETE FROM lake.orders WHERE id >= {UPDATED} AND id < {UPDATED + DELETED}")
    source.write("DELETE FROM lake.orders WHERE id % 2 = 0")  # behind the window
    sites = make_sites(tmp_path, postgres, kinds=["ducklake"], paths=["large"])
    work = task_pipeline_of(source.source, [site.target for site in sites])
    seeded = source.source.lineage([after]).marks[after]
    members = [
        tuple(JobMember(site.name, position, 1, mark) for site in sites)
        for position, mark in ((0, ""), (after, seeded))
    ]
    jobs = Jobs(
        "local[2]",
        {"spark.driver.memory": HEAP},
        work,
        -1,
        (SeedGroup(1, after, SeedMode.SCAN, members[0]), FlushGroup(2, after, through, members[1])),
    )
    with started(tmp_path, jobs) as (process, lines):
        said = list(lines)
        assert process.wait() == 0
    ended = [line for line in said if line.ended]
    assert [(line.path, line.tries, set(line.outcomes.values())) for line in ended] == [("large", 1, {"applied"})] * 2
    assert sum(ended[1].written.values()) == INSERTED + UPDATED
    assert said[-1].memory_mb < 300
    for site in sites:
        assert isinstance(site.target.address, LakeAddress)
        assert_same_rows(source, site.target.address, site.name.partition("-")[0], through)


def assert_same_rows(source: LakeSource, destination: LakeAddress, tenant: str, version: int) -> None:
    """Compared by DuckDB: number of rows, and a sum of hashes."""
    summed = "SELECT count(*), sum(hash(id, tenant, item, mark)::HUGEINT) FROM"
    with source.opened() as lake:
        wanted = lake.execute(f"{summed} lake.orders AT (VERSION => {version}) WHERE tenant = '{tenant}'").fetchall()
    with opened_lake(destination) as lake:
        held = lake.execute(f'{summed} lake."{destination.table}"').fetchall()
    assert held == wanted
