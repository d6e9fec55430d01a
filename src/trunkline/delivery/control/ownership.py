"""Who delivers what (rules C1 to C3 of ``contract.py``)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from trunkline.delivery.changes.windows import Window
from trunkline.delivery.control.contract import Grant, Held, Share
from trunkline.delivery.control.database import Row, Values
from trunkline.delivery.control.tables import INSISTS, LIVE, RESEED, TAKEN_CARE_OF, Tables, json_text


class Ownership(Tables):
    def acquire(self, pipeline: str, deliverer: str, digest: str, lease_ms: int) -> Held:
        with self._database.transaction(writing=True):
            _, revision = self._take(pipeline, digest)
            now = self._database.now_ms()
            changed = self._renew(pipeline, deliverer, lease_ms, now)
            changed += self._run(
                f"DELETE FROM _trunkline_deliverers WHERE pipeline = :pipeline AND NOT ({LIVE}) RETURNING name",
                pipeline,
                now=now,
            )
            share = self._share(pipeline, deliverer, revision, now)
            changed += self._run(
                "UPDATE _trunkline_destinations SET owner = :me, token = token + 1 WHERE pipeline = :pipeline "
                "AND name IN (SELECT name FROM _trunkline_destinations WHERE pipeline = :pipeline "
                f"AND {TAKEN_CARE_OF} AND (owner IS NULL OR owner NOT IN "
                "(SELECT name FROM _trunkline_deliverers WHERE pipeline = :pipeline)) ORDER BY name LIMIT :room) "
                "RETURNING name",
                pipeline,
                me=deliverer,
                room=max(share.most - share.held, 0),
            )
            if changed:
                share = self._share(pipeline, deliverer, self._bump(pipeline), now)
            return Held(share, self._grants(pipeline, deliverer))

    def renew(self, pipeline: str, deliverer: str, lease_ms: int) -> Share:
        with self._database.transaction(writing=True):
            now = self._database.now_ms()
            joined = self._renew(pipeline, deliverer, lease_ms, now)
            revision = self._bump(pipeline) if joined else self._revision(pipeline)
            return self._share(pipeline, deliverer, revision, now)

    def release(self, pipeline: str, deliverer: str, names: Sequence[str]) -> None:
        with self._database.transaction(writing=True):
            self._take(pipeline)
            released = self._run(
                self._given("name text") + "UPDATE _trunkline_destinations SET owner = NULL FROM i WHERE "
                "pipeline = :pipeline AND _trunkline_destinations.name = i.name AND owner = :me "
                "RETURNING _trunkline_destinations.name",
                pipeline,
                me=deliverer,
                items=json_text([[name] for name in names]),
            )
            if released:
                self._bump(pipeline)

    def leave(self, pipeline: str, deliverer: str) -> None:
        mine = "WHERE pipeline = :pipeline AND"
        with self._database.transaction(writing=True):
            self._take(pipeline)
            left = self._run(
                f"UPDATE _trunkline_destinations SET owner = NULL {mine} owner = :me RETURNING name",
                pipeline,
                me=deliverer,
            )
            left += self._run(
                f"DELETE FROM _trunkline_deliverers {mine} name = :me RETURNING name", pipeline, me=deliverer
            )
            if left:
                self._bump(pipeline)

    def raise_tokens(self, pipeline: str, floors: Mapping[str, int]) -> None:
        with self._database.transaction(writing=True):
            self._take(pipeline)
            raised = self._run(
                self._given("name text", "floor bigint")
                + "UPDATE _trunkline_destinations SET token = i.floor, owner = NULL "
                "FROM i WHERE pipeline = :pipeline "
                "AND _trunkline_destinations.name = i.name AND token < i.floor RETURNING _trunkline_destinations.name",
                pipeline,
                items=json_text(list(floors.items())),
            )
            if raised:
                self._bump(pipeline)

    def _renew(self, pipeline: str, deliverer: str, lease_ms: int, now: int) -> list[Row]:
        """Not empty if the deliverer is new here."""
        values: Values = {"me": deliverer, "now": now, "lease": lease_ms}
        known = self._run(
            "UPDATE _trunkline_deliverers SET renewed_ms = :now, lease_ms = :lease WHERE pipeline = :pipeline "
            "AND name = :me RETURNING name",
            pipeline,
            **values,
        )
        if known:
            return []
        return self._run(
            "INSERT INTO _trunkline_deliverers VALUES (:pipeline, :me, :now, :lease) RETURNING name", pipeline, **values
        )

    def _share(self, pipeline: str, deliverer: str, revision: int, now: int) -> Share:
        live = self._live(pipeline, now)
        counted = self._run(
            f"SELECT owner, count(*) FROM _trunkline_destinations WHERE pipeline = :pipeline AND {TAKEN_CARE_OF} "
            "GROUP BY owner",
            pipeline,
        )
        counts: dict[str | None, int] = dict(counted)
        most = math.ceil(sum(counts.values()) / max(len(live), 1))
        free = sum(count for owner, count in counts.items() if owner not in live)
        return Share(revision, len(live), most, counts.get(deliverer, 0), free)

    def _grants(self, pipeline: str, deliverer: str) -> tuple[Grant, ...]:
        rows = self._run(
            f"SELECT name, token, wish, empty_after, empty_through, {RESEED}, "
            f"CASE WHEN empty_through > 0 THEN empty_mark ELSE '' END, {INSISTS} FROM _trunkline_destinations "
            f"WHERE pipeline = :pipeline AND owner = :me AND {TAKEN_CARE_OF}",
            pipeline,
            me=deliverer,
        )
        return tuple(
            Grant(name, token, desired_state, Window(after, through), reseed, mark, bool(insists))
            for name, token, desired_state, after, through, reseed, mark, insists in sorted(rows)
        )
