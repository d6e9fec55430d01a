"""What the dashboard shows when parts of a real cluster die."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from dashboard.running_dashboard import chromium, clean_page, dashboard
from local_cluster import RunningCluster, local_cluster
from trunkline import sync

FAILOVER_MS = 20_000  # a lease runs out after 3 s; the rest is for a busy machine


@pytest.fixture
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with local_cluster(tmp_path_factory.mktemp("dying") / "cluster", "--no-restart") as cluster:
        yield cluster


@pytest.fixture
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, running: RunningCluster) -> Iterator[Page]:
    with dashboard("--connect", running.connect) as url, clean_page(browser, url) as page:
        yield page


def test_a_lost_node_and_the_segment_without_it_show_on_the_page_and_in_the_feed(
    page: Page, running: RunningCluster
) -> None:
    with sync.connect(running.connect) as cluster:
        cluster.log("orders", create=True).append([b"x"] * 9)
        lost = cluster.describe("orders").last.groups[0][1].node
        expect(page.locator("#health-words")).to_have_text("all 3 nodes live")
        article = page.get_by_label("log orders", exact=True)
        expect(article.locator(".log-tail b")).to_have_text("10")
        running.signal(lost, signal.SIGKILL)
        expect(page.locator("#health-words")).to_have_text(re.compile(rf"{lost} lost \d+ s ago"), timeout=FAILOVER_MS)
        expect(page.locator(f'.node[data-key="{lost}"] .node-state')).to_have_text("lost")
        expect(page.locator(f'.node[data-key="{lost}"] .node-reads')).to_be_hidden()
        expect(page.locator('figure[data-key="reads"] .plot-name')).to_have_text("2 nodes")
        feed = page.locator("#feed li .words")
        expect(feed.filter(has_text=re.compile(rf"^{lost} lost$"))).to_have_count(1)
        sealed = re.compile(r"^segment 0 of orders sealed at 10; segment 1 on \w+, \w+ \(epoch 2\)$")
        expect(feed.filter(has_text=sealed)).to_have_count(1, timeout=FAILOVER_MS)
        expect(article.locator(".seal")).to_have_count(1)
        expect(page.locator("#problems")).to_contain_text("log orders has 2 of 3 copies")
        assert cluster.log("orders").append(b"after") == 10
        expect(article.locator(".log-tail b")).to_have_text("11")
    page.get_by_role("button", name="Last").click()
    expect(page.locator(".entry .preview").last).to_have_text("after")
    running.signal("coordinator", signal.SIGKILL)
    expect(page.locator("#health-words")).to_have_text("no coordinator answers", timeout=FAILOVER_MS)
    expect(feed.first).to_have_text("no coordinator answers")
    expect(article.locator(".seal")).to_have_count(1)  # what was seen last stays
