"""Every program outside Python that this repository calls, and its Debian package.

``run`` installs what a command or the selected tests need. Tests get their programs from here (``tests/outside.py``): a
test that calls a program without an entry for its file fails.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

OFF_THE_PATH = ("/usr/sbin", "/sbin")  # not on the PATH of ordinary users


@dataclass(frozen=True)
class Program:
    name: str
    package: str  # of Debian
    users: tuple[str, ...]  # files and folders of this repository; "" is all of it
    otherwise: str = ""  # what happens without it; empty: every Debian has it


SPARK = (
    *("tests/delivery", "tests/spark", "tests/cli/test_deliver.py"),
    *("tests/cli/test_deliver_sqlite.py", "tests/cli/test_deliver_tables.py", "tests/cli/test_deliver_words.py"),
)
SYSTEM_DELIVERY = (
    *("tests/system/test_capture_to_tables.py", "tests/system/test_delivery_kills.py", "tests/system/test_tenants.py"),
)
WITH_POSTGRES = (
    *("tests/delivery", "tests/contract", "tests/cli/test_deliver.py", "tests/dashboard", "tests/writer_fuzz"),
    *("bench/capture.py", "bench/delivery.py", "bench/postgres.py", "bench/seed.py", *SYSTEM_DELIVERY),
)
WITH_MARIADB = ("tests/delivery",)
WITH_ETCD = (
    *("tests/metadata", "tests/contract", "tests/cli/test_observing_servers.py", "tests/system/test_leaving.py"),
    *("tests/system/test_long_maps.py", "tests/system/test_partitions.py"),
)
SMALL_DISKS = (
    *("tests/system/test_delta_power_cut.py", "tests/system/test_full_disk.py", "tests/system/test_nearly_full.py"),
    "tests/system/test_power_cut.py",
)
FULL_TEMPORARY = "tests/delivery/test_full_temporary_disk.py"
DEMO = ("src/trunkline/demo", "tests/system/test_demo.py")

TABLE = (
    Program("spin", "spin", ("tests/check/test_spin.py",), "the comparison with Spin will be skipped"),
    Program("gcc", "gcc", ("tests/check/test_spin.py",), "the comparison with Spin will be skipped"),
    Program(
        "chromium",
        "chromium",
        ("tests/browser", "tests/proxy/test_in_a_browser.py"),
        "the tests in a browser will be skipped",
    ),
    # Not a program but a library: the driver of the browser does not start without it.
    Program("libatomic.so.1", "libatomic1", ("tests/browser",), "the tests in a browser will be skipped"),
    Program("etcd", "etcd-server", WITH_ETCD, "the tests with etcd will be skipped"),
    Program("openssl", "openssl", ("tests/metadata", "tests/net"), "the tests with TLS will be skipped"),
    Program("ip", "iproute2", ("tests/system/test_partitions.py",), "the tests of partitions will be skipped"),
    Program("iptables", "iptables", ("tests/system/test_partitions.py",), "the tests of partitions will be skipped"),
    Program("mkfs.ext4", "e2fsprogs", SMALL_DISKS, "the tests of power cuts will be skipped"),
    Program("postgres", "postgresql", WITH_POSTGRES, "the tests with PostgreSQL will be skipped"),
    Program("mariadbd", "mariadb-server", WITH_MARIADB, "the tests with MariaDB will be skipped"),
    Program("mariadb-install-db", "mariadb-server", WITH_MARIADB, "the tests with MariaDB will be skipped"),
    Program("initdb", "postgresql", WITH_POSTGRES, "the tests with PostgreSQL will be skipped"),
    Program(
        "pgbench", "postgresql", ("bench/capture.py", "tests/system/test_tenants.py"), "there is no load to capture"
    ),
    # pip can install Java, too, without root: `run` tries that first.
    Program(
        "java",
        "openjdk-17-jre-headless",
        (*SPARK, *SYSTEM_DELIVERY, *DEMO, "bench/capture.py", "bench/delivery.py", "bench/seed.py", "bench/spark.py"),
        "the tests with Spark will be skipped",
    ),
    Program("mmdebstrap", "mmdebstrap", ("tools/fresh.py",), "there is no bare Debian to test on"),
    Program("git", "git", ("tools/fresh.py",), "the project cannot be cloned"),
    # Every Debian has these.
    Program("apt-config", "apt", ("tools/fresh.py",)),
    Program("apt-get", "apt", ("run",)),
    Program("apt-mark", "apt", ("tools/fresh.py",)),
    Program("bash", "bash", ("tests/cli/test_messages.py",)),
    Program("dpkg-query", "dpkg", ("tools/fresh.py",)),
    Program("env", "coreutils", ("run",)),
    Program("mount", "mount", (*SMALL_DISKS, FULL_TEMPORARY, "tools/fresh.py")),
    Program("umount", "mount", (*SMALL_DISKS, FULL_TEMPORARY)),
    Program("setpriv", "util-linux", (*WITH_POSTGRES, *WITH_MARIADB, *DEMO, "tools/fresh.py")),
    Program("bash", "bash", ("tests/cli",)),
    Program("sh", "dash", ("",)),
    Program("uname", "coreutils", ("",)),  # called by the standard library
    Program("unshare", "util-linux", ("tools/fresh.py",)),
)
BY_NAME = {program.name: program for program in TABLE}


def find(name: str) -> Path | None:
    """The path of an installed program. Debian installs PostgreSQL outside of the PATH, by version."""
    if found := shutil.which(BY_NAME[name].name):
        return Path(found)
    for folder in OFF_THE_PATH:
        if found := shutil.which(name, path=folder):
            return Path(found)
    if ".so" in name:
        return next(Path("/usr/lib").glob(f"*/{name}"), None)
    versions = Path("/usr/lib/postgresql").glob(f"*/bin/{name}")
    return max(versions, key=lambda path: float(path.parts[-3]), default=None)


def calls(path: str, program: Program) -> bool:
    """Whether this file or folder of the repository, or anything below it, calls the program."""
    return any(_meet(Path(path).parts, Path(user).parts) for user in program.users)


def needed_by(paths: Sequence[str]) -> list[Program]:
    """The programs that these files and folders call and that may be missing."""
    return [program for program in TABLE if program.otherwise and any(calls(path, program) for path in paths)]


def chosen_by(arguments: Sequence[str], root: Path) -> list[str]:
    """The paths in the arguments of pytest, relative to the repository; without any, all tests."""
    chosen = []
    for argument in arguments:
        path = (root / argument.partition("::")[0]).resolve()
        if not argument.startswith("-") and argument and path.exists() and path.is_relative_to(root / "tests"):
            chosen.append(str(path.relative_to(root)))
    return chosen or ["tests"]


def _meet(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether one path is the other or is below it."""
    shared = min(len(one), len(other))
    return one[:shared] == other[:shared]
