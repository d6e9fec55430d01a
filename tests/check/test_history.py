"""Histories of clients: an accepted one, and for each rule some that are rejected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from trunkline.check.history import FINDINGS_MAX, HistoryVerdict, judge_histories
from trunkline.check.history_file import JUNK, LOST, TRIMMED, UNWRITTEN, HistoryError, HistoryWriter

LOG = "orders"


class Clients:
    """Clients on one machine, whose clock advances by one with each line."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._clock = count(1)
        self._writers: dict[str, HistoryWriter] = {}

    def __getitem__(self, name: str) -> HistoryWriter:
        if name not in self._writers:
            self._writers[name] = HistoryWriter(self.directory, name, LOG, lambda: next(self._clock))
        return self._writers[name]

    def appended(self, name: str, glsn: int, *payloads: str) -> None:
        number = self[name].append(payloads)
        self[name].end(number, glsn=glsn)

    def read(self, name: str, glsn: int, value: str) -> None:
        number = self[name].read(glsn)
        self[name].end(number, value=value)

    def tail(self, name: str, glsn: int) -> None:
        number = self[name].tail()
        self[name].end(number, glsn=glsn)

    def trimmed(self, name: str, point: int) -> None:
        number = self[name].trim(point)
        self[name].end(number)

    def final(self, first: int, *values: str) -> None:
        number = self["judge"].final()
        self["judge"].got(number, first, values)
        self["judge"].end(number, glsn=first + len(values))

    def verdict(self) -> HistoryVerdict:
        self.close()
        (verdict,) = judge_histories(self.directory)
        return verdict

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[Clients]:
    made = Clients(tmp_path)
    yield made
    made.close()


def a_good_run(on: Clients) -> None:
    on.appended("x", 1, "x1", "x2")
    unknown = on["y"].append(["y1"])
    on["y"].end(unknown, unknown="the process lost its connection")
    refused = on["y"].append(["y2"])
    on["y"].end(refused, refused="the disk is full")
    on["z"].append(["z1"])  # killed before it knew
    on.tail("x", 3)
    subscription = on["r"].subscribe(1)
    on["r"].got(subscription, 1, ["x1", "x2"])
    on["r"].got(subscription, 4, ["z1"])  # the JUNK at 3 is left out
    on.read("r", 3, JUNK)
    on.read("r", 9, UNWRITTEN)
    on.appended("x", 5, "x3")
    on.trimmed("x", 1)
    on.read("r", 1, TRIMMED)
    on.final(2, "x2", JUNK, "z1", "x3")


def test_a_correct_history_passes_with_its_counts(clients: Clients) -> None:
    a_good_run(clients)
    verdict = clients.verdict()
    assert verdict.broken == ()
    assert (verdict.log, verdict.operations, verdict.acknowledged, verdict.final) == (LOG, 12, 3, True)


def lost_at_the_end(on: Clients) -> None:
    on.appended("x", 1, "x1")
    on.final(1, JUNK)


def lost_at_the_tail(on: Clients) -> None:
    on.appended("x", 1, "x1")
    on.appended("x", 2, "x2")
    on.final(1, "x1")


def two_values_for_readers(on: Clients) -> None:
    on["x"].append(["x1"])
    on["y"].append(["y1"])
    on.read("r", 1, "x1")
    on.read("s", 1, "y1")


def junk_after_an_acknowledgement(on: Clients) -> None:
    on.appended("x", 1, "x1")
    on.read("r", 1, JUNK)


def two_acknowledged_at_one_position(on: Clients) -> None:
    one = on["x"].append(["x1"])
    on.appended("y", 1, "y1")
    on["x"].end(one, glsn=1)


def an_entry_twice(on: Clients) -> None:
    on.appended("x", 1, "x1")
    on.read("r", 2, "x1")


def a_refused_entry_that_is_there(on: Clients) -> None:
    number = on["x"].append(["x1"])
    on["x"].end(number, refused="full")
    on.read("r", 1, "x1")


def an_entry_that_was_not_appended(on: Clients) -> None:
    on.read("r", 1, "x1")


def an_entry_read_before_its_append_began(on: Clients) -> None:
    on.read("r", 1, "x1")
    on.appended("x", 1, "x1")


def a_later_append_below_an_earlier_one(on: Clients) -> None:
    on.appended("x", 5, "x1", "x2")
    on.appended("y", 4, "y1")


def an_append_inside_an_earlier_batch(on: Clients) -> None:
    on.appended("x", 5, "x1", "x2")
    on.appended("y", 6, "y1")


def an_append_below_a_tail(on: Clients) -> None:
    on.tail("x", 6)
    on.appended("y", 5, "y1")


def an_append_below_what_was_read(on: Clients) -> None:
    on["x"].append(["x1"])
    on.read("r", 5, "x1")
    on.appended("y", 4, "y1")


def a_tail_behind_an_append(on: Clients) -> None:
    on.appended("x", 5, "x1", "x2")
    on.tail("y", 6)


def a_tail_that_goes_back(on: Clients) -> None:
    on.tail("x", 6)
    on.tail("y", 5)


def nothing_where_an_append_was_acknowledged(on: Clients) -> None:
    on.appended("x", 1, "x1")
    on.read("r", 1, UNWRITTEN)


def a_subscription_that_goes_back(on: Clients) -> None:
    on.appended("x", 1, "x1", "x2")
    number = on["r"].subscribe(1)
    on["r"].got(number, 1, ["x1", "x2"])
    on["r"].got(number, 2, ["x2"])


