"""Scenarios of trimming: what is deleted is settled, was requested, and consists of whole batches."""

from __future__ import annotations

from trunkline.check.scenario import Faults, Scenario
from trunkline.check.scenarios.cluster import LOG, administrator, appender, appends, coordinator, reader
from trunkline.check.scenarios.duties import scenario
from trunkline.check.scenarios.segments import CHAIN
from trunkline.core.calls import AppendRequested, TrimRequested


def trim() -> Scenario:
    return scenario(
        "trim",
        "the log is trimmed while clients read and append",
        CHAIN,
        administrator("a", TrimRequested(2, LOG, 1), after=1),
        appender("c1", CHAIN, *appends(1, 2)),
        reader("r", CHAIN),
        coordinator(),
        faults=Faults(early_timer=1),
        sometimes=("Projected", "PositionsSkipped", "EntriesRead"),
    )


def trim_and_end() -> Scenario:
    """An entry is trimmed everywhere, then the segment ends: the answer to Seal must still count it."""
    return scenario(
        "trim-and-end",
        "a segment ends after all of it was trimmed, while a client settles its append",
        CHAIN,
        administrator("a", TrimRequested(2, LOG, 1), after=1),
        appender("c1", CHAIN, *appends(1)),
        appender("c2", CHAIN, *appends(2)),
        coordinator(),
        faults=Faults(crash=1, loss=1),
        crashable="n3",
        lossy="c1",
        sometimes=("Projected", "StreamSealed"),
    )


def trim_beyond_tail() -> Scenario:
    return scenario(
        "trim-beyond-tail",
        "a trim point at or past the tail is refused and changes nothing",
        CHAIN,
        administrator("a", TrimRequested(1, LOG, 3)),
        appender("c1", CHAIN, *appends(1)),
        coordinator(),
        sometimes=("RequestRefused", "Committed"),
    )


def trim_inside_batch() -> Scenario:
    """A trim that would cut a batch is lowered, so that a batch is kept or deleted as a whole."""
    return scenario(
        "trim-inside-batch",
        "a trim point inside a batch does not cut it, even when its segment ends and is repaired",
        CHAIN,
        administrator("a", TrimRequested(2, LOG, 2), after=2),
        appender("c1", CHAIN, *appends(1), AppendRequested(2, LOG, 2, 2)),
        reader("r", CHAIN),
        coordinator(),
        faults=Faults(crash=1),
        crashable="n3",
        sometimes=("Projected", "Trimmed", "EntriesRead"),
    )


def trim_several_batches() -> Scenario:
    """An answer to the operator's reader holds more batches than the trim covers."""
    return scenario(
        "trim-several-batches",
        "a trim deletes only what was requested, although more was read at once",
        CHAIN,
        administrator("a", TrimRequested(2, LOG, 1), after=2, read_limit=3),
        appender("c1", CHAIN, *appends(1, 2, 3)),
        reader("r", CHAIN),
        coordinator(),
        sometimes=("Projected", "Trimmed", "EntriesRead"),
    )


TRIMMING_SCENARIOS = (
    trim,
    trim_and_end,
    trim_inside_batch,
    trim_beyond_tail,
    trim_several_batches,
)
