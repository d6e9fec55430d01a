"""The ownership of a repair: it is kept, it is released whatever happens, and it outbids a store that was lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from trunkline.delivery.config.addresses import DeltaAddress, LogAddress
from trunkline.delivery.config.digests import pipeline_digest
from trunkline.delivery.config.tree import ControlConfig, DestinationConfig, Pipeline
from trunkline.delivery.control.store import ControlStore, open_control_store
from trunkline.delivery.verification.seizure import Seizure, seized
from trunkline.errors import Unreachable

LEASE_MS = 300
PATIENCE_S = 20.0


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    destinations = tuple(
        DestinationConfig(
            name=name,
            address=DeltaAddress(f"{tmp_path}/{name}"),
            values=None,
            mode="mirror",
            duplicates="halt",
            seed="scan",
        )
        for name in ("a", "b")
    )
    control = ControlConfig(store=f"sqlite:{tmp_path}/control.db", lease_ms=LEASE_MS)
    return Pipeline(name="p", source=LogAddress("l"), key=("id",), destinations=destinations, control=control)


@pytest.fixture
def store(pipeline: Pipeline) -> Iterator[ControlStore]:
    with closing(open_control_store(pipeline.control.store)) as opened:
        opened.configurations.configure("p", pipeline_digest(pipeline), {"a": "1", "b": "2"})
        yield opened


def owners(store: ControlStore) -> dict[str, str | None]:
    return {each.name: each.owner for each in store.destinations("p")}


@pytest.mark.parametrize("error", [KeyboardInterrupt, Unreachable])
def test_what_was_seized_is_released_whatever_happens(
    store: ControlStore, pipeline: Pipeline, error: type[BaseException]
) -> None:
    held = store.ownerships.acquire("p", "d-1", pipeline_digest(pipeline), 60_000)
    before = {each.name: each.token for each in held.ownerships}

    def repairs() -> None:
        with seized(store, pipeline, ["a"]) as seizure:
            assert seizure.tokens == {"a": before["a"] + 1}
            assert owners(store)["b"] == "d-1"
            assert str(owners(store)["a"]).startswith("repair:")
            raise error("made up")

    with pytest.raises(error):
        repairs()
    assert owners(store) == {"a": None, "b": "d-1"}
    assert [each.name for each in store.deliverers("p")] == ["d-1"]


def test_the_lease_is_kept_for_as_long_as_the_repair_takes(
    store: ControlStore, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewals, renew, enough = list[int](), Seizure.renew, threading.Event()

    def counted(seizure: Seizure) -> None:
        renewals.append(1)
        if len(renewals) == 2:
            raise Unreachable("the store does not answer once")
        renew(seizure)
        if len(renewals) > 6:
            enough.set()

    monkeypatch.setattr(Seizure, "renew", counted)
    with seized(store, pipeline, ["a"]):
        assert enough.wait(PATIENCE_S)
        assert store.ownerships.acquire("p", "d-1", pipeline_digest(pipeline), 60_000).share.held == 1, "only b"
    assert owners(store)["a"] is None


def test_a_destination_with_a_higher_token_than_the_store_granted_is_seized_above_it(
    store: ControlStore, pipeline: Pipeline
) -> None:
    with seized(store, pipeline, ["a", "b"]) as seizure:
        assert seizure.tokens == {"a": 1, "b": 1}
        assert seizure.outbid({"a": 7, "b": 1}) == {"a": 8}, "the store granted the token of b: another owner has it"
        assert str(owners(store)["a"]).startswith("repair:")
