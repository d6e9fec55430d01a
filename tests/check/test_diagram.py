"""The HTML page of a counterexample as text. tests/browser covers how a browser shows it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from counterexample import FINDING, HOSTILE, REPLAY, example
from trunkline.check.diagram import render
from trunkline.check.diagram_arrows import Arrow, MessageFate, trace_arrows
from trunkline.check.views import MessageView, ProcessView, StateView, StepView

STEPS, STATES = example()


@pytest.fixture(scope="module")
def page() -> str:
    return render("takeover <1>", FINDING, STEPS, STATES, replay=REPLAY)


def sequence(page: str) -> ElementTree.Element:
    found = re.search(r'<svg class="sequence".*?</svg>', page, re.DOTALL)
    assert found is not None
    return ElementTree.fromstring(found.group())


def test_the_page_is_the_same_every_time(page: str) -> None:
    assert render("takeover <1>", FINDING, STEPS, STATES, replay=REPLAY) == page


def test_the_page_refers_to_nothing_outside_itself(page: str) -> None:
    class Links(HTMLParser):
        found: list[str]

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.found += [name for name, _ in attrs if name in ("src", "href", "action", "data")]

    links = Links()
    links.found = []
    links.feed(page)
    assert links.found == []
    assert "url(" not in page
    assert "@import" not in page


def test_a_script_in_a_payload_is_never_markup(page: str) -> None:
    assert HOSTILE not in page
    assert page.count("<script") == 2  # the data and the page's own
    assert "takeover &lt;1&gt;" in page


def test_the_data_of_the_page_is_the_run(page: str) -> None:
    found = re.search(r'<script type="application/json" id="run">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    run = json.loads(found.group(1))
    assert run["finding"]["text"] == FINDING.text
    assert [step["action"] for step in run["steps"]] == [step.action for step in STEPS]
    for shown, state in zip(run["states"], STATES, strict=True):
        names = [run["processes"][number]["name"] for number in shown["processes"]]
        assert names == [process.name for process in state.processes]
        assert len(shown["network"]) == len(state.network)


def test_every_step_has_a_row_and_the_last_one_shows_the_violation(page: str) -> None:
    svg = sequence(page)
    rows = [element for element in svg.iter("rect") if "row" in element.get("class", "").split()]
    assert [row.get("data-step") for row in rows] == [str(number) for number in range(len(STEPS) + 1)]
    assert "violated" in rows[-1].get("class", "")
    assert [text.text for text in svg.iter("text") if text.text == "✗ TotalOrder"] == ["✗ TotalOrder"]


def test_a_process_that_is_down_has_a_dotted_life_line(page: str) -> None:
    down = [element for element in sequence(page).iter("line") if element.get("class") == "life down"]
    assert len(down) == sum(not process.up for state in STATES for process in state.processes) > 0


def test_the_page_shows_the_replay_command_only_if_there_is_one(page: str) -> None:
    assert REPLAY in page
    assert 'id="copy"' not in render("t", FINDING, STEPS, STATES)


def test_a_run_without_steps_is_rendered() -> None:
    assert "initial state" in render("t", FINDING, [], STATES[:1])


def test_states_that_do_not_match_the_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="20 steps need 21 states, not 20"):
        render("t", FINDING, STEPS, STATES[1:])


def test_steps_that_are_not_numbered_from_1_are_refused() -> None:
    with pytest.raises(ValueError, match="numbered from 1"):
        render("t", FINDING, STEPS[1:], STATES[1:])


def test_a_process_that_is_down_at_first_shows_its_later_roles() -> None:
    first = replace(STATES[0], processes=tuple(replace(each, up=False, roles=()) for each in STATES[0].processes))
    page = render("t", FINDING, STEPS, [first, *STATES[1:]])
    assert "q<small>sequencer</small>" in page


def test_a_power_cut_marks_every_process_that_it_ended() -> None:
    def ended(process: ProcessView) -> ProcessView:
        return replace(process, up=process.name not in ("n1", "n2"))

    after = replace(STATES[0], processes=tuple(ended(process) for process in STATES[0].processes))
    cut = StepView(1, "power_cut n1=0 n2=1", "power_cut", None, None, None)
    crosses = list(sequence(render("t", FINDING, [cut], [STATES[0], after])).iter("path"))
    assert [path.get("class") for path in crosses] == ["icon bad", "icon bad"]


# Arrows


def message(number: int) -> MessageView:
    return MessageView(number, "a", "role", "b", "role", f"M {number}", f"M({number})")


def step(index: int, kind: str, handled: MessageView | None = None, *sent: MessageView) -> StepView:
    return StepView(index, kind, kind, "a", "role", handled, sent)


def arrows(
    steps: list[StepView], first: tuple[MessageView, ...] = (), last: tuple[MessageView, ...] = ()
) -> list[Arrow]:
    return trace_arrows(steps, [StateView((), first, (), ()), *[StateView((), last, (), ())] * len(steps)])


def test_reordered_messages_have_arrows_from_their_send_to_their_delivery() -> None:
    one, two = message(1), message(2)
    steps = [
        step(1, "operate", None, one),
        step(2, "operate", None, two),
        step(3, "deliver", two),
        step(4, "deliver", one),
    ]
    assert arrows(steps) == [Arrow(two, 2, 3, MessageFate.ARRIVED), Arrow(one, 1, 4, MessageFate.ARRIVED)]


def test_a_message_of_the_initial_state_comes_from_step_0_and_a_lost_one_ends_at_its_loss() -> None:
    assert arrows([step(1, "lose", message(1))], first=(message(1),)) == [Arrow(message(1), 0, 1, MessageFate.LOST)]


def test_a_message_sent_again_in_flight_is_one_arrow_and_after_its_delivery_another() -> None:
    one = message(1)
    steps = [
        step(1, "operate", None, one),
        step(2, "timer", None, one),
        step(3, "deliver", one, one),
        step(4, "deliver", one),
    ]
    assert arrows(steps) == [Arrow(one, 1, 3, MessageFate.ARRIVED), Arrow(one, 3, 4, MessageFate.ARRIVED)]


def test_two_copies_in_flight_are_two_arrows_and_a_dropped_one_is_lost() -> None:
    one = message(1)
    nothing, single, double = (StateView((), (one,) * copies, (), ()) for copies in range(3))
    steps = [
        step(1, "operate", None, one),
        step(2, "timer", None, one),
        step(3, "drop", one),
        step(4, "deliver", one),
    ]
    found = trace_arrows(steps, [nothing, single, double, single, nothing])
    assert found == [Arrow(one, 1, 3, MessageFate.LOST), Arrow(one, 2, 4, MessageFate.ARRIVED)]


def test_a_doubled_message_arrives_twice_from_one_send() -> None:
    one = message(1)
    steps = [step(1, "operate", None, one), step(2, "duplicate", one), step(3, "deliver", one)]
    assert arrows(steps) == [Arrow(one, 1, 2, MessageFate.DOUBLED), Arrow(one, 1, 3, MessageFate.ARRIVED)]
    assert arrows(steps[:2], last=(one,)) == [Arrow(one, 1, 2, MessageFate.DOUBLED)]


def test_a_message_that_never_arrives_is_in_flight_or_dropped() -> None:
    steps = [step(1, "operate", None, message(1), message(2))]
    assert [arrow.fate for arrow in arrows(steps, last=(message(1),))] == [MessageFate.PENDING, MessageFate.DROPPED]
