"""The lease keeper of a node process."""

from __future__ import annotations

from core.driver import META, messages, sent, timers
from trunkline.core.lease import LeaseKeeper
from trunkline.core.messages import Freshness, NodeInfo, Register, Registered

INFO = NodeInfo("a", 1, 2)


def keeper(lease_ms: int | None = 3000) -> LeaseKeeper:
    return LeaseKeeper(INFO, META, retry_ms=1000, lease_ms=lease_ms)


def test_a_node_says_who_it_is_at_start_and_until_it_is_answered() -> None:
    lease = keeper()
    first = lease.on_start()
    assert sent(first) == [("meta.register", Register(INFO))]
    assert timers(first) == ["renew"]
    assert lease.on_timer("renew") == first
    assert lease.phase == "joining"


def test_a_node_without_a_lease_stops_asking_once_it_is_registered() -> None:
    lease = keeper(None)
    effects = lease.on_start() + lease.on_message(META, Registered("a", 2))
    assert timers(effects) == []
    assert lease.phase == "fresh"


def test_a_lease_is_renewed_for_ever() -> None:
    lease = keeper()
    lease.on_start()
    assert timers(lease.on_message(META, Registered("a", 2))) == ["renew", "lease"]
    assert messages(lease.on_timer("renew")) == [Register(INFO)]


def test_l1_siblings_are_told_when_the_lease_runs_out_and_when_it_is_back() -> None:
    lease = keeper()
    lease.on_start()
    assert messages(lease.on_message(META, Registered("a", 2))) == []  # fresh is how siblings begin
    assert sent(lease.on_timer("lease")) == [
        ("self.storage", Freshness(fresh=False)),
        ("self.sequencer", Freshness(fresh=False)),
    ]
    assert lease.phase == "stale"
    assert messages(lease.on_message(META, Registered("a", 2))) == [Freshness(fresh=True)] * 2


def test_l1_an_answer_to_an_earlier_start_renews_nothing() -> None:
    lease = keeper()
    lease.on_start()
    assert lease.on_message(META, Registered("a", 1)) == []
    assert lease.phase == "joining"
