"""The dashboard runs where nothing of delivery's extras is installed (rule K1)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from dashboard.running_dashboard import FilledStore

PROGRAM = """
import asyncio, sys
EXTRAS = {"pyspark", "duckdb", "deltalake", "psycopg", "pyarrow", "pandas", "numpy", "yaml"}

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in EXTRAS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import trunkline.cli.dashboard
from trunkline.dashboard.stores import StoreWatch
assert not [name for name in sys.modules if name.startswith("trunkline.delivery")]

async def show(address):
    store = StoreWatch(0, address)
    print((await store.read()).store)
    await store.close()

for address in sys.argv[1:]:
    asyncio.run(show(address))
"""


def test_k1_a_sqlite_store_is_shown_without_the_extras_and_postgres_says_what_is_missing(tmp_path: Path) -> None:
    store = FilledStore(tmp_path / "control.db", ("acme",))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, store.address, "postgres:host=nowhere"],
        capture_output=True,
        text=True,
        check=False,
    )
    store.close()
    assert done.returncode == 0, done.stderr
    sqlite, postgres = done.stdout.splitlines()
    assert "name='tenants'" in sqlite
    assert "needs the package psycopg; install it: pip install 'trunkline[delivery]'" in postgres
