"""The lease keeper of a node process."""

from __future__ import annotations

from msgspec.structs import replace

from core.driver import APPLICATION, META, messages, sent, timers
from trunkline.core.lease import LeaseKeeper
from trunkline.core.messages import NodeInfo, Register, Registered, Space
from trunkline.core.siblings import DamageFound, SpaceReported

INFO = NodeInfo("a", 1, 2)


def keeper(lease_ms: int | None = 3000) -> LeaseKeeper:
    return LeaseKeeper(INFO, META, retry_ms=1000, lease_ms=lease_ms)


def test_a_node_registers_at_start_and_retries_until_it_is_answered() -> None:
    lease = keeper()
    for effects in (lease.on_start(), lease.on_timer("renew"), lease.on_timer("renew")):
        assert sent(effects)[-1] == ("meta.register", Register(INFO))
        assert timers(effects) == ["renew"]
    assert lease.phase == "joining"


def test_a_node_without_a_lease_stops_asking_once_it_is_registered() -> None:
    lease = keeper(None)
    effects = lease.on_start() + lease.on_message(META, Registered("a", 2))
    assert sent(effects) == [("meta.register", Register(INFO))]
    assert timers(effects) == []
    assert lease.phase == "fresh"


def test_a_lease_is_renewed_for_ever() -> None:
    lease = keeper()
    lease.on_start()
    assert timers(lease.on_message(META, Registered("a", 2))) == ["renew", "lease"]
    assert messages(lease.on_timer("renew")) == [Register(INFO)]


def test_a_lease_that_runs_out_is_lost_until_it_is_renewed() -> None:
    lease = keeper()
    lease.on_start()
    lease.on_message(META, Registered("a", 2))
    assert lease.on_timer("lease") == []
    assert lease.phase == "stale"
    lease.on_message(META, Registered("a", 2))
    assert lease.phase == "fresh"


def test_an_answer_to_an_earlier_start_renews_nothing() -> None:
    lease = keeper()
    lease.on_start()
    assert lease.on_message(META, Registered("a", 1)) == []
    assert lease.phase == "joining"


def test_l1_damage_is_reported_at_once_and_with_every_renewal() -> None:
    lease = keeper()
    lease.on_start()
    lease.on_message(META, Registered("a", 2))
    damaged = Register(replace(INFO, damaged=1))
    assert messages(lease.on_message(APPLICATION, DamageFound())) == [damaged]
    assert messages(lease.on_timer("renew")) == [damaged]
    assert messages(lease.on_message(APPLICATION, DamageFound())) == [Register(replace(INFO, damaged=2))]


def test_l2_less_space_is_reported_at_once_and_more_with_the_next_renewal() -> None:
    lease = keeper()
    lease.on_start()
    lease.on_message(META, Registered("a", 2))
    full = Register(replace(INFO, space=Space.FULL))
    assert messages(lease.on_message(APPLICATION, SpaceReported(Space.FULL))) == [full]
    assert messages(lease.on_timer("renew")) == [full]
    assert messages(lease.on_message(APPLICATION, SpaceReported(Space.TIGHT))) == []
    assert messages(lease.on_timer("renew")) == [Register(replace(INFO, space=Space.TIGHT))]
