"""An idle pipeline: the CPU and the writes of `trunkline deliver run` while its source does not change."""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError

from delivery_rig import descendants
from log_load import cpu_seconds
from log_processes import Processes, free_ports

from trunkline.delivery.config.addresses import DeltaAddress, LakeAddress, PostgresAddress
from trunkline.delivery.job.work import TaskDestination

IN_STEP_WITHIN_S = 600.0
SETTLE_S = 5.0  # after the last flush: its clean-up (worker processes, garbage) does not count as idle


@dataclass(frozen=True)
class Idle:
    destinations: int
    seconds: float
    percent: float  # of a core: driver, Java and Python workers
    driver_percent: float
    written: tuple[str, ...]  # files of source and destinations that changed
    control_written: bool  # the control store is written for leases


def measure_idle(directory: Path, source: LakeAddress, targets: Sequence[TaskDestination], seconds: float) -> Idle:
    (port,) = free_ports(1)
    config = directory / "pipeline.yaml"
    (directory / "control").mkdir()
    config.write_text(json.dumps(_config(source, targets, port)))  # JSON is YAML
    command: list[str | Path] = [Path(sys.executable).parent / "trunkline", "deliver", "run", config]
    with Processes() as processes:
        processes.start("deliver", command, directory / "deliver.log")
        processes.until(
            "the pipeline, which has to be in step,", lambda: _in_step(port, len(targets)), IN_STEP_WITHIN_S
        )
        time.sleep(SETTLE_S)
        driver = processes.pid("deliver")
        files, control = _files(directory), _control(directory)
        everyone = descendants(driver)
        cpu, own, begun = cpu_seconds(everyone), cpu_seconds([driver]), time.monotonic()
        time.sleep(seconds)
        elapsed = time.monotonic() - begun
        alive = [process for process in everyone if Path(f"/proc/{process}/stat").exists()]
        cpu, own = cpu_seconds(alive) - cpu, cpu_seconds([driver]) - own
        changed = {name for name, _ in _files(directory).items() ^ files.items()}
        return Idle(
            len(targets),
            elapsed,
            max(cpu, own) / elapsed * 100,
            own / elapsed * 100,
            tuple(sorted(changed)),
            _control(directory) != control,
        )


def _config(source: LakeAddress, targets: Sequence[TaskDestination], port: int) -> dict[str, Any]:
    return {
        "pipeline": "bench",
        "source": _address(source),
        "routing": {"column": "tenant"},
        "key": ["id"],
        "control": {"store": "sqlite:control/control.db"},
        "listen": f"127.0.0.1:{port}",
        "destinations": [
            {"name": target.name, "values": list(target.values), **_address(target.address)} for target in targets
        ],
    }


def _address(address: LakeAddress | DeltaAddress | PostgresAddress) -> dict[str, str]:
    match address:
        case LakeAddress(catalog, table, _, data_path):
            return {"type": "ducklake", "catalog": catalog, "table": table, "data_path": str(data_path)}
        case DeltaAddress(path):
            return {"type": "delta", "path": path}
        case PostgresAddress(dsn, table):
            return {"type": "postgres", "dsn": dsn, "table": table}


def _in_step(port: int, destinations: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=5) as answer:
            status = json.load(answer)
    except (URLError, OSError):
        return False
    version = status.get("source_version")
    there = [each for each in status["destinations"] if version and each.get("effective") == version]
    return len(there) == destinations


def _files(directory: Path) -> dict[str, tuple[int, int]]:
    """Size and time of everything below the source and the destinations."""
    return {
        str(file): (file.stat().st_size, file.stat().st_mtime_ns)
        for part in ("source", "destinations")
        for file in (directory / part).rglob("*")
        if file.is_file()
    }


def _control(directory: Path) -> list[tuple[str, int]]:
    return [(file.name, file.stat().st_mtime_ns) for file in sorted((directory / "control").iterdir())]
