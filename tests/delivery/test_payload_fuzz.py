"""Broken payloads, for seconds here and for as long as you like with ``fuzz_payloads``."""

from __future__ import annotations

from delivery.fuzz_payloads import MEMORY_BYTES_MAX, fuzz

MUTANTS = 4_000


def test_x5_broken_payloads_are_refused_or_read_and_nothing_crashes() -> None:
    found = fuzz(0, MUTANTS)
    assert found.failures == []
    assert found.outcomes.total() == MUTANTS
    assert found.grown_bytes < MEMORY_BYTES_MAX
    for kind in ("changes", "body", "event", "json", "log", "groups"):
        for end in ("taken", "refused"):
            assert any(name.startswith(kind) and name.endswith(end) for name in found.outcomes), (kind, end)


def test_a_crash_is_counted_and_the_run_goes_on_behind_it() -> None:
    found = fuzz(0, 30, planted=17)
    assert [failure.seed for failure in found.failures] == [17]
    assert "ended with -6" in found.failures[0].why
    assert found.outcomes.total() == 29
