"""Long lives: random work, a power cut that leaves a random image, recovery, more work on what was left, and again."""

from __future__ import annotations

import random

import pytest

from storage.recording_files import RecordingFiles
from storage.workloads import LOG, ROOT, SMALL, Desk, Expected, Put, faults, formatted
from trunkline.core.entries import FrameKind
from trunkline.core.streams import (
    FrameWritten,
    JunkWritten,
    Key,
    StreamDropping,
    StreamEnding,
    StreamLosing,
    StreamOpened,
    StreamSealing,
    StreamTrimming,
)

LIVES = 5
STEPS = 25
SIZES = (0, 1, 8, 100, 900, 2500, 5000)


class Life:
    """Work of the kind that a storage role asks for: nothing is written twice, nothing behind a seal."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.files = RecordingFiles(ROOT)
        formatted(self.files)
        self.desk = Desk(self.files)
        self.desk.acknowledge()
        self.stream_count = 0
        self.next: dict[str, int] = {}  # of streams that may be written
        self.trims: dict[str, int] = {}

    def step(self) -> None:
        chance, desk = self.chance, self.desk
        if not self.next or chance.random() < 0.05:
            self.stream_count += 1
            name = f"s{self.stream_count}"
            desk.open(name)
            self.next[name] = 1
            return
        name = chance.choice(list(self.next))
        drawn = chance.random()
        if drawn < 0.55:
            self._write(name)
        elif drawn < 0.82:
            desk.sync()
        elif drawn < 0.87:
            desk.idle()
        elif drawn < 0.91:
            self._trim(name)
        elif drawn < 0.97:
            self._finish(name)
        else:
            desk.drop(name)
            del self.next[name]

    def _write(self, name: str) -> None:
        first = self.next[name] + self.chance.choice((0, 0, 0, 1))
        drawn = self.chance.random()
        if drawn < 0.15:
            self.desk.fill(name, first)
            self.next[name] = first + 1
            return
        if drawn < 0.25:
            self.next[name] = first + self.chance.randrange(2, 90)  # more than an extent takes
            self.desk.fill_run(name, first, self.next[name])
            return
        count = self.chance.randrange(1, 4)
        self.desk.write(name, first, count, self.chance.choice(SIZES), self.chance.choice(("w", "writer-2")))
        self.next[name] = first + count

    def _trim(self, name: str) -> None:
        point = self.next[name] - self.chance.randrange(1, 4)
        if point > self.trims.get(name, 0):
            self.desk.trim(name, point)
            self.trims[name] = point

    def _finish(self, name: str) -> None:
        self.desk.seal(name)
        if self.chance.random() < 0.7:
            end = self.next[name] + 2
            self.desk.end(name, end)
            if self.chance.random() < 0.5:
                self.desk.write(name, end - 1, 1, 50)
        del self.next[name]

    def lose_power(self, boot: int) -> str:
        """The directory after a power cut at a random moment; a new desk works on it."""
        count = self.chance.randrange(self.desk.acknowledged[0][0], len(self.files.operations) + 1)
        label, image = self.chance.choice(list(self.files.after_power_cut(count)))
        puts, acknowledged = self.desk.put_after(count), self.desk.acknowledged_after(count)
        self.files = RecordingFiles(ROOT, image)
        self.desk = Desk(self.files, SMALL, boot=f"boot {boot}")
        found = list(faults(self.desk.engine, puts, acknowledged))
        assert not found, f"{label}: {found}"
        self._take_over(puts)
        return label

    def _take_over(self, puts: list[Put]) -> None:
        """What recovery has found is what was acknowledged, from now on."""
        bodies = Expected(puts).frames
        kept: list[Put] = []
        self.next, self.trims = {}, {}
        for image in self.desk.engine.image.streams:
            key: Key = (LOG, image.descriptor.target.stream)
            kept.append(Put(StreamOpened(image.descriptor), b"", 0))
            kept += [Put(FrameWritten(key, frame), bodies[key][frame.first][1], 0) for frame in image.frames]
            if image.sealed:
                kept.append(Put(StreamSealing(key), b"", 0))
            if image.end is not None:
                kept.append(Put(StreamEnding(key, image.end), b"", 0))
            if image.trim:
                kept.append(Put(StreamTrimming(key, image.trim), b"", 0))
                self.trims[key[1]] = image.trim
            if image.data_loss:
                kept.append(Put(StreamLosing(key), b"", 0))
            if not image.sealed and not image.uncertain and not image.data_loss:
                self.next[key[1]] = max([image.trim + 1, *(frame.next for frame in image.frames)])
        kept += [Put(StreamDropping(key), b"", 0) for key in self.desk.engine.image.tombstones]
        self.desk.puts = kept
        self.desk.acknowledge()


@pytest.mark.parametrize("seed", range(60))
def test_a_directory_that_loses_power_again_and_again_keeps_what_was_acknowledged(seed: int) -> None:
    life = Life(seed)
    for boot in range(LIVES):
        for _ in range(STEPS):
            life.step()
        life.lose_power(boot + 2)


def test_lives_have_some_of_everything() -> None:
    lives = [Life(seed) for seed in range(5)]
    for life in lives:
        for _ in range(4 * STEPS):
            life.step()
    records = [put.record for life in lives for put in life.desk.puts]
    kinds = {type(record) for record in records}
    assert kinds == {
        StreamOpened,
        FrameWritten,
        JunkWritten,
        StreamSealing,
        StreamEnding,
        StreamTrimming,
        StreamDropping,
    }
    assert {record.frame.kind for record in records if isinstance(record, FrameWritten)} == {
        FrameKind.DATA,
        FrameKind.JUNK,
    }
