"""The columns of delivered tables: rule C11 of ``delivery/control/contract.py``."""

from __future__ import annotations

from contextlib import closing

from contract.control_place import Place
from trunkline.delivery.control.seen_columns import SeenTable
from trunkline.delivery.control.store import ControlStore


def test_c11_columns_are_recorded_for_each_table_of_each_pipeline(store: ControlStore, control_place: Place) -> None:
    assert store.seen_columns.read("p") == {}
    one, two = SeenTable(3, ("id", 'odd "name"')), SeenTable(4, ())
    store.seen_columns.write("p", {"public.a": one, "public.b": two})
    store.seen_columns.write("q", {"public.a": two})
    store.seen_columns.write("p", {"public.b": one})
    store.seen_columns.write("p", {})
    with closing(control_place.open()) as other:
        assert other.seen_columns.read("p") == {"public.a": one, "public.b": one}
        assert other.seen_columns.read("q") == {"public.a": two}


def test_c11_a_store_of_an_older_release_gets_the_table(store: ControlStore, control_place: Place) -> None:
    with store._tables.writing():
        store._tables.run("DROP TABLE _trunkline_seen_columns", "p")
    with closing(control_place.open()) as newer:
        newer.seen_columns.write("p", {"public.a": SeenTable(1, ("id",))})
        assert list(newer.seen_columns.read("p")) == ["public.a"]
