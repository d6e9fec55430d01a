"""Walk-throughs of trimming: what is deleted was settled, was asked for, and is whole batches."""

from __future__ import annotations

from trunkline.check.scenario import Faults, Scenario
from trunkline.check.scenarios.cluster import LOG, administrator, appender, appends, coordinator, reader
from trunkline.check.scenarios.duties import PAIR, scenario
from trunkline.core.calls import AppendRequested, TrimRequested


def trim() -> Scenario:
    log = PAIR
    return scenario(
        "trim",
        "the log is trimmed while it is read and appended to",
        log,
        administrator("a", TrimRequested(2, LOG, 1), after=1),
        appender("c1", log, *appends(1, 2)),
        reader("r", log),
        coordinator(),
        faults=Faults(early_timer=1),
        sometimes=("Projected", "PositionsSkipped", "EntriesRead"),
    )


def trim_and_end() -> Scenario:
    """An entry is trimmed away everywhere, then the segment ends: Seal's answer must still count it."""
    log = PAIR
    return scenario(
        "trim-and-end",
        "a segment ends after everything in it was trimmed, beside a client that settles its append",
        log,
        administrator("a", TrimRequested(2, LOG, 1), after=1),
        appender("c1", log, *appends(1)),
        appender("c2", log, *appends(2)),
        coordinator(),
        faults=Faults(crash=1, loss=1),
        crashable="n3",
        lossy="c1",
        sometimes=("Projected", "StreamSealed"),
    )


def trim_beyond_tail() -> Scenario:
    return scenario(
        "trim-beyond-tail",
        "a trim point at or past the tail is refused, and changes nothing",
        PAIR,
        administrator("a", TrimRequested(1, LOG, 3)),
        appender("c1", PAIR, *appends(1)),
        coordinator(),
        sometimes=("RequestRefused", "Committed"),
    )


def trim_inside_batch() -> Scenario:
    """A trim that would cut a batch is lowered, so that every batch is whole or gone."""
    return scenario(
        "trim-inside-batch",
        "a trim point inside a batch does not cut it, also when its segment ends and is repaired",
        PAIR,
        administrator("a", TrimRequested(2, LOG, 2), after=2),
        appender("c1", PAIR, *appends(1), *(AppendRequested(2, LOG, 2, 2),)),
        reader("r", PAIR),
        coordinator(),
        faults=Faults(crash=1),
        crashable="n3",
        sometimes=("Projected", "Trimmed", "EntriesRead"),
    )


def trim_several_batches() -> Scenario:
    """An answer to the operator's reader holds more batches than the trim is about."""
    return scenario(
        "trim-several-batches",
        "a trim deletes what was asked for, although more was read at once",
        PAIR,
        administrator("a", TrimRequested(2, LOG, 1), after=2, read_limit=3),
        appender("c1", PAIR, *appends(1, 2, 3)),
        reader("r", PAIR),
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
