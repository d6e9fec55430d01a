"""What operators ask of destinations, and what deliverers have completed of it."""

from __future__ import annotations

from collections.abc import Sequence

from trunkline.delivery.control.contract import DesiredState
from trunkline.delivery.control.database import DESIRED_STATE, RETIRED
from trunkline.delivery.control.tables import Tables, name_rows


class DesiredStates:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def set(
        self, pipeline: str, names: Sequence[str], state: DesiredState, *, instead_of: DesiredState | None = None
    ) -> tuple[str, ...]:
        """Set the desired state of destinations; returns the names of those that changed.

        ``instead_of``: only where that is the present one (so a deliverer pauses a destination that it has drained).
        A retired destination that becomes active starts over. A name that the pipeline does not have: ``ConfigError``,
        and nothing changes.
        """
        with self._tables.locked(pipeline):
            self._tables.require(pipeline, names)
            changed = self._tables.run(
                self._tables.given("name text")
                + f"UPDATE _trunkline_destinations SET {DESIRED_STATE} = :state, {RETIRED} = 0, "
                f"empty_after = CASE WHEN {RETIRED} = 1 THEN 0 ELSE empty_after END, "
                f"empty_through = CASE WHEN {RETIRED} = 1 THEN 0 ELSE empty_through END "
                "FROM i WHERE pipeline = :pipeline "
                f"AND _trunkline_destinations.name = i.name AND {DESIRED_STATE} <> :state "
                f"AND {DESIRED_STATE} = coalesce(CAST(:before AS text), {DESIRED_STATE}) "
                "RETURNING _trunkline_destinations.name",
                pipeline,
                state=state,
                before=instead_of,
                items=name_rows(names),
            )
            if changed:
                self._tables.bump(pipeline)
            return tuple(sorted(str(name) for (name,) in changed))

    def request_reseed(self, pipeline: str, names: Sequence[str], *, discards: bool = False) -> None:
        """Request a new seed; ``discards``: histories are replaced, too. A name that the pipeline does not have:
        ``ConfigError``, and nothing changes."""
        discarded = ", discarded = asked + 1" if discards else ""
        with self._tables.locked(pipeline):
            self._tables.require(pipeline, names)
            self._tables.run(
                self._tables.given("name text")
                + f"UPDATE _trunkline_destinations SET asked = asked + 1, insisted = asked + 1{discarded} "
                "FROM i WHERE pipeline = :pipeline AND _trunkline_destinations.name = i.name",
                pipeline,
                items=name_rows(names),
            )
            self._tables.bump(pipeline)

    def reseeded(self, pipeline: str, name: str, token: int, request: int) -> None:
        """The owner completed this request (C4); a later one stays open. The empty window is forgotten."""
        with self._tables.writing():
            self._tables.run(
                "UPDATE _trunkline_destinations SET empty_after = 0, empty_through = 0, "
                "reseeded = CASE WHEN reseeded < :request THEN :request ELSE reseeded END "
                "WHERE pipeline = :pipeline AND name = :name AND token = :token AND owner IS NOT NULL",
                pipeline,
                name=name,
                token=token,
                request=request,
            )

    def retired(self, pipeline: str, name: str, token: int) -> None:
        """The owner removed the position of a retired destination (C4): it has no owner until it becomes active.

        If the desired state has changed meanwhile, it only loses its owner, and starts over with the next.
        """
        with self._tables.locked(pipeline):
            done = self._tables.run(
                "UPDATE _trunkline_destinations SET owner = NULL, empty_after = 0, empty_through = 0, "
                f"{RETIRED} = CASE WHEN {DESIRED_STATE} = 'retired' THEN 1 ELSE 0 END "
                "WHERE pipeline = :pipeline AND name = :name AND token = :token AND owner IS NOT NULL RETURNING name",
                pipeline,
                name=name,
                token=token,
            )
            if done:
                self._tables.bump(pipeline)
