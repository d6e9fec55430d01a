"""Every store accepts logs with tens of thousands of segments, and the cost of a change depends on the change alone."""

from __future__ import annotations

import asyncio

from metadata.long_maps import long_map
from metadata.places import Place, opened
from metadata.projections import first_of, rolled
from trunkline.core.messages import Get, Got, Swap, Swapped
from trunkline.core.projection import ForgetSegment, Projection, RaiseTrim, apply
from trunkline.metadata.store import MetadataStore

SEGMENTS = 20_000


async def swapped(store: MetadataStore, view: Projection) -> Projection:
    assert await store.handle(Swap(view.log, view.epoch - 1, view)) == Swapped(view.log, view.epoch)
    return view


def test_a_log_of_20_000_segments_is_stored_changed_and_found_again(place: Place) -> None:
    async def scenario() -> None:
        async with opened(place) as store:
            view = await swapped(store, long_map("orders", SEGMENTS))
            view = await swapped(store, rolled(view))
            await swapped(store, other := first_of("other"))
            view = await swapped(store, apply(view, RaiseTrim(5)))
            view = await swapped(store, apply(view, ForgetSegment(0)))
            assert await store.handle(Get("orders")) == Got("orders", 0, view, ())
        async with opened(place) as store:
            assert await store.projections() == (view, other)
            view = await swapped(store, rolled(view))
        async with opened(place) as store:
            assert await store.handle(Get("orders")) == Got("orders", 0, view, ())

    asyncio.run(scenario())


def test_m5_a_reader_with_the_present_epoch_gets_no_projection(place: Place) -> None:
    async def scenario() -> None:
        async with opened(place) as store:
            view = await swapped(store, first_of())
            assert await store.handle(Get("orders", 7, known=1)) == Got("orders", 7, None, (), unchanged=1)
            view = await swapped(store, rolled(view))
            assert await store.handle(Get("orders", 7, known=1)) == Got("orders", 7, view, ())

    asyncio.run(scenario())


def test_projections_that_have_not_changed_are_the_same_objects_as_before(place: Place) -> None:
    async def scenario() -> None:
        async with opened(place) as store:
            first = await swapped(store, first_of("a"))
            await swapped(store, first_of("b"))
            before = await store.projections()
            assert [view.log for view in before] == ["a", "b"]
            changed = await swapped(store, rolled(first))
            after = await store.projections()
            assert after == (changed, before[1])
            assert after[1] is before[1]

    asyncio.run(scenario())
