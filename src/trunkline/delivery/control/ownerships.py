"""Which deliverer owns which destination (rules C1 to C3, C9 and C10)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from trunkline.delivery.changes.versions import Window
from trunkline.delivery.control.contract import REPAIRER, FairShare, Holdings, Ownership
from trunkline.delivery.control.database import DESIRED_STATE, Row, Values
from trunkline.delivery.control.place_shares import HeldPlace, moves_of, surplus_of
from trunkline.delivery.control.tables import (
    DISCARDS,
    FREE,
    INSISTS,
    LIVE,
    OWNABLE,
    RESEED,
    Tables,
    json_rows,
    name_rows,
)


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
            changed += self._move_places(pipeline, deliverer, now)
            share = self._share(pipeline, deliverer, revision, now)
            changed += run(
                "UPDATE _trunkline_destinations SET owner = :me, token = token + 1 WHERE pipeline = :pipeline "
                "AND name IN (SELECT name FROM _trunkline_destinations WHERE pipeline = :pipeline "
                f"AND {OWNABLE} AND place = '' AND {FREE} ORDER BY name LIMIT :room) RETURNING name",
                pipeline,
                me=deliverer,
                room=max(share.quota - share.held, 0),
            )
            if changed:
                share = self._share(pipeline, deliverer, self._tables.bump(pipeline), now)
            return Holdings(share, self._owned(pipeline, deliverer))

    def seize(self, pipeline: str, repairer: str, digest: str, names: Sequence[str], lease_ms: int) -> dict[str, int]:
        """Take destinations from their owners (C10), and return their tokens; one that is retired has none. Keep the
        lease with ``renew``, and end it with ``leave``."""
        assert repairer.startswith(REPAIRER)
        with self._tables.locked(pipeline, digest):
            self._tables.require(pipeline, names)
            self._renew(pipeline, repairer, lease_ms, self._tables.now_ms())
            mine = "SELECT name FROM i"
            places = f"SELECT place FROM _trunkline_destinations WHERE pipeline = :pipeline AND name IN ({mine})"
            taken = self._tables.run(
                self._tables.given("name text") + "UPDATE _trunkline_destinations SET owner = :me, token = token + 1 "
                f"WHERE pipeline = :pipeline AND {OWNABLE} AND (name IN ({mine}) OR (place <> '' AND place IN "
                f"({places}))) RETURNING name, token",
                pipeline,
                me=repairer,
                items=name_rows(names),
            )
            self._tables.bump(pipeline)
        return {name: int(token) for name, token in taken if name in set(names)}

    def renew(self, pipeline: str, deliverer: str, lease_ms: int) -> FairShare:
        """Renew the lease; call it every ``lease_ms / 3``. One write, however many destinations are owned.

        Call ``acquire`` if the ``revision`` changed, or if ``free > 0`` and ``held < quota``. Release the ``surplus``
        if ``held > quota``. Count the lease from before the call, by your own clock; after it has expired, start
        nothing until a renewal succeeds.
        """
        with self._tables.writing():
            now = self._tables.now_ms()
            joined = self._renew(pipeline, deliverer, lease_ms, now)
            revision = self._tables.bump(pipeline) if joined else self._tables.revision(pipeline)
            return self._share(pipeline, deliverer, revision, now)

    def surplus(self, pipeline: str, deliverer: str) -> tuple[str, ...]:
        """What it should release: whole places, and then the last of the others by name (C3, C9)."""
        with self._tables.reading():
            now = self._tables.now_ms()
            loads, quota = self._loads(pipeline, now)
            owned = self._tables.run(
                f"SELECT name, place FROM _trunkline_destinations WHERE pipeline = :pipeline AND owner = :me "
                f"AND {OWNABLE}",
                pipeline,
                me=deliverer,
            )
        sizes = Counter(place for _, place in owned if place)
        places, alone = surplus_of(deliverer, sizes, {**loads, deliverer: len(owned)}, quota)
        given = {name for name, place in owned if place in places}
        singles = sorted(name for name, place in owned if not place)
        return tuple(sorted(given | set(singles[len(singles) - alone :])))

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

    def _move_places(self, pipeline: str, deliverer: str, now: int) -> list[Row]:
        """Leave and take whole places (C9); not empty if that changed anything."""
        held = self._places(pipeline, now)
        if not held:
            return []
        moves = moves_of(deliverer, held, *self._loads(pipeline, now))
        changed: list[Row] = []
        for places, which, becomes in (
            (moves.left, "owner = :me", "owner = NULL"),
            (moves.taken, FREE, "owner = :me, token = token + 1"),
        ):
            if places:  # IS TRUE: PostgreSQL would compare each place with each, it now looks them up in a hash table
                changed += self._tables.run(
                    self._tables.given("place text") + f"UPDATE _trunkline_destinations SET {becomes} WHERE "
                    f"pipeline = :pipeline AND {OWNABLE} AND {which} AND (place IN (SELECT place FROM i)) IS TRUE "
                    "RETURNING name",
                    pipeline,
                    me=deliverer,
                    items=name_rows(places),
                )
        return changed

    def _places(self, pipeline: str, now: int) -> list[HeldPlace]:
        live = self._tables.live(pipeline, now)
        rows = self._tables.run(
            f"SELECT place, owner, count(*) FROM _trunkline_destinations WHERE pipeline = :pipeline AND {OWNABLE} "
            "AND place <> '' GROUP BY place, owner",
            pipeline,
        )
        owners: dict[str, dict[str, int]] = {}
        free: Counter[str] = Counter()
        for place, owner, count in rows:
            owned = owners.setdefault(place, {})
            if owner in live:
                owned[owner] = count
            else:
                free[place] += count
        return [HeldPlace(place, owned, free[place]) for place, owned in owners.items()]

    def _counts(self, pipeline: str) -> dict[str | None, int]:
        return dict(
            self._tables.run(
                f"SELECT owner, count(*) FROM _trunkline_destinations WHERE pipeline = :pipeline AND {OWNABLE} "
                "GROUP BY owner",
                pipeline,
            )
        )

    def _loads(self, pipeline: str, now: int) -> tuple[dict[str, int], int]:
        """What each deliverer with a live lease holds, and what it should (C3)."""
        live, counts = self._tables.live(pipeline, now), self._counts(pipeline)
        loads = {name: counts.get(name, 0) for name in _deliverers(live)}
        return loads, math.ceil(sum(counts.values()) / max(len(loads), 1))

    def _share(self, pipeline: str, deliverer: str, revision: int, now: int) -> FairShare:
        live, counts = self._tables.live(pipeline, now), self._counts(pipeline)
        deliverers = len(_deliverers(live))
        quota = math.ceil(sum(counts.values()) / max(deliverers, 1))
        free = sum(count for owner, count in counts.items() if owner not in live)
        return FairShare(revision, deliverers, quota, counts.get(deliverer, 0), free)

    def _owned(self, pipeline: str, deliverer: str) -> tuple[Ownership, ...]:
        rows = self._tables.run(
            f"SELECT name, token, {DESIRED_STATE}, empty_after, empty_through, {RESEED}, "
            f"CASE WHEN empty_through > 0 THEN empty_mark ELSE '' END, {INSISTS}, {DISCARDS} "
            f"FROM _trunkline_destinations WHERE pipeline = :pipeline AND owner = :me AND {OWNABLE}",
            pipeline,
            me=deliverer,
        )
        return tuple(
            Ownership(name, token, desired_state, Window(after, through), reseed, mark, bool(insists), bool(discards))
            for name, token, desired_state, after, through, reseed, mark, insists, discards in sorted(rows)
        )


def _deliverers(live: Iterable[str | None]) -> list[str]:
    """Without repairers (C10)."""
    return [name for name in live if name is not None and not name.startswith(REPAIRER)]
