"""Searches all tables for routing values without a destination of their own, and gives each one that the template
allows a destination.

Rules
 V1  Every version is searched once, also while no destination is owned: the rows that arrived in each window.
     A source that was replaced is searched from its beginning. What fails is repeated.
 V2  A destination exists once it is in the control store: every deliverer of the pipeline finds it there. After a
     change of the file it is configured again, as the template is then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from trunkline.core.delivery_messages import SourceAt
from trunkline.delivery.changes.versions import BEFORE_ALL, Window
from trunkline.delivery.config import DestinationConfig, Pipeline, discovered
from trunkline.delivery.config.digests import digest_of, pipeline_digest
from trunkline.delivery.control.store import ControlStore
from trunkline.delivery.deliverer.assembly import addresses_of, places_of

logger = logging.getLogger(__name__)
Count = Callable[[Window], Mapping[str | None, int]]  # reads the values of a window that no destination has


class Discovery:
    """Not thread-safe."""

    def __init__(self, pipeline: Pipeline, store: ControlStore) -> None:
        self._pipeline = pipeline
        self._store = store
        self._searched = BEFORE_ALL
        self._history = 0  # of the source
        self._present: dict[str, DestinationConfig] = {}
        self._refused: set[str] = set()  # logged already

    def known(self) -> list[DestinationConfig]:
        """Those in the store that are new here: another deliverer found them, or an earlier start."""
        record = self._store.configurations.record(self._pipeline.name)
        values = (
            [] if record is None else [value for name, value in record.discovered.items() if name not in self._present]
        )
        return self._take(values)

    def search(self, source: SourceAt, count: Count) -> list[DestinationConfig]:
        """New destinations for the rows that arrived up to this version."""
        values: dict[str, None] = {}
        if source.history != self._history:
            self._searched, self._history = BEFORE_ALL, source.history
        searched = self._searched
        while 0 < source.version > searched:
            end = min((stop for stop in source.stops if stop > searched), default=source.version)
            after = searched if searched >= source.oldest else BEFORE_ALL
            window = Window(after, source.version if after == BEFORE_ALL else min(end, source.version))
            values |= dict.fromkeys(value for value in count(window) if value is not None)
            searched = window.through
        found = self._take(list(values))
        self._searched = searched
        return found

    def _take(self, values: list[str]) -> list[DestinationConfig]:
        result = discovered(self._pipeline, values, self._present.values())
        for refusal in result.refused:
            if refusal not in self._refused:
                self._refused.add(refusal)
                logger.warning("%s", refusal)
        found = result.destinations
        if found:
            new = {
                each.name: (each.values[0], digest_of(self._pipeline, each))
                for each in found
                if each.values is not None
            }
            digest, places, addresses = pipeline_digest(self._pipeline), places_of(found), addresses_of(found)
            self._store.configurations.discover(self._pipeline.name, digest, new, places, addresses)
        self._present |= {each.name: each for each in found}
        return list(found)
