"""The machine that a benchmark runs on: what a reader needs to compare figures."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from log_load import percentile

PROBES = 100
PROBE_BYTES = 100 * 1024  # about one batch of the benchmark
BUSY_LOAD = 0.5  # by other processes, before the benchmark starts


def machine_facts(directory: Path) -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    half, nearly_all = sync_latencies_ms(directory)
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "memory_gib": round(memory / 2**30, 1),
        "kernel": platform.release(),
        "file_system": file_system(directory, Path("/proc/mounts").read_text()),
        "sync_p50_ms": round(half, 2),
        "sync_p99_ms": round(nearly_all, 2),
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "uvloop": version("uvloop"),
    }


def is_busy(facts: dict[str, Any]) -> bool:
    return bool(facts["load_before"] > BUSY_LOAD)


def sync_latencies_ms(directory: Path) -> tuple[float, float]:
    """Median and 99th percentile of an append of 100 KiB with fdatasync."""
    body, taken = os.urandom(PROBE_BYTES), []
    probe = directory / "probe"
    descriptor = os.open(probe, os.O_CREAT | os.O_WRONLY)
    try:
        for _ in range(PROBES):
            began = time.perf_counter()
            os.write(descriptor, body)
            os.fdatasync(descriptor)
            taken.append((time.perf_counter() - began) * 1000)
    finally:
        os.close(descriptor)
        probe.unlink()
    return median(taken), percentile(taken, 0.99)


def file_system(directory: Path, mounts: str) -> str:
    """The type of the file system that holds a directory, from the text of /proc/mounts."""
    path = str(directory.resolve())
    found = "", "unknown"
    for line in mounts.splitlines():
        _, mount, kind, *_ = line.split(" ")
        inside = path == mount or path.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(found[0]):
            found = mount, kind
    return found[1]


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()
