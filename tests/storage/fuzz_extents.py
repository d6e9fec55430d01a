"""Feeds broken bytes to the readers of extents and manifests: no crash, no hang, no wrong answer.

    .venv/bin/python -m tests.storage.fuzz_extents --minutes 5

The suite runs a short version of the same (``test_fuzz.py``).
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # as the tests are run

from storage.recording_files import RecordingFiles, image_of
from storage.workloads import NEXT_BOOT, ROOT, SMALL, Desk, Expected, Put, formatted, mixed_workload
from trunkline.storage import Engine, FrameDamaged, StorageError
from trunkline.storage.layout import FoundMark
from trunkline.storage.manifest import read_copy
from trunkline.storage.scan import Garbage, scan

MUTATIONS_MAX = 6
Content = dict[str, bytes | None]


def sample(*, closed: bool) -> tuple[Content, list[Put]]:
    files = RecordingFiles(ROOT)
    formatted(files)
    desk = Desk(files)
    mixed_workload(desk)
    if closed:
        desk.engine.close()
    return files.now().reachable(), desk.puts


def mutated(content: bytes, chance: random.Random) -> bytes:
    """Bits flipped, pieces removed, doubled, moved, overwritten; the end cut or grown."""
    held = bytearray(content)
    for _ in range(chance.randrange(1, MUTATIONS_MAX)):
        at, to = (chance.randrange(len(held) + 1) for _ in range(2))
        size = chance.choice((1, 4, 8, 24, 56, 200, 1000))
        match chance.randrange(6):
            case 0 if at < len(held):
                held[at] ^= 1 << chance.randrange(8)
            case 1:
                del held[at : at + size]
            case 2:
                held[to:to] = held[at : at + size]
            case 3:
                held[to : to + size] = held[at : at + size]
            case 4:
                held[at : at + size] = chance.randbytes(size) if chance.random() < 0.5 else bytes(size)
            case 5:
                del held[at:]
    return bytes(held)


def check_scan(salt: int, content: bytes, slot: int) -> None:
    """The pieces are adjacent, slots only grow, and good frames match their checksums."""
    at = 0
    for piece in scan(salt, content, slot):
        if isinstance(piece, Garbage):
            assert piece.size > 0
            start, end = piece.start, piece.start + piece.size
        elif isinstance(piece, FoundMark):
            assert piece.slots >= slot
            start, end, slot = piece.start, piece.start + 24, piece.slots
        else:
            assert piece.frame.slot >= slot
            assert not (piece.good and piece.short)
            assert not piece.good or piece.frame.body_is_good(content)
            start, end, slot = piece.frame.start, piece.frame.end, piece.frame.slot + 1
        assert start >= at
        assert start < end
        at = end


def check_directory(content: Content, puts: list[Put]) -> None:
    """It opens or is reported as corrupt, and returns only right bodies. A second start finds the same."""
    files = RecordingFiles(ROOT, image_of(str(ROOT), content))
    try:
        engine = Engine.open(ROOT, SMALL, files, boot=NEXT_BOOT)
    except StorageError:
        return
    put = Expected(puts).written
    for image in engine.image.streams:
        key = (image.descriptor.target.log, image.descriptor.target.stream)
        for frame in image.frames:
            known, body = put[key][frame.first]
            assert frame == known, f"{frame} was never put"
            try:
                assert engine.read(key, [frame], 1, may_block=True) == [body]
            except FrameDamaged:
                continue
    again = Engine.open(ROOT, SMALL, RecordingFiles(ROOT, files.now()), boot=NEXT_BOOT)
    assert again.image == engine.image


class Fuzzer:
    def __init__(self) -> None:
        self.samples = [sample(closed=closed) for closed in (True, False)]

    def one(self, seed: int) -> None:
        chance = random.Random(seed)
        content, puts = self.samples[seed % len(self.samples)]
        paths = sorted(path for path, held in content.items() if held)
        extents = [path for path in paths if path.endswith(".extent")]
        changed = dict(content)
        for path in chance.sample(paths, chance.choice((1, 1, 2))):
            changed[path] = mutated(content[path] or b"", chance)
        read_copy(mutated(content[f"{ROOT}/manifest.a"] or b"", chance))
        check_scan(chance.getrandbits(32), mutated(content[chance.choice(extents)] or b"", chance), 0)
        check_directory(changed, puts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    options = parser.parse_args()
    fuzzer, seed = Fuzzer(), options.seed
    end = time.monotonic() + 60 * options.minutes
    while time.monotonic() < end:
        try:
            fuzzer.one(seed)
        except BaseException:
            print(f"failed; again with: -m tests.storage.fuzz_extents --seed {seed}", file=sys.stderr)
            raise
        seed += 1
    print(f"{seed - options.seed} directories, nothing wrong")


if __name__ == "__main__":
    main()
