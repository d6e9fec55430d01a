"""The demo, as a user runs it: verified at the end, and without remains, also after Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from local_cluster import wait_until
from trunkline.demo.__main__ import summary
from trunkline.demo.run import Result

PATIENCE_S = 300.0
BUCKET_PATIENCE_S = 600.0  # one more process is killed, and each flush waits for a server
DEMO = (sys.executable, "-m", "trunkline.demo", "--beat", "1")


def processes_of(directory: Path) -> list[str]:
    """Command lines that name a directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue  # it has ended meanwhile
            if str(directory) in line:
                found.append(line)
    return found


def test_the_summary_mentions_keep_unless_it_was_used() -> None:
    assert "`./run demo --keep` keeps it running" in summary(Result(seconds=1), 1.0, None)
    assert "--keep" not in summary(Result(seconds=1), 1.0, None, keep=True)


@pytest.mark.usefixtures("java")
def test_every_table_is_equal_to_the_shop_after_a_node_and_the_deliverer_were_killed(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    done = subprocess.run(
        [*DEMO, "--dir", str(directory)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "all 20 tenants equal to the shop, row by row" in done.stdout
    assert re.search(r"storage node \w+ killed: appends continued after \d+\.\d s", done.stdout)
    assert "deliverer killed and restarted" in done.stdout
    wait_until(lambda: not processes_of(directory))
    again = subprocess.run([*DEMO, "--dir", str(directory)], capture_output=True, text=True, timeout=60, check=False)
    assert (again.returncode, "is not empty" in again.stderr) == (1, True)


DROPPED = """
import os, signal, time
from trunkline.demo.__main__ import insistent_interrupts

class Dropping:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)  # it is printed, and has no effect
        time.sleep(0)

try:
    with insistent_interrupts():
        Dropping()
        print("dropped", flush=True)
        time.sleep(60)
except KeyboardInterrupt:
    print("noticed")
"""


def test_an_interrupt_that_python_drops_is_repeated() -> None:
    done = subprocess.run([sys.executable, "-c", DROPPED], capture_output=True, text=True, timeout=50, check=False)
    assert done.stdout.split() == ["dropped", "noticed"], done.stderr


@pytest.mark.usefixtures("java")
def test_tables_in_a_bucket_are_equal_to_the_shop_after_its_server_was_killed_too(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    done = subprocess.run(
        [*DEMO, "--s3", "--dir", str(directory)], capture_output=True, text=True, timeout=BUCKET_PATIENCE_S, check=False
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "all 20 tenants equal to the shop, row by row" in done.stdout
    assert re.search(r"S3 server killed and restarted: delivery continued after \d+\.\d s", done.stdout)
    assert not list(directory.glob("tenants/*/*"))  # of tenants, only catalogs are in the directory
    pipeline = (directory / "pipeline.yaml").read_text()
    assert ("s3://shop/tenants" in pipeline, "secret_key_env: DEMO_SECRET_KEY" in pipeline) == (True, True)
    wait_until(lambda: not processes_of(directory))


@pytest.mark.usefixtures("java")
def test_ctrl_c_in_the_middle_leaves_no_process_and_no_directory_behind(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    demo = subprocess.Popen(
        DEMO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    assert demo.stdout is not None
    for line in demo.stdout:
        if "captured into a replicated log" in line:  # Spark is about to start
            break
    demo.send_signal(signal.SIGINT)
    _, errors = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 130, errors
    assert "all processes have ended" in errors
    wait_until(lambda: not processes_of(tmp_path))
    assert not list(tmp_path.glob("trunkline-demo-*"))
