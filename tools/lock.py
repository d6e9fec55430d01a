"""Pins the packages of the development environment, with hashes, for every platform and Python: requirements/*.lock.

    python tools/lock.py [--upgrade]

Run it after a dependency changes in pyproject.toml. It needs uv (``pip install uv``); using the locks does not.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = {
    "dev": ("pyproject.toml", "--extra", "delivery", "--group", "dev", "--group", "bench"),
    "java": ("--group", "java"),
}
OPTIONS = ("--quiet", "--universal", "--python-version", "3.11", "--generate-hashes", "--no-annotate")
HEADER = ("--custom-compile-command", "python tools/lock.py")


if __name__ == "__main__":
    for name, chosen in LOCKS.items():
        target = ("--output-file", f"requirements/{name}.lock")
        uv = (sys.executable, "-m", "uv", "pip", "compile")
        subprocess.run([*uv, *OPTIONS, *HEADER, *sys.argv[1:], *chosen, *target], cwd=ROOT, check=True)
