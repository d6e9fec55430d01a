"""The dashboard in a real browser (Debian's chromium), over a real cluster and a real control store."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Final

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from counterexample import FINDING, REPLAY, example
from dashboard.running_dashboard import FilledStore, chromium, clean_page, dashboard
from local_cluster import RunningCluster, local_cluster, wait_until
from trunkline import sync
from trunkline.check.diagram import render
from trunkline.delivery.changes.versions import Window
from trunkline.delivery.control.contract import Status, UnroutedCounts

HOSTILE: Final = "<script>alert('no')</script><img src=x onerror=alert(1)>"
names = (f"log{number}" for number in itertools.count(1))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with local_cluster(tmp_path_factory.mktemp("dashboard") / "cluster") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def cluster(running: RunningCluster) -> Iterator[sync.Cluster]:
    with sync.connect(running.connect) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FilledStore]:
    filled = FilledStore(tmp_path_factory.mktemp("store") / "control.db", ("acme", "globex", "initech"))
    filled.report("acme", Status("ready", 41, 1, 900, 1_700_000_000_000, 5, 1_234))
    filled.report("globex", Status("ready", 42, 0, 0, 1_700_000_000_000, 5, 99))
    filled.report("initech", Status("halted", 12, 30, 60_000, error=f"initech: {HOSTILE}"))
    yield filled
    filled.close()


@pytest.fixture(scope="module")
def url(running: RunningCluster, store: FilledStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("check-out")
    steps, states = example()
    page = render("takeover", FINDING, steps, states, replay=REPLAY)
    (folder / "takeover-durability.html").write_text(page, encoding="utf-8")
    with dashboard("--connect", running.connect, "--deliver", store.address, "--check-out", str(folder)) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, url: str) -> Iterator[Page]:
    with clean_page(browser, url) as page:
        expect(page.locator("#health-words")).to_have_text("all 3 nodes live")
        yield page


def choose(page: Page, log: str) -> None:
    expect(page.locator(f'#log-name option[value="{log}"]')).to_be_attached()
    page.get_by_label("log", exact=True).select_option(log)


def unfolded(page: Page, log: str) -> Locator:
    """The log's article; among many logs it begins folded."""
    article = page.get_by_label(f"log {log}", exact=True)
    expect(article).to_be_visible()
    if not article.locator(".fold").evaluate("fold => fold.open"):
        article.locator(".fold > summary").click()
    return article


def go_to(page: Page, position: str) -> None:
    page.locator("#log-position").fill(position)
    page.keyboard.press("Enter")


# -------------------------------------------------------------------------------------------------------------- cluster


def test_the_map_shows_every_node_and_what_it_does_for_a_log(page: Page, cluster: sync.Cluster) -> None:
    name = next(names)
    cluster.log(name, create=True).append([b"x"] * 7)
    head, *_, tail = [member.node for member in cluster.describe(name).last.groups[0]]
    expect(page.locator(".node .node-state")).to_have_text(["live", "live", "live"])
    expect(page.locator(f'.node[data-key="{head}"] .roles [data-key="{name}"] dd')).to_have_text("head, sequencer")
    expect(page.locator(f'.node[data-key="{tail}"] .roles [data-key="{name}"] dd')).to_have_text("tail")
    drawing = unfolded(page, name).locator("svg.lanes")
    expect(drawing.locator(".copy.open")).to_have_count(3)
    expect(drawing).to_have_attribute("aria-label", re.compile(r"segment 0, epoch 1, positions 1 on: open"))
    expect(unfolded(page, name).locator(".log-tail b")).to_have_text("8")
    expect(page.locator("#feed")).to_contain_text(f"log {name} created: chain, 3 copies")


def test_a_seal_is_drawn_and_described(page: Page, cluster: sync.Cluster) -> None:
    name = next(names)
    log = cluster.log(name, create=True)
    log.append([b"x"] * 4)
    article = unfolded(page, name)
    expect(article.locator(".log-tail b")).to_have_text("5")
    log.reopen()
    expect(article.locator(".seal")).to_have_count(1)
    expect(article.locator(".copy.sealed")).to_have_count(3)
    expect(page.locator("#feed")).to_contain_text(f"segment 0 of {name} sealed at 5; segment 1 on ")
    article.get_by_text("segments as a table").click()
    expect(article.locator("tbody tr")).to_have_count(2)


def test_rates_have_axes_and_units(page: Page, cluster: sync.Cluster) -> None:
    name = next(names)
    log = cluster.log(name, create=True)
    log.append([b"x"] * 100)
    unfolded(page, name).get_by_text("appends and tail").click()
    figure = page.locator(f'figure[data-key="rate {name}"]')
    expect(figure.locator(".unit")).to_have_text("entries/s")
    expect(figure.locator(".axis").first).to_be_visible()
    expect(page.locator(f'figure[data-key="tail {name}"] b')).to_have_text("101")
    expect(figure.locator("path.line").first).to_be_attached()