def a_subscription_that_misses_an_entry(on: Clients) -> None:
    on.appended("x", 1, "x1", "x2", "x3")
    number = on["r"].subscribe(1)
    on["r"].got(number, 1, ["x1"])
    on["r"].got(number, 3, ["x3"])


def a_subscription_that_misses_its_start(on: Clients) -> None:
    on.appended("x", 1, "x1", "x2")
    number = on["r"].subscribe(1)
    on["r"].got(number, 2, ["x2"])


def trimmed_without_a_request(on: Clients) -> None:
    on.appended("x", 1, "x1", "x2")
    on.trimmed("y", 1)
    on.read("r", 2, TRIMMED)


def trimmed_although_that_was_refused(on: Clients) -> None:
    on.appended("x", 1, "x1")
    number = on["y"].trim(1)
    on["y"].end(number, refused="it is not settled")
    on.read("r", 1, TRIMMED)


def an_unwritten_position_at_the_end(on: Clients) -> None:
    on.final(1, JUNK, UNWRITTEN, JUNK)


def a_lost_position_at_the_end(on: Clients) -> None:
    on.final(1, JUNK, LOST)


def a_missing_position_at_the_end(on: Clients) -> None:
    number = on["judge"].final()
    on["judge"].got(number, 1, [JUNK])
    on["judge"].got(number, 3, [JUNK])
    on["judge"].end(number, glsn=4)


def a_tail_above_the_last_one(on: Clients) -> None:
    asked = on["judge"].final()
    on.tail("x", 5)
    on["judge"].got(asked, 1, [JUNK, JUNK])
    on["judge"].end(asked, glsn=3)


PLANTED: dict[str, tuple[Callable[[Clients], None], ...]] = {
    "H1": (two_values_for_readers, junk_after_an_acknowledgement, two_acknowledged_at_one_position, lost_at_the_end),
    "H2": (an_entry_twice,),
    "H3": (a_refused_entry_that_is_there,),
    "H4": (an_entry_that_was_not_appended, an_entry_read_before_its_append_began),
    "H5": (
        a_later_append_below_an_earlier_one,
        an_append_inside_an_earlier_batch,
        an_append_below_a_tail,
        an_append_below_what_was_read,
    ),
    "H6": (a_tail_behind_an_append, a_tail_that_goes_back, nothing_where_an_append_was_acknowledged),
    "H7": (
        a_subscription_that_goes_back,
        a_subscription_that_misses_an_entry,
        a_subscription_that_misses_its_start,
    ),
    "H8": (trimmed_without_a_request, trimmed_although_that_was_refused),
    "H9": (
        lost_at_the_end,
        lost_at_the_tail,
        an_unwritten_position_at_the_end,
        a_lost_position_at_the_end,
        a_missing_position_at_the_end,
        a_tail_above_the_last_one,
    ),
}


@pytest.mark.parametrize(
    ("rule", "plant"),
    [pytest.param(rule, each, id=f"{rule} {each.__name__}") for rule, plants in PLANTED.items() for each in plants],
)
def test_a_history_is_rejected_that_has(rule: str, plant: Callable[[Clients], None], clients: Clients) -> None:
    plant(clients)
    assert rule in {each.rule for each in clients.verdict().broken}


def test_concurrent_operations_may_have_any_order(clients: Clients) -> None:
    one, other = clients["x"].append(["x1"]), clients["y"].append(["y1"])
    tail = clients["z"].tail()
    clients["y"].end(other, glsn=2)
    clients["x"].end(one, glsn=1)
    clients["z"].end(tail, glsn=1)
    clients.final(1, "x1", "y1")
    assert clients.verdict().broken == ()


def test_the_verdict_on_a_history_without_a_final_reading_shows_that(clients: Clients) -> None:
    clients.appended("x", 1, "x1")
    assert not clients.verdict().final


def test_a_few_findings_of_each_rule_are_enough(clients: Clients) -> None:
    for glsn in range(1, 100):
        clients.read("r", glsn, f"x{glsn}")
    assert len(clients.verdict().broken) == FINDINGS_MAX


def test_each_log_is_judged_alone(tmp_path: Path) -> None:
    for log in ("orders", "bills"):
        with HistoryWriter(tmp_path, "x", log) as writer:
            writer.end(writer.append(["1"]), glsn=1)
    assert [(each.log, each.broken) for each in judge_histories(tmp_path)] == [("bills", ()), ("orders", ())]


def test_a_line_cut_by_a_kill_is_skipped(clients: Clients) -> None:
    a_good_run(clients)
    with (clients.directory / f"z-{LOG}.history").open("ab") as file:
        file.write(b'{"at":99,"be')
    assert clients.verdict().broken == ()


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "no \\*.history files"),
        (["noise"], "line 1: JSON is malformed"),
        (['{"format":"x","version":1,"client":"x","log":"l"}'], "line 1: not a history"),
        (['{"format":"trunkline-history","version":1,"client":"x","log":"l"}', '{"at":1}'], "line 2: expected one of"),
        (['{"format":"trunkline-history","version":1,"client":"x","log":"l"}', '{"at":1,"end":3}'], "not under way"),
        (['{"format":"trunkline-history","version":1,"client":"x","log":"l"}', '{"at":1,"x":3}'], "unknown field `x`"),
    ],
)
def test_an_invalid_history_is_refused(lines: list[str], words: str, tmp_path: Path) -> None:
    if lines:
        (tmp_path / "x.history").write_text("".join(f"{line}\n" for line in lines))
    with pytest.raises(HistoryError, match=words):
        judge_histories(tmp_path)
