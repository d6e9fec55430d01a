"""Random statements for a random table: changes of rows in every way that SQL has, of columns, and maintenance.

If keys must stay unique, every statement keeps them so. What DuckLake 1.0 cannot do is omitted: it refuses to rewrite
or merge files and to change rows in one transaction; it fails when it deletes by a column that was widened under
inlined rows, and when it deletes rows that the same transaction flushed; a transaction that deletes inlined rows and
then flushes also removes them from all older versions.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from lake_fuzz.shapes import DEFAULTS, INLINING, VALUES, WIDENED, Field, LakeShape, Layout, value
from trunkline.delivery.backends.sql import identifier, literal

KEYS: Final = 12
SALTS: Final = 5  # values that one row may get: few, so that equal rows recur
REWRITE: Final = "CALL ducklake_rewrite_data_files('lake', delete_threshold => 0.01)"
MERGE_FILES: Final = "CALL ducklake_merge_adjacent_files('lake')"
FLUSH: Final = "CALL ducklake_flush_inlined_data('lake')"
MAINTENANCE: Final = (REWRITE, MERGE_FILES, FLUSH)
CLEAN_UP: Final = "CALL ducklake_cleanup_old_files('lake', cleanup_all => true)"


class Statements:
    """Makes statements, and tracks the columns of the table."""

    def __init__(self, chance: random.Random, shape: LakeShape) -> None:
        self._chance = chance
        self._shape = shape
        self._uid = len(shape.layout)
        self._near = False  # all statements of a transaction touch many of the same rows
        self.layout: Layout = shape.layout

    def transaction(self) -> list[str]:
        """One statement, or several between BEGIN and COMMIT."""
        chance = self._chance
        if chance.random() < 0.2:
            return [self.maintenance()]
        if self._shape.alters and chance.random() < 0.2:
            return self._wrapped([self._alter()] if chance.random() < 0.5 else [*self._change(), self._alter()])
        if chance.random() < 0.4:
            return self._wrapped(self._change())
        if chance.random() < 0.05:
            return self._wrapped(chance.choice(([FLUSH, *self._insert()], [*self._insert(), FLUSH])))
        self._near = chance.random() < 0.5
        made = [statement for _ in range(chance.randint(2, 4)) for statement in self._change()]
        self._near = False
        return self._wrapped(made)

    def maintenance(self) -> str:
        setting = f"CALL lake.set_option('data_inlining_row_limit', {self._chance.choice(INLINING)})"
        return self._chance.choices((*MAINTENANCE, setting), (5, 5, 6, 1))[0]

    def expire(self, versions: Sequence[int]) -> str:
        """Expire some versions: the oldest, or any."""
        count = self._chance.randint(1, max(1, len(versions) // 3))
        old = versions[:count] if self._chance.random() < 0.6 else sorted(self._chance.sample(versions, count))
        return f"CALL ducklake_expire_snapshots('lake', versions => [{', '.join(map(str, old))}])"

    @staticmethod
    def _wrapped(made: list[str]) -> list[str]:
        return made if len(made) == 1 else ["BEGIN", *made, "COMMIT"]

    # --- changes of rows ---

    def _change(self) -> list[str]:
        makers: tuple[tuple[Callable[[], list[str]], int], ...] = (
            (self._insert, 8),
            (self._update, 6),
            (self._delete, 6),
            (self._move, 4),
            (self._merge, 4),
            (self._change_key, 2),
            (self._swap_keys, 2),
            (self._replace, 2),
            (self._null_key, 1),
            (self._nothing, 1),
            (self._truncate, 1),
            (self._elsewhere, 1),
        )
        return self._chance.choices([maker for maker, _ in makers], [weight for _, weight in makers])[0]()

    def _insert(self) -> list[str]:
        """A few rows or many."""
        count = self._chance.choice((1, 2, 5, 40))
        first = self._chance.randrange(KEYS) if count < 40 else self._chance.choice((100, 200))
        return [self._inserted(f"range({count}) r(i)", f"i + {first}")]

    def _inserted(self, rows: str, key: str) -> str:
        names = ", ".join(identifier(field.name) for field in self.layout)
        values = ", ".join(f"{made} AS {identifier(name)}" for name, made in self._row(key).items())
        query = f"INSERT INTO {self._shape.name} ({names}) SELECT {values} FROM {rows}"
        if self._shape.duplicates:
            return query
        return f"{query} WHERE ({key}) NOT IN (SELECT id FROM {self._shape.name} WHERE id IS NOT NULL)"

    def _row(self, key: str) -> dict[str, str]:
        """Every column of a row, as SQL, from an expression of its key."""
        salt = self._salt()
        found = {field.name: value(field.type, f"{key} + {salt}") for field in self.layout}
        return found | {"id": self._typed("id", key), "tenant": self._tenant()}

    def _update(self) -> list[str]:
        field = self._chance.choice([field for field in self.layout if field.name not in ("id", "tenant")])
        made = value(field.type, f"coalesce(id, 0) + {self._salt()}")
        return [f"UPDATE {self._shape.name} SET {identifier(field.name)} = {made} WHERE {self._some()}"]

    def _delete(self) -> list[str]:
        return [f"DELETE FROM {self._shape.name} WHERE {self._some()}"]

    def _truncate(self) -> list[str]:
        return [f"DELETE FROM {self._shape.name}"]

    def _move(self) -> list[str]:
        return [f"UPDATE {self._shape.name} SET tenant = {self._tenant()} WHERE {self._some()}"]

    def _change_key(self) -> list[str]:
        taken = f"SELECT id FROM {self._shape.name} WHERE id IS NOT NULL"
        unique = "" if self._shape.duplicates else f" AND id + 1000 NOT IN ({taken})"
        return [f"UPDATE {self._shape.name} SET id = id + 1000 WHERE id = {self._key()}{unique}"]

    def _swap_keys(self) -> list[str]:
        one, other = self._key(), self._key()
        swapped = f"CASE id WHEN {one} THEN {other} ELSE {one} END"
        return [f"UPDATE {self._shape.name} SET id = {swapped} WHERE id IN ({one}, {other})"]

    def _replace(self) -> list[str]:
        """Delete a key and insert it again, perhaps with the same values."""
        key = self._key()
        return [f"DELETE FROM {self._shape.name} WHERE id = {key}", self._inserted("range(1) r(i)", f"i + {key}")]

    def _null_key(self) -> list[str]:
        unique = (
            "" if self._shape.duplicates else f" AND NOT EXISTS (SELECT 1 FROM {self._shape.name} WHERE id IS NULL)"
        )
        return [f"UPDATE {self._shape.name} SET id = NULL WHERE id = {self._key()}{unique}"]

    def _nothing(self) -> list[str]:
        """An update that changes no value still writes its rows again."""
        return [f"UPDATE {self._shape.name} SET tenant = tenant WHERE {self._some()}"]

    def _elsewhere(self) -> list[str]:
        return ["INSERT INTO lake.other VALUES (1), (2), (3), (4), (5)"]

    def _merge(self) -> list[str]:
        row = self._row(f"i + {self._chance.randrange(KEYS)}")
        new = ", ".join(f"{made} AS {identifier(name)}" for name, made in row.items())
        names = ", ".join(identifier(name) for name in row)
        field = self._chance.choice([field.name for field in self.layout if field.name != "id"])
        updated = ", ".join(f"{name} = s.{name}" for name in map(identifier, dict.fromkeys((field, "tenant"))))
        matched = "DELETE" if self._chance.random() < 0.3 else f"UPDATE SET {updated}"
        using = f"MERGE INTO {self._shape.name} t USING (SELECT {new} FROM range(4) r(i)) s ON t.id = s.id"
        inserted = f"INSERT ({names}) VALUES ({', '.join(f's.{identifier(name)}' for name in row)})"
        return [f"{using} WHEN MATCHED THEN {matched} WHEN NOT MATCHED THEN {inserted}"]

    # --- changes of columns ---

    def _alter(self) -> str:
        spare = [field for field in self.layout if field.name not in ("id", "tenant", "part")]
        wide = [field for field in spare if field.type in WIDENED]
        makers: list[Callable[[], str]] = [self._add, self._add_with_default, self._order]
        if spare:
            makers += [lambda: self._drop(spare), lambda: self._rename(spare)]
        if wide:
            makers += [lambda: self._widen(wide)]
        return f"ALTER TABLE {self._shape.name} {self._chance.choice(makers)()}"

    def _add(self) -> str:
        return self._added(Field(0, "", self._chance.choice(tuple(VALUES))))

    def _add_with_default(self) -> str:
        kind = self._chance.choice(tuple(DEFAULTS))
        return self._added(Field(0, "", kind, DEFAULTS[kind]))

    def _added(self, field: Field) -> str:
        self._uid += 1
        free = [name for name in ("x4", "x5", "again") if name not in {each.name for each in self.layout}]
        name = self._chance.choice([f"x{self._uid}", *free])  # another column may reuse a name
        self.layout = (*self.layout, Field(self._uid, name, field.type, field.default))
        default = "" if field.default is None else f" DEFAULT {field.default}"
        return f"ADD COLUMN {identifier(name)} {field.type}{default}"

    def _drop(self, spare: Sequence[Field]) -> str:
        gone = self._chance.choice(spare)
        self.layout = tuple(field for field in self.layout if field != gone)
        return f"DROP COLUMN {identifier(gone.name)}"

    def _rename(self, spare: Sequence[Field]) -> str:
        old, name = self._chance.choice(spare), f'r"{len(self.layout)}'
        if name in {field.name for field in self.layout}:
            return self._add()
        self._change_field(old, Field(old.uid, name, old.type, old.default))
        return f"RENAME COLUMN {identifier(old.name)} TO {identifier(name)}"

    def _widen(self, wide: Sequence[Field]) -> str:
        old = self._chance.choice(wide)
        self._change_field(old, Field(old.uid, old.name, WIDENED[old.type], old.default))
        return f"ALTER COLUMN {identifier(old.name)} SET DATA TYPE {WIDENED[old.type]}"

    def _order(self) -> str:
        kinds = "PARTITIONED BY (tenant)", "SORTED BY (id DESC)"
        return self._chance.choice(
            [f"SET {kind}" for kind in kinds] + [f"RESET {kind.split(' (')[0]}" for kind in kinds]
        )

    def _change_field(self, old: Field, new: Field) -> None:
        self.layout = tuple(new if field == old else field for field in self.layout)

    # --- parts ---

    def _some(self) -> str:
        if self._near:
            return f"id < {KEYS} AND id % 4 <> {self._chance.randrange(4)}"
        return self._chance.choice(
            (
                f"id = {self._key()}",
                f"id IN ({self._key()}, {self._key()}, {100 + self._chance.randrange(40)})",
                f"id % 7 = {self._chance.randrange(7)}",
                f"tenant = {self._tenant()} AND id % 2 = 0",
                f"tenant = {self._tenant()}",
                "id IS NULL",
            )
        )

    def _typed(self, name: str, made: str) -> str:
        (kind,) = (field.type for field in self.layout if field.name == name)
        return f"CAST({made} AS {kind})"

    def _tenant(self) -> str:
        text = self._chance.choice((*self._shape.tenants, None))
        return "NULL" if text is None else self._typed("tenant", literal(text))

    def _key(self) -> int:
        return self._chance.randrange(KEYS)

    def _salt(self) -> int:
        return self._chance.randrange(SALTS)
