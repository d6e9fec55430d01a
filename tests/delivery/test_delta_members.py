"""Delta tables that are a member's set: what only this kind does, since each of them commits alone.

What every kind promises is in ``contract``. The rules are in ``destinations/delta.py``.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import pytest
from deltalake import DeltaTable
from msgspec.structs import replace

from contract.delta_destination import DeltaSite
from trunkline.delivery.changes.rows import Op
from trunkline.delivery.config.addresses import DeltaAddress
from trunkline.delivery.destinations import delta
from trunkline.delivery.destinations.contract import Applied, MemberTables, Standing
from trunkline.delivery.destinations.factory import cached_place, forget_place
from trunkline.destination_suite.place import MEMBER, Change, Doing, Plan, Row, Table, content
from trunkline.destination_suite.steps import (
    CHANGES,
    FLUSH,
    FLUSHED,
    MARK_A,
    MARK_B,
    ORDERS,
    SEED,
    SEEDED,
    applied,
    doing,
    done,
    holds,
    seeded,
    stands,
)
from trunkline.errors import DestinationHalted, Fenced, PositionMoved, TrunklineError

NAMES: Final = ("a", "b", "c")


@pytest.fixture
def site(tmp_path: Path) -> DeltaSite:
    return DeltaSite(str(tmp_path / "tables"))


def versions(site: DeltaSite, names: Sequence[str]) -> dict[str, int]:
    return {name: DeltaTable(site.path(name)).version() for name in names}


# ----------------------------------------------------------------------------------------------------- what it costs


def test_a_flush_commits_only_tables_that_change_and_the_one_that_leads(site: DeltaSite) -> None:
    names = [f"t{number:02}" for number in range(30)]
    applied(site, doing(site, dict.fromkeys(names, SEEDED), SEED))
    assert versions(site, names) == {name: int(name == "t00") for name in names}
    change: list[Change] = [(Op.REMOVE, {"id": 1})]
    nothing: dict[str, list[Change]] = {name: [] for name in names}
    costs = {"t17": {"t17": 1, "t00": 2}, "t00": {"t00": 1}}
    for at, (touched, expected) in enumerate(costs.items(), start=10):
        before = versions(site, names)
        plan = replace(FLUSH, expected=at, through=at + 1)
        assert applied(site, doing(site, {**nothing, touched: change}, plan)) == Applied(at + 1, removed=1)
        after = versions(site, names)
        assert {name: after[name] - before[name] for name in names if after[name] != before[name]} == expected
        assert stands(site, names) == Standing(at + 1, 1, "lake/orders")


def test_a_member_with_more_tables_than_are_kept_open_is_written(
    site: DeltaSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "TABLES_MAX", 2)
    applied(site, doing(site, dict.fromkeys(NAMES, SEEDED), SEED))
    assert applied(site, doing(site, dict.fromkeys(NAMES, CHANGES))) == Applied(20, removed=6, written=6)
    holds(site, dict.fromkeys(NAMES, FLUSHED))


def test_a_place_is_kept_open_by_the_address_of_its_destination(site: DeltaSite) -> None:
    address = DeltaAddress(f"{site.folder}/{{table}}")
    place = cached_place(address)
    assert cached_place(address) is place
    assert cached_place(DeltaAddress(f"{site.folder}/other/{{table}}")) is not place
    forget_place(address)
    assert cached_place(address) is not place


# ------------------------------------------------------------------------------------------------ which of them leads


def test_the_next_table_leads_when_the_lead_leaves_and_again_when_it_is_lost(site: DeltaSite) -> None:
    applied(site, doing(site, dict.fromkeys(NAMES, SEEDED), SEED))
    applied(site, doing(site, {"b": CHANGES, "c": []}, leaving={"a": True}))
    assert stands(site, ("b", "c")) == Standing(20, 1, "lake/orders")
    joined = replace(FLUSH, expected=20, through=30)
    applied(site, doing(site, {"a": (replace(joined, replaces=True), SEEDED), "b": [], "c": []}, joined))
    assert stands(site, NAMES) == Standing(30, 1, "lake/orders"), "a table that joins does not lead"
    site.drop("b")
    assert stands(site, NAMES) == Standing(0, 1, "lake/orders")
    applied(site, doing(site, dict.fromkeys(NAMES, SEEDED), replace(SEED, through=40)))
    assert stands(site, NAMES) == Standing(40, 1, "lake/orders")


def test_the_lead_is_found_though_the_source_no_longer_has_it(site: DeltaSite) -> None:
    applied(site, doing(site, dict.fromkeys(NAMES, SEEDED), SEED))
    assert stands(site, ("b", "c")) == Standing(10, 1, "lake/orders")
    one = doing(site, {"c": CHANGES}, leaving={"a": False})
    one = Doing(replace(one.step, known=(site.address("b"),)), one.rows)
    assert applied(site, one) == Applied(20, removed=2, written=2)
    assert stands(site, ("b", "c")) == Standing(20, 1, "lake/orders")
    assert stands(site, ("a",)) is None
    shutil.rmtree(site.path("a"))
    assert stands(site, ("b",)) == Standing(20, 1, "lake/orders"), "c leads now"


def test_tables_without_a_step_stay_as_they_are_and_may_lead(site: DeltaSite) -> None:
    applied(site, doing(site, dict.fromkeys(NAMES, SEEDED), SEED))
    before = versions(site, NAMES)
    one = doing(site, {"b": CHANGES})
    one = Doing(replace(one.step, known=(site.address("a"), site.address("c"))), one.rows)
    assert applied(site, one) == Applied(20, removed=2, written=2)
    assert stands(site, NAMES) == Standing(20, 1, "lake/orders")
    assert versions(site, NAMES) == {"a": before["a"] + 2, "b": before["b"] + 1, "c": before["c"]}


def test_a_table_that_will_join_is_not_one_that_was_lost(site: DeltaSite) -> None:
    applied(site, doing(site, {"a": SEEDED, "b": SEEDED}, SEED))
    assert stands(site, NAMES) == Standing(10, 1, "lake/orders")
    with pytest.raises(DestinationHalted, match="not there"):
        applied(site, doing(site, dict.fromkeys(NAMES, CHANGES)))
    assert stands(site, ("a", "b")) == Standing(10, 1, "lake/orders")


def test_tables_of_older_releases_at_two_positions_are_level_after_a_step(site: DeltaSite) -> None:
    for name, at in (("a", 20), ("b", 10)):
        seeded(Table(site, name), replace(SEED, through=at), FLUSHED if at == 20 else SEEDED)
        site.make_old_record(name, Standing(at, 7, "lake/orders"), marks=True)
    assert stands(site, ("a", "b")) == Standing(10, 7, "lake/orders", ahead=20)
    both = doing(site, dict.fromkeys(("a", "b"), CHANGES), replace(FLUSH, token=7, ahead=20))
    with pytest.raises(PositionMoved):
        applied(site, Doing(replace(both.step, through=30), both.rows))
    assert applied(site, both) == Applied(20, removed=2, written=2)
    for at in (20, 30):
        assert stands(site, ("a", "b")) == Standing(at, 7, "lake/orders")
        nothing = replace(FLUSH, token=7, expected=at, through=at + 10)
        applied(site, doing(site, {"a": [], "b": []}, nothing))
    holds(site, dict.fromkeys(("a", "b"), FLUSHED))


def test_tables_that_are_on_their_way_to_a_version_of_another_history_halt(site: DeltaSite) -> None:
    applied(site, doing(site, {"a": SEEDED, "b": SEEDED}, SEED))
    flush = doing(site, {"a": CHANGES, "b": CHANGES}, replace(FLUSH, through_mark=MARK_A))
    stop_at(site, flush, 2)
    assert stands(site, ("a", "b")) == Standing(10, 1, "lake/orders", ahead=20)
    with pytest.raises(DestinationHalted, match=r"another history.*reseed"):
        applied(site, Doing(replace(flush.step, through_mark=MARK_B, ahead=20), flush.rows))
    assert applied(site, doing(site, {"a": SEEDED, "b": SEEDED}, replace(SEED, expected=10, through=30))).position == 30
    assert stands(site, ("a", "b")) == Standing(30, 1, "lake/orders")


class Stopped(Exception):
    pass


def stop_at(site: DeltaSite, one: Doing, commit: int) -> None:
    """Do a step up to its n-th commit, which is not made."""
    left = commit

    def watch(name: str) -> None:
        nonlocal left
        left -= name == "commit"
        if left == 0:
            raise Stopped

    with closing(site.open(watch)) as place, pytest.raises(Stopped):
        place.apply([one.write()])


@pytest.mark.parametrize("commit", [1, 2, 3, 4])
def test_a_seed_that_broke_off_leaves_position_0_and_can_be_done_to_any_version(site: DeltaSite, commit: int) -> None:
    applied(site, doing(site, dict.fromkeys(NAMES, SEEDED), replace(SEED, through=50)))
    again = doing(site, dict.fromkeys(NAMES, FLUSHED), replace(SEED, expected=50, through=20, token=2))
    stop_at(site, again, commit)
    held = stands(site, NAMES)
    assert held is not None
    assert (held.position, held.ahead) == (50 if commit == 1 else 0, 0)
    if commit > 1:
        with pytest.raises(PositionMoved):
            applied(site, again)
        with pytest.raises(Fenced):
            applied(site, Doing(replace(again.step, expected=0, token=1), again.rows))
    other = doing(site, dict.fromkeys(NAMES, FLUSHED), replace(SEED, expected=held.position, through=30, token=2))
    assert applied(site, other).position == 30
    holds(site, dict.fromkeys(NAMES, FLUSHED))
    assert stands(site, NAMES) == Standing(30, 2, "lake/orders")


# ------------------------------------------------------------------------------------------------ processes that race


@pytest.mark.parametrize("ours", [1, 2, 3, 4])
@pytest.mark.parametrize("theirs", [2, 3, 4])
def test_of_two_seeds_that_race_no_table_is_of_the_one_that_lost(site: DeltaSite, ours: int, theirs: int) -> None:
    """The second one begins at a commit of the first, to an earlier version, and dies at one of its own."""

    def seed(through: int, expected: int) -> Doing:
        rows: list[Row] = [{"id": 1, "tenant": "acme", "amount": through}]
        return doing(site, dict.fromkeys(NAMES, rows), replace(SEED, expected=expected, through=through))

    applied(site, seed(10, 0))
    stop_at(site, seed(15, 10), 3)
    left = ours

    def watch(name: str) -> None:
        nonlocal left
        left -= name == "commit"
        if name == "commit" and left == 0:
            stop_at(site, seed(20, 0), theirs)

    with closing(site.open(watch)) as place:
        result = place.apply([seed(30, 0).write()])[MEMBER]
    held = stands(site, NAMES)
    assert held is not None
    assert isinstance(result, Applied) == (held.position == 30), result
    if held.position:
        holds(site, {name: [{"id": 1, "tenant": "acme", "amount": held.position}] for name in NAMES})


State = Mapping[str, Mapping[int, int]]  # of the source at one version: the amount of each key, by table
ROUNDS: Final = 20
VERSIONS: Final = 30


def net(before: Mapping[int, int], after: Mapping[int, int]) -> list[Change]:
    """Net changes: a row that came and went is not there."""
    changes: list[Change] = [(Op.REMOVE, {"id": key}) for key in before if key not in after]
    for key, amount in after.items():
        if before.get(key) != amount:
            op = Op.REPLACE if key in before else Op.INSERT
            changes.append((op, {"id": key, "tenant": "acme", "amount": amount}))
    return changes


def rows_of(state: Mapping[int, int]) -> list[Row]:
    return [{"id": key, "tenant": "acme", "amount": amount} for key, amount in state.items()]


def random_states(draw: random.Random) -> list[State]:
    """One row comes and goes, so that changes of a table often cancel out."""
    states: list[State] = [{name: {1: 0} for name in NAMES}]
    for _ in range(VERSIONS):
        now = {name: dict(rows) for name, rows in states[-1].items()}
        for name in draw.sample(NAMES, draw.randint(0, 2)):
            now[name] = {} if 1 in now[name] else {1: 0}
        states.append(now)
    return states


class Deliverer:
    """Plans from what it reads, as a planner does: first to where some tables are."""

    def __init__(
        self, site: DeltaSite, states: list[State], draw: random.Random, token: int, seeds: float = 0.0
    ) -> None:
        self.site, self.states, self.draw, self.token, self.seeds = site, states, draw, token, seeds

    def flush(self, watch: Callable[[str], None] | None = None) -> None:
        tables = MemberTables(MEMBER, "", tuple(map(self.site.address, NAMES)))
        with closing(self.site.open()) as place:
            held = place.standings([tables])[MEMBER]
        assert isinstance(held, Standing)
        if held.position == VERSIONS:
            return
        through = held.ahead or min(VERSIONS, held.position + self.draw.randint(1, 6))
        plan = Plan(through, self.token, "lake/orders", ORDERS, ("id",), held.position, ahead=held.ahead)
        before, after = self.states[held.position], self.states[through]
        if held.position == 0 or (watch is not None and self.draw.random() < self.seeds):
            later = self.draw.randint(max(1, held.position - 3), min(VERSIONS, held.position + 3))
            after, plan = self.states[later], replace(plan, through=later, seeds=True, ahead=0)
            one = doing(self.site, {name: rows_of(after[name]) for name in NAMES}, plan)
        else:
            one = doing(self.site, {name: net(before[name], after[name]) for name in NAMES}, plan)
        with closing(self.site.open(watch)) as place:
            result = place.apply([one.write()])[MEMBER]
        assert not isinstance(result, DestinationHalted), result
        assert isinstance(result, Applied | TrunklineError)


@pytest.mark.parametrize("commit", [1, 2, 3])
def test_a_late_process_does_not_write_a_window_that_the_member_has_left(site: DeltaSite, commit: int) -> None:
    """A row of b comes and goes: the window to 17 has it, and the one to 20 does not touch the table."""
    applied(site, doing(site, {"a": SEEDED, "b": SEEDED}, SEED))
    late: Row = {"id": 9, "tenant": "acme", "amount": 9}
    short = doing(site, {"a": [], "b": [(Op.INSERT, late)]}, replace(FLUSH, through=17))
    long = doing(site, {"a": CHANGES, "b": []})
    left, others = commit, dict[str, object]()

    def watch(name: str) -> None:
        nonlocal left
        left -= name == "commit"
        if name == "commit" and left == 0:
            others.update(done(site, long))

    with closing(site.open(watch)) as place:
        result = place.apply([short.write()])[MEMBER]
    if commit == 1:
        assert (type(result), others) == (PositionMoved, {MEMBER: Applied(20, removed=2, written=2)})
        assert stands(site, ("a", "b")) == Standing(20, 1, "lake/orders")
        return holds(site, {"a": FLUSHED, "b": SEEDED})
    assert isinstance(others[MEMBER], PositionMoved)
    assert result == Applied(17, written=1)
    assert stands(site, ("a", "b")) == Standing(17, 1, "lake/orders")
    return holds(site, {"a": SEEDED, "b": [*SEEDED, late]})


class Disturbance:
    """At a random step of a process: others do more, up to two deep, with the same or a later token; perhaps it dies
    then."""

    def __init__(self, site: DeltaSite, states: list[State], draw: random.Random, seeds: float) -> None:
        self.site, self.states, self.draw, self.seeds = site, states, draw, seeds
        self.token = 1

    def deliverer(self) -> Deliverer:
        return Deliverer(self.site, self.states, self.draw, self.token, self.seeds)

    def watch(self, depth: int = 1) -> Callable[[str], None]:
        left, dies = self.draw.randint(3, 12), self.draw.random() < 0.35

        def disturb(name: str) -> None:
            nonlocal left
            left -= 1
            if left:
                return
            self.token += self.draw.randint(0, 1)
            for _ in range(self.draw.choice((0, 1, 2, 3))):
                self.flush(depth - 1)
            if dies:
                raise Stopped

        return disturb

    def flush(self, depth: int = 1) -> None:
        with suppress(Stopped):
            self.deliverer().flush(self.watch(depth) if depth >= 0 else None)


@pytest.mark.parametrize("seeds", [0.0, 0.3], ids=["flushes", "flushes and seeds"])
def test_whatever_processes_do_to_each_other_the_tables_have_the_rows_of_the_position(
    site: DeltaSite, seeds: float
) -> None:
    draw = random.Random(14)
    seen = 0
    for number in range(ROUNDS // (2 if seeds else 1)):
        shutil.rmtree(site.folder, ignore_errors=True)
        states = random_states(draw)
        seed = Plan(1, 1, "lake/orders", ORDERS, ("id",), seeds=True)
        applied(site, doing(site, {name: rows_of(rows) for name, rows in states[1].items()}, seed))
        world = Disturbance(site, states, draw, seeds)
        held: Standing | None = Standing(1, 1, "lake/orders")
        while held is None or held.position < VERSIONS:
            world.flush()
            held = stands(site, NAMES)
            assert held is not None
            if held.ahead or held.position == 0:
                seen += 1
                world.deliverer().flush()
                held = stands(site, NAMES)
                assert held is not None
                assert not held.ahead
            for name in NAMES:
                expected = content(rows_of(states[held.position][name]))
                assert content(site.held(name)) == expected, f"round {number}, table {name} at {held.position}"
    assert seen
