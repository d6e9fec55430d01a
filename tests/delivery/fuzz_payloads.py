"""Feeds broken bytes to all readers of entries: no crash, no hang, bounded memory, and only Trunkline's errors.

    .venv/bin/python -m tests.delivery.fuzz_payloads --count 20000

Bodies of batches, headers, captured changes and events of Debezium are mutated, all under a right checksum, as by a
writer that lies: their bytes, and their structure too (any JSON, any headers, whole logs: ``hostile_entries``). Each
entry ends as rows, as a dead letter, or as a halt that names its position. What still decodes is used as a pipeline,
the dashboard and Spark use it. This happens in a child process, so that a crash is counted like any other failure.
The suite runs a slice of it (``test_payload_fuzz.py``).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from msgspec import Struct

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # as the tests are run

IN_PLACE = 0.7  # of mutants change nothing but bits and numbers: they come further than those whose pieces move
MUTATIONS_MAX = 5
MUTANT_S = 20  # longer: it hangs
MEMORY_BYTES_MAX = 512 << 20  # that a child may need beyond what it has when it begins
FAILURES_SHOWN = 5
NUMBERS = (0, 1, -1, 2, 7, 8, 0x7F, 0x80, 0xFF, 0xFFFF, 2**31 - 1, -(2**31), 2**31, 2**32 - 1, 2**40, 2**62, -(2**63))


class Failure(Struct, frozen=True):
    seed: int
    why: str


class Found(Struct):
    """What a run came to: how often each kind of content was taken or refused, and what must not be."""

    outcomes: Counter[str]
    failures: list[Failure]
    grown_bytes: int = 0


def mutated(content: bytes, other: bytes, chance: random.Random) -> bytes:
    """Bits flipped, the end cut, pieces removed, doubled or taken from another, lengths and offsets rewritten."""
    held = bytearray(content)
    if chance.random() < IN_PLACE:
        first = chance.choice((0, len(held) // 2))  # what describes the content lies in front
        for _ in range(chance.randrange(1, 3)):
            _edit(held, chance.randrange(first, len(held)), chance)
        return bytes(held)
    for _ in range(chance.randrange(1, MUTATIONS_MAX)):
        reach = len(held) if chance.random() < 0.5 else min(len(held), 400)  # heads and metadata lie in front
        at, to = (chance.randrange(reach + 1) for _ in range(2))
        size = chance.choice((1, 4, 8, 16, 64, 256))
        match chance.randrange(6):
            case 0:
                del held[at : at + size]
            case 1:
                held[to:to] = held[at : at + size]
            case 2:
                source = chance.randrange(len(other) + 1)
                held[at : at + size] = other[source : source + size]
            case 3 if chance.random() < 0.3:
                del held[at:]
            case _:
                _edit(held, at, chance)
    return bytes(held)


def _edit(held: bytearray, at: int, chance: random.Random) -> None:
    """A bit, or a number where numbers may lie."""
    if at < len(held) and chance.random() < 0.4:
        held[at] ^= 1 << chance.randrange(8)
        return
    form, size, mask = chance.choice((("<I", 4, 2**32 - 1), ("<I", 4, 2**32 - 1), ("<Q", 8, 2**64 - 1)))
    at -= at % size
    if at + size > len(held):
        return
    before = struct.unpack_from(form, held, at)[0]
    near = before + chance.choice((-8, -4, -1, 1, 4, 8, 1000))
    struct.pack_into(form, held, at, (chance.choice(NUMBERS) if chance.random() < 0.5 else near) & mask)


# ------------------------------------------------------------------------------------------------------ in the child


def work(seed: int, count: int, place: Path, report: Path, planted: int) -> None:
    """Try mutants in order; the seed of the one that is tried lies in ``place`` all the time."""
    from delivery.payload_samples import Consumer

    consumer = Consumer()
    for index, sample in enumerate(consumer.samples):
        with contextlib.suppress(Exception):
            consumer.use(index, sample.content)  # what is loaded late is loaded now
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    virtual = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (virtual + MEMORY_BYTES_MAX, resource.RLIM_INFINITY))
    outcomes: Counter[str] = Counter()
    failures: list[Failure] = []
    with place.open("r+b") as file, mmap.mmap(file.fileno(), 8) as now:
        for each in range(seed, seed + count):
            now[:] = struct.pack("<q", each)
            signal.alarm(MUTANT_S)
            chance = random.Random(each)
            index = each % len(consumer.samples)
            other = chance.choice(consumer.samples).content
            if each == planted:
                os.abort()
            try:
                mutate = consumer.samples[index].mutate or mutated
                outcomes[consumer.use(index, mutate(consumer.samples[index].content, other, chance))] += 1
            except BaseException:
                failures.append(Failure(each, f"{consumer.samples[index].name}: {traceback.format_exc()}"))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used) * 1024
    found = {"outcomes": outcomes, "failures": [(each.seed, each.why) for each in failures], "grown_bytes": grown}
    report.write_text(json.dumps(found))


# ----------------------------------------------------------------------------------------------------- in the parent


def fuzz(seed: int, count: int, planted: int = -1) -> Found:
    """Try ``count`` mutants from a seed on. A child that dies is followed by another, behind the mutant that did it.

    ``planted``: at this seed the child crashes, so that a test sees that a crash is seen.
    """
    found = Found(Counter(), [])
    end = seed + count
    with tempfile.TemporaryDirectory() as folder:
        place, report = Path(folder, "place"), Path(folder, "report")
        while seed < end:
            place.write_bytes(struct.pack("<q", seed - 1))
            report.unlink(missing_ok=True)
            code, said = _child("--work", str(seed), str(end - seed), str(place), str(report), str(planted))
            if code == 0 and report.exists():
                _add(found, json.loads(report.read_text()))
                return found
            at = struct.unpack("<q", place.read_bytes())[0]
            found.failures.append(Failure(at, f"the process ended with {code}: {said[-2000:]}"))
            if at < seed:
                return found  # it did not even begin
            found.outcomes["tried before a crash"] += at - seed
            seed = at + 1
    return found


def _child(*arguments: str) -> tuple[int, str]:
    surroundings = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}  # others reserve more than they use
    command = [sys.executable, "-X", "faulthandler", __file__, *arguments]
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def _add(found: Found, report: dict[str, Any]) -> None:
    found.outcomes.update(report["outcomes"])
    found.failures += [Failure(*each) for each in report["failures"]]
    found.grown_bytes = max(found.grown_bytes, report["grown_bytes"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--work", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        seed, count, place, report, planted = options.work
        work(int(seed), int(count), Path(place), Path(report), int(planted))
        return
    found = fuzz(options.seed, options.count)
    for name, number in sorted(found.outcomes.items()):
        print(f"{number:8,}  {name}")
    print(f"{found.grown_bytes / (1 << 20):.0f} MiB at most beyond what the child began with")
    for failure in found.failures[:FAILURES_SHOWN]:
        print(f"\nseed {failure.seed}: {failure.why}", file=sys.stderr)
    if found.failures:
        sys.exit(f"{len(found.failures)} of {options.count:,} mutants failed; try one again with --count 1 --seed N")
    print(f"{options.count:,} mutants, nothing wrong")


if __name__ == "__main__":
    main()
