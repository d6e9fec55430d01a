"""The page of a counterexample in a real browser (Debian's chromium)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from counterexample import FINDING, HOSTILE, REPLAY, example
from outside import program
from trunkline.check.diagram import render

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
STEPS, STATES = example()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program("libatomic.so.1")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program("chromium"), args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    file = tmp_path / "counterexample.html"
    file.write_text(render("takeover", FINDING, STEPS, STATES, replay=REPLAY), encoding="utf-8")
    errors: list[str] = []
    requests: list[str] = []
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(file.as_uri())
    yield page
    page.close()
    assert errors == []
    assert requests == [file.as_uri()]


def select(page: Page, step: int) -> None:
    page.locator(f'.row[data-step="{step}"]').click(position={"x": 12, "y": 8})


def test_the_page_opens_at_the_violation(page: Page) -> None:
    expect(page.locator("#step-title")).to_have_text(f"Step {len(STEPS)} of {len(STEPS)}")
    expect(page.locator("#details .verdict")).to_have_text(f"{FINDING.monitor}: {FINDING.text}")
    expect(page.locator(".row.violated.selected")).to_be_in_viewport()


def test_a_click_on_a_step_shows_the_state_after_it_with_what_changed(page: Page) -> None:
    select(page, 13)
    expect(page.locator("#step-title")).to_have_text("Step 13 of 20")
    expect(page.locator("#details .action")).to_have_text(STEPS[12].action)
    changed = page.locator("#details .process.changed")
    expect(changed.locator("summary")).to_contain_text("c2")
    expect(changed.locator("tr.changed")).to_have_text(["positionNone3"])
    expect(changed.locator(".phase.changed")).to_have_text("Asking → Writing")
    expect(page.locator(".flight li.new")).to_have_count(2)
    expect(page.locator(".flight li.gone")).to_have_count(1)


def test_keys_step_through_the_run(page: Page) -> None:
    title = page.locator("#step-title")
    page.keyboard.press("Home")
    expect(title).to_have_text("Initial state")
    for key, shown in (("j", "Step 1"), ("ArrowDown", "Step 2"), ("k", "Step 1"), ("End", "Step 20"), ("j", "Step 20")):
        page.keyboard.press(key)
        expect(title).to_have_text(f"{shown} of 20")
    page.keyboard.press("ArrowUp")
    expect(page.locator('.row[aria-selected="true"]')).to_have_attribute("data-step", "19")
    page.get_by_label("next step").click()
    expect(title).to_have_text("Step 20 of 20")


def test_a_click_on_a_message_goes_to_its_delivery_and_marks_its_arrow(page: Page) -> None:
    page.locator('.message[data-from="1"] .label').click()
    expect(page.locator("#step-title")).to_have_text("Step 2 of 20")
    expect(page.locator(".message.touched")).to_have_count(1)


def test_a_script_in_a_payload_is_shown_as_text_and_never_runs(page: Page) -> None:
    expect(page.locator(".finding")).to_contain_text(HOSTILE)
    select(page, 6)
    expect(page.locator("#details .action")).to_contain_text(HOSTILE)
    expect(page.locator(".happened")).to_contain_text(HOSTILE)
    expect(page.locator("img")).to_have_count(0)
    assert page.title() == "takeover"


def test_a_process_that_is_down_shows_so_in_its_name(page: Page) -> None:
    name = page.locator('.names [data-process="q"]')
    select(page, 7)
    expect(name).to_have_class("down at")
    select(page, 11)
    expect(name).to_have_class("at")


def test_only_changes_hides_the_rest(page: Page) -> None:
    select(page, 6)
    expect(page.locator("#details .process")).to_have_count(6)
    page.get_by_label("only changes").check()
    expect(page.locator("#details .process")).to_have_count(1)
    expect(page.locator("#details .process td:first-child")).to_have_text(["written", "frames", "synced"])


def test_the_replay_command_is_selected_for_copying(page: Page) -> None:
    page.get_by_role("button", name="copy").click()
    assert page.evaluate("getSelection().toString()") == REPLAY


def test_a_narrow_screen_keeps_the_step_and_its_state_in_view(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.keyboard.press("Home")
    for _ in range(6):
        page.keyboard.press("j")
    expect(page.locator('.names [data-process="n1"]')).to_be_in_viewport()
    expect(page.locator("#details .action")).to_be_in_viewport()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
