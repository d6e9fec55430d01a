"""The configuration of each pipeline: which destinations it has (rules C5, C6 and C12)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from trunkline.delivery.control.contract import PipelineRecord
from trunkline.delivery.control.database import DESIRED_STATE, RETIRED
from trunkline.delivery.control.held_addresses import HeldAddresses
from trunkline.delivery.control.tables import Tables, json_rows, name_rows
from trunkline.errors import ConfigError

ESCAPED: Final = "\x01escaped:"  # begins a routing value that is not stored as it is


class Configurations:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._addresses = HeldAddresses(tables)

    def record(self, pipeline: str) -> PipelineRecord | None:
        """``None`` before the first ``configure``."""
        with self._tables.reading():
            rows = self._tables.run(
                "SELECT digest, revision FROM _trunkline_pipelines WHERE pipeline = :pipeline", pipeline
            )
            return self._record(pipeline, *rows[0]) if rows else None

    def digests(self, pipeline: str) -> dict[str, str]:
        """The last digest of every destination that the pipeline ever had, by name."""
        with self._tables.reading():
            rows = self._tables.run(
                "SELECT name, digest_last FROM _trunkline_destinations WHERE pipeline = :pipeline", pipeline
            )
        return {str(name): str(digest) for name, digest in rows}

    def address_digests(self, pipeline: str) -> dict[str, str]:
        """The last digest of every address that the pipeline ever had."""
        with self._tables.reading():
            return self._addresses.digests(pipeline)

    def revision(self, pipeline: str) -> int:
        """A cheap read, to be polled (C7); 0 before the first ``configure``."""
        with self._tables.reading():
            return self._tables.revision(pipeline)

    def configure(
        self,
        pipeline: str,
        digest: str,
        destinations: Mapping[str, str],
        places: Mapping[str, str] | None = None,
        addresses: Mapping[str, str] | None = None,
    ) -> PipelineRecord:
        """Set the pipeline's configuration (C6): each destination's name, and a digest of what decides its rows.

        A destination whose digest changed has other rows now: its empty window is forgotten, it loses its owner, and a
        reseed is requested. (One that was not configured in between is compared with its last digest.) If the
        pipeline's digest changed, destinations that are not named are no longer configured. The result includes the
        destinations that another deliverer discovered meanwhile: add them with ``discover``.

        ``places``: the place of each destination that shares one (C9); ``None``: as the store has them. ``addresses``:
        equal for two destinations with the same tables (C12); ``None``: not known.
        """
        run = self._tables.run
        with self._tables.writing():
            run("INSERT INTO _trunkline_pipelines VALUES (:pipeline, '', 0, 0, 0, 0) ON CONFLICT DO NOTHING", pipeline)
            before, revision = self._tables.lock(pipeline)
            if before != digest:
                run(
                    "UPDATE _trunkline_pipelines SET digest = :digest WHERE pipeline = :pipeline",
                    pipeline,
                    digest=digest,
                )
                run(
                    self._tables.given("name text")
                    + "UPDATE _trunkline_destinations SET digest = NULL, owner = NULL WHERE pipeline = :pipeline AND "
                    "digest IS NOT NULL AND name NOT IN (SELECT name FROM i)",
                    pipeline,
                    items=name_rows(list(destinations)),
                )
            changed = self._put(pipeline, [(name, each, None) for name, each in destinations.items()], addresses)
            moved = self._put_places(pipeline, list(destinations), places)
            if before != digest or changed or moved:
                revision = self._tables.bump(pipeline)
            return self._record(pipeline, digest, revision)

    def discover(
        self,
        pipeline: str,
        digest: str,
        found: Mapping[str, tuple[str, str]],
        places: Mapping[str, str] | None = None,
        addresses: Mapping[str, str] | None = None,
    ) -> None:
        """Add destinations: name to (routing value, digest). The others as for ``configure``.

        Existing ones stay. Two values for one name: ``ConfigError``.
        """
        rows = [(name, each, stored_value(value)) for name, (value, each) in found.items()]
        with self._tables.locked(pipeline, digest):
            taken = self._tables.run(
                self._tables.given("name text", "digest text", "value text") + "SELECT d.name, d.value, i.value FROM i "
                "JOIN _trunkline_destinations d ON d.pipeline = :pipeline AND d.name = i.name "
                "WHERE d.value <> i.value OR d.value IS NULL AND d.digest IS NOT NULL ORDER BY d.name",
                pipeline,
                items=json_rows(rows),
            )
            if taken:
                name, one, other = (None if each is None else routing_value(str(each)) for each in taken[0])
                owner = "is in the configuration" if one is None else f"belongs to the routing value {one!r}"
                raise ConfigError(
                    f"pipeline {pipeline}: destination {name!r} {owner}, so value {other!r} cannot have it too; "
                    "configure one of them by hand"
                )
            added = self._put(pipeline, rows, addresses)
            moved = self._put_places(pipeline, list(found), places)
            if added or moved:
                self._tables.bump(pipeline)

    def _put(
        self, pipeline: str, rows: Sequence[tuple[str, str, str | None]], addresses: Mapping[str, str] | None
    ) -> bool:
        """Configure these destinations (name, digest, routing value); whether that changed anything (C5, C12)."""
        digests = {name: digest for name, digest, _ in rows}
        owed = frozenset[str]() if addresses is None else self._addresses.take(pipeline, digests, addresses)
        changed = self._tables.run(
            self._tables.given("name text", "digest text", "value text") + "INSERT INTO _trunkline_destinations "
            f"(pipeline, name, digest, digest_last, value, {DESIRED_STATE}, {RETIRED}, asked, reseeded, "
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
            items=json_rows(rows),
        )
        if owed:
            self._request(pipeline, owed)
        return bool(changed or owed)

    def _request(self, pipeline: str, names: Collection[str]) -> None:
        """Request seeds of those that have no open request yet."""
        self._tables.run(
            self._tables.given("name text") + "UPDATE _trunkline_destinations SET asked = asked + 1, owner = NULL, "
            "empty_after = 0, empty_through = 0 FROM i WHERE pipeline = :pipeline "
            "AND _trunkline_destinations.name = i.name AND asked <= reseeded",
            pipeline,
            items=name_rows(list(names)),
        )

    def _put_places(self, pipeline: str, names: Sequence[str], places: Mapping[str, str] | None) -> bool:
        """Store the places of these destinations; whether that changed anything (C9)."""
        if places is None:
            return False
        moved = self._tables.run(
            self._tables.given("name text", "place text") + "UPDATE _trunkline_destinations SET place = i.place FROM i "
            "WHERE pipeline = :pipeline AND _trunkline_destinations.name = i.name "
            "AND _trunkline_destinations.place <> i.place RETURNING _trunkline_destinations.name",
            pipeline,
            items=json_rows([(name, places.get(name, "")) for name in names]),
        )
        return bool(moved)

    def _record(self, pipeline: str, digest: str, revision: int) -> PipelineRecord:
        rows = self._tables.run(
            "SELECT name, value FROM _trunkline_destinations WHERE pipeline = :pipeline AND value IS NOT NULL "
            "ORDER BY name",
            pipeline,
        )
        return PipelineRecord(digest, revision, {str(name): routing_value(str(value)) for name, value in rows})


def stored_value(value: str) -> str:
    """A routing value as it is stored: PostgreSQL's text has no NUL, so a value with one is escaped."""
    if "\0" not in value and not value.startswith(ESCAPED):
        return value
    return ESCAPED + value.replace("%", "%25").replace("\0", "%00")


def routing_value(stored: str) -> str:
    if not stored.startswith(ESCAPED):
        return stored
    return stored.removeprefix(ESCAPED).replace("%00", "\0").replace("%25", "%")
