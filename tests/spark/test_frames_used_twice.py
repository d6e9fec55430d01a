"""A frame is the log as of ``load()``, however often it is used, and whatever stands beside it in a query."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from spark.spark_log import SparkLog

ENTRIES = 100
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
NARROW = "glsn BIGINT, payload BINARY"


@pytest.fixture
def hundred(log: SparkLog) -> SparkLog:
    log.append(*(b"%d" % number for number in range(1, ENTRIES + 1)))
    return log


@pytest.fixture(params=["false", "true"], ids=["", "where-filters-are-pushed-for-others"])
def _pushdown(hundred: SparkLog, request: pytest.FixtureRequest) -> Iterator[None]:
    """Whether the user has turned pushdown on for another source in Python: Spark then plans a read at each filter."""
    hundred.spark.conf.set(PUSHDOWN, request.param)
    yield
    hundred.spark.conf.unset(PUSHDOWN)


def positions(frame: DataFrame) -> list[int]:
    return sorted(row.glsn for row in frame.select("glsn").collect())


@pytest.mark.usefixtures("_pushdown")
@pytest.mark.parametrize("schema", [None, NARROW], ids=["all-columns", "some-columns"])
def test_a_frame_used_twice_gives_each_use_its_own_rows(hundred: SparkLog, schema: str | None) -> None:
    orders = hundred.frame(schema)
    above, below = orders.where("glsn > 90"), orders.where("glsn <= 5")
    assert above.count() == 10
    assert orders.count() == ENTRIES
    assert positions(below) == [1, 2, 3, 4, 5]
    assert positions(above) == list(range(91, 101))
    assert positions(orders.where(f.col("glsn").isin(40, 44))) == [40, 44]
    assert positions(orders.where("glsn = 17")) == [17]
    assert positions(orders.where("payload = '18' AND glsn > 2")) == [18]
    assert orders.count() == ENTRIES


@pytest.mark.usefixtures("_pushdown")
def test_unions_and_joins_of_a_frame_with_itself_give_each_side_its_own_rows(hundred: SparkLog) -> None:
    orders = hundred.frame()
    above, below = orders.where("glsn > 90"), orders.where("glsn <= 5")
    assert positions(above.union(below)) == [1, 2, 3, 4, 5, *range(91, 101)]
    assert positions(below.union(orders)) == sorted([1, 2, 3, 4, 5, *range(1, ENTRIES + 1)])
    left, right = orders.alias("a"), orders.alias("b")
    joined = left.join(right, f.col("a.glsn") == f.col("b.glsn") + 50).where("a.glsn <= 60 AND b.glsn >= 3")
    found = joined.select(f.col("a.glsn").alias("a"), f.col("b.glsn").alias("b")).collect()
    assert sorted((row.a, row.b) for row in found) == [(number + 50, number) for number in range(3, 11)]
    sums = [frame.groupBy().agg(f.sum("glsn").alias("s")) for frame in (above, below, orders)]
    assert [row.s for row in sums[0].union(sums[1]).union(sums[2]).collect()] == [955, 15, 5050]
    assert positions(orders.join(below.select("glsn"), "glsn", "left_anti")) == list(range(6, ENTRIES + 1))


@pytest.mark.usefixtures("_pushdown")
def test_a_cached_frame_and_what_was_made_of_it_before_hold_the_same_rows(hundred: SparkLog) -> None:
    orders = hundred.frame()
    above = orders.where("glsn > 90")
    assert above.count() == 10
    orders.cache()
    try:
        assert orders.count() == ENTRIES
        assert positions(above) == list(range(91, 101))
        assert positions(orders.where("glsn <= 5")) == [1, 2, 3, 4, 5]
        assert positions(hundred.frame(startingOffset=99)) == [99, 100], "another frame is not served from the cache"
    finally:
        orders.unpersist(blocking=True)
    narrow = orders.where("glsn <= 5").cache()
    try:
        assert narrow.count() == 5
        assert orders.count() == ENTRIES
    finally:
        narrow.unpersist(blocking=True)


@pytest.mark.usefixtures("_pushdown")
def test_a_view_queried_twice_gives_each_query_its_own_rows(hundred: SparkLog) -> None:
    spark = hundred.spark
    hundred.frame().createOrReplaceTempView("orders")
    assert spark.sql("SELECT glsn FROM orders WHERE glsn > 90").count() == 10
    assert spark.sql("SELECT glsn FROM orders").count() == ENTRIES
    both = "SELECT glsn FROM orders WHERE glsn > 98 UNION ALL SELECT glsn FROM orders WHERE glsn < 3"
    assert positions(spark.sql(both)) == [1, 2, 99, 100]
    within = "SELECT glsn FROM orders WHERE glsn > (SELECT max(glsn) - 2 FROM orders WHERE glsn < 50) AND glsn < 53"
    assert positions(spark.sql(within)) == [48, 49, 50, 51, 52]
    options = ", ".join(f"{name} '{value}'" for name, value in hundred.options().items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW named USING trunkline OPTIONS ({options})")
    assert spark.sql("SELECT glsn FROM named WHERE glsn > 90").count() == 10
    assert spark.sql("SELECT glsn FROM named").count() == ENTRIES


@pytest.mark.usefixtures("_pushdown")
@pytest.mark.parametrize("schema", [None, NARROW], ids=["all-columns", "some-columns"])
def test_every_action_sees_the_tail_of_the_first_look_and_a_new_load_sees_the_new_one(
    hundred: SparkLog, schema: str | None
) -> None:
    orders = hundred.frame(schema)
    if schema is not None:
        assert orders.count() == ENTRIES, "with a schema of the user's, Spark looks at a log as it plans"
    hundred.frame(schema).createOrReplaceTempView("orders")
    hundred.spark.sql("SELECT glsn FROM orders").count()
    hundred.append(b"later")
    assert orders.count() == ENTRIES
    assert orders.where("glsn > 90").count() == 10
    assert positions(orders.where("glsn > 99").union(orders.where("glsn < 2"))) == [1, 100]
    assert hundred.spark.sql("SELECT glsn FROM orders WHERE glsn > 90").count() == 10
    assert hundred.frame(schema).where("glsn > 90").count() == 11


def test_a_frame_whose_entries_were_trimmed_since_fails_and_does_not_shrink(hundred: SparkLog) -> None:
    orders = hundred.frame()
    hundred.log.reopen()
    hundred.append(b"later")
    assert hundred.log.trim(ENTRIES) == ENTRIES
    with pytest.raises(Exception, match=f"positions 1 to {ENTRIES} of log .* were trimmed away before they were read"):
        orders.count()
