"""Pages of a log on a real cluster, also of one that a broken writer has written to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import trunkline
from local_cluster import RunningCluster, local_cluster
from lying_writer import GARBAGE, POISONED, append_corrupt_batch, append_poison, payload_of, writing
from trunkline.dashboard.log_pages import LogPage, PageReader
from trunkline.dashboard.payloads import shown_header


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with local_cluster(tmp_path_factory.mktemp("paged") / "cluster") as running:
        yield running


def page_of(connect: str, name: str) -> LogPage:
    async def read() -> LogPage:
        async with trunkline.connect(connect) as handle:
            return await PageReader(await handle.log(name), 1, 100).read()

    return asyncio.run(read())


def test_a_poisoned_log_is_shown_with_the_bytes_that_are_no_headers(cluster: RunningCluster) -> None:
    writing(cluster.connect, "poisoned", append_poison)
    page = page_of(cluster.connect, "poisoned")
    assert [entry.text.encode() for entry in page.entries] == [payload_of(index) for index in range(len(POISONED))]
    assert page.entries[1].headers == (("source", "shöp"), ("n", "ff"))
    unreadable = [entry.headers for entry in page.entries[2:-1]]
    assert unreadable == [(("(unreadable)", shown_header(garbage)),) for garbage in GARBAGE]


def test_b3_a_corrupt_batch_is_noted_and_skipped(cluster: RunningCluster) -> None:
    async def write(log: trunkline.Log) -> None:
        await log.append(b"before")
        await append_corrupt_batch(log)
        await log.append(b"behind")

    writing(cluster.connect, "corrupt", write)
    page = page_of(cluster.connect, "corrupt")
    assert [(entry.glsn, entry.text) for entry in page.entries] == [(1, "before"), (5, "behind")]
    assert page.notes == ("positions 2 to 4 do not hold a valid batch",)
