"""The tables of the control store, and what all that is done with them shares.

A transaction that writes owners, desired states or the configuration of a pipeline first locks its row in
``_trunkline_pipelines``, so such transactions run one after another. Renewals and statuses touch only rows of their
own deliverer.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, Final

import msgspec

from trunkline.delivery.control.database import Database, Row
from trunkline.errors import ConfigError

TAKEN_CARE_OF: Final = "digest IS NOT NULL AND wound_up = 0"
RESEED: Final = "CASE WHEN asked > reseeded THEN asked ELSE 0 END"
INSISTS: Final = "CASE WHEN insisted > reseeded THEN 1 ELSE 0 END"
LIVE: Final = "abs(:now - renewed_ms) < lease_ms"  # a clock that was set back must not make a lease last

ESCAPED: Final = "\x01escaped:"  # begins a routing value that is not kept as it is


class Tables:
    def __init__(self, database: Database) -> None:
        self._database = database

    def close(self) -> None:
        self._database.close()

    def _run(self, statement: str, pipeline: str, **values: str | int | None) -> list[Row]:
        return self._database.run(statement, {"pipeline": pipeline, **values})

    def _given(self, *columns: str) -> str:
        """Begins a statement: the rows of the parameter ``items``, with these columns and types, are table ``i``.

        Materialized, or SQLite would read all of them anew for each row of the table that they are joined with.
        """
        typed = [column.split() for column in columns]
        picked = [f"CAST(j.value ->> {n} AS {kind}) AS {name}" for n, (name, kind) in enumerate(typed)]
        return f"WITH i AS MATERIALIZED (SELECT {', '.join(picked)} FROM {self._database.elements('items')}) "

    def _take(self, pipeline: str, digest: str | None = None) -> tuple[str, int]:
        """Keep others from writing this pipeline until the transaction ends; its digest and revision (C6)."""
        rows = self._run(
            "UPDATE _trunkline_pipelines SET revision = revision WHERE pipeline = :pipeline RETURNING digest, revision",
            pipeline,
        )
        if not rows:
            raise _unknown(pipeline)
        present, revision = rows[0]
        if digest not in (None, present):
            raise ConfigError(
                f"pipeline {pipeline} was configured anew by another deliverer; start this one again with that "
                "configuration"
            )
        return str(present), int(revision)

    def _bump(self, pipeline: str) -> int:
        rows = self._run(
            "UPDATE _trunkline_pipelines SET revision = revision + 1 WHERE pipeline = :pipeline RETURNING revision",
            pipeline,
        )
        if not rows:
            raise _unknown(pipeline)
        return int(rows[0][0])

    def _revision(self, pipeline: str) -> int:
        rows = self._run("SELECT revision FROM _trunkline_pipelines WHERE pipeline = :pipeline", pipeline)
        return int(rows[0][0]) if rows else 0

    def _require(self, pipeline: str, names: Sequence[str]) -> None:
        self._take(pipeline)
        rows = self._run("SELECT name FROM _trunkline_destinations WHERE pipeline = :pipeline", pipeline)
        known = {str(name) for (name,) in rows}
        for name in names:
            if name not in known:
                near = get_close_matches(name, sorted(known), n=1)
                hint = f"did you mean {near[0]!r}?" if near else "`trunkline deliver status` lists them all"
                raise ConfigError(f"pipeline {pipeline} has no destination {name!r}; {hint}")

    def _live(self, pipeline: str, now: int) -> set[str | None]:
        rows = self._run(
            f"SELECT name FROM _trunkline_deliverers WHERE pipeline = :pipeline AND {LIVE}", pipeline, now=now
        )
        return {name for (name,) in rows}


def _unknown(pipeline: str) -> ConfigError:
    return ConfigError(f"the control store knows no pipeline {pipeline!r}; start it once with `trunkline deliver run`")


def kept_value(value: str) -> str:
    """A routing value as it is kept: PostgreSQL's text has no NUL. All but those with one are kept as they are."""
    if "\0" not in value and not value.startswith(ESCAPED):
        return value
    return ESCAPED + value.replace("%", "%25").replace("\0", "%00")


def value_kept(kept: str) -> str:
    """The routing value that was kept."""
    if not kept.startswith(ESCAPED):
        return kept
    return kept.removeprefix(ESCAPED).replace("%00", "\0").replace("%25", "%")


def json_text(items: Sequence[Any]) -> str:
    return msgspec.json.encode(items).decode()
