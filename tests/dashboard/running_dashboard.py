"""A dashboard as a user starts it, a control store filled by its own API, and a browser."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, Page, expect, sync_playwright

from outside import program
from trunkline.delivery.control.contract import Reported, Status
from trunkline.delivery.control.store import ControlStore, open_control_store

FLAGS: Final = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PROGRAM: Final = (sys.executable, "-m", "trunkline.cli.main", "dashboard")
LONG_MS: Final = 600_000  # a lease that outlives every test
END_S: Final = 20.0
SHOWN_MS: Final = 20_000  # a poll per second, on a busy machine


@contextmanager
def dashboard(*options: str) -> Iterator[str]:
    """Runs until the block ends or this process dies; yields the address of the page."""
    command = [*PROGRAM, "--listen", "127.0.0.1:0", "--parent", str(os.getpid()), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said.startswith("dashboard: http://"), said
        yield said.removeprefix("dashboard: ").strip()
    finally:
        process.terminate()
        code = process.wait(END_S)
        process.communicate()
    assert code == 0, f"the dashboard ended with {code}"


class FilledStore:
    """Pipeline ``tenants`` with some destinations, all owned by one deliverer that reports what a test wants."""

    def __init__(self, place: Path | str, names: tuple[str, ...]) -> None:
        """``place``: a file, or the connection string of a PostgreSQL database."""
        self.address = f"sqlite:{place}" if isinstance(place, Path) else f"postgres:{place}"
        self.store: ControlStore = open_control_store(self.address)
        self.store.configurations.configure("tenants", "d1", dict.fromkeys(names, "x"))
        self._tokens = {
            each.name: each.token for each in self.store.ownerships.acquire("tenants", "one", "d1", LONG_MS).ownerships
        }

    def report(self, name: str, status: Status) -> None:
        self.store.statistics.report("tenants", [Reported(name, self._tokens[name], status)])

    def desired_state_of(self, name: str) -> str:
        return next(each.desired_state for each in self.store.destinations("tenants") if each.name == name)

    def close(self) -> None:
        self.store.close()


@contextmanager
def chromium() -> Iterator[Browser]:
    expect.set_options(timeout=SHOWN_MS)
    program("libatomic.so.1")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program("chromium"), args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def clean_page(browser: Browser, url: str) -> Iterator[Page]:
    """A page that must log nothing to its console, open no dialog and send requests to its server only."""
    wrong: list[str] = []
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text))
    page.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}"))
    page.on("request", lambda request: wrong.append(request.url) if not request.url.startswith(url) else None)
    page.goto(url)
    yield page
    page.close()
    assert wrong == []
