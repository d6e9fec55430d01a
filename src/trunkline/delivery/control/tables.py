"""The tables of the control store, as its parts use them.

A transaction that writes owners, desired states or the configuration of a pipeline first locks its row in
``_trunkline_pipelines``, so such transactions run one after another. Renewals and statuses touch only rows of their
own deliverer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from difflib import get_close_matches
from typing import Any, Final

import msgspec

from trunkline.delivery.control.database import RETIRED, Database, Row
from trunkline.errors import ConfigError

OWNABLE: Final = f"digest IS NOT NULL AND {RETIRED} = 0"
# After deliverers whose leases expired were removed.
FREE: Final = "(owner IS NULL OR owner NOT IN (SELECT name FROM _trunkline_deliverers WHERE pipeline = :pipeline))"
RESEED: Final = "CASE WHEN asked > reseeded THEN asked ELSE 0 END"
INSISTS: Final = "CASE WHEN insisted > reseeded THEN 1 ELSE 0 END"
DISCARDS: Final = "CASE WHEN discarded > reseeded THEN 1 ELSE 0 END"
LIVE: Final = "abs(:now - renewed_ms) < lease_ms"  # a clock that was set back must not extend a lease


class Tables:
    def __init__(self, database: Database) -> None:
        self._database = database
        self.now_ms = database.now_ms

    def reading(self) -> AbstractContextManager[None]:
        return self._database.transaction(writing=False)

    def writing(self) -> AbstractContextManager[None]:
        return self._database.transaction(writing=True)

    @contextmanager
    def locked(self, pipeline: str, digest: str | None = None) -> Iterator[tuple[str, int]]:
        """A transaction in which no other writes this pipeline; yields its digest and revision (C6)."""
        with self.writing():
            yield self.lock(pipeline, digest)

    def lock(self, pipeline: str, digest: str | None = None) -> tuple[str, int]:
        rows = self.run(
            "UPDATE _trunkline_pipelines SET revision = revision WHERE pipeline = :pipeline RETURNING digest, revision",
            pipeline,
        )
        if not rows:
            raise _unknown(pipeline)
        present, revision = rows[0]
        if digest not in (None, present):
            raise ConfigError(
                f"pipeline {pipeline} was given another configuration by another deliverer; restart this one with it"
            )
        return str(present), int(revision)

    def run(self, statement: str, pipeline: str, **values: str | int | None) -> list[Row]:
        return self._database.run(statement, {"pipeline": pipeline, **values})

    def given(self, *columns: str) -> str:
        """Begins a statement: the rows of the parameter ``items``, with these columns and types, are table ``i``.

        Materialized, or SQLite would parse them again for each row of the table that they are joined with.
        """
        typed = [column.split() for column in columns]
        picked = [f"CAST(j.value ->> {n} AS {kind}) AS {name}" for n, (name, kind) in enumerate(typed)]
        return f"WITH i AS MATERIALIZED (SELECT {', '.join(picked)} FROM {self._database.elements('items')}) "

    def bump(self, pipeline: str) -> int:
        """The next revision (C7)."""
        rows = self.run(
            "UPDATE _trunkline_pipelines SET revision = revision + 1 WHERE pipeline = :pipeline RETURNING revision",
            pipeline,
        )
        if not rows:
            raise _unknown(pipeline)
        return int(rows[0][0])

    def revision(self, pipeline: str) -> int:
        rows = self.run("SELECT revision FROM _trunkline_pipelines WHERE pipeline = :pipeline", pipeline)
        return int(rows[0][0]) if rows else 0

    def require(self, pipeline: str, names: Sequence[str]) -> None:
        """Raise ``ConfigError`` for a name that the pipeline does not have."""
        rows = self.run("SELECT name FROM _trunkline_destinations WHERE pipeline = :pipeline", pipeline)
        known = {str(name) for (name,) in rows}
        for name in names:
            if name not in known:
                near = get_close_matches(name, sorted(known), n=1)
                hint = f"did you mean {near[0]!r}?" if near else "`trunkline deliver status` lists them all"
                raise ConfigError(f"pipeline {pipeline} has no destination {name!r}; {hint}")

    def live(self, pipeline: str, now: int) -> set[str | None]:
        """Deliverers with a live lease."""
        rows = self.run(
            f"SELECT name FROM _trunkline_deliverers WHERE pipeline = :pipeline AND {LIVE}", pipeline, now=now
        )
        return {name for (name,) in rows}


def _unknown(pipeline: str) -> ConfigError:
    return ConfigError(f"the control store has no pipeline {pipeline!r}; start it once with `trunkline deliver run`")


def json_rows(rows: Sequence[Any]) -> str:
    """The parameter ``items`` of a statement that begins with ``given``."""
    return msgspec.json.encode(rows).decode()


def name_rows(names: Sequence[str]) -> str:
    return json_rows([[name] for name in names])
