"""Whether a deliverer is alive and ready, and its pages: metrics, health, readiness, and its whole status as JSON.

They read values that any thread may read, and never wait for the loop of the deliverer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trunkline.core.planner_tracks import TrackStage
from trunkline.delivery.deliverer.metrics import TABLE
from trunkline.delivery.deliverer.views import DelivererView
from trunkline.observing.pages import ObservedProcess
from trunkline.observing.readiness import Health, Readiness

if TYPE_CHECKING:
    from trunkline.delivery.deliverer.observer import Observer

STALLED_MS: Final = 10_000  # the loop turns once a second; too small: a deliverer on a busy machine is restarted
STARTING_MS: Final = 180_000  # until the loop turns for the first time: Spark has to start
HALTED_MAX: Final = 100  # destinations named by /readyz; /status names all


def observed_deliverer(observer: Observer) -> ObservedProcess:
    async def deliverer_health() -> Health:
        return health(observer.snapshot())

    async def deliverer_readiness() -> Readiness:
        return readiness(observer.snapshot())

    view = observer.snapshot()
    return ObservedProcess(
        "deliverer",
        view.deliverer,
        TABLE,
        observer.metrics.values,
        deliverer_readiness,
        deliverer_health,
        labels=(view.pipeline,),
        more={"/status": observer.snapshot},
    )


def health(view: DelivererView) -> Health:
    alive = view.turned_ms_ago < (STARTING_MS if view.state == "starting" else STALLED_MS)
    return Health(alive, {"state": view.state, "turned_ms_ago": view.turned_ms_ago})


def readiness(view: DelivererView) -> Readiness:
    """A deliverer without destinations is ready, and so is one with halted destinations: they are only named."""
    why = []
    if view.state != "running":
        why.append(f"the deliverer is {view.state}")
    if not health(view).alive:
        why.append(f"the loop has not turned for {view.turned_ms_ago} ms; look at the log, and restart the deliverer")
    if view.source_error:
        why.append(f"the source cannot be reached: {view.source_error}")
    if view.store_error and not view.held:
        why.append(f"no destination is owned, and the control store cannot be reached: {view.store_error}")
    why += [f"{died}; the deliverer stops, start it again" for died in view.died]
    halted = [each for each in view.destinations if each.stage == TrackStage.HALTED.value]
    errors = {each.name: each.error for each in halted[:HALTED_MAX]}
    facts = {"state": view.state, "held": view.held, "halted": len(halted), "errors": errors}
    return Readiness(tuple(why), facts)
