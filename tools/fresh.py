"""A bare Debian with a fresh clone of this project: what a new user sees.

    ./run fresh                        the demo and all tests
    ./run fresh --demo                 the demo only
    ./run fresh -- tests/core -q       these tests only
    ./run fresh --demo -- tests/core   both
    ./run fresh --keep ...             keep the root directory

The root has Debian's minimal set of packages and python3. ``run`` has to install everything else; a report at the end
lists it. This machine's settings for fetching packages (apt, pip, npm, certificates) are copied into the root.

Everything runs in new mount and process namespaces, so no mount and no process survives, however this ends. The
directory is removed, too, unless this process is killed with SIGKILL. It needs root.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

ROOT = "root"  # in the directory of a run
PROJECT = "/srv/trunkline"  # inside
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
APT_SETTINGS = (
    *("sources.list", "sources.list.d", "auth.conf", "auth.conf.d", "preferences", "preferences.d"),
    *("keyrings", "trusted.gpg", "trusted.gpg.d"),
)
SETTINGS = ("etc/pip.conf", "etc/npmrc", "etc/resolv.conf", "etc/hosts", "usr/local/share/ca-certificates")
PIP_SETTINGS = (".pip/pip.conf", ".config/pip/pip.conf")  # of a user
# Variables that name package indexes and certificates.
COPIED_VARIABLE = re.compile(r"PIP_|NPM_CONFIG_|\w*(PROXY$|CERT|CA_BUNDLE|CAINFO)", re.IGNORECASE)
LOCAL_PATH = re.compile(r"(?:file://|(?<![\w/:.]))(/[\w./+-]+)")


def main(arguments: Sequence[str]) -> int:
    """Outside: create the namespaces, and remove the directory when they have ended."""
    options = parsed(arguments)
    if os.geteuid() != 0:
        print("run: fresh needs root, for mounts: run it as root", file=sys.stderr)
        return 2
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    folder = Path(tempfile.mkdtemp(prefix="trunkline-fresh-", dir="/var/tmp"))
    folder.chmod(0o755)  # apt fetches as a user of its own
    namespaces = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    command = ("setpriv", "--pdeathsig=KILL", *namespaces, sys.executable, __file__, str(folder), *arguments)
    inside = subprocess.Popen(command)
    try:
        return inside.wait()
    finally:
        _end(inside)
        if options.keep:
            say(f"the root directory is {folder / ROOT}")
        else:
            shutil.rmtree(folder)


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run fresh", description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--demo", action="store_true", help="run the demo, and no tests unless some are named after --")
    parser.add_argument("--keep", action="store_true", help="keep the root directory")
    parser.add_argument("tests", nargs="*", metavar="-- ARGUMENT", help="arguments for ./run test")
    return parser.parse_args(arguments)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _end(namespaces: subprocess.Popen[bytes]) -> None:
    """Kill the first process of the namespace: the kernel kills the others with it."""
    if namespaces.poll() is None:
        children = Path(f"/proc/{namespaces.pid}/task/{namespaces.pid}/children").read_text().split()
        for child in children:
            os.kill(int(child), signal.SIGKILL)
        if not children:
            namespaces.kill()
        namespaces.wait()


def say(text: str) -> None:
    print(f"run: {text}", file=sys.stderr, flush=True)


def answer(*command: str) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


# --- inside the namespaces, as their first process ---


def inside(root: Path, arguments: Sequence[str]) -> int:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the outer process handles it
    options = parsed(arguments)
    environment = inner_environment(os.environ)
    build(root, environment)
    before = packages(root)
    steps = [("demo",)] if options.demo or not options.tests else []
    steps += [("test", *options.tests)] if options.tests or not options.demo else []
    failed = 0
    for step in steps:
        say(f"fresh: ./run {' '.join(step)}")
        began = time.monotonic()
        code = run_in(root, [f"{PROJECT}/run", *step], environment)
        say(f"fresh: ./run {' '.join(step)} ended with exit code {code} after {time.monotonic() - began:.0f} s")
        failed += code != 0
    report(root, before)
    return 1 if failed else 0


def inner_environment(here: Mapping[str, str]) -> dict[str, str]:
    copied = {name: value for name, value in here.items() if COPIED_VARIABLE.match(name)}
    # CI: a test whose program is missing fails instead of being skipped.
    own = {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", "TERM": here.get("TERM", "dumb"), "CI": "true"}
    return {**copied, **own}


def build(root: Path, environment: Mapping[str, str]) -> None:
    say(f"fresh: creating a bare Debian in {root}")
    apt_settings = root.with_name("apt.conf")
    apt_settings.write_text(answer("apt-config", "dump", "Acquire"))
    sources = [str(path) for path in _apt_sources()]
    bare = ("--mode=root", "--variant=minbase", "--include=python3", "--quiet", f"--aptopt={apt_settings}")
    subprocess.run(["mmdebstrap", *bare, _codename(), str(root), *sources], check=True)
    root.chmod(0o755)  # servers run as users of their own
    copy_settings(root, environment)
    subprocess.run(["mount", "--bind", str(root), str(root)], check=True)  # a namespace needs a mount point as its root
    for name in ("proc", "sys", "dev"):
        (root / name).mkdir(exist_ok=True)
        subprocess.run(["mount", "--rbind", f"/{name}", str(root / name)], check=True)
    for path in package_directories(environment):
        target = root / path.relative_to("/")
        if not target.exists():  # a mount would hide what the root has
            target.mkdir(parents=True)
            subprocess.run(["mount", "-o", "bind,ro", str(path), str(target)], check=True)
    clone(root)


def _apt_sources() -> list[Path]:
    files = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").iterdir()]
    return [path for path in sorted(files) if path.exists() and path.suffix in (".list", ".sources")]


def _codename() -> str:
    found = re.search(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit("run: /etc/os-release does not say which release of Debian this is")
    return found[1]


def copy_settings(root: Path, environment: Mapping[str, str]) -> None:
    """The files that this machine needs to fetch packages, at the same paths."""
    shutil.rmtree(root / "etc/apt/sources.list.d")  # mmdebstrap copied it under other names
    settings = [Path("/etc/apt") / name for name in APT_SETTINGS] + [Path("/") / name for name in SETTINGS]
    named = [Path(path) for value in environment.values() for path in LOCAL_PATH.findall(value)]
    for path in (*settings, *(path for path in named if path.is_file())):
        _copy(path, root / path.relative_to("/"))
    for name in (*PIP_SETTINGS, ".npmrc"):
        _copy(Path.home() / name, root / "root" / name)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    elif source.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def package_directories(environment: Mapping[str, str]) -> list[Path]:
    """Local directories that pip takes packages from; an index refers to files beside itself."""
    files = [Path("/etc/pip.conf"), *(Path.home() / name for name in PIP_SETTINGS)]
    texts = [path.read_text() for path in files if path.exists()]
    texts += [value for name, value in environment.items() if name.startswith("PIP_")]
    named = {Path(path) for text in texts for path in LOCAL_PATH.findall(text)}
    return sorted({path.parent if path.name == "simple" else path for path in named if path.is_dir()})


def clone(root: Path) -> None:
    repository = Path(__file__).resolve().parent.parent
    if answer("git", "-c", f"safe.directory={repository}", "-C", str(repository), "status", "--porcelain"):
        say("fresh: the clone does not contain uncommitted changes")
    trusted = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    options = ("--quiet", "--no-hardlinks")
    target = f"{root}{PROJECT}"
    subprocess.run(["git", "clone", *options, str(repository), target], env={**os.environ, **trusted}, check=True)


def run_in(root: Path, command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command in the root, and reap orphans meanwhile, as the first process has to."""
    child = os.fork()
    if child == 0:
        os.chroot(root)
        os.chdir(PROJECT)
        os.execve(command[0], list(command), dict(environment))
    while True:
        ended, status = os.wait()
        if ended == child:
            return os.waitstatus_to_exitcode(status)


