"""The metadata register: compare-and-swap of projections, and the registry of nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from core.driver import APPLICATION, announced, messages, records, registered
from trunkline.check.scenarios.cluster import CHAIN2, LOG, chain_log
from trunkline.core.effects import Effects, Message, Persist
from trunkline.core.events import LeaseLost, Projected
from trunkline.core.messages import (
    Get,
    Got,
    LeaseExpired,
    NodeInfo,
    NodeState,
    Register,
    Registered,
    Swap,
    SwapLost,
    Swapped,
)
from trunkline.core.projection import Projection, RaiseTrim, apply
from trunkline.core.register import MetadataRegister, RegisterImage, fold

FIRST = chain_log(CHAIN2, "a b", sequencer="a")


class Kept:
    """A register whose records are folded, so that it can be started again."""

    def __init__(self, image: RegisterImage | None = None) -> None:
        self.image = image if image is not None else RegisterImage()
        self.role = MetadataRegister(self.image)

    def deliver(self, message: Message) -> Effects:
        effects = self.role.on_message(APPLICATION, message)
        for record in records(effects):
            self.image = fold(self.image, record)
        return effects

    def ask(self, message: Message) -> Message:
        [answer] = messages(self.deliver(message))
        return answer

    def restart(self) -> None:
        self.role = MetadataRegister(self.image)


def test_m1_a_swap_is_taken_only_at_the_expected_epoch() -> None:
    register = Kept()
    second = apply(FIRST, RaiseTrim(1))
    assert register.ask(Swap(LOG, 1, second)) == SwapLost(LOG, 1)  # the log does not exist yet
    assert register.ask(Swap(LOG, 0, FIRST)) == Swapped(LOG, 1)
    assert register.ask(Swap(LOG, 0, FIRST)) == SwapLost(LOG, 0)  # a doubled message is not another swap
    assert register.ask(Swap(LOG, 1, second)) == Swapped(LOG, 2)
    assert register.ask(Get(LOG, 7)) == Got(LOG, 7, second, ())


def test_m1_of_two_swaps_from_one_epoch_one_wins() -> None:
    register = Kept(RegisterImage((FIRST,)))
    winner, loser = apply(FIRST, RaiseTrim(1)), apply(FIRST, RaiseTrim(2))
    assert register.ask(Swap(LOG, 1, winner)) == Swapped(LOG, 2)
    assert register.ask(Swap(LOG, 1, loser)) == SwapLost(LOG, 1)
    assert register.ask(Get(LOG)) == Got(LOG, 0, winner, ())


def test_m5_a_projection_that_cannot_follow_is_not_stored_and_gets_no_answer() -> None:
    register = Kept()
    assert register.deliver(Swap(LOG, 0, apply(FIRST, RaiseTrim(1)))) == []
    assert register.ask(Swap(LOG, 0, FIRST)) == Swapped(LOG, 1)
    trimmed = apply(FIRST, RaiseTrim(5))
    assert register.ask(Swap(LOG, 1, trimmed)) == Swapped(LOG, 2)
    assert register.deliver(Swap(LOG, 2, replace(trimmed, epoch=3, trim=1))) == []
    assert register.ask(Get(LOG)) == Got(LOG, 0, trimmed, ())


def test_m4_no_client_takes_the_name_of_a_node_and_no_node_that_of_a_client() -> None:
    register = Kept()
    node, client = NodeInfo("n", 1, 1), NodeInfo("c", 1, 1, NodeState.CLIENT)
    for info in (node, client):
        assert register.ask(Register(info)) == Registered(info.node, 1)
    assert register.deliver(Register(NodeInfo("n", 1, 2, NodeState.CLIENT))) == []
    assert register.deliver(Register(NodeInfo("c", 1, 2))) == []
    assert register.ask(Get(LOG)) == Got(LOG, 0, None, (client, node))


def test_m2_a_swap_is_durable_before_it_is_announced_and_answered() -> None:
    effects = Kept().deliver(Swap(LOG, 0, FIRST))
    assert isinstance(effects[0], Persist)
    assert announced(effects) == [Projected(FIRST)]
    assert messages(effects) == [Swapped(LOG, 1)]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3)), max_size=8))
def test_m2_a_restart_changes_no_answer(swaps: list[tuple[int, int]]) -> None:
    steady, restarting = Kept(RegisterImage((FIRST,))), Kept(RegisterImage((FIRST,)))
    current: Projection = FIRST
    for back, raised in swaps:
        proposal = apply(current, RaiseTrim(current.trim + raised))
        message = Swap(LOG, current.epoch - back, replace(proposal, epoch=current.epoch - back + 1))
        restarting.restart()
        answer = steady.ask(message)
        assert restarting.ask(message) == answer
        assert isinstance(answer, Swapped) == (back == 0)
        current = proposal if back == 0 else current
    restarting.restart()
    assert restarting.ask(Get(LOG)) == steady.ask(Get(LOG)) == Got(LOG, 0, current, ())


def test_a_restarted_register_announces_what_it_stores() -> None:
    register = MetadataRegister(RegisterImage((FIRST,)))
    assert announced(register.on_start()) == [Projected(FIRST)]


def test_nodes_are_listed_by_name_and_kept_over_a_restart() -> None:
    register = Kept()
    for info in reversed(registered("a b c")):
        assert register.ask(Register(info)) == Registered(info.node, 1)
    register.restart()
    assert register.ask(Get(LOG)) == Got(LOG, 0, None, registered("a b c"))


def test_a_renewal_without_a_change_is_not_persisted() -> None:
    register = Kept()
    [info] = registered("a")
    assert len(records(register.deliver(Register(info)))) == 1
    assert records(register.deliver(Register(info))) == []
    assert len(records(register.deliver(Register(replace(info, start=2))))) == 1


@pytest.mark.parametrize("state", [NodeState.DRAINING, NodeState.GONE])
def test_a_node_does_not_undo_its_draining_by_registering(state: NodeState) -> None:
    known = NodeInfo("a", 1, 1, state)
    register = Kept(RegisterImage((), (known,)))
    register.deliver(Register(NodeInfo("a", 1, 2)))
    assert register.ask(Get(LOG)) == Got(LOG, 0, None, (NodeInfo("a", 1, 2, state),))


def test_m3_an_expired_lease_is_announced_once_and_cleared_by_a_restart_and_a_renewal() -> None:
    [info] = registered("a")
    register = Kept(RegisterImage((), (info,)))
    assert announced(register.deliver(LeaseExpired("a", 1))) == [LeaseLost("a")]
    assert register.deliver(LeaseExpired("a", 1)) == []
    assert register.ask(Get(LOG)) == Got(LOG, 0, None, (replace(info, live=False),))
    register.deliver(Register(info))
    assert register.ask(Get(LOG)) == Got(LOG, 0, None, (info,))
    register.deliver(LeaseExpired("a", 1))
    register.restart()
    assert register.ask(Get(LOG)) == Got(LOG, 0, None, (info,))


def test_m3_the_lease_of_an_earlier_start_does_not_affect_the_present_one() -> None:
    register = Kept(RegisterImage((), (NodeInfo("a", 1, 2),)))
    assert register.deliver(LeaseExpired("a", 1)) == []
    assert register.deliver(LeaseExpired("b", 1)) == []


# If the registry moved back, the owner (a, 3) would look dead to the coordinator, which ends its segments; a node that
# keeps no lease never registers again, so it would stay so.
@pytest.mark.parametrize("incarnation", [1, 2, 3])
def test_a_late_registration_of_an_earlier_start_is_ignored_whatever_its_disk(incarnation: int) -> None:
    known = NodeInfo("a", 2, 3)
    register = Kept(RegisterImage((), (known,)))
    assert register.deliver(Register(NodeInfo("a", incarnation, 2))) == []
    assert register.ask(Get(LOG)) == Got(LOG, 0, None, (known,))


def test_a_late_registration_of_an_earlier_start_does_not_renew_the_lease() -> None:
    register = Kept(RegisterImage((), (NodeInfo("a", 1, 2),)))
    register.deliver(LeaseExpired("a", 2))
    register.deliver(Register(NodeInfo("a", 1, 1)))
    assert register.ask(Get(LOG)) == Got(LOG, 0, None, (NodeInfo("a", 1, 2, live=False),))


def test_a_later_start_counts_on_a_new_disk_too() -> None:
    register = Kept(RegisterImage((), (NodeInfo("a", 1, 2),)))
    assert register.ask(Register(NodeInfo("a", 2, 3))) == Registered("a", 3)
    register.restart()
    assert register.ask(Get(LOG)) == Got(LOG, 0, None, (NodeInfo("a", 2, 3),))


def test_m4_a_client_is_forgotten_with_its_lease_and_stays_so_over_a_restart() -> None:
    register = Kept()
    client = NodeInfo("w", 0, 1, NodeState.CLIENT)
    register.deliver(Register(client))
    register.restart()
    assert register.ask(Get(LOG)) == Got(LOG, 0, None, (client,))
    assert announced(register.deliver(LeaseExpired("w", 1))) == [LeaseLost("w")]
    assert register.ask(Get(LOG)) == Got(LOG, 0, None, ())
    register.restart()
    assert register.ask(Get(LOG)) == Got(LOG, 0, None, ())


def test_a_late_registration_does_not_take_damage_back() -> None:
    register = Kept()
    damaged = NodeInfo("a", 1, 1, damaged=1)
    register.deliver(Register(damaged))
    assert register.deliver(Register(NodeInfo("a", 1, 1))) == []
    assert register.ask(Get(LOG)) == Got(LOG, 0, None, (damaged,))


def test_m5_a_sender_with_the_present_epoch_receives_only_that() -> None:
    register = Kept(RegisterImage((FIRST,), registered("a b")))
    assert register.ask(Get(LOG, 7, known=1)) == Got(LOG, 7, None, registered("a b"), unchanged=1)


@pytest.mark.parametrize("known", [0, 1, 3], ids=["nothing", "older", "newer"])
def test_m5_a_sender_with_another_epoch_receives_the_projection(known: int) -> None:
    register = Kept(RegisterImage((second := apply(FIRST, RaiseTrim(1)),)))
    assert register.ask(Get(LOG, 7, known)) == Got(LOG, 7, second, ())


def test_m5_a_log_that_does_not_exist_has_no_epoch() -> None:
    assert Kept().ask(Get(LOG, 7, known=0)) == Got(LOG, 7, None, ())
    assert Kept().ask(Get(LOG, 7, known=4)) == Got(LOG, 7, None, ())
