"""Which deliverer owns which destination (rules C1 to C3)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from trunkline.delivery.changes.versions import Window
from trunkline.delivery.control.contract import FairShare, Holdings, Ownership
from trunkline.delivery.control.database import DESIRED_STATE, Row, Values
from trunkline.delivery.control.tables import INSISTS, LIVE, OWNABLE, RESEED, Tables, json_rows, name_rows


class Ownerships:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def acquire(self, pipeline: str, deliverer: str, digest: str, lease_ms: int) -> Holdings:
        """Renew the lease, take free destinations up to the share, and return all that is owned.

        ``deliverer`` names one start of one process and is never used again. A destination with the desired state
        ``retired`` is granted until its retirement is complete.
        """
        run = self._tables.run
        with self._tables.locked(pipeline, digest) as (_, revision):
            now = self._tables.now_ms()
            changed = self._renew(pipeline, deliverer, lease_ms, now)
            changed += run(
                f"DELETE FROM _trunkline_deliverers WHERE pipeline = :pipeline AND NOT ({LIVE}) RETURNING name",
                pipeline,
                now=now,
            )
            share = self._share(pipeline, deliverer, revision, now)
            changed += run(
                "UPDATE _trunkline_destinations SET owner = :me, token = token + 1 WHERE pipeline = :pipeline "
                "AND name IN (SELECT name FROM _trunkline_destinations WHERE pipeline = :pipeline "
                f"AND {OWNABLE} AND (owner IS NULL OR owner NOT IN "
                "(SELECT name FROM _trunkline_deliverers WHERE pipeline = :pipeline)) ORDER BY name LIMIT :room) "
                "RETURNING name",
                pipeline,
                me=deliverer,
                room=max(share.quota - share.held, 0),
            )
            if changed:
                share = self._share(pipeline, deliverer, self._tables.bump(pipeline), now)
            return Holdings(share, self._owned(pipeline, deliverer))

    def renew(self, pipeline: str, deliverer: str, lease_ms: int) -> FairShare:
        """Renew the lease; call it every ``lease_ms / 3``. One write, however many destinations are owned.

        Call ``acquire`` if the ``revision`` changed, or if ``free > 0`` and ``held < quota``. Release some if
        ``held > quota``. Count the lease from before the call, by your own clock; after it has expired, start nothing
        until a renewal succeeds.
        """
        with self._tables.writing():
            now = self._tables.now_ms()
            joined = self._renew(pipeline, deliverer, lease_ms, now)
            revision = self._tables.bump(pipeline) if joined else self._tables.revision(pipeline)
            return self._share(pipeline, deliverer, revision, now)

    def release(self, pipeline: str, deliverer: str, names: Sequence[str]) -> None:
        """Release destinations; those that it no longer owns are ignored."""
        with self._tables.locked(pipeline):
            released = self._tables.run(
                self._tables.given("name text") + "UPDATE _trunkline_destinations SET owner = NULL FROM i WHERE "
                "pipeline = :pipeline AND _trunkline_destinations.name = i.name AND owner = :me "
                "RETURNING _trunkline_destinations.name",
                pipeline,
                me=deliverer,
                items=name_rows(names),
            )
            if released:
                self._tables.bump(pipeline)

    def leave(self, pipeline: str, deliverer: str) -> None:
        """Release everything and end the lease."""
        run, mine = self._tables.run, "WHERE pipeline = :pipeline AND"
        with self._tables.locked(pipeline):
            left = run(
                f"UPDATE _trunkline_destinations SET owner = NULL {mine} owner = :me RETURNING name",
                pipeline,
                me=deliverer,
            )
            left += run(f"DELETE FROM _trunkline_deliverers {mine} name = :me RETURNING name", pipeline, me=deliverer)
            if left:
                self._tables.bump(pipeline)

    def raise_tokens(self, pipeline: str, floors: Mapping[str, int]) -> None:
        """Make the next token of each destination higher than this, and end its ownership.

        For a destination that has seen a higher token than this store ever granted: the store was lost, or another one
        is in use.
        """
        with self._tables.locked(pipeline):
            raised = self._tables.run(
                self._tables.given("name text", "floor bigint")
                + "UPDATE _trunkline_destinations SET token = i.floor, owner = NULL "
                "FROM i WHERE pipeline = :pipeline "
                "AND _trunkline_destinations.name = i.name AND token < i.floor RETURNING _trunkline_destinations.name",
                pipeline,
                items=json_rows(list(floors.items())),
            )
            if raised:
                self._tables.bump(pipeline)

    def _renew(self, pipeline: str, deliverer: str, lease_ms: int, now: int) -> list[Row]:
        """Not empty if the deliverer is new."""
        values: Values = {"me": deliverer, "now": now, "lease": lease_ms}
        known = self._tables.run(
            "UPDATE _trunkline_deliverers SET renewed_ms = :now, lease_ms = :lease WHERE pipeline = :pipeline "
            "AND name = :me RETURNING name",
            pipeline,
            **values,
        )
        if known:
            return []
        return self._tables.run(
            "INSERT INTO _trunkline_deliverers VALUES (:pipeline, :me, :now, :lease) RETURNING name", pipeline, **values
        )

    def _share(self, pipeline: str, deliverer: str, revision: int, now: int) -> FairShare:
        live = self._tables.live(pipeline, now)
        counted = self._tables.run(
            f"SELECT owner, count(*) FROM _trunkline_destinations WHERE pipeline = :pipeline AND {OWNABLE} "
            "GROUP BY owner",
            pipeline,
        )
        counts: dict[str | None, int] = dict(counted)
        quota = math.ceil(sum(counts.values()) / max(len(live), 1))
        free = sum(count for owner, count in counts.items() if owner not in live)
        return FairShare(revision, len(live), quota, counts.get(deliverer, 0), free)

    def _owned(self, pipeline: str, deliverer: str) -> tuple[Ownership, ...]:
        rows = self._tables.run(
            f"SELECT name, token, {DESIRED_STATE}, empty_after, empty_through, {RESEED}, "
            f"CASE WHEN empty_through > 0 THEN empty_mark ELSE '' END, {INSISTS} FROM _trunkline_destinations "
            f"WHERE pipeline = :pipeline AND owner = :me AND {OWNABLE}",
            pipeline,
            me=deliverer,
        )
        return tuple(
            Ownership(name, token, desired_state, Window(after, through), reseed, mark, bool(insists))
            for name, token, desired_state, after, through, reseed, mark, insists in sorted(rows)
        )