# --- what had to be installed ---


def packages(root: Path) -> tuple[set[str], set[str]]:
    """Debian packages in the root: those installed by name, and all."""
    there = ("-o", f"Dir={root}", "-o", f"Dir::State::status={root}/var/lib/dpkg/status")
    asked = answer("apt-mark", *there, "showmanual")
    present = answer("dpkg-query", f"--admindir={root}/var/lib/dpkg", "--show", "--showformat=${Package}\n")
    return set(asked.split()), set(present.split())


def python_packages(root: Path) -> list[str]:
    folders = Path(f"{root}{PROJECT}/.venv/lib").glob("python*/site-packages/*-info")
    return sorted(folder.stem.partition("-")[0].replace("_", "-") for folder in folders)


def report(root: Path, before: tuple[set[str], set[str]]) -> None:
    asked, present = (now - then for now, then in zip(packages(root), before, strict=True))
    say(f"fresh: Debian packages installed: {' '.join(sorted(asked)) or 'none'} ({len(present)} with dependencies)")
    installed = python_packages(root)
    lock = re.findall(r"^([\w.-]+)==", Path(f"{root}{PROJECT}/requirements/dev.lock").read_text(), re.MULTILINE)
    others = " ".join(name for name in installed if name not in (*lock, "pip", "trunkline"))
    say(f"fresh: {len(installed)} Python packages in .venv; not from requirements/dev.lock: {others or 'none'}")


if __name__ == "__main__":
    sys.exit(inside(Path(sys.argv[1]) / ROOT, sys.argv[2:]))
