"""The dashboard of a cluster with a token and many logs, opened after the events."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Browser, Page, expect

from dashboard.running_dashboard import chromium, clean_page, dashboard
from local_cluster import RunningCluster, local_cluster, wait_until
from trunkline import ClientOptions, sync
from trunkline.client.cluster import log_settings

TOKEN: Final = "not for everybody"
LOGS: Final = 120
OPTIONS: Final = ClientOptions(token=TOKEN)


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("secret") / "token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def lost(cluster: RunningCluster) -> str:
    """A node that was silent until its lease ran out; it is back, the coordinator was killed since and is back, too."""
    with sync.connect(cluster.connect, options=OPTIONS) as client:

        def is_live(node: str) -> bool:
            return next(each.live for each in client.nodes() if each.node == node)

        log = client.log("orders", create=True)
        log.append([b"x"] * 9)
        node = client.describe("orders").last.groups[0][1].node
        cluster.pause(node)
        wait_until(lambda: not is_live(node))
        log.append(b"after")
        cluster.resume(node)
        wait_until(lambda: is_live(node))
        wait_until(lambda: f"{node} is back" in events(client))
        for number in range(1, LOGS):
            client.create_log(f"log-{number:04}", log_settings())
        pid = cluster.signal("coordinator", signal.SIGKILL)
        wait_until(lambda: cluster.process("coordinator").pid not in (0, pid))
        wait_until(lambda: events(client).count("coordinator started") == 2)
    return node


def events(client: sync.Cluster) -> list[str]:
    return [event.text for event in client.events(timeout=10).events]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, token_file: Path) -> Iterator[RunningCluster]:
    with local_cluster(tmp_path_factory.mktemp("before") / "cluster", "--token-file", str(token_file)) as running:
        yield running


@pytest.fixture(scope="module")
def url(cluster: RunningCluster, lost: str, token_file: Path) -> Iterator[str]:
    assert lost
    with dashboard("--connect", cluster.connect, "--token-file", str(token_file)) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, url: str) -> Iterator[Page]:
    with clean_page(browser, url) as page:
        page.get_by_label("token").fill(TOKEN)
        page.get_by_role("button", name="Log in").click()
        expect(page.locator("#health-words")).to_have_text("all 3 nodes live")
        yield page


def test_events_from_before_the_page_was_opened_are_shown_in_order(page: Page, lost: str) -> None:
    page.get_by_role("button", name="Hide logs").click()
    words = page.locator("#feed li .words")
    expect(words.filter(has_text="coordinator started")).to_have_count(2)
    said = words.all_text_contents()[::-1]
    happened = ["coordinator started", f"{lost} lost", f"{lost} is back"]
    assert [said.index(each) for each in happened] == sorted(said.index(each) for each in happened)
    assert said.index(f"{lost} is back") < len(said) - 1 - said[::-1].index("coordinator started")
    assert said.count(f"{lost} lost") == said.count(f"{lost} is back") == 1
    page.get_by_role("button", name="Hide logs").click()
    page.get_by_label("filter events").fill("segment 0 of orders sealed")
    expect(words).to_have_text([re.compile(r"^segment 0 of orders sealed at \d+; segment 1 on ")])


def test_a_page_shows_nothing_before_the_token_is_shown(browser: Browser, url: str) -> None:
    page = browser.new_page()
    page.goto(url)
    expect(page.get_by_role("heading", name="This cluster has a token")).to_be_visible()
    expect(page.locator("#all")).to_be_hidden()
    page.get_by_label("token").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#login-said")).to_have_text("this is not the token of the cluster")
    expect(page.locator("#all")).to_be_hidden()
    page.get_by_label("token").fill(TOKEN)
    page.keyboard.press("Enter")
    expect(page.locator("#health-words")).to_have_text("all 3 nodes live")
    assert page.evaluate("document.cookie") == "", "no script reads the session"
    page.reload()
    expect(page.locator("#health-words")).to_have_text("all 3 nodes live")
    page.close()


def test_many_logs_are_a_short_list_that_can_be_filtered_and_unfolded(page: Page) -> None:
    rows = page.locator(".log")
    expect(page.locator("#log-count")).to_have_text(f"{LOGS} of {LOGS} logs, the first 25 shown")
    expect(rows).to_have_count(25)
    expect(page.locator("svg.lanes")).to_have_count(0)
    assert page.evaluate("document.documentElement.scrollHeight") < 3_000
    page.get_by_role("button", name="Show more logs").click()
    expect(rows).to_have_count(LOGS)
    page.get_by_label("filter logs").fill("log-0099 chain")
    expect(rows).to_have_count(1)
    rows.locator("summary").first.click()
    expect(rows.locator("svg.lanes .copy.open")).to_have_count(3)
    page.get_by_role("button", name="Read entries of log-0099").click()
    expect(page.locator("#log-said")).to_have_text("nothing here yet of log-0099, tail 1")
    expect(page.locator(".roles dt").first).to_have_text(re.compile(rf"^{LOGS} open logs$"))


ROW: Final = """async ([duty, dead]) => {
  const { rowOf } = await import("/page/segments.js");
  const members = [{ node: "a", joining: false }, { node: "b", joining: true }];
  const segment = { index: 0, epoch: 1, base: 1, end: 9, repaired: true, owner: "a", groups: [members] };
  return rowOf({ policy: "chain", duty }, segment, 9, new Set(dead)).slice(3, 5);
}"""


@pytest.mark.parametrize(
    ("duty", "dead", "expected"),
    [
        ("CopyToJoiner", [], ["sealed, being copied", "a → b (being copied)"]),
        ("idle", [], ["sealed, being copied", "a → b (waits for its copy)"]),
        ("CopyToJoiner", ["b"], ["sealed, a copy is unfinished", "a → b (node lost, copy unfinished)"]),
        ("idle", ["a"], ["sealed, being copied", "a (node lost) → b (waits for its copy)"]),
    ],
)
def test_a_copy_on_a_lost_node_is_not_shown_as_being_copied(
    page: Page, duty: str, dead: list[str], expected: list[str]
) -> None:
    assert page.evaluate(ROW, [duty, dead]) == expected
