"""Finds routing values that have no destination yet, and gives each one that the template allows.

Rules
 V1  Every version is looked at once, also while nothing is owned: the arrivals of each window that nobody takes. A
     source that was replaced is looked at from its beginning.
 V2  A destination counts once the control store has it: then every deliverer of the pipeline learns of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from trunkline.core.delivery_messages import SourceAt
from trunkline.delivery.changes.windows import BEFORE_ALL, Window
from trunkline.delivery.config import DestinationConfig, Pipeline, discovered
from trunkline.delivery.control.store import ControlStore
from trunkline.delivery.deliverer.assembly import digest_of, pipeline_digest

logger = logging.getLogger(__name__)
Count = Callable[[Window], Mapping[str | None, int]]  # reads the values of a window that nobody takes


class Discovery:
    """Not to be used by two threads at once."""

    def __init__(self, pipeline: Pipeline, store: ControlStore) -> None:
        self._pipeline = pipeline
        self._store = store
        self._looked = BEFORE_ALL
        self._history = 0  # of the source
        self._present: dict[str, DestinationConfig] = {}
        self._refused: set[str] = set()  # told already

    def known(self) -> list[DestinationConfig]:
        """Those that the store has and this does not: found by others, or in an earlier life."""
        record = self._store.configurations.record(self._pipeline.name)
        values = (
            [] if record is None else [value for name, value in record.discovered.items() if name not in self._present]
        )
        return self._take(values)

    def look(self, source: SourceAt, count: Count) -> list[DestinationConfig]:
        """New destinations for what came up to this version."""
        values: dict[str, None] = {}
        if source.history != self._history:
            self._looked, self._history = BEFORE_ALL, source.history
        while self._looked < source.version:
            end = min((stop for stop in source.stops if stop > self._looked), default=source.version)
            after = self._looked if self._looked >= source.oldest else BEFORE_ALL
            window = Window(after, source.version if after == BEFORE_ALL else min(end, source.version))
            values |= dict.fromkeys(value for value in count(window) if value is not None)
            self._looked = window.through
        found = self._take(list(values))
        if found:
            new = {each.name: (each.values[0], digest_of(self._pipeline, each)) for each in found}
            self._store.configurations.discover(self._pipeline.name, pipeline_digest(self._pipeline), new)
        return found

    def _take(self, values: list[str]) -> list[DestinationConfig]:
        result = discovered(self._pipeline, values, self._present.values())
        for refusal in result.refused:
            if refusal not in self._refused:
                self._refused.add(refusal)
                logger.warning("%s", refusal)
        self._present |= {each.name: each for each in result.destinations}
        return list(result.destinations)
