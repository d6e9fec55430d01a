"""The control store, over either database. Its rules are in ``contract.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from trunkline.delivery.changes.windows import Window
from trunkline.delivery.control.contract import DelivererRecord, DesiredState, DestinationRecord, PipelineRecord, Status
from trunkline.delivery.control.database import Row
from trunkline.delivery.control.notes import Notes
from trunkline.delivery.control.ownership import Ownership
from trunkline.delivery.control.tables import LIVE, RESEED, json_text, kept_value, value_kept
from trunkline.errors import ConfigError


class SqlControlStore(Ownership, Notes):
    """The configuration (C6), desired states, and what there is to see."""

    def pipeline(self, pipeline: str) -> PipelineRecord | None:
        with self._database.transaction(writing=False):
            rows = self._run("SELECT digest, revision FROM _trunkline_pipelines WHERE pipeline = :pipeline", pipeline)
            return self._record(pipeline, *rows[0]) if rows else None

    def configure(self, pipeline: str, digest: str, destinations: Mapping[str, str]) -> PipelineRecord:
        with self._database.transaction(writing=True):
            self._run(
                "INSERT INTO _trunkline_pipelines VALUES (:pipeline, '', 0, 0, 0, 0) ON CONFLICT DO NOTHING", pipeline
            )
            before, revision = self._take(pipeline)
            changed = self._put(pipeline, [(name, each, None) for name, each in destinations.items()])
            if before != digest:
                self._run(
                    "UPDATE _trunkline_pipelines SET digest = :digest WHERE pipeline = :pipeline",
                    pipeline,
                    digest=digest,
                )
                self._run(
                    self._given("name text")
                    + "UPDATE _trunkline_destinations SET digest = NULL, owner = NULL WHERE pipeline = :pipeline AND "
                    "digest IS NOT NULL AND name NOT IN (SELECT name FROM i)",
                    pipeline,
                    items=json_text([[name] for name in destinations]),
                )
            if before != digest or changed:
                revision = self._bump(pipeline)
            return self._record(pipeline, digest, revision)

    def discover(self, pipeline: str, digest: str, found: Mapping[str, tuple[str, str]]) -> None:
        items = [(name, each, kept_value(value)) for name, (value, each) in found.items()]
        with self._database.transaction(writing=True):
            self._take(pipeline, digest)
            taken = self._run(
                self._given("name text", "digest text", "value text") + "SELECT d.name, d.value, i.value FROM i "
                "JOIN _trunkline_destinations d ON d.pipeline = :pipeline AND d.name = i.name "
                "WHERE d.value <> i.value OR d.value IS NULL AND d.digest IS NOT NULL ORDER BY d.name",
                pipeline,
                items=json_text(items),
            )
            if taken:
                name, one, other = (None if each is None else value_kept(str(each)) for each in taken[0])
                owner = "is in the configuration" if one is None else f"belongs to the routing value {one!r}"
                raise ConfigError(
                    f"pipeline {pipeline}: destination {name!r} {owner} and cannot be that of {other!r} too; "
                    "configure one of them by hand"
                )
            if self._put(pipeline, items):
                self._bump(pipeline)

    def _put(self, pipeline: str, items: Sequence[tuple[str, str, str | None]]) -> bool:
        """Make these destinations (name, digest, routing value) configured; whether that changed anything (C5)."""
        changed = self._run(
            self._given("name text", "digest text", "value text") + "INSERT INTO _trunkline_destinations "
            "(pipeline, name, digest, digest_last, value, wish, wound_up, asked, reseeded, "
            "token, empty_after, empty_through) "
            "SELECT :pipeline, i.name, i.digest, i.digest, i.value, 'active', 0, 0, 0, 0, 0, 0 "
            "FROM i WHERE true "
            "ON CONFLICT (pipeline, name) DO UPDATE SET digest = excluded.digest, digest_last = excluded.digest, "
            "asked = _trunkline_destinations.asked + "
            "CASE WHEN _trunkline_destinations.digest_last = excluded.digest THEN 0 ELSE 1 END, "
            "owner = NULL, empty_after = 0, empty_through = 0, "
            "value = coalesce(excluded.value, _trunkline_destinations.value) "
            "WHERE coalesce(_trunkline_destinations.digest, '') <> excluded.digest RETURNING name",
            pipeline,
            items=json_text(items),
        )
        return bool(changed)

    def _record(self, pipeline: str, digest: str, revision: int) -> PipelineRecord:
        rows = self._run(
            "SELECT name, value FROM _trunkline_destinations WHERE pipeline = :pipeline AND value IS NOT NULL "
            "ORDER BY name",
            pipeline,
        )
        return PipelineRecord(digest, revision, {str(name): value_kept(str(value)) for name, value in rows})

    # -------------------------------------------------------------------------------------------------------- operators

    def set_desired_state(
        self,
        pipeline: str,
        names: Sequence[str],
        desired_state: DesiredState,
        *,
        instead_of: DesiredState | None = None,
    ) -> tuple[str, ...]:
        with self._database.transaction(writing=True):
            self._require(pipeline, names)
            changed = self._run(
                self._given("name text") + "UPDATE _trunkline_destinations SET wish = :desired_state, wound_up = 0, "
                "empty_after = CASE WHEN wound_up = 1 THEN 0 ELSE empty_after END, "
                "empty_through = CASE WHEN wound_up = 1 THEN 0 ELSE empty_through END "
                "FROM i WHERE pipeline = :pipeline "
                "AND _trunkline_destinations.name = i.name AND wish <> :desired_state "
                "AND wish = coalesce(CAST(:before AS text), wish) RETURNING _trunkline_destinations.name",
                pipeline,
                desired_state=desired_state,
                before=instead_of,
                items=json_text([[name] for name in names]),
            )
            if changed:
                self._bump(pipeline)
            return tuple(sorted(str(name) for (name,) in changed))

    def ask_reseed(self, pipeline: str, names: Sequence[str]) -> None:
        with self._database.transaction(writing=True):
            self._require(pipeline, names)
            self._run(
                self._given("name text") + "UPDATE _trunkline_destinations SET asked = asked + 1, insisted = asked + 1 "
                "FROM i WHERE pipeline = :pipeline AND _trunkline_destinations.name = i.name",
                pipeline,
                items=json_text([[name] for name in names]),
            )
            self._bump(pipeline)

    def reseeded(self, pipeline: str, name: str, token: int, request: int) -> None:
        with self._database.transaction(writing=True):
            self._run(
                "UPDATE _trunkline_destinations SET empty_after = 0, empty_through = 0, "
                "reseeded = CASE WHEN reseeded < :request THEN :request ELSE reseeded END "
                "WHERE pipeline = :pipeline AND name = :name AND token = :token AND owner IS NOT NULL",
                pipeline,
                name=name,
                token=token,
                request=request,
            )

    def retired(self, pipeline: str, name: str, token: int) -> None:
        with self._database.transaction(writing=True):
            self._take(pipeline)
            done = self._run(
                "UPDATE _trunkline_destinations SET owner = NULL, empty_after = 0, empty_through = 0, "
                "wound_up = CASE WHEN wish = 'retired' THEN 1 ELSE 0 END "
                "WHERE pipeline = :pipeline AND name = :name AND token = :token AND owner IS NOT NULL RETURNING name",
                pipeline,
                name=name,
                token=token,
            )
            if done:
                self._bump(pipeline)

    # ---------------------------------------------------------------------------------------------------------- looking

    def revision(self, pipeline: str) -> int:
        with self._database.transaction(writing=False):
            return self._revision(pipeline)

    def destinations(self, pipeline: str) -> tuple[DestinationRecord, ...]:
        with self._database.transaction(writing=False):
            live = self._live(pipeline, self._database.now_ms())
            rows = self._run(
                f"SELECT name, value, digest, wish, wound_up, {RESEED}, owner, token, empty_after, empty_through, "
                "status FROM _trunkline_destinations WHERE pipeline = :pipeline",
                pipeline,
            )
        return tuple(sorted((_destination(row, live) for row in rows), key=lambda record: record.name))

    def deliverers(self, pipeline: str) -> tuple[DelivererRecord, ...]:
        with self._database.transaction(writing=False):
            now = self._database.now_ms()
            rows = self._run(
                f"SELECT name, CASE WHEN {LIVE} THEN 1 ELSE 0 END, :now - renewed_ms, (SELECT count(*) "
                "FROM _trunkline_destinations d WHERE d.pipeline = :pipeline AND d.owner = _trunkline_deliverers.name) "
                "FROM _trunkline_deliverers WHERE pipeline = :pipeline",
                pipeline,
                now=now,
            )
        records = (DelivererRecord(name, bool(live), int(ago), held) for name, live, ago, held in rows)
        return tuple(sorted(records, key=lambda record: record.name))


def _destination(row: Row, live: set[str | None]) -> DestinationRecord:
    name, value, digest, desired_state, retired, reseed, owner, token, after, through, status = row
    return DestinationRecord(
        name=name,
        value=None if value is None else value_kept(value),
        configured=digest is not None,
        desired_state=desired_state,
        retired=bool(retired),
        reseed=reseed,
        owner=owner if owner in live else None,
        token=token,
        empty=Window(after, through),
        status=None if status is None else msgspec.json.decode(status, type=Status),
    )