def test_reads_are_plotted_for_the_cluster_and_shown_for_the_node_that_sends(page: Page, cluster: sync.Cluster) -> None:
    log = cluster.log(next(names), create=True)
    log.append([b"x"] * 1000)
    figure = page.locator('figure[data-key="reads"]')
    expect(figure.locator(".plot-name")).to_have_text("3 nodes")
    expect(figure.locator(".unit")).to_have_text("entries/s")
    sending = page.locator(".node-reads").filter(has_text=re.compile(r"^reads [1-9][\d,]*/s$"))

    def is_shown() -> bool:
        assert sum(len(batch) for batch in log.batches(1, 1000)) == 1000
        return sending.count() > 0

    wait_until(is_shown)
    label = re.compile(r"^reads of 3 nodes, entries/s, over the last five minutes: now .*, between \S+ and [1-9]")
    expect(figure.locator("svg")).to_have_attribute("aria-label", label)


# ------------------------------------------------------------------------------------------------------------------ log


def test_following_a_log_shows_entries_as_they_are_appended(page: Page, cluster: sync.Cluster) -> None:
    name = next(names)
    log = cluster.log(name, create=True)
    log.append(b"the first")
    choose(page, name)
    page.get_by_role("button", name="Follow the tail").click()
    expect(page.locator(".entry .preview")).to_have_text(["the first"])
    for number in range(2, 5):
        log.append(f"number {number}".encode())
        expect(page.locator(".entry").last.locator(".preview")).to_have_text(f"number {number}")
    expect(page.locator(".entry .glsn")).to_have_text(["1", "2", "3", "4"])


def test_a_jump_shows_the_entry_at_that_position_as_json_text_or_hex(page: Page, cluster: sync.Cluster) -> None:
    name = next(names)
    log = cluster.log(name, create=True)
    log.append([b"plain"] * 120)
    log.append(json.dumps({"id": 2**60, "tags": ["a"]}).encode(), headers={"trace": b"abc"})
    log.append(bytes(range(256)))
    log.append(b"z" * 100_000)
    choose(page, name)
    chosen = page.locator(".entry.chosen")
    go_to(page, "121")
    expect(chosen.locator(".glsn")).to_have_text("121")
    expect(chosen.locator("pre")).to_have_text('{\n  "id": 1152921504606846976,\n  "tags": [\n    "a"\n  ]\n}')
    expect(chosen.locator(".facts")).to_contain_text("header traceabc")
    go_to(page, "122")
    expect(chosen.locator("pre")).to_contain_text("000010  10 11 12 13")
    go_to(page, "123")
    expect(chosen.locator(".cut")).to_contain_text(f"{100_000 - 16_384:,} more bytes not shown")
    go_to(page, "400")
    expect(page.locator("#log-said")).to_contain_text("position 400 is not written yet")


def test_pages_lead_back_and_forth(page: Page, cluster: sync.Cluster) -> None:
    name = next(names)
    log = cluster.log(name, create=True)
    for begin in range(1, 131, 10):  # a trim cuts no batch
        log.append([f"entry {number}".encode() for number in range(begin, begin + 10)])
    choose(page, name)
    said, first = page.locator("#log-said"), page.locator(".entry .preview").first
    page.get_by_role("button", name="First").click()
    expect(said).to_have_text(f"positions 1 to 50 of {name}, tail 131")
    expect(page.get_by_role("button", name="Back")).to_be_disabled()
    page.get_by_role("button", name="Forward").click()
    expect(first).to_have_text("entry 51")
    page.get_by_role("button", name="Forward").click()
    expect(said).to_have_text(f"positions 101 to 130 of {name}, tail 131")
    page.get_by_role("button", name="Back").click()
    expect(first).to_have_text("entry 51")
    log.trim(60)
    page.get_by_role("button", name="First").click()
    expect(said).to_contain_text("were trimmed")
    expect(first).to_have_text("entry 61")


def test_a_page_of_huge_entries_ends_early_and_the_next_one_goes_on(page: Page, cluster: sync.Cluster) -> None:
    name = next(names)
    log = cluster.log(name, create=True)
    for _ in range(4):
        log.append(bytes(3 * 1024 * 1024))
    first = page.request.get(f"{page.url}api/logs/{name}/entries?start=1&count=50").json()
    assert [entry["glsn"] for entry in first["entries"]] == [1, 2, 3]
    assert (first["end"], first["notes"]) == (4, ["the page ends early, at 3: its entries are large"])
    second = page.request.get(f"{page.url}api/logs/{name}/entries?start={first['end']}&count=50").json()
    assert [entry["glsn"] for entry in second["entries"]] == [4]


def test_a_script_in_a_payload_and_in_an_error_is_text_and_never_runs(page: Page, cluster: sync.Cluster) -> None:
    name = next(names)
    cluster.log(name, create=True).append([HOSTILE.encode()], headers={HOSTILE: HOSTILE.encode()})
    before = page.locator("script").count()
    choose(page, name)
    expect(page.locator(".entry .preview")).to_have_text([HOSTILE])
    page.locator(".entry summary").click()
    expect(page.locator(".entry .facts")).to_contain_text(HOSTILE)
    expect(page.locator("#destinations .error")).to_contain_text([HOSTILE])
    assert (page.locator("script").count(), page.locator("img").count()) == (before, 0)


# ------------------------------------------------------------------------------------------------------------ pipelines


def test_a_destination_is_paused_and_resumed_in_its_store(page: Page, store: FilledStore) -> None:
    row = page.locator('#destinations tr[data-key="0/tenants/acme"]')
    row.get_by_role("button", name="Pause acme").click()
    wait_until(lambda: store.desired_state_of("acme") == "paused")
    expect(row.locator(".state")).to_have_text("ready, to be paused")
    expect(page.locator("#feed")).to_contain_text("destination acme paused")
    row.get_by_role("button", name="Resume acme").click()
    wait_until(lambda: store.desired_state_of("acme") == "active")
    expect(row.locator(".state")).to_have_text("ready")
    expect(page.locator("#feed")).to_contain_text("destination acme resumed")


def test_what_a_deliverer_reports_shows_in_the_table_and_the_feed(page: Page, store: FilledStore) -> None:
    row = page.locator('#destinations tr[data-key="0/tenants/globex"]')
    expect(row.locator("td")).to_have_text(
        ["globex", "tenants", "ready", "42", "0", "0 ms", re.compile("d ago"), "99", "Pause"]
    )
    store.report("globex", Status("halted", 42, 3, 4_000, error="globex: the table does not exist; create it"))
    expect(row.locator(".state")).to_have_text("halted")
    expect(row.get_by_role("button")).to_have_text("Try again")
    expect(page.locator("#feed")).to_contain_text("globex: halted: the table does not exist; create it")
    store.report("globex", Status("ready", 42, 0, 0, 1_700_000_000_000, 5, 99))
    expect(page.locator("#feed")).to_contain_text("globex: no longer halted")


def test_unrouted_rows_are_shown_for_their_pipeline(page: Page, store: FilledStore) -> None:
    lines = page.locator("#unrouted li")
    expect(page.locator("#destinations .state").first).to_be_visible()
    expect(lines).to_have_count(0)
    store.store.unrouted.add(
        "tenants", Window(0, 57), UnroutedCounts({"hooli": 1200, HOSTILE[:20]: 2, "b": 1}, nulls=34)
    )
    values = f"“hooli” 1,200, NULL 34, “{HOSTILE[:20]}” 2, others 1"
    expect(lines).to_have_text([f"tenants: 1,237 rows have no destination, up to version 57: {values}"])


def test_destinations_are_filtered_and_sorted(page: Page) -> None:
    shown = page.locator("#destinations .destination-name")
    expect(shown).to_have_text(["acme", "globex", "initech"])
    page.get_by_role("button", name="position", exact=True).click()
    expect(shown).to_have_text(["initech", "acme", "globex"])
    page.get_by_role("button", name="position", exact=True).click()
    expect(shown).to_have_text(["globex", "acme", "initech"])
    page.get_by_label("filter", exact=True).fill("halted init")
    expect(shown).to_have_text(["initech"])
    expect(page.locator("#pipeline-count")).to_have_text("1 of 3 destinations")


# ---------------------------------------------------------------------------------------------------------- the page


def test_the_tab_key_reaches_the_controls_in_the_order_of_the_page(page: Page) -> None:
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    expect(page.locator(".skip")).to_be_in_viewport()
    wanted = ["theme", "log-name", "log-position", "log-first", "log-last", "log-follow", "entries", "pipeline-filter"]
    wanted += ["feed-filter", "feed-cluster"]
    met: list[str] = []
    for _ in range(300):
        page.keyboard.press("Tab")
        met.append(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
        if met[-1] == "feed":
            break
    assert [each for each in met if each in wanted] == wanted
    assert "Pause" in met
    assert met[-1] == "feed"


def test_terms_are_explained_where_they_occur(page: Page) -> None:
    terms = page.locator("a.term")
    assert terms.count() > 10
    unexplained = terms.evaluate_all(
        "links => links.filter(link => !link.title || !document.getElementById(link.getAttribute('aria-describedby')))"
        ".map(link => link.textContent)"
    )
    assert unexplained == []


def test_the_theme_is_the_systems_until_one_is_chosen(page: Page) -> None:
    page.emulate_media(color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.get_by_role("button", name="theme: auto").click()
    assert page.evaluate(ground) != dark
    page.reload()
    page.get_by_role("button", name="theme: light").click()
    assert page.evaluate(ground) == dark
    page.get_by_role("button", name="theme: dark").click()


@pytest.mark.parametrize("width", [375, 1600])
def test_nothing_is_wider_than_the_screen(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    expect(page.locator("#destinations .state").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_counterexample_opens_and_reaches_nothing_of_the_dashboard(page: Page) -> None:
    with page.expect_popup() as opened:
        page.get_by_role("link", name="takeover-durability").click()
    diagram = opened.value
    expect(diagram.locator("#step-title")).to_contain_text("Step")
    assert diagram.evaluate("origin") == "null"
    diagram.close()
